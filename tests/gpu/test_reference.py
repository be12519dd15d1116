"""The layer by layer pass: its arithmetic, against float64, and its logits, against the oracle's
(crates/model/tests).
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "trainer" / "src")]
ORACLE, ORACLE_VL = (
    HERE.parents[1] / "crates" / "model" / "tests" / name for name in ("oracle", "oracle_vl")
)

try:
    import torch
    import torch.nn.functional as F
    from safetensors.torch import load_file, save_file

    import reference
    from furrow_trainer.errors import CheckpointError
except ImportError as error:
    raise unittest.SkipTest(f"{error}: PyTorch, safetensors and numpy are needed") from error


def rounded_to_tf32(x: torch.Tensor) -> torch.Tensor:
    """As tensor cores read float32: 10 bits of mantissa."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def in_tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return rounded_to_tf32(a) @ rounded_to_tf32(b)


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).square().mean().sqrt() / want.double().square().mean().sqrt())


class Arithmetic(unittest.TestCase):
    def setUp(self) -> None:
        torch.manual_seed(1)

    def test_parts_are_exact_and_the_first_is_tf32(self) -> None:
        x = torch.randn(1000) * torch.logspace(-20, 20, 1000)
        first, rest = reference.split(x)
        self.assertTrue(torch.equal(first.double() + rest.double(), x.double()))
        self.assertTrue(torch.equal(rounded_to_tf32(first), first))

    def test_a_weight_of_bfloat16_is_one_part(self) -> None:
        self.assertEqual(len(reference.split(torch.randn(1000).bfloat16().float())), 1)

    def test_products_in_tf32_by_parts_are_those_of_float32(self) -> None:
        a, b = torch.randn(64, 512), torch.randn(512, 48)
        want = a.double() @ b.double()
        for name, weight, exact in (
            ("float32", b, want),
            ("bfloat16", b.bfloat16().float(), a.double() @ b.bfloat16().double()),
        ):
            with self.subTest(name):
                self.assertLess(
                    relative(reference.product(reference.split(a), reference.split(weight), in_tf32), exact),
                    1e-6,
                )
        # Without the second part it would be no reference.
        self.assertGreater(relative(in_tf32(a, b), want), 1e-4)

    def test_linear_layers_and_attention_in_blocks_are_pytorchs(self) -> None:
        x, weight, bias = torch.randn(2, 37, 24), torch.randn(10, 24), torch.randn(10)
        q, k, v = (torch.randn(2, 3, 41, 8) for _ in range(3))
        for is_split in (False, True):
            for is_causal in (False, True):
                with (
                    self.subTest(is_split=is_split, is_causal=is_causal),
                    mock.patch.object(reference, "_ROWS", 16),
                    mock.patch.object(reference, "_SCORES", 1),
                ):
                    with reference.Reference(is_split):
                        line = F.linear(x, weight, bias)
                        attended = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
                    self.assertLess(
                        relative(line, F.linear(x.double(), weight.double(), bias.double())), 1e-6
                    )
                    want = F.scaled_dot_product_attention(
                        q.double(), k.double(), v.double(), is_causal=is_causal
                    )
                    self.assertLess(relative(attended, want), 1e-6)

    def test_another_mask_is_refused(self) -> None:
        q = torch.ones(1, 1, 2, 2)
        with reference.Reference(False), self.assertRaises(NotImplementedError):
            F.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(2, 2, dtype=torch.bool))


class Logits(unittest.TestCase):
    def test_text_is_the_oracles(self) -> None:
        for case in ("dense", "long_chunk128", "moe", "moe_latent_groups", "vl_names_bf16"):
            folder = ORACLE / case
            ids = json.loads((folder / "inputs.json").read_text())["prompt_a"]
            want = load_file(folder / "expected.safetensors")["a.logits_ref64"]
            for is_split in (False, True):
                with self.subTest(case, is_split=is_split):
                    one = reference.Tokens(ids, (), range(len(ids)))
                    got = reference.logits(
                        reference.Weights(folder), [one], {}, torch.device("cpu"), is_split=is_split
                    )
                    self.assertLess(relative(got[0].reference, want), 3e-6)

    def test_prompts_with_pictures_are_the_oracles(self) -> None:
        for case in ("vl_f32", "vl_bf16_sharded"):
            folder = ORACLE_VL / case
            weights = reference.Weights(folder)
            inputs, expected = (
                json.loads((folder / "inputs.json").read_text()),
                load_file(folder / "expected.safetensors"),
            )
            image = weights.vision.image_token
            sequences, wants, tiles = [], [], {}
            for name, prompt in inputs["prompts"].items():
                runs = [
                    at
                    for at, token in enumerate(prompt["ids"])
                    if token == image and (at == 0 or prompt["ids"][at - 1] != image)
                ]
                self.assertEqual(len(runs), len(prompt["images"]))
                shown = tuple(
                    reference.Picture(at, key.encode())
                    for at, key in zip(runs, prompt["images"], strict=True)
                )
                for key in prompt["images"]:
                    cut = expected[f"{key}.tiles_u8"]
                    tiles[key.encode()] = (
                        (cut if cut.shape[-1] == 3 else cut.permute(0, 2, 3, 1)).contiguous().numpy()
                    )
                sequences.append(reference.Tokens(prompt["ids"], shown, range(len(prompt["ids"]))))
                wants.append(expected[f"{name}.ac0.logits"])
            self.assertTrue(any(len(one.pictures) > 1 for one in sequences))
            for is_split in (False, True):
                got = reference.logits(
                    weights, sequences, tiles, torch.device("cpu"), with_bfloat16=True, is_split=is_split
                )
                for name, one, want in zip(inputs["prompts"], got, wants, strict=True):
                    with self.subTest(case, prompt=name, is_split=is_split):
                        self.assertLess(relative(one.reference, want), 2e-5)
                        # bfloat16 is near, and is not the same.
                        self.assertTrue(
                            1e-3 < relative(one.bfloat16, want) < 0.1, relative(one.bfloat16, want)
                        )

    def test_only_the_wanted_rows_come_back(self) -> None:
        folder = ORACLE / "dense"
        ids = json.loads((folder / "inputs.json").read_text())["prompt_a"]
        weights = reference.Weights(folder)
        both = reference.logits(
            weights,
            [reference.Tokens(ids, (), [3, 5]), reference.Tokens(ids[:6], (), [5])],
            {},
            torch.device("cpu"),
        )
        want = load_file(folder / "expected.safetensors")["a.logits_ref64"]
        self.assertLess(relative(both[0].reference, want[[3, 5]]), 3e-6)
        self.assertLess(relative(both[1].reference, want[[5]]), 3e-6)


class Files(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "checkpoint"
        shutil.copytree(ORACLE_VL / "vl_f32", self.folder)

    def changed(self, change: object) -> reference.Weights:
        tensors = load_file(ORACLE_VL / "vl_f32" / "model.safetensors")
        change(tensors)  # type: ignore[operator]
        save_file(tensors, self.folder / "model.safetensors", metadata={"format": "pt"})
        return reference.Weights(self.folder)

    def fails(self, weights: reference.Weights, message: str) -> None:
        with self.assertRaisesRegex(CheckpointError, message):
            reference.logits(weights, [reference.Tokens([1, 2], (), [1])], {}, torch.device("cpu"))

    def test_a_tensor_that_is_missing_unknown_or_of_another_shape_is_named(self) -> None:
        name = "language_model.backbone.layers.0.mixer.D"

        def narrower(tensors: dict[str, torch.Tensor]) -> None:
            tensors[name] = tensors[name][:-1].clone()

        self.fails(self.changed(lambda tensors: tensors.pop(name)), f"no tensor {name}")
        self.fails(
            self.changed(
                lambda tensors: tensors.update({"language_model.backbone.layers.0.mixer.bias": torch.ones(1)})
            ),
            "mixer.bias has no place",
        )
        self.fails(self.changed(narrower), "size mismatch")

    def test_an_index_names_files_beside_it(self) -> None:
        (self.folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"a": "../other.safetensors"}})
        )
        with self.assertRaisesRegex(CheckpointError, "not beside it"):
            reference.Weights(self.folder)

    def test_a_damaged_file_is_an_error_of_the_checkpoint(self) -> None:
        (self.folder / "model.safetensors").write_bytes(b"\x00" * 100)
        with self.assertRaisesRegex(CheckpointError, "cannot be read"):
            reference.Weights(self.folder)

    def test_what_most_matrices_are_stored_in_is_known(self) -> None:
        self.assertFalse(reference.Weights(self.folder).is_bfloat16)
        self.assertTrue(reference.Weights(ORACLE_VL / "vl_bf16_sharded").is_bfloat16)


if __name__ == "__main__":
    unittest.main()
