"""Where the tests find what they read."""

import os
import shutil
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ORACLE = REPOSITORY / "crates" / "model" / "tests" / "oracle"
ORACLE_VL = REPOSITORY / "crates" / "model" / "tests" / "oracle_vl"


def _program() -> Path | None:
    """Furrow itself: `FURROW`, or what was built here."""
    built = [REPOSITORY / "target" / kind / "furrow" for kind in ("release", "debug")]
    named = [Path(os.environ["FURROW"])] if os.environ.get("FURROW") else []
    return next((path for path in [*named, *built] if path.is_file()), None)


PROGRAM = _program()
# Furrow finds Debian's by itself.
BROWSER = os.environ.get("FURROW_BROWSER")
HAS_BROWSER = BROWSER is not None or shutil.which("chromium-headless-shell") is not None
