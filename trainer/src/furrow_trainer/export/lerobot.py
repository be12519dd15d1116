"""LeRobot v3.0: a data set directory with a frame per step and an episode per trajectory.

Source: huggingface/lerobot, src/lerobot/datasets/utils.py (CODEBASE_VERSION v3.0): meta/info.json,
meta/stats.json, meta/tasks.parquet, meta/episodes/chunk-000/file-000.parquet,
data/chunk-000/file-000.parquet; columns timestamp float32, frame_index, episode_index, index, task_index
int64, and the features of info.json: `observation.images.screen` as image structs, `action` as float32 [8]
(kind, x, y, from_x, from_y, number, press_enter, has text; points as shares of the screenshot),
`action.text`, next.reward, next.done, next.success.

LeRobot assumes a fixed rate; web steps have none: `fps` is 1 and `timestamp` the step's number. Screenshots
must have one size: other ones are an error. Lost: tokens, log-probs, versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..data import pixels
from ..data.rows import Step
from ..errors import DataError
from .common import Exporter, Row, Taken, image, write_parquet

FPS = 1
KINDS = (
    "none", "click", "write", "scroll", "go_back", "refresh", "restart", "goto", "wait", "answer", "drag",
    "select_tab", "press_key", "other",
)  # fmt: skip
ACTION = ["kind", "x", "y", "from_x", "from_y", "number", "press_enter", "has_text"]
CHUNK = "chunk-000/file-000.parquet"
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FRAMES = pa.schema(
    [
        ("observation.images.screen", IMAGE),
        ("action", pa.list_(pa.float32(), len(ACTION))),
        ("action.text", pa.string()),
        ("next.reward", pa.float32()),
        ("next.done", pa.bool_()),
        ("next.success", pa.bool_()),
        ("timestamp", pa.float32()),
        ("frame_index", pa.int64()),
        ("episode_index", pa.int64()),
        ("index", pa.int64()),
        ("task_index", pa.int64()),
    ],
    metadata={
        "huggingface": json.dumps(
            {
                "info": {
                    "features": {
                        "observation.images.screen": {"_type": "Image"},
                        "action": {
                            "feature": {"dtype": "float32", "_type": "Value"},
                            "length": len(ACTION),
                            "_type": "List",
                        },
                        "action.text": {"dtype": "string", "_type": "Value"},
                        "next.reward": {"dtype": "float32", "_type": "Value"},
                        "next.done": {"dtype": "bool", "_type": "Value"},
                        "next.success": {"dtype": "bool", "_type": "Value"},
                        "timestamp": {"dtype": "float32", "_type": "Value"},
                        **{
                            name: {"dtype": "int64", "_type": "Value"}
                            for name in ("frame_index", "episode_index", "index", "task_index")
                        },
                    }
                }
            }
        )
    },
)


def action(step: Step) -> list[float]:
    """The action as numbers."""
    a = step.action
    height, width = pixels.decode(step.screenshot).shape[:2]
    kind = a.get("kind") or "none"
    at = KINDS.index(kind) if kind in KINDS else len(KINDS) - 1
    share = [
        -1.0 if a.get(name) is None else float(a[name]) / side
        for name, side in (("x", width), ("y", height), ("from_x", width), ("from_y", height))
    ]
    return [
        float(at),
        *share,
        float(a.get("number") or 0),
        float(bool(a.get("press_enter"))),
        float(a.get("text") is not None),
    ]


def write(found: Iterator[Taken], path: Path, _: Path | None) -> int:
    """Writes the directory."""
    for folder in ("data/chunk-000", "meta/episodes/chunk-000"):
        (path / folder).mkdir(parents=True)
    work = _Work()
    count = write_parquet(work.frames(found), FRAMES, path / "data" / CHUNK)
    pq.write_table(pa.Table.from_pylist(work.episodes), path / "meta" / "episodes" / CHUNK)
    tasks = pa.table(
        {
            "task_index": pa.array(range(len(work.tasks)), pa.int64()),
            "__index_level_0__": pa.array(list(work.tasks), pa.string()),
        }
    )
    pandas = {
        "index_columns": ["__index_level_0__"],
        "column_indexes": [],
        "pandas_version": "2.0.0",
        "columns": [
            {
                "name": "task_index",
                "field_name": "task_index",
                "pandas_type": "int64",
                "numpy_type": "int64",
                "metadata": None,
            },
            {
                "name": None,
                "field_name": "__index_level_0__",
                "pandas_type": "unicode",
                "numpy_type": "object",
                "metadata": None,
            },
        ],
    }
    pq.write_table(
        tasks.replace_schema_metadata({"pandas": json.dumps(pandas)}), path / "meta" / "tasks.parquet"
    )
    (path / "meta" / "info.json").write_text(json.dumps(work.info(count), indent=4) + "\n", "utf8")
    (path / "meta" / "stats.json").write_text(json.dumps(work.stats(), indent=4) + "\n", "utf8")
    return count


class _Work:
    def __init__(self) -> None:
        self.tasks: dict[str, int] = {}
        self.episodes: list[Row] = []
        self.shape: tuple[int, int] | None = None
        self.numbers: dict[str, list[list[float]]] = {}
        self.colour: list[np.ndarray] = []

    def frames(self, found: Iterator[Taken]) -> Iterator[Row]:
        index = 0
        for episode, one in enumerate(found):
            task = self.tasks.setdefault(one.trajectory.goal, len(self.tasks))
            begin = index
            for step in one.steps:
                yield self.frame(one, step, episode, index, task)
                index += 1
            self.episodes.append(
                {
                    "episode_index": episode,
                    "tasks": [one.trajectory.goal],
                    "length": len(one.steps),
                    "data/chunk_index": 0,
                    "data/file_index": 0,
                    "dataset_from_index": begin,
                    "dataset_to_index": index,
                    "meta/episodes/chunk_index": 0,
                    "meta/episodes/file_index": 0,
                }
            )

    def frame(self, one: Taken, step: Step, episode: int, index: int, task: int) -> Row:
        decoded = pixels.decode(step.screenshot)
        shape = (decoded.shape[0], decoded.shape[1])
        self.shape = self.shape or shape
        if shape != self.shape:
            raise DataError(
                f"{step.trajectory_id} step {step.step}: a screenshot of {shape[1]} x {shape[0]} among ones "
                f"of {self.shape[1]} x {self.shape[0]}"
            )
        self.colour.append(decoded.reshape(-1, 3).mean(axis=0) / 255)
        reward = float(step.reward or 0.0)
        row: Row = {
            "observation.images.screen": image(step),
            "action": action(step),
            "action.text": step.action["raw_text"],
            "next.reward": reward,
            "next.done": step.is_last,
            "next.success": step.is_last and (one.trajectory.reward or 0.0) >= 1.0,
            "timestamp": step.step / FPS,
            "frame_index": step.step,
            "episode_index": episode,
            "index": index,
            "task_index": task,
        }
        for name in (
            "action",
            "next.reward",
            "timestamp",
            "frame_index",
            "episode_index",
            "index",
            "task_index",
        ):
            value = row[name]
            self.numbers.setdefault(name, []).append(
                [float(part) for part in (value if isinstance(value, list) else [value])]
            )
        return row

    def info(self, frames: int) -> dict[str, Any]:
        height, width = self.shape or (0, 0)
        number = {"dtype": "int64", "shape": [1], "names": None}
        return {
            "codebase_version": "v3.0",
            "robot_type": "browser",
            "total_episodes": len(self.episodes),
            "total_frames": frames,
            "total_tasks": len(self.tasks),
            "chunks_size": 1000,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": FPS,
            "splits": {"train": f"0:{len(self.episodes)}"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": None,
            "features": {
                "observation.images.screen": {
                    "dtype": "image",
                    "shape": [height, width, 3],
                    "names": ["height", "width", "channels"],
                },
                "action": {"dtype": "float32", "shape": [len(ACTION)], "names": ACTION},
                "action.text": {"dtype": "string", "shape": [1], "names": None},
                "next.reward": {"dtype": "float32", "shape": [1], "names": None},
                "next.done": {"dtype": "bool", "shape": [1], "names": None},
                "next.success": {"dtype": "bool", "shape": [1], "names": None},
                "timestamp": {"dtype": "float32", "shape": [1], "names": None},
                "frame_index": number,
                "episode_index": number,
                "index": number,
                "task_index": number,
            },
        }

    def stats(self) -> dict[str, Any]:
        found = {name: _stats(np.array(values, np.float64)) for name, values in self.numbers.items()}
        if self.colour:
            # Of the frames' mean colours, [3, 1, 1] as LeRobot keeps them.
            colours = {
                key: np.array(value).reshape(-1, 1, 1).tolist()
                for key, value in _stats(np.array(self.colour)).items()
                if key != "count"
            }
            found["observation.images.screen"] = colours | {"count": [len(self.colour)]}
        return found


def _stats(values: np.ndarray) -> dict[str, Any]:
    return {
        "min": values.min(axis=0).tolist(),
        "max": values.max(axis=0).tolist(),
        "mean": values.mean(axis=0).tolist(),
        "std": values.std(axis=0).tolist(),
        "count": [len(values)],
    }


EXPORTER = Exporter(None, write)
