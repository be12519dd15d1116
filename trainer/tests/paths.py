"""Paths of the files and programs that the tests use."""

import os
import shutil
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ORACLE = REPOSITORY / "crates" / "model" / "tests" / "oracle"
ORACLE_VL = REPOSITORY / "crates" / "model" / "tests" / "oracle_vl"


def _program() -> Path | None:
    """The furrow program: `FURROW`, or the newest kind of build in target/."""
    built = [REPOSITORY / "target" / kind / "furrow" for kind in ("release", "debug")]
    named = [Path(os.environ["FURROW"])] if os.environ.get("FURROW") else []
    return next((path for path in [*named, *built] if path.is_file()), None)


PROGRAM = _program()
# Without it, furrow finds Debian's browser by itself.
BROWSER = os.environ.get("FURROW_BROWSER")
HAS_BROWSER = BROWSER is not None or shutil.which("chromium-headless-shell") is not None
