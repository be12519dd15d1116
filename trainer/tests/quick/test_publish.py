"""Publishing by a command: retries, reasons, and the version in the reply."""

import sys
from pathlib import Path

import pytest

from furrow_trainer.errors import PublishError
from furrow_trainer.learn.publish import publish


def test_publishing_retries_and_then_reports_why(tmp_path: Path) -> None:
    mark = tmp_path / "tried"
    once = (
        f"import pathlib,sys; p = pathlib.Path({str(mark)!r}); n = p.exists(); p.touch(); "
        "sys.exit(0 if n else 'no room')"
    )
    assert publish([sys.executable, "-c", once], tmp_path, 3, "a-3", 20, 2).version == 3
    with pytest.raises(PublishError, match=r"version 4 was not taken in 1 attempts.*no room"):
        publish([sys.executable, "-c", "import sys; sys.exit('no room')"], tmp_path, 4, "a-4", 20, 1)
    with pytest.raises(PublishError, match=r"longer than 0\.2 s"):
        publish([sys.executable, "-c", "import time; time.sleep(9)"], tmp_path, 4, "a-4", 0.2, 1)
    with pytest.raises(PublishError, match="cannot be started"):
        publish(["/nowhere/furrow"], tmp_path, 4, "a-4", 1, 1)


def test_a_reply_numbers_the_version(tmp_path: Path) -> None:
    echo = "import json,sys; print(json.dumps({'version': 41, 'state': 'taken', 'id': sys.argv[1]}))"
    assert publish([sys.executable, "-c", echo, "{id}"], tmp_path, 3, "a-3", 20, 1).version == 41
