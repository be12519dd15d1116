#!/usr/bin/env python3
"""Runs one of compute-sanitizer's tools over the GPU tests, one test a process, and says what it found.

    sanitize.py [memcheck|racecheck|initcheck|synccheck] [--seconds 520] [--only WORD] [--again] [--dry-run]

memcheck   accesses out of bounds or misaligned   (default)
racecheck  hazards between threads in shared memory
initcheck  reads of global memory that was never written
synccheck  barriers that not all threads reach

The tests are those with reduced shapes: the comparisons of every kernel (`kernels agree`) and the backend's
on checkpoints of a few layers (`backend`, without `measured`). On an H200 all of them take 24 s without a
tool; the tools take 10 to 100 times as long, which is why tests that passed are not run again by the next
call: results are kept in .cache/gpu/sanitize-TOOL.json with the hashes of the two binaries, and a call that
runs out of time (exit status 3) is repeated. Report: .cache/gpu/sanitize-TOOL.txt, what was found first.

A program with a planted error comes first, where nvcc is found: a tool that does not report it proves nothing
about the others.

What it cannot see: the engine's buffers lie in one allocation, so memcheck sees only what leaves that one;
tests put guards between buffers for the rest.

Exit status: 0 all tests done and nothing found; 1 findings, failed tests, or a tool that does not work here;
2 the tool or a binary is missing; 3 tests are left.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOLDER = Path(".cache/gpu")
# Filters of each binary's test names. The others compile, plant bugs or measure.
TESTS = {"kernels": (["agree"], []), "backend": ([], ["measured::"])}
FOUND_STATUS = 86
TEST_SECONDS = 240
LOG_BYTES = 200_000


# -- reading what the tool writes ---------------------------------------------------------------------------


@dataclass
class Outcome:
    """Of one test under one tool."""

    state: str
    """`clean`, `found`, `failed` (the test), `no kernel` (nothing ran on the GPU), `broken` (the tool), `too
    slow`.
    """
    findings: dict[str, int] = field(default_factory=dict)
    """`what, in kernel` to how often."""
    note: str = ""
    seconds: float = 0.0


# The first line of a finding, without the mark in front. Everything that follows it up to an empty line is
# about it.
_FINDING = re.compile(
    r"Invalid (?:__\w+__|\w+) (?:read|write|atomic)|Misaligned|Uninitialized|Barrier error"
    r"|(?:Error|Warning): (?:Potential )?(?:\w+ )?(?:Race|hazard)"
    r"|Race reported|Program hit |Malloc/Free|Leaked |Stack overflow|Out-of-range shared|Invalid PC"
    r"|Unused memory|Host API memory access error"
)
_WHERE = re.compile(
    r"^\s+(?:and (?:Read|Write|Read/Write|Atomic) access )?at (?:0x[0-9a-f]+ in )?(?P<kernel>.+?)\+0x"
    r"|in kernel (?P<other>\S+)"
)
_RACE = re.compile(r"access at (?:0x[0-9a-f]+ in )?(?P<kernel>.+?)\+0x")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK|INITCHECK|SYNCCHECK) SUMMARY: (?P<count>\d+) (?:errors?|hazards?)")
_NOTHING = re.compile(
    r"terminated before first instrumented API call|No (?:CUDA|attachable).*(?:found|process)"
    r"|did not launch any kernel",
    re.IGNORECASE,
)
_BROKEN = re.compile(
    r"Device not supported|Internal Sanitizer Error|Failed to (?:initialize|attach|launch)"
    r"|Unable to find injection|Error: Unknown|Invalid option|unrecognised option",
    re.IGNORECASE,
)


def kernel_name(text: str) -> str:
    """`void f<4>(int *)` to `f`; a name as the driver shows it, with its parameters or without."""
    return (
        re.sub(r"<.*|\(.*", "", text.strip().removeprefix("void ").strip()).rsplit(" ", 1)[-1] or text.strip()
    )


def parse(output: str, status: int | None) -> Outcome:
    """What a test came to.

    Args:
        output: of compute-sanitizer and the test together.
        status: exit status; absent where it was stopped for its time.
    """
    lines = [
        line.removeprefix("=========").rstrip()
        for line in output.splitlines()
        if line.startswith("=========")
    ]
    found: Counter[str] = Counter()
    what, where = "", ""

    def note() -> None:
        if what:
            found[f"{what}, in {where or 'an unknown kernel'}"] += 1

    for line in lines:
        text = line.strip()
        if _FINDING.search(text):
            note()
            race = _RACE.search(text)
            what, where = (
                re.sub(r" (?:between|at) .*", "", text)[:100],
                kernel_name(race["kernel"]) if race else "",
            )
        elif not text:
            note()
            what = ""
        elif what and not where and (match := _WHERE.search(line)):
            where = kernel_name(match["kernel"] or match["other"])
    note()
    counts = [int(match["count"]) for match in map(_SUMMARY.search, lines) if match]
    total = max(counts, default=0)
    if total > sum(found.values()):
        # More than --print-limit, or lines that are not known above: they count all the same.
        found["not told one by one"] = total - sum(found.values())
    passed = re.search(r"^test result: ok\. (?P<count>\d+) passed", output, re.MULTILINE)
    if found:
        return Outcome("found", dict(found))
    if status is None:
        return Outcome("too slow")
    if broken := next(filter(_BROKEN.search, lines), None):
        return Outcome("broken", note=broken.strip())
    if any(map(_NOTHING.search, lines)):
        return Outcome("no kernel" if passed else "failed", note="no call of CUDA was seen")
    if not passed or int(passed["count"]) != 1:
        return Outcome("failed", note=f"exit status {status}; " + _last_line(output))
    if not counts:
        return Outcome("broken", note="compute-sanitizer wrote no summary")
    if status:
        return Outcome("failed", note=f"exit status {status} without a finding; " + _last_line(output))
    return Outcome("clean")


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it wrote nothing"


def kernel_identifiers(folder: Path) -> set[str]:
    """Every identifier in *.cu of a folder: macros make most kernels, so their names cannot be told from
    others. Empty where it is not there.
    """
    return {
        name for path in folder.glob("*.cu") for name in re.findall(r"[A-Za-z_]\w+", path.read_text("utf8"))
    }


# -- running it ---------------------------------------------------------------------------------------------


def find_tool(environment: dict[str, str]) -> Path | None:
    """compute-sanitizer: on the path, in CUDA's folders, in those of NVIDIA's other packages."""
    named = environment.get("FURROW_COMPUTE_SANITIZER")
    if named:
        return Path(named)
    found = shutil.which("compute-sanitizer", path=environment.get("PATH"))
    candidates = [found] if found else []
    for pattern in (
        "/usr/local/cuda*/bin/compute-sanitizer",
        "/usr/local/cuda*/compute-sanitizer/compute-sanitizer",
        "/opt/nvidia/**/compute-sanitizer",
    ):
        candidates += sorted(glob.glob(pattern, recursive=True), reverse=True)
    return next((path for path in map(Path, candidates) if _is_program(path)), None)


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def binaries(environment: dict[str, str], folder: Path = FOLDER) -> dict[str, Path]:
    """The test binaries: where `tests/gpu.sh build` puts them, or where its parts are unpacked.

    Raises:
        FileNotFoundError: with what to do, when one is in neither folder.
    """
    unpacked = Path(environment.get("FURROW_GPU_ROOT", "/var/tmp/furrow-gpu")) / "gpu"
    found = {}
    for name in TESTS:
        candidates = [folder / name, unpacked / name]
        path = next(filter(_is_program, candidates), None)
        if path is None:
            raise FileNotFoundError(
                f"the test binary {name} is neither {candidates[0]} nor {candidates[1]}: run tests/gpu.sh "
                "build where there is a Rust toolchain, and carry it"
            )
        found[name] = path.resolve()
    return found


def options(tool: str, help_text: str) -> list[str]:
    """Arguments in front of the program. Those beside the tool's name are given where this version's help has
    them.
    """
    wanted = [
        ("--error-exitcode", str(FOUND_STATUS)),
        ("--print-limit", "50"),
        ("--target-processes", "application-only"),
        ("--launch-timeout", "120"),
        ("--show-backtrace", "device"),
    ]
    if tool == "memcheck":
        # libraries ask the driver for entry points that it may lack, which is not an error of theirs
        wanted += [("--report-api-errors", "no"), ("--leak-check", "no")]
    if tool == "racecheck":
        wanted += [("--racecheck-report", "analysis")]
    return ["--tool", tool, *(part for option in wanted if option[0] in help_text for part in option)]


def command(sanitizer: Path, given: list[str], binary: Path, test: str) -> list[str]:
    return [str(sanitizer), *given, str(binary), "--exact", test, "--test-threads=1", "--nocapture"]


def tests_of(name: str, binary: Path) -> list[str]:
    """Names of a binary's tests that are run under a tool.

    Raises:
        OSError, subprocess.CalledProcessError: when it does not run here.
    """
    listed = subprocess.run(
        [binary, "--list", "--format", "terse"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    ignored = subprocess.run(
        [binary, "--list", "--format", "terse", "--ignored"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    some, none = TESTS[name]
    left_out = set(_names(ignored))
    return [
        test
        for test in _names(listed)
        if test not in left_out
        and all(part in test for part in some)
        and not any(part in test for part in none)
    ]


def _names(listed: str) -> list[str]:
    return [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]


def run(arguments: list[str], seconds: float, environment: dict[str, str]) -> tuple[str, int | None]:
    """Output and exit status; the whole process group is stopped after so many seconds, and the status is
    then absent.
    """
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(
            arguments,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
        file.seek(0)
        data = file.read()
    if len(data) > 2 * LOG_BYTES:
        # The summary stands at the end, the first findings at the beginning.
        data = data[:LOG_BYTES] + b"\n[...]\n" + data[-LOG_BYTES:]
    return data.decode("utf8", "replace"), status


PLANTED = r"""
#include <cstdio>
__global__ void beyond(int *a) { a[threadIdx.x + 8] = 1; }
__global__ void race(int *a) {
  __shared__ int s[64];
  s[threadIdx.x] = threadIdx.x;
  a[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void unwritten(int *a) { a[threadIdx.x] = a[threadIdx.x + 64] + 1; }
__global__ void divergent(int *a) {
  __shared__ int s;
  if (threadIdx.x < 40) { s = 1; __syncthreads(); }
  a[threadIdx.x] = s;
}
int main(int count, char **argv) {
  int *a;
  if (cudaMalloc(&a, argv[1][0] == 'u' ? 1024 : 256)) return 3;
  if (argv[1][0] == 'b') beyond<<<1, 64>>>(a);
  if (argv[1][0] == 'r') race<<<1, 64>>>(a);
  if (argv[1][0] == 'u') unwritten<<<1, 64>>>(a);
  if (argv[1][0] == 'd') divergent<<<1, 64>>>(a);
  cudaDeviceSynchronize();
  printf("test result: ok. 1 passed\n");
}
"""
_PLANTED_MODE = {"memcheck": "b", "racecheck": "r", "initcheck": "u", "synccheck": "d"}


def planted(
    sanitizer: Path, given: list[str], tool: str, environment: dict[str, str]
) -> tuple[bool | None, str]:
    """Whether the tool finds an error that is there; absent where that cannot be tried. And in words."""
    compiler = shutil.which("nvcc", path=environment.get("PATH")) or next(
        iter(sorted(glob.glob("/usr/local/cuda*/bin/nvcc"), reverse=True)), None
    )
    if not compiler:
        return None, "not tried: there is no nvcc to compile a program with a planted error"
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "planted.cu", Path(folder) / "planted"
        source.write_text(PLANTED)
        output, status = run([compiler, "-arch=native", "-o", str(program), str(source)], 90, environment)
        if status != 0:
            return None, f"not tried: nvcc: {_last_line(output)}"
        output, status = run([str(sanitizer), *given, str(program), _PLANTED_MODE[tool]], 120, environment)
    outcome = parse(output, status)
    if outcome.state == "found":
        return True, f"found: {', '.join(outcome.findings)}"
    return (
        False,
        f"NOT found ({outcome.state}; {outcome.note or _last_line(output)}): {tool} proves nothing here",
    )


# -- the call -----------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """What a call runs."""

    tool: str
    sanitizer: Path
    given: list[str]
    programs: dict[str, Path]
    tests: list[tuple[str, str]]
    """Binary and test."""


def fingerprint(programs: dict[str, Path]) -> str:
    """Of the binaries: results of others are not kept."""
    digest = hashlib.sha256()
    for name, path in sorted(programs.items()):
        digest.update(name.encode())
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def kept(path: Path, mark: str) -> dict[str, Outcome]:
    """Results of earlier calls with the same binaries."""
    try:
        stored = json.loads(path.read_text("utf8"))
        return (
            {name: Outcome(**one) for name, one in stored["tests"].items()}
            if stored["binaries"] == mark
            else {}
        )
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def order(tests: Iterable[tuple[str, str]], before: dict[str, Outcome]) -> list[tuple[str, str]]:
    """What is left: tests without a result first, those that took too long last."""
    left = [
        one
        for one in tests
        if before.get("::".join(one), Outcome("too slow")).state in ("too slow", "broken", "failed")
    ]
    return sorted(left, key=lambda one: "::".join(one) in before)


def verdict(wanted: list[str], results: dict[str, Outcome], control: bool | None) -> int:
    states = [results[name].state for name in wanted if name in results]
    if control is False or any(state in ("found", "failed", "broken") for state in states):
        return 1
    if len(states) < len(wanted) or "too slow" in states:
        return 3
    return 0 if "clean" in states else 1


def report(
    plan: Plan,
    wanted: list[str],
    results: dict[str, Outcome],
    control: str,
    own: set[str],
    logs: dict[str, str],
) -> str:
    """Findings first, then a line a test, then what the tool wrote about those that are not clean."""
    by_finding: Counter[str] = Counter()
    for one in results.values():
        by_finding.update(one.findings)
    states = Counter(results[name].state if name in results else "not run" for name in wanted)
    lines = [
        f"{plan.tool}: {plan.sanitizer}",
        "planted error: " + control,
        ", ".join(f"{count} {state}" for state, count in states.most_common()),
    ]
    for what, count in by_finding.most_common():
        kernel = what.rpartition(", in ")[2]
        lines.append(
            f"{count:>6} x {what}"
            + ("" if not own or kernel in own else " (not a kernel of this repository)")
        )
    for name in wanted:
        result = results.get(name)
        lines.append(
            f"{name}: not run"
            if result is None
            else f"{name}: {result.state}, {result.seconds:.0f} s{'; ' + result.note if result.note else ''}"
        )
    for name, text in logs.items():
        lines += ["", f"---- {name}", text]
    return "\n".join(lines) + "\n"


def sanitize(
    plan: Plan, arguments: argparse.Namespace, environment: dict[str, str], say: Callable[[str], None]
) -> int:
    begun = time.monotonic()
    results_at, report_at = FOLDER / f"sanitize-{plan.tool}.json", FOLDER / f"sanitize-{plan.tool}.txt"
    FOLDER.mkdir(parents=True, exist_ok=True)
    mark = fingerprint(plan.programs)
    results = {} if arguments.again else kept(results_at, mark)
    wanted = ["::".join(one) for one in plan.tests]
    own = kernel_identifiers(Path("kernels"))
    works, control = planted(plan.sanitizer, plan.given, plan.tool, environment)
    say(f"planted error: {control}")
    logs: dict[str, str] = {}
    broken = 0

    def write() -> None:
        results_at.write_text(
            json.dumps(
                {"binaries": mark, "tests": {name: asdict(one) for name, one in results.items()}}, indent=1
            )
            + "\n",
            "utf8",
        )
        report_at.write_text(report(plan, wanted, results, control, own, logs), "utf8")

    for binary, test in order(plan.tests, results) if works is not False else []:
        left = arguments.seconds - (time.monotonic() - begun)
        if left < 15:
            break
        started = time.monotonic()
        command_line = command(plan.sanitizer, plan.given, plan.programs[binary], test)
        output, status = run(command_line, min(left, TEST_SECONDS), environment)
        outcome = parse(output, status)
        outcome.seconds = round(time.monotonic() - started, 1)
        name = f"{binary}::{test}"
        results[name] = outcome
        if outcome.state not in ("clean", "no kernel"):
            logs[name] = output[:LOG_BYTES]
        say(f"{name}: {outcome.state}, {outcome.seconds} s {outcome.note}{'; '.join(outcome.findings)}")
        # After each: the call may be cut off.
        write()
        broken = broken + 1 if outcome.state == "broken" else 0
        if broken == 3:
            say("the tool does not work here: three tests one after the other came to nothing")
            break
    write()
    say(f"report: {report_at}")
    return verdict(wanted, results, works)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tool", nargs="?", default="memcheck", choices=TOOLS)
    parser.add_argument(
        "--seconds",
        type=float,
        default=520,
        help="after which no test is begun and a running one is stopped (default 520)",
    )
    parser.add_argument("--only", default="", metavar="WORD", help="tests whose name has this in it")
    parser.add_argument("--again", action="store_true", help="also what earlier calls found clean")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands, run nothing under the tool"
    )
    arguments = parser.parse_args(argv)
    environment = {
        **os.environ,
        "FURROW_TEST_GPU": "1",
        "FURROW_REPOSITORY": os.environ.get("FURROW_REPOSITORY", str(Path.cwd())),
    }
    sanitizer = find_tool(environment)
    if sanitizer is None and not arguments.dry_run:
        print(
            "compute-sanitizer is neither on PATH nor in /usr/local/cuda*/bin nor below /opt/nvidia: "
            "name it in FURROW_COMPUTE_SANITIZER",
            file=sys.stderr,
        )
        return 2
    try:
        programs = binaries(environment)
        tests = [
            (name, test)
            for name, path in programs.items()
            for test in tests_of(name, path)
            if arguments.only in test
        ]
    except (OSError, subprocess.SubprocessError) as error:
        print(f"sanitize: {error}", file=sys.stderr)
        return 2
    if not tests:
        print(f"sanitize: no test has {arguments.only!r} in its name", file=sys.stderr)
        return 2
    help_text = ""
    if sanitizer:
        try:
            help_text = run([str(sanitizer), "--help"], 30, environment)[0]
        except OSError as error:
            print(f"sanitize: {sanitizer}: {error}", file=sys.stderr)
            return 2
    plan = Plan(
        arguments.tool,
        sanitizer or Path("compute-sanitizer"),
        options(arguments.tool, help_text),
        programs,
        tests,
    )
    if arguments.dry_run:
        for binary, test in tests:
            print(" ".join(command(plan.sanitizer, plan.given, programs[binary], test)))
        return 0
    status = sanitize(plan, arguments, environment, lambda text: print(text, flush=True))
    print(
        {
            0: "nothing found",
            1: "FINDINGS, failures, or a tool that does not work here",
            3: "tests are left: call it again",
        }[status]
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
