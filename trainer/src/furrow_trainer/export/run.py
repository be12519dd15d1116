"""Exports a run: chooses the format and the trajectories, follows the run, writes the output whole or not at
all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..data import Choice, Reader
from ..errors import ConfigError
from . import areal, lerobot, prime_rl, skyrl, slime, trl, verl
from .common import Exporter, Taken

EXPORTERS: dict[str, Exporter] = {
    "verl": verl.EXPORTER,
    "skyrl": skyrl.EXPORTER,
    "trl": trl.EXPORTER,
    "slime": slime.EXPORTER,
    "areal": areal.EXPORTER,
    "prime-rl": prime_rl.EXPORTER,
    "lerobot": lerobot.EXPORTER,
}


def export(name: str, run_dir: Path, output: Path, checkpoint: Path | None, settings: list[str]) -> int:
    """Writes a run's closed groups; returns the rows written.

    Raises:
        ConfigError: when the format or a setting is unknown, or the output exists.
        DataError: when rows cannot be read, or lack what the format needs.
    """
    if name not in EXPORTERS:
        raise ConfigError(f"{name!r} is not a format; use one of {', '.join(EXPORTERS)}")
    if output.exists():
        raise ConfigError(f"{output} exists; name a new file or directory")
    exporter = EXPORTERS[name]
    choice = _choice(exporter.trainable, settings)
    output.parent.mkdir(parents=True, exist_ok=True)
    draft = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    count = exporter.write(taken(Reader(run_dir, choice)), draft, checkpoint)
    os.rename(draft, output)
    return count


def taken(reader: Reader) -> Iterator[Taken]:
    """Every chosen trajectory of every closed group."""
    for group in reader.groups():
        for trajectory in group.trajectories:
            yield Taken(group, trajectory, reader.steps(trajectory))
        reader.done(group)


def _choice(trainable: str | None, settings: list[str]) -> Choice:
    known = {field.name for field in fields(Choice)} - {"trainable"}
    values: dict[str, Any] = {"trainable": trainable}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or key not in known:
            raise ConfigError(f"{setting!r}: use KEY=VALUE with one of {', '.join(sorted(known))}")
        try:
            if key == "reward_min":
                values[key] = float(text)
            elif key.startswith("version"):
                values[key] = int(text)
            else:
                values[key] = frozenset(text.split(","))
        except ValueError as error:
            raise ConfigError(f"{setting!r}: {error}") from error
    # Rows of an evaluation are exported only where `splits` names them, and never for training on rewards or
    # by imitation.
    values.setdefault("splits", frozenset({"train", "validation", "test"}))
    return Choice(**values)
