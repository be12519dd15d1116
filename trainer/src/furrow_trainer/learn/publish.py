"""Hands a version of the weights to whoever serves the policy, by a command such as `furrow publish`."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence as Items
from pathlib import Path

from ..errors import PublishError

OUTPUT_BYTES_MAX = 4_000


def publish(command: Items[str], folder: Path, version: int, timeout_seconds: float, attempts: int) -> float:
    """Runs the command with `{dir}` and `{version}` filled in until it succeeds; returns the seconds it took.

    The same folder under the same version may be handed over again after a crash: taking it twice must change nothing.

    Raises:
        PublishError: when it failed `attempts` times, with the end of what it said.
    """
    arguments = [part.replace("{dir}", str(folder.resolve())).replace("{version}", str(version)) for part in command]
    begun = time.monotonic()
    said = ""
    for attempt in range(attempts):
        if attempt:
            time.sleep(min(2.0**attempt, 30.0))
        try:
            done = subprocess.run(arguments, capture_output=True, timeout=timeout_seconds, check=False)
        except subprocess.TimeoutExpired:
            said = f"it took longer than {timeout_seconds:g} s"
            continue
        except OSError as error:
            raise PublishError(f"publish.command: {arguments[0]} cannot be started: {error}") from error
        if done.returncode == 0:
            return time.monotonic() - begun
        output = (done.stderr or done.stdout)[-OUTPUT_BYTES_MAX:].decode("utf8", "replace").strip()
        said = f"exit status {done.returncode}: {output}"
    raise PublishError(f"version {version} was not taken in {attempts} attempts; {' '.join(arguments)}: {said}")
