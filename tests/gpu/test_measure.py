"""What the first minute on a GPU machine is judged by: `python3 -m unittest discover -s tests/gpu`."""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import machine
import measure
import probe


class Advice(unittest.TestCase):
    def test_the_first_cell_is_the_largest_whose_memory_is_pinned_in_time(self):
        # 23 x 4 GiB stand for append-7: 90 s are 3.9 s.
        for seconds, first in ((0.5, "append-7"), (3.8, "append-7"), (4.0, "append-3"), (9.0, "append-3")):
            self.assertEqual(measure.advise(seconds, 1e9)["first"], first, seconds)
        self.assertEqual(measure.advise(12.0, 1e9)["first"], "last_image-3")
        self.assertAlmostEqual(measure.advise(1.0, 1e9)["pin_seconds"]["append-7"], 23.0, delta=0.1)
        self.assertIn("it alone", " ".join(measure.advise(60.0, 1e9)["lines"]))

    def test_what_was_not_measured_is_reported(self):
        advice = measure.advise(None, None)
        self.assertEqual(advice["first"], "append-7")
        self.assertIn("pinning was not measured", advice["lines"][0])
        self.assertIn("the disk was not measured", advice["lines"][-1])

    def test_a_slow_disk_takes_its_seconds_off_the_second_cell(self):
        self.assertIn("98 s more", measure.advise(1.0, 0.15e9)["lines"][-1])
        self.assertNotIn("more than the runbook", measure.advise(1.0, 0.5e9)["lines"][-1])

    def test_everything_is_reported_without_a_gpu_and_nothing_is_left(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(measure, "pin_rate") as pin:
            pin.side_effect = OSError("no torch")
            layout = machine.Layout(folder)
            layout.make()
            small = measure.write_rate(layout.root, 3 << 20)
            self.assertEqual(small["bytes"], 3 << 20)
            self.assertGreater(small["bytes_a_second"], 0)
            with unittest.mock.patch.object(measure, "write_rate", return_value=small):
                found = measure.examine(layout)
            self.assertIn("no torch", found["pin"]["failed"])
            text = measure.text(found)
            for term in ("nofile_soft", "/dev/shm", "Mem:", "=> begin with append-7"):
                self.assertIn(term, text)
            self.assertFalse((layout.root / ".measure").exists())

    def test_a_slow_disk_is_given_up_in_time(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(measure, "BLOCK", 1 << 10):
            rate = measure.write_rate(pathlib.Path(folder), 1 << 40, 0.05)
            self.assertLess(rate["bytes"], 1 << 30)


class Probed(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def unpacked(self, *names):
        for name in names:
            os.makedirs(os.path.join(self.root, name), exist_ok=True)
            pathlib.Path(self.root, name, ".furrow-archive").write_text("x")

    def test_a_slow_browser_is_no_reason_to_go_without_its_sandbox(self):
        self.assertIsNone(probe.without_sandbox(True, True))
        self.assertIs(probe.without_sandbox(True, False), False)
        self.assertIs(probe.without_sandbox(False, True), False)

    def test_a_check_that_had_no_time_says_so(self):
        def slow():
            raise probe.TooSlow("8 s")

        looked = probe.Probe(self.root)
        looked.check("a", False, slow)
        self.assertEqual((looked.checks[0]["ok"], looked.checks[0]["slow"]), (False, True))

    def test_the_disk_must_hold_the_checkpoints_that_are_not_made_yet(self):
        with unittest.mock.patch.object(probe, "_free", return_value=35 << 30):
            with self.assertRaisesRegex(probe.Failed, "are needed"):
                probe.disk(probe.Probe(self.root))
            probe.disk(probe.Probe(self.root, dry=True))
            os.mkdir(os.path.join(self.root, "checkpoints"))
            pathlib.Path(self.root, "checkpoints", "first.json").write_text("{}")
            probe.disk(probe.Probe(self.root))

    def test_carried_wheels_are_needed_only_where_the_machine_has_none(self):
        self.unpacked("bin", "envs", "browser")
        self.assertEqual(probe.components(probe.Probe(self.root)), ["bin", "envs", "browser"])
        looked = probe.Probe(self.root)
        with unittest.mock.patch.object(looked, "run", return_value=(0, "24.0 12.0")):
            self.assertIn("own", probe.imports(looked))
        with unittest.mock.patch.object(looked, "run", side_effect=[(1, "none"), (0, "24.0 12.0")]):
            self.assertIn("carried", probe.imports(looked))
        with (
            unittest.mock.patch.object(looked, "run", return_value=(1, "none")),
            self.assertRaises(probe.Failed),
        ):
            probe.imports(looked)

    def test_what_the_doctor_finds_unfit_is_a_warning(self):
        looked = probe.Probe(self.root)
        rows = '[\n {"what": "fonts", "fit": false, "found": "none"}'
        rows += ', {"what": "gpu", "fit": true, "found": "x"}]'
        with (
            unittest.mock.patch.object(looked, "run", return_value=(1, "warning: y\n" + rows)),
            self.assertRaisesRegex(probe.Failed, "^fonts: none$"),
        ):
            probe.doctor(looked, True)
        with unittest.mock.patch.object(looked, "run", return_value=(0, rows.replace("false", "true"))):
            self.assertEqual(probe.doctor(looked, True), "fonts: none; gpu: x")


if __name__ == "__main__":
    unittest.main()
