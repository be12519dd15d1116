"""The trainer's TOML file: every key with its default, unknown keys and values that cannot be used named all at once."""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from .data import Choice
from .errors import ConfigError
from .learn.advantage import KINDS
from .learn.demonstration import CONTEXTS
from .learn.loss import ALGORITHMS, NORMALISERS

CONFIG_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class RunSection:
    """`[run]`"""

    output_dir: Path = Path("training")
    """Where checkpoints, metrics and the report go; never shared by two trainings."""
    checkpoint: Path = Path()
    """What training begins with: a checkpoint directory in the Hugging Face layout."""
    seed: int = 0
    device: str = "cpu"
    threads: int = 1
    """Cores that PyTorch computes on; a farm beside it wants some."""
    steps_max: int = 1000
    """Steps of the optimiser."""
    checkpoint_every: int = 1
    """Steps between checkpoints; the last step always writes one."""
    checkpoints_kept: int = 3
    """Newest ones; older ones are removed. Those named by `publish.keep_every` stay."""


@dataclass(frozen=True, slots=True)
class DataSection:
    """`[data]`"""

    run_dir: Path = Path()
    """The run that is followed."""
    wait_seconds: float = 600.0
    """Training ends when nothing new was committed for so long; 0: what is there now, and no more."""
    splits: tuple[str, ...] = ("train",)
    suites: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    policy_kinds: tuple[str, ...] = ()
    reward_min: float | None = None
    """Trajectories below are left out (demonstrations that failed)."""
    rank: int = 0
    world: int = 1
    """Readers that share the run; each takes the groups whose hashes are its own."""
    verify: bool = True
    """Hold each file against the manifest's SHA-256."""

    def choice(self, trainable: str) -> Choice:
        """As the reader wants it."""
        return Choice(
            trainable=trainable, splits=frozenset(self.splits), suites=frozenset(self.suites), tasks=frozenset(self.tasks),
            policy_kinds=frozenset(self.policy_kinds), reward_min=self.reward_min,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BatchSection:
    """`[batch]`"""

    layout: str = "padded"
    """`padded` runs a beginning that sequences share once; `packed` puts them into one row."""
    tokens_max: int = 8192
    """Tokens of one forward pass, padding included; more make more passes a step."""
    recompute: bool = False
    """Keep only each layer's input and compute the rest again for the gradients: less memory, a third more time."""


@dataclass(frozen=True, slots=True)
class OptimizerSection:
    """`[optimizer]`: AdamW."""

    learning_rate: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    warmup_steps: int = 0
    decay: str = "none"
    """`none`, or `cosine`: to a tenth at `run.steps_max`."""
    gradient_clip: float = 1.0
    """Largest norm of all gradients together."""
    frozen: tuple[str, ...] = ()
    """Beginnings of names of parameters that stay as they are, such as `vision_model.`."""


@dataclass(frozen=True, slots=True)
class SftSection:
    """`[sft]`"""

    epochs: int = 1
    trajectories_per_step: int = 16
    context: str = "last_image"
    """How prompts are laid out; the job that will use the weights must name the same."""
    dropped: tuple[str, ...] = ()
    """Fields of a reply that are emptied, such as `note`, `thought`, `element`."""
    choices_only: bool = False
    """Learn only ids that are a choice under the grammar, not those that follow from it."""
    stop_below: float = 0.0
    """Training ends when the mean negative log-likelihood a learned token of the last 20 steps is below; 0: not before its steps or epochs.
    For a warm start that shall be middling: when a small model sees how a task goes depends on the order of the data."""
    once_per_observation: bool = True
    """Attempts of a group that did the same on the same screenshot count once: scripted siblings are copies."""


@dataclass(frozen=True, slots=True)
class RlSection:
    """`[rl]`"""

    algorithm: str = "grpo"
    advantage: str = "group_mean"
    """`grpo`, `rloo`, `group_mean`, or `running_mean` (a baseline a task, for attempts without siblings)."""
    groups_per_step: int = 8
    passes: int = 1
    """Steps of the optimiser over the same groups."""
    max_staleness: int = 4
    """Versions between the oldest weights that wrote any of a trajectory and those being trained; older ones are left out, and counted."""
    skip_zero_variance: bool = True
    """Groups whose rewards are all alike teach nothing by themselves; with an entropy or KL term they may be kept."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio_cap: float = 5.0
    entropy: float = 0.0
    kl: float = 0.0
    """Weight of the divergence from the checkpoint that training began with."""
    normaliser: str = "tokens"
    constant: float = 100.0
    """Tokens a trajectory is divided by under `normaliser = "constant"`."""
    permute_rewards: bool = False
    """The control of an experiment: rewards are dealt out at random over all attempts of a step. It must not learn."""
    drop_unlisted: bool = False
    """Leave out draws whose allowed ids are not listed, instead of training on the whole vocabulary's log-probability."""


@dataclass(frozen=True, slots=True)
class PublishSection:
    """`[publish]`"""

    command: tuple[str, ...] = ()
    """Run after each version, such as `["furrow", "publish", "{dir}", "--run", "RUN", "--id", "{id}", "--json"]`; empty: nothing is published."""
    every: int = 1
    """Steps of the optimiser a version."""
    timeout_seconds: float = 300.0
    attempts: int = 5
    discarded: tuple[str, ...] = ()
    """Run when more trajectories were discarded, and now and then while training waits, such as
    `["furrow", "discarded", "{count}", "--run", "RUN"]`; it must not fail training. Empty: that very command, where `command` is a
    `furrow publish` with `--run` or `--coordinator`, else nothing is reported. A farm with `limits.trajectories_per_version` needs it."""
    keep_every: int = 0
    """Every so many versions a checkpoint is kept for good; 0: none."""
    first: bool = False
    """Publish the first checkpoint before the first step."""


@dataclass(frozen=True, slots=True)
class Config:
    """The whole file."""

    run: RunSection = field(default_factory=RunSection)
    data: DataSection = field(default_factory=DataSection)
    batch: BatchSection = field(default_factory=BatchSection)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    sft: SftSection = field(default_factory=SftSection)
    rl: RlSection = field(default_factory=RlSection)
    publish: PublishSection = field(default_factory=PublishSection)


def read(path: Path, overrides: list[str] | None = None) -> Config:
    """Reads a file; paths in it are relative to it. Overrides are `section.key=value`, the value as TOML or a bare word.

    Raises:
        ConfigError: naming every problem.
    """
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise ConfigError(f"{path} has more than {CONFIG_BYTES_MAX} bytes")
        raw = tomllib.loads(path.read_text("utf8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    for override in overrides or []:
        _override(raw, override)
    return check(raw, path.parent)


def check(raw: dict[str, Any], base: Path = Path()) -> Config:
    """Of a decoded file."""
    problems: list[str] = []
    sections = {}
    known = typing.get_type_hints(Config)
    for name, values in raw.items():
        if name not in known:
            problems.append(f"{name}: there is no such section; use {', '.join(known)}")
        elif not isinstance(values, dict):
            problems.append(f"{name}: is no section")
        else:
            sections[name] = _section(known[name], name, values, base, problems)
    config = Config(**{name: section for name, section in sections.items() if section is not None})
    problems += _problems(config)
    if problems:
        raise ConfigError("\n".join(problems))
    return config


def to_toml(config: Config) -> str:
    """The resolved file: every key, defaults included."""
    lines = []
    for section in dataclasses.fields(config):
        lines.append(f"[{section.name}]")
        values = getattr(config, section.name)
        for key in dataclasses.fields(values):
            value = getattr(values, key.name)
            lines.append(f"{key.name} = {_toml(value)}" if value is not None else f"# {key.name} is not set")
        lines.append("")
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


S = TypeVar("S")


def _section(kind: type[S], name: str, values: dict[str, Any], base: Path, problems: list[str]) -> S | None:
    hints = typing.get_type_hints(kind)
    good: dict[str, Any] = {}
    for key, value in values.items():
        if key not in hints:
            problems.append(f"{name}.{key}: there is no such key; use {', '.join(hints)}")
            continue
        try:
            good[key] = _value(hints[key], value, base)
        except TypeError as error:
            problems.append(f"{name}.{key}: {value!r}; {error}")
    return kind(**good)


def _value(hint: Any, value: Any, base: Path) -> Any:
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    if hint is Path and isinstance(value, str):
        return base / value
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if typing.get_origin(hint) is tuple:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise TypeError("use a list of strings")
    if type(value) is not hint:
        words = {
            int: "a whole number",
            float: "a number",
            str: "a string",
            bool: "true or false",
            Path: "a path",
        }
        raise TypeError(f"use {words[hint]}")
    return value


def _problems(config: Config) -> list[str]:
    run, data, rl, sft = config.run, config.data, config.rl, config.sft
    rules: list[tuple[bool, str]] = [
        (run.threads >= 1, f"run.threads: {run.threads}; use 1 or more"),
        (run.steps_max >= 1, f"run.steps_max: {run.steps_max}; use 1 or more"),
        (run.checkpoint_every >= 1, f"run.checkpoint_every: {run.checkpoint_every}; use 1 or more"),
        (run.checkpoints_kept >= 1, f"run.checkpoints_kept: {run.checkpoints_kept}; use 1 or more"),
        (data.wait_seconds >= 0, f"data.wait_seconds: {data.wait_seconds}; use 0 or more"),
        (0 <= data.rank < data.world, f"data.rank: {data.rank}; use 0 to {data.world - 1}, below data.world"),
        (
            config.batch.layout in ("padded", "packed"),
            f"batch.layout: {config.batch.layout!r}; use 'padded' or 'packed'",
        ),
        (config.batch.tokens_max >= 1, f"batch.tokens_max: {config.batch.tokens_max}; use 1 or more"),
        (
            config.optimizer.learning_rate > 0,
            f"optimizer.learning_rate: {config.optimizer.learning_rate}; use more than 0",
        ),
        (
            config.optimizer.gradient_clip > 0,
            f"optimizer.gradient_clip: {config.optimizer.gradient_clip}; use more than 0",
        ),
        (
            config.optimizer.decay in ("none", "cosine"),
            f"optimizer.decay: {config.optimizer.decay!r}; use 'none' or 'cosine'",
        ),
        (sft.context in CONTEXTS, f"sft.context: {sft.context!r}; use one of {', '.join(CONTEXTS)}"),
        (sft.epochs >= 1, f"sft.epochs: {sft.epochs}; use 1 or more"),
        (sft.stop_below >= 0, f"sft.stop_below: {sft.stop_below}; use 0 or more"),
        (
            sft.trajectories_per_step >= 1,
            f"sft.trajectories_per_step: {sft.trajectories_per_step}; use 1 or more",
        ),
        (rl.algorithm in ALGORITHMS, f"rl.algorithm: {rl.algorithm!r}; use one of {', '.join(ALGORITHMS)}"),
        (rl.advantage in KINDS, f"rl.advantage: {rl.advantage!r}; use one of {', '.join(KINDS)}"),
        (
            rl.normaliser in NORMALISERS,
            f"rl.normaliser: {rl.normaliser!r}; use one of {', '.join(NORMALISERS)}",
        ),
        (rl.groups_per_step >= 1, f"rl.groups_per_step: {rl.groups_per_step}; use 1 or more"),
        (rl.passes >= 1, f"rl.passes: {rl.passes}; use 1 or more"),
        (rl.max_staleness >= 0, f"rl.max_staleness: {rl.max_staleness}; use 0 or more"),
        (0 <= rl.clip_low < 1, f"rl.clip_low: {rl.clip_low}; use 0 to 1"),
        (rl.clip_high >= 0, f"rl.clip_high: {rl.clip_high}; use 0 or more"),
        (rl.ratio_cap >= 1, f"rl.ratio_cap: {rl.ratio_cap}; use 1 or more"),
        (rl.constant > 0, f"rl.constant: {rl.constant}; use more than 0"),
        (config.publish.every >= 1, f"publish.every: {config.publish.every}; use 1 or more"),
        (
            not config.publish.discarded or any("{count}" in part for part in config.publish.discarded),
            f"publish.discarded: {list(config.publish.discarded)}; one of its arguments must hold {{count}}",
        ),
        (config.publish.attempts >= 1, f"publish.attempts: {config.publish.attempts}; use 1 or more"),
    ]
    return [text for holds, text in rules if not holds]


def _override(raw: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not equals or not dot:
        raise ConfigError(f"{override!r} is no override; write section.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    raw.setdefault(section, {})[name] = value
