"""A stand-in for a farm: writes a run directory as Furrow does, with rows that tests choose. The schema is
Furrow's own list of columns."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paths import REPOSITORY

_LINE = re.compile(r"(?P<path>[a-z_0-9.]+): (?P<type>.+?)(?P<null> or null)?")
_TYPES = {
    "Utf8": pa.string(),
    "Boolean": pa.bool_(),
    "Int16": pa.int16(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "UInt64": pa.uint64(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "Binary": pa.binary(),
    "FixedSizeBinary(16)": pa.binary(16),
    "FixedSizeBinary(32)": pa.binary(32),
    'Timestamp(µs, "UTC")': pa.timestamp("us", tz="UTC"),
}


@cache
def schema(table: str) -> pa.Schema:
    """Columns of a table, out of crates/records/tests/schema_v3.txt."""
    text = (REPOSITORY / "crates" / "records" / "tests" / "schema_v3.txt").read_text("utf8")
    lines = text.split(f"# {table}\n")[1].split("\n# ")[0].strip().splitlines()
    found = [match for line in lines if (match := _LINE.fullmatch(line))]
    assert len(found) == len(lines), f"a line of {table} cannot be read"
    nodes = {match["path"]: match for match in found}

    def build(path: str) -> pa.DataType:
        kind = nodes[path]["type"]
        children = [name for name in nodes if name.rpartition(".")[0] == path]
        if kind == "struct":
            return pa.struct([one(name) for name in children])
        if kind == "list":
            return pa.list_(one(children[0]))
        return _TYPES[kind]

    def one(path: str) -> pa.Field:
        return pa.field(path.rpartition(".")[2], build(path), nullable=nodes[path]["null"] is not None)

    return pa.schema([one(path) for path in nodes if "." not in path])


def empty_value(dtype: pa.DataType, nullable: bool) -> Any:
    """An empty value of a column's type: null where it is nullable."""
    if nullable:
        return None
    if pa.types.is_struct(dtype):
        return {member.name: empty_value(member.type, member.nullable) for member in dtype}
    if pa.types.is_list(dtype):
        return []
    if pa.types.is_fixed_size_binary(dtype):
        return bytes(dtype.byte_width)
    return {"string": "", "bool": False, "binary": b""}.get(str(dtype), 0)


def row(table: str, **values: Any) -> dict[str, Any]:
    """A row with an empty value in every column that is not named."""
    filled = {member.name: empty_value(member.type, member.nullable) for member in schema(table)}
    assert set(values) <= set(filled), set(values) - set(filled)
    return filled | values


@cache
def png(seed: int, width: int = 96, height: int = 64) -> bytes:
    """A picture of a few coloured boxes."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    pixels = np.full((height, width, 3), 240, np.uint8)
    for _ in range(5):
        x, y = int(rng.integers(width - 8)), int(rng.integers(height - 8))
        pixels[y : y + 12, x : x + 20] = rng.integers(0, 255, 3)
    blob = io.BytesIO()
    Image.fromarray(pixels).save(blob, "PNG")
    return blob.getvalue()


@dataclass
class Farm:
    """Writes trajectories, groups and commits."""

    folder: Path
    run_id: str = "run"
    version: int = 0
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    shards: int = 0
    schema_version: int = 2

    def __post_init__(self) -> None:
        for name in ("manifest", "trajectories", "steps", "groups", "failed_steps"):
            (self.folder / "data" / name).mkdir(parents=True, exist_ok=True)

    def trajectory(
        self, group: str, sample: int = 0, reward: float | None = 1.0, steps: int = 1, **values: Any
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """A trajectory and its steps; `status` and the like by name, columns of the steps under `step`."""
        of_steps = values.pop("step", {})
        name = f"{group}-s{sample}-a{values.get('attempt', 0)}"
        status = values.get("status", "scored")
        common = {
            "run_id": self.run_id,
            "trajectory_id": name,
            "group_id": group,
            "sample_index": sample,
            "task_id": values.get("task_id", "click"),
            "suite": "starter",
            "split": values.get("split", "train"),
            "policy_kind": values.get("policy_kind", "model"),
        }
        whole = row(
            "trajectories",
            **{
                **common,
                "status": status,
                "end": "done",
                "reward": reward,
                "num_steps": steps,
                "goal": "Do it.",
                **values,
            },
        )
        whole["session"]["context"] = "last_image"
        rows = []
        for index in range(steps):
            one = row(
                "steps", **{**common, "step": index, "is_first": index == 0, "is_last": index == steps - 1}
            )
            one["trainable_rl"] = one["trainable_sft"] = status == "scored"
            one["reward"] = None if reward is None else reward * (index == steps - 1)
            one["observation"] |= {
                "screenshot": {"bytes": png(index), "path": None},
                "format": "png",
                "width": 96,
                "height": 64,
            }
            one["action"] |= {
                "raw_text": '{"note":"","thought":"","action":{"action":"wait","seconds":2}}',
                "valid": True,
            }
            one["outcome"] = {"name": "ok", "detail": ""}
            one["sampling"]["temperature"] = 1.0
            rows.append(one | of_steps)
        return whole, rows

    def group(self, group: str, rewards: list[float], **values: Any) -> dict[str, Any]:
        """A group's row."""
        spread = float(np.std(rewards)) if rewards else None
        return row(
            "groups",
            **{
                "run_id": self.run_id,
                "group_id": group,
                "task_id": "click",
                "suite": "starter",
                "split": "train",
                "planned": len(rewards),
                "valid": len(rewards),
                "mean": float(np.mean(rewards)) if rewards else None,
                "std": spread,
                "zero_variance": None if spread is None else spread == 0,
                **values,
            },
        )

    def commit(
        self,
        trajectories: Sequence[tuple[dict[str, Any], list[dict[str, Any]]]] = (),
        groups: Sequence[dict[str, Any]] = (),
    ) -> int:
        """Appends a shard."""
        tables = {
            "trajectories": [whole for whole, _ in trajectories],
            "steps": [one for whole, rows in trajectories if whole["status"] == "scored" for one in rows],
            "failed_steps": [
                one for whole, rows in trajectories if whole["status"] != "scored" for one in rows
            ],
            "groups": list(groups),
        }
        self.shards += 1
        files = [
            self._write(
                table, pa.Table.from_pylist(rows, schema("steps" if table == "failed_steps" else table))
            )
            for table, rows in tables.items()
            if rows
        ]
        return self._commit("append", files, [])

    def merge(self, table: str, paths: list[str] | None = None, keep_parts: bool = True) -> int:
        """Replaces all (or some) of a table's files by one; its parts move to `replaced/`, or are removed."""
        parts = paths or [path for path, entry in sorted(self.files.items()) if entry["table"] == table]
        self.shards += 1
        whole = pa.concat_tables([pq.read_table(self.folder / "data" / path) for path in parts])
        entry = self._write(table, whole)
        version = self._commit("replace", [entry], parts)
        for path in parts:
            aside = self.folder / "data" / "replaced" / path
            aside.parent.mkdir(parents=True, exist_ok=True)
            (self.folder / "data" / path).rename(aside)
            if not keep_parts:
                aside.unlink()
        return version

    def expire(self, path: str) -> int:
        """Expires a file."""
        (self.folder / "data" / path).unlink()
        return self._commit("expire", [], [path])

    def checkpoint(self) -> Path:
        """Writes a checkpoint after the newest commit, as the coordinator does, and returns its path."""
        commit = (self.folder / "data" / "manifest" / f"{self.version:020}.json").read_bytes()
        listed = {path: {"since": 1, "file": entry} for path, entry in self.files.items()}
        body = json.dumps(
            {
                "version": self.version,
                "commit_sha256": hashlib.sha256(commit).hexdigest(),
                "run_id": self.run_id,
                "snapshot": {"version": self.version, "files": listed, "removed": {}, "shards": {}},
            }
        )
        folder = self.folder / "data" / "checkpoints"
        folder.mkdir(exist_ok=True)
        path = folder / f"{self.version:020}.json"
        path.write_text(f"{body}\n{hashlib.sha256(body.encode()).hexdigest()}\n")
        return path

    def _write(self, table: str, rows: pa.Table) -> dict[str, Any]:
        path = f"{table}/{self.run_id}-x{self.shards:06}.parquet"
        target = self.folder / "data" / path
        if self.schema_version == 1 and table == "trajectories":
            rows = rows.drop_columns(["success"])
        pq.write_table(rows, target, row_group_size=7)
        data = target.read_bytes()
        return {
            "table": table,
            "path": path,
            "rows": rows.num_rows,
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }

    def _commit(self, op: str, files: list[dict[str, Any]], removed: list[str]) -> int:
        self.version += 1
        for path in removed:
            del self.files[path]
        self.files |= {entry["path"]: entry for entry in files}
        commit = {
            "version": self.version,
            "op": op,
            "files": files,
            "removed": removed,
            "schema_version": self.schema_version,
            "run_id": self.run_id,
            "txn": {"epoch": 1, "shard_id": f"{self.run_id}-x{self.shards:06}"},
            "created_at_micros": self.version,
        }
        target = self.folder / "data" / "manifest" / f"{self.version:020}.json"
        draft = target.with_suffix(".tmp")
        draft.write_text(json.dumps(commit))
        draft.rename(target)
        return self.version
