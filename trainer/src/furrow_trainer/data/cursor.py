"""How far a reader has come, small enough to be part of a checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ..errors import DataError


@dataclass(frozen=True, slots=True)
class Cursor:
    """Everything up to commit `version` is done; of later commits the groups in `done` are.

    `done` holds groups whose trajectories spread over several commits, or that were done before an older
    group: those that are open at once, not the whole history.
    """

    run_id: str | None = None
    version: int = 0
    done: frozenset[str] = frozenset()
    rank: int = 0
    world: int = 1

    def to_json(self) -> str:
        """The form that a checkpoint stores."""
        raw = {
            "run_id": self.run_id,
            "version": self.version,
            "done": sorted(self.done),
            "rank": self.rank,
            "world": self.world,
        }
        return json.dumps(raw, indent=1)

    @staticmethod
    def from_json(text: str) -> Cursor:
        """Reads what `to_json` wrote.

        Raises:
            DataError: when the text is not a cursor.
        """
        try:
            raw: dict[str, Any] = json.loads(text)
            run_id = raw["run_id"]
            cursor = Cursor(
                run_id=None if run_id is None else str(run_id),
                version=int(raw["version"]),
                done=frozenset(str(name) for name in raw["done"]),
                rank=int(raw["rank"]),
                world=int(raw["world"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"this is not a cursor: {error!r}") from error
        if cursor.version < 0 or not 0 <= cursor.rank < cursor.world:
            raise DataError(
                f"a cursor of version {cursor.version}, rank {cursor.rank} of {cursor.world} cannot be"
            )
        return cursor
