#!/usr/bin/env python3
"""Computes `furrow report --json` of a data set a second time, from the Parquet files alone, and compares the
two.

    evaluate.py RUN_OR_DATA_DIR REPORT.json

Rates and pass@k are compared exactly: with fractions, and pass@k by counting choices. Bounds of a bootstrap
are compared with those of another random generator, so within a tolerance; Wilson's with the roots of the
quadratic equation they are the roots of.
"""

import collections
import fractions
import json
import math
import os
import random
import sys
import urllib.parse

import pyarrow.parquet

Z = 1.959963984540054
RESAMPLES = 2000
COLUMNS = [
    "group_id", "sample_index", "task_id", "suite", "split", "status", "end", "reward", "score", "task",
    "task_json", "policy_version_min", "policy_version_max",
]  # fmt: skip


def rows(data):
    """The rows of the files that the manifest lists now."""
    listed = {}
    for name in sorted(os.listdir(os.path.join(data, "manifest"))):
        if not name.endswith(".json"):
            continue
        with open(os.path.join(data, "manifest", name)) as file:
            commit = json.load(file)
        for path in commit.get("removed", []):
            del listed[path]
        listed.update((file["path"], file) for file in commit["files"])
    for path, file in listed.items():
        if file["table"] == "trajectories":
            yield from pyarrow.parquet.read_table(os.path.join(data, path), columns=COLUMNS).to_pylist()


def keys(row):
    line = json.loads(row["task_json"])
    site = line.get("web_name") or urllib.parse.urlsplit(row["task"]["start_url"]).hostname
    found = [("all", "", ""), ("suite", row["suite"], ""), ("site", row["suite"], site)]
    if line.get("difficulty") not in (None, ""):
        found.append(("difficulty", row["suite"], str(line["difficulty"])))
    return found


def choices(tried, right, k):
    """The share of the ways to choose k attempts that include a successful one."""
    return 1 - fractions.Fraction(math.comb(tried - right, k), math.comb(tried, k))


def wilson(rate, trials):
    """The rates p at which the observed one is exactly Z standard errors off: (rate - p)² = Z² p (1 - p) /
    trials."""
    a, b, c = 1 + Z * Z / trials, -(2 * rate + Z * Z / trials), rate * rate
    root = math.sqrt(max(0.0, b * b - 4 * a * c))
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


def bootstrap(tasks):
    """Interval of the mean of `tasks`, lists of terms; whole lists are resampled."""
    rng = random.Random(20261122)
    means = []
    sums = [(sum(task), len(task)) for task in tasks]
    for _ in range(RESAMPLES):
        resample = rng.choices(sums, k=len(sums))
        means.append(sum(task[0] for task in resample) / sum(task[1] for task in resample))
    means.sort()
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]


def check_rate(where, reported, tasks, kind):
    terms = [float(term) for task in tasks for term in task]
    if not terms:
        assert reported is None, f"{where}: {reported} of nothing"
        return
    value = sum(terms) / len(terms)
    assert abs(reported["value"] - value) < 1e-6, f"{where}: {reported} is not {value}"
    if kind == "trials" and all(len(task) == 1 for task in tasks):
        method, (low, high), near = "wilson", wilson(value, len(terms)), 1e-9
    elif kind != "numbers" and value in (0.0, 1.0):
        method, (low, high), near = "wilson_by_task", wilson(value, len(tasks)), 1e-9
    elif len({sum(task) / len(task) for task in tasks}) == 1:
        assert reported.get("interval") is None, f"{where}: {reported} of tasks all alike"
        return
    else:
        spread = max(terms) - min(terms)
        method, near = "bootstrap_by_task", 1e-9 + 0.2 * spread / math.sqrt(len(tasks))
        low, high = bootstrap([[float(term) for term in task] for task in tasks])
    interval = reported["interval"]
    assert interval["method"] == method, f"{where}: {interval}, not {method}"
    assert abs(interval["low"] - low) < near and abs(interval["high"] - high) < near, (
        f"{where}: {interval}, not {low}, {high}"
    )


def versions(found):
    """Attempts of split `eval` by version: a group's version is that of its scored attempts, which must have
    one."""
    groups = collections.defaultdict(list)
    for row in found:
        if row["split"] == "eval":
            groups[row["group_id"]].append(row)
    by_version = collections.defaultdict(list)
    for name, attempts in groups.items():
        scored = [row for row in attempts if row["status"] == "scored"]
        bounds = {row[f"policy_version_{side}"] for row in scored for side in ("min", "max")}
        assert len(bounds) <= 1, f"{name} is of an evaluation and was acted on {bounds}"
        last = [row["policy_version_max"] for row in attempts if row["policy_version_max"] is not None][:1]
        by_version[next(iter(bounds), None) if bounds else next(iter(last), None)].extend(attempts)
    return {} if set(by_version) == {None} else by_version


def check_line(line, attempts):
    where = (line["by"], line["suite"], line["name"], line.get("version"))
    scored = [row for row in attempts if row["status"] == "scored" and row["reward"] is not None]
    decided = [row for row in scored if row["score"]["success"] is not None]
    failed = collections.Counter(row["end"] for row in attempts if row not in scored)
    slots = {(row["group_id"], row["sample_index"]) for row in attempts}
    with_reward = {(row["group_id"], row["sample_index"]) for row in scored}

    def task(row):
        return row["suite"], row["task_id"]

    def problem(row):
        return row["suite"], row["task_id"], row["task"]["seed"]

    counts = {
        "tasks": len({task(row) for row in attempts}),
        "problems": len({problem(row) for row in attempts}),
        "scored": len(scored),
        "judged": len(decided),
        "failed": dict(failed),
        "lost_slots": len(slots - with_reward),
    }
    for name, count in counts.items():
        assert line[name] == count, f"{where}: {name} is {line[name]}, not {count}"
    solved = sum(int(row["score"]["success"]) for row in decided)
    for name, zeros in {
        "success_lost_as_zero": len(slots - with_reward),
        "success_failed_as_zero": sum(failed.values()),
    }.items():
        trials = len(decided) + zeros
        got, want = line[name], solved / trials if trials else None
        assert got == want or abs(got - want) < 1e-12, f"{where}: {name} is {got}, not {want}"

    def by_task(found, value):
        tasks = collections.defaultdict(list)
        for row in found:
            tasks[task(row)].append(value(row))
        return list(tasks.values())

    check_rate(
        (*where, "success"),
        line["success"],
        by_task(decided, lambda row: int(row["score"]["success"])),
        "trials",
    )
    check_rate((*where, "reward"), line["reward"], by_task(scored, lambda row: row["reward"]), "numbers")
    tallies = collections.defaultdict(list)
    for row in decided:
        tallies[problem(row)].append(int(row["score"]["success"]))
    most = max((len(tally) for tally in tallies.values()), default=0)
    wanted = [2**power for power in range(20) if 2**power <= most]
    assert [entry["k"] for entry in line["pass"]] == wanted, (
        f"{where}: pass@k of {line['pass']}, not {wanted}"
    )
    for entry in line["pass"]:
        k = entry["k"]
        tasks, counted = collections.defaultdict(list), 0
        for (suite, name, _), tally in tallies.items():
            if len(tally) >= k:
                tasks[suite, name].append(choices(len(tally), sum(tally), k))
                counted += 1
        assert entry["problems"] == counted, (
            f"{where}: pass@{k} over {entry['problems']} problems, not {counted}"
        )
        check_rate((*where, f"pass@{k}"), entry, list(tasks.values()), "trials" if most <= k else "chances")


def main():
    directory, report = sys.argv[1:]
    data = os.path.join(directory, "data") if os.path.isdir(os.path.join(directory, "data")) else directory
    with open(report) as file:
        reported = json.load(file)
    lines = collections.defaultdict(list)
    found = list(rows(data))
    for row in found:
        for key in keys(row):
            lines[key].append(row)
    reported_lines = {(line["by"], line["suite"], line["name"]): line for line in reported["lines"]}
    assert set(reported_lines) == set(lines), f"lines differ: {set(reported_lines) ^ set(lines)}"
    for key, line in reported_lines.items():
        check_line(line, lines[key])
    evaluated = versions(found)
    assert [line["version"] for line in reported["versions"]] == sorted(
        evaluated, key=lambda version: (version is not None, version)
    ), reported
    for line in reported["versions"]:
        check_line(line, evaluated[line["version"]])
    print(
        f"{len(reported_lines)} lines over {len(lines['all', '', ''])} attempts agree, and {len(evaluated)} "
        "evaluations"
    )


if __name__ == "__main__":
    main()
