"""Training as a whole: it learns, goes on after any kill, reads each group once, and never publishes an older
version."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from actor import Actor, play
from farm import Farm
from furrow_trainer import config as configuration
from furrow_trainer.config import Config
from furrow_trainer.data import Reader
from furrow_trainer.errors import TrainerError
from furrow_trainer.learn import reinforcement, saved
from furrow_trainer.learn.metrics import read
from furrow_trainer.model import load
from paths import ORACLE_VL, REPOSITORY

CHECKPOINT = ORACLE_VL / "vl_f32"
# Takes a version: records its number, and whether the directory is whole.
PUBLISH = (
    "import json,sys,pathlib; folder, version, log = sys.argv[1:]; names = sorted(p.name for p in "
    "pathlib.Path(folder).iterdir()); "
    "open(log, 'a').write(json.dumps([int(version), 'config.json' in names and 'model.safetensors' in "
    "names]) + chr(10))"
)


def settings(folder: Path, **sections: dict[str, object]) -> Config:
    base: dict[str, dict[str, object]] = {
        "run": {"output_dir": str(folder / "training"), "checkpoint": str(CHECKPOINT), "steps_max": 4},
        "data": {"run_dir": str(folder / "run"), "wait_seconds": 0, "splits": []},
        "batch": {"tokens_max": 2000},
        "optimizer": {"learning_rate": 1e-3},
        # An entropy term: every attempt counts, so a step follows even where no group was rewarded.
        "rl": {"groups_per_step": 3, "skip_zero_variance": False, "algorithm": "reinforce", "entropy": 0.003},
        "publish": {
            "command": [sys.executable, "-c", PUBLISH, "{dir}", "{version}", str(folder / "published.jsonl")]
        },
    }
    for name, values in sections.items():
        base[name] = base.get(name, {}) | values
    return configuration.check(base)


def published(folder: Path) -> list[tuple[int, bool]]:
    path = folder / "published.jsonl"
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("control", [False, True])
def test_a_policy_learns_from_its_own_attempts_over_versions_and_the_control_does_not(
    tmp_path: Path, control: bool
) -> None:
    """Collect, train, publish, repeat: 24 versions. Chance is 1 in 8."""
    farm = Farm(tmp_path / "run")
    actor = Actor(CHECKPOINT, 0, 5)
    rates = []
    for version in range(24):
        rates.append(play(farm, actor, version * 3, 3, 8))
        run: dict[str, object] = {"steps_max": version + 1}
        trainer = reinforcement.train(
            settings(tmp_path, run=run, rl={"permute_rewards": control, "advantage": "rloo"}),
            resume=version > 0,
        )
        assert trainer.state.version == version + 1
        actor.reload(trainer.checkpoints / f"{version + 1:08}" / "model", version + 1)
    assert published(tmp_path) == sorted(published(tmp_path)) and published(tmp_path)[-1] == (24, True)
    late = sum(rates[-4:]) / 4
    print("mean reward by version:", [round(rate, 2) for rate in rates])
    # Two of three symbols learned are 0.67; a control that came to give one answer always has 0.33 by luck.
    assert (late < 0.45) if control else (late > 0.55), rates


def test_training_goes_on_to_the_bit_where_it_was_stopped(tmp_path: Path) -> None:
    for name in ("whole", "parts"):
        farm = Farm(tmp_path / name / "run")
        play(farm, Actor(CHECKPOINT, 0, 5), 0, 12, 4)
    whole = reinforcement.train(settings(tmp_path / "whole", rl={"max_staleness": 9}))
    for steps in (1, 3, 4):
        parts = reinforcement.train(
            settings(tmp_path / "parts", run={"steps_max": steps}, rl={"max_staleness": 9}), resume=steps > 1
        )
    assert whole.state.cursor == parts.state.cursor and whole.state.version == parts.state.version == 4
    for name, value in whole.policy.state_dict().items():
        assert torch.equal(value, parts.policy.state_dict()[name]), name
    lines = [read(tmp_path / name / "training" / "metrics.jsonl") for name in ("whole", "parts")]
    for one, other in zip(*lines, strict=True):
        assert {k: v for k, v in one.items() if "second" not in k} == {
            k: v for k, v in other.items() if "second" not in k
        }
    assert (tmp_path / "whole" / "training" / "report.html").read_text().count("<svg") >= 4


def test_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    """kill -9 at random moments while commits go on; every group is learned from once, and versions never go
    back."""
    farm = Farm(tmp_path / "run")
    actor = Actor(CHECKPOINT, 0, 5)
    play(farm, actor, 0, 6, 2)
    text = configuration.to_toml(
        settings(tmp_path, run={"steps_max": 8}, rl={"max_staleness": 99}, data={"wait_seconds": 30.0})
    )
    (tmp_path / "config.toml").write_text(text)
    seed = int(os.environ.get("FURROW_TRAINER_SEED", "11"))
    print("seed", seed)
    rng = random.Random(seed)
    command = [sys.executable, "-m", "furrow_trainer", "rl", str(tmp_path / "config.toml"), "--resume"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "trainer" / "src"), "OMP_NUM_THREADS": "1"}
    made, kills = 6, 0
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        log = open(tmp_path / f"stderr-{kills}", "wb")  # noqa: SIM115 - the process has it
        process = subprocess.Popen(command, env=environment, stderr=log)
        log.close()
        if kills < 4:
            before = saved.newest(tmp_path / "training" / "checkpoints")
            # At least one step further, then a while into the next one or its checkpoint.
            while (
                process.poll() is None
                and saved.newest(tmp_path / "training" / "checkpoints") == before
                and time.monotonic() < deadline
            ):
                if made < 24:
                    play(farm, actor, made, 3, 2)
                    made += 3
                time.sleep(0.05)
            time.sleep(rng.random() * 0.3)
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        else:
            while made < 24:
                play(farm, actor, made, 3, 2)
                made += 3
            assert process.wait(timeout=200) == 0, (tmp_path / f"stderr-{kills}").read_text()
            break
    newest = saved.newest(tmp_path / "training" / "checkpoints")
    assert newest is not None
    state = saved.read_state(newest)
    assert state.step == 8 and state.version == 8
    versions = [version for version, whole in published(tmp_path) if whole]
    assert versions == sorted(versions) and set(versions) == set(range(1, 9)), versions
    lines = read(tmp_path / "training" / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert sum(int(line["groups"]) for line in lines) == 24
    rest = Reader(tmp_path / "run", cursor=state.cursor)
    assert [group.group_id for group in rest.groups()] == [], (
        "24 groups were made, 8 steps of 3 took them all"
    )


def test_stale_and_uniform_groups_are_left_out_and_counted(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "run")
    play(farm, Actor(CHECKPOINT, 0, 5), 0, 12, 4)
    trainer = reinforcement.train(
        settings(tmp_path, rl={"groups_per_step": 1, "max_staleness": 1, "skip_zero_variance": True})
    )
    counts = trainer.counts
    assert trainer.state.step == 2, "after two versions everything of version 0 is stale"
    assert counts["groups left out: stale"] + counts["groups left out: zero variance"] == 10


def test_frozen_parameters_stay_and_others_move(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "run")
    play(farm, Actor(CHECKPOINT, 0, 5), 0, 3, 4)
    reinforcement.train(settings(tmp_path, run={"steps_max": 1}, optimizer={"frozen": ["vision_model."]}))
    checkpoint = saved.newest(tmp_path / "training" / "checkpoints")
    assert checkpoint is not None
    before, after = (
        load_file(CHECKPOINT / "model.safetensors"),
        load_file(checkpoint / "model" / "model.safetensors"),
    )
    assert set(before) == set(after), "names on disk are the published ones, unused tensors included"
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert all((name in same) == name.startswith("vision_model.") for name in before), sorted(same)
    assert load(checkpoint / "model").config == load(CHECKPOINT).config


def test_a_directory_is_not_used_twice_by_mistake(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "run")
    play(farm, Actor(CHECKPOINT, 0, 5), 0, 3, 4)
    reinforcement.train(settings(tmp_path, run={"steps_max": 1}))
    with pytest.raises(TrainerError, match="--resume"):
        reinforcement.train(settings(tmp_path))


def test_the_farm_numbers_the_versions(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "run")
    play(farm, Actor(CHECKPOINT, 0, 5), 0, 6, 4)
    # Numbers of its own: 10 for the first id, one more for each new id, and the same for an id that comes
    # again.
    log = tmp_path / "taken"
    serve = (
        "import json,pathlib,sys; log = pathlib.Path(sys.argv[2]); seen = log.read_text().split() if "
        "log.exists() else []; "
        "seen += [sys.argv[1]] if sys.argv[1] not in seen else []; log.write_text(' '.join(seen)); "
        "print(json.dumps({'version': 10 + seen.index(sys.argv[1])}))"
    )
    command: dict[str, object] = {"command": [sys.executable, "-c", serve, "{id}", str(log)]}
    trainer = reinforcement.train(
        settings(tmp_path, run={"steps_max": 1}, rl={"max_staleness": 99}, publish=command)
    )
    assert trainer.state.version == 10
    trainer = reinforcement.train(
        settings(tmp_path, run={"steps_max": 2}, rl={"max_staleness": 99}, publish=command), resume=True
    )
    assert trainer.state.version == 11 and len(log.read_text().split()) == 2, (
        "published again at the start, and recognised by its id"
    )


def test_metrics_are_means_over_what_was_computed(tmp_path: Path) -> None:
    """Attempts whose advantage is 0 are left out of the computation, not of the loss's weights."""
    farm = Farm(tmp_path / "run")
    play(farm, Actor(CHECKPOINT, 0, 5), 0, 6, 4)
    trainer = reinforcement.train(
        settings(tmp_path, run={"steps_max": 1}, rl={"groups_per_step": 6, "entropy": 0.0})
    )
    (line,) = read(tmp_path / "training" / "metrics.jsonl")
    assert 0 < line["tokens"] < 24 * 40 and trainer.state.step == 1
    assert line["ratio/mean"] == pytest.approx(1.0, abs=1e-3) and line["policy/entropy"] > 1, line
    assert line["attempts"] == 24 and line["length/mean"] == 1 and line["actions/invalid"] == 0


def test_a_waiting_training_stops_on_request(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "run")
    play(farm, Actor(CHECKPOINT, 0, 5), 0, 3, 4)
    (tmp_path / "config.toml").write_text(
        configuration.to_toml(settings(tmp_path, data={"wait_seconds": 600.0}))
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "trainer" / "src"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "furrow_trainer", "rl", str(tmp_path / "config.toml")], env=environment
    )
    try:
        deadline = time.monotonic() + 200
        while (
            saved.newest(tmp_path / "training" / "checkpoints") is None
            and process.poll() is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
