"""Common parts of both kinds of training: the optimiser's step, checkpoints, publishing, metrics,
stopping."""

from __future__ import annotations

import math
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Items
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from .. import config as configuration
from ..config import Config
from ..data import Cursor, Group, Reader
from ..errors import CheckpointError, PublishError, TrainerError
from ..model import load
from . import report, saved
from .batch import Batch, packed, padded, split
from .images import Images
from .loss import Loss
from .metrics import Metrics, read
from .publish import publish
from .saved import State
from .sequence import Sequence

# Share of the learning rate that the cosine ends at.
DECAY_FLOOR = 0.1
COSINE, NONE = "cosine", "none"
# Prefix of the counts of groups that no step was made of; a reason follows.
LEFT_OUT = "groups left out: "


class Trainer:
    """A training in its output directory: a new one, or one that continues exactly at its newest checkpoint.

    Args:
        config: the resolved file.
        kind: `sft` or `rl`.
        resume: continue; else the directory must be new.

    Raises:
        TrainerError: when the directory is in use without `resume`, or holds another kind of training.
        CheckpointError: when a checkpoint cannot be read.
    """

    def __init__(self, config: Config, kind: str, resume: bool) -> None:
        self.config = config
        self.folder = config.run.output_dir
        self.checkpoints = self.folder / "checkpoints"
        found = saved.newest(self.checkpoints)
        if (self.folder / "metrics.jsonl").exists() and not resume:
            raise TrainerError(
                f"{self.folder} holds a training; continue it with --resume, or name another run.output_dir"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(config.run.threads)
        torch.manual_seed(config.run.seed)
        self.state = saved.read_state(found) if found else self._fresh(kind)
        if self.state.kind != kind:
            raise TrainerError(f"{self.folder} holds a training of kind {self.state.kind}, not {kind}")
        self.checkpoint = load(found / "model" if found else config.run.checkpoint, config.run.device)
        self.policy = self.checkpoint.policy
        if self.checkpoint.config.vision is None:
            raise CheckpointError(
                f"{self.checkpoint.folder} is a text model; screenshots need one with vision_config"
            )
        self.policy.language_model.recompute = config.batch.recompute
        self.optimizer = self._optimizer()
        self.rng = np.random.default_rng(config.run.seed)
        if found:
            saved.restore(found, self.checkpoint, self.optimizer)
            self.rng.bit_generator.state = self.state.rng
        (self.folder / "config.toml").write_text(configuration.to_toml(config), "utf8")
        self.metrics = Metrics(self.folder / "metrics.jsonl", self.state.step)
        self.images = Images(
            self.checkpoint.config.vision.tiling, self.checkpoint.config.vision.rows_per_tile
        )
        self.counts: Counter[str] = Counter(self.state.counts)
        self.stopping = False
        # By this process and those that it continues, without those in a reader's count.
        self._discarded = self.state.discarded
        # Seconds that the newest publication took.
        self.publishing = 0.0
        self._begun = time.monotonic()
        self._steps_begun = self.state.step

    def _fresh(self, kind: str) -> State:
        return State(
            kind, uuid.uuid4().hex, cursor=Cursor(rank=self.config.data.rank, world=self.config.data.world)
        )

    def _optimizer(self) -> torch.optim.AdamW:
        o = self.config.optimizer
        unknown = [
            start
            for start in o.frozen
            if not any(name.startswith(start) for name, _ in self.policy.named_parameters())
        ]
        if unknown:
            raise TrainerError(f"optimizer.frozen: no parameter begins with {', '.join(unknown)}")
        for name, parameter in self.policy.named_parameters():
            if name.startswith(o.frozen):
                parameter.requires_grad_(False)
        trained = [parameter for parameter in self.policy.parameters() if parameter.requires_grad]
        # Matrices decay; norms, biases and the recurrence's own parameters do not.
        groups = [
            {
                "params": [parameter for parameter in trained if parameter.ndim > 1],
                "weight_decay": o.weight_decay,
            },
            {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=o.learning_rate, betas=(o.beta1, o.beta2), eps=o.epsilon)

    def reader(self, trainable: str) -> Reader:
        """A reader that follows the run from the state's cursor."""
        data = self.config.data
        return Reader(
            data.run_dir,
            data.choice(trainable),
            self.state.cursor,
            data.rank,
            data.world,
            data.verify,
            data.skip_expired,
        )

    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        o, step = self.config.optimizer, self.state.step
        warm = min(1.0, (step + 1) / o.warmup_steps) if o.warmup_steps else 1.0
        if o.decay == NONE:
            return o.learning_rate * warm
        share = min(1.0, step / self.config.run.steps_max)
        return (
            o.learning_rate * warm * (DECAY_FLOOR + (1 - DECAY_FLOOR) * 0.5 * (1 + math.cos(math.pi * share)))
        )

    def step(self, sequences: Items[Sequence], loss: Callable[[Batch], Loss]) -> dict[str, Any]:
        """Takes one step of the optimiser over all sequences; returns metrics of the loss, the gradient and
        the speed.

        Raises:
            TrainerError: when the gradient is not finite; the weights are as they were.
        """
        begun = time.monotonic()
        rate = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        metrics: Counter[str] = Counter()
        layout = padded if self.config.batch.layout == "padded" else packed
        tokens = computed = 0
        for part in split(sequences, self.config.batch.tokens_max):
            batch = layout(part, self.images)
            tokens, computed = tokens + batch.content_tokens, computed + batch.tokens
            batch = batch.to(self.config.run.device)
            if not len(batch.targets):
                continue
            found = loss(batch)
            found.total.backward()
            for name, value in found.metrics.items():
                metrics[name] += value  # type: ignore[assignment]
        norm = float(
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.optimizer.gradient_clip)
        )
        if not math.isfinite(norm):
            names = sorted({sequence.group_id for sequence in sequences})
            raise TrainerError(
                f"step {self.state.step + 1}: the gradient is not finite; groups {', '.join(names)}"
            )
        self.optimizer.step()
        self.state.step += 1
        seconds = time.monotonic() - begun
        return {
            "step": self.state.step,
            "version": self.state.version,
            **metrics,
            "gradient/norm": norm,
            "learning_rate": rate,
            "tokens": tokens,
            "tokens_computed": computed,
            "seconds": seconds,
            "tokens_per_second": tokens / max(seconds, 1e-9),
        }

    def finish_step(self, reader: Reader, line: dict[str, Any]) -> None:
        """Writes the step's metrics; saves a checkpoint and publishes it where that is due."""
        self.images.forget()
        due = self.state.step % self.config.publish.every == 0 and bool(self.config.publish.command)
        if due:
            self.state.version += 1
        self.metrics.write(line)
        self._print_progress(line)
        last = self.state.step >= self.config.run.steps_max
        if due or last or self.state.step % self.config.run.checkpoint_every == 0:
            self.save(reader)
        if due:
            self.publish()

    def discard(self, reader: Reader, group: Group, why: str) -> None:
        """Passes a group that no step is made of."""
        self.counts[f"{LEFT_OUT}{why}"] += 1
        self._discarded += group.row.valid
        reader.done(group)

    def discarded(self, reader: Reader) -> int:
        """Scored trajectories since training began that the farm collected and no step was made of."""
        return self._discarded + reader.discarded

    def left_out(self, reader: Reader) -> str:
        """How many groups were read and left out since training began, and why."""
        counts = self.counts + reader.counts
        reasons = {
            name.removeprefix(LEFT_OUT): count for name, count in counts.items() if name.startswith(LEFT_OUT)
        }
        why = ", ".join(
            f"{name} {count}" for name, count in sorted(reasons.items(), key=lambda one: (-one[1], one[0]))
        )
        return f"{counts['groups']} groups were read and {sum(reasons.values())} left out" + (
            f" ({why})" if why else ""
        )

    def save(self, reader: Reader) -> None:
        """Saves a checkpoint with its cursor."""
        target = self.checkpoints / f"{self.state.step:08}"
        if target.exists():
            return
        self.state.cursor = reader.cursor()
        self.state.rng = dict(self.rng.bit_generator.state)
        self.state.counts = dict(self.counts + reader.counts + self.images.counts)
        self.state.discarded = self.discarded(reader)
        saved.save(self.checkpoints, self.checkpoint, self.optimizer, self.state)
        saved.prune(self.checkpoints, self.config.run.checkpoints_kept, self.config.publish.keep_every)
        report.write(self.folder / "report.html", read(self.folder / "metrics.jsonl"), str(self.folder))

    def publish(self) -> None:
        """Publishes the newest checkpoint under its version. After a crash it is published again: it may not
        have been taken."""
        newest = saved.newest(self.checkpoints)
        if newest is None or not self.config.publish.command:
            return
        p = self.config.publish
        state = saved.read_state(newest)
        publication = f"{state.training}-{state.step:08}"
        taken = publish(
            p.command, newest / "model", state.version, publication, p.timeout_seconds, p.attempts
        )
        if taken.version < self.state.published:
            raise PublishError(
                f"the weights of step {state.step} became version {taken.version}, after version "
                f"{self.state.published}"
            )
        # The farm numbers the versions and tags its records with these numbers, so staleness is counted in
        # them.
        self.state.version = self.state.published = taken.version
        self.publishing = taken.seconds
        print(f"version {taken.version} published in {taken.seconds:.1f} s", file=sys.stderr, flush=True)

    def begin(self, reader: Reader) -> None:
        """Publishes what a killed training may have left unpublished, or the first weights with
        `publish.first`."""
        if self.state.step == 0 and self.config.publish.first and saved.newest(self.checkpoints) is None:
            self.save(reader)
            self.publish()
        elif self.state.version > 0:
            self.publish()

    def listen(self) -> None:
        """Makes SIGTERM and SIGINT end training after the current step, with a checkpoint."""

        def stop(_: int, __: FrameType | None) -> None:
            self.stopping = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)

    @property
    def is_over(self) -> bool:
        """Whether training ends before another step."""
        return self.stopping or self.state.step >= self.config.run.steps_max

    def end(self, reader: Reader) -> None:
        """Saves the last checkpoint and closes the metrics."""
        self.save(reader)
        self.metrics.close()

    def _print_progress(self, line: dict[str, Any]) -> None:
        done = self.state.step - self._steps_begun
        left = (self.config.run.steps_max - self.state.step) * (time.monotonic() - self._begun) / max(done, 1)
        parts = [f"step {self.state.step} of {self.config.run.steps_max}", f"version {self.state.version}"]
        for name, label in (
            ("reward/mean", "reward"),
            ("loss/policy", "loss"),
            ("loss/nll", "nll"),
            ("policy/entropy", "entropy"),
            ("staleness/mean", "staleness"),
        ):
            if name in line:
                parts.append(f"{label} {line[name]:.3f}")
        parts += [f"{line['tokens_per_second']:,.0f} tokens/s", f"{left / 60:.0f} min left at most"]
        print(", ".join(parts), file=sys.stderr, flush=True)


def default_folder(config: Config) -> Path:
    """Folder of the newest weights of a training."""
    newest = saved.newest(config.run.output_dir / "checkpoints")
    if newest is None:
        raise CheckpointError(f"{config.run.output_dir} has no checkpoint yet")
    return newest / "model"
