"""Reports how many trajectories were discarded, so that a farm that paces its admission by versions collects
others in their place.

Admission counts every scored trajectory against what the newest version allows; a step of the trainer counts
only groups that teach something. Without the difference each would finally wait for the other. The count is
cumulative, and repeating it changes nothing: a coordinator that was restarted, and lost it, receives it again
while training waits.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence as Items

from ..config import PublishSection

# A restarted coordinator has no count: its farm may stand still for this long.
REPEAT_SECONDS = 5.0
# A report is one call on a connection of its own.
TIMEOUT_SECONDS = 15.0
OUTPUT_BYTES_MAX = 1_000


class Reports:
    """Runs a command with `{count}`, `{rank}` and `{world}` filled in. Its failure is not an error: a
    finished data set has no coordinator.

    Args:
        command: program and arguments; empty: nothing is reported.
        rank: this reader's number.
        world: number of readers that share the run; the coordinator sums their counts.
        repeat_seconds: interval at which the same count is reported while training waits, and a failed report
            is retried.
        timeout_seconds: longest time that the command may take.
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
        """Reports a count that changed. With `repeat` (training waits), also reports an unchanged one, at
        intervals.

        A later call retries a report that failed; each new reason is printed once.
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
            print(
                f"the coordinator did not take the report of {count} discarded trajectories; it is retried "
                f"while training waits: {failure}",
                file=sys.stderr,
                flush=True,
            )
        self._failure = failure
        self._next = time.monotonic() + self._repeat

    def _run(self, count: int) -> str | None:
        """Runs the command; returns why it failed, `None` where it succeeded."""
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
    """`publish.discarded`, or `furrow discarded` to the run or coordinator of a `furrow publish` in
    `publish.command`; empty: nothing is reported."""
    if publish.discarded or "publish" not in publish.command:
        return publish.discarded
    at = publish.command.index("publish")
    program, rest = publish.command[:at], publish.command[at + 1 :]
    for name in ("--run", "--coordinator"):
        target = _option(rest, name)
        if target is not None:
            identity = _option(rest, "--identity")
            return (
                *program,
                "discarded",
                "{count}",
                name,
                target,
                *(("--identity", identity) if identity is not None else ()),
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
