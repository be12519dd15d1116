"""Benchmarks: each part reads the whole run; a busy machine and an empty plan are refused."""

from pathlib import Path

import pytest

from farm import Farm
from furrow_trainer.bench import loop, reading
from furrow_trainer.bench.report import Report
from furrow_trainer.errors import ConfigError, TrainerError


def test_each_part_of_the_reader_reads_all_of_it(tmp_path: Path) -> None:
    farm = Farm(tmp_path)
    for number in range(3):
        name = f"g{number}"
        farm.commit([farm.trajectory(name, i, 1.0, 3) for i in range(2)], [farm.group(name, [1.0, 1.0])])
    farm.merge(
        "steps",
        sorted(path for path, entry in farm.files.items() if entry["table"] == "steps")[:2],
        keep_parts=False,
    )
    files = reading.step_files(tmp_path)
    size = sum(path.stat().st_size for path in files)
    assert len(files) == 2
    assert reading.metadata(tmp_path) == 6
    assert (
        reading.read_tables(files)
        == reading.read_bytes(files)
        == reading.read_bytes(files, forget=True)
        == size
    )
    assert reading.read(tmp_path, files, verify=True) == size
    report = Report(anyway=True)
    reading.bench(tmp_path, None, 0.01, 2, report)
    value = report.value()
    assert all(len(figure["rounds"]) == 2 and figure["median"] > 0 for figure in value["figures"].values()), (
        value
    )
    assert value["figures"]["steps"]["unit"] == "MB/s" and "18 rows" in value["notes"][0]
    assert report.text().count("rounds") == len(value["figures"])


def test_a_busy_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (3.0, 1.0, 1.0))
    with pytest.raises(TrainerError, match="more than 1; wait, or measure with --anyway"):
        Report(anyway=False)
    assert Report(anyway=True).conditions["load"] == 3.0


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"versions": 0}, "--versions: 0"),
        ({"trajectories": 0}, "--trajectories: 0"),
        ({"train_seconds": -1.0}, "--train-seconds: -1"),
    ],
)
def test_a_plan_that_measures_nothing_is_refused(setting: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loop.Plan("furrow", **setting)  # type: ignore[arg-type]
