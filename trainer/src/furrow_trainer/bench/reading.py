"""How fast a run is read, beside plain pyarrow and plain files, and a model trained from it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from ..data import Choice, Reader
from ..data.manifest import Manifest
from ..errors import TrainerError
from .farm import Farm
from .report import Report

# As a 1280x720 JPEG: 166 kB measured, 200 kB to be safe.
SCREENSHOT_BYTES = 200_000
COLLECT_SECONDS = 1_200.0
# A simulated task takes some seven steps: 300 trajectories are 400 MB.
TRAJECTORIES = 300
JOB = """
[tasks]
sampler = "sequential"
group_size = 4
[policy]
kind = "random"
[env]
sessions_max = 16
"""
READ_BYTES = 8 << 20


def collect(folder: Path, furrow: str) -> Path:
    """Collects a run with a simulated browser and the random policy; returns its directory.

    Raises:
        TrainerError: when the farm failed.
    """
    with Farm(
        folder, furrow, JOB, (TRAJECTORIES // 4, 10), ["--simulate-browser", str(SCREENSHOT_BYTES)]
    ) as farm:
        farm.wait(COLLECT_SECONDS)
    return farm.run


def bench(run_dir: Path, checkpoint: Path | None, seconds: float, rounds: int, report: Report) -> None:
    """Repeats each part for `seconds` in each round, and adds its rates to the report; the parts take
    turns."""
    files = step_files(run_dir)
    size = _bytes(files)
    parts: dict[str, tuple[str, Callable[[], float]]] = {
        "metadata": ("trajectories/s", lambda: metadata(run_dir)),
        "steps": ("MB/s", lambda: read(run_dir, files, verify=False) / 1e6),
        "steps, files held against their SHA-256": ("MB/s", lambda: read(run_dir, files, verify=True) / 1e6),
        "pyarrow.parquet.read_table of the same files": ("MB/s", lambda: read_tables(files) / 1e6),
        "the same files, bytes alone": ("MB/s", lambda: read_bytes(files) / 1e6),
        "the same files, bytes alone, out of the disk": (
            "MB/s",
            lambda: read_bytes(files, forget=True) / 1e6,
        ),
    }
    for run in [run for _, run in parts.values()]:
        run()
    for _ in range(rounds):
        for name, (unit, run) in parts.items():
            begun, done = time.perf_counter(), 0.0
            while (passed := time.perf_counter() - begun) < seconds or not done:
                done += run()
            report.add(name, unit, done / passed)
        rates = {name: found[-1] for name, (_, found) in report.metrics.items()}
        report.add(
            "steps / read_table", "x", rates["steps"] / rates["pyarrow.parquet.read_table of the same files"]
        )
    report.note(
        f"{len(files)} files of steps, {size / 1e6:,.0f} MB, {_rows(files):,} rows; a rate is bytes of these "
        "files over time"
    )
    report.note(
        "the files lie in the page cache but for the last part, which takes them out of it first; every "
        "step's lists and screenshot are made"
    )
    if checkpoint is not None:
        for name, (unit, value) in train(run_dir, checkpoint, seconds).items():
            report.add(name, unit, value)


def step_files(run_dir: Path) -> list[Path]:
    """Files that hold the steps of scored trajectories now."""
    manifest = Manifest(run_dir)
    commits = list(manifest.read_all())
    named = [
        file for commit in commits if commit.op == "append" for file in commit.files if file.table == "steps"
    ]
    return list(dict.fromkeys(piece.path for file in named for piece in manifest.pieces(file) or ()))


def metadata(run_dir: Path) -> float:
    """Reads everything but the steps; returns the number of trajectories."""
    reader, count = Reader(run_dir), 0
    for group in reader.groups():
        count += len(group.trajectories)
        reader.done(group)
    return count


def read(run_dir: Path, files: list[Path], verify: bool) -> float:
    """Reads every step of every scored trajectory out of these files; returns the files' bytes."""
    reader, screenshots = Reader(run_dir, verify=verify), 0
    for group in reader.groups():
        for trajectory in group.trajectories:
            screenshots += sum(len(step.screenshot) for step in reader.steps(trajectory))
        reader.done(group)
    if not screenshots:
        raise TrainerError(f"{run_dir} has no scored trajectory with screenshots: nothing can be measured")
    return _bytes(files)


def read_tables(files: list[Path]) -> float:
    """The peer: all columns into Arrow tables, and no Python values."""
    for path in files:
        pq.read_table(path)
    return _bytes(files)


def read_bytes(files: list[Path], forget: bool = False) -> float:
    """The lower bound: the files' bytes into one buffer; with `forget` they are dropped from the page cache
    first."""
    buffer, total = bytearray(READ_BYTES), 0
    for path in files:
        with open(path, "rb", buffering=0) as file:
            if forget:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while count := file.readinto(buffer):
                total += count
    return float(total)


def _bytes(files: list[Path]) -> float:
    return float(sum(path.stat().st_size for path in files))


def _rows(files: list[Path]) -> int:
    return sum(pq.read_metadata(path).num_rows for path in files)


def train(run_dir: Path, folder: Path, seconds: float) -> dict[str, tuple[str, float]]:
    """Takes steps of the optimiser on a model policy's trajectories for `seconds`; returns rates."""
    import torch

    from ..learn.batch import padded, split
    from ..learn.images import Images
    from ..learn.scores import score
    from ..learn.sequence import sequences
    from ..model import load

    torch.set_num_threads(1)
    checkpoint = load(folder)
    vision = checkpoint.config.vision
    assert vision is not None, "a text model reads no screenshots"
    reader = Reader(run_dir, Choice(trainable="rl"))
    images = Images(vision.tiling, vision.rows_per_tile)
    found = [
        one
        for group in reader.groups()
        for trajectory in group.trajectories
        for one in sequences(trajectory, reader.steps(trajectory), images)
    ]
    optimizer = torch.optim.AdamW(checkpoint.policy.parameters(), lr=1e-6)
    content = computed = steps = 0
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        for part in split(found, 8192):
            batch = padded(part, images)
            optimizer.zero_grad(set_to_none=True)
            (-score(checkpoint.policy, batch).whole_logprob.mean()).backward()
            optimizer.step()
            content, computed, steps = (
                content + batch.content_tokens,
                computed + batch.tokens,
                steps + len(part),
            )
            if time.perf_counter() - wall >= seconds:
                break
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "training, content": ("tokens/s", content / wall),
        "training, computed": ("tokens/s", computed / wall),
        "training, content, CPU": ("tokens/CPU-s", content / cpu),
        "training, sequences": ("1/s", steps / wall),
    }
