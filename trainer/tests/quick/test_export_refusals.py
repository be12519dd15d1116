"""What an export refuses; the formats themselves are tested in test_export.py."""

from pathlib import Path

import pytest

from farm import Farm
from furrow_trainer.command import main
from furrow_trainer.errors import ConfigError, DataError
from furrow_trainer.export import export


def test_what_cannot_be_exported_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    farm = Farm(tmp_path / "run")
    farm.commit([farm.trajectory("g", 0, policy_kind="scripted")], [farm.group("g", [1.0])])
    with pytest.raises(ConfigError, match="'tfrecord' is not a format"):
        export("tfrecord", tmp_path / "run", tmp_path / "out", None, [])
    with pytest.raises(DataError, match="has no tokens"):
        export("verl", tmp_path / "run", tmp_path / "out", None, [])
    assert not (tmp_path / "out").exists(), "nothing is left half written under the name that was asked for"
    with pytest.raises(ConfigError, match="use KEY=VALUE with one of policy_kinds"):
        export("verl", tmp_path / "run", tmp_path / "out", None, ["colour=red"])
    assert (
        main(["export", "trl", str(tmp_path / "run"), str(tmp_path / "rows"), "--set", "reward_min=0.5"]) == 0
    )
    assert main(["export", "trl", str(tmp_path / "run"), str(tmp_path / "rows")]) == 1
    assert "exists" in capsys.readouterr().err
