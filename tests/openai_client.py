"""Tests `furrow policy` with the official client: its requests are understood, and the replies fill its own
types.

usage: openai_client.py BASE_URL TOKEN PICTURE
"""

import base64
import json
import sys
from pathlib import Path
from typing import Literal

import openai
from pydantic import BaseModel

base_url, token, picture = sys.argv[1:]
client = openai.OpenAI(base_url=base_url, api_key=token, max_retries=0, timeout=120)
image = "data:image/png;base64," + base64.b64encode(Path(picture).read_bytes()).decode()


def refused(kind, code, **changes):
    request = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **changes}
    try:
        client.chat.completions.create(**request)
    except kind as error:
        assert error.code == code, (error.code, error)
        return error
    raise AssertionError(f"{changes} was answered")


models = client.models.list().data
assert len(models) == 1, models
model = models[0].id
assert client.models.retrieve(model).id == model

# Text and a picture.
messages_in = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": image, "detail": "high"}},
        ],
    },
]
greedy = {"model": model, "temperature": 0, "max_completion_tokens": 16}
completion = client.chat.completions.create(
    messages=messages_in, logprobs=True, extra_body={"return_token_ids": True}, **greedy
)
choice = completion.choices[0]
assert (
    completion.object == "chat.completion"
    and choice.message.role == "assistant"
    and choice.finish_reason in ("stop", "length")
)
ids = choice.model_extra["token_ids"]
assert len(ids) == completion.usage.completion_tokens == len(choice.logprobs.content)
assert len(completion.model_extra["prompt_token_ids"]) == completion.usage.prompt_tokens
assert all(entry.logprob <= 0 for entry in choice.logprobs.content)
assert completion.usage.prompt_tokens_details.cached_tokens == 0

# The likeliest tokens beside each, in both forms; a greedy one is the likeliest itself.
ranked = client.chat.completions.create(messages=messages_in, logprobs=True, top_logprobs=3, **greedy)
assert ranked.choices[0].message == choice.message
for entry in ranked.choices[0].logprobs.content:
    listed = [other.logprob for other in entry.top_logprobs]
    assert (
        len(listed) == 3
        and listed == sorted(listed, reverse=True)
        and entry.top_logprobs[0].token == entry.token
    )
streamed = client.chat.completions.create(
    messages=messages_in, logprobs=True, top_logprobs=3, stream=True, **greedy
)
entries = [
    entry
    for part in streamed
    for entry in (part.choices[0].logprobs.content if part.choices[0].logprobs else [])
]
assert entries == ranked.choices[0].logprobs.content

# The same, streamed.
parts = list(
    client.chat.completions.create(
        messages=messages_in, stream=True, stream_options={"include_usage": True}, **greedy
    )
)
assert (
    "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == choice.message.content
)
assert [
    part.choices[0].finish_reason for part in parts if part.choices and part.choices[0].finish_reason
] == [choice.finish_reason]
assert parts[-1].usage == completion.usage and not parts[-1].choices
with client.chat.completions.stream(messages=messages_in, **greedy) as stream:
    assert "".join(event.delta for event in stream if event.type == "content.delta") == choice.message.content

# A session: messages go back as the client's own objects, and only what is new is computed.
messages, before = list(messages_in), 0
for turn in range(10):
    reply = client.chat.completions.create(messages=messages, extra_body={"session_id": "python-1"}, **greedy)
    usage = reply.usage
    cached = usage.prompt_tokens_details.cached_tokens
    assert cached + usage.prompt_tokens_details.model_extra["prefilled_tokens"] == usage.prompt_tokens, usage
    if turn:
        # All but the end of the last reply, at most its last token and the stop id.
        assert before - 2 < cached + 1 <= before, (turn, cached, before)
    before = usage.prompt_tokens + usage.completion_tokens + (reply.choices[0].finish_reason == "length")
    messages += [reply.choices[0].message, {"role": "user", "content": f"Go on, {turn}."}]
print(f"turn 10: {usage.prompt_tokens} tokens of prompt, {cached} of them cached")


# Structured output by the client's own helper. A random model writes until its tokens are used up, and the
# finish reason says so.
class Step(BaseModel):
    note: bool | None
    action: Literal["click", "scroll", "wait"]
    x: int


parsed = client.chat.completions.parse(
    messages=messages[:2], response_format=Step, model=model, temperature=1, seed=4, max_tokens=64
)
step = parsed.choices[0].message.parsed
assert isinstance(step, Step), parsed
schema = {"type": "object", "properties": {"say": {"type": "string"}}, "required": ["say"]}
named = {"type": "json_schema", "json_schema": {"name": "say", "schema": schema}}
say = client.chat.completions.create(messages=messages[:2], response_format=named, model=model, max_tokens=40)
assert list(json.loads(say.choices[0].message.content)) == ["say"]
free = client.chat.completions.create(
    messages=messages[:2], response_format={"type": "json_object"}, model=model, max_tokens=60
)
assert isinstance(json.loads(free.choices[0].message.content), dict)

# Several choices, and keys that have no effect.
raw = client.chat.completions.with_raw_response.create(
    messages=messages[:2], model=model, n=2, seed=1, max_tokens=8, frequency_penalty=0.3, store=True
)
assert raw.headers["furrow-ignored"] == "frequency_penalty, store"
assert [choice.index for choice in raw.parse().choices] == [0, 1]


# Functions: a call that is required fills the client's own types, and its result goes back.
class Flip(BaseModel):
    side: Literal["heads", "tails"]


tools = [openai.pydantic_function_tool(Flip)]
chat = [{"role": "user", "content": "Flip."}]
called = client.chat.completions.parse(
    messages=chat, model=model, tools=tools, tool_choice="required", parallel_tool_calls=False
)
message = called.choices[0].message
assert called.choices[0].finish_reason == "tool_calls" and message.content is None
assert isinstance(message.tool_calls[0].function.parsed_arguments, Flip)
result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "It fell on its edge."}
chat += [message, result]
client.chat.completions.create(messages=chat, model=model, tools=tools, max_tokens=8)
streaming = client.chat.completions.stream(messages=chat, model=model, tools=tools, tool_choice="required")
with streaming as stream:
    done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert done and isinstance(done[0].parsed_arguments, Flip)

# Completions.
text = client.completions.create(model=model, prompt="Once", max_tokens=6, logprobs=2, temperature=0)
assert len(text.choices[0].logprobs.tokens) == text.usage.completion_tokens
parts = client.completions.create(model=model, prompt="Once", max_tokens=6, temperature=0, stream=True)
assert "".join(part.choices[0].text for part in parts) == text.choices[0].text

# Responses: text, a picture, a form, and functions.
response = client.responses.create(model=model, input="Hello.", instructions="Be brief.", max_output_tokens=8)
assert response.output_text and response.usage.output_tokens <= 8
look = {
    "role": "user",
    "content": [
        {"type": "input_text", "text": "Look."},
        {"type": "input_image", "image_url": image, "detail": "auto"},
    ],
}
whole = client.responses.create(model=model, input=[look], max_output_tokens=8, temperature=0)
with client.responses.stream(model=model, input=[look], max_output_tokens=8, temperature=0) as stream:
    deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
assert "".join(deltas) == whole.output_text
parsed = client.responses.parse(model=model, input="Flip.", text_format=Flip, max_output_tokens=64)
assert parsed.output_parsed.side
flat = [openai.pydantic_function_tool(Flip)["function"] | {"type": "function"}]
turns = [{"role": "user", "content": "Flip."}]
with client.responses.stream(model=model, input=turns, tools=flat, tool_choice="required") as stream:
    for _ in stream:
        pass
    final = stream.get_final_response()
call = final.output[0]
assert call.type == "function_call" and Flip.model_validate_json(call.arguments)
turns += [*final.output, {"type": "function_call_output", "call_id": call.call_id, "output": "heads"}]
client.responses.create(model=model, input=turns, tools=flat, max_output_tokens=8)

# A refusal raises the client's own exceptions.
refused(openai.NotFoundError, "model_not_found", model="gpt-9")
refused(openai.BadRequestError, None, n=99)
refused(openai.BadRequestError, None, logprobs=True, top_logprobs=21)
refused(openai.BadRequestError, None, top_logprobs=5)
refused(openai.BadRequestError, "unsupported_parameter", logit_bias={"5": 1})
refused(
    openai.BadRequestError, "context_length_exceeded", messages=[{"role": "user", "content": "word " * 20000}]
)
address = [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]
assert "not fetched" in str(
    refused(openai.BadRequestError, None, messages=[{"role": "user", "content": address}])
)
try:
    openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0).models.list()
    raise AssertionError("a wrong token was accepted")
except openai.AuthenticationError as error:
    assert error.code == "invalid_api_key"
print("openai", openai.__version__)
