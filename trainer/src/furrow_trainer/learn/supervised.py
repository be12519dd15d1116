"""Supervised training on demonstrations: the warm start before a policy learns from its own attempts."""

from __future__ import annotations

import dataclasses
from collections import deque

import numpy as np
import torch
from torch import Tensor

from ..config import Config
from ..data import Cursor, Group, Reader
from . import demonstration, sequence
from .batch import Batch
from .loss import Loss, supervised
from .metrics import read
from .scores import score
from .sequence import Sequence
from .template import Template
from .trainer import Trainer

# Groups read ahead, so that a step mixes groups that are far apart in the shards.
SHUFFLED_GROUPS = 64
# Steps whose mean is compared with `sft.stop_below`.
STOP_STEPS = 20


def train(config: Config, resume: bool = False) -> Trainer:
    """Runs `[sft]` to its end; the trainer holds the weights."""
    trainer = Trainer(config, "sft", resume)
    trainer.listen()
    vision = trainer.checkpoint.config.vision
    assert vision is not None
    work = _Work(trainer, Template(trainer.checkpoint.folder, vision))
    reader = trainer.reader("sft")
    trainer.begin(reader)
    while not trainer.is_over:
        work.epoch(reader)
        if trainer.is_over:
            break
        trainer.state.epoch += 1
        if trainer.state.epoch >= config.sft.epochs:
            break
        # The next epoch reads the run from its beginning.
        trainer.counts += reader.counts
        trainer.state.cursor = Cursor(rank=config.data.rank, world=config.data.world)
        reader = trainer.reader("sft")
    trainer.end(reader)
    return trainer


class _Work:
    def __init__(self, trainer: Trainer, template: Template) -> None:
        self.trainer, self.template, self.config = trainer, template, trainer.config.sft
        self.waiting: list[Group] = []
        # A resumed training counts the steps on file, so that it ends at the step where it would have ended.
        lines = read(trainer.folder / "metrics.jsonl")
        self.recent: deque[float] = deque((line["loss/nll"] for line in lines), maxlen=STOP_STEPS)

    def epoch(self, reader: Reader) -> None:
        """All groups of the run once."""
        self.waiting = []
        stream = reader.groups(self.trainer.config.data.wait_seconds, lambda: self.trainer.stopping)
        taken: list[Group] = []
        found: list[Sequence] = []
        is_open = True
        while not self.trainer.is_over and (is_open or self.waiting or found):
            while is_open and len(self.waiting) < SHUFFLED_GROUPS:
                group = next(stream, None)
                is_open = group is not None
                self.waiting += [group] if group is not None else []
            if self.waiting:
                group = self.waiting.pop(int(self.trainer.rng.integers(len(self.waiting))))
                taken.append(group)
                found += self.sequences(reader, group)
            enough = len({one.trajectory_id for one in found}) >= self.config.trajectories_per_step
            if found and (enough or not (is_open or self.waiting)):
                self.step(reader, taken, found)
                taken, found = [], []
        for group in taken:
            reader.done(group)

    def sequences(self, reader: Reader, group: Group) -> list[Sequence]:
        """Sequences of a group's demonstrations; copies of a sibling are left out."""
        found: list[Sequence] = []
        known: set[tuple[object, ...]] = set()
        for trajectory in group.trajectories:
            steps = reader.steps(trajectory)
            key = tuple((step.screenshot, step.action["raw_text"]) for step in steps)
            if self.config.once_per_observation and key in known:
                self.trainer.counts["demonstrations left out: copies of a sibling"] += 1
                continue
            known.add(key)
            if any(not step.action["valid"] for step in steps):
                self.trainer.counts["demonstrations left out: a step holds no action"] += 1
                continue
            if steps[0].prompt_token_ids is not None:
                found += sequence.sequences(trajectory, steps, self.trainer.images)
            else:
                dropped = frozenset(self.config.dropped)
                found += demonstration.sequences(
                    trajectory, steps, self.trainer.images, self.template, self.config.context, dropped
                )
        return found

    def step(self, reader: Reader, groups: list[Group], found: list[Sequence]) -> None:
        """One step of the optimiser: every trained token weighs the same."""
        found = [one if self.config.choices_only else all_learned(one) for one in found]
        total = sum(int(one.responses.sampled.sum()) for one in found)

        def loss(batch: Batch) -> Loss:
            weights: Tensor = torch.full_like(batch.targets.temperature, 1 / max(total, 1))
            return supervised(score(self.trainer.policy, batch), weights)

        line = self.trainer.step(found, loss)
        line |= {"epoch": self.trainer.state.epoch, "sequences": len(found), "learned_tokens": total}
        for group in groups:
            reader.done(group)
        self.trainer.finish_step(reader, line)
        self.recent.append(line["loss/nll"])
        if len(self.recent) == STOP_STEPS and sum(self.recent) / STOP_STEPS < self.config.stop_below:
            self.trainer.stopping = True


def all_learned(one: Sequence) -> Sequence:
    """A copy in which every token of a reply is trained on, also those that the grammar forces."""
    every = dataclasses.replace(one.responses, sampled=np.ones(len(one.responses), np.bool_))
    return dataclasses.replace(one, responses=every)
