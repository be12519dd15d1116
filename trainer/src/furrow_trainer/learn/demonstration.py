"""Demonstrations as sequences: the prompts that a model would read, and the replies that it should write.

Scripted trajectories hold text and screenshots, no tokens. They are laid out by the checkpoint's template
under one of the context policies, as by the policy worker. A reply that is JSON is tokenised as constrained
decoding writes it: fixed pieces, literals, numbers and free texts each alone, so that no token spans a border
and the model learns exactly the ids that the grammar allows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence as Items

import numpy as np

from ..data.rows import Step, Trajectory
from ..errors import DataError
from .images import Images
from .sequence import Picture, ResponseTokens, Sequence, joined
from .template import Template, array, outcome_text

CONTEXTS = ("append", "last_image", "fresh")
# A value that is a string, a number or a literal, after what may come before a value.
_VALUE = re.compile(
    r'(?<=[:\[,])(?:"(?P<string>(?:[^"\\]|\\.)*)"|(?P<literal>-?[0-9.eE+-]+|true|false|null))'
)
_KEY_BEHIND = re.compile(r"\s*:")


def sequences(
    trajectory: Trajectory,
    steps: Items[Step],
    images: Images,
    template: Template,
    context: str,
    dropped: frozenset[str] = frozenset(),
) -> list[Sequence]:
    """Sequences of a demonstration. `dropped` names fields of a reply (`note`, `thought`, `element`) that are
    emptied.

    Raises:
        DataError: when a reply should be emptied of fields and is not JSON.
    """
    if context not in CONTEXTS:
        raise ValueError(
            f"context is {context!r}; demonstrations are laid out as one of {', '.join(CONTEXTS)}"
        )
    found: list[Sequence] = []
    kept: list[int] = []
    pictures: list[Picture] = []
    history: list[int] = []
    responses: list[ResponseTokens] = []
    for step in steps:
        key, rows = images.demonstrated(step)
        if step.step == 0 or context == "fresh":
            before, after = template.first_turn(str(trajectory.session["instructions"]), trajectory.goal)
            before = [*before, *history]
        else:
            before, after = template.later_turn(outcome_text(steps[step.step - 1].outcome))
        pictures = [
            *(pictures if context == "append" else []),
            Picture(len(kept) + len(before) + 1, rows, key),
        ]
        prompt = [*kept, *before, *template.image(rows), *after]
        ids, chosen = reply(step.action["raw_text"], template, dropped)
        # A wait that the demonstration did not ask for is read and not learned.
        learned = (ids, chosen) if step.trainable_sft else ([], [])
        response = _response_tokens(len(prompt), *learned)
        whole = [*prompt, *ids]
        responses = [*responses, response] if context == "append" else [response]
        if context == "append":
            kept = whole
        elif context == "last_image":
            kept = [*kept, *before, *after, *ids]
        else:
            history += [*ids[:-1], *template.tokenizer.encode(f"\n{outcome_text(step.outcome)}\n")]
        is_whole = context != "append" or step is steps[-1]
        if is_whole and any(len(one) > 0 for one in responses):
            first = steps[0].step if context == "append" else step.step
            found.append(
                Sequence(
                    trajectory.trajectory_id,
                    trajectory.group_id,
                    (first, step.step),
                    array(whole),
                    tuple(pictures),
                    joined(responses),
                )
            )
    return found


def reply(
    text: str, template: Template, dropped: frozenset[str] = frozenset()
) -> tuple[list[int], list[bool]]:
    """Ids of a reply with its stop id, and which of them are a choice (the others follow from the
    grammar)."""
    if dropped:
        text = _emptied(text, dropped)
    ids: list[int] = []
    chosen: list[bool] = []
    ended = False
    for piece, is_free in pieces(text):
        new = template.tokenizer.encode(piece)
        # The first id after a free text ends it, which is a choice; after a literal or a number it often is.
        chosen += [is_free or (ended and index == 0) for index in range(len(new))]
        ids += new
        ended = is_free
    return [*ids, template.stop], [*chosen, not any(is_free for _, is_free in pieces(text))]


def pieces(text: str) -> list[tuple[str, bool]]:
    """Cuts JSON into fixed pieces and values, `(text, is a value)`; other text is one value. An empty value
    is a piece of no ids."""
    try:
        json.loads(text)
    except ValueError:
        return [(text, True)]
    found: list[tuple[str, bool]] = []
    at = 0
    for match in _VALUE.finditer(text):
        is_string = match["string"] is not None
        if is_string and _KEY_BEHIND.match(text, match.end()):
            continue
        begin, end = match.span("string") if is_string else match.span("literal")
        found.append((text[at:begin], False))
        value = text[begin:end]
        scheme = re.match(r"https?://", value)
        if scheme:
            found.append((scheme[0], True))
            value = value[len(scheme[0]) :]
        found.append((value, True))
        at = end
    found.append((text[at:], False))
    return found


def _emptied(text: str, dropped: frozenset[str]) -> str:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DataError(
            f"a reply is not JSON, so {', '.join(sorted(dropped))} cannot be dropped from it: {text[:200]!r}"
        ) from error

    def emptied(inner: object) -> object:
        if isinstance(inner, dict):
            return {
                key: "" if key in dropped and isinstance(item, str) else emptied(item)
                for key, item in inner.items()
            }
        return inner

    return json.dumps(emptied(value), ensure_ascii=False, separators=(",", ":"))


def _response_tokens(begin: int, ids: list[int], chosen: list[bool]) -> ResponseTokens:
    count = len(ids)
    nothing = np.full(count, np.nan, np.float32)
    return ResponseTokens(
        position=np.arange(begin, begin + count, dtype=np.int32),
        sampled=np.array(chosen, np.bool_),
        logprob=nothing,
        whole_logprob=nothing,
        entropy=nothing,
        temperature=np.ones(count, np.float32),
        version=np.full(count, -1, np.int32),
        state_version=np.full(count, -1, np.int32),
        kept=(None,) * count,
        unlisted=np.zeros(count, np.bool_),
    )
