"""What a supervisor does for a cell, phase by phase. Whatever it learns goes into the state file, so that
another start goes on where this one was cut."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time
from typing import Any

import cells
import phases
import sources
from commands import make_checkpoints, refusals, run
from live import LivePhases
from machine import TREE, Layout, identity, read_json, send, tail, wait_for_end, write_json
from phases import Phase, PhaseFailed
from roles import FARM


def logprobs_arguments(cell: cells.Cell, layout: Layout, state: dict[str, Any]) -> list[str]:
    """The checkpoints of the versions that were taken, and when the policy worker was killed, if it was."""
    folders = [layout.checkpoints / cell.first]
    if (state.get("swap") or {}).get("state") == "done":
        folders.append(layout.checkpoints / cell.second)
    kill = state.get("kill") or {}
    after = ["--after", str(int(kill["killed_at"] * 1e6))] if "first_reply_seconds" in kill else []
    return [*map(str, folders), *after]


def ask_again(state: dict[str, Any]) -> None:
    """What `--with` asks for now was not asked for when these phases were done."""
    for name in ("recorded", "report"):
        state.get("phases", {}).pop(name, None)


def bench_arguments(layout: Layout, run_dir: pathlib.Path) -> list[str]:
    """Rollouts alone, of what was recorded, with the libraries and kernels of the farm."""
    libraries = [argument for folder in cells.cuda_libraries() for argument in ("--cuda-libraries", folder)]
    kernels = str(layout.root / "kernels")
    arguments = ["gpu", "--recorded", str(run_dir), "--only", "rollouts", "--json"]
    return [*arguments, "--kernel-cache", kernels, *libraries]


class Supervisor(LivePhases):
    """One cell from its checkpoint to its report."""

    def phases(self) -> list[Phase]:
        """In order; seconds are what each may take at most."""
        cell = self.cell
        warm = 300 + 1.5 * (cell.trajectory_seconds or 1200)
        return [
            Phase("checkpoint", 900, self.checkpoint),
            Phase("budget", 120, self.budget),
            Phase("farm", 60, self.farm),
            Phase("ready", warm, self.ready, live=True),
            Phase("window", cell.window_seconds_max + 30, self.window, live=True),
            Phase("kill", cell.recovery_seconds + 90, self.kill, live=True),
            Phase("drain", 260, self.drain, always=True),
            Phase("verify", 2400 if cell.dry else 400, self.verify, always=True),
            Phase("logprobs", 540, self.logprobs, always=True),
            Phase("recorded", 400, self.recorded, always=True),
            Phase("report", 120, self.report, always=True),
        ]

    def go(self) -> bool:
        """Goes on from what the state says, to the end or to the last phase that was asked for."""
        listed = self.phases()
        for pid in self.roles.stray():
            self.state.setdefault("notes", []).append(
                f"process {pid} of an earlier start was in no state file and was killed"
            )
            send(identity(pid), signal.SIGKILL)
        if self.options.get("with"):
            ask_again(self.state)
        live = {phase.name for phase in listed if phase.live} | {"farm"}
        phases.begin(self.state, [phase.name for phase in listed], self.roles.all_live(), time.time(), live)
        self.state.update(cell=self.cell.name, supervisor=identity(os.getpid()), options=self.options)
        self.state.setdefault("started_at", time.time())
        self.save()
        return phases.run(listed, self.state, self.save, time.time, self.options.get("until"))

    # Phases.

    def checkpoint(self) -> dict[str, Any]:
        return make_checkpoints(self.cell, self.layout, self.deadline())

    def budget(self) -> dict[str, Any]:
        suite = cells.write_suite(self.cell, self.layout)
        probe = read_json(self.layout.states / "probe.json") or {}
        sandbox = probe.get("sandbox", True) is not False
        text = cells.job_text(self.cell, self.layout, suite, sandbox)
        if not self.job.is_file() or not self.run_dir.is_dir():
            self.job.write_text(text)
            self.job.chmod(0o644)
        elif self.job.read_text() != text:
            self.state.setdefault("notes", []).append(
                "the job file would be another one now; the run goes on with the one it began with"
            )
        done = self.furrow(["plan", "--job", str(self.job), "--json"], 100, fine=(0, 1))
        try:
            plan = json.loads(done.stdout)
        except ValueError:
            raise PhaseFailed(
                f"furrow plan --job {self.job} --json printed no JSON: "
                f"{(done.stderr or done.stdout)[:800].strip()}"
            ) from None
        refused = refusals(plan, self.cell.sessions)
        if refused:
            why = f"the job does not fit this machine ({'; '.join(refused)})"
            if not self.options.get("anyway"):
                raise PhaseFailed(f"{why}; furrow plan --job {self.job} prints the sums, --anyway starts it")
            self.state.setdefault("notes", []).append(f"{why}, and was started anyway")
        return {"sandbox": sandbox, "plan": plan}

    def farm(self) -> dict[str, Any]:
        self.run_dir.mkdir(mode=0o755, exist_ok=True)
        for role in FARM:
            if not self.roles.lives(role):
                self.roles.start(role)
                # A job that is refused ends at once, and its output tells more than that of workers that find
                # no coordinator.
                if role == "coordinator" and wait_for_end(self.state["roles"][role], 2.0):
                    raise PhaseFailed(
                        f"the coordinator ended at once: {' | '.join(tail(self.roles.log(role), 6))}"
                    )
        if not self.roles.lives("dashboard"):
            self.roles.start("dashboard")
        return {role: self.state["roles"][role]["pid"] for role in (*FARM, "dashboard")}

    def drain(self) -> dict[str, Any]:
        for page in ("overview", "job", "learning"):
            page_data = self.roles.ask(f"api/{page}", 20)
            if page_data:
                write_json(self.layout.report(self.cell.name, f"dashboard-{page}-end.json"), page_data)
        outcome = self.roles.stop(120)
        self.roles.stop_dashboard()
        self.roles.kill_all()
        if self.uncommitted():
            # The coordinator was killed, or had no time: another one commits what the ledger and the spool
            # hold.
            outcome["published_by_another_start"] = True
            self.roles.start("coordinator")
            until = time.time() + 15
            while self.roles.lives("coordinator") and not self.roles.listens() and time.time() < until:
                time.sleep(0.2)
            repeated = self.roles.stop(90)
            outcome.setdefault("killed", []).extend(repeated.get("killed", []))
        left = self.uncommitted()
        if outcome.get("killed") or left:
            raise PhaseFailed(
                f"{', '.join(outcome.get('killed', [])) or 'none'} did not leave and were killed, {left} "
                f"trajectories are not committed; {self.last_log_lines()}"
            )
        return outcome

    def uncommitted(self) -> int:
        """Trajectories of the ledger that no shard holds."""
        return sum(row["shard_id"] is None for row in self.rows())

    def need_committed(self) -> None:
        """Raises PhaseFailed where no trajectory is committed."""
        if not sources.listed(self.run_dir, "trajectories"):
            raise PhaseFailed(f"{self.run_dir} holds no committed trajectory")

    def verify(self) -> dict[str, Any]:
        self.need_committed()
        done = self.furrow(
            ["records", "verify", str(self.run_dir), "--json"],
            self.deadline() - time.time() - 10,
            fine=(0, 1),
        )
        try:
            result = json.loads(done.stdout)
        except ValueError:
            result = {"printed": done.stdout[-2000:] + done.stderr[-2000:]}
        write_json(
            self.layout.report(self.cell.name, "verify.json"), {"status": done.returncode, "said": result}
        )
        if done.returncode:
            raise PhaseFailed(
                f"furrow records verify {self.run_dir} ended with status {done.returncode}: "
                f"{done.stdout[:500]}{done.stderr[:500]}"
            )
        return {"status": 0, "said": result}

    def logprobs(self) -> dict[str, Any]:
        script = TREE / "tests" / "gpu" / "logprobs.py"
        if not script.is_file():
            raise PhaseFailed(f"{script} is not there; log-probabilities were not recomputed")
        self.need_committed()
        output = self.layout.report(self.cell.name, "logprobs.json")
        python = os.environ.get("FURROW_TORCH_PYTHON") or sys.executable
        arguments = logprobs_arguments(self.cell, self.layout, self.state)
        done = run(
            [python, str(script), str(self.run_dir), *arguments, "--steps", "20", "--json", str(output)],
            520,
            fine=tuple(range(256)),
        )
        if done.returncode:
            raise PhaseFailed(
                f"{script.name} ended with status {done.returncode}: {(done.stderr or done.stdout)[-800:]}"
            )
        return read_json(output) or {}

    def recorded(self) -> dict[str, Any]:
        """The scheduler's simulator on the recorded steps, tokens and tiles, and the bench on the GPU where
        it was asked for."""
        self.need_committed()
        found: dict[str, Any] = {}
        furrow, bench = str(self.layout.furrow), str(self.layout.bench)
        commands = {"plan": [furrow, "plan", "--recorded", str(self.run_dir), "--simulate", "--json"]}
        if "bench" in self.options.get("with", ()):
            commands["bench"] = [bench, *bench_arguments(self.layout, self.run_dir)]
        for name, command in commands.items():
            try:
                # Straight to the file: of a bench that takes too long the figures so far are kept.
                done = run(
                    command,
                    {"plan": 100.0, "bench": 280.0}[name],
                    tuple(range(256)),
                    self.layout.report(self.cell.name, f"{name}.jsonl"),
                )
            except PhaseFailed as why:
                found[name] = {"status": None, "why": str(why)}
                continue
            found[name] = {"status": done.returncode} | (
                {"why": done.stderr[-400:].strip()} if done.returncode else {}
            )
        failed = {name: entry["why"] for name, entry in found.items() if "why" in entry}
        if failed:
            raise PhaseFailed(
                "; ".join(
                    f"{pathlib.Path(commands[name][0]).name} {commands[name][1]}: {why}"
                    for name, why in failed.items()
                )
            )
        return found

    def report(self) -> dict[str, Any]:
        import report

        summary = report.write(self.cell, self.layout, self.state)
        return {
            "flags": summary["flags"],
            "trajectories_per_hour": summary.get("rate", {}).get("trajectories_per_hour"),
        }
