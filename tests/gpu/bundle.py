#!/usr/bin/env python3
"""The parts that travel to a GPU machine.

    bundle.py build [--program FILE] [--bench FILE] [--test FILE ...]
        collects and packs everything into .cache/gpu/parts, lays each part with the manifest into a folder
        .cache/gpu/sendN of its own, and prints the table of sizes
    bundle.py unpack [--parts DIR]
        there: unpacks below FURROW_GPU_ROOT what is not there yet
    bundle.py verify [--parts DIR]
        there: compares every file with what was carried

Exit status: 0 done; 1 failed, or something differs; 2 wrong arguments; 3 (unpack) parts are still missing,
each named on a line.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import parts

REPOSITORY = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
FOLDER = os.path.join(REPOSITORY, ".cache", "gpu")
MISSING = 3


def root() -> str:
    """Where everything is unpacked to."""
    return os.environ.get("FURROW_GPU_ROOT") or "/var/tmp/furrow-gpu"


def tree_paths(whole: bool) -> list[str]:
    """Patterns of what the travelling checkout holds; `whole`: everything."""
    if whole:
        return ["."]
    with open(os.path.join(REPOSITORY, "tests", "gpu", "tree.txt"), encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip() and not line.startswith("#")]


def tree_bytes(whole: bool) -> int:
    """Bytes of the files that travel with every part: tracked, and untracked that git does not ignore."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *tree_paths(whole)],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
    ).stdout
    paths = {os.path.join(REPOSITORY, name) for name in listing.decode().split("\0") if name}
    return sum(os.lstat(path).st_size for path in paths if os.path.lexists(path))


def build(given: argparse.Namespace) -> int:
    """Collects, packs, cuts, prints the table; fails if a transfer would be too large."""
    import contents
    import pack

    stage = os.path.join(FOLDER, "stage")
    shutil.rmtree(stage, ignore_errors=True)

    def at(name: str) -> str:
        return os.path.join(stage, name)

    def here(*parts: str) -> str:
        return os.path.join(REPOSITORY, *parts)

    try:
        contents.stage_program(at("bin"), given.program)
        contents.stage_envs(at("envs"), here("envs"))
        contents.stage_browser(at("browser"), here("tests", "gpu", "fonts.conf.in"))
        contents.stage_site(
            at("site"), here("tests", "gpu", "requirements.txt"), os.path.join(FOLDER, "wheels")
        )
        # In the order in which a run needs them.
        order = ["bin", "envs", "browser", "site"]
        binaries = [*given.test, *filter(None, [given.bench])]
        if binaries:
            contents.stage_tests(at("gpu"), binaries, here("crates", "model", "tests", "oracle"))
            order.append("gpu")
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
        out = os.path.join(FOLDER, "parts")
        manifest = pack.pack(
            [(name, at(name)) for name in order],
            os.path.join(FOLDER, "archives"),
            out,
            commit,
            tree_bytes(given.whole_tree),
        )
    except (contents.ContentsError, pack.PackError) as error:
        print(f"bundle: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    manifest_bytes = os.path.getsize(os.path.join(out, parts.MANIFEST))
    print(pack.table(manifest, manifest_bytes))
    for folder in sends(out, FOLDER, manifest):
        print(f"carry {os.path.relpath(folder, REPOSITORY)}")
    if any(pack.transfer_bytes(manifest, part, manifest_bytes) > manifest.limit for part in manifest.parts):
        print(f"bundle: a transfer is larger than {manifest.limit} bytes", file=sys.stderr)
        return 1
    return 0


def sends(out: str, folder: str, manifest: parts.Manifest) -> list[str]:
    """A folder for each transfer, `folder`/sendN: one part and the manifest. Those of an earlier build go."""
    for name in os.listdir(folder):
        if name.startswith("send") and name[4:].isdigit():
            shutil.rmtree(os.path.join(folder, name))
    made = []
    for number, part in enumerate(manifest.parts, 1):
        made.append(os.path.join(folder, f"send{number}"))
        os.mkdir(made[-1])
        # A link takes no second copy of 60 MiB; what travels is the file.
        os.link(os.path.join(out, part.file), os.path.join(made[-1], part.file))
        shutil.copy(os.path.join(out, parts.MANIFEST), made[-1])
    return made


def unpack(given: argparse.Namespace) -> int:
    """Unpacks what is there; says which parts are missing."""
    import unpack as unpacking

    try:
        unpacking.unpack(given.parts, root())
    except unpacking.MissingParts as missing:
        for part in missing.parts:
            print(f"missing {part.file} {part.size} bytes")
        return MISSING
    except (unpacking.UnpackError, parts.ManifestError, OSError) as error:
        print(f"bundle: {error}", file=sys.stderr)
        return 1
    print(f"complete {root()}")
    return 0


def verify(given: argparse.Namespace) -> int:
    """Compares every file with what was carried."""
    import unpack as unpacking

    try:
        wrong = unpacking.verify(given.parts, root())
    except (unpacking.UnpackError, parts.ManifestError, OSError, ValueError) as error:
        wrong = [str(error)]
    for line in wrong:
        print(line)
    print(f"{'as carried' if not wrong else f'{len(wrong)} differences'}: {root()}")
    return 1 if wrong else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    made = commands.add_parser("build")
    made.add_argument("--program", default=os.path.join(FOLDER, "furrow"), help="the released furrow")
    made.add_argument("--bench", help="the released furrow-bench, which travels with the tests")
    made.add_argument("--test", action="append", default=[], help="a test binary that travels, too")
    made.add_argument(
        "--whole-tree",
        action="store_true",
        help="the checkout travels whole, not as tests/gpu.sh tree makes it: smaller parts",
    )
    for name in ("unpack", "verify"):
        commands.add_parser(name).add_argument("--parts", default=os.path.join(FOLDER, "parts"))
    given = parser.parse_args()
    return {"build": build, "unpack": unpack, "verify": verify}[given.command](given)


if __name__ == "__main__":
    sys.exit(main())
