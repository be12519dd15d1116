"""What the farm's script needs of the machine: its folders, JSON files that are whole or absent, and
processes that are known by more than a number."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

ROOT_DEFAULT = "/var/tmp/furrow-gpu"
TREE = pathlib.Path(__file__).resolve().parents[2]


class Layout:
    """The folders below one root: FURROW_GPU_ROOT, else /var/tmp/furrow-gpu."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = pathlib.Path(root or os.environ.get("FURROW_GPU_ROOT") or ROOT_DEFAULT).absolute()
        self.furrow = self.root / "bin" / "furrow"
        self.bench = self.root / "gpu" / "furrow-bench"
        self.browser = self.root / "browser"
        self.site = self.root / "site"
        self.envs = self.root / "envs"
        self.checkpoints = self.root / "checkpoints"
        self.runs = self.root / "runs"
        self.states = self.root / "state"
        self.reports = self.root / "reports"

    def make(self) -> None:
        """Makes the folders that are written at run time; browsers run as another user, so that user must be
        able to pass."""
        for folder in (self.root, self.checkpoints, self.runs, self.states, self.reports):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)

    def state(self, cell: str) -> pathlib.Path:
        return self.states / f"{cell}.json"

    def log(self, name: str) -> pathlib.Path:
        return self.states / f"{name}.log"

    def run(self, cell: str) -> pathlib.Path:
        return self.runs / cell

    def report(self, cell: str, end: str = "report.json") -> pathlib.Path:
        return self.reports / f"{cell}-{end}"


def write_json(path: pathlib.Path, value: Any) -> None:
    """Writes a file that is always whole: a temporary name, fsync, rename."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with open(partial, "w") as file:
        json.dump(value, file, indent=1, sort_keys=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def read_json(path: pathlib.Path) -> Any:
    """The file's value; None where there is no such file or it is not JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def identity(pid: int) -> dict[str, int] | None:
    """A process as pid and start time in clock ticks, which no later process of that number shares; None
    where it has ended, zombies included."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold spaces; what follows it begins with the state, and the start time is
    # the 22nd field of all.
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else {"pid": pid, "start": int(fields[19])}


def alive(known: dict[str, Any] | None) -> bool:
    """Whether the very process that was written down still runs."""
    if not known:
        return False
    reap(known["pid"])
    now = identity(known["pid"])
    return now is not None and now["start"] == known["start"]


def reap(pid: int) -> None:
    """Takes the exit status of a child of ours, so that none stays a zombie; another's is left alone."""
    with contextlib.suppress(OSError):
        os.waitpid(pid, os.WNOHANG)


def send(known: dict[str, Any] | None, which: signal.Signals) -> bool:
    """Sends a signal to the process that was written down, if it still runs."""
    if known is None or not alive(known):
        return False
    try:
        os.kill(known["pid"], which)
    except ProcessLookupError:
        return False
    return True


def wait_for_end(known: dict[str, Any] | None, seconds: float) -> bool:
    """Waits until the process has ended; False where it has not by then."""
    until = time.monotonic() + seconds
    while alive(known):
        if time.monotonic() >= until:
            return False
        time.sleep(0.05)
    return True


def spawn(command: list[str], log: pathlib.Path, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Starts a process in a session of its own, so that it outlives the process that started it; its output
    is appended to `log`."""
    with open(log, "ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    return identity(child.pid) or {"pid": child.pid, "start": -1}


def detach(log: pathlib.Path, keep: tuple[int, ...] = ()) -> bool:
    """Forks twice: False in the caller, True in a process without terminal, in its own session, whose output
    goes to `log`.

    A command on the GPU machine ends with all processes of its session; this one is in another. `keep`:
    descriptors that stay open, such as a lock's."""
    sys.stdout.flush()
    sys.stderr.flush()
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number, target in ((0, nothing), (1, output), (2, output)):
        os.dup2(target, number)
    # A pipe of the caller that stays open here would keep the call from ending.
    for number in range(3, 256):
        if number not in keep:
            with contextlib.suppress(OSError):
                os.close(number)
    return True


def tail(path: pathlib.Path, lines: int, most: int = 64 << 10) -> list[str]:
    """The last lines of a text file, of at most `most` bytes of it."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []


def host_memory() -> dict[str, int]:
    """Bytes of this machine's memory: total, available."""
    found = {}
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            found[{"MemTotal": "total_bytes", "MemAvailable": "available_bytes"}[name]] = (
                int(rest.split()[0]) * 1024
            )
    return found


def gpu() -> dict[str, Any] | None:
    """What nvidia-smi says of the first GPU: name, memory in MiB, utilisation in percent, watts; None without
    one."""
    names = ("name", "memory.used", "memory.total", "utilization.gpu", "power.draw", "clocks.sm")
    try:
        output = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    values = [value.strip() for value in output.splitlines()[0].split(",")] if output.strip() else []
    return dict(zip(names, values, strict=True)) if len(values) == len(names) else None
