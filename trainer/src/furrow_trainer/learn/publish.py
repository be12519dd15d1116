"""Publishes a version of the weights to the farm that serves the policy, by a command such as `furrow
publish`."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path

from ..errors import PublishError

OUTPUT_BYTES_MAX = 4_000


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a publication."""

    version: int
    """The number in the command's reply; without one, the number that the weights were offered under."""
    seconds: float


def publish(
    command: Items[str], folder: Path, version: int, publication: str, timeout_seconds: float, attempts: int
) -> Published:
    """Runs the command with `{dir}`, `{version}` and `{id}` filled in until it succeeds.

    After a crash the same folder may be published again under the same id: taking it twice must change
    nothing. A command that prints a JSON object with a `version` reports the number of the weights; `furrow
    publish DIR --run RUN --id ID --json` does.

    Raises:
        PublishError: when it failed `attempts` times, with the end of its output.
    """
    filled = {"{dir}": str(folder.resolve()), "{version}": str(version), "{id}": publication}
    arguments = list(command)
    for name, value in filled.items():
        arguments = [part.replace(name, value) for part in arguments]
    begun = time.monotonic()
    failure = ""
    for attempt in range(attempts):
        if attempt:
            time.sleep(min(2.0**attempt, 30.0))
        try:
            done = subprocess.run(arguments, capture_output=True, timeout=timeout_seconds, check=False)
        except subprocess.TimeoutExpired:
            failure = f"the command took longer than {timeout_seconds:g} s"
            continue
        except OSError as error:
            raise PublishError(f"publish.command: {arguments[0]} cannot be started: {error}") from error
        if done.returncode == 0:
            return Published(_version(done.stdout, version), time.monotonic() - begun)
        output = (done.stderr or done.stdout)[-OUTPUT_BYTES_MAX:].decode("utf8", "replace").strip()
        failure = f"exit status {done.returncode}: {output}"
    raise PublishError(
        f"version {version} was not taken in {attempts} attempts; {' '.join(arguments)}: {failure}"
    )


def _version(output: bytes, offered: int) -> int:
    try:
        reply = json.loads(output)
    except ValueError:
        return offered
    number = reply.get("version") if isinstance(reply, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) else offered
