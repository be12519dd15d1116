"""How fast a run is read, and a model trained."""

from __future__ import annotations

import time
from pathlib import Path

from .data import Choice, Reader


def bench(run_dir: Path, checkpoint: Path | None, seconds: float) -> dict[str, float]:
    """Repeats each part for so long and reports the whole: trajectories of metadata a second, megabytes of shards a second, tokens a second.

    The files are in the page cache after the first round; the figures are those of the reader, not of a disk.
    """
    found = {}
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        reader = Reader(run_dir)
        for group in reader.groups():
            count += len(group.trajectories)
            reader.done(group)
    found["metadata, trajectories/s"] = count / (time.perf_counter() - begun)
    begun, total = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        total += _read(run_dir, verify=False)
    found["shards, MB/s"] = total / (time.perf_counter() - begun) / 1e6
    begun, total = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        total += _read(run_dir, verify=True)
    found["shards with SHA-256, MB/s"] = total / (time.perf_counter() - begun) / 1e6
    if checkpoint is not None:
        found |= _train(run_dir, checkpoint, seconds)
    return found


def _read(run_dir: Path, verify: bool) -> int:
    """Reads every step of every scored trajectory; the bytes of the files it came from."""
    reader = Reader(run_dir, verify=verify)
    for group in reader.groups():
        for trajectory in group.trajectories:
            reader.steps(trajectory)
        reader.done(group)
    commits = [reader.manifest.commit(version) for version in range(1, reader.manifest.version + 1)]
    return sum(file.bytes for commit in commits if commit.op == "append" for file in commit.files if file.table == "steps")


def _train(run_dir: Path, folder: Path, seconds: float) -> dict[str, float]:
    import torch

    from .learn.batch import padded, split
    from .learn.images import Images
    from .learn.scores import score
    from .learn.sequence import sequences
    from .model import load

    torch.set_num_threads(1)
    checkpoint = load(folder)
    vision = checkpoint.config.vision
    assert vision is not None, "a text model reads no screenshots"
    reader = Reader(run_dir, Choice(trainable="rl"))
    images = Images(vision.tiling, vision.rows_per_tile)
    found = [one for group in reader.groups() for trajectory in group.trajectories for one in sequences(trajectory, reader.steps(trajectory), images)]
    optimizer = torch.optim.AdamW(checkpoint.policy.parameters(), lr=1e-6)
    content = computed = steps = 0
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        for part in split(found, 8192):
            batch = padded(part, images)
            optimizer.zero_grad(set_to_none=True)
            (-score(checkpoint.policy, batch).whole_logprob.mean()).backward()
            optimizer.step()
            content, computed, steps = content + batch.content_tokens, computed + batch.tokens, steps + len(part)
            if time.perf_counter() - wall >= seconds:
                break
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "training, content tokens/s": content / wall, "training, computed tokens/s": computed / wall,
        "training, content tokens/CPU-s": content / cpu, "training, sequences/s": steps / wall,
    }  # fmt: skip
