"""Reports how many trajectories were discarded, so that a farm that paces its admission by versions collects others in their place.

Admission counts every scored trajectory against what the newest version allows; a step of the trainer counts only groups that teach
something. Without the difference each would wait for the other in the end. The count is cumulative and repeating it changes nothing: a
coordinator that was restarted, and forgot it, hears it again while training waits.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence as Items

from ..config import PublishSection

# A restarted coordinator knows no count: its farm may stand still for as long as this.
REPEAT_SECONDS = 5.0
# A count is one call on a connection of its own.
TIMEOUT_SECONDS = 15.0
OUTPUT_BYTES_MAX = 1_000


class Reports:
    """Runs a command with `{count}`, `{rank}` and `{world}` filled in. Failing is no error: a finished data set has no coordinator.

    Args:
        command: as a list; empty: nothing is reported.
        rank: this reader's number.
        world: how many share the run; the coordinator adds their counts up.
        repeat_seconds: how often the same count is reported while training waits, and how soon one that was not taken is tried again.
        timeout_seconds: how long the command may take.
    """

    def __init__(
        self,
        command: Items[str],
        rank: int = 0,
        world: int = 1,
        repeat_seconds: float = REPEAT_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._command = tuple(command)
        self._names = {"{rank}": str(rank), "{world}": str(world)}
        self._repeat, self._timeout = repeat_seconds, timeout_seconds
        self._taken = 0
        self._failure: str | None = None
        self._next = time.monotonic()

    def report(self, count: int, repeat: bool = False) -> None:
        """Reports a count that changed. With `repeat` (training waits) also one that did not, now and then.

        A count that was not taken is tried again by a later call; why is printed once a reason.
        """
        if not self._command or not count:
            return
        is_early = time.monotonic() < self._next
        if count == self._taken and (is_early or not repeat):
            return
        if self._failure is not None and is_early:
            return
        failure = self._run(count)
        if failure is None:
            self._taken = count
        elif failure != self._failure:
            told = f"the coordinator was not told that {count} trajectories are discarded; it is tried again while training waits: {failure}"
            print(told, file=sys.stderr, flush=True)
        self._failure = failure
        self._next = time.monotonic() + self._repeat

    def _run(self, count: int) -> str | None:
        """Why it was not taken; `None` where it was."""
        arguments = list(self._command)
        for name, value in {"{count}": str(count), **self._names}.items():
            arguments = [part.replace(name, value) for part in arguments]
        try:
            done = subprocess.run(
                arguments, stdin=subprocess.DEVNULL, capture_output=True, timeout=self._timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return f"{arguments[0]} took longer than {self._timeout:g} s"
        except OSError as error:
            return f"publish.discarded: {arguments[0]} cannot be started: {error}"
        if done.returncode == 0:
            return None
        output = (done.stderr or done.stdout)[-OUTPUT_BYTES_MAX:].decode("utf8", "replace").strip()
        return f"{arguments[0]} ended with status {done.returncode}: {output}"


def command_for(publish: PublishSection) -> tuple[str, ...]:
    """`publish.discarded`, or `furrow discarded` to where `publish.command` publishes by `furrow publish`; empty: nothing is reported."""
    if publish.discarded or "publish" not in publish.command:
        return publish.discarded
    at = publish.command.index("publish")
    program, rest = publish.command[:at], publish.command[at + 1 :]
    for name in ("--run", "--coordinator"):
        place = _option(rest, name)
        if place is not None:
            return (
                *program,
                "discarded",
                "{count}",
                name,
                place,
                "--rank",
                "{rank}",
                "--world",
                "{world}",
                "--deadline",
                "1",
            )
    return ()


def _option(arguments: Items[str], name: str) -> str | None:
    for index, part in enumerate(arguments):
        if part == name and index + 1 < len(arguments):
            return arguments[index + 1]
        if part.startswith(f"{name}="):
            return part.removeprefix(f"{name}=")
    return None
