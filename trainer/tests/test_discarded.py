"""What teaches nothing is counted, reported and made up for: a farm that paces its admission by versions
waits for nothing that was discarded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from actor import SYMBOLS, Actor
from farm import Farm
from furrow_trainer.config import Config
from furrow_trainer.data import Choice, Reader
from furrow_trainer.errors import TrainerError
from furrow_trainer.learn import reinforcement, saved
from test_trainer import CHECKPOINT, settings

# Appends each count to a file.
REPORT = "import sys; open(sys.argv[2], 'a').write(sys.argv[1] + chr(10))"
# Without an entropy term a group of one reward teaches nothing.
PLAIN: dict[str, object] = {
    "skip_zero_variance": True,
    "entropy": 0.0,
    "groups_per_step": 2,
    "max_staleness": 9,
}


def attempts(farm: Farm, first: int, rewards: list[list[float]], size: int = 4, **values: object) -> None:
    """A commit per group; its attempts get these rewards, whatever they did."""
    actor = Actor(CHECKPOINT, 0, 5)
    for number, given in enumerate(rewards, first):
        name, symbol = f"g{number:05}", number % SYMBOLS
        made = [actor.attempt(farm, name, sample, symbol) for sample in range(len(given) or size)]
        for (whole, rows), reward in zip(made, given, strict=False):
            whole |= {"reward": reward, **values}
            for row in rows:
                row |= {"reward": reward, **values, "trainable_rl": values.get("split", "train") == "train"}
        farm.commit(
            made,
            [
                farm.group(
                    name,
                    given,
                    task_id=f"symbol-{symbol}",
                    policy_version_min=0,
                    policy_version_max=0,
                    **values,
                )
            ],
        )


def reporting(folder: Path, **sections: dict[str, object]) -> Config:
    """A trainer that reports into a file."""
    command = [sys.executable, "-c", REPORT, "{count}", str(folder / "reports")]
    sections["publish"] = {"discarded": command} | sections.get("publish", {})
    sections["rl"] = PLAIN | sections.get("rl", {})
    return settings(folder, **sections)


def reports(folder: Path) -> list[int]:
    path = folder / "reports"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


FLAT, MIXED = [0.0] * 4, [0.0, 1.0, 0.0, 1.0]


def test_discarded_attempts_are_counted_and_reported_before_the_trainer_waits(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "run")
    attempts(farm, 0, [FLAT, MIXED, FLAT])
    attempts(farm, 3, [[0.0, 1.0]], split="test")  # accepted by admission, and not to be learned from
    attempts(farm, 4, [[0.0, 1.0]], split="eval")  # admission does not count evaluations
    farm.commit(
        [farm.trajectory("g00005", 0, None, status="failed", end="env_crash")], [farm.group("g00005", [])]
    )
    attempts(farm, 6, [MIXED, FLAT])
    trainer = reinforcement.train(reporting(tmp_path, rl={}, run={"steps_max": 2}))
    assert trainer.state.step == 1
    assert reports(tmp_path)[-1] == 3 * 4 + 2, "three groups without variance and one of another split"
    assert reports(tmp_path) == sorted(set(reports(tmp_path))), (
        "cumulative, and once each while nothing waits"
    )


def test_groups_that_are_too_old_are_reported(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "run")
    attempts(farm, 0, [MIXED] * 7)
    trainer = reinforcement.train(
        reporting(tmp_path, rl={"groups_per_step": 1, "max_staleness": 1}, run={"steps_max": 4})
    )
    assert trainer.state.step == 2 and reports(tmp_path)[-1] == 5 * 4, (
        "after two versions everything of version 0 is stale"
    )


@pytest.mark.parametrize(
    ("rl", "rewards", "discarded"),
    [
        ({"skip_zero_variance": False}, [FLAT, FLAT, MIXED, MIXED], 8),
        # What was tried first sets a task's baseline.
        ({"advantage": "running_mean"}, [[1.0], [1.0], [1.0], [0.0], [0.0], [0.0]], 2),
        ({"permute_rewards": True}, [FLAT, FLAT, MIXED, MIXED], 8),
        ({"skip_zero_variance": False, "passes": 2}, [FLAT, FLAT, MIXED, MIXED], 8),
        ({"advantage": "rloo", "skip_zero_variance": False}, [[1.0], [0.0], MIXED, MIXED], 2),
    ],
)
def test_a_batch_in_which_all_advantages_are_0_is_discarded_and_the_loop_goes_on(
    tmp_path: Path, rl: dict[str, object], rewards: list[list[float]], discarded: int
) -> None:
    farm = Farm(tmp_path / "run")
    attempts(farm, 0, rewards)
    trainer = reinforcement.train(reporting(tmp_path, rl=rl, run={"steps_max": 9}))
    assert trainer.state.step >= 1 and reports(tmp_path)[-1] == discarded, trainer.counts
    assert trainer.counts["groups left out: no advantage"] == 2


@pytest.mark.parametrize("rest", [FLAT, MIXED])
def test_the_count_goes_on_where_training_was_stopped(tmp_path: Path, rest: list[float]) -> None:
    """Stopped behind each step, or not at all: the same count, whether it is read from the rows again or from
    the checkpoint."""
    rewards = [FLAT, MIXED, FLAT, MIXED, MIXED, FLAT, MIXED, FLAT, FLAT, rest, rest]
    for name in ("whole", "parts"):
        farm = Farm(tmp_path / name / "run")
        attempts(farm, 0, rewards[:4])
        attempts(farm, 4, [[0.0, 1.0]], split="test")
        attempts(farm, 5, rewards[4:])
    whole = reinforcement.train(reporting(tmp_path / "whole", run={"steps_max": 3}))
    for steps in (1, 2, 3):
        parts = reinforcement.train(reporting(tmp_path / "parts", run={"steps_max": steps}), resume=steps > 1)
        newest = saved.newest(parts.checkpoints)
        assert newest is not None
        rest_of = Reader(tmp_path / "parts" / "run", Choice(trainable="rl"), parts.state.cursor)
        left = sum(group.row.valid for group in rest_of.groups()) + rest_of.discarded
        used = parts.state.step * 2 * 4
        assert saved.read_state(newest).discarded + used + left == 4 * len(rewards) + 2, (
            "each attempt is used, discarded or still there"
        )
    assert reports(tmp_path / "whole")[-1] == max(reports(tmp_path / "parts"))
    assert reports(tmp_path / "parts") == sorted(reports(tmp_path / "parts"))
    for name, value in whole.policy.state_dict().items():
        assert torch.equal(value, parts.policy.state_dict()[name]), name


def test_a_run_that_can_teach_nothing_ends_with_that_sentence(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "run")
    attempts(farm, 0, [FLAT] * 5)
    attempts(farm, 5, [[1.0, 0.0]], split="test")
    with pytest.raises(TrainerError) as failed:
        reinforcement.train(reporting(tmp_path))
    message = str(failed.value)
    assert (
        "6 groups were read and 6 left out (zero variance 5, no trajectory is wanted 1)" in message
        and "no step was made" in message
    ), message
    assert reports(tmp_path)[-1] == 22
    # The counts are in the checkpoint: a resumed training reports them again.
    with pytest.raises(TrainerError, match="6 groups were read and 6 left out"):
        reinforcement.train(reporting(tmp_path), resume=True)


def test_a_run_with_too_few_groups_for_a_step_is_reported(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "run")
    attempts(farm, 0, [FLAT, MIXED])
    with pytest.raises(
        TrainerError, match=r"2 groups were read and 1 left out \(zero variance 1\).*rl\.groups_per_step = 2"
    ):
        reinforcement.train(reporting(tmp_path))


def test_a_training_that_ends_early_reports_what_was_left_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    farm = Farm(tmp_path / "run")
    attempts(farm, 0, [MIXED, MIXED, FLAT])
    assert reinforcement.train(reporting(tmp_path)).state.step == 1
    message = (
        "training ends after step 1 of 4: nothing new was committed for 0 s; "
        "3 groups were read and 1 left out (zero variance 1)"
    )
    assert message in capfd.readouterr().err


def test_finished_data_need_no_coordinator(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    farm = Farm(tmp_path / "run")
    attempts(farm, 0, [FLAT, MIXED, MIXED, FLAT, MIXED, MIXED])
    gone = [sys.executable, "-c", "import sys; sys.exit('no coordinator')", "{count}"]
    trainer = reinforcement.train(reporting(tmp_path, publish={"discarded": gone}, run={"steps_max": 2}))
    assert trainer.state.step == 2 and trainer.state.discarded == 8
    assert capfd.readouterr().err.count("no coordinator") == 1, "printed once"
    for command in (["/nowhere/furrow", "discarded", "{count}"], []):
        folder = tmp_path / f"with-{len(command)}"
        (folder / "run").parent.mkdir()
        (folder / "run").symlink_to(tmp_path / "run")
        assert (
            reinforcement.train(
                reporting(folder, publish={"discarded": command}, run={"steps_max": 2})
            ).state.step
            == 2
        )


def test_readers_that_share_a_run_report_each_its_own(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "run")
    attempts(farm, 0, [FLAT, MIXED] * 8)
    line = "import json,sys; open(sys.argv[4], 'a').write(json.dumps(sys.argv[1:4]) + chr(10))"
    command = [sys.executable, "-c", line, "{count}", "{rank}", "{world}", str(tmp_path / "received")]
    counted = {}
    for rank in (0, 1):
        run: dict[str, object] = {"steps_max": 2, "output_dir": str(tmp_path / f"training-{rank}")}
        data: dict[str, object] = {"rank": rank, "world": 2}
        rl: dict[str, object] = {"groups_per_step": 1, "max_staleness": 0}
        trainer = reinforcement.train(
            reporting(tmp_path, run=run, data=data, rl=rl, publish={"discarded": command})
        )
        groups = trainer.counts["groups left out: zero variance"] + trainer.counts["groups left out: stale"]
        counted[str(rank)] = 4 * groups
    received = {
        (rank, world): int(count)
        for count, rank, world in map(json.loads, (tmp_path / "received").read_text().splitlines())
    }
    assert received == {(rank, "2"): count for rank, count in counted.items()}
    assert sum(counted.values()) == 4 * 14, "each learned from the first group it could"
