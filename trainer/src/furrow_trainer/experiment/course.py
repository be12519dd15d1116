"""The stages of the experiment, in order. Each stage runs once, and a course that was stopped continues where
it was.

random/            a random checkpoint of the whole architecture
demonstrations/    a run of the scripted policy
warm/              the supervised training on the demonstrations
exam-start/        the warm start on held-out seeds
learned/attempts   the farm's run; permuted/ is the same for the control
learned/training   the trainer that follows the run and publishes into it
exam-*/            both arms on the same held-out seeds, halfway and at the end
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from .. import config as configuration
from ..errors import ConfigError, TrainerError
from ..learn import saved

JOBS = ("demonstrate.toml", "attempt.toml", "examine.toml", "sft.toml", "rl.toml")
# Name of an arm, and whether its rewards are permuted.
ARMS = {"learned": False, "permuted": True}
START_SECONDS = 120.0
DRAIN_SECONDS = 180.0
OUTPUT_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class Course:
    """An experiment in a directory of its own.

    Args:
        folder: holds the five files of `JOBS`.
        out: absolute path of the folder of all results.
        furrow: path of the furrow program.
        size, seed: those of the random checkpoint.
        overrides: `key=value` for every job, such as the browser's path.
    """

    folder: Path
    out: Path
    furrow: str
    size: str = "mini"
    seed: int = 7
    overrides: tuple[str, ...] = ()

    def run(self) -> None:
        """Runs all stages.

        Raises:
            ConfigError: when a file of the folder is missing, or two of them contradict each other.
            TrainerError: when a stage failed, with the end of its output.
        """
        self.check()
        self.out.mkdir(parents=True, exist_ok=True)
        self.stage("random", self.make_random)
        self.stage("demonstrations", lambda: self.collect("demonstrate.toml", "demonstrations"))
        self.stage("warm", self.warm)
        self.stage("exam-start", lambda: self.examine("start", self.start))
        for arm, permute in ARMS.items():
            self.stage(arm, partial(self.arm, arm, permute))
        for arm in ARMS:
            for version in self.examined:
                name = f"{arm}-{version:02}"
                self.stage(f"exam-{name}", partial(self.examine, name, self.weights(arm, version)))

    def check(self) -> None:
        """Checks that all files exist and agree with one another."""
        missing = [name for name in JOBS if not (self.folder / name).is_file()]
        if missing:
            raise ConfigError(f"{self.folder} has no {', '.join(missing)}; it must hold {', '.join(JOBS)}")
        rl = configuration.read(self.folder / "rl.toml")
        configuration.read(self.folder / "sft.toml")
        if rl.publish.every != 1 or rl.rl.passes != 1:
            raise ConfigError("rl.toml: publish.every and rl.passes must be 1, so that a step is a version")
        if rl.rl.permute_rewards:
            raise ConfigError("rl.toml: rl.permute_rewards is set by the arm; leave it out")

    @property
    def versions(self) -> int:
        """Versions that each arm publishes."""
        return configuration.read(self.folder / "rl.toml").run.steps_max

    @property
    def examined(self) -> tuple[int, int]:
        """Versions that are examined: the middle one and the last."""
        return self.versions // 2, self.versions

    @property
    def start(self) -> Path:
        """Checkpoint that both arms begin with."""
        checkpoint = saved.newest(self.out / "warm" / "checkpoints")
        if checkpoint is None:
            raise TrainerError(f"{self.out / 'warm'} has no checkpoint")
        return checkpoint / "model"

    def weights(self, arm: str, version: int) -> Path:
        """Checkpoint of a version that an arm published."""
        return self.out / arm / "training" / "checkpoints" / f"{version:08}" / "model"

    def stage(self, name: str, work: Callable[[], None]) -> None:
        """Runs a stage unless it is done, and records its seconds, summed over the times that it was
        continued."""
        folder = self.out / "stages"
        folder.mkdir(exist_ok=True)
        mark, before = folder / f"{name}.json", 0.0
        if mark.exists():
            state = json.loads(mark.read_text("utf8"))
            if state["done"]:
                return
            before = float(state["seconds"])
        print(f"{name}", file=sys.stderr, flush=True)
        begun, done = time.monotonic(), False
        try:
            work()
            done = True
        finally:
            seconds = before + time.monotonic() - begun
            draft = mark.with_suffix(".tmp")
            draft.write_text(json.dumps({"done": done, "seconds": round(seconds, 2)}) + "\n", "utf8")
            os.replace(draft, mark)
        print(f"{name}: {seconds:.0f} s", file=sys.stderr, flush=True)

    # ---- stages ----

    def make_random(self) -> None:
        """Writes an untrained checkpoint."""
        shutil.rmtree(self.out / "random", ignore_errors=True)
        self.call(
            [
                self.furrow,
                "checkpoint",
                "init",
                "--size",
                self.size,
                "--seed",
                str(self.seed),
                str(self.out / "random"),
            ],
            "random",
        )

    def collect(self, job: str, name: str, *settings: str) -> None:
        """Collects a whole run of a job."""
        self.call(self.job(job, self.out, name, *settings), name)

    def warm(self) -> None:
        """Trains on the demonstrations."""
        out = self.out
        settings = [
            f"run.output_dir={out / 'warm'}",
            f"run.checkpoint={out / 'random'}",
            f"data.run_dir={out / 'demonstrations'}",
        ]
        self.call(self.trainer("sft", *settings), "warm")

    def examine(self, name: str, weights: Path) -> None:
        """Collects attempts on the held-out seeds, the same for all checkpoints."""
        self.collect("examine.toml", f"exam-{name}", f"policy.checkpoint={weights}")

    def arm(self, name: str, permute: bool) -> None:
        """Runs farm and trainer at once, until the trainer has published its last version."""
        folder = self.out / name
        folder.mkdir(exist_ok=True)
        run = folder / "attempts"
        publish = [self.furrow, "publish", "{dir}", "--run", str(run), "--id", "{id}", "--json"]
        with (folder / "farm.log").open("ab") as output:
            farm = self.begin(
                self.job("attempt.toml", folder, "attempts", f"policy.checkpoint={self.start}"), output
            )
            trainer = None
            try:
                self.wait_for(run / "data", farm, folder / "farm.log")
                settings = [
                    f"run.output_dir={folder / 'training'}",
                    f"run.checkpoint={self.start}",
                    f"data.run_dir={run}",
                ]
                how = [f"rl.permute_rewards={str(permute).lower()}", f"publish.keep_every={self.examined[0]}"]
                trainer = self.begin(
                    self.trainer("rl", *settings, *how, f"publish.command={json.dumps(publish)}"), None
                )
                while trainer.poll() is None:
                    if farm.poll() is not None:
                        raise TrainerError(
                            f"{name}: the farm ended before the trainer; {_end_of(folder / 'farm.log')}"
                        )
                    time.sleep(0.5)
                if trainer.returncode:
                    raise TrainerError(f"{name}: the trainer ended with status {trainer.returncode}")
                if not self.weights(name, self.versions).is_dir():
                    raise TrainerError(f"{name}: the trainer ended before version {self.versions}")
            finally:
                ends = [_ended(process) for process in (trainer, farm) if process is not None]
            if ends[-1]:
                raise TrainerError(
                    f"{name}: the farm ended with status {ends[-1]}; {_end_of(folder / 'farm.log')}"
                )

    # ---- processes ----

    def job(self, file: str, folder: Path, name: str, *settings: str) -> list[str]:
        """Command of `furrow run` with a job file; a run that was begun is resumed."""
        every = [f"run.output_dir={folder}", f"run.name={name}", *settings, *self.overrides]
        resume = ["--resume"] if (folder / name).exists() else []
        return [
            self.furrow,
            "run",
            str(self.folder / file),
            *resume,
            *(part for setting in every for part in ("--set", setting)),
        ]

    def trainer(self, kind: str, *settings: str) -> list[str]:
        """Command of a training in a process of its own; a training that was begun is resumed."""
        return [
            sys.executable, "-m", "furrow_trainer", kind, str(self.folder / f"{kind}.toml"), "--resume",
            *(part for setting in settings for part in ("--set", setting)),
        ]  # fmt: skip

    def call(self, command: list[str], name: str) -> None:
        """Runs a command to its end; its output goes to a file."""
        path = self.out / "stages" / f"{name}.log"
        with path.open("ab") as output:
            process = self.begin(command, output)
            try:
                status = process.wait()
            finally:
                _ended(process)
        if status:
            raise TrainerError(f"{name}: {command[0]} ended with status {status}; {_end_of(path)}")

    def begin(self, command: list[str], output: IO[bytes] | None) -> subprocess.Popen[bytes]:
        """Starts a process with its output in a file, or with this process's own output where there is
        none."""
        environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        try:
            return subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        except OSError as error:
            raise TrainerError(f"{command[0]} cannot be started: {error}") from error

    def wait_for(self, path: Path, farm: subprocess.Popen[bytes], log: Path) -> None:
        """Waits until the farm has written a file."""
        deadline = time.monotonic() + START_SECONDS
        while not path.exists():
            if farm.poll() is not None or time.monotonic() > deadline:
                raise TrainerError(f"the farm made no {path} within {START_SECONDS:g} s; {_end_of(log)}")
            time.sleep(0.2)


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Ends a process if it runs; returns its exit status."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def _end_of(path: Path) -> str:
    return path.read_bytes()[-OUTPUT_BYTES:].decode("utf8", "replace").strip() if path.exists() else ""
