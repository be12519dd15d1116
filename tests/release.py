"""Checks what deploy/release.sh made: tests/release.py FOLDER

The program starts, is small, has the names of its functions and no folder of the machine that built it. Its
own list of crates, the SBOM and the notices agree. The symbols belong to it. Every checksum holds.
"""

import gzip
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zlib

BYTES_MAX = 80_000_000
NAMES_MIN = 1_000
PAGES_MIN = 25


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def section(program: pathlib.Path, name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        to = pathlib.Path(folder) / "section"
        flags = ("-O", "binary", f"--only-section={name}", "--set-section-flags", f"{name}=alloc")
        run("objcopy", *flags, str(program), str(to))
        return to.read_bytes()


def crates_within(program: pathlib.Path) -> set[tuple[str, str]]:
    """The crates that are linked into the program, without those that only built it."""
    listed = json.loads(zlib.decompress(section(program, ".dep-v0")))["packages"]
    return {(one["name"], one["version"]) for one in listed if one.get("kind", "runtime") == "runtime"}


def build_id(file: pathlib.Path) -> str:
    found = re.search(r"Build ID: ([0-9a-f]+)", run("readelf", "-n", str(file)))
    assert found, f"{file} has no build id"
    return found[1]


def check_sums(folder: pathlib.Path) -> None:
    listed = [line.split() for line in (folder / "SHA256SUMS").read_text().splitlines()]
    assert {name for _, name in listed} == {file.name for file in folder.glob("furrow-*")}
    for want, name in listed:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == want, name


def unpack(archive: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    with tarfile.open(archive) as files:
        assert all(one.uid == 0 and one.name.startswith("furrow-") for one in files)
        files.extractall(to, filter="data")
    (content,) = to.iterdir()
    return content


def check_program(program: pathlib.Path) -> int:
    """Returns how many functions of the coordinator have their names."""
    size = program.stat().st_size
    assert size < BYTES_MAX, f"{size} bytes"
    names = run("nm", "-C", str(program)).count(" furrow_coordinator::")
    assert names > NAMES_MIN, f"{names} functions of the coordinator have names"
    assert ".debug_line" not in run("readelf", "-S", "-W", str(program))
    content = program.read_bytes()
    for path in (pathlib.Path.cwd(), pathlib.Path.home()):
        assert f"{path}/".encode() not in content, f"the program names {path}"
    # A crash point would let the environment end the process.
    assert b"FAILPOINTS" not in content
    return names


def check_symbols(program: pathlib.Path, symbols: pathlib.Path) -> None:
    assert build_id(symbols) == build_id(program)
    pattern = re.compile(r"^([0-9a-f]+) [tT] furrow_coordinator::", re.MULTILINE)
    addresses = pattern.findall(run("nm", "-C", str(program)))
    lines = run("addr2line", "-e", str(symbols), *addresses[:50])
    assert "crates/coordinator/src/" in lines, lines


def check_lists(content: pathlib.Path, bill: pathlib.Path) -> int:
    """Returns how many crates are in the program."""
    within = crates_within(content / "furrow")
    components = {(one["name"], one["version"]) for one in json.loads(bill.read_text())["components"]}
    ours = {one for one in within if one[0].startswith("furrow")}
    absent = sorted(within - ours - components)
    assert not absent, f"not in the SBOM: {absent}"
    notices = (content / "THIRD_PARTY_NOTICES.txt").read_text()
    unnamed = sorted(one for one in within - ours if f"  {one[0]} {one[1]}" not in notices)
    assert not unnamed, f"not in the notices: {unnamed}"
    return len(within)


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    check_sums(folder)
    (archive,) = folder.glob("furrow-*.tar.gz")
    (packed_symbols,) = folder.glob("furrow-*.debug.gz")
    (bill,) = folder.glob("furrow-*.cdx.json")
    with tempfile.TemporaryDirectory() as scratch:
        content = unpack(archive, pathlib.Path(scratch))
        program = content / "furrow"
        version = run(str(program), "--version").split()[1]
        assert content.name.startswith(f"furrow-{version}-"), (content.name, version)
        names = check_program(program)
        symbols = pathlib.Path(scratch) / "furrow.debug"
        symbols.write_bytes(gzip.decompress(packed_symbols.read_bytes()))
        check_symbols(program, symbols)
        crates = check_lists(content, bill)
        assert len(list((content / "man").glob("*.1"))) > PAGES_MIN
        for shell in ("bash", "zsh", "fish"):
            assert (content / "completions" / f"furrow.{shell}").stat().st_size > 1_000
        sizes = [file.stat().st_size / 1e6 for file in (program, archive, packed_symbols)]
        print("program {:.1f} MB, packed {:.1f} MB, symbols {:.1f} MB".format(*sizes))
        print(f"{crates} crates, {names} functions of the coordinator with names")


if __name__ == "__main__":
    main()
