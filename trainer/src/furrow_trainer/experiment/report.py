"""The results of a course: one JSON file, plots, and a page with them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections import defaultdict
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

import numpy as np

from .. import config as configuration
from ..data import Choice, Reader
from ..learn import saved
from ..learn.metrics import read
from ..model import load
from ..model.config import read_config
from ..recompute import Gaps, recompute
from . import plot
from .course import ARMS, Course
from .plot import Line
from .statistics import bootstrap, wilson

# Metrics of metrics.jsonl that are plotted: file, title, key.
TRAINED = (
    ("entropy", "entropy of a sampled token, nats", "policy/entropy"),
    ("kl", "KL(policy that sampled || policy being trained), nats per token", "policy/kl_behaviour"),
    ("ratio", "importance ratio, mean", "ratio/mean"),
    ("staleness", "versions between sampling and training, mean", "staleness/mean"),
)
# The same of an arm's versions.
ACTED = (
    ("length", "steps per attempt, mean", "length"),
    ("invalid", "invalid actions of all attempts", "invalid actions"),
)
# Steps of each run whose log-probabilities are recomputed.
RECOMPUTED = 300
Tries = dict[tuple[str, int], float]


def write(course: Course, folder: Path) -> dict[str, Any]:
    """Reads the course's results, writes `report.json`, `README.md` and the plots, and returns the report."""
    folder.mkdir(parents=True, exist_ok=True)
    report = measured(course)
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", "utf8")
    for name, svg in plots(report).items():
        (folder / f"{name}.svg").write_text(svg, "utf8")
    (folder / "README.md").write_text(page(report), "utf8")
    return report


def measured(course: Course) -> dict[str, Any]:
    """All metrics of the report."""
    start = tries(course.out / "exam-start")
    exams = {"start": exam(start)}
    compared = {}
    ends = {}
    for arm in ARMS:
        for version in course.examined:
            found = tries(course.out / f"exam-{arm}-{version:02}")
            exams[f"{arm}-{version:02}"] = exam(found)
            ends[arm] = found
        compared[f"{arm} - start"] = difference(ends[arm], start)
    compared["learned - permuted"] = difference(ends["learned"], ends["permuted"])
    trained_on = set().union(
        *(seeds(course.out / arm / "attempts") for arm in ARMS), seeds(course.out / "demonstrations")
    )
    times = {
        path.stem: json.loads(path.read_text("utf8"))["seconds"]
        for path in sorted((course.out / "stages").glob("*.json"))
    }
    warm = read(course.out / "warm" / "metrics.jsonl")
    return {
        "conditions": conditions(),
        "layers": read_config(course.out / "random").text.layers,
        "seconds": times,
        "minutes to the learned policy": round(
            sum(seconds for name, seconds in times.items() if "permuted" not in name) / 60, 1
        ),
        "demonstrations": counts(course.out / "demonstrations"),
        "warm start": {"steps": len(warm), "nll of the last step": warm[-1]["loss/nll"] if warm else None},
        "examined": course.examined,
        "recomputed": recomputed(course),
        "held-out seeds that were trained on": len(trained_on & set(start)),
        "exams": exams,
        "differences, by seed": compared,
        "arms": {arm: of_arm(course.out / arm) for arm in ARMS},
        "settings": {
            name: configuration.to_toml(configuration.read(course.folder / name))
            for name in ("sft.toml", "rl.toml")
        },
    }


def recomputed(course: Course) -> dict[str, Any]:
    """Gaps between what the farm recorded and what PyTorch computes from the rows and the weights: of every
    exam, whose steps have one version each, and of attempts that the last weights mostly did not sample."""
    names = {"start": course.start} | {
        f"{arm}-{version:02}": course.weights(arm, version) for arm in ARMS for version in course.examined
    }
    gaps = Gaps()
    for name, weights in names.items():
        gaps.merge(recompute({0: load(weights)}, Reader(course.out / f"exam-{name}", Choice()), RECOMPUTED))
    last = course.weights("learned", course.versions)
    mixed = recompute(
        {course.versions: load(last)},
        Reader(course.out / "learned" / "attempts", Choice(trainable="rl")),
        RECOMPUTED,
    )
    return {
        "exams": {"counts": dict(gaps.counts), "gaps": gaps.table()},
        "attempts": {"counts": dict(mixed.counts), "gaps": mixed.table()},
    }


# ---- attempts ----


def tries(run: Path) -> Tries:
    """Reward by task and seed of a run whose groups have one attempt."""
    reader = Reader(run)
    found: Tries = {}
    for group in reader.groups():
        for trajectory in group.trajectories:
            found[group.row.task_id, group.row.seed] = float(trajectory.reward or 0.0)
        reader.done(group)
    return found


def seeds(run: Path) -> set[tuple[str, int]]:
    """Tasks and seeds of a run."""
    reader = Reader(run)
    found = set()
    for group in reader.groups():
        found.add((group.row.task_id, group.row.seed))
        reader.done(group)
    return found


def counts(run: Path) -> dict[str, int]:
    """Groups by task."""
    found: dict[str, int] = defaultdict(int)
    for task, _ in seeds(run):
        found[task] += 1
    return dict(sorted(found.items()))


def exam(found: Tries) -> dict[str, Any]:
    """Success on held-out seeds, one try each."""

    def line(rewards: list[float]) -> dict[str, Any]:
        solved = sum(reward >= 1 for reward in rewards)
        low, high = wilson(solved, len(rewards))
        return {
            "tried": len(rewards),
            "solved": solved,
            "success": solved / max(len(rewards), 1),
            "low": low,
            "high": high,
        }

    by_task = defaultdict(list)
    for (task, _), reward in found.items():
        by_task[task].append(reward)
    return {"all": line(list(found.values()))} | {
        task: line(rewards) for task, rewards in sorted(by_task.items())
    }


def difference(after: Tries, before: Tries) -> dict[str, float]:
    """Mean difference of success, seed by seed."""
    both = sorted(set(after) & set(before))
    off = [after[key] - before[key] for key in both]
    low, high = bootstrap(off)
    return {"seeds": len(both), "difference": float(np.mean(off)) if off else 0.0, "low": low, "high": high}


def of_arm(folder: Path) -> dict[str, Any]:
    """An arm, version by version: its attempts by the version that began them, its training by step."""
    reader = Reader(folder / "attempts")
    groups: dict[int, list[list[Any]]] = defaultdict(list)
    for group in reader.groups():
        by_version: dict[int, list[Any]] = defaultdict(list)
        for trajectory in group.trajectories:
            by_version[trajectory.policy_version_min or 0].append(trajectory)
        for version, found in by_version.items():
            groups[version].append(found)
        reader.done(group)
    versions = [of_version(version, groups[version]) for version in sorted(groups)]
    lines = read(folder / "training" / "metrics.jsonl")
    wanted = {
        "reward/mean",
        "seconds",
        "seconds/waited",
        "seconds/published",
        "gradient/norm",
        "attempts",
        *(name for _, _, name in TRAINED),
    }
    kept = [{name: line.get(name) for name in ("step", "version", *sorted(wanted))} for line in lines]
    newest = saved.newest(folder / "training" / "checkpoints")
    published = saved.read_state(newest).version if newest else 0
    return {"published": published, "updates": len(lines), "versions": versions, "training": kept}


def of_version(version: int, groups: list[list[Any]]) -> dict[str, Any]:
    """Attempts of one version. A group's attempts share a seed: its mean is one value of the interval."""
    attempts = [trajectory for group in groups for trajectory in group]
    low, high = bootstrap([float(np.mean([one.reward or 0.0 for one in group])) for group in groups])
    return {
        "version": version,
        "attempts": len(attempts),
        "groups": len(groups),
        "success": float(np.mean([one.reward or 0.0 for one in attempts])),
        "low": low,
        "high": high,
        "length": float(np.mean([one.num_steps for one in attempts])),
        "invalid actions": sum(one.num_invalid_actions for one in attempts),
        "ends": dict(sorted(_count(one.end for one in attempts).items())),
        "moved on while acting": sum(one.policy_version_max != one.policy_version_min for one in attempts),
    }


def conditions() -> dict[str, Any]:
    """The machine and the commit."""
    processor = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        named = [
            line.partition(":")[2].strip()
            for line in cpuinfo.read_text("utf8").splitlines()
            if line.startswith("model name")
        ]
        processor = named[0] if named else processor
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parent,
        )
        commit = answer.stdout.strip()
    except OSError:
        commit = ""
    return {
        "cpu": processor,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "commit": commit,
        "load": round(os.getloadavg()[2], 2),
    }


def _count(values: Any) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for value in values:
        found[value] += 1
    return found


# ---- plots and the page ----


def plots(report: dict[str, Any]) -> dict[str, str]:
    """SVG documents by name."""
    found = {}
    lines = []
    for arm, metrics in report["arms"].items():
        versions = metrics["versions"]
        lines.append(
            Line(
                arm,
                [(v["version"], v["success"]) for v in versions],
                [(v["low"], v["high"]) for v in versions],
            )
        )
    found["attempts"] = plot.figure(
        "success of the attempts trained on, 95 % (groups)", "version", lines, (0.0, 1.0)
    )
    lines = []
    for arm in report["arms"]:
        points = [(0, report["exams"]["start"]["all"])] + [
            (version, report["exams"][f"{arm}-{version:02}"]["all"]) for version in report["examined"]
        ]
        lines.append(
            Line(
                arm,
                [(x, one["success"]) for x, one in points],
                [(one["low"], one["high"]) for _, one in points],
                marks=True,
            )
        )
    found["exams"] = plot.figure("success on held-out seeds, 95 % (Wilson)", "version", lines, (0.0, 1.0))
    for name, title, column in TRAINED:
        found[name] = plot.figure(
            title, "update", [_trained(arm, metrics, column) for arm, metrics in report["arms"].items()]
        )
    for name, title, column in ACTED:
        lines = [
            Line(arm, [(v["version"], v[column]) for v in metrics["versions"]])
            for arm, metrics in report["arms"].items()
        ]
        found[name] = plot.figure(title, "version", lines)
    return found


def _trained(arm: str, metrics: dict[str, Any], column: str) -> Line:
    return Line(
        arm, [(line["step"], line[column]) for line in metrics["training"] if line[column] is not None]
    )


def page(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    rows = []
    for name, found in report["exams"].items():
        cells = [
            f"{100 * one['success']:.0f} % ({100 * one['low']:.0f} to {100 * one['high']:.0f})"
            for one in found.values()
        ]
        rows.append(f"| {name} | {found['all']['tried']} | {' | '.join(cells)} |")
    tasks = list(next(iter(report["exams"].values())))
    compared = [
        f"| {name} | {100 * one['difference']:+.0f} points | {100 * one['low']:+.0f} to "
        f"{100 * one['high']:+.0f} |"
        for name, one in report["differences, by seed"].items()
    ]
    arms = [
        f"| {arm} | {metrics['published']} | {metrics['updates']} | "
        f"{sum(v['attempts'] for v in metrics['versions'])} "
        f"| {_mean(metrics, 'staleness/mean'):.2f} | {_mean(metrics, 'ratio/mean'):.3f} | "
        f"{_mean(metrics, 'seconds'):.1f} s "
        f"| {_mean(metrics, 'seconds/waited'):.1f} s | {_mean(metrics, 'seconds/published'):.1f} s |"
        for arm, metrics in report["arms"].items()
    ]
    comparisons = report["recomputed"]
    gaps = [
        f"| {where} | {name} | {gap['compared']} | {gap['p50']:.1e} | {gap['p99']:.1e} | {gap['max']:.1e} |"
        for where, found in comparisons.items()
        for name, gap in found["gaps"].items()
    ]
    times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in report["seconds"].items())
    where = report["conditions"]
    pictures = "\n".join(f"![{name}]({name}.svg)" for name in plots(report))
    demonstrations = ", ".join(f"{task} {count}" for task, count in report["demonstrations"].items())
    return f"""<!-- Written by `furrow-trainer learn`; do not edit. -->
# A policy learns online

`deploy/learn.sh`, on {where["cores"]} cores of an {where["cpu"]}, Linux {where["kernel"]}, commit {where["commit"]}, load {where["load"]}.
From nothing to the learned policy: {report["minutes to the learned policy"]} minutes. Layers of the model: `{report["layers"]}`.

Demonstrations: {demonstrations}. Both arms begin with the same warm start and make the same number of updates; in `permuted` the rewards of a
version are permuted at random over all its attempts. Every exam is on the same seeds, of which {report["held-out seeds that were trained on"]} were
trained on; one attempt each, sampled as the attempts were.

| success on held-out seeds | tried | {" | ".join(tasks)} |
|---|---|{"---|" * len(tasks)}
{chr(10).join(rows)}

| at the end, seed by seed | difference | 95 % |
|---|---|---|
{chr(10).join(compared)}

| arm | versions | updates | attempts | staleness | ratio | an update | waiting for attempts | publishing |
|---|---|---|---|---|---|---|---|---|
{chr(10).join(arms)}

Log-probabilities and entropies recomputed by PyTorch from the Parquet rows and the weights, {comparisons["exams"]["counts"].get("steps", 0)} steps of
exams and {comparisons["attempts"]["counts"].get("steps", 0)} of attempts, the latter by the last weights, which sampled few of them:

| steps of | kind | compared | p50 | p99 | largest |
|---|---|---|---|---|---|
{chr(10).join(gaps)}

Time: {times}.

{pictures}
"""  # noqa: E501 - lines of the page


def _mean(metrics: dict[str, Any], column: str) -> float:
    values: Items[float] = [line[column] for line in metrics["training"] if line[column] is not None]
    return float(np.mean(values)) if values else 0.0
