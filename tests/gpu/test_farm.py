"""The arithmetic and the order of the farm's script, without a farm: `python3 tests/gpu/test_farm.py`."""

import contextlib
import json
import math
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
from typing import ClassVar

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import cells
import commands
import copies
import farm
import machine
import phases
import rates
import report
import roles
import second
import supervise
import waterfalls
from sources import counter, seconds, totals


def fleet(sessions, steps, step_seconds, until):
    """Sessions of even ages at a constant pace, as a ledger would have them, and when each step was done."""
    rows, moments, token = [], [], 0
    for session in range(sessions):
        limit, at = 1 + session * steps // sessions, 0.0
        while at < until:
            token += 1
            name = f"t{session}-{token}"
            done = [at + step_seconds * (number + 1) for number in range(limit)]
            over = done[-1] <= until
            moments += [(name, moment) for moment in done if moment <= until]
            rows.append(
                {
                    "trajectory_id": name,
                    "token": session + 1 if at == 0.0 else 10_000 + token,
                    "state": "scored" if over else "assigned",
                    "ended": "max_steps" if over else None,
                    "steps": limit if over else None,
                    "started_at": at,
                    "ended_at": done[-1] if over else None,
                }
            )
            at, limit = done[-1], steps
    return rows, moments


def open_at(rows, moments, at):
    names = {
        row["trajectory_id"]
        for row in rows
        if row["started_at"] <= at and (row["ended_at"] is None or row["ended_at"] > at)
    }
    return {name: sum(moment <= at for which, moment in moments if which == name) for name in names}


class Rates(unittest.TestCase):
    def setUp(self):
        self.rows, self.moments = fleet(20, 10, 2.0, 120.0)
        self.began, self.ended = 31.0, 91.0
        self.true = sum(self.began < moment <= self.ended for _, moment in self.moments)

    def test_the_ledger_with_both_edges_counts_every_step_of_the_window(self):
        edges = [open_at(self.rows, self.moments, at) for at in (self.began, self.ended)]
        found, how = rates.steps_of_ledger(self.rows, self.began, self.ended, *edges)
        self.assertEqual(found, self.true)
        self.assertIn("open at its end", how)
        self.assertEqual(self.true, 20 * 30)

    def test_without_the_edges_it_is_spread_and_says_so(self):
        found, how = rates.steps_of_ledger(self.rows, self.began, self.ended, None, None)
        self.assertIn("spread evenly", how)
        self.assertLess(abs(found - self.true) / self.true, rates.tolerance(self.true, 20))

    def test_an_edge_that_is_forgotten_is_outside_the_tolerance(self):
        found, _ = rates.steps_of_ledger(
            self.rows, self.began, self.ended, {}, open_at(self.rows, self.moments, self.ended)
        )
        self.assertGreater(abs(found - self.true) / self.true, rates.tolerance(self.true, 20))

    def test_shortened_first_limits_are_found_and_would_raise_the_rate(self):
        short = rates.shortened(self.rows, 20, 10)
        self.assertEqual(len(short), 18)
        over = [row for row in self.rows if row["ended_at"] and self.began - 31 < row["ended_at"] <= 15]
        self.assertLess(sum(row["steps"] for row in over) / len(over), 10)
        full = [row["steps"] for row in self.rows if row["steps"] and row["trajectory_id"] not in short]
        self.assertEqual(set(full), {10})

    def test_the_rate_is_the_pace_of_the_sessions(self):
        # 20 sessions, 20 s a trajectory: one a second.
        self.assertAlmostEqual(rates.rate(self.true / (self.ended - self.began), 10.0), 3600.0)
        self.assertIsNone(rates.rate(1.0, None))
        self.assertAlmostEqual(rates.window_needed(10, 20, 10.0), 1.2 * 20.0)
        self.assertIsNone(rates.window_needed(10, 20, 0.0))

    def test_blocks_hold_every_event_once(self):
        moments = [moment for _, moment in self.moments]
        found = rates.blocks(moments, self.began, self.ended)
        self.assertEqual(round(sum(found) * 6.0), self.true)
        self.assertEqual(rates.blocks([0.0, 10.0], 0.0, 10.0, 2), [0.0, 0.2])

    def test_intervals(self):
        low, high = rates.poisson(100)
        self.assertAlmostEqual(low, 81.36, delta=0.1)
        self.assertAlmostEqual(high, 121.63, delta=0.1)
        low, high = rates.poisson(0)
        self.assertEqual(low, 0.0)
        self.assertAlmostEqual(high, 3.69, delta=0.1)
        self.assertIsNone(rates.batch_means([1.0]))
        mean, low, high = rates.batch_means([1.0, 2.0, 3.0])
        self.assertAlmostEqual(high - mean, 4.303 / math.sqrt(3), delta=0.0005)
        self.assertAlmostEqual(mean - low, high - mean)

    def test_the_interval_of_blocks_covers_the_truth_about_nineteen_times_in_twenty(self):
        dice, covered = random.Random(5), 0
        for _ in range(400):
            _, low, high = rates.batch_means([dice.gauss(5.0, 1.0) for _ in range(10)])
            covered += low <= 5.0 <= high
        self.assertTrue(366 <= covered <= 394, covered)

    def test_first_limits_are_spread_from_1_to_the_most(self):
        limits = [rates.first_limit(number, 100, 30) for number in range(101)]
        self.assertEqual((limits[0], limits[99], limits[100]), (1, 30, 30))
        self.assertEqual(limits[:100], sorted(limits[:100]))
        self.assertTrue(all(3 <= limits[:100].count(limit) <= 4 for limit in range(1, 31)))
        ages = [30 - limit + 0.5 for limit in limits[:100]]
        self.assertLess(rates.unevenness(ages, 30), 0.05)

    def test_unevenness(self):
        even = [(session + 0.5) / 100 * 30 for session in range(100)]
        self.assertLess(rates.unevenness(even, 30), 0.02)
        self.assertGreater(rates.unevenness([0.5] * 100, 30), 0.9)
        self.assertIsNone(rates.unevenness([], 30))

    def test_distribution(self):
        self.assertEqual(rates.distribution([]), {"count": 0})
        found = rates.distribution(range(101))
        self.assertEqual((found["p50"], found["p90"], found["max"]), (50, 90, 100))


class Waterfalls(unittest.TestCase):
    def test_totals_are_differences_over_processes(self):
        line = {"role": "env", "started": "a", "uptime_seconds": 0.0}
        rows = [
            line | {"pid": 1, "at": 10.0, "uptime_seconds": 10.0, "x/a": 100, "x/b": 5},
            line | {"pid": 1, "at": 20.0, "uptime_seconds": 20.0, "x/a": 160, "x/b": 5},
            line | {"pid": 1, "at": 30.0, "uptime_seconds": 30.0, "x/a": 999, "x/b": 9},
            # Another process began in the window: from the line on at which anything had grown.
            line | {"pid": 2, "at": 20.0, "uptime_seconds": 1.0, "x/a": 0, "x/b": 0},
            line | {"pid": 2, "at": 22.0, "uptime_seconds": 3.0, "x/a": 7, "x/b": 0},
            line | {"pid": 2, "at": 24.0, "uptime_seconds": 5.0, "x/a": 9, "x/b": 0},
        ]
        grown, covered = totals(rows, "x/", 10.0, 25.0)
        self.assertEqual(grown, {"a": 62, "b": 0})
        self.assertAlmostEqual(covered, 12.0)
        self.assertEqual(counter(rows, "x/a", 25.0), 169)

    def test_what_is_missing_shows_as_residual(self):
        fall = waterfalls.waterfall("device", {"decode": 600.0, "prefill": 300.0}, 1000.0, edge=2.0)
        self.assertFalse(fall["adds_up"])
        self.assertAlmostEqual(fall["residual_share"], 0.1)
        self.assertTrue(
            waterfalls.waterfall("device", {"decode": 600.0, "prefill": 393.5}, 1000.0, edge=2.0)["adds_up"]
        )

    def test_steps_are_checked_against_the_time_between_observations(self):
        timing = {
            f"{name}_micros": 0 for name in ("boot", "observe", "policy", "act", "settle", "record", "finish")
        }
        timing |= {
            "observe_micros": 100_000,
            "policy_micros": 700_000,
            "act_micros": 150_000,
            "settle_micros": 50_000,
        }
        engine = {"service_micros": 600_000, "queue_micros": 100_000, "gpu_micros": 200_000}
        rows = [
            {
                "trajectory_id": "a",
                "step": number,
                "table": "steps",
                "observed_at": float(number),
                "timing": timing,
                "engine": engine,
            }
            for number in range(4)
        ]
        fall = waterfalls.steps(rows)
        self.assertEqual(fall["steps"], 3)
        self.assertTrue(fall["adds_up"])
        parts = {part["part"]: round(part["value"], 3) for part in fall["parts"]}
        self.assertEqual(
            (parts["transport"], parts["queue"], parts["device, own share"], parts["beside neighbours"]),
            (0.1, 0.1, 0.2, 0.3),
        )
        for row in rows:
            row["observed_at"] *= 1.1
        self.assertFalse(waterfalls.steps(rows)["adds_up"])

    def test_times_are_read(self):
        self.assertEqual(seconds("1970-01-02T00:00:01.5Z"), 86401.5)
        self.assertEqual(seconds("2026-11-23T06:49:35Z") - seconds("2026-11-23T06:49:34.25Z"), 0.75)


class Order(unittest.TestCase):
    NAMES: ClassVar = ["checkpoint", "farm", "ready", "window", "kill", "drain", "report"]
    LIVE: ClassVar = {"farm", "ready", "window", "kill"}

    def go(self, state, live=False, failing=(), until=None, cut=None):
        """Runs the phases; `cut` stops at that phase as a kill of the supervisor would. The names of those
        that were done."""
        did = []

        class Cut(BaseException):
            pass

        def act(name):
            def acted():
                if name == cut:
                    raise Cut
                did.append(name)
                if name in failing:
                    raise phases.PhaseFailed("it was to fail")
                return {}

            return acted

        listed = [
            phases.Phase(name, 10, act(name), name in self.LIVE, name in ("drain", "report"))
            for name in self.NAMES
        ]
        phases.begin(state, self.NAMES, live, 5.0, self.LIVE)
        with contextlib.suppress(Cut):
            phases.run(listed, state, lambda: json.dumps(state), lambda: 1.0, until)
        return did

    def test_all_is_done_once(self):
        state = {}
        self.assertEqual(self.go(state), self.NAMES)
        self.assertEqual(self.go(state), [])

    def test_a_cut_window_is_measured_anew_from_a_resumed_run(self):
        state = {}
        self.assertEqual(self.go(state, cut="window"), ["checkpoint", "farm", "ready"])
        state["window"] = {"began_at": 3.0}
        self.assertEqual(self.go(state), ["farm", "ready", "window", "kill", "drain", "report"])
        self.assertEqual(state["resumed"], 1)
        self.assertEqual(state["cut_windows"], [{"began_at": 3.0, "cut_at": 5.0}])
        self.assertIn("measured anew", state["notes"][0])

    def test_a_window_goes_on_where_the_farm_outlived_its_supervisor(self):
        state = {}
        self.go(state, cut="window")
        state["window"] = {"began_at": 3.0}
        self.assertEqual(self.go(state, live=True), ["window", "kill", "drain", "report"])
        self.assertEqual((state.get("resumed", 0), state["window"]), (0, {"began_at": 3.0}))

    def test_a_measured_window_is_not_measured_again(self):
        state = {}
        self.go(state, cut="kill")
        state["window"] = {"began_at": 3.0, "ended_at": 4.0}
        self.assertEqual(self.go(state), ["farm", "ready", "kill", "drain", "report"])
        self.assertEqual(state["window"], {"began_at": 3.0, "ended_at": 4.0})

    def test_after_the_drain_no_farm_is_started(self):
        state = {}
        self.go(state, cut="report")
        self.assertEqual(self.go(state), ["report"])

    def test_a_failure_leaves_what_can_be_done(self):
        state = {}
        self.assertEqual(
            self.go(state, failing=("ready",)), ["checkpoint", "farm", "ready", "drain", "report"]
        )
        self.assertEqual((state["failed"], state["phases"]["window"]["why"]), ("ready", "ready failed"))

    def test_until_leaves_the_rest_for_another_start(self):
        state = {}
        self.assertEqual(self.go(state, until="drain"), self.NAMES[:-1])
        self.assertEqual(self.go(state), ["report"])

    def test_a_bug_in_a_phase_is_a_failure_with_its_trace(self):
        state = {}
        phases.begin(state, ["a", "b"], False, 0.0, set())
        listed = [phases.Phase("a", 1, lambda: {"x": 1 / 0}), phases.Phase("b", 1, dict, always=True)]
        self.assertFalse(phases.run(listed, state, lambda: None, lambda: 0.0))
        self.assertIn("ZeroDivisionError", state["phases"]["a"]["trace"])
        self.assertEqual(state["phases"]["b"]["state"], "done")


def safetensors(path, tensors):
    """Tensors as name: (dtype, shape, bytes)."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


class Second(unittest.TestCase):
    def test_one_shard_is_written_and_the_others_are_links(self):
        with tempfile.TemporaryDirectory() as folder:
            first, other = pathlib.Path(folder, "first"), pathlib.Path(folder, "second")
            first.mkdir()
            values = struct.pack("<4f", 1.0, -2.0, 0.5, 3.0)
            # bfloat16: 1.0 is 0x3f80, -2.0 is 0xc000.
            halves = bytes.fromhex("803f00c0") * 8
            safetensors(first / "a.safetensors", {"norm": ("F32", [4], values)})
            safetensors(first / "b.safetensors", {"w": ("F32", [2, 2], values), "bias": ("F32", [4], values)})
            safetensors(first / "c.safetensors", {"w2": ("BF16", [4, 4], halves)})
            (first / "config.json").write_text("{}")
            summary = second.make(first, other)
            self.assertEqual((summary["rewritten"], summary["links"]), ("c.safetensors", 3))
            for name in ("a.safetensors", "b.safetensors", "config.json"):
                self.assertTrue((first / name).samefile(other / name))
            header, at = second.header_of(other / "c.safetensors")
            self.assertEqual((other / "c.safetensors").read_bytes()[at:], bytes.fromhex("80bf0040") * 8)
            self.assertEqual((first / "c.safetensors").read_bytes()[at:], halves)
            self.assertEqual(header, second.header_of(first / "c.safetensors")[0])
            self.assertEqual(second.make(first, other), summary)

    def test_one_dimensional_tensors_keep_their_signs(self):
        with tempfile.TemporaryDirectory() as folder:
            first = pathlib.Path(folder)
            values = struct.pack("<4f", 1.0, -2.0, 0.5, 3.0)
            safetensors(
                first / "b.safetensors",
                {
                    "w": ("F32", [2, 2], values),
                    "bias": ("F32", [4], values),
                    "ids": ("I64", [1, 2], b"\1" * 16),
                },
            )
            self.assertEqual(second.turn_signs(first / "b.safetensors", first / "t"), 16)
            _, at = second.header_of(first / "t")
            data = (first / "t").read_bytes()[at:]
            self.assertEqual(struct.unpack("<8f", data[:32]), (-1.0, 2.0, -0.5, -3.0, 1.0, -2.0, 0.5, 3.0))
            self.assertEqual(data[32:], b"\1" * 16)

    def test_a_matrix_of_many_chunks_is_turned_value_by_value(self):
        with tempfile.TemporaryDirectory() as folder:
            first = pathlib.Path(folder)
            for dtype, width in second.WIDTHS.items():
                # 6 chunks and a part of one, in which no value lies in two.
                data = random.Random(width).randbytes(width * 7 * 14)
                safetensors(first / "w.safetensors", {"w": (dtype, [7, 14], data)})
                with unittest.mock.patch.object(second, "CHUNK", 16 * width):
                    second.turn_signs(first / "w.safetensors", first / "t")
                _, at = second.header_of(first / "t")
                wanted = bytes(
                    value ^ (0x80 if number % width == width - 1 else 0) for number, value in enumerate(data)
                )
                self.assertEqual((first / "t").read_bytes()[at:], wanted, dtype)

    def test_what_is_not_a_checkpoint_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(ValueError, "make the checkpoint first"):
                second.make(pathlib.Path(folder), pathlib.Path(folder, "x"))
            torn = pathlib.Path(folder, "torn.safetensors")
            torn.write_bytes(b"torn")
            with self.assertRaisesRegex(ValueError, "not a safetensors file"):
                second.header_of(torn)


class Cells(unittest.TestCase):
    def test_the_longest_step_fits_behind_the_first_prompt(self):
        for cell in cells.CELLS.values():
            if cell.dry:
                continue
            step = {3: 1_018, 7: 2_042}[cell.tiles] if cell.keep == "append" else 160
            self.assertGreater(cell.engine.context_tokens_max, cell.steps * step + 2_300, cell.name)

    @unittest.skipUnless(os.environ.get("FURROW"), "FURROW names no program")
    def test_the_program_plans_every_cell_on_an_h200_with_all_its_sessions(self):
        here = pathlib.Path(__file__).resolve().parents[2]
        with tempfile.TemporaryDirectory() as folder:
            layout = machine.Layout(pathlib.Path(folder))
            (layout.checkpoints / "first").mkdir(parents=True)
            config = here / "crates/model/tests/configs/nano_12b_vl.json"
            (layout.checkpoints / "first/config.json").write_bytes(config.read_bytes())
            shutil.copytree(here / "envs/web", layout.envs / "web")
            for name in ("append-7", "last_image-3", "append-3", "last_image-7"):
                cell = cells.CELLS[name]
                job = layout.root / f"{name}.toml"
                job.write_text(cells.job_text(cell, layout, cells.write_suite(cell, layout)))
                given = ["--gpu-memory-gib", "139.8", "--memory-gib", "125", "--disk-gib", "60"]
                command = [os.environ["FURROW"], "plan", "--job", str(job), "--json", *given]
                plan = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                self.assertEqual(commands.refusals(plan, cell.sessions), [], name)
                page_cache = next(entry for entry in plan["budget"]["sums"] if entry["what"] == "page cache")
                self.assertTrue(page_cache["fits"], name)

    def test_a_plan_refuses_by_what_the_program_refuses_and_by_its_sessions(self):
        residency = {"admitted": 78}
        sums = [{"what": what, "fits": False} for what in ("GPU memory", "disk to run", "disk to the end")]
        budget = {"refusals": ["GPU memory"], "residency": residency, "warnings": ["disk"], "sums": sums}
        refused = commands.refusals({"budget": budget}, 100)
        self.assertEqual(
            refused, ["GPU memory", "disk to run does not fit", "78 of 100 sessions are admitted"]
        )
        self.assertEqual(commands.refusals({"budget": {"refusals": [], "sums": []}}, 100), [])
        with self.assertRaises(phases.PhaseFailed):
            commands.refusals({}, 100)

    def test_a_job_is_toml_with_everything_forced(self):
        import tomllib

        with tempfile.TemporaryDirectory() as folder:
            layout = machine.Layout(folder)
            cell = cells.chosen("append-7")
            job = tomllib.loads(cells.job_text(cell, layout, pathlib.Path(folder, 'a "b"'), sandbox=False))
            self.assertEqual(
                (job["policy"]["constrain"]["exact_tokens"], job["policy"]["constrain"]["endings"]),
                (150, False),
            )
            self.assertEqual(
                (
                    job["limits"]["spread_first_steps"],
                    job["tasks"]["source"][0]["max_steps"],
                    job["env"]["sessions_max"],
                ),
                (True, 30, 100),
            )
            self.assertEqual(
                (job["env"]["sandbox"], job["policy"]["context"]["keep"], job["policy"]["weights"]["stage"]),
                (False, "append", "host"),
            )
            self.assertEqual(job["tasks"]["source"][0]["path"], str(pathlib.Path(folder, 'a "b"')))
            self.assertNotIn("browser", job["env"])

    def test_tasks_have_the_cells_viewport_and_no_limit_that_is_reached(self):
        with tempfile.TemporaryDirectory() as folder:
            layout = machine.Layout(folder)
            site = layout.envs / "web" / "sites" / "shop"
            site.mkdir(parents=True)
            (site / "tasks.jsonl").write_text('{"task_id": "a", "start_url": "/", "max_steps": 4}\n')
            suite = cells.write_suite(cells.chosen("append-7"), layout)
            row = json.loads((suite / "sites" / "shop" / "tasks.jsonl").read_text())
            self.assertEqual(
                (row["viewport"], row["time_limit_ms"], row["task_id"]), ([1280, 800], 7_200_000, "a")
            )
            self.assertEqual(cells.write_suite(cells.chosen("append-7"), layout), suite)

    def test_what_is_wrong_is_named(self):
        with self.assertRaisesRegex(ValueError, "'append-9'.*append-7"):
            cells.chosen("append-9")
        with self.assertRaisesRegex(ValueError, "--sessions '0'"):
            cells.chosen("append-7", "0")
        self.assertEqual(cells.chosen("append-7", "8", "5").steps, 5)


class Recorded(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.layout = machine.Layout(self.folder.name)
        self.layout.make()

    def test_logprobs_are_of_versions_that_were_taken_and_of_a_kill_that_was_done(self):
        cell = cells.chosen("append-7")
        first, second = (str(self.layout.checkpoints / name) for name in ("first", "second"))
        for swap, kill, wanted in (
            ({}, {}, [first]),
            ({"state": "failed"}, {"killed_at": 7.0}, [first]),
            ({"state": "done"}, {"left_out": True}, [first, second]),
            (
                {"state": "done"},
                {"killed_at": 12.5, "first_reply_seconds": 3.0},
                [first, second, "--after", "12500000"],
            ),
        ):
            state = {"swap": swap, "kill": kill}
            self.assertEqual(supervise.logprobs_arguments(cell, self.layout, state), wanted)

    def test_the_bench_has_the_farms_libraries_and_kernels(self):
        with unittest.mock.patch.dict(os.environ, FURROW_CUDA_LIBRARIES="/a:/b"):
            arguments = supervise.bench_arguments(self.layout, pathlib.Path("/run"))
        self.assertEqual(
            arguments,
            [
                *("gpu", "--recorded", "/run", "--only", "rollouts", "--json"),
                *("--kernel-cache", str(self.layout.root / "kernels")),
                *("--cuda-libraries", "/a", "--cuda-libraries", "/b"),
            ],
        )

    def test_a_later_request_is_done_though_its_phase_was(self):
        names, state = ["drain", "recorded", "report"], {}
        state["phases"] = {name: {"state": "done"} for name in names}
        supervise.ask_again(state)
        phases.begin(state, names, False, 0.0, set())
        self.assertEqual([state["phases"][name]["state"] for name in names], ["done", "todo", "todo"])

    def test_a_command_that_takes_too_long_leaves_what_it_printed(self):
        printed = pathlib.Path(self.folder.name, "printed")
        with self.assertRaisesRegex(phases.PhaseFailed, "more than 1 s"):
            commands.run(["sh", "-c", "echo first; sleep 60"], 1.0, (0,), printed)
        self.assertEqual(printed.read_text(), "first\n")

    def test_shares_are_of_what_was_recorded_and_not_of_the_published_mix(self):
        cell = cells.chosen("append-7")
        plan = {
            "models": [{"rollouts": [{"context": "append", "steps_per_second": 99.0}]}],
            "recorded": {"floors": {"two_streams": {"steps_per_second": 8.0}}},
            "simulated": [{"context": "append", "steps_per_second": 5.0, "floor_steps_per_second": 8.0}],
        }
        self.layout.report(cell.name, "plan.jsonl").write_text(json.dumps(plan, indent=1))
        line = json.dumps({"context": "append", "steps_per_second": 10.0})
        self.layout.report(cell.name, "bench.jsonl").write_text(f"device: x\n{line}\n")
        paces = report._bench(cell, self.layout, {"rate": {"steps_per_second": {"ledger": 4.0}}})
        shares = {name: round(found["share"], 2) for name, found in paces.items()}
        self.assertEqual(
            shares,
            {
                "bench --recorded[0]": 0.4,
                "floor of the recorded steps.two_streams": 0.5,
                "simulated, append": 0.8,
                "bench, committed": round(4 / 5.270937, 2),
            },
        )


class Starts(unittest.TestCase):
    def given(self, *arguments):
        return farm.parser().parse_args(["start", *arguments])

    def test_a_start_behind_a_cut_keeps_what_was_left_out_and_the_end_of_its_time(self):
        first = farm.options_of(self.given("append-7", "--minutes", "10", "--without", "kill"), {}, 1000.0)
        self.assertEqual((first["ends_at"], first["without"]), (1600.0, ["kill"]))
        resumed = farm.options_of(self.given("append-7"), first, 1200.0)
        self.assertEqual((resumed["ends_at"], resumed["without"]), (1600.0, ["kill"]))
        # A time that is over ends nothing, and a new one counts.
        self.assertIsNone(farm.options_of(self.given("append-7"), first, 1700.0)["ends_at"])
        self.assertEqual(
            farm.options_of(self.given("append-7", "--minutes", "1"), first, 1700.0)["ends_at"], 1760.0
        )
        # The bench was asked for once.
        self.assertEqual(farm.options_of(self.given("a"), {"with": ["bench"]}, 1.0)["with"], [])

    def test_a_program_that_was_not_unpacked_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            layout = machine.Layout(folder)
            with self.assertRaisesRegex(ValueError, "bin/furrow is not there"):
                farm.need_programs(layout, [])
            for path in (layout.furrow, layout.bench):
                path.parent.mkdir()
            layout.furrow.touch()
            farm.need_programs(layout, [])
            with self.assertRaisesRegex(ValueError, "gpu/furrow-bench is not there.*--with bench"):
                farm.need_programs(layout, ["bench"])
            layout.bench.touch()
            farm.need_programs(layout, ["bench"])

    def test_a_cell_that_was_started_keeps_its_size(self):
        farm.same_size(self.given("append-7"), {"sessions": "4"})
        farm.same_size(self.given("append-7", "--sessions", "4"), {"sessions": "4"})
        with self.assertRaisesRegex(ValueError, "--sessions 3, not --sessions 4.*--fresh"):
            farm.same_size(self.given("append-7", "--sessions", "4"), {"sessions": "3"})
        with self.assertRaisesRegex(ValueError, "its own steps"):
            farm.same_size(self.given("append-7", "--steps", "4"), {})

    def test_the_copy_is_started_with_the_same_arguments(self):
        arguments = ["append-7", "--until", "drain", "--minutes", "8.5", "--sessions", "8", "--steps", "4"]
        arguments += ["--without", "kill", "--without", "swap", "--with", "bench", "--fresh", "--anyway"]
        for given in (self.given(*arguments), self.given("init"), self.given("init", "--foreground")):
            self.assertEqual(farm.parser().parse_args(farm.start_arguments(given)), given)

    def test_a_copy_is_made_once_and_again_where_a_file_changed(self):
        with tempfile.TemporaryDirectory() as folder:
            tree, root = pathlib.Path(folder, "tree"), pathlib.Path(folder, "root")
            for name in ("tests/gpu/farm.py", "trainer/src/a/b.py", "tests/gpu/__pycache__/x.pyc", "more.py"):
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                (tree / name).write_text(name)
            copy = copies.make(tree, root)
            files = sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())
            self.assertEqual(files, ["tests/gpu/farm.py", "trainer/src/a/b.py"])
            self.assertEqual(copies.make(tree, root), copy)
            (tree / "tests/gpu/farm.py").write_text("new")
            self.assertNotEqual(copies.make(tree, root), copy)
            self.assertEqual((copy / "tests/gpu/farm.py").read_text(), "tests/gpu/farm.py")
            self.assertEqual(len(list((root / "scripts").iterdir())), 2)

    def test_a_wait_ends_with_a_failed_phase_a_note_or_nothing_that_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            layout = machine.Layout(folder)
            layout.make()
            state = {
                "supervisor": machine.identity(os.getpid()),
                "phases": {"ready": {"state": "running"}, "verify": {"state": "failed"}},
                "notes": ["old"],
            }
            machine.write_json(layout.state("c"), state)
            self.assertIsNone(farm.wait_for_news(layout, 0.2))

            def later(change):
                thread = threading.Timer(0.3, lambda: machine.write_json(layout.state("c"), change))
                thread.start()
                self.addCleanup(thread.join)
                return farm.wait_for_news(layout, 20)

            self.assertIn("died", later(state | {"notes": ["old", "the policy died"]}))
            state["notes"] = ["old", "the policy died"]
            # What came between two waits is news of the second.
            self.assertIn("died", farm.wait_for_news(layout, 20, {("c", "old"), ("c", "verify failed")}))
            failed = {"ready": {"state": "failed"}, "verify": {"state": "failed"}}
            self.assertIn("ready failed", later(state | {"phases": failed}))
            self.assertIn("nothing runs", later(state | {"supervisor": None}))


class Processes(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        layout = machine.Layout(self.folder.name)
        layout.make()
        self.state = {}
        self.roles = roles.Roles("c", layout.states / "c.toml", layout, self.state, lambda: None)

    def test_a_policy_that_dies_twice_before_it_is_ready_is_not_started_again(self):
        dead, started = {"pid": 1 << 22, "start": -1, "at": 0.0}, []
        self.state["roles"] = {"policy": dead, "env": dead}
        self.state["counts"] = {"policy": 1, "env": 1}
        self.roles.log("policy").write_text("out of memory\n")
        with unittest.mock.patch.object(self.roles, "start", started.append):
            spare = {"policy": 1}
            self.assertEqual(self.roles.keep_alive(spare), ["policy", "env"])
            with self.assertRaisesRegex(phases.PhaseFailed, "out of memory"):
                self.roles.keep_alive(spare)
            self.assertEqual(started, ["policy", "env"])
            # In the window it is started again as before.
            self.roles.keep_alive()
        self.assertEqual(started, ["policy", "env"] * 2)

    def test_a_policy_that_takes_long_to_give_memory_back_is_not_killed(self):
        script = "import signal, sys, time\nsignal.signal(15, lambda *_: (time.sleep(2.5), sys.exit(0)))\n"
        script += "print('ready', flush=True)\ntime.sleep(60)"
        log = pathlib.Path(self.folder.name, "log")
        self.state["roles"]["policy"] = known = machine.spawn([sys.executable, "-c", script], log)
        until = time.monotonic() + 10
        while "ready" not in log.read_text() and time.monotonic() < until:
            time.sleep(0.02)
        self.assertNotIn("killed", self.roles.stop(0.5))
        self.assertFalse(machine.alive(known))
        # And one that never ends is.
        self.state["roles"]["policy"] = machine.spawn(
            [sys.executable, "-c", script.replace("2.5", "60")], log.with_name("log2")
        )
        while "ready" not in log.with_name("log2").read_text() and time.monotonic() < until:
            time.sleep(0.02)
        with unittest.mock.patch.dict(roles.LEAVE_SECONDS, policy=0.5):
            self.assertEqual(self.roles.stop(0.5)["killed"], ["policy"])


class Machine(unittest.TestCase):
    def test_a_process_is_known_by_more_than_its_number(self):
        with tempfile.TemporaryDirectory() as folder:
            known = machine.spawn(
                [sys.executable, "-c", "import time; time.sleep(60)"], pathlib.Path(folder, "log")
            )
            self.assertTrue(machine.alive(known))
            self.assertFalse(machine.alive({**known, "start": known["start"] + 1}))
            self.assertNotEqual(os.getsid(known["pid"]), os.getsid(0))
            self.assertFalse(machine.wait_for_end(known, 0.0))
            self.assertTrue(machine.send(known, signal.SIGKILL))
            self.assertTrue(machine.wait_for_end(known, 5.0))
            self.assertFalse(machine.send(known, signal.SIGKILL))

    def test_a_detached_process_outlives_its_caller_and_does_not_keep_its_pipe(self):
        with tempfile.TemporaryDirectory() as folder:
            script = (
                "import pathlib, sys, time; sys.path.insert(0, sys.argv[1]); import machine\n"
                "folder = pathlib.Path(sys.argv[2])\n"
                "if machine.detach(folder / 'log'):\n"
                "    time.sleep(3); print('went on', flush=True)\n"
                "    machine.write_json(folder / 'done.json', {'ok': True})\n"
            )
            began = time.monotonic()
            subprocess.run(
                [sys.executable, "-c", script, str(pathlib.Path(__file__).parent), folder],
                capture_output=True,
                timeout=10,
                check=True,
            )
            self.assertLess(time.monotonic() - began, 2.5)
            until = time.monotonic() + 10
            while machine.read_json(pathlib.Path(folder, "done.json")) is None and time.monotonic() < until:
                time.sleep(0.05)
            self.assertEqual(machine.read_json(pathlib.Path(folder, "done.json")), {"ok": True})
            self.assertIn("went on", pathlib.Path(folder, "log").read_text())


if __name__ == "__main__":
    unittest.main()
