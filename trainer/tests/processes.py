"""A farm of real processes in a directory of its own: started, killed, started again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from furrow_trainer.data.manifest import Manifest
from furrow_trainer.errors import DataError
from paths import BROWSER, PROGRAM

ROLES = ("coordinator", "policy", "env")
OUTPUT_BYTES = 1_500


class Processes:
    """One process per role. With `screenshot_bytes` the browser is simulated, with screenshots of that size.

    Args:
        job: the job file as TOML, without `[run]`.
        screenshot_bytes: bytes of a simulated screenshot; `None`: a real browser.
    """

    def __init__(self, job: str, screenshot_bytes: int | None = None) -> None:
        # Browsers run as an ordinary user, who must be able to pass.
        self._kept = tempfile.TemporaryDirectory(prefix="furrow-trainer-", ignore_cleanup_errors=True)
        self.folder = Path(self._kept.name)
        self.folder.chmod(0o755)
        (self.folder / "job.toml").write_text(f'[run]\nname = "run"\noutput_dir = "."\n{job}', "utf8")
        self.run = self.folder / "run"
        self.screenshot_bytes = screenshot_bytes
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.started: Counter[str] = Counter()

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()
        if kind is not None:
            print(self.captured_output())
        self._kept.cleanup()

    def call(self, *arguments: str | Path) -> str:
        """Runs the furrow program to its end and returns its standard output."""
        done = subprocess.run(
            [str(PROGRAM), *map(str, arguments)], capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr, self.captured_output())
        return done.stdout

    def checkpoint(self, seed: int, size: str = "tiny") -> Path:
        """Random weights of a seed."""
        folder = self.folder / f"{size}-{seed}"
        if not folder.exists():
            self.call("checkpoint", "init", "--size", size, "--seed", str(seed), folder)
        return folder

    def start(self, *roles: str) -> None:
        """Starts roles, for the first time or again; a worker that is started again has another id."""
        for role in roles:
            self.started[role] += 1
            command = [str(PROGRAM), role, str(self.folder / "job.toml")]
            if role == "coordinator":
                command += ["--listen", self.address, *(["--resume"] if self.started[role] > 1 else [])]
            else:
                command += ["--coordinator", self.address, "--id", f"{role}-{self.started[role]}"]
            if role == "env" and self.screenshot_bytes is not None:
                command += ["--simulate-browser", str(self.screenshot_bytes)]
            if role != "policy" and BROWSER:
                command += ["--set", f"env.browser={BROWSER}"]
            self.begin(role, command)

    def begin(self, name: str, command: list[str], **environment: str) -> None:
        """Starts a process with a name."""
        with (self.folder / f"{name}.out").open("ab") as output:
            self.running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | environment,
                cwd=self.folder,
            )

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def publish(self, folder: Path, name: str) -> dict[str, Any]:
        """Makes a checkpoint the next version, and waits until every policy worker runs it."""
        reply: dict[str, Any] = json.loads(
            self.call("publish", folder, "--run", self.run, "--id", name, "--json")
        )
        return reply

    def wait(self, what: str, reached: Callable[[], bool], seconds: float) -> None:
        """Waits for a condition, while all processes run."""
        deadline = time.monotonic() + seconds
        while not reached():
            dead = {
                name: process.returncode
                for name, process in self.running.items()
                if process.poll() is not None
            }
            assert not dead, f"{dead} ended before {what}\n{self.captured_output()}"
            assert time.monotonic() < deadline, f"not {what} within {seconds:g} s\n{self.captured_output()}"
            time.sleep(0.05)

    def rows(self, table: str) -> int:
        """Rows of a table that are committed."""
        with suppress(DataError):
            return sum(
                file.rows
                for commit in Manifest(self.run).read_all()
                if commit.op == "append"
                for file in commit.files
                if file.table == table
            )
        return 0

    def drain(self, seconds: float = 180) -> None:
        """SIGTERM: current work ends, its rows are committed, and every role exits with status 0."""
        for role in ("env", "coordinator", "policy"):
            process = self.running.pop(role)
            process.send_signal(signal.SIGTERM)
            assert process.wait(seconds) == 0, (
                f"{role} ended with {process.returncode}\n{self.captured_output()}"
            )

    def captured_output(self) -> str:
        """The end of what each process printed."""
        ends = {
            path.name: path.read_bytes()[-OUTPUT_BYTES:].decode("utf8", "replace")
            for path in sorted(self.folder.glob("*.out"))
        }
        return "\n".join(f"--- {name}\n{text}" for name, text in ends.items())


def simulated_tasks(folder: Path, count: int, steps_max: int) -> str:
    """A job's task section for a simulated browser."""
    suite = folder / "simulated"
    suite.mkdir(exist_ok=True)
    (suite / "page.html").write_text("<title>simulated</title>")
    tasks = [
        {
            "task_id": f"simulated-{index}",
            "start_url": "http://simulated.test/page.html",
            "max_steps": steps_max,
            "time_limit_ms": 60000,
            "score": {"kind": "probe", "pointer": "/reward"},
        }
        for index in range(count)
    ]
    (suite / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return f'[[tasks.source]]\nsuite = "simulated"\npath = "{suite}"\n'
