"""The cells that are measured, and the job file of each: what is forced, and the sizes of the engine with
their sums.

Sizes for one H200 with 148.68 GB free after the context (docs/benchmarks/gpu-h200.jsonl). Bytes: weights
26.31 GB, a state slot 148.9 MB, a position 24,576 B. A 1280x720 screenshot is 3 tiles, a step 1,018 positions
with its 150 tokens; 1280x800 is 7 tiles and 2,042 positions.

    append, 7 tiles   102 slots 15.2 GB, 4.1 M positions 100.8 GB, rows and logits 1.1 GB, features 2.7 GB,
    graphs 0.8 GB: 146.9 GB.
                      100 sessions of even ages hold 32,156 positions each, 3.2 M, and reserve 0.2 M: they
                      fit. At their longest (61,260 and the first prompt) they hold 6.2 M. A session is
                      admitted if context_tokens_max fit, on the device or in 66 GB of pinned memory: 101 are.
                      A second set of weights does not fit on the device, so it is staged on the host: 26.3 +
                      66.0 GB pinned of 128 GiB, which leaves 33 GB to the page cache for 31 GB of weight
                      files (`furrow plan --job`).
    append, 3 tiles   102 slots, 100 x 30,540 positions at their longest fit: 3.1 M, 76.2 GB; with the second
    set staged on the host.
    last_image        202 slots (a session that works has a fork, too) and 32 snapshots 34.8 GB; 1.2 M
    positions 29.5 GB hold 100 sessions at
                      their longest (9,292 at 7 tiles) and their forks' own pages; a second set of weights on
                      the device: 121.7 GB together.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import os
import pathlib
import re
import shutil
import site
import sysconfig
from typing import Any

from machine import Layout, write_json

GIB = 1 << 30


def cuda_libraries() -> list[str]:
    """Folders with libnvrtc and libcublasLt: FURROW_CUDA_LIBRARIES (colon between), else those of Python's
    packages and of the system."""
    given = os.environ.get("FURROW_CUDA_LIBRARIES")
    if given:
        return [folder for folder in given.split(":") if folder]
    roots = {sysconfig.get_paths()["purelib"], *site.getsitepackages(), site.getusersitepackages()}
    found = {
        os.path.dirname(path)
        for root in roots
        for name in ("libnvrtc.so.*", "libcublasLt.so.*")
        for path in glob.glob(os.path.join(root, "nvidia", "**", name), recursive=True)
    }
    return sorted(found | {path for path in ("/usr/local/cuda/lib64",) if os.path.isdir(path)})


@dataclasses.dataclass(frozen=True)
class Engine:
    """Sizes of [policy.engine] and where a second set of weights waits."""

    backend: str
    state_slots: int
    snapshot_slots: int
    kv_tokens: int
    context_tokens_max: int
    prefill_chunk: int
    prefill_tokens: int
    feature_bytes: int
    offload_bytes: int
    stage: str


@dataclasses.dataclass(frozen=True)
class Cell:
    """One measurement."""

    name: str
    keep: str
    width: int
    height: int
    tiles: int
    engine: Engine
    size: str
    sessions: int = 100
    steps: int = 30
    tokens: int = 150
    # Steps a second of the bench's rollouts (docs/benchmarks/gpu-h200.jsonl), for waits and for a share; 0:
    # not known.
    bench_steps: float = 0.0
    window_seconds_max: float = 900.0
    # Share of the first trajectories that have ended before the window begins.
    warm_share: float = 0.1
    # Until the sessions of a killed policy worker go on: its checkpoint and their pasts are read again.
    recovery_seconds: float = 240.0
    dry: bool = False

    @property
    def first(self) -> str:
        return "dry-first" if self.dry else "first"

    @property
    def second(self) -> str:
        return "dry-second" if self.dry else "second"

    @property
    def pinned_bytes(self) -> int:
        """Of the host's memory: offloaded states, and weights that are staged there (26.34 GB)."""
        return self.engine.offload_bytes + (26_342_708_224 if self.engine.stage == "host" else 0)

    @property
    def drain_seconds(self) -> float:
        """Of a drain: 20 s to commit and to leave, and pinned memory given back at 2 GB/s."""
        return 20.0 + (0.0 if self.dry else self.pinned_bytes / 2e9)

    @property
    def trajectory_seconds(self) -> float | None:
        """Expected time of a trajectory of all steps: sessions x steps / (steps a second)."""
        return self.sessions * self.steps / self.bench_steps if self.bench_steps else None


def _cuda(**sizes: int | str) -> Engine:
    common = {
        "backend": "cuda",
        "prefill_chunk": 512,
        "prefill_tokens": 4096,
        "feature_bytes": 1024 * 2_621_440,
    }
    return Engine(**{**common, **sizes})  # type: ignore[arg-type]


_APPEND_7 = _cuda(
    state_slots=102,
    snapshot_slots=0,
    kv_tokens=4_100_000,
    context_tokens_max=63_600,
    offload_bytes=66_000_000_000,
    stage="host",
)
_APPEND_3 = _cuda(
    state_slots=102,
    snapshot_slots=0,
    kv_tokens=3_300_000,
    context_tokens_max=34_816,
    offload_bytes=8 * GIB,
    stage="host",
)
_LAST_IMAGE = _cuda(
    state_slots=202,
    snapshot_slots=32,
    kv_tokens=1_200_000,
    context_tokens_max=12_288,
    offload_bytes=8 * GIB,
    stage="device",
)


# Where contexts are short. Another worker reads and checks version 0 and then the published one, 26.3 GB each
# at 0.6 GB/s or more, pins 8.6 GB, and reads the pasts of 100 sessions in 10 s.
_RECOVERY = 130.0


def _small(keep: str) -> Engine:
    """The small checkpoint on the processor: a slot of `mini` is 54 kB, so nothing is short."""
    slots = 102 if keep == "append" else 202
    return Engine(
        "cpu", slots, 0 if keep == "append" else 32, 1_000_000, 32_768, 512, 1024, 256 << 20, GIB, "none"
    )


def _cells() -> dict[str, Cell]:
    cells = [
        Cell("append-7", "append", 1280, 800, 7, _APPEND_7, "12b", bench_steps=5.270937),
        Cell(
            "last_image-3",
            "last_image",
            1280,
            720,
            3,
            _LAST_IMAGE,
            "12b",
            bench_steps=12.342121,
            recovery_seconds=_RECOVERY,
        ),
        Cell(
            "append-3", "append", 1280, 720, 3, _APPEND_3, "12b", bench_steps=11.948340, recovery_seconds=150
        ),
        Cell(
            "last_image-7",
            "last_image",
            1280,
            800,
            7,
            _LAST_IMAGE,
            "12b",
            bench_steps=6.639921,
            recovery_seconds=_RECOVERY,
        ),
    ]
    dry = [
        dataclasses.replace(
            cell,
            name=f"dry-{cell.name}",
            engine=_small(cell.keep),
            size="mini",
            dry=True,
            bench_steps=0.0,
            steps=8,
            # A screenshot of either size is one tile of that checkpoint.
            tiles=1,
            window_seconds_max=1200.0,
        )
        for cell in cells
    ]
    return {cell.name: cell for cell in cells + dry}


CELLS = _cells()


def job_text(cell: Cell, layout: Layout, suite: pathlib.Path, sandbox: bool = True) -> str:
    """The job file of a cell. Every value is a word, a number or a path below the root; strings are written
    as JSON strings, which TOML reads."""
    text = json.dumps
    engine = cell.engine
    lines = [
        "[run]",
        f"name = {text(cell.name)}",
        f"output_dir = {text(str(layout.runs))}",
        "seed = 1",
        # More groups than any window takes: the run ends when it is drained.
        "[tasks]",
        "group_size = 1",
        "groups = 1000000",
        'sampler = "uniform"',
        "seed = 7",
        "[[tasks.source]]",
        'suite = "web"',
        f"path = {text(str(suite))}",
        'splits = ["train"]',
        f"max_steps = {cell.steps}",
        "[policy]",
        'kind = "model"',
        f"checkpoint = {text(str(layout.checkpoints / cell.first))}",
        f"sessions_max = {cell.sessions + 28}",
        "[policy.sampling]",
        f"max_tokens = {cell.tokens}",
        "seed = 5",
        "[policy.context]",
        f"keep = {text(cell.keep)}",
        "[policy.engine]",
        f"backend = {text(engine.backend)}",
        f"state_slots = {engine.state_slots}",
        f"snapshot_slots = {engine.snapshot_slots}",
        f"kv_tokens = {engine.kv_tokens}",
        f"context_tokens_max = {engine.context_tokens_max}",
        f"prefill_chunk = {engine.prefill_chunk}",
        f"prefill_tokens = {engine.prefill_tokens}",
        f"feature_bytes = {engine.feature_bytes}",
        f"offload_bytes = {engine.offload_bytes}",
    ]
    if engine.backend == "cuda":
        lines += [
            f"kernel_cache = {text(str(layout.root / 'kernels'))}",
            f"cuda_libraries = {text(cuda_libraries())}",
        ]
    lines += [
        "[policy.weights]",
        'on_swap = "keep"',
        f"stage = {text(engine.stage)}",
        # Exactly so many tokens, none of them an action that ends the trajectory: caps leave the free texts
        # room for all of them.
        "[policy.constrain]",
        "enabled = true",
        f"exact_tokens = {cell.tokens}",
        "endings = false",
        f"note = {cell.tokens}",
        f"thought = {cell.tokens}",
        "content = 32",
        "element = 32",
        "url = 32",
        "[env]",
        f"sessions_max = {cell.sessions}",
        f"sandbox = {'true' if sandbox else 'false'}",
        # A policy worker that was killed reads 26 GB before it answers again, and then the past of each
        # session.
        "policy_millis = 600000",
        "policy_retry_timeout_millis = 1800000",
        "unparsable_max = 1000",
        "drain_grace_millis = 5000",
    ]
    if (layout.browser / "chrome-headless-shell").is_file():
        lines.append(f"browser = {text(str(layout.browser / 'chrome-headless-shell'))}")
    if (layout.browser / "lib").is_dir():
        lines.append(f"browser_libraries = [{text(str(layout.browser / 'lib'))}]")
    if (layout.browser / "fonts.conf").is_file():
        lines.append(f"browser_fonts = {text(str(layout.browser / 'fonts.conf'))}")
    lines += [
        # Committed as it comes: a report that is made before the drain has Parquet rows, too.
        "[records]",
        "compression_level = 1",
        "max_delay_millis = 30000",
        "[limits]",
        "spread_first_steps = true",
        "attempts_max = 100",
        "failure_budget = 1.0",
        "drain_grace_millis = 5000",
        "[telemetry]",
        "metrics_interval_millis = 2000",
    ]
    if not cell.dry:
        lines += ["[dashboard]", 'gpu = "h200"']
    return "\n".join(lines) + "\n"


def write_suite(cell: Cell, layout: Layout) -> pathlib.Path:
    """A copy of the offline web whose tasks have the cell's viewport and no limit of time that a whole
    trajectory could reach.

    The suite's own limit is 600 s, and at 7 tiles a trajectory takes 570 s when nothing goes wrong.
    """
    target = layout.runs / f"{cell.name}.envs" / "web"
    mark = target.with_name("web.json")
    if mark.is_file() and target.is_dir():
        return target
    source = layout.envs / "web"
    if not (source / "sites").is_dir():
        raise FileNotFoundError(
            f"{source}: holds no folder sites; unpack the parts first (tests/gpu.sh unpack)"
        )
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    tasks = 0
    for path in sorted(target.glob("sites/*/tasks.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        for row in rows:
            row |= {"viewport": [cell.width, cell.height], "time_limit_ms": 7_200_000}
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        tasks += len(rows)
    for path in [target.parent, target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    write_json(mark, {"tasks": tasks, "viewport": [cell.width, cell.height]})
    return target


_SESSIONS = re.compile(r"[1-9][0-9]{0,3}")


def chosen(name: str, sessions: str | None = None, steps: str | None = None) -> Cell:
    """The cell of that name, with other sessions or steps where they are given.

    Raises ValueError that names the value and what would be right.
    """
    if name not in CELLS:
        raise ValueError(f"cell {name!r} is not known; use init, dry-init, {', '.join(CELLS)}")
    cell = CELLS[name]
    for key, value in (("sessions", sessions), ("steps", steps)):
        if value is None:
            continue
        if not _SESSIONS.fullmatch(value):
            raise ValueError(f"--{key} {value!r}: use a whole number from 1 to 9999")
        sizes: dict[str, Any] = {key: int(value)}
        cell = dataclasses.replace(cell, **sizes)
    return cell
