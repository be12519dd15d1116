"""A farm for benchmarks: `furrow run` with a simulated browser, in a directory of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ..errors import TrainerError

DRAIN_SECONDS = 120.0
CALL_SECONDS = 600.0
OUTPUT_BYTES = 2_000


class Farm:
    """One process with all roles, in `folder`; its output goes to `furrow.out` there.

    Args:
        folder: a new directory, or that of an earlier farm.
        furrow: path of the furrow program.
        job: the job file as TOML, without `[run]` and `[tasks]`.
        tasks: the number of tasks, and the most steps of each.
        arguments: further arguments of `furrow run`, such as `--simulate-browser 4000`.
    """

    def __init__(
        self, folder: Path, furrow: str, job: str, tasks: tuple[int, int], arguments: list[str]
    ) -> None:
        self.folder, self.furrow = folder, furrow
        self.run = folder / "run"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.toml").write_text(
            f'[run]\nname = "run"\noutput_dir = "."\n{job}{_tasks(folder, *tasks)}', "utf8"
        )
        self.arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Farm:
        command = [self.furrow, "run", str(self.folder / "job.toml"), *self.arguments]
        with (self.folder / "furrow.out").open("ab") as output:
            try:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=os.environ
                )
            except OSError as error:
                raise TrainerError(f"{self.furrow} cannot be started: {error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is None or self.has_ended():
            return
        self.process.send_signal(signal.SIGTERM if kind is None else signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(DRAIN_SECONDS)
        self.process.kill()
        self.process.wait()

    def has_ended(self) -> bool:
        """Whether the farm was started and has ended."""
        return self.process is not None and self.process.poll() is not None

    def check(self) -> None:
        """Raises a TrainerError with the end of the farm's output if the farm has ended."""
        if self.process is not None and self.has_ended():
            output = (self.folder / "furrow.out").read_bytes()[-OUTPUT_BYTES:].decode("utf8", "replace")
            raise TrainerError(f"the farm ended with status {self.process.returncode}; {output}")

    def wait(self, seconds: float) -> None:
        """Waits until the farm's run is over.

        Raises:
            TrainerError: when the run took longer than `seconds`, or failed.
        """
        assert self.process is not None
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise TrainerError(f"the farm was not done within {seconds:g} s") from error
        if status:
            self.check()

    def wait_for(self, path: Path, seconds: float) -> None:
        """Waits until the farm has written a file."""
        deadline = time.monotonic() + seconds
        while not path.exists():
            self.check()
            if time.monotonic() > deadline:
                raise TrainerError(f"the farm made no {path} within {seconds:g} s")
            time.sleep(0.05)

    def call(self, *arguments: str | Path) -> str:
        """Runs the furrow program to its end and returns its standard output."""
        return call(self.furrow, *arguments)


def call(furrow: str, *arguments: str | Path) -> str:
    """Runs the furrow program to its end and returns its standard output.

    Raises:
        TrainerError: when the program failed, with the end of its output.
    """
    command = [furrow, *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TrainerError(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        raise TrainerError(
            f"{' '.join(command)} ended with status {done.returncode}; "
            f"{(done.stderr or done.stdout)[-OUTPUT_BYTES:].strip()}"
        )
    return done.stdout


def _tasks(folder: Path, count: int, steps_max: int) -> str:
    suite = folder / "simulated"
    suite.mkdir(exist_ok=True)
    (suite / "page.html").write_text("<title>simulated</title>", "utf8")
    score = {"kind": "probe", "pointer": "/reward"}
    tasks = [
        {
            "task_id": f"simulated-{index}",
            "start_url": "http://simulated.test/page.html",
            "max_steps": steps_max,
            "time_limit_ms": 600_000,
            "score": score,
        }
        for index in range(count)
    ]
    (suite / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), "utf8")
    return f'[[tasks.source]]\nsuite = "simulated"\npath = {json.dumps(str(suite.resolve()))}\n'
