"""The trainer's TOML file: every key with its default. An error names all unknown keys and unusable values at
once."""

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
from .learn.objective import ALGORITHMS, NORMALISERS

CONFIG_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class RunSection:
    """`[run]`"""

    output_dir: Path = Path("training")
    """Folder of checkpoints, metrics and the report; two trainings must not share one."""
    checkpoint: Path = Path()
    """Checkpoint directory, in the Hugging Face layout, that training begins with."""
    seed: int = 0
    device: str = "cpu"
    threads: int = 1
    """Threads that PyTorch computes with; leave cores for a farm on the same machine."""
    steps_max: int = 1000
    """Steps of the optimiser."""
    checkpoint_every: int = 1
    """Steps between checkpoints; the last step always writes one."""
    checkpoints_kept: int = 3
    """Newest checkpoints that stay; older ones are removed, but for those that `publish.keep_every` keeps."""


@dataclass(frozen=True, slots=True)
class DataSection:
    """`[data]`"""

    run_dir: Path = Path()
    """Directory of the run to follow."""
    wait_seconds: float = 600.0
    """Training ends when nothing new was committed for this long; 0: only what is there now is read."""
    splits: tuple[str, ...] = ("train",)
    suites: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    policy_kinds: tuple[str, ...] = ()
    reward_min: float | None = None
    """Trajectories with a lower reward are left out, such as demonstrations that failed."""
    rank: int = 0
    world: int = 1
    """Readers that share the run; each takes the groups whose ids hash to its rank."""
    verify: bool = True
    """Compare each file with the manifest's SHA-256."""
    skip_expired: bool = False
    """Go on behind rows that the farm removed before they were read (`records.retention_bytes`,
    `records.retention_hours`), instead of ending with an error."""

    def choice(self, trainable: str) -> Choice:
        """The reader's form of it."""
        return Choice(
            trainable=trainable,
            splits=frozenset(self.splits),
            suites=frozenset(self.suites),
            tasks=frozenset(self.tasks),
            policy_kinds=frozenset(self.policy_kinds),
            reward_min=self.reward_min,
        )


@dataclass(frozen=True, slots=True)
class BatchSection:
    """`[batch]`"""

    layout: str = "padded"
    """`padded` runs a prefix that sequences share once; `packed` puts all sequences into one row."""
    tokens_max: int = 8192
    """Most tokens of one forward pass, padding included; a larger batch is split into several passes."""
    recompute: bool = False
    """Keep only each layer's input and compute the rest again for the gradients: less memory, a third more
    time."""


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
    """Prefixes of the names of parameters that are not trained, such as `vision_model.`."""


@dataclass(frozen=True, slots=True)
class SftSection:
    """`[sft]`"""

    epochs: int = 1
    trajectories_per_step: int = 16
    context: str = "last_image"
    """Context policy that lays out the prompts; the job that uses the weights must name the same."""
    dropped: tuple[str, ...] = ()
    """Fields of a reply that are emptied, such as `note`, `thought`, `element`."""
    choices_only: bool = False
    """Train only on ids that are a choice under the grammar, not on those that it forces."""
    stop_below: float = 0.0
    """Training ends when the mean negative log-likelihood per trained token over the last 20 steps is below
    this; 0: never before its steps or epochs end. For a warm start of medium success: how soon a small model
    learns a task depends on the order of the data."""
    once_per_observation: bool = True
    """Attempts of a group with the same actions on the same screenshots count once: scripted siblings are
    copies."""


@dataclass(frozen=True, slots=True)
class RlSection:
    """`[rl]`"""

    algorithm: str = "grpo"
    advantage: str = "group_mean"
    """`grpo`, `rloo`, `group_mean`, or `running_mean` (a baseline per task, for attempts without
    siblings)."""
    groups_per_step: int = 8
    passes: int = 1
    """Steps of the optimiser over the same groups."""
    max_staleness: int = 4
    """Most versions between the oldest weights that wrote any part of a trajectory and those being trained;
    staler ones are left out and counted."""
    skip_zero_variance: bool = True
    """Leave out groups whose rewards are all equal: their advantages are 0. With an entropy or KL term they
    may be kept."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio_cap: float = 5.0
    entropy: float = 0.0
    kl: float = 0.0
    """Weight of the divergence from the checkpoint that training began with."""
    normaliser: str = "tokens"
    constant: float = 100.0
    """Number of tokens that each trajectory is divided by under `normaliser = "constant"`."""
    permute_rewards: bool = False
    """The control of an experiment: rewards are permuted at random over all attempts of a step. It must not
    learn."""
    drop_unlisted: bool = False
    """Leave out sampled tokens whose allowed ids are not listed, instead of training on the whole
    vocabulary's log-probability."""


@dataclass(frozen=True, slots=True)
class PublishSection:
    """`[publish]`"""

    command: tuple[str, ...] = ()
    """Command that runs after each version, such as `["furrow", "publish", "{dir}", "--run", "RUN", "--id",
    "{id}", "--json"]`; empty: nothing is published."""
    every: int = 1
    """Steps of the optimiser per version."""
    timeout_seconds: float = 300.0
    attempts: int = 5
    discarded: tuple[str, ...] = ()
    """Command that runs when more trajectories were discarded, and every few seconds while training waits,
    such as `["furrow", "discarded", "{count}", "--run", "RUN"]`. Its failure does not end training. Empty:
    that very command, where `command` is a `furrow publish` with `--run` or `--coordinator`, else nothing is
    reported. A farm with `limits.trajectories_per_version` needs it."""
    keep_every: int = 0
    """Every this many versions a checkpoint is never removed; 0: none is kept so."""
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
    """Reads a file; paths in it are relative to it. Overrides are `section.key=value`, the value as TOML or a
    bare string.

    Raises:
        ConfigError: with every problem of the file.
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
    """Checks a decoded file; `base` is the folder that its paths are relative to."""
    problems: list[str] = []
    sections = {}
    known = typing.get_type_hints(Config)
    for name, values in raw.items():
        if name not in known:
            problems.append(f"{name}: there is no such section; use {', '.join(known)}")
        elif not isinstance(values, dict):
            problems.append(f"{name}: {values!r}; write it as a section, [{name}]")
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
        expected = {
            int: "a whole number",
            float: "a number",
            str: "a string",
            bool: "true or false",
            Path: "a path",
        }
        raise TypeError(f"use {expected[hint]}")
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
        raise ConfigError(f"{override!r} is not an override; write section.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    raw.setdefault(section, {})[name] = value
