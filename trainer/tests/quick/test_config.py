"""The config file: errors name the key, and a resolved file reads back."""

from pathlib import Path

import pytest

from furrow_trainer import config as configuration
from furrow_trainer.command import main
from furrow_trainer.errors import ConfigError


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ({"runs": {}}, "runs: there is no such section"),
        ({"run": {"step_max": 1}}, "run.step_max: there is no such key"),
        ({"run": {"steps_max": "many"}}, "run.steps_max: 'many'; use a whole number"),
        ({"run": {"steps_max": True}}, "use a whole number"),
        ({"run": {"steps_max": 0}}, "run.steps_max: 0; use 1 or more"),
        ({"rl": {"algorithm": "ppo"}}, "rl.algorithm: 'ppo'; use one of reinforce, grpo"),
        ({"data": {"rank": 2, "world": 2}}, "data.rank: 2"),
        ({"optimizer": {"frozen": "vision"}}, "use a list of strings"),
    ],
)
def test_a_config_names_what_is_wrong(raw: dict[str, dict[str, object]], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        configuration.check(raw)


def test_a_resolved_config_reads_back(tmp_path: Path) -> None:
    want = configuration.check(
        {
            "run": {"output_dir": str(tmp_path / "out"), "checkpoint": str(tmp_path / "weights")},
            "data": {"run_dir": str(tmp_path / "run"), "reward_min": 0.5},
            "sft": {"dropped": ["note", 'a "b"']},
        }
    )
    path = tmp_path / "config.toml"
    path.write_text(configuration.to_toml(want))
    assert configuration.read(path) == want
    assert configuration.read(path, ["rl.kl=0.1", "run.device=cuda"]).rl.kl == 0.1


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_check_prints_the_resolved_file_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[run]\noutput_dir = "out"\ncheckpoint = "weights"\n[data]\nrun_dir = "run"\n')
    assert main([kind, str(path), "--check", "--set", "run.seed=3"]) == 0
    (tmp_path / "printed.toml").write_text(capsys.readouterr().out)
    assert configuration.read(tmp_path / "printed.toml") == configuration.read(path, ["run.seed=3"])
    assert {entry.name for entry in tmp_path.iterdir()} == {"config.toml", "printed.toml"}


def test_a_command_without_the_count_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"publish\.discarded: .*\{count\}"):
        configuration.check({"publish": {"discarded": ["furrow", "discarded", "8"]}})
