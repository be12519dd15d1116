"""Names the tests that failed in the output of `cargo test --no-fail-fast`, so that they can be run again.

    tests/failed.py LOG...

Prints the arguments of cargo test that choose them, one a line: binaries and, behind `--`, names. Exits with
1 where that would leave something out: a binary that ended without a result, or a build that failed.
"""

import re
import sys
from pathlib import Path

TEST = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. FAILED$", re.MULTILINE)
RESULT = re.compile(r"^test result: FAILED\. \d+ passed; (\d+) failed;", re.MULTILINE)
TARGET = re.compile(r"^    `-p \S+ (--lib|--bin \S+|--test \S+)`$", re.MULTILINE)


def failed(log: str) -> tuple[set[str], set[str]]:
    """Arguments and names. Raises ValueError where the log does not name every failure."""
    names = TEST.findall(log)
    results = [int(count) for count in RESULT.findall(log)]
    # cargo lists them at its end, so without them it did not come to it.
    targets = TARGET.findall(log)
    if not names or sum(results) != len(names) or len(results) != len(targets):
        raise ValueError(
            f"{len(names)} failed tests, {results} in the results of binaries, which are {targets}"
        )
    return {target.replace(" ", "=") for target in targets}, set(names)


def main() -> int:
    targets: set[str] = set()
    names: set[str] = set()
    for path in sys.argv[1:]:
        try:
            more_targets, more_names = failed(Path(path).read_text(errors="replace"))
        except ValueError as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 1
        targets |= more_targets
        names |= more_names
    print(*sorted(targets), "--", "--exact", *sorted(names), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
