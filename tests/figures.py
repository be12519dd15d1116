#!/usr/bin/env python3
"""Computes the dashboard's figures a second time, from the Parquet files and metrics.jsonl alone, and holds the two together.

    figures.py RUN_DIR OVERVIEW.json LEARNING.json JOB.json
    figures.py --report REPORT.html RUN_DIR...

The three files are answers of /api/overview, /api/learning and /api/job. What each figure means: docs/DASHBOARD.md. Whole numbers must be
equal, rates to a millionth part; what a report shows must be what its figures say, as far as it is written out.
"""

import collections
import html.parser
import json
import math
import os
import sys

import pyarrow.parquet

DEVICE = ["decode", "prefill", "vision", "copy", "weights", "no_work", "no_room", "host"]
IDLE = ["no_work", "no_room", "host"]
SLOTS = ["busy", "starting", "no_assignment", "no_coordinator", "admission", "draining"]
SESSION = ["queue", "boot", "observe", "policy", "act", "settle", "record", "finish", "score"]
HOUR = 3.6e9

held = 0


def same(where, said, wanted):
    global held
    held += 1
    if said is None or wanted is None:
        assert said is None and wanted is None, f"{where}: {said}, the script has {wanted}"
    elif isinstance(wanted, int):
        assert said == wanted, f"{where}: {said}, the script has {wanted}"
    else:
        assert math.isclose(said, wanted, rel_tol=1e-6, abs_tol=1e-12), (
            f"{where}: {said}, the script has {wanted}"
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
    """What the footers of `steps` say of tokens that were scored again, as if all had been one file."""
    footers = []
    for path in listed(run, "steps"):
        said = pyarrow.parquet.read_metadata(os.path.join(run, "data", path)).metadata or {}
        if b"furrow.prefill_gap" in said:
            footers.append(json.loads(said[b"furrow.prefill_gap"]))
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
    """Totals over all processes: a process's last line, and of a number used again the last line before its uptime went back."""
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


def hold_counts(where, said, rows):
    scored = [row for row in rows if row["status"] == "scored" and row["reward"] is not None]
    judged = [row for row in scored if row["score"]["success"] is not None]
    solved = sum(row["score"]["success"] for row in judged)
    steps = sum(row["num_steps"] for row in rows)
    tokens = sum(row["num_response_tokens"] for row in rows)
    for name, wanted in {
        "trajectories": len(rows),
        "scored": len(scored),
        "failed": len(rows) - len(scored),
        "judged": len(judged),
        "successes": solved,
        "steps": steps,
        "success_rate": div(float(solved), len(judged)),
        "reward_mean": div(sum(row["reward"] for row in scored), len(scored)),
        "failure_rate": div(float(len(rows) - len(scored)), len(rows)),
        "steps_mean": div(float(steps), len(rows)),
        "response_tokens_per_step": div(float(tokens), steps),
        "invalid_action_rate": div(float(sum(row["num_invalid_actions"] for row in rows)), steps),
        "device_seconds_per_scored": div(sum(row["gpu_micros"] for row in rows) / 1e6, len(scored)),
    }.items():
        same(f"{where}.{name}", said[name], wanted)
    return scored


def hold_parts(where, said, wanted):
    whole = sum(wanted.values())
    assert {part["cause"] for part in said} == set(wanted), f"{where}: {said}"
    for part in said:
        same(f"{where}.{part['cause']}", part["micros"], wanted[part["cause"]])
        same(f"{where}.{part['cause']}.share", part["share"], div(float(part["micros"]), whole) or 0.0)


def trained(rows):
    """Without those of evaluations inside a job."""
    return [row for row in rows if row["split"] != "eval"]


def hold_overview(said, rows, total):
    trajectories, steps = rows["trajectories"], rows["steps"] + rows["failed_steps"]
    scored = hold_counts("overview.counts", said["counts"], trajectories)
    hold_counts("overview.training", said["training"], trained(trajectories))
    hold_counts(
        "overview.evaluated", said["evaluated"], [row for row in trajectories if row["split"] == "eval"]
    )
    begin = min(row["started_at"] for row in trajectories)
    end = max(row["ended_at"] for row in trajectories)
    wall = (end - begin).total_seconds()
    same("wall_seconds", said["wall_seconds"], wall)
    ends = collections.Counter((row["end"], row["status"]) for row in trajectories)
    assert {(line["end"], line["status"]): line["trajectories"] for line in said["ends"]} == dict(ends)

    throughput = said["throughput"]
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
        same(f"tokens.{name}", said["tokens"][name], wanted)
        same(f"tokens.{name}_per_second", said["tokens"][f"{name}_per_second"], wanted / wall)
    same("tokens.reused_share", said["tokens"]["reused_share"], div(float(reused), reused + prefilled))

    session = {cause: sum(row["timing"][f"{cause}_micros"] for row in trajectories) for cause in SESSION}
    hold_parts("session_parts", said["session_parts"], session)
    same(
        "device_micros_of_trajectories",
        said["device_micros_of_trajectories"],
        sum(row["gpu_micros"] for row in trajectories),
    )

    versions = [
        row["policy_version_max"] for row in trained(trajectories) if row["policy_version_max"] is not None
    ]
    same("versions.newest", said["versions"]["newest"], max(versions, default=None))
    behind = [row["staleness"] for row in trained(scored) if row["staleness"] is not None]
    same("versions.staleness_mean", said["versions"]["staleness_mean"], div(float(sum(behind)), len(behind)))

    points = said["over_time"]["points"]
    assert sum(point["scored"] for point in points) == len(scored)
    assert sum(point["failed"] for point in points) == len(trajectories) - len(scored)

    if total is None:
        assert said["device_parts"] is None and said["device_hours"] is None
        return
    device = {used: total(f"policy/device_micros/{used}") for used in DEVICE}
    slots = {used: total(f"env/slot_micros/{used}") for used in SLOTS}
    if sum(device.values()):
        hold_parts("device_parts", said["device_parts"], device)
        whole = sum(device.values())
        busy = whole - sum(device[used] for used in IDLE)
        measured = total("rollout/scored") / (whole / HOUR)
        same("device_hours", said["device_hours"], whole / HOUR)
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
        hold_parts("slot_parts", said["slot_parts"], slots)
        same(
            "trajectories_per_slot_hour",
            throughput["trajectories_per_slot_hour"],
            total("rollout/scored") / (sum(slots.values()) / HOUR),
        )


def hold_learning(said, rows, gap):
    assert (said["prefill_gap"] is None) == (gap is None), (
        f"prefill_gap: {said['prefill_gap']}, the script has {gap}"
    )
    for name, wanted in (gap or {}).items():
        same(f"prefill_gap.{name}", said["prefill_gap"][name], wanted)
    evaluated = [row for row in rows["trajectories"] if row["split"] == "eval"]
    hold_counts("learning.evaluated", said["evaluated"], evaluated)
    trajectories, steps, groups = (
        trained(rows["trajectories"]),
        trained(rows["steps"] + rows["failed_steps"]),
        trained(rows["groups"]),
    )
    scored = hold_counts("learning.all", said["all"], trajectories)
    of = collections.defaultdict(list)
    for row in trajectories:
        of["version", row["policy_version_max"]].append(row)
        of["suite", row["suite"]].append(row)
        of["task", row["suite"], row["task_id"]].append(row)
    known = lambda rows, name: [value for row in rows for value in row[name] or [] if value is not None]
    for line in said["by_version"]:
        hold_counts(f"version {line['version']}", line, of["version", line["version"]])
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
    for line in said["by_suite"]:
        hold_counts(f"suite {line['suite']}", line, of["suite", line["suite"]])
    for line in said["by_task"]:
        hold_counts(f"task {line['task_id']}", line, of["task", line["suite"], line["task_id"]])
    lines = len(said["by_version"]) + len(said["by_suite"]) + len(said["by_task"])
    assert lines + said["versions_left_out"] + said["tasks_left_out"] == len(of)

    flat = sum(row["zero_variance"] is True for row in groups)
    same("groups", said["groups"], len(groups))
    same("zero_variance_share", said["zero_variance_share"], div(float(flat), len(groups)))
    same(
        "invalid_action_rate",
        said["invalid_action_rate"],
        div(float(sum(not row["action"]["valid"] for row in steps)), len(steps)),
    )
    for name, column in {"entropy_mean": "entropy", "logprob_mean": "logprobs"}.items():
        values = known(steps, column)
        same(name, said[name], div(math.fsum(values), len(values)))
    tally = lambda values: dict(collections.Counter(value for value in values if value is not None))
    assert said["finish_reasons"] == tally(row["finish_reason"] for row in steps)
    assert said["outcomes"] == tally(row["outcome"]["name"] for row in steps)
    assert said["state_origins"] == tally(row["engine"]["state_origin"] for row in steps)
    assert [tuple(pair) for pair in said["staleness"]] == sorted(
        tally(row["staleness"] for row in scored).items()
    )
    assert [tuple(pair) for pair in said["lengths"]] == sorted(
        tally(row["num_steps"] for row in scored).items()
    )

    kept = said["kept"]["lines"][0]
    without = {row["group_id"] for row in groups if row["zero_variance"] is True}
    same("kept.zero_variance", kept["zero_variance"], sum(row["group_id"] in without for row in scored))
    same("kept.kept", kept["kept"], sum(row["group_id"] not in without for row in scored))


def hold_job(said, rows, total):
    for line in said["tables"]:
        same(f"tables.{line['table']}", line["rows"], len(rows[line["table"]]))
    for name in ("device", "slots", "sessions"):
        part = said["ledger"][name]
        same(f"ledger.{name}", sum(line["micros"] for line in part["parts"]), part["micros"])
    hold_plan({line["figure"]: line for line in said["plan"] or []}, rows, total)
    if total is not None:
        same("ledger.cpu_micros", said["ledger"]["cpu_micros"], total("tree/cpu_micros"))


def hold_plan(said, rows, total):
    """What was planned is the job's own word; its bounds and what was measured are computed here."""
    if not said:
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
        said["trajectories"]["measured"],
        float(sum(row["status"] == "scored" for row in trained(trajectories))),
    )
    same("plan.tokens_a_step", said["tokens_a_step"]["measured"], div(float(tokens), steps))
    same("plan.per_slot_hour", said["per_slot_hour"]["planned"], HOUR / (pages / len(trajectories)))
    if total is None:
        return
    slots = {used: total(f"env/slot_micros/{used}") for used in SLOTS}
    same(
        "plan.slots_filled", said["slots_filled"]["measured"], div(float(slots["busy"]), sum(slots.values()))
    )
    same(
        "plan.per_slot_hour, measured",
        said["per_slot_hour"]["measured"],
        div(total("rollout/scored"), sum(slots.values()) / HOUR),
    )


class Report(html.parser.HTMLParser):
    """The figures that a report carries, and each cell that shows one: its place, its value, how it is written, its text."""

    def __init__(self, text):
        super().__init__()
        self.figures, self.cells, self.open = "", [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "script":
            assert attributes == {"type": "application/json", "id": "figures"}, (
                f"a report runs no script: {attributes}"
            )
            self.open = "figures"
        elif "data-figure" in attributes:
            self.open = "cell"
            self.cells.append(
                [attributes["data-figure"], json.loads(attributes["data-value"]), attributes["data-form"], ""]
            )

    def handle_data(self, text):
        if self.open == "figures":
            self.figures += text
        elif self.open == "cell":
            self.cells[-1][3] += text

    def handle_endtag(self, tag):
        self.open = None


def hold_shown(where, value, form, text):
    """What is written for a value: three digits that matter, or all of a count."""
    global held
    held += 1
    if value is None:
        assert text == "–", f"{where}: {text!r} for nothing"
        return
    plain = text.replace("\u202f", "").replace("$", "")
    if form == "seconds":
        units = {"µs": 1e-6, "ms": 1e-3, "min": 60, "s": 1, "h": 3600}
        said = 0
        for part in plain.split():
            unit = next(unit for unit in units if part.endswith(unit))
            said += float(part.removesuffix(unit)) * units[unit]
        assert abs(said - value) <= max(1, 0.006 * value), f"{where}: {text!r} for {value}"
    elif form == "percent":
        assert abs(float(plain.removesuffix("%")) / 100 - value) <= 0.00051, f"{where}: {text!r} for {value}"
    elif form == "count":
        assert int(plain) == round(value), f"{where}: {text!r} for {value}"
    else:
        assert math.isclose(float(plain), value, rel_tol=0.006, abs_tol=5e-7), (
            f"{where}: {text!r} for {value}"
        )


def hold_report(path, runs):
    with open(path, encoding="utf-8") as file:
        report = Report(file.read())
    told = json.loads(report.figures)["runs"]
    assert len(told) == len(runs), f"{len(told)} runs are told of, {len(runs)} were asked for"
    trajectories = 0
    for run, figures in zip(runs, told):
        rows = tables(run)
        hold_overview(figures["overview"], rows, hours(run))
        hold_learning(figures["learning"], rows, prefill_gap(run))
        trajectories += len(rows["trajectories"])
    assert len(report.cells) >= 10 * len(runs), f"{len(report.cells)} figures are shown"
    for place, value, form, text in report.cells:
        figure = {"runs": told}
        for name in place.strip("/").split("/"):
            figure = figure[int(name)] if isinstance(figure, list) else figure[name]
        same(place, value, figure)
        hold_shown(place, value, form, text)
    print(f"{held} figures agree over {trajectories} trajectories of {len(runs)} runs in a report")


def main():
    if sys.argv[1] == "--report":
        return hold_report(sys.argv[2], sys.argv[3:])
    run, *answers = sys.argv[1:]
    overview, learning, job = (json.load(open(path)) for path in answers)
    rows, total = tables(run), hours(run)
    assert overview["head"]["step_files_left"] == 0, "steps are still being read"
    hold_overview(overview, rows, total)
    hold_learning(learning, rows, prefill_gap(run))
    hold_job(job, rows, total)
    print(
        f"{held} figures agree over {len(rows['trajectories'])} trajectories and {len(rows['steps'] + rows['failed_steps'])} steps"
    )


if __name__ == "__main__":
    main()
