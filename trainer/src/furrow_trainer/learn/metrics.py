"""`metrics.jsonl`: one line per step, on disk before the checkpoint that follows it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any


class Metrics:
    """Appends to the file; lines that a killed training wrote after its last checkpoint are removed when it
    is resumed.

    Args:
        path: the file.
        step: the step that training continues from; later lines and a torn one are dropped.
    """

    def __init__(self, path: Path, step: int = 0) -> None:
        self.path = path
        kept = [line for line in read(path) if int(line.get("step", 0)) <= step]
        draft = path.with_name(path.name + ".tmp")
        draft.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf8")
        os.replace(draft, path)
        self._file = open(path, "a", encoding="utf8")  # noqa: SIM115 - closed by close()

    def write(self, line: dict[str, Any]) -> None:
        """Appends one step; a value that is not finite becomes null, since JSON has no such numbers."""
        clean = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in line.items()
        }
        self._file.write(json.dumps(clean) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines of the file."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text("utf8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines
