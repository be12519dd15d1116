"""Rows that the farm collects here and now, under several versions of the weights: log-probs recomputed by
PyTorch from rows and checkpoints."""

from __future__ import annotations

import json
import os
import random
from functools import partial
from pathlib import Path

import pytest

from furrow_trainer.bench.report import conditions
from furrow_trainer.data import Choice, Reader
from furrow_trainer.model import load
from furrow_trainer.recompute import Gaps, recompute
from paths import HAS_BROWSER, PROGRAM, REPOSITORY
from processes import Processes, simulated_tasks

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no furrow program: build one, or name it in FURROW")

TOLERANCE = 1e-3
# Fewest compared steps of one version; some of the chosen steps were taken across a change of the weights.
STEPS, SAMPLED_STEPS = 1000, 1300
STEPS_JPEG = 100
SEEDS = (7, 8, 9, 10)
# A simulated browser has PNG screenshots, too, and takes a tenth of the time of a real one.
STARTER = os.environ.get("FURROW_TRAINER_PAGES") == "starter"
# A random model writes noise; constrained to the grammar, it acts.
POLICY = """
[policy]
kind = "model"
checkpoint = "{checkpoint}"
[policy.context]
keep = "last_image"
[policy.constrain]
enabled = true
note = 4
thought = 6
content = 6
element = 4
[policy.engine]
context_tokens_max = 8192
[env]
sessions_max = 8
[records]
follow = true
"""


def has_steps(where: Processes, count: int) -> bool:
    return where.rows("steps") >= count


def collect(tasks: str, steps: int, seeds: tuple[int, ...], where: Processes) -> dict[int, Path]:
    """Collects `steps` steps and publishes the weights of the seeds, evenly spaced; returns the checkpoint of
    each version."""
    paths = [where.checkpoint(seed) for seed in seeds]
    job = where.folder / "job.toml"
    job.write_text(
        job.read_text("utf8")
        + f"[tasks]\ngroup_size = 4\ngroups = 100000\n{tasks}{POLICY.format(checkpoint=paths[0])}",
        "utf8",
    )
    where.start("coordinator", "policy", "env")
    folders = {0: paths[0]}
    for index, path in enumerate(paths[1:], 1):
        where.wait(
            f"{index} of {len(paths)} parts collected",
            partial(has_steps, where, steps * index // len(paths)),
            900,
        )
        folders[where.publish(path, f"seed-{index}")["version"]] = path
    where.wait("all collected", partial(has_steps, where, steps), 900)
    where.drain()
    where.call("records", "verify", where.run)
    return folders


def compared(where: Processes, folders: dict[int, Path], steps: int, seed: int) -> Gaps:
    checkpoints = {version: load(folder) for version, folder in folders.items()}
    return recompute(checkpoints, Reader(where.run, Choice(trainable="rl"), verify=True), steps, seed=seed)


def test_log_probs_of_a_thousand_steps_are_recomputed_across_published_versions() -> None:
    seed = int(os.environ.get("FURROW_TRAINER_SEED") or random.randrange(1 << 32))
    print(f"FURROW_TRAINER_SEED={seed}")
    with Processes("", None if STARTER else 4000) as where:
        starter = (
            f'[[tasks.source]]\nsuite = "starter"\npath = "{REPOSITORY}/envs/starter"\n'
            'exclude = ["place", "tone", "colour"]\n'
        )
        tasks = starter if STARTER else simulated_tasks(where.folder, 20, 8)
        folders = collect(tasks, SAMPLED_STEPS + 200, SEEDS, where)
        found = compared(where, folders, SAMPLED_STEPS, seed)
    result = {"conditions": conditions(), "seed": seed, "pages": "starter" if STARTER else "simulated"}
    if HAS_BROWSER:
        web = f'[[tasks.source]]\nsuite = "web"\npath = "{REPOSITORY}/envs/web"\nsplits = ["train"]\n'
        with Processes("") as where:
            found.merge(compared(where, collect(web, STEPS_JPEG, SEEDS[:1], where), STEPS_JPEG, seed))
    result |= {"counts": dict(sorted(found.counts.items())), "gaps": found.table()}
    print(json.dumps(result, indent=1))
    if report := os.environ.get("FURROW_TRAINER_REPORT"):
        Path(report).write_text(json.dumps(result, indent=1) + "\n", "utf8")

    counts = found.counts
    assert counts["steps of one version"] >= STEPS, counts
    assert all(counts[f"steps of one version, {version}"] > 0 for version in folders), counts
    assert counts["draws of versions without a checkpoint"] == 0, counts
    assert found.largest("float32") < TOLERANCE
    # State that older weights wrote differs: a comparison that could not detect that would prove nothing.
    assert counts["steps of mixed versions"] > 0 and found.largest("float32, mixed versions") > TOLERANCE
    if HAS_BROWSER:
        assert counts["steps with a JPEG"] > 0 and ("float32, JPEG", "logprobs") in found.values
