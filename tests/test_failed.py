"""Which tests are run again, and that a failure without a name is none of them."""

import unittest

from failed import failed

ONE = """
     Running tests/descriptors.rs (target/debug/deps/descriptors-75)

running 2 tests
test loud ... ok
test silent ... FAILED

failures:
    silent

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.12s

error: test failed, to rerun pass `-p furrow-wire --test descriptors`
"""
LIB = """
test core::a_bad_one - should panic ... FAILED
test core::another ... FAILED
test result: FAILED. 7 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.12s
error: test failed, to rerun pass `-p furrow-coordinator --lib`
"""
ABORTED = """
test core::a_bad_one ... error: test failed, to rerun pass `-p furrow-env --test browser`
Caused by:
  process didn't exit successfully: `target/debug/deps/browser-1` (signal: 6, SIGABRT: process abort signal)
"""


def end(*targets: str) -> str:
    return f"error: {len(targets)} targets failed:\n" + "".join(f"    `-p {target}`\n" for target in targets)


class Failed(unittest.TestCase):
    def test_names_and_binaries(self) -> None:
        log = ONE + LIB + end("furrow-wire --test descriptors", "furrow-coordinator --lib")
        targets, names = failed(log)
        self.assertEqual(targets, {"--test=descriptors", "--lib"})
        self.assertEqual(names, {"silent", "core::a_bad_one", "core::another"})

    def test_what_has_no_name_is_refused(self) -> None:
        wire = "furrow-wire --test descriptors"
        cases = {
            "nothing": "",
            "a build": "error[E0308]: mismatched types\nerror: could not compile `furrow-wire`\n",
            "an abort": ABORTED + end("furrow-env --test browser"),
            "an abort beside a failure": ONE + ABORTED + end(wire, "furrow-env --test browser"),
            "cargo itself ended": ONE,
            # A name chooses none of these.
            "a documentation test": ONE
            + ONE.replace("silent", "src/lib.rs")
            + end(wire, "furrow-wire --doc"),
            "a result too many": ONE + LIB + end(wire),
        }
        for name, log in cases.items():
            with self.subTest(name):
                self.assertRaises(ValueError, failed, log)


if __name__ == "__main__":
    unittest.main()
