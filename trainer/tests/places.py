"""Where the tests find what they read."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ORACLE = REPOSITORY / "crates" / "model" / "tests" / "oracle"
ORACLE_VL = REPOSITORY / "crates" / "model" / "tests" / "oracle_vl"
