"""The layout of a chat around its screenshots, as the policy lays it out, for demonstrations without tokens.

The rule is that of Furrow's `crates/model/src/template.rs`: names of added tokens become their ids; the text
between two marks, filled-in text included, is encoded at once, and marks in it are plain text. Text that is
the same in every prompt is encoded alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.rows import Ids
from ..errors import CheckpointError

if TYPE_CHECKING:
    # Importing it imports PyTorch, which reading a config file does not need.
    from ..model.config import VisionConfig

TEMPLATE_FILE = "furrow_template.json"
_DEFAULT = {
    "first_turn": (
        "<s><SPECIAL_10>System\n{instructions}\n<SPECIAL_11>User\n{task}\n{image}\n"
        "<SPECIAL_11>Assistant\n<think></think>"
    ),
    "later_turn": "\n\n<SPECIAL_11>User\n{outcome}\n{image}\n<SPECIAL_11>Assistant\n<think></think>",
    "stop": "<SPECIAL_12>",
}
_SLOTS = ("{instructions}", "{task}", "{outcome}", "{image}")


@dataclass(frozen=True, slots=True)
class _Chunk:
    kind: str
    """`text`, `slot` or `mark`."""
    text: str


class Tokenizer:
    """A checkpoint's tokenizer: text to ids, never reading it for special tokens."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer as Loaded

        path = folder / "tokenizer.json"
        try:
            self._tokenizer: Any = Loaded.from_file(str(path))
            added = json.loads(path.read_text("utf8"))["added_tokens"]
        except Exception as error:  # the library raises Exception itself
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        self.specials = {str(token["content"]): int(token["id"]) for token in added}
        # From here on, text that looks like a mark is encoded as text.
        self._tokenizer.encode_special_tokens = True

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids) if text else []

    def decode(self, ids: Ids) -> str:
        """The text of ids."""
        return str(self._tokenizer.decode([int(one) for one in ids], skip_special_tokens=False))


class Template:
    """Lays out turns.

    Raises:
        CheckpointError: when a mark of the template is not an added token of the tokenizer.
    """

    def __init__(self, folder: Path, vision: VisionConfig) -> None:
        self.tokenizer = Tokenizer(folder)
        path = folder / TEMPLATE_FILE
        raw = _DEFAULT | (json.loads(path.read_text("utf8")) if path.exists() else {})
        self.image_token = vision.image_token
        self.stop = self._mark(str(raw["stop"]))
        self.open = self._mark(str(raw.get("image_open") or vision.image_marks[0]))
        self.close = self._mark(str(raw.get("image_close") or vision.image_marks[1]))
        self._first = self._runs(str(raw["first_turn"]))
        self._later = self._runs(str(raw["later_turn"]))

    def first_turn(self, instructions: str, task: str) -> tuple[list[int], list[int]]:
        """Ids before and after the image."""
        return self._ids(self._first, {"{instructions}": instructions, "{task}": task})

    def later_turn(self, outcome: str) -> tuple[list[int], list[int]]:
        """Ids before and after the image."""
        return self._ids(self._later, {"{outcome}": outcome})

    def image(self, rows: int) -> list[int]:
        """An image's placeholders between its marks."""
        return [self.open, *[self.image_token] * rows, self.close]

    def _mark(self, name: str) -> int:
        if name not in self.tokenizer.specials:
            raise CheckpointError(
                f"the template names {name!r}, which is not an added token of the tokenizer"
            )
        return self.tokenizer.specials[name]

    def _runs(self, text: str) -> list[list[_Chunk]]:
        """Runs of marks, and runs of the text and slots between marks."""
        runs: list[list[_Chunk]] = []
        for chunk in self._chunks(text):
            if (
                runs
                and chunk.text != "{image}"
                and (runs[-1][-1].kind == "mark") == (chunk.kind == "mark")
                and runs[-1][-1].text != "{image}"
            ):
                runs[-1].append(chunk)
            else:
                runs.append([chunk])
        return runs

    def _chunks(self, text: str) -> list[_Chunk]:
        chunks: list[_Chunk] = []
        marks = sorted((name for name in self.tokenizer.specials if name), key=len, reverse=True)
        while text:
            slot = next((slot for slot in _SLOTS if text.startswith(slot)), None)
            mark = next((mark for mark in marks if text.startswith(mark)), None)
            if slot:
                chunks.append(_Chunk("slot", slot))
            elif mark:
                chunks.append(_Chunk("mark", mark))
            elif chunks and chunks[-1].kind == "text":
                chunks[-1] = _Chunk("text", chunks[-1].text + text[0])
            else:
                chunks.append(_Chunk("text", text[0]))
            text = text[len(slot or mark or text[0]) :]
        return chunks

    def _ids(self, runs: list[list[_Chunk]], fill: dict[str, str]) -> tuple[list[int], list[int]]:
        before: list[int] = []
        ids = before
        after: list[int] = []
        for run in runs:
            if run[0].text == "{image}":
                ids = after
            elif run[0].kind == "mark":
                ids += [self.tokenizer.specials[chunk.text] for chunk in run]
            else:
                ids += self.tokenizer.encode("".join(fill.get(chunk.text, chunk.text) for chunk in run))
        return before, after


def outcome_text(outcome: dict[str, str]) -> str:
    """An outcome as text of a prompt: its name, and its detail where there is one."""
    return f"{outcome['name']}: {outcome['detail']}" if outcome["detail"] else outcome["name"]


def array(ids: list[int]) -> Ids:
    """Ids as the data set's array type."""
    return np.array(ids, np.int32)
