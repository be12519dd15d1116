"""The whole check on runs made here: what the trainer's model gives in float64 is recorded, then checkpoints,
rows and pictures are spoiled.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import itertools
import json
import shutil
import sys
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
TRAINER = HERE.parents[1] / "trainer"
sys.path[:0] = [str(HERE), str(TRAINER / "src")]
CHECKPOINT = HERE.parents[1] / "crates" / "model" / "tests" / "oracle_vl" / "vl_f32"

try:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch
    from PIL import Image
    from safetensors.torch import load_file, save_file

    import logprobs
    import recorded
    from furrow_trainer.data import pixels
    from furrow_trainer.data.rows import ImageSpan
    from furrow_trainer.data.token_hash import token_hash
    from furrow_trainer.model import load
except ImportError as error:
    raise unittest.SkipTest(f"{error}: PyTorch, safetensors, pyarrow and Pillow are needed") from error


def _trainer_tests() -> ModuleType:
    """The trainer's stand-in for a run, under a name of its own: another farm.py lies here."""
    sys.path.append(str(TRAINER / "tests"))
    spec = importlib.util.spec_from_file_location("trainer_tests_farm", TRAINER / "tests" / "farm.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


farm = _trainer_tests()
JOB = '[policy]\nkind = "model"\n[policy.engine]\nbackend = "{backend}"\ncompute = "{compute}"\n'
JOB += 'resample = "u8"\n'
TEMPERATURE = 0.7
KILLED = 5_500_000


class MadeRun:
    """A run directory of a few trajectories; log-probs are those of `dtype` over whole sequences."""

    def __init__(self, run: Path, checkpoints: list[Path], dtype: torch.dtype = torch.float64) -> None:
        self.run = run
        self.policies = [load(folder, dtype=dtype) for folder in checkpoints]
        self.dtype = dtype
        self.random = np.random.default_rng(3)
        self.files = 0
        (run / "data" / "steps").mkdir(parents=True)
        (run / "job.toml").write_text(JOB.format(backend="cpu", compute="float32"))

    def features(self, version: int, blob: bytes) -> tuple[torch.Tensor, tuple[int, int]]:
        checkpoint = self.policies[version]
        vision = checkpoint.config.vision
        assert vision is not None
        cut, grid = pixels.tiles(pixels.decode(blob), vision.tiling)
        with torch.no_grad():
            return checkpoint.policy.image_rows(
                torch.from_numpy(pixels.normalise(cut, vision.tiling)).to(self.dtype)
            ).flatten(0, 1), grid

    def trajectory(
        self, name: str, versions: list[int], keep: str, state: list[int] | None = None, **more: Any
    ) -> None:
        """A step for each version; `state`: the oldest version that wrote what the step read (its own where
        absent).
        """
        rows, kept, spans = [], np.zeros(0, np.int32), []
        for index, version in enumerate(versions):
            blob = farm.png(100 * ord(name[0]) + 10 * len(name) + index, 96, 64)
            checkpoint = self.policies[version]
            vision = checkpoint.config.vision
            assert vision is not None
            features, grid = self.features(version, blob)
            text = self.random.integers(1, 400, 11)
            prompt = np.concatenate([text[:5], np.full(len(features), vision.image_token), text[5:]]).astype(
                np.int32
            )
            span = ImageSpan(
                index,
                len(kept) + 5,
                len(features),
                *grid,
                hashlib.sha256(blob).digest(),
                pixels.rgb_sha256(pixels.decode(blob)),
            )
            spans = [*(spans if keep == "append" else []), span]
            response = self.random.integers(1, 400, 9).astype(np.int32)
            whole = np.concatenate([kept, prompt, response])
            ids = torch.from_numpy(whole.astype(np.int64))[None]
            positions = torch.cat(
                [torch.arange(one.token_start, one.token_start + one.token_len) for one in spans]
            )
            shown = torch.cat(
                [
                    self.features(version, self.blobs[one.step] if one.step < index else blob)[0]
                    for one in spans
                ]
            )
            with torch.no_grad():
                scores = (
                    checkpoint.policy.language_model.lm_head(
                        checkpoint.policy(ids, shown, positions=positions)
                    )[0].double()
                    / TEMPERATURE
                )
            scores = scores[len(whole) - len(response) - 1 : -1]
            own = scores.log_softmax(-1)[range(len(response)), response.astype(np.int64)].tolist()
            # Of the drawn ones some are among a few ids, some among all, some among more than are listed; the
            # first is forced.
            few = [
                sorted({int(response[at]), 7, 8, 9}) if at in (2, 3) else [] for at in range(len(response))
            ]
            drawn = [
                float(scores[at, response[at]] - scores[at, few[at]].logsumexp(-1)) if few[at] else own[at]
                for at in range(len(response))
            ]
            counts = [1, None, len(few[2]), len(few[3]), 600, *[None] * 4]
            row = farm.row(
                "steps",
                run_id="made",
                trajectory_id=name,
                group_id=name,
                task_id="t",
                suite="s",
                split="train",
                policy_kind="model",
                step=index,
            )
            row |= {
                "is_last": index == len(versions) - 1,
                "prompt_token_ids": prompt.tolist(),
                "response_token_ids": response.tolist(),
                "response_mask": [False] + [True] * 8,
                "forced": [True] + [False] * 8,
                "prefix_len": len(kept),
                "image_spans": [{slot: getattr(one, slot) for slot in ImageSpan.__slots__} for one in spans],
                "prompt_hash": token_hash(np.concatenate([kept, prompt]), spans),
                "prefix_hash": token_hash(kept, []),
                "logprobs": [None, *own[1:]],
                "sampled_logprobs": [0.0, *drawn[1:4], drawn[4] + 0.1, *drawn[5:]],
                "kept_count": counts,
                "kept_token_ids": [token for part in few for token in part],
                "kept_offsets": np.cumsum([0, *map(len, few)]).tolist(),
                "policy_versions": [version] * 9,
                "policy_version": version,
                "state_version_min": (state or versions)[index],
                "observed_at": 1_000_000 * (1 + index),
            }
            row["observation"] |= {
                "screenshot": {"bytes": blob, "path": None},
                "format": "png",
                "width": 96,
                "height": 64,
            }
            row["sampling"] |= {"temperature": TEMPERATURE, "top_p": 1.0}
            # Step 4 was observed before the kill and answered after it.
            row["engine"] |= {"state_origin": "rebuilt" if index == 4 else "resident"}
            row["timing"] |= {"policy_micros": 1_000_000 if index == 4 else 1000}
            rows.append(row)
            self.blobs = {**getattr(self, "blobs", {}), index: blob} if index else {0: blob}
            if keep == "append":
                kept = whole
            else:
                row["commit_token_ids"] = [*text.tolist(), *response.tolist()]
                kept = np.concatenate([kept, text, response]).astype(np.int32)
        for row in rows:
            row.update(more)
        self.write(rows)

    def write(self, rows: list[dict[str, Any]]) -> None:
        table = pa.Table.from_pylist(rows, schema=farm.schema("steps"))
        pq.write_table(table, self.run / "data" / "steps" / f"{self.files:04}.parquet", row_group_size=2)
        self.files += 1


def rewrite(run: Path, change: Any) -> None:
    """Applies `change` to every row of a run."""
    for path in (run / "data" / "steps").glob("*.parquet"):
        rows = pq.read_table(path).to_pylist()
        for row in rows:
            change(row)
        pq.write_table(pa.Table.from_pylist(rows, schema=farm.schema("steps")), path, row_group_size=2)


def spoiled(source: Path, into: Path, name: str, factor: float) -> Path:
    """The checkpoint with one tensor scaled."""
    shutil.copytree(source, into, copy_function=shutil.copyfile)
    tensors = load_file(into / "model.safetensors")
    tensors[name] = tensors[name] * factor
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt"})
    return into


class Checks(unittest.TestCase):
    """One run of two versions, both context policies, with a kill at `KILLED`."""

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.base = Path(folder.name)
        cls.first = cls.base / "first"
        shutil.copytree(CHECKPOINT, cls.first, copy_function=shutil.copyfile)
        cls.second = spoiled(CHECKPOINT, cls.base / "second", "language_model.lm_head.weight", -1.0)
        made = MadeRun(cls.base / "run", [cls.first, cls.second])
        made.trajectory("a", [0, 0, 0, 1, 1, 1], "append", state=[0, 0, 0, 0, 1, 1])
        made.trajectory("b", [0, 0, 0, 0, 0], "append")
        made.trajectory("c", [1, 1, 1], "append")
        made.trajectory("d", [0, 0, 0, 1], "last_image")

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        shutil.copytree(self.base / "run", self.folder / "run", copy_function=shutil.copyfile)

    def check(self, *arguments: Any, run: Path | None = None) -> tuple[int, str, dict[str, Any]]:
        out, wrong, report = io.StringIO(), io.StringIO(), self.folder / "out" / "report.json"
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(wrong):
            status = logprobs.main(
                [
                    str(run or self.folder / "run"),
                    *map(str, arguments),
                    "--device",
                    "cpu",
                    "--json",
                    str(report),
                ]
            )
        return (
            status,
            out.getvalue() + wrong.getvalue(),
            json.loads(report.read_text()) if report.exists() else {},
        )

    def test_right_checkpoints_pass(self) -> None:
        status, output, report = self.check(self.first, self.second, "--steps", 12, "--after", KILLED)
        self.assertEqual((status, report["passed"], report["problems"]), (0, True, []), output)
        self.assertEqual(len(report["steps"]), 12)
        self.assertEqual({row["version"] for row in report["steps"]}, {0, 1})
        self.assertTrue(any(row["is_after"] and row["origin"] == "rebuilt" for row in report["steps"]))
        # Step 3 of a was drawn from a state of both.
        self.assertNotIn(("a", 3), [(row["trajectory_id"], row["step"]) for row in report["steps"]])
        self.assertEqual(
            (report["logprobs"]["compared"], report["sampled_logprobs"]["compared"], report["unlisted"]),
            (12 * 8, 12 * 7, 12),
        )
        self.assertLess(report["logprobs"]["max"], 5e-5)
        self.assertLess(report["sampled_logprobs"]["max"], 5e-5)
        self.assertEqual(len(report["controls"]), 2)
        self.assertTrue(all(control["p99"] > 0.1 for control in report["controls"]), report["controls"])

    def test_steps_of_cancelled_trajectories_count_as_far_as_they_are_all_there(self) -> None:
        run = self.folder / "run"
        failed = run / "data" / "failed_steps"
        failed.mkdir()
        whole = {(one.trajectory_id, one.step) for one in recorded.look(run)}
        # a and c, of which alone there are steps of the second version.
        for name in ("0000", "0002"):
            (run / "data" / "steps" / f"{name}.parquet").rename(failed / f"{name}.parquet")
        self.assertEqual({(one.trajectory_id, one.step) for one in recorded.look(run)}, whole)
        status, output, report = self.check(self.first, self.second, "--steps", 12)
        self.assertEqual((status, report["problems"]), (0, []), output)
        rows = pq.read_table(failed / "0002.parquet").to_pylist()
        table = pa.Table.from_pylist([row for row in rows if row["step"] != 1], schema=farm.schema("steps"))
        pq.write_table(table, failed / "0002.parquet")
        found = {(one.trajectory_id, one.step) for one in recorded.look(run)}
        self.assertEqual(whole - found, {("c", 1), ("c", 2)})

    def test_a_changed_tensor_fails(self) -> None:
        for index, name in enumerate(
            (
                "language_model.backbone.layers.0.mixer.dt_bias",
                "vision_model.radio_model.model.blocks.1.mlp.fc1.weight",
                "mlp1.3.weight",
            )
        ):
            with self.subTest(name):
                wrong = spoiled(self.first, self.folder / str(index), name, 1.1)
                status, output, report = self.check(wrong, self.second, "--steps", 12)
                self.assertEqual((status, report["passed"]), (1, False), output)
                self.assertIn("logprobs: 99 of 100 gaps", output)

    def test_the_wrong_versions_fail(self) -> None:
        for checkpoints in ([self.second, self.first], [self.first, self.first], [self.second, self.second]):
            with self.subTest(checkpoints):
                self.assertEqual(self.check(*checkpoints, "--steps", 12)[0], 1)

    def test_one_bad_step_of_the_later_version_fails(self) -> None:
        def change(row: dict[str, Any]) -> None:
            if (row["trajectory_id"], row["step"]) == ("c", 1):
                row["logprobs"] = [None if value is None else value + 0.01 for value in row["logprobs"]]

        rewrite(self.folder / "run", change)
        status, output, _ = self.check(self.first, self.second, "--steps", 16)
        self.assertEqual(status, 1)
        self.assertIn("step 1 of c: the mean gap is 0.01", output)
        self.assertIn("logprobs of version 1", output)

    def test_recorded_numbers_that_are_not_numbers_fail(self) -> None:
        def change(row: dict[str, Any]) -> None:
            row["logprobs"][3] = float("inf")

        rewrite(self.folder / "run", change)
        status, output, report = self.check(self.first, self.second, "--steps", 12)
        self.assertEqual((status, report["logprobs"]["max"]), (1, None), output)

    def test_sampled_logprobs_are_judged_apart(self) -> None:
        def change(row: dict[str, Any]) -> None:
            row["sampled_logprobs"][2] += 0.05

        rewrite(self.folder / "run", change)
        status, output, _ = self.check(self.first, self.second, "--steps", 12)
        self.assertEqual(status, 1)
        self.assertIn("FAILED: sampled_logprobs", output)
        self.assertNotIn("FAILED: logprobs", output)

    def test_prompts_and_pictures_are_checked_against_their_hashes(self) -> None:
        def of_prompt(row: dict[str, Any]) -> None:
            row["prompt_token_ids"][0] += 1

        def of_picture(row: dict[str, Any]) -> None:
            row["observation"]["screenshot"]["bytes"] = farm.png(999, 96, 64)

        def of_pixels(row: dict[str, Any]) -> None:
            for span in row["image_spans"]:
                span["tiles_x"] += 1

        for change, message in (
            (of_prompt, "another hash"),
            (of_picture, "not the one that was shown"),
            (of_pixels, "is cut into"),
        ):
            with self.subTest(message):
                run = self.folder / message.replace(" ", "-")
                shutil.copytree(self.base / "run", run, copy_function=shutil.copyfile)
                rewrite(run, change)
                status, output, _ = self.check(self.first, self.second, run=run)
                self.assertEqual(status, 2)
                self.assertIn(message, output)

    def test_pixels_of_a_jpeg_may_differ_by_the_decoder_and_no_others(self) -> None:
        picture = io.BytesIO()
        Image.new("RGB", (96, 64), (30, 90, 200)).save(picture, "JPEG", quality=80)
        blob = recorded.Blob(picture.getvalue(), bytes(32), (1, 1))
        tiling = pixels.Tiling(tile=32, tiles_max=1, thumbnail=False, mean=(0, 0, 0), std=(1, 1, 1))
        tiles = recorded.cut({b"key": blob}, tiling, 1, [], 1)[b"key"]
        self.assertEqual(tiles.shape[0], 1)
        lossless = recorded.Blob(farm.png(7, 96, 64), bytes(32), (1, 1))
        with self.assertRaisesRegex(recorded.DataError, "does not decode to the pixels"):
            recorded.cut({b"key": lossless}, tiling, 1, [], 1)

    def test_a_requested_step_that_is_missing_fails(self) -> None:
        status, output, _ = self.check(self.first, self.second, "--steps", 12, "--after", 90_000_000)
        self.assertEqual(status, 1)
        self.assertIn("sampled after 90000000", output)
        status, output, _ = self.check(self.first, self.second, f"5={self.first}", "--steps", 12)
        self.assertEqual(status, 1)
        self.assertIn("no step of version 5 alone", output)
        status, output, _ = self.check(self.first, self.second, "--steps", 40)
        self.assertEqual(status, 1)
        self.assertIn("17 steps can be recomputed, 40 are asked for; of 18: 1 of several versions", output)

    def test_a_second_version_that_changes_nothing_proves_nothing(self) -> None:
        made = MadeRun(self.folder / "same", [self.first, self.first])
        made.trajectory("a", [0, 0], "append")
        made.trajectory("b", [1, 1], "append")
        status, output, _ = self.check(self.first, self.first, "--steps", 4, run=self.folder / "same")
        self.assertEqual(status, 1)
        self.assertIn("this check proves nothing: step 0 of", output)

    def test_arguments_that_cannot_be_used(self) -> None:
        delta = self.folder / "delta"
        delta.mkdir()
        (delta / "delta.json").write_text("{}")
        float_tiles = self.folder / "float"
        shutil.copytree(self.base / "run", float_tiles)
        (float_tiles / "job.toml").write_text(
            JOB.format(backend="cpu", compute="float32").replace("u8", "float")
        )
        for arguments, run, text in (
            ([self.folder], None, "no config.json"),
            ([delta], None, "delta or an adapter"),
            ([self.first], self.folder, "job.toml cannot be read"),
            ([self.first], float_tiles, "resample"),
            ([f"1={self.first}", self.first], None, "two directories for version 1"),
        ):
            with self.subTest(text):
                status, output, _ = self.check(*arguments, run=run)
                self.assertEqual(status, 2)
                self.assertIn(text, output)
        (self.folder / "empty" / "data" / "steps").mkdir(parents=True)
        (self.folder / "empty" / "job.toml").write_text(JOB.format(backend="cpu", compute="float32"))
        status, output, _ = self.check(self.first, run=self.folder / "empty")
        self.assertEqual(status, 2)
        self.assertIn("no step with tokens", output)


class InBfloat16(unittest.TestCase):
    def test_what_pytorch_draws_in_bfloat16_passes_and_a_changed_tensor_does_not(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            base = Path(name)
            first = base / "first"
            shutil.copytree(CHECKPOINT, first, copy_function=shutil.copyfile)
            save_file(
                {key: tensor.bfloat16() for key, tensor in load_file(first / "model.safetensors").items()},
                first / "model.safetensors",
                metadata={"format": "pt"},
            )
            made = MadeRun(base / "run", [first], torch.bfloat16)
            for index in range(3):
                made.trajectory(f"t{index}", [0] * 4, "append")
            (base / "run" / "job.toml").write_text(JOB.format(backend="cuda", compute="float32"))
            report = base / "report.json"

            def check(folder: Path) -> int:
                with contextlib.redirect_stdout(io.StringIO()):
                    return logprobs.main(
                        [
                            str(base / "run"),
                            str(folder),
                            "--steps",
                            "12",
                            "--device",
                            "cpu",
                            "--json",
                            str(report),
                        ]
                    )

            self.assertEqual(check(first), 0, report.read_text())
            found = json.loads(report.read_text())
            self.assertEqual(found["arithmetic"], "bfloat16")
            self.assertGreater(found["logprobs"]["p99"], logprobs.FLOAT32_BOUND)
            self.assertEqual(found["bound"], logprobs.bfloat16_bound(found["pytorch_bfloat16"]["p99"]))
            tensors = load_file(first / "model.safetensors")
            key = "language_model.backbone.layers.0.mixer.in_proj.weight"
            tensors[key] = tensors[key] * 1.25
            wrong = base / "wrong"
            shutil.copytree(first, wrong, copy_function=shutil.copyfile)
            save_file(tensors, wrong / "model.safetensors", metadata={"format": "pt"})
            self.assertEqual(check(wrong), 1)

    def test_the_bound_follows_pytorch_up_to_that_of_the_parity_tests(self) -> None:
        for pytorch, bound in ((0.01, 0.02), (0.1, 0.2), (0.2, 0.2784), (0.4, 0.5)):
            self.assertAlmostEqual(logprobs.bfloat16_bound(pytorch), bound)


class Choosing(unittest.TestCase):
    def steps(
        self,
        trajectories: int,
        length: int,
        per_step: int = 100,
        version: int = 0,
        grows: bool = True,
        **more: Any,
    ) -> list[recorded.Candidate]:
        one = recorded.Candidate("", 0, Path("x"), 0, 0, version, version, grows, "resident", 0, 10)
        return [
            replace(
                one,
                trajectory_id=f"v{version}t{index}",
                step=step,
                context_tokens=per_step * (step + 1),
                replied_micros=step,
                **more,
            )
            for index in range(trajectories)
            for step in range(length)
        ]

    def choose(self, found: list[recorded.Candidate], **more: Any) -> recorded.Choice:
        return recorded.choose(
            found, **{"count": 20, "known": [0], "after": None, "budget": 10**9, "seed": 0, **more}
        )

    def test_ages_are_spread_and_trajectories_differ(self) -> None:
        choice = self.choose(self.steps(50, 30))
        ages = [one.step for one in choice.steps]
        self.assertEqual((len(ages), ages[0], ages[-1], choice.problems), (20, 0, 29, []))
        self.assertLessEqual(max(late - early for early, late in itertools.pairwise(ages)), 2)
        self.assertEqual(len({one.trajectory_id for one in choice.steps}), 20)
        self.assertEqual(choice.tokens, sum(one.context_tokens for one in choice.steps))

    def test_a_budget_takes_ages_out_of_the_longest_steps(self) -> None:
        choice = self.choose(self.steps(50, 30, per_step=2000), budget=200_000)
        self.assertLessEqual(choice.tokens, 200_000)
        ages = [one.step for one in choice.steps]
        self.assertEqual((len(ages), ages[0], ages[-1]), (20, 0, 29))
        self.assertLessEqual(max(late - early for early, late in itertools.pairwise(ages)), 2)
        self.assertGreater(len({one.trajectory_id for one in choice.steps}), 3)

    def test_every_version_and_the_kill_are_among_them(self) -> None:
        found = (
            self.steps(50, 30) + self.steps(1, 4, version=1) + self.steps(1, 3, version=3, origin="rebuilt")
        )
        choice = self.choose(found, known=[0, 1, 3], after=1)
        self.assertEqual(choice.problems, [])
        self.assertEqual({one.version for one in choice.steps}, {0, 1, 3})
        self.assertTrue(any(one.origin == "rebuilt" and one.replied_micros > 1 for one in choice.steps))
        self.assertIn(
            "no state was rebuilt after 5", self.choose(found, known=[0, 1, 3], after=5).problems[0]
        )

    def test_what_cannot_be_recomputed_is_left_out(self) -> None:
        found = (
            self.steps(2, 3, drawn=0)
            + [replace(one, version=None) for one in self.steps(1, 3)]
            + self.steps(1, 3, version=9)
        )
        choice = self.choose(found)
        self.assertEqual(choice.steps, [])
        self.assertIn(
            "3 of several versions, 3 of versions without a checkpoint, 6 without log-probs",
            choice.problems[-1],
        )


if __name__ == "__main__":
    unittest.main()
