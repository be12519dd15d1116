"""Benchmarks: each part reads the whole run, and the two arms of the loop differ in their waiting."""

from __future__ import annotations

import pytest

from furrow_trainer.bench import loop
from furrow_trainer.bench.report import Report
from paths import PROGRAM


@pytest.mark.skipif(PROGRAM is None, reason="no furrow program: build one, or name it in FURROW")
def test_the_farm_that_goes_on_waits_less() -> None:
    report = Report(anyway=True)
    plan = loop.Plan(
        str(PROGRAM), sessions=4, trajectories=8, steps=4, settle_seconds=0.5, train_seconds=4.0, versions=2
    )
    loop.bench(plan, report)
    print(report.text())
    assert report.median("collect, then train: a version") > 4.0 + 0.5
    assert report.median("collect while training: waiting for its trajectories") < report.median(
        "collect, then train: waiting for its trajectories"
    )
    assert report.median("collect while training / collect, then train") > 1.0
