"""Reports of discarded trajectories: what is sent, how often, and by which command."""

import sys
from pathlib import Path

import pytest

from farm import Farm
from furrow_trainer.config import PublishSection
from furrow_trainer.data import Choice, Reader
from furrow_trainer.learn.discarded import Reports, command_for

# Appends each count to a file.
REPORT = "import sys; open(sys.argv[2], 'a').write(sys.argv[1] + chr(10))"


def reports(folder: Path) -> list[int]:
    path = folder / "reports"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def test_a_count_is_reported_again_while_training_waits(tmp_path: Path) -> None:
    """A coordinator that was restarted in between has lost the count."""
    farm = Farm(tmp_path / "run")
    farm.commit([farm.trajectory("g0", 0)], [farm.group("g0", [1.0])])
    command = [sys.executable, "-c", REPORT, "{count}", str(tmp_path / "reports")]
    reader, sender = Reader(tmp_path / "run", Choice(trainable="rl")), Reports(command, repeat_seconds=0.2)
    for group in reader.groups(1.5, idle=lambda: sender.report(4, repeat=True)):
        reader.done(group)
    assert set(reports(tmp_path)) == {4} and 3 <= len(reports(tmp_path)) <= 8, reports(tmp_path)
    sender.report(4)
    count = len(reports(tmp_path))
    sender.report(4)
    sender.report(8)
    assert reports(tmp_path)[count:] == [8], "where nothing waits, only what changed"


def test_what_was_not_taken_is_reported_again_but_not_all_the_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "up"
    script = (
        "import pathlib,sys; open(sys.argv[2], 'a').write('x'); "
        "sys.exit(0 if pathlib.Path(sys.argv[1]).exists() else 'away')"
    )
    command = [sys.executable, "-c", script, str(mark), str(tmp_path / "tried"), "{count}"]
    sender = Reports(command, repeat_seconds=60)
    for count in (4, 8, 12):
        sender.report(count)
    assert (tmp_path / "tried").read_text() == "x", "a coordinator that is away costs one try in a while"
    sender = Reports(command, repeat_seconds=0)
    sender.report(12)
    mark.touch()
    sender.report(12)
    sender.report(12)
    assert (tmp_path / "tried").read_text() == "xxx", "once it is taken, the same is not reported again"
    assert capfd.readouterr().err.count("away") == 2
    slow = Reports([sys.executable, "-c", "import time; time.sleep(9)"], timeout_seconds=0.2)
    slow.report(4)
    assert "longer than 0.2 s" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("publish", "want"),
    [
        (
            ["furrow", "publish", "{dir}", "--run", "RUN", "--id", "{id}", "--json"],
            ["furrow", "discarded", "{count}", "--run", "RUN"],
        ),
        (
            ["/usr/bin/furrow", "publish", "--coordinator=there:1", "{dir}"],
            ["/usr/bin/furrow", "discarded", "{count}", "--coordinator", "there:1"],
        ),
        (
            ["furrow", "publish", "--coordinator", "there:1", "--identity", "me", "{dir}"],
            ["furrow", "discarded", "{count}", "--coordinator", "there:1", "--identity", "me"],
        ),
        (
            ["ssh", "there", "furrow", "publish", "{dir}", "--run=RUN"],
            ["ssh", "there", "furrow", "discarded", "{count}", "--run", "RUN"],
        ),
        (["furrow", "publish", "{dir}"], []),
        (["furrow", "publish", "{dir}", "--run"], []),
        (["take", "{dir}"], []),
        ([], []),
    ],
)
def test_a_furrow_publish_command_gives_the_report_command(publish: list[str], want: list[str]) -> None:
    tail = ["--rank", "{rank}", "--world", "{world}", "--deadline", "1"] if want else []
    assert list(command_for(PublishSection(command=tuple(publish)))) == [*want, *tail]
    own = ("mine", "{count}")
    assert command_for(PublishSection(command=tuple(publish), discarded=own)) == own
