#!/usr/bin/env python3
"""Computes the dashboard's metrics a second time, from the Parquet files and metrics.jsonl alone, and
compares the two.

    dashboard_metrics.py RUN_DIR OVERVIEW.json LEARNING.json JOB.json
    dashboard_metrics.py --report REPORT.html RUN_DIR...

The three files are answers of /api/overview, /api/learning and /api/job. docs/DASHBOARD.md defines each
metric. Whole numbers must be equal, rates to a millionth part; each text of a report must be its metric's
value, to the digits that it has.
"""

import collections
import datetime
import html.parser
import json
import math
import os
import pathlib
import sys

import pyarrow.parquet

DEVICE = ["decode", "prefill", "vision", "copy", "weights", "no_work", "no_room", "host"]
IDLE = ["no_work", "no_room", "host"]
SLOTS = ["busy", "starting", "no_assignment", "no_coordinator", "admission", "draining"]
SESSION = ["queue", "boot", "observe", "policy", "act", "settle", "record", "finish", "score"]
HOUR = 3.6e9

compared = collections.Counter()


def same(where, reported, wanted):
    compared["values"] += 1
    if reported is None or wanted is None:
        assert reported is None and wanted is None, f"{where}: {reported}, the script has {wanted}"
    elif isinstance(wanted, int):
        assert reported == wanted, f"{where}: {reported}, the script has {wanted}"
    else:
        assert math.isclose(reported, wanted, rel_tol=1e-6, abs_tol=1e-12), (
            f"{where}: {reported}, the script has {wanted}"
        )


def div(part, whole):
    return part / whole if whole else None


def listed(run, only=None):
    """The files that the manifest lists now, with their tables."""
    folder = os.path.join(run, "data", "manifest")
    files = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".json"):
            with open(os.path.join(folder, name)) as file:
                commit = json.load(file)
            for path in commit.get("removed", []):
                del files[path]
            files.update((file["path"], file["table"]) for file in commit["files"])
    return {path: table for path, table in files.items() if only in (None, table)}


def tables(run):
    """The rows of these files, by table."""
    rows = collections.defaultdict(list)
    pictures = ("observation", "evidence")
    for path, table in listed(run).items():
        file = pyarrow.parquet.ParquetFile(os.path.join(run, "data", path))
        names = [name for name in file.schema_arrow.names if name not in pictures]
        rows[table] += file.read(columns=names).to_pylist()
    return rows


def prefill_gap(run):
    """The prefill gap over the footers of all files of `steps`, as if they were one file."""
    footers = []
    for path in listed(run, "steps"):
        metadata = pyarrow.parquet.read_metadata(os.path.join(run, "data", path)).metadata or {}
        if b"furrow.prefill_gap" in metadata:
            footers.append(json.loads(metadata[b"furrow.prefill_gap"]))
    if not footers:
        return None
    tokens = sum(footer["tokens"] for footer in footers)
    sizes = sorted(abs(gap) for footer in footers for gap in footer["gaps"])
    wanted = {
        "tokens": tokens,
        "mean_abs": sum(footer["mean_abs"] * footer["tokens"] for footer in footers) / tokens,
        "max": max(footer["max"] for footer in footers),
    }
    if len(sizes) == tokens:
        wanted |= {"p50": sizes[math.ceil(0.5 * tokens) - 1], "p99": sizes[math.ceil(0.99 * tokens) - 1]}
    return wanted


def wilson(successes, trials):
    """Wilson's 95 % interval: (p + z^2/2n +- z sqrt(p (1 - p) / n + z^2/4n^2)) / (1 + z^2/n)."""
    if not trials:
        return None
    z, p = 1.959963984540054, successes / trials
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    middle, scale = p + z * z / (2 * trials), 1 + z * z / trials
    return {"low": max(0.0, (middle - half) / scale), "high": min(1.0, (middle + half) / scale)}


def hours(run):
    """Totals over all processes: a process's last line, and for a reused pid also the last line before its
    uptime went back."""
    path = os.path.join(run, "metrics.jsonl")
    if not os.path.exists(path):
        return None
    ended, last = [], {}
    with open(path) as file:
        for line in map(json.loads, file):
            key = (line["role"], line["pid"], line.get("started"))
            if key in last and last[key]["uptime_seconds"] > line["uptime_seconds"]:
                ended.append(last[key])
            last[key] = line
    lines = ended + list(last.values())
    return lambda name: sum(line.get(name, 0) for line in lines)


def paused_seconds(run, begin, end):
    """Seconds between begin and end in which no coordinator lived, by metrics.jsonl: a line says that its
    process lived from its time less its uptime until its time."""
    path = os.path.join(run, "metrics.jsonl")
    if not os.path.exists(path):
        return 0.0
    paused, alive_until = 0.0, None
    with open(path) as file:
        for line in map(json.loads, file):
            if line["role"] not in ("run", "coordinator"):
                continue
            at = datetime.datetime.fromisoformat(line["time"])
            born = at - datetime.timedelta(seconds=line["uptime_seconds"])
            if alive_until is not None and (born - alive_until).total_seconds() > 1:
                paused += max(0.0, (min(born, end) - max(alive_until, begin)).total_seconds())
            alive_until = at if alive_until is None else max(at, alive_until)
    return paused


def check_counts(where, reported, rows):
    scored = [row for row in rows if row["status"] == "scored" and row["reward"] is not None]
    decided = [row for row in scored if row["score"]["success"] is not None]
    solved = sum(row["score"]["success"] for row in decided)
    steps = sum(row["num_steps"] for row in rows)
    tokens = sum(row["num_response_tokens"] for row in rows)
    for name, wanted in {
        "trajectories": len(rows),
        "scored": len(scored),
        "failed": len(rows) - len(scored),
        "judged": len(decided),
        "successes": solved,
        "steps": steps,
        "success_rate": div(float(solved), len(decided)),
        "reward_mean": div(sum(row["reward"] for row in scored), len(scored)),
        "failure_rate": div(float(len(rows) - len(scored)), len(rows)),
        "steps_mean": div(float(steps), len(rows)),
        "response_tokens_per_step": div(float(tokens), steps),
        "invalid_action_rate": div(float(sum(row["num_invalid_actions"] for row in rows)), steps),
        "device_seconds_per_scored": div(sum(row["gpu_micros"] for row in rows) / 1e6, len(scored)),
    }.items():
        same(f"{where}.{name}", reported[name], wanted)
    return scored


def check_parts(where, reported, wanted):
    whole = sum(wanted.values())
    assert {part["cause"] for part in reported} == set(wanted), f"{where}: {reported}"
    for part in reported:
        same(f"{where}.{part['cause']}", part["micros"], wanted[part["cause"]])
        same(f"{where}.{part['cause']}.share", part["share"], div(float(part["micros"]), whole) or 0.0)


def trained(rows):
    """Rows that are not of evaluations inside a job."""
    return [row for row in rows if row["split"] != "eval"]


def check_overview(reported, rows, total, run):
    trajectories, steps = rows["trajectories"], rows["steps"] + rows["failed_steps"]
    scored = check_counts("overview.counts", reported["counts"], trajectories)
    check_counts("overview.training", reported["training"], trained(trajectories))
    check_counts(
        "overview.evaluated", reported["evaluated"], [row for row in trajectories if row["split"] == "eval"]
    )
    begin = min(row["started_at"] for row in trajectories)
    end = max(row["ended_at"] for row in trajectories)
    wall = (end - begin).total_seconds() - paused_seconds(run, begin, end)
    same("wall_seconds", reported["wall_seconds"], wall)
    ends = collections.Counter((row["end"], row["status"]) for row in trajectories)
    assert {(line["end"], line["status"]): line["trajectories"] for line in reported["ends"]} == dict(ends)

    throughput = reported["throughput"]
    same("trajectories_per_hour", throughput["trajectories_per_hour"], len(scored) / (wall / 3600))
    same(
        "steps_per_second",
        throughput["steps_per_second"],
        sum(row["num_steps"] for row in trajectories) / wall,
    )
    generated = sum(len(row["response_token_ids"] or []) for row in steps)
    prefilled = sum(row["engine"]["prefill_tokens"] for row in steps)
    reused = sum(row["engine"]["reused_tokens"] for row in steps)
    for name, wanted in {"generated": generated, "prefilled": prefilled, "reused": reused}.items():
        same(f"tokens.{name}", reported["tokens"][name], wanted)
        same(f"tokens.{name}_per_second", reported["tokens"][f"{name}_per_second"], wanted / wall)
    same("tokens.reused_share", reported["tokens"]["reused_share"], div(float(reused), reused + prefilled))

    session = {cause: sum(row["timing"][f"{cause}_micros"] for row in trajectories) for cause in SESSION}
    check_parts("session_parts", reported["session_parts"], session)
    same(
        "device_micros_of_trajectories",
        reported["device_micros_of_trajectories"],
        sum(row["gpu_micros"] for row in trajectories),
    )

    versions = [
        row["policy_version_max"] for row in trained(trajectories) if row["policy_version_max"] is not None
    ]
    same("versions.newest", reported["versions"]["newest"], max(versions, default=None))
    behind = [row["staleness"] for row in trained(scored) if row["staleness"] is not None]
    same(
        "versions.staleness_mean",
        reported["versions"]["staleness_mean"],
        div(float(sum(behind)), len(behind)),
    )

    points = reported["over_time"]["points"]
    assert sum(point["scored"] for point in points) == len(scored)
    assert sum(point["failed"] for point in points) == len(trajectories) - len(scored)
    if len(points) == 1:
        same("over_time.rate", points[0]["trajectories_per_hour"], len(scored) / (wall / 3600))

    if total is None:
        assert reported["device_parts"] is None and reported["device_hours"] is None
        return
    device = {used: total(f"policy/device_micros/{used}") for used in DEVICE}
    slots = {used: total(f"env/slot_micros/{used}") for used in SLOTS}
    if sum(device.values()):
        check_parts("device_parts", reported["device_parts"], device)
        whole = sum(device.values())
        busy = whole - sum(device[used] for used in IDLE)
        measured = total("rollout/scored") / (whole / HOUR)
        same("device_hours", reported["device_hours"], whole / HOUR)
        same("trajectories_per_device_hour", throughput["trajectories_per_device_hour"], measured)
        same(
            "ceiling_device_bound",
            throughput["ceiling_device_bound"],
            div(total("rollout/scored"), busy / HOUR),
        )
        same(
            "ceiling_session_bound",
            throughput["ceiling_session_bound"],
            measured * sum(slots.values()) / slots["busy"],
        )
    if sum(slots.values()):
        check_parts("slot_parts", reported["slot_parts"], slots)
        same(
            "trajectories_per_slot_hour",
            throughput["trajectories_per_slot_hour"],
            total("rollout/scored") / (sum(slots.values()) / HOUR),
        )


def check_learning(reported, rows, gap):
    assert (reported["prefill_gap"] is None) == (gap is None), (
        f"prefill_gap: {reported['prefill_gap']}, the script has {gap}"
    )
    for name, wanted in (gap or {}).items():
        same(f"prefill_gap.{name}", reported["prefill_gap"][name], wanted)
    evaluated = [row for row in rows["trajectories"] if row["split"] == "eval"]
    check_counts("learning.evaluated", reported["evaluated"], evaluated)
    trajectories, steps, groups = (
        trained(rows["trajectories"]),
        trained(rows["steps"] + rows["failed_steps"]),
        trained(rows["groups"]),
    )
    scored = check_counts("learning.all", reported["all"], trajectories)
    of = collections.defaultdict(list)
    for row in trajectories:
        of["version", row["policy_version_max"]].append(row)
        of["suite", row["suite"]].append(row)
        of["task", row["suite"], row["task_id"]].append(row)

    def known(rows, name):
        return [value for row in rows for value in row[name] or [] if value is not None]

    for line in reported["by_version"]:
        check_counts(f"version {line['version']}", line, of["version", line["version"]])
        interval = wilson(line["successes"], line["judged"])
        assert (line["success_interval"] is None) == (interval is None), f"version {line['version']}: {line}"
        for end, wanted in (interval or {}).items():
            same(f"version {line['version']}.success_interval.{end}", line["success_interval"][end], wanted)
        mine = [row for row in steps if row["policy_version"] == line["version"]]
        for name, column in {"entropy_mean": "entropy", "logprob_mean": "logprobs"}.items():
            values = known(mine, column)
            same(f"version {line['version']}.{name}", line[name], div(math.fsum(values), len(values)))
        closed = [row for row in groups if row["policy_version_max"] == line["version"]]
        flat = sum(row["zero_variance"] is True for row in closed)
        same(f"version {line['version']}.groups", line["groups"], len(closed))
        same(
            f"version {line['version']}.zero_variance_share",
            line["zero_variance_share"],
            div(float(flat), len(closed)),
        )
    for line in reported["by_suite"]:
        check_counts(f"suite {line['suite']}", line, of["suite", line["suite"]])
    for line in reported["by_task"]:
        check_counts(f"task {line['task_id']}", line, of["task", line["suite"], line["task_id"]])
    lines = len(reported["by_version"]) + len(reported["by_suite"]) + len(reported["by_task"])
    assert lines + reported["versions_left_out"] + reported["tasks_left_out"] == len(of)

    flat = sum(row["zero_variance"] is True for row in groups)
    same("groups", reported["groups"], len(groups))
    same("zero_variance_share", reported["zero_variance_share"], div(float(flat), len(groups)))
    same(
        "invalid_action_rate",
        reported["invalid_action_rate"],
        div(float(sum(not row["action"]["valid"] for row in steps)), len(steps)),
    )
    for name, column in {"entropy_mean": "entropy", "logprob_mean": "logprobs"}.items():
        values = known(steps, column)
        same(name, reported[name], div(math.fsum(values), len(values)))

    def tally(values):
        return dict(collections.Counter(value for value in values if value is not None))

    assert reported["finish_reasons"] == tally(row["finish_reason"] for row in steps)
    assert reported["outcomes"] == tally(row["outcome"]["name"] for row in steps)
    assert reported["state_origins"] == tally(row["engine"]["state_origin"] for row in steps)
    assert [tuple(pair) for pair in reported["staleness"]] == sorted(
        tally(row["staleness"] for row in scored).items()
    )
    assert [tuple(pair) for pair in reported["lengths"]] == sorted(
        tally(row["num_steps"] for row in scored).items()
    )

    kept = reported["kept"]["lines"][0]
    without = {row["group_id"] for row in groups if row["zero_variance"] is True}
    same("kept.zero_variance", kept["zero_variance"], sum(row["group_id"] in without for row in scored))
    same("kept.kept", kept["kept"], sum(row["group_id"] not in without for row in scored))


def check_job(reported, rows, total):
    for line in reported["tables"]:
        same(f"tables.{line['table']}", line["rows"], len(rows[line["table"]]))
    for name in ("device", "slots", "sessions"):
        part = reported["ledger"][name]
        same(f"ledger.{name}", sum(line["micros"] for line in part["parts"]), part["micros"])
    check_plan({line["figure"]: line for line in reported["plan"] or []}, rows, total)
    if total is not None:
        same("ledger.cpu_micros", reported["ledger"]["cpu_micros"], total("tree/cpu_micros"))


def check_plan(reported, rows, total):
    """Compares the measured values and the bounds; the planned ones are the job's own."""
    if not reported:
        return
    trajectories = rows["trajectories"]
    steps = sum(row["num_steps"] for row in trajectories)
    tokens = sum(row["num_response_tokens"] or 0 for row in trajectories)
    pages = sum(
        row["timing"][f"{cause}_micros"]
        for row in trajectories
        for cause in SESSION
        if cause not in ("queue", "policy", "score")
    )
    same(
        "plan.trajectories",
        reported["trajectories"]["measured"],
        float(sum(row["status"] == "scored" for row in trained(trajectories))),
    )
    same("plan.tokens_a_step", reported["tokens_a_step"]["measured"], div(float(tokens), steps))
    same("plan.per_slot_hour", reported["per_slot_hour"]["planned"], HOUR / (pages / len(trajectories)))
    if total is None:
        return
    slots = {used: total(f"env/slot_micros/{used}") for used in SLOTS}
    same(
        "plan.slots_filled",
        reported["slots_filled"]["measured"],
        div(float(slots["busy"]), sum(slots.values())),
    )
    same(
        "plan.per_slot_hour, measured",
        reported["per_slot_hour"]["measured"],
        div(total("rollout/scored"), sum(slots.values()) / HOUR),
    )


class Report(html.parser.HTMLParser):
    """The metrics that a report carries, and each cell with one: its path, its value, its format, its
    text."""

    def __init__(self, text):
        super().__init__()
        self.metrics, self.cells, self.open = "", [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "script":
            assert attributes == {"type": "application/json", "id": "figures"}, (
                f"a report must run no script: {attributes}"
            )
            self.open = "figures"
        elif "data-figure" in attributes:
            self.open = "cell"
            self.cells.append(
                [attributes["data-figure"], json.loads(attributes["data-value"]), attributes["data-form"], ""]
            )

    def handle_data(self, text):
        if self.open == "figures":
            self.metrics += text
        elif self.open == "cell":
            self.cells[-1][3] += text

    def handle_endtag(self, tag):
        self.open = None


def check_text(where, value, form, text):
    """Compares the text of a value: three significant digits, or all digits of a count."""
    compared["values"] += 1
    if value is None:
        assert text == "–", f"{where}: {text!r} for nothing"
        return
    plain = text.replace("\u202f", "").replace("$", "")
    if form == "seconds":
        units = {"µs": 1e-6, "ms": 1e-3, "min": 60, "s": 1, "h": 3600}
        seconds = 0
        for part in plain.split():
            unit = next(unit for unit in units if part.endswith(unit))
            seconds += float(part.removesuffix(unit)) * units[unit]
        assert abs(seconds - value) <= max(1, 0.006 * value), f"{where}: {text!r} for {value}"
    elif form == "percent":
        assert abs(float(plain.removesuffix("%")) / 100 - value) <= 0.00051, f"{where}: {text!r} for {value}"
    elif form == "count":
        assert int(plain) == round(value), f"{where}: {text!r} for {value}"
    else:
        assert math.isclose(float(plain), value, rel_tol=0.006, abs_tol=5e-7), (
            f"{where}: {text!r} for {value}"
        )


def check_report(path, runs):
    with open(path, encoding="utf-8") as file:
        report = Report(file.read())
    reported = json.loads(report.metrics)["runs"]
    assert len(reported) == len(runs), f"the report has {len(reported)} runs, not {len(runs)}"
    trajectories = 0
    for run, metrics in zip(runs, reported, strict=True):
        rows = tables(run)
        check_overview(metrics["overview"], rows, hours(run), run)
        check_learning(metrics["learning"], rows, prefill_gap(run))
        trajectories += len(rows["trajectories"])
    assert len(report.cells) >= 10 * len(runs), f"{len(report.cells)} metrics have a cell"
    for path_of_value, value, form, text in report.cells:
        metric = {"runs": reported}
        for name in path_of_value.strip("/").split("/"):
            metric = metric[int(name)] if isinstance(metric, list) else metric[name]
        same(path_of_value, value, metric)
        check_text(path_of_value, value, form, text)
    print(
        f"{compared.total()} metrics agree over {trajectories} trajectories of {len(runs)} runs in a report"
    )


def main():
    if sys.argv[1] == "--report":
        check_report(sys.argv[2], sys.argv[3:])
        return
    run, *answers = sys.argv[1:]
    overview, learning, job = (json.loads(pathlib.Path(path).read_text("utf8")) for path in answers)
    rows, total = tables(run), hours(run)
    assert overview["head"]["step_files_left"] == 0, "steps are still being read"
    check_overview(overview, rows, total, run)
    check_learning(learning, rows, prefill_gap(run))
    check_job(job, rows, total)
    print(
        f"{compared.total()} metrics agree over {len(rows['trajectories'])} trajectories and "
        f"{len(rows['steps'] + rows['failed_steps'])} steps"
    )


if __name__ == "__main__":
    main()
