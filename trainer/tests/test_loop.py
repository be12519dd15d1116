"""The loop itself: a farm of real processes, a trainer that follows it and publishes into it, and each of
them killed while it goes on."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import sqlite3
import sys
import time

import pytest

from furrow_trainer import config as configuration
from furrow_trainer.config import Config, RlSection
from furrow_trainer.data import Cursor, Reader
from furrow_trainer.learn import saved
from furrow_trainer.learn.metrics import read
from paths import PROGRAM, REPOSITORY
from processes import Processes, simulated_tasks

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no furrow program: build one, or name it in FURROW")

VICTIMS = ("trainer", "policy", "coordinator")
KILLS = 2
# Each death waits for a step more, and may take back one that was under way.
VERSIONS = 14
GROUPS, SIZE = 2, 2
JOB = """
[tasks]
sampler = "sequential"
group_size = {size}
groups = 100000
[policy]
kind = "model"
checkpoint = "{checkpoint}"
instructions = "Act."
[policy.constrain]
enabled = true
note = 0
thought = 0
content = 2
element = 0
url = 2
[policy.engine]
context_tokens_max = 4096
[env]
sessions_max = 4
[records]
follow = true
max_delay_millis = 500
[limits]
trajectories_per_version = {trajectories}
max_off_policy_versions = 1
lease_millis = 4000
heartbeat_millis = 300
attempts_max = 20
failure_budget = 1.0
"""


def training(where: Processes) -> Config:
    """A version a step; every attempt counts, rewarded or not, and none is too old."""
    publish = [str(PROGRAM), "publish", "{dir}", "--run", str(where.run), "--id", "{id}", "--json"]
    return configuration.check(
        {
            "run": {
                "output_dir": str(where.folder / "training"),
                "checkpoint": str(where.checkpoint(7)),
                "steps_max": VERSIONS,
                "checkpoints_kept": VERSIONS + 1,
            },
            "data": {"run_dir": str(where.run), "wait_seconds": 120.0},
            "batch": {"tokens_max": 4000},
            "rl": {
                "algorithm": "reinforce",
                "groups_per_step": GROUPS,
                "skip_zero_variance": False,
                "entropy": 0.003,
                "max_staleness": 99,
            },
            "publish": {"command": publish, "timeout_seconds": 120.0},
        }
    )


def test_the_loop_survives_the_death_of_any_role() -> None:
    """kill -9 of trainer, policy worker and coordinator: each group is learned from once, and no version goes
    back."""
    seed = int(os.environ.get("FURROW_TRAINER_SEED") or random.randrange(1 << 32))
    print(f"FURROW_TRAINER_SEED={seed}")
    dice = random.Random(seed)
    plan = [victim for victim in VICTIMS for _ in range(KILLS)]
    dice.shuffle(plan)
    with Processes("", 4000) as where:
        config = training(where)
        (where.folder / "rl.toml").write_text(configuration.to_toml(config), "utf8")
        job = JOB.format(size=SIZE, checkpoint=config.run.checkpoint, trajectories=GROUPS * SIZE)
        with (where.folder / "job.toml").open("a") as file:
            file.write(job + simulated_tasks(where.folder, 20, 3))
        metrics = where.folder / "training" / "metrics.jsonl"

        def train() -> None:
            command = [
                sys.executable,
                "-m",
                "furrow_trainer",
                "rl",
                str(where.folder / "rl.toml"),
                "--resume",
            ]
            where.begin(
                "trainer", command, PYTHONPATH=str(REPOSITORY / "trainer" / "src"), OMP_NUM_THREADS="1"
            )

        where.start("coordinator", "policy", "env")
        where.wait("a first commit", lambda: where.rows("trajectories") > 0, 120)
        train()
        for victim in plan:
            steps = len(read(metrics))
            where.wait("a step more", lambda steps=steps: len(read(metrics)) > steps, 180)  # type: ignore[misc]
            time.sleep(2 * dice.random())
            print(f"{victim} dies after step {len(read(metrics))}")
            where.kill(victim)
            if victim == "trainer":
                train()
            else:
                where.start(victim)
        status = where.running["trainer"].wait(300)
        assert status == 0, where.captured_output()
        del where.running["trainer"]
        where.drain()
        where.call("records", "verify", where.run)
        once(where, config)
        versions(where)


def test_a_farm_goes_on_where_its_attempts_teach_nothing() -> None:
    """Defaults, strictly in step: a version allows one step's groups, every reward is 0, and the coordinator
    dies in between. The farm collects all its tasks in the place of what was discarded, and training ends
    with that sentence."""
    groups = 6 * GROUPS
    with Processes("", 4000) as where:
        base = training(where)
        config = dataclasses.replace(
            base, data=dataclasses.replace(base.data, wait_seconds=20.0), rl=RlSection(groups_per_step=GROUPS)
        )
        (where.folder / "rl.toml").write_text(configuration.to_toml(config), "utf8")
        job = JOB.format(size=SIZE, checkpoint=config.run.checkpoint, trajectories=GROUPS * SIZE)
        job = job.replace("groups = 100000", f"groups = {groups}").replace(
            "max_off_policy_versions = 1", "max_off_policy_versions = 0"
        )
        with (where.folder / "job.toml").open("a") as file:
            # One click of the three that a page wants: no attempt succeeds.
            file.write(job + simulated_tasks(where.folder, 20, 1))
        where.start("coordinator", "policy", "env")
        where.wait("a version's groups", lambda: where.rows("groups") == GROUPS, 120)
        time.sleep(2)
        assert where.rows("trajectories") == GROUPS * SIZE, "without a trainer nothing more is collected"
        command = [sys.executable, "-m", "furrow_trainer", "rl", str(where.folder / "rl.toml")]
        where.begin("trainer", command, PYTHONPATH=str(REPOSITORY / "trainer" / "src"), OMP_NUM_THREADS="1")
        where.wait("more than a version", lambda: where.rows("groups") >= 2 * GROUPS, 120)
        where.kill("coordinator")
        where.start("coordinator")
        ended = [where.running.pop(role).wait(240) for role in ("coordinator", "env", "policy", "trainer")]
        assert ended == [0, 0, 0, 1], where.captured_output()
        assert where.rows("groups") == groups
        want = (
            f"no step was made: nothing new was committed for 20 s; {groups} groups were read and {groups} "
            f"left out (zero variance {groups})"
        )
        assert want in where.captured_output(), where.captured_output()
        where.call("records", "verify", where.run)


def once(where: Processes, config: Config) -> None:
    """The cursors of all checkpoints, each held against the whole manifest: what each step took, and that no
    two took the same."""

    def left(cursor: Cursor | None) -> set[str]:
        return {group.group_id for group in Reader(where.run, config.data.choice("rl"), cursor).groups()}

    lines = read(config.run.output_dir / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, VERSIONS + 1)), lines
    before, taken = left(None), 0
    for line in lines:
        state = saved.read_state(config.run.output_dir / "checkpoints" / f"{line['step']:08}")
        after = left(state.cursor)
        assert after < before, "a group came back"
        assert len(before - after) == line["groups"] == GROUPS, (line, sorted(before - after))
        assert line["groups/left_out"] == 0, line
        taken += len(before - after)
        before = after
    assert taken == VERSIONS * GROUPS


def versions(where: Processes) -> None:
    """Of the ledger, the rows and the training: numbers that only grow, and a publication a step."""
    ledger = sqlite3.connect(where.run / "ledger.sqlite")
    weights = ledger.execute("SELECT version, state, publication_id FROM weights ORDER BY version").fetchall()
    assert [(version, state) for version, state, _ in weights] == [
        (version, "taken") for version in range(1, VERSIONS + 1)
    ], weights
    assert [name[-8:] for _, _, name in weights] == [f"{step:08}" for step in range(1, VERSIONS + 1)], weights
    began = ledger.execute("SELECT policy_version FROM trajectories ORDER BY token").fetchall()
    assert began == sorted(began), f"a trajectory began on older weights than one before it: {began}"
    tokens = 0
    reader = Reader(where.run)
    for group in reader.groups():
        for trajectory in group.trajectories:
            line = [
                version
                for step in reader.steps(trajectory)
                for version in (step.policy_versions if step.policy_versions is not None else ())
            ]
            assert line == sorted(line), (trajectory.trajectory_id, line)
            tokens += len(line)
    lines = read(where.folder / "training" / "metrics.jsonl")
    assert [line["version"] for line in lines] == list(range(VERSIONS)), (
        "each step begins on the version before it"
    )
    staleness = [line["staleness/max"] for line in lines]
    print(
        json.dumps(
            {"trajectories": len(began), "tokens": tokens, "versions": len(weights), "staleness": staleness}
        )
    )
