"""The phases in which the farm lives: ready, the measured window with a swap in its middle, the kill."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import cells
import sources
from commands import run
from machine import Layout, gpu, identity, read_json, send, tail, wait_for_end, write_json
from phases import PhaseFailed
from rates import WINDOW_LEAST
from roles import FARM, LEAVE_SECONDS, Roles

LOOK = 1.0
SAMPLE_EVERY = 10.0
# Phases that need no farm: --minutes is for the ones before them.
AFTER = ("drain", "verify", "logprobs", "recorded", "report")


class LivePhases:
    """A cell's farm while it runs. The state file keeps what was learned, for another start to go on."""

    def __init__(
        self, cell: cells.Cell, layout: Layout, state: dict[str, Any], options: dict[str, Any]
    ) -> None:
        self.cell, self.layout, self.state, self.options = cell, layout, state, options
        self.path = layout.state(cell.name)
        self.job = layout.states / f"{cell.name}.toml"
        self.roles = Roles(cell.name, self.job, layout, state, self.save)
        self.run_dir = layout.run(cell.name)
        self.sampled = 0.0
        self.ends_at = options.get("ends_at")

    def save(self) -> None:
        self.state["saved_at"] = time.time()
        write_json(self.path, self.state)

    # Helpers.

    def deadline(self) -> float:
        """When the phase that runs must have ended, seconds since the epoch. With --minutes what comes behind
        it has its time, too: a drain and a recovery take what the cell says."""
        entry = self.state["phases"][self.state["phase"]]
        ends = entry["began_at"] + entry["seconds_max"]
        if not self.ends_at or self.state["phase"] in AFTER:
            return ends
        later = self.cell.drain_seconds + (
            self.cell.recovery_seconds
            if self.state["phase"] != "kill" and "kill" not in self.options.get("without", ())
            else 0.0
        )
        return min(ends, self.ends_at - later)

    def furrow(
        self, arguments: list[str], seconds: float, fine: tuple[int, ...] = (0,)
    ) -> subprocess.CompletedProcess[str]:
        """Runs the program to its end. Raises PhaseFailed with its own message where it ends otherwise than
        with a status in `fine`."""
        return run([str(self.layout.furrow), *arguments], seconds, fine)

    def sample(self) -> None:
        """Keeps an eye on memory, and writes it beside the state."""
        if time.time() - self.sampled < SAMPLE_EVERY:
            return
        self.sampled = time.time()
        row = {"at": self.sampled, "phase": self.state.get("phase"), **self.roles.memory(), "gpu": gpu()}
        self.state["memory"] = row
        with open(self.layout.states / f"{self.cell.name}.samples.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        return sources.ledger(self.run_dir)

    def steps_now(self) -> tuple[int, dict[str, int]] | None:
        """Steps that the coordinator has made durable since the run began, and those of each open trajectory;
        None where it does not answer."""
        running = self.roles.running()
        if running is None:
            return None
        ended = sum(
            row["steps"] or 0
            for row in self.rows()
            if row["ended_at"] is not None and row["trajectory_id"] not in running
        )
        return ended + sum(running.values()), running

    def edge(self) -> tuple[int, dict[str, int]] | None:
        """The same for an edge of the window, asked for up to ten seconds."""
        until = time.time() + 10
        while (found := self.steps_now()) is None and time.time() < until:
            time.sleep(0.5)
        return found

    def watched(self, what: str, reached: Callable[[], bool]) -> None:
        """Waits, keeping the farm's processes alive, until `reached` or the phase's deadline. A policy worker
        that dies twice has no time for a third start: each one pins and reads all its memory again."""
        spare = {"policy": 1}
        while not reached():
            if time.time() > self.deadline():
                raise PhaseFailed(f"not {what} by the phase's deadline; {self.last_log_lines()}")
            self.state["restarts"] = self.state.get("restarts", 0) + len(self.roles.keep_alive(spare))
            self.sample()
            self.save()
            time.sleep(LOOK)

    def last_log_lines(self) -> str:
        """The last lines of the roles, for an error."""
        return " | ".join(f"{role}: {line}" for role in FARM for line in tail(self.roles.log(role), 2))

    # Phases.

    def ready(self) -> dict[str, Any]:
        """All sessions have an open trajectory, and the first trajectories of even age have ended."""
        began = time.time()
        opened: list[float] = []
        ended_before = sum(row["ended_at"] is not None for row in self.rows())
        # Behind a cut the ages of the sessions are what they are: nothing is gained by waiting for ends.
        wanted = (
            max(1, round(self.cell.warm_share * self.cell.sessions)) if not self.state.get("resumed") else 0
        )

        def reached() -> bool:
            rows = self.rows()
            # Those of a worker that was killed stay assigned until their leases end.
            worker = self.roles.name("env")
            busy = sum(row["state"] == "assigned" and row["env_worker"] == worker for row in rows)
            ended = sum(row["ended_at"] is not None for row in rows) - ended_before
            if busy >= self.cell.sessions and not opened:
                opened.append(time.time() - began)
            self.state["live"] = {"sessions_open": busy, "trajectories_ended": ended, "wanted": wanted}
            if not opened or ended < wanted:
                return False
            steps = self.steps_now()
            return steps is not None and steps[0] > 0

        self.watched(f"ready ({self.cell.sessions} sessions open, {wanted} trajectories ended)", reached)
        return {"all_open_seconds": opened[0], "ended_before_window": wanted}

    def window(self) -> dict[str, Any]:
        """The measured window: until 1.2 expected trajectory times have passed, or the time there is. A
        second version is swapped in at its middle."""
        mark = self.state.get("window") or {}
        if not mark.get("began_at"):
            first = self.edge()
            mark = {
                "began_at": time.time(),
                "open": first[1] if first else None,
                "restarts": self.state.get("restarts", 0),
                "resumed": self.state.get("resumed", 0),
            }
            mark["steps_began"] = first[0] if first else None
            self.state["window"] = mark
            self.save()
        elif self.state["starts"] > 1:
            self.state.setdefault("notes", []).append(
                f"start {self.state['starts']}: the farm outlived its supervisor, and the window went on"
            )
        ends_at = self.deadline()
        while True:
            now = time.time()
            done = self.steps_now()
            if done and mark["steps_began"] is None:
                # Edges without the open trajectories' steps are counted from the ledger alone.
                mark["steps_began"], mark["open"] = done[0], None
            rate = (
                (done[0] - mark["steps_began"]) / (now - mark["began_at"])
                if done and now > mark["began_at"] + 20
                else 0.0
            )
            least = WINDOW_LEAST * self.cell.steps * self.cell.sessions / rate if rate > 0 else None
            ends = min(ends_at, mark["began_at"] + least) if least else ends_at
            if done:
                # A report that is made before the window ends, or of one that is cut, ends here.
                mark |= {"seen_at": now, "open_seen": done[1]}
            died = self.roles.keep_alive()
            self.state["restarts"] = self.state.get("restarts", 0) + len(died)
            self.state["live"] = {
                "steps_per_second": rate,
                "window_seconds": now - mark["began_at"],
                "window_seconds_needed": least,
                "window_ends_at": ends,
                "sessions_open": len(done[1]) if done else None,
            }
            self.swap(now, mark["began_at"], ends)
            self.sample()
            self.save()
            if now >= ends:
                break
            time.sleep(LOOK)
        last = self.edge()
        mark |= {"ended_at": time.time(), "open_at_end": last[1] if last else None, "seconds_needed": least}
        mark["restarts"] = self.state.get("restarts", 0) - mark["restarts"]
        self.save()
        for page in ("overview", "job", "learning"):
            write_json(
                self.layout.report(self.cell.name, f"dashboard-{page}.json"),
                self.roles.ask(f"api/{page}", 20),
            )
        seconds = mark["ended_at"] - mark["began_at"]
        return {
            "seconds": seconds,
            "seconds_needed": least,
            "partial": least is None or seconds < 0.999 * least,
            "swap": self.state.get("swap"),
        }

    def swap(self, now: float, began: float, ends: float) -> None:
        """Publishes the second version at the window's middle, in a process of its own, and keeps its
        result."""
        swap = self.state.setdefault("swap", {})
        output = self.layout.states / f"{self.cell.name}.publish.json"
        if swap.get("state") in ("done", "failed") or "swap" in self.options.get("without", ()):
            return
        if "pid" not in swap:
            if now < began + (ends - began) / 2 or now < began + 20:
                return
            second_dir = str(self.layout.checkpoints / self.cell.second)
            command = [
                str(self.layout.furrow),
                "publish",
                second_dir,
                "--run",
                str(self.run_dir),
                "--deadline",
                "400",
                "--json",
            ]
            with open(output, "wb") as file, open(self.layout.log(f"{self.cell.name}.publish"), "ab") as log:
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=log, start_new_session=True
                )
            swap |= identity(child.pid) or {"pid": child.pid, "start": -1}
            swap |= {"state": "running", "asked_at": now}
            return
        if not wait_for_end(swap, 0.0):
            return
        result = read_json(output)
        moved = (
            bool(result)
            and result.get("state") == "taken"
            and all(worker.get("moved") for worker in result.get("workers", []))
        )
        swap |= {
            "state": "done" if moved else "failed",
            "seconds": now - swap["asked_at"],
            "said": result,
        }
        if not moved:
            swap["why"] = (
                " | ".join(tail(self.layout.log(f"{self.cell.name}.publish"), 3))
                or "furrow publish printed nothing"
            )

    def kill(self) -> dict[str, Any]:
        """kill -9 of the policy worker, another one at once, and how long until the sessions go on."""
        if "kill" in self.options.get("without", ()):
            return {"left_out": True}
        if "pid" in self.state.get("swap", {}):
            if not wait_for_end(self.state["swap"], 60):
                self.state.setdefault("notes", []).append(
                    "the second version was still being published when the policy worker was killed"
                )
            self.swap(time.time(), 0.0, 0.0)
        open_then = self.roles.running() or {}
        killed = self.roles.name("policy")
        killed_at = time.time()
        send(self.state["roles"]["policy"], signal.SIGKILL)
        # Its memory, pinned and on the device, is given back before it has ended.
        wait_for_end(self.state["roles"]["policy"], LEAVE_SECONDS["policy"])
        started = self.roles.start("policy")
        found: dict[str, Any] = {
            "killed": killed,
            "killed_at": killed_at,
            "ended_seconds": time.time() - killed_at,
            "started": self.roles.name("policy"),
            "open": len(open_then),
        }
        until = min(self.deadline(), killed_at + self.cell.recovery_seconds)
        while time.time() < until:
            self.roles.keep_alive()
            rows = [
                row
                for row in recent_metrics(self.run_dir)
                if row["pid"] == started["pid"] and row["role"] == "policy"
            ]
            replies = rows[-1].get("policy/replies", 0) if rows else 0
            now = time.time()
            job = self.roles.ask("api/job") or {}
            workers = {worker["worker"]: worker for worker in job.get("workers", [])}
            if self.roles.name("policy") in workers:
                found.setdefault("registered_seconds", now - killed_at)
            if replies:
                found.setdefault("first_reply_seconds", now - killed_at)
            self.state["live"] = {
                "replies_since_kill": replies,
                "open_at_kill": len(open_then),
                "seconds_since_kill": now - killed_at,
            }
            found.update(replies=replies)
            if replies >= max(1, len(open_then)):
                found["as_many_replies_as_sessions_seconds"] = now - killed_at
                break
            self.sample()
            self.save()
            time.sleep(LOOK)
        # A little longer, so that steps after the kill are in the data set.
        time.sleep(min(10.0, max(0.0, self.deadline() - time.time())))
        self.state["kill"] = found
        if "first_reply_seconds" not in found:
            raise PhaseFailed(
                f"no reply in {time.time() - killed_at:.0f} s after the policy worker was killed; "
                f"{self.last_log_lines()}"
            )
        return found


def recent_metrics(run_dir: pathlib.Path) -> list[dict[str, Any]]:
    """The last lines of metrics.jsonl, of half a megabyte of it."""
    rows = []
    for line in tail(run_dir / "metrics.jsonl", 60, 512 << 10):
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows
