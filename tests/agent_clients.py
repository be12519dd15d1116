"""Tests `furrow policy` with LangChain and OpenAI's agents library as they are: none of their requests is
refused, and the replies fill their types. The model is random, so a call is required where one is expected.

usage: agent_clients.py BASE_URL TOKEN MODEL
"""

import asyncio
import sys
from typing import Literal

import agents
import openai
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

base_url, token, model = sys.argv[1:]
calls = []


class Step(BaseModel):
    """What to do next."""

    action: Literal["click", "scroll"]
    is_last: bool


@tool
def paint(colour: Literal["red", "green"], twice: bool) -> str:
    """Paints the wall."""
    return f"{colour} {twice}"


def langchain(**options):
    chat = ChatOpenAI(base_url=base_url, api_key=token, model=model, max_retries=0, **options)
    messages = [SystemMessage("Be brief."), HumanMessage("Paint.")]
    assert isinstance(chat.invoke(messages).text, str)
    assert "".join(part.text for part in chat.stream(messages)) is not None

    painting = chat.bind_tools([paint], tool_choice="required")
    reply = painting.invoke(messages)
    assert reply.tool_calls and not reply.invalid_tool_calls, reply
    results = [ToolMessage(paint.invoke(call["args"]), tool_call_id=call["id"]) for call in reply.tool_calls]
    chat.bind_tools([paint]).invoke([*messages, reply, *results])
    whole = None
    for part in painting.stream(messages):
        whole = part if whole is None else whole + part
    call = whole.tool_calls[0]
    assert call["name"] == "paint" and call["args"]["colour"] in ("red", "green")

    step = chat.with_structured_output(Step).invoke(messages)
    assert isinstance(step, Step), step
    step = chat.with_structured_output(Step, method="function_calling").invoke(messages)
    assert isinstance(step, Step), step
    print("langchain", options)


@agents.function_tool
def flip(side: Literal["heads", "tails"]) -> str:
    """Flips a coin."""
    calls.append(side)
    return f"It shows {side}."


async def run_agents(api):
    agents.set_default_openai_api(api)
    # The choice is reset after a call. The form of the output then leaves the model the choice between it
    # and one more call; free text of a random model would not end.
    agent = agents.Agent(
        name="flipper",
        instructions="Flip a coin.",
        tools=[flip],
        output_type=Step,
        model=model,
        model_settings=agents.ModelSettings(tool_choice="required", parallel_tool_calls=False),
    )
    before = len(calls)
    result = await agents.Runner.run(agent, "Flip.", max_turns=50)
    assert len(calls) > before and isinstance(result.final_output, Step), result
    typed = agents.Agent(name="typed", instructions="Decide.", output_type=Step, model=model)
    decided = await agents.Runner.run(typed, "Decide.")
    assert isinstance(decided.final_output, Step), decided

    before = len(calls)
    streamed = agents.Runner.run_streamed(agent, "Flip.", max_turns=50)
    kinds = {event.type async for event in streamed.stream_events()}
    assert len(calls) > before and "run_item_stream_event" in kinds, kinds
    print("agents", api)


async def run_all_agents():
    # The client belongs to one event loop.
    client = openai.AsyncOpenAI(base_url=base_url, api_key=token, max_retries=0)
    agents.set_default_openai_client(client, use_for_tracing=False)
    agents.set_tracing_disabled(True)
    for api in ("responses", "chat_completions"):
        await run_agents(api)


asyncio.run(run_all_agents())
langchain()
langchain(use_responses_api=True)
