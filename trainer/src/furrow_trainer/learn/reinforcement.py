"""Reinforcement learning on a policy's own attempts, while the farm collects more of them."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..config import Config
from ..data import Group, Reader
from ..data.rows import Trajectory
from ..errors import TrainerError
from ..model import Policy, load
from .advantage import RunningMean, group_advantages, permuted
from .batch import Batch
from .discarded import Reports, command_for
from .loss import WEIGHT, Loss, reinforcement
from .objective import Objective, token_weights
from .scores import score
from .sequence import Sequence, sequences
from .trainer import LEFT_OUT, Trainer

# A farm whose attempts teach nothing goes on collecting; this is the interval of the message that says so.
PROGRESS_SECONDS = 30.0


def train(config: Config, resume: bool = False) -> Trainer:
    """Runs `[rl]` until `run.steps_max`, or until nothing new came for `data.wait_seconds`; the trainer holds
    the weights.

    Raises:
        TrainerError: when the run had groups and no step could be made of them.
    """
    trainer = Trainer(config, "rl", resume)
    trainer.listen()
    reader = trainer.reader("rl")
    trainer.begin(reader)
    work = _Work(trainer)
    stream = reader.groups(
        config.data.wait_seconds, lambda: trainer.stopping, lambda: work.report(reader, repeat=True)
    )
    while not trainer.is_over:
        taken = work.collect(reader, stream)
        work.report(reader)
        if taken is None:
            break
        work.learn(reader, taken)
    trainer.end(reader)
    if not trainer.is_over:
        work.conclude(reader)
    return trainer


@dataclass(frozen=True, slots=True)
class Attempt:
    """A trajectory with its reward and advantage."""

    trajectory: Trajectory
    reward: float
    advantage: float
    staleness: int


def means(line: dict[str, Any]) -> dict[str, Any]:
    """A step's metrics, sums over weighted tokens turned into means over the tokens that were computed; the
    loss stays a sum."""
    weight = line.pop(WEIGHT)
    averaged = [name for name in line if name.startswith(("policy/", "ratio/"))]
    return line | {name: line[name] / max(weight, 1e-12) for name in averaged}


class _Work:
    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.config = trainer, trainer.config.rl
        rl = self.config
        self.objective = Objective(
            algorithm=rl.algorithm,
            clip_low=rl.clip_low,
            clip_high=rl.clip_high,
            ratio_cap=rl.ratio_cap,
            entropy=rl.entropy,
            kl=rl.kl,
            normaliser=rl.normaliser,
            constant=rl.constant,
        )
        self.baseline = RunningMean(means=trainer.state.baselines)
        self.reference: Policy | None = None
        self.waited = 0.0
        data = trainer.config.data
        self.reports = Reports(command_for(trainer.config.publish), data.rank, data.world)
        self.reported, self.next_report_at = 0, 0.0
        if rl.kl > 0:
            self.reference = load(
                trainer.config.run.checkpoint, trainer.config.run.device
            ).policy.requires_grad_(False)

    def collect(self, reader: Reader, stream: Iterator[Group]) -> list[Group] | None:
        """Groups for one step; `None` when the run has no more. Groups that teach nothing are discarded at
        once."""
        taken: list[Group] = []
        begun = time.monotonic()
        while len(taken) < self.config.groups_per_step and not self.trainer.stopping:
            group = next(stream, None)
            if group is None:
                return None
            if (why := self.refuses(group)) is not None:
                self.trainer.counts[f"attempts left out: {why}"] += len(group.trajectories)
                self.trainer.discard(reader, group, why)
                continue
            taken.append(group)
        self.waited = time.monotonic() - begun
        return None if self.trainer.stopping else taken

    def refuses(self, group: Group) -> str | None:
        """Why a group teaches nothing; `None` where it teaches something."""
        if all(self.staleness(trajectory) > self.config.max_staleness for trajectory in group.trajectories):
            return "stale"
        rewards = {trajectory.reward for trajectory in group.trajectories}
        needs_spread = self.config.advantage != "running_mean" and not self.config.permute_rewards
        if self.config.skip_zero_variance and needs_spread and len(rewards) < 2:
            return "zero variance"
        return None

    def staleness(self, trajectory: Trajectory) -> int:
        """Versions between the oldest weights that wrote any part of it and those being trained."""
        oldest = trajectory.policy_version_min
        return self.trainer.state.version - (self.trainer.state.version if oldest is None else oldest)

    def attempts(self, groups: list[Group]) -> list[Attempt]:
        """Attempts with advantages over all scored attempts of their group; stale ones are left out later."""
        rewards = [[float(trajectory.reward or 0.0) for trajectory in group.trajectories] for group in groups]
        dealt = rewards
        if self.config.permute_rewards:
            mixed = iter(permuted([reward for part in rewards for reward in part], self.trainer.rng))
            dealt = [[next(mixed) for _ in part] for part in rewards]
        found = []
        for group, own, given in zip(groups, rewards, dealt, strict=True):
            if self.config.advantage == "running_mean":
                advantages = np.array(
                    [self.baseline.advantage(group.row.task_id, reward) for reward in given]
                )
            else:
                advantages = group_advantages(given, self.config.advantage)
            for trajectory, reward, advantage in zip(group.trajectories, own, advantages, strict=True):
                found.append(Attempt(trajectory, reward, float(advantage), self.staleness(trajectory)))
        return found

    def learn(self, reader: Reader, groups: list[Group]) -> None:
        """One or more steps of the optimiser over the groups. A batch without an advantage is discarded."""
        attempts = self.attempts(groups)
        self.trainer.state.baselines = self.baseline.means
        fresh = [attempt for attempt in attempts if attempt.staleness <= self.config.max_staleness]
        self.trainer.counts["attempts left out: stale"] += len(attempts) - len(fresh)
        # An advantage of 0 moves nothing, unless entropy or divergence count too.
        moves = self.config.entropy > 0 or self.config.kl > 0
        used = [attempt for attempt in fresh if moves or attempt.advantage != 0]
        found = [one for attempt in used for one in self.sequences(reader, attempt.trajectory)]
        if not found:
            for group in groups:
                self.trainer.discard(reader, group, "no token to learn" if used else "no advantage")
            return
        line = self.describe(attempts, groups)
        for index in range(self.config.passes):
            line |= means(self.trainer.step(found, self.loss(found, fresh, used)))
            if index + 1 < self.config.passes:
                self.trainer.metrics.write(line)
        for group in groups:
            reader.done(group)
        self.trainer.finish_step(reader, line)

    def report(self, reader: Reader, repeat: bool = False) -> None:
        """Reports discarded trajectories, so that the farm collects others; prints a message while training
        waits."""
        count = self.trainer.discarded(reader)
        self.reports.report(count, repeat)
        if repeat and count != self.reported and time.monotonic() >= self.next_report_at:
            print(
                f"waiting for groups to learn from: {self.trainer.left_out(reader)}",
                file=sys.stderr,
                flush=True,
            )
            self.reported, self.next_report_at = count, time.monotonic() + PROGRESS_SECONDS

    def conclude(self, reader: Reader) -> None:
        """Ends a training that needs more groups than the run has.

        Raises:
            TrainerError: when there were groups and none was trained on.
        """
        run, data, left_out = self.trainer.config.run, self.trainer.config.data, self.trainer.left_out(reader)
        why = f"nothing new was committed for {data.wait_seconds:g} s; {left_out}"
        if self.trainer.state.step:
            print(
                f"training ends after step {self.trainer.state.step} of {run.steps_max}: {why}",
                file=sys.stderr,
                flush=True,
            )
        elif (self.trainer.counts + reader.counts)["groups"]:
            raise TrainerError(
                f"no step was made: {why}; a step takes rl.groups_per_step = {self.config.groups_per_step} "
                "that teach something"
            )

    def sequences(self, reader: Reader, trajectory: Trajectory) -> list[Sequence]:
        """Sequences of an attempt; with `drop_unlisted`, without the tokens that cannot be recomputed
        exactly."""
        found = sequences(trajectory, reader.steps(trajectory), self.trainer.images)
        self.trainer.counts["draws"] += sum(int(one.responses.sampled.sum()) for one in found)
        self.trainer.counts["draws whose ids are not listed"] += sum(
            int(one.responses.unlisted.sum()) for one in found
        )
        if not self.config.drop_unlisted:
            return found
        return [
            dataclasses.replace(
                one,
                responses=dataclasses.replace(
                    one.responses, sampled=one.responses.sampled & ~one.responses.unlisted
                ),
            )
            for one in found
        ]

    def loss(
        self, found: list[Sequence], fresh: list[Attempt], used: list[Attempt]
    ) -> Callable[[Batch], Loss]:
        """The loss of a batch of these sequences. Attempts whose advantage is 0 have no sequences here, and
        still count in the weights."""
        counts: Counter[str] = Counter({attempt.trajectory.trajectory_id: 0 for attempt in fresh})
        for one in found:
            counts[one.trajectory_id] += int(one.responses.sampled.sum())
        for attempt in fresh:
            name = attempt.trajectory.trajectory_id
            counts[name] = counts[name] or attempt.trajectory.num_response_tokens
        weight_of = token_weights(counts, self.objective)
        advantage_of = {attempt.trajectory.trajectory_id: attempt.advantage for attempt in used}

        def loss(batch: Batch) -> Loss:
            names = [one.trajectory_id for one in batch.sequences]
            table = torch.tensor(
                [[weight_of[name], advantage_of[name]] for name in names], device=batch.ids.device
            )
            weights, advantages = table[batch.targets.sequence].unbind(-1)
            reference = None
            if self.reference is not None:
                with torch.no_grad():
                    there = score(self.reference, batch)
                    reference = torch.where(batch.targets.unlisted, there.whole_logprob, there.logprob)
            return reinforcement(
                score(self.trainer.policy, batch),
                batch.targets,
                advantages,
                weights,
                self.objective,
                reference,
            )

        return loss

    def describe(self, attempts: list[Attempt], groups: list[Group]) -> dict[str, float]:
        """Metrics of the attempts that are trained on."""
        staleness = [attempt.staleness for attempt in attempts]
        by_task: dict[str, list[float]] = {}
        for attempt in attempts:
            by_task.setdefault(attempt.trajectory.task_id, []).append(attempt.reward)
        return {
            "reward/mean": float(np.mean([attempt.reward for attempt in attempts])),
            **{f"reward/{task}": float(np.mean(rewards)) for task, rewards in sorted(by_task.items())},
            "advantage/abs_mean": float(np.mean([abs(attempt.advantage) for attempt in attempts])),
            "staleness/mean": float(np.mean(staleness)),
            "staleness/max": float(max(staleness)),
            "length/mean": float(np.mean([attempt.trajectory.num_steps for attempt in attempts])),
            "actions/invalid": sum(attempt.trajectory.num_invalid_actions for attempt in attempts),
            "seconds/waited": self.waited,
            "seconds/published": self.trainer.publishing,
            "attempts": len(attempts),
            "groups": len(groups),
            "groups/left_out": sum(
                count for name, count in self.trainer.counts.items() if name.startswith(LEFT_OUT)
            ),
        }
