"""The loop with a trainer that only sleeps: a farm that collects meanwhile, beside the same farm that
collects, then waits.

Both arms run the same job on the same simulated pages, where every action takes a given time to settle. A
version is trained from a fixed number of trajectories by a stub that sleeps, and published as any other. They
differ in one key: `limits.max_off_policy_versions` is 0 where the farm must not act ahead of the weights
(collect, then train), and 1 or more where it may.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ..data import Reader
from ..errors import ConfigError, TrainerError
from .farm import Farm, call
from .report import Report

SCREENSHOT_BYTES = 4_000
# Longest wait for a version's trajectories.
TRAJECTORIES_TIMEOUT_SECONDS = 600.0
JOB = """
[tasks]
sampler = "sequential"
group_size = 1
groups = 100000
[policy]
kind = "model"
checkpoint = {checkpoint}
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
sessions_max = {sessions}
[records]
follow = true
max_delay_millis = 300
[limits]
trajectories_per_version = {trajectories}
max_off_policy_versions = {ahead}
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Args:
        furrow: path of the furrow program.
        sessions: trajectories collected at once.
        trajectories: trajectories per version.
        steps: most steps of a trajectory.
        settle_seconds: time that each action of the environment takes to settle.
        train_seconds: time that the stub of a trainer sleeps per version.
        versions: versions measured, after one that is not. Use an even number: two checkpoints take turns,
            and each makes trajectories of its own length.
        ahead: versions that the farm may be ahead in the arm that collects while training.
    """

    furrow: str
    sessions: int = 16
    trajectories: int = 32
    steps: int = 6
    settle_seconds: float = 2.0
    train_seconds: float = 20.0
    versions: int = 6
    ahead: int = 1

    def __post_init__(self) -> None:
        counts = {
            "sessions": self.sessions,
            "trajectories": self.trajectories,
            "steps": self.steps,
            "versions": self.versions,
        }
        wrong = [f"--{name}: {count}; use at least 1" for name, count in counts.items() if count < 1]
        seconds = {"settle-seconds": self.settle_seconds, "train-seconds": self.train_seconds}
        wrong += [f"--{name}: {value:g}; use 0 or more" for name, value in seconds.items() if not value >= 0]
        if wrong:
            raise ConfigError("\n".join(wrong))


@dataclass(frozen=True, slots=True)
class Cycle:
    """A version: seconds waited for its trajectories, trained, published; steps of its trajectories."""

    waited: float
    trained: float
    published: float
    steps: int

    @property
    def seconds(self) -> float:
        """The whole cycle."""
        return self.waited + self.trained + self.published


def bench(plan: Plan, report: Report) -> None:
    """Measures both arms, one after the other.

    Raises:
        TrainerError: when a farm or a publication failed.
    """
    rates, steps = {}, {}
    with tempfile.TemporaryDirectory(prefix="furrow-bench-") as folder:
        weights = [Path(folder) / f"tiny-{seed}" for seed in (1, 2)]
        for seed, path in enumerate(weights, 1):
            call(plan.furrow, "checkpoint", "init", "--size", "tiny", "--seed", str(seed), path)
        for name, ahead in (("collect, then train", 0), ("collect while training", plan.ahead)):
            cycles = _arm(plan, Path(folder) / name.replace(", ", "-").replace(" ", "-"), weights, ahead)
            for cycle in cycles:
                report.add(f"{name}: a version", "s", cycle.seconds)
                report.add(f"{name}: waiting for its trajectories", "s", cycle.waited)
                report.add(f"{name}: publishing", "s", cycle.published)
                report.add(f"{name}: steps a trajectory", "", cycle.steps / plan.trajectories)
            rates[name] = plan.trajectories * len(cycles) / sum(cycle.seconds for cycle in cycles) * 3600
            report.add(f"{name}: trajectories trained from", "1/h", rates[name])
            steps[name] = sum(cycle.steps for cycle in cycles) / sum(cycle.seconds for cycle in cycles) * 3600
            report.add(f"{name}: steps trained from", "1/h", steps[name])
    apart, beside = rates.values()
    report.add("collect while training / collect, then train", "x", beside / apart)
    apart, beside = steps.values()
    report.add("the same, of steps", "x", beside / apart)
    collecting = report.median("collect, then train: waiting for its trajectories")
    # With a perfect overlap a version takes as long as the longer of the two.
    report.add(
        "the most that overlapping could bring",
        "x",
        (collecting + plan.train_seconds) / max(collecting, plan.train_seconds),
    )
    report.note(
        f"{plan.sessions} sessions, {plan.trajectories} trajectories a version of {plan.steps} steps at "
        "most, every action settles for "
        f"{plan.settle_seconds:g} s, the trainer is a stub that sleeps {plan.train_seconds:g} s a version; a "
        "tiny model acts, and each version is "
        "published and taken up; the first version of each arm is left out"
    )
    report.note(
        f"collect, then train: limits.max_off_policy_versions = 0; collect while training: {plan.ahead}"
    )


def _arm(plan: Plan, folder: Path, weights: list[Path], ahead: int) -> list[Cycle]:
    job = JOB.format(
        checkpoint=json.dumps(str(weights[0])),
        sessions=plan.sessions,
        trajectories=plan.trajectories,
        ahead=ahead,
    )
    arguments = [
        "--simulate-browser",
        str(SCREENSHOT_BYTES),
        "--simulate-settle",
        str(round(plan.settle_seconds * 1000)),
    ]
    cycles = []
    with Farm(folder, plan.furrow, job, (64, plan.steps), arguments) as farm:
        farm.wait_for(farm.run / "data" / "manifest", 120)
        reader = Reader(farm.run)
        stream = reader.groups(TRAJECTORIES_TIMEOUT_SECONDS, stop=farm.has_ended)
        for version in range(1, plan.versions + 2):
            begun = time.monotonic()
            steps = taken = 0
            while taken < plan.trajectories:
                group = next(stream, None)
                farm.check()
                if group is None:
                    raise TrainerError(
                        f"version {version} got {taken} of {plan.trajectories} trajectories within "
                        f"{TRAJECTORIES_TIMEOUT_SECONDS:g} s"
                    )
                for trajectory in group.trajectories:
                    steps += len(reader.steps(trajectory))
                taken += len(group.trajectories)
                reader.done(group)
            collected = time.monotonic()
            time.sleep(plan.train_seconds)
            trained = time.monotonic()
            published = json.loads(
                farm.call(
                    "publish", weights[version % 2], "--run", farm.run, "--id", f"version-{version}", "--json"
                )
            )
            if published["version"] != version:
                raise TrainerError(f"version {version} was published as {published['version']}")
            cycles.append(Cycle(collected - begun, trained - collected, time.monotonic() - trained, steps))
    # The first version also waits for the model to start.
    return cycles[1:]
