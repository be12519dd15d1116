"""A farm of separate processes: a coordinator, an environment worker, a policy worker and a dashboard, each
in a session of its own, started, killed and found again by what the state file says of them."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from machine import Layout, alive, host_memory, send, spawn, tail, wait_for_end
from phases import PhaseFailed

ROLES = ("coordinator", "policy", "env", "dashboard")
FARM = ("coordinator", "policy", "env")
# Seconds from SIGTERM to SIGKILL. The policy worker gives up to 92 GB of pinned memory back before it has
# ended: at 2 GB/s 46 s, and the rest is for a machine that is slower.
LEAVE_SECONDS = {"env": 20.0, "policy": 90.0, "coordinator": 20.0}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Roles:
    """The processes of one cell. `state["roles"]` holds their identities, `state["counts"]` how often each
    was started."""

    def __init__(
        self, cell: str, job: pathlib.Path, layout: Layout, state: dict[str, Any], save: Callable[[], None]
    ) -> None:
        self.cell, self.job, self.layout, self.state, self.save = cell, job, layout, state, save
        state.setdefault("roles", {})
        state.setdefault("counts", {})

    @property
    def run(self) -> pathlib.Path:
        return self.layout.run(self.cell)

    def log(self, role: str) -> pathlib.Path:
        return self.layout.log(f"{self.cell}.{role}")

    def lives(self, role: str) -> bool:
        return alive(self.state["roles"].get(role))

    def all_live(self) -> bool:
        return all(self.lives(role) for role in FARM)

    def any_lives(self) -> bool:
        return any(self.lives(role) for role in ROLES)

    def name(self, role: str) -> str:
        """Of a worker as it was last started: a worker that starts again is another worker."""
        return f"{role}-{self.state['counts'].get(role, 0)}"

    def start(self, role: str) -> dict[str, Any]:
        """Starts a role; the coordinator goes on with what an earlier start of this run left."""
        counts = self.state["counts"]
        counts[role] = counts.get(role, 0) + 1
        # The same port after each start: workers know no other.
        address = f"127.0.0.1:{self.state.setdefault('port', free_port())}"
        furrow = str(self.layout.furrow)
        if role == "dashboard":
            command = [furrow, "dashboard", str(self.run), "--listen", "127.0.0.1:0"]
        elif role == "coordinator":
            command = [furrow, "coordinator", str(self.job), "--listen", address]
            if (self.run / "ledger.sqlite").is_file():
                command.append("--resume")
        else:
            command = [furrow, role, str(self.job), "--coordinator", address, "--id", self.name(role)]
        # What stands for no process yet: a supervisor that dies here leaves one that no state names, and
        # `stray` finds it by its job file.
        self.state["roles"][role] = {**spawn(command, self.log(role)), "at": time.time()}
        self.save()
        return self.state["roles"][role]

    def stray(self) -> list[int]:
        """Processes of this cell that the state does not name, found by the job file or run directory in
        their command line."""
        named = {known["pid"] for known in self.state["roles"].values()}
        marks = (str(self.job).encode(), str(self.run).encode())
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                arguments = path.read_bytes().split(b"\0")
            except OSError:
                continue
            roles = [b"coordinator", b"policy", b"env", b"dashboard"]
            if (
                int(path.parent.name) not in named
                and any(role in arguments[1:3] for role in roles)
                and any(mark in arguments for mark in marks)
            ):
                found.append(int(path.parent.name))
        return found

    def keep_alive(self, spare: dict[str, int] | None = None) -> list[str]:
        """Starts again what has died, and says what; more than ten deaths of a role are no farm.

        `spare`: how many more deaths of a role are made good here; it is counted down. Raises PhaseFailed at
        the next one, with the end of the role's log."""
        # One that ends at once has two seconds: a device gives its memory back in that time.
        now = time.time()
        died = [
            role
            for role in ROLES
            if role in self.state["roles"]
            and now > self.state["roles"][role]["at"] + 2
            and not self.lives(role)
        ]
        for role in died:
            is_spent = spare is not None and spare.get(role, 1) < 1
            if self.state["counts"][role] > 10 or is_spent:
                last = " | ".join(tail(self.log(role), 3))
                raise PhaseFailed(
                    f"the {role} ended {self.state['counts'][role]} times; its log ends: {last}"
                )
            note = f"the {role} ended by itself and was started again: {' | '.join(tail(self.log(role), 2))}"
            self.state.setdefault("notes", []).append(note)
            if spare is not None and role in spare:
                spare[role] -= 1
            self.start(role)
        return died

    def stop(self, seconds: float) -> dict[str, Any]:
        """Drains the run: the coordinator has `seconds` to take back what runs and to commit, then workers
        leave, with SIGTERM if need be; what is left LEAVE_SECONDS later is killed and named."""
        began = time.monotonic()
        outcome: dict[str, Any] = {}
        until = began + seconds
        known = self.state["roles"].get("coordinator")
        # Once: at a second signal it ends without committing.
        if alive(known) and self.state.get("drain_asked") != known:
            self.state["drain_asked"] = dict(known)
            self.save()
            send(known, signal.SIGTERM)
        if alive(known):
            outcome["coordinator_left"] = wait_for_end(
                self.state["roles"]["coordinator"], max(1.0, until - time.monotonic())
            )
        for role in ("env", "policy"):
            if not wait_for_end(self.state["roles"].get(role), min(15.0, max(1.0, until - time.monotonic()))):
                send(self.state["roles"][role], signal.SIGTERM)
        for role in ("env", "policy", "coordinator"):
            if not wait_for_end(self.state["roles"].get(role), LEAVE_SECONDS[role]):
                send(self.state["roles"][role], signal.SIGKILL)
                outcome.setdefault("killed", []).append(role)
                wait_for_end(self.state["roles"][role], 10)
        return outcome | {"seconds": time.monotonic() - began}

    def listens(self) -> bool:
        """Whether the coordinator takes calls."""
        try:
            with socket.create_connection(("127.0.0.1", self.state["port"]), timeout=1.0):
                return True
        except OSError:
            return False

    def stop_dashboard(self) -> None:
        if send(self.state["roles"].get("dashboard"), signal.SIGTERM) and not wait_for_end(
            self.state["roles"]["dashboard"], 5
        ):
            send(self.state["roles"]["dashboard"], signal.SIGKILL)

    def kill_all(self) -> None:
        """SIGKILL to every process of the cell, those that no state names included."""
        for role in ROLES:
            send(self.state["roles"].get(role), signal.SIGKILL)
        for pid in self.stray():
            send({"pid": pid, "start": _start(pid)}, signal.SIGKILL)

    def dashboard(self) -> str | None:
        """The address that the dashboard reported last."""
        found = re.findall(r"http://127\.0\.0\.1:\d+/", "\n".join(tail(self.log("dashboard"), 20)))
        return found[-1] if found else None

    def ask(self, path: str, seconds: float = 5.0) -> Any:
        """An answer of the dashboard; None where it gives none in time."""
        address = self.dashboard()
        if address is None:
            return None
        try:
            with urllib.request.urlopen(address + path, timeout=seconds) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return None

    def running(self) -> dict[str, int] | None:
        """Steps of each trajectory that is open, as the coordinator says; None where it does not answer. The
        dashboard asks it once a second."""
        answer = self.ask("api/sessions")
        if not answer or not answer.get("is_live"):
            return None
        return {row["trajectory_id"]: row["steps"] for row in answer["sessions"]}

    def memory(self) -> dict[str, Any]:
        """Resident bytes of the roles and of the browsers, and what the machine has left."""
        found: dict[str, Any] = dict(host_memory())
        for role in ROLES:
            known = self.state["roles"].get(role)
            if alive(known):
                found[f"{role}_bytes"] = _resident(known["pid"])
        browsers = [
            pid for pid in map(_number, pathlib.Path("/proc").iterdir()) if pid and "chrom" in _name(pid)
        ]
        found["browser_processes"] = len(browsers)
        # Resident, not proportional: pages that processes share count in each.
        found["browser_bytes"] = sum(map(_resident, browsers))
        return found


def _number(path: pathlib.Path) -> int | None:
    return int(path.name) if path.name.isdigit() else None


def _name(pid: int) -> str:
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def _resident(pid: int) -> int:
    try:
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except (OSError, IndexError, ValueError):
        return 0


def _start(pid: int) -> int:
    from machine import identity

    return (identity(pid) or {"start": -1})["start"]
