"""What compute-sanitizer writes is read right, and a call of sanitize.py against a stand-in of it comes to
the right exit status.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))

import sanitize

PASSED = "running 1 test\ntest copy::agrees ... ok\n\n"
PASSED += "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.51s\n\n"
CLEAN = "========= COMPUTE-SANITIZER\n" + PASSED + "========= ERROR SUMMARY: 0 errors\n"
MEMCHECK = (
    """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at copy_ranges(float *, const float *)+0x1b0
=========     by thread (56,0,0) in block (0,0,0)
=========     Access at 0x7f4d2fe00100 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f4d2fe00000 of size 256 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at copy_ranges(float *, const float *)+0x1b0
=========     by thread (57,0,0) in block (0,0,0)
=========     Access at 0x7f4d2fe00104 is out of bounds
=========
========= Invalid __shared__ read of size 16 bytes
=========     at 0x2d0 in void cutlass::gemm<float, (int)4>(T1 *)
=========     by thread (0,0,0) in block (3,0,0)
=========     Address 0x400 is misaligned
=========
"""
    + PASSED
    + "========= ERROR SUMMARY: 3 errors\n"
)
RACECHECK = (
    """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at ssm_scan_bf16+0x60 in ssm.cu:120
=========     and Read access at ssm_scan_bf16+0x1e0 in ssm.cu:131 [2016 hazards]
=========
========= Warning: Race reported between Write access at sample+0x90
=========     and Write access at sample+0x90 [32 hazards]
=========
"""
    + PASSED
    + "========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)\n"
)
INITCHECK = (
    """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at embed_rows(float*)+0x70
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f1e2fe00100
=========
"""
    + PASSED
    + "========= ERROR SUMMARY: 120 errors\n"
)
SYNCCHECK = (
    """========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at divergent(int *)+0x50
=========     by thread (0,0,0) in block (0,0,0)
=========
"""
    + PASSED
    + "========= ERROR SUMMARY: 1 error\n"
)
UNSUPPORTED = (
    "========= COMPUTE-SANITIZER\n========= Error: Device not supported. Please refer to the "
    '"Supported Devices" section\n=========\n' + PASSED + "========= ERROR SUMMARY: 0 errors\n"
)
NOTHING = (
    "========= COMPUTE-SANITIZER\n"
    + PASSED
    + "========= Error: Target application terminated before first instrumented API call\n"
)
PANICKED = (
    "========= COMPUTE-SANITIZER\nthread 'a' panicked\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n"
)
PANICKED += "========= Target application returned an error\n========= ERROR SUMMARY: 0 errors\n"


class Parsing(unittest.TestCase):
    def test_findings_are_counted_by_what_and_where(self) -> None:
        for name, output, want in (
            (
                "memcheck",
                MEMCHECK,
                {
                    "Invalid __global__ write of size 4 bytes, in copy_ranges": 2,
                    "Invalid __shared__ read of size 16 bytes, in an unknown kernel": 1,
                },
            ),
            (
                "racecheck",
                RACECHECK,
                {"Error: Race reported, in ssm_scan_bf16": 1, "Warning: Race reported, in sample": 1},
            ),
            (
                "initcheck",
                INITCHECK,
                {
                    "Uninitialized __global__ memory read of size 4 bytes, in embed_rows": 1,
                    "not told one by one": 119,
                },
            ),
            (
                "synccheck",
                SYNCCHECK,
                {"Barrier error detected. Divergent thread(s) in block., in divergent": 1},
            ),
        ):
            with self.subTest(name):
                outcome = sanitize.parse(output, 86)
                self.assertEqual((outcome.state, outcome.findings), ("found", want))

    def test_a_summary_counts_where_the_lines_before_it_are_unknown(self) -> None:
        outcome = sanitize.parse(
            "========= Some new kind of trouble\n" + PASSED + "========= ERROR SUMMARY: 4 errors\n", 86
        )
        self.assertEqual((outcome.state, outcome.findings), ("found", {"not told one by one": 4}))

    def test_only_a_test_that_ran_under_a_tool_that_works_is_clean(self) -> None:
        for output, status, state in (
            (CLEAN, 0, "clean"),
            (PASSED, 0, "broken"),
            (UNSUPPORTED, 0, "broken"),
            (NOTHING, 0, "no kernel"),
            (PANICKED, 101, "failed"),
            ("", 127, "failed"),
            (CLEAN, 1, "failed"),
            (CLEAN.replace("1 passed", "0 passed"), 0, "failed"),
            (PASSED, None, "too slow"),
            (MEMCHECK, None, "found"),
            (
                CLEAN.replace(
                    "ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
                ),
                0,
                "clean",
            ),
        ):
            with self.subTest(state=state, status=status, output=output[-90:]):
                self.assertEqual(sanitize.parse(output, status).state, state)

    def test_names_of_kernels(self) -> None:
        for text, name in (
            ("copy_ranges(float *)", "copy_ranges"),
            ("void f<(int)4, float>(T1 *)", "f"),
            ("ssm_scan", "ssm_scan"),
            ("void g(int)", "g"),
        ):
            self.assertEqual(sanitize.kernel_name(text), name)

    def test_options_that_a_version_does_not_have_are_left_out(self) -> None:
        self.assertEqual(sanitize.options("racecheck", ""), ["--tool", "racecheck"])
        given = sanitize.options(
            "memcheck", "  --error-exitcode arg\n  --leak-check arg\n  --racecheck-report arg"
        )
        self.assertEqual(given, ["--tool", "memcheck", "--error-exitcode", "86", "--leak-check", "no"])

    def test_the_verdict(self) -> None:
        clean, slow, found, nothing = (
            sanitize.Outcome(state) for state in ("clean", "too slow", "found", "no kernel")
        )
        for results, control, status in (
            ({"a": clean, "b": clean}, True, 0),
            ({"a": clean, "b": nothing}, None, 0),
            ({"a": nothing, "b": nothing}, True, 1),
            ({"a": clean}, True, 3),
            ({"a": clean, "b": slow}, True, 3),
            ({"a": found}, True, 1),
            ({"a": clean, "b": clean}, False, 1),
            ({}, True, 3),
        ):
            self.assertEqual(sanitize.verdict(["a", "b"], results, control), status, (results, control))


TOOL = """#!/bin/sh
case "$1" in --help) echo "--error-exitcode --print-limit"; exit 0 ;; esac
for word in "$@"; do last=$word; case "$word" in *agree*|life::*|types::*|*planted) name=$word ;; esac; done
echo "$name" >>"$CALLS"
case "$name" in
slow*) sleep 30 ;;
esac
cat "$SAMPLES/$(basename "$name")" 2>/dev/null || cat "$SAMPLES/clean"
[ ! -e "$SAMPLES/$(basename "$name")" ]
"""
BINARY = """#!/bin/sh
case "$*" in
*--ignored*) printf 'measured::gap: test\\n' ;;
*--list*) printf '%s' "$LISTED" ;;
esac
"""
LISTED = {
    "kernels": "copy::agrees: test\nplanted::found: test\nssm::agrees: test\n",
    "backend": "life::goes_on: test\nmeasured::gap: test\nmeasured::figures: test\ntypes::held: test\n",
}


class Calls(unittest.TestCase):
    """Against a stand-in for compute-sanitizer and for the two binaries; nothing is compiled."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        before = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, before)
        self.samples, self.calls = self.folder / "samples", self.folder / "calls"
        self.samples.mkdir()
        (self.samples / "clean").write_text(CLEAN)
        self.tool = self.program("compute-sanitizer", TOOL)
        sanitize.FOLDER.mkdir(parents=True)
        for name, listed in LISTED.items():
            self.program(sanitize.FOLDER / name, BINARY.replace("$LISTED", listed))
        named = {
            "FURROW_COMPUTE_SANITIZER": str(self.tool),
            "FURROW_GPU_ROOT": str(self.folder / "root"),
            "SAMPLES": str(self.samples),
            "CALLS": str(self.calls),
        }
        for patch in (
            mock.patch.dict(os.environ, named),
            mock.patch.object(sanitize, "planted", return_value=(True, "found")),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def program(self, name: str | Path, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def call(self, *arguments: str) -> tuple[int, str]:
        self.calls.write_text("")
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = sanitize.main(list(arguments))
        return status, out.getvalue()

    def ran(self) -> list[str]:
        return self.calls.read_text().split()

    def test_all_tests_of_reduced_shapes_run_once(self) -> None:
        status, output = self.call()
        self.assertEqual(
            (status, self.ran()), (0, ["copy::agrees", "ssm::agrees", "life::goes_on", "types::held"]), output
        )
        self.assertIn("4 clean", (sanitize.FOLDER / "sanitize-memcheck.txt").read_text())
        # Not again, unless it is asked for or another tool's.
        self.assertEqual((self.call()[0], self.ran()), (0, []))
        self.assertEqual(len(self.call("--again") and self.ran()), 4)
        self.assertEqual(len(self.call("racecheck") and self.ran()), 4)

    def test_other_binaries_are_tested_anew(self) -> None:
        self.call()
        with open(sanitize.FOLDER / "kernels", "a") as file:
            file.write("# other\n")
        self.call()
        self.assertEqual(len(self.ran()), 4)

    def test_findings_are_reported_and_the_others_still_run(self) -> None:
        (self.samples / "ssm::agrees").write_text(RACECHECK)
        status, output = self.call("racecheck")
        self.assertEqual((status, len(self.ran())), (1, 4), output)
        text = (sanitize.FOLDER / "sanitize-racecheck.txt").read_text()
        self.assertIn("1 x Error: Race reported, in ssm_scan_bf16", text)
        self.assertIn("---- kernels::ssm::agrees", text)
        self.assertEqual(
            json.loads((sanitize.FOLDER / "sanitize-racecheck.json").read_text())["tests"][
                "kernels::ssm::agrees"
            ]["state"],
            "found",
        )
        # A finding stays one in the next call.
        self.assertEqual((self.call("racecheck")[0], self.ran()), (1, []))

    def test_a_test_that_takes_too_long_is_stopped_and_tried_last_the_next_time(self) -> None:
        self.program(
            sanitize.FOLDER / "kernels", BINARY.replace("$LISTED", "slow::agrees: test\ncopy::agrees: test\n")
        )
        with mock.patch.object(sanitize, "TEST_SECONDS", 1):
            status, output = self.call()
        self.assertEqual(status, 3, output)
        self.assertIn("kernels::slow::agrees: too slow", output)
        with mock.patch.object(sanitize, "TEST_SECONDS", 1):
            self.call()
        self.assertEqual(self.ran(), ["slow::agrees"])

    def test_time_that_is_up_leaves_tests_for_the_next_call(self) -> None:
        status, _ = self.call("--seconds", "10")
        self.assertEqual((status, self.ran()), (3, []))

    def test_a_tool_that_finds_no_planted_error_runs_nothing(self) -> None:
        with mock.patch.object(sanitize, "planted", return_value=(False, "NOT found")):
            self.assertEqual((self.call()[0], self.ran()), (1, []))

    def test_a_tool_that_does_not_work_is_given_up(self) -> None:
        (self.samples / "clean").write_text(UNSUPPORTED)
        status, output = self.call()
        self.assertEqual((status, len(self.ran())), (1, 3), output)

    def test_what_is_missing_is_named(self) -> None:
        with (
            mock.patch.dict(os.environ, {"PATH": "/nowhere"}),
            mock.patch.object(sanitize.glob, "glob", return_value=[]),
        ):
            del os.environ["FURROW_COMPUTE_SANITIZER"]
            status, output = self.call()
            self.assertEqual(status, 2)
            self.assertIn("compute-sanitizer is neither on PATH", output)
            # The commands can be looked at all the same.
            status, output = self.call("--dry-run", "--only", "copy")
            self.assertEqual((status, len(output.splitlines())), (0, 1))
        (sanitize.FOLDER / "backend").unlink()
        status, output = self.call()
        self.assertEqual(status, 2)
        self.assertIn("the test binary backend is neither .cache/gpu/backend nor", output)

    def test_unpacked_binaries_are_found(self) -> None:
        root = self.folder / "root" / "gpu"
        root.mkdir(parents=True)
        for name in LISTED:
            (sanitize.FOLDER / name).rename(root / name)
        status, output = self.call("--dry-run")
        self.assertEqual(status, 0, output)
        self.assertEqual(
            output.splitlines()[0],
            f"{self.tool} --tool memcheck --error-exitcode 86 --print-limit 50 {root}/kernels --exact "
            "copy::agrees --test-threads=1 --nocapture",
        )


class PlantedErrors(unittest.TestCase):
    """The program with an error, with stand-ins for nvcc and the tool."""

    def test_a_tool_must_report_it(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            samples = {"memcheck": MEMCHECK, "clean": CLEAN}
            for sample, text in samples.items():
                (folder / sample).write_text(text)
            for program, text in (
                ("nvcc", "#!/bin/sh\nexit 0\n"),
                ("finds", f"#!/bin/sh\ncat {folder}/memcheck\nexit 86\n"),
                ("blind", f"#!/bin/sh\ncat {folder}/clean\n"),
            ):
                (folder / program).write_text(text)
                (folder / program).chmod(0o755)
            environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
            self.assertTrue(sanitize.planted(folder / "finds", [], "memcheck", environment)[0])
            works, output = sanitize.planted(folder / "blind", [], "memcheck", environment)
            self.assertIs(works, False)
            self.assertIn("NOT found (clean", output)
            (folder / "nvcc").write_text("#!/bin/sh\necho no such architecture\nexit 1\n")
            self.assertEqual(
                sanitize.planted(folder / "finds", [], "memcheck", environment),
                (None, "not tried: nvcc: no such architecture"),
            )


if __name__ == "__main__":
    unittest.main()
