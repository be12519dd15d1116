"""Stands in for `furrow` in the test of a course: collects runs of the game of one choice (`actor.py`) and
takes published weights."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paths import ORACLE_VL

if TYPE_CHECKING:
    from actor import Actor
    from farm import Farm

GROUPS, SIZE = 3, 4
CHECKPOINT = ORACLE_VL / "vl_f32"


def main(arguments: list[str]) -> None:
    if arguments[:2] == ["checkpoint", "init"]:
        shutil.copytree(CHECKPOINT, arguments[-1])
    elif arguments[0] == "publish":
        publish(
            Path(arguments[1]),
            Path(arguments[arguments.index("--run") + 1]),
            arguments[arguments.index("--id") + 1],
        )
    else:
        settings = dict(part.split("=", 1) for part in arguments if "=" in part)
        run(Path(arguments[1]).stem, Path(settings["run.output_dir"]) / settings["run.name"], settings)


def publish(weights: Path, run: Path, name: str) -> None:
    taken = published(run)
    if name not in [one for one, _ in taken]:
        taken.append((name, str(weights)))
        (run / "published.tmp").write_text(json.dumps(taken))
        (run / "published.tmp").rename(run / "published.json")
    print(json.dumps({"version": 1 + [one for one, _ in taken].index(name)}))


def published(run: Path) -> list[tuple[str, str]]:
    path = run / "published.json"
    return [(name, folder) for name, folder in json.loads(path.read_text())] if path.exists() else []


def run(job: str, folder: Path, settings: dict[str, str]) -> None:
    """Demonstrations and exams end by themselves; attempts go on, a version ahead of the newest weights at
    most."""
    # PyTorch takes seconds to load, and `publish` does not need it.
    from actor import Actor
    from farm import Farm

    farm = Farm(folder)
    if job != "attempt":
        actor = Actor(Path(settings.get("policy.checkpoint", str(CHECKPOINT))), 0, 5)
        kind = "scripted" if job == "demonstrate" else "model"
        play(farm, actor, 0 if job == "demonstrate" else 1000, 6, 1, kind)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    actor = Actor(Path(settings["policy.checkpoint"]), 0, 5)
    made = 0
    while True:
        weights = published(folder)
        if len(weights) != actor.version:
            actor.reload(Path(weights[-1][1]), len(weights))
        if made < (len(weights) + 2) * GROUPS:
            play(farm, actor, 100 + made, 1, SIZE, "model")
            made += 1
        time.sleep(0.02)


def play(farm: Farm, actor: Actor, first: int, groups: int, size: int, kind: str) -> None:
    from actor import SYMBOLS

    for seed in range(first, first + groups):
        name, symbol = f"g{seed:05}", seed % SYMBOLS
        attempts: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
            actor.attempt(farm, name, sample, symbol) for sample in range(size)
        ]
        for whole, _ in attempts:
            whole["policy_kind"] = kind
        rewards = [whole["reward"] for whole, _ in attempts]
        row = farm.group(
            name,
            rewards,
            task_id=f"symbol-{symbol}",
            seed=seed,
            policy_version_min=actor.version,
            policy_version_max=actor.version,
        )
        farm.commit(attempts, [row])


if __name__ == "__main__":
    main(sys.argv[1:])
