"""What works without the packages of the extra `torch`, and what the commands that need them say."""

import sys
import tomllib
from pathlib import Path

import pytest

from farm import Farm
from furrow_trainer import command
from furrow_trainer.command import EXTRA, main

MODULES = {"pillow": "PIL"}


@pytest.fixture
def run(tmp_path: Path) -> str:
    """A run directory with one group of one trajectory."""
    farm = Farm(tmp_path / "run")
    farm.commit([farm.trajectory("g", 0)], [farm.group("g", [1.0])])
    return str(tmp_path / "run")


@pytest.fixture
def without_extra(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the packages: Python refuses to import a name whose entry in `sys.modules` is None, as if it were
    not installed. Comes after the run, whose pictures Pillow draws."""
    for loaded in list(sys.modules):
        root, _, below = loaded.partition(".")
        # Modules of the package that a test before this one loaded would not be imported again.
        if root in EXTRA or (root == "furrow_trainer" and below.startswith(("learn", "model", "recompute"))):
            monkeypatch.delitem(sys.modules, loaded)
    for name in EXTRA:
        monkeypatch.setitem(sys.modules, name, None)


def config(path: Path, kind: str) -> str:
    file = path / f"{kind}.toml"
    file.write_text(
        '[run]\noutput_dir = "out"\ncheckpoint = "start"\nsteps_max = 1\n[data]\nrun_dir = "run"\n', "utf8"
    )
    return str(file)


def test_the_extra_is_that_of_the_package() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    extra = tomllib.loads(project.read_text("utf8"))["project"]["optional-dependencies"]["torch"]
    names = {requirement.partition(">")[0] for requirement in extra}
    assert {MODULES.get(name, name) for name in names} == EXTRA


@pytest.mark.usefixtures("without_extra")
@pytest.mark.parametrize("name", ["sft", "rl", "recompute", "areal", "lerobot"])
def test_a_command_without_its_packages_says_what_to_install(
    name: str, run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {
        "sft": ["sft", config(tmp_path, "sft")],
        "rl": ["rl", config(tmp_path, "rl")],
        "recompute": ["recompute", run, str(tmp_path / "checkpoint")],
    }.get(name, ["export", name, run, str(tmp_path / "out")])
    assert main(arguments) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"furrow-trainer: {arguments[0]} needs the package "), printed
    assert "pip install 'furrow-trainer[torch]'" in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("without_extra")
def test_the_loop_of_the_readme_needs_no_extra(run: str) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf8")
    loop = readme.split("```python\n")[1].split("```")[0]
    code = loop.replace('"runs/loop"', repr(run)).replace("wait_seconds=600", "wait_seconds=0")
    calls: list[tuple[bytes, str, object, float]] = []
    names: dict[str, object] = {"learn": lambda *values: calls.append(values)}
    exec(code, names)
    assert calls, "the run's only trajectory has steps"
    for screenshot, text, _, advantage in calls:
        assert screenshot.startswith(b"\x89PNG")
        assert text
        assert advantage == 0, "a group of one has its own reward as baseline"


def test_any_other_missing_module_is_a_fault_of_ours(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(_: object) -> int:
        raise ModuleNotFoundError("No module named 'nowhere'", name="nowhere")

    monkeypatch.setattr(command, "_inspect", lacks)
    with pytest.raises(ModuleNotFoundError):
        main(["inspect", run])
