"""The learning experiment: its statistics, and the whole course with a stand-in for the farm."""

from __future__ import annotations

import json
import shutil
import sys
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest

from furrow_trainer import config as configuration
from furrow_trainer.errors import ConfigError, TrainerError
from furrow_trainer.experiment import Course, plot, report
from furrow_trainer.experiment.course import JOBS
from furrow_trainer.experiment.statistics import Z, bootstrap, wilson
from paths import ORACLE_VL, REPOSITORY

RL = """
[run]
steps_max = 2
[data]
wait_seconds = 60
[optimizer]
learning_rate = 1e-3
[rl]
algorithm = "reinforce"
advantage = "rloo"
groups_per_step = 3
skip_zero_variance = false
entropy = 0.003
"""


@pytest.mark.parametrize(("solved", "tried"), [(0, 10), (10, 10), (1, 3), (37, 300), (299, 300)])
def test_wilsons_bounds_are_the_roots_of_their_equation(solved: int, tried: int) -> None:
    """(p - x)^2 = z^2 x (1 - x) / n"""
    for bound in wilson(solved, tried):
        assert 0 <= bound <= 1
        assert (solved / tried - bound) ** 2 == pytest.approx(Z * Z * bound * (1 - bound) / tried, abs=1e-12)


def test_a_bootstrap_of_many_values_is_the_normal_interval() -> None:
    values = np.random.default_rng(3).random(4000)
    low, high = bootstrap(values.tolist())
    half = Z * values.std() / 4000**0.5
    assert low == pytest.approx(values.mean() - half, abs=0.1 * half) and high == pytest.approx(
        values.mean() + half, abs=0.1 * half
    )


def test_the_courses_own_files_fit_each_other() -> None:
    folder = REPOSITORY / "deploy" / "learn"
    course = Course(folder, Path("/nowhere"), "furrow")
    course.check()
    assert course.versions >= 20
    jobs = {name: (folder / name).read_text("utf8") for name in JOBS}
    rl = configuration.read(folder / "rl.toml")
    # What a step learns from is what the farm admits for a version, and the policy that is examined is the
    # one that acted.
    assert (
        f"trajectories_per_version = {rl.rl.groups_per_step * 8} " in jobs["attempt.toml"]
        and "group_size = 8\n" in jobs["attempt.toml"]
    )
    sections = [
        jobs[name][jobs[name].index("[policy.sampling]") : jobs[name].index("[env]")]
        for name in ("attempt.toml", "examine.toml")
    ]
    assert sections[0] == sections[1]
    seeds = [line for name in JOBS[:3] for line in jobs[name].splitlines() if line.startswith("seed = ")]
    assert len(seeds) == len(set(seeds)) == 3, seeds


def test_a_course_is_run_once_and_reported(tmp_path: Path) -> None:
    folder, out = tmp_path / "jobs", tmp_path / "out"
    folder.mkdir()
    for name in JOBS:
        (folder / name).write_text(RL if name == "rl.toml" else "")
    furrow = tmp_path / "furrow"
    modules = f"{REPOSITORY}/trainer/src:{REPOSITORY}/trainer/tests"
    furrow.write_text(
        f'#!/bin/sh\nPYTHONPATH={modules} exec {sys.executable} {REPOSITORY}/trainer/tests/stand_in.py "$@"\n'
    )
    furrow.chmod(0o755)
    # The stand-in's checkpoint has no tokenizer for demonstrations: this stage counts as done.
    shutil.copytree(ORACLE_VL / "vl_f32", out / "warm" / "checkpoints" / "00000001" / "model")
    (out / "stages").mkdir()
    (out / "stages" / "warm.json").write_text('{"done": true, "seconds": 1.0}\n')
    course = Course(folder, out, str(furrow))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY / "trainer" / "src"))
        course.run()
        changed = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
        course.run()
    assert changed == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}, (
        "what is done is not done again"
    )
    written = report.write(course, tmp_path / "report")
    assert json.loads((tmp_path / "report" / "report.json").read_text())["exams"] == written["exams"]
    assert list(written["exams"]) == ["start", "learned-01", "learned-02", "permuted-01", "permuted-02"]
    assert all(one["all"]["tried"] == 6 for one in written["exams"].values())
    for arm in written["arms"].values():
        assert arm["published"] == arm["updates"] == 2
        assert [version["version"] for version in arm["versions"]][:2] == [0, 1]
    assert written["held-out seeds that were trained on"] == 0
    assert written["demonstrations"] == {"symbol-0": 2, "symbol-1": 2, "symbol-2": 2}
    settings = {
        arm: configuration.read(out / arm / "training" / "config.toml").rl.permute_rewards
        for arm in written["arms"]
    }
    assert settings == {"learned": False, "permuted": True}
    plots = sorted((tmp_path / "report").glob("*.svg"))
    assert len(plots) == 8
    for path in plots:
        xml.etree.ElementTree.parse(path)
    assert "| start | 6 |" in (tmp_path / "report" / "README.md").read_text()


def test_a_course_reports_what_failed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no demonstrate\.toml"):
        Course(tmp_path, tmp_path / "out", "furrow").run()
    for name in JOBS:
        (tmp_path / name).write_text("[rl]\npasses = 2\n" if name == "rl.toml" else "")
    with pytest.raises(ConfigError, match="a step is a version"):
        Course(tmp_path, tmp_path / "out", "furrow").run()
    (tmp_path / "rl.toml").write_text("")
    furrow = tmp_path / "furrow"
    furrow.write_text("#!/bin/sh\necho no room >&2\nexit 3\n")
    furrow.chmod(0o755)
    with pytest.raises(TrainerError, match=r"random: .* status 3; no room"):
        Course(tmp_path, tmp_path / "out", str(furrow)).run()
    assert json.loads((tmp_path / "out" / "stages" / "random.json").read_text())["done"] is False


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 24, ["0", "5", "10", "15", "20"]),
        (1, 24, ["5", "10", "15", "20"]),
        (0.128, 0.259, ["0.15", "0.2", "0.25"]),
        (-7.5e-9, 0.00836, ["0", "0.002", "0.004", "0.006", "0.008"]),
        (0, 1, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
    ],
)
def test_an_axis_has_round_numbers(low: float, high: float, ticks: list[str]) -> None:
    assert [f"{tick:.6g}" for tick in plot._ticks(low, high)] == ticks
