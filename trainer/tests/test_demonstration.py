"""Demonstrations: how replies are cut, and that a warm start learns them."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from farm import Farm, png
from furrow_trainer import config as configuration
from furrow_trainer.data import Reader
from furrow_trainer.learn import demonstration, supervised
from furrow_trainer.learn.images import Images
from furrow_trainer.learn.metrics import read
from furrow_trainer.learn.template import Template, array
from furrow_trainer.model import load, save
from paths import ORACLE_VL

CLICK = (
    '{"note":"","thought":"go on","action":{"action":"click_element","element":"Add \\"it\\"","x":578,"y":6}}'
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The oracle's weights with a tokenizer of single bytes whose marks lie above them."""
    folder: Path = tmp_path_factory.mktemp("checkpoint") / "made"
    save(load(ORACLE_VL / "vl_f32"), folder)
    image = json.loads((folder / "config.json").read_text())["img_context_token_id"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # Bytes at 100 to 355, so that the first hundred ids are free for marks and the placeholder.
    fillers = {f"<filler {index}>": index for index in range(100)}
    vocabulary = fillers | {symbol: 100 + index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    raw = json.loads(tokenizer.to_str())
    marks = {
        "<s>": 1,
        "<SPECIAL_10>": 10,
        "<SPECIAL_11>": 11,
        "<SPECIAL_12>": 12,
        "<img>": 61,
        "</img>": 62,
        "<image>": image,
    }
    for name, index in marks.items():
        raw["model"]["vocab"] = {
            key: value for key, value in raw["model"]["vocab"].items() if value != index
        } | {name: index}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    raw["added_tokens"] = [
        {"id": index, "content": name, **plain}
        for name, index in sorted(marks.items(), key=lambda item: item[1])
    ]
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    return folder


def template(folder: Path) -> Template:
    vision = load(folder).config.vision
    assert vision is not None
    return Template(folder, vision)


def test_marks_in_filled_in_text_stay_text(checkpoint: Path) -> None:
    layout = template(checkpoint)
    before, after = layout.first_turn("Be <s> good.", "Click <SPECIAL_12>")
    assert before[:2] == [1, 10] and before.count(1) == 1 and 12 not in before
    assert before.count(11) == 1 and after.count(11) == 1
    assert layout.tokenizer.decode(array(before)).endswith("Click <SPECIAL_12>\n")


def test_ids_that_the_grammar_forces_are_no_choice(checkpoint: Path) -> None:
    layout = template(checkpoint)
    ids, chosen = demonstration.reply(CLICK, layout, frozenset({"thought", "element"}))
    assert ids[-1] == layout.stop and not chosen[-1]
    text = layout.tokenizer.decode(array(ids[:-1]))
    assert json.loads(text) == {
        "note": "",
        "thought": "",
        "action": {"action": "click_element", "element": "", "x": 578, "y": 6},
    }
    choices = layout.tokenizer.decode(
        array([one for one, is_choice in zip(ids, chosen, strict=True) if is_choice])
    )
    # Each value, and behind it the first byte of what closes it; empty texts leave their closing quote.
    assert choices == '""click_element""578,6}'


@pytest.mark.parametrize("context", ["last_image", "append", "fresh"])
def test_prompts_are_laid_out_under_each_context(checkpoint: Path, tmp_path: Path, context: str) -> None:
    farm = Farm(tmp_path)
    farm.commit([farm.trajectory("g", 0, 1.0, 3, policy_kind="scripted")], [farm.group("g", [1.0])])
    reader = Reader(tmp_path)
    (group,) = reader.groups()
    vision = load(checkpoint).config.vision
    assert vision is not None
    images = Images(vision.tiling, vision.rows_per_tile)
    layout = template(checkpoint)
    steps = reader.steps(group.trajectories[0])
    found = demonstration.sequences(group.trajectories[0], steps, images, layout, context)
    assert len(found) == (1 if context == "append" else 3)
    for one in found:
        for picture in one.pictures:
            rows = one.ids[picture.start : picture.start + picture.length]
            assert (
                set(rows.tolist()) == {vision.image_token}
                and one.ids[picture.start - 1] == 61
                and one.ids[picture.start + picture.length] == 62
            )
        assert (one.ids == vision.image_token).sum() == sum(picture.length for picture in one.pictures)
        assert one.ids[-1] == layout.stop and one.responses.position[-1] == len(one) - 1
    last = found[-1]
    assert len(last.pictures) == (3 if context == "append" else 1)
    # The last prompt holds every reply so far: three stop ids, but for `fresh`, which repeats replies without
    # theirs.
    assert (last.ids == layout.stop).sum() == (1 if context == "fresh" else 3)


@pytest.mark.parametrize("context", demonstration.CONTEXTS)
def test_a_wait_between_demonstrated_actions_is_read_and_not_learned(
    context: str, checkpoint: Path, tmp_path: Path
) -> None:
    farm = Farm(tmp_path)
    whole, rows = farm.trajectory("g", reward=1.0, steps=3)
    for row, name in zip(rows, ("click_element", "", "click_element"), strict=True):
        row["action"]["name"] = name
        row["trainable_sft"] = name != ""
    farm.commit([(whole, rows)], [farm.group("g", [1.0])])
    reader = Reader(tmp_path)
    (group,) = reader.groups()
    vision = load(checkpoint).config.vision
    assert vision is not None
    layout = template(checkpoint)
    steps = reader.steps(group.trajectories[0])
    images = Images(vision.tiling, vision.rows_per_tile)
    found = demonstration.sequences(group.trajectories[0], steps, images, layout, context)
    ids, _ = demonstration.reply(steps[0].action["raw_text"], layout)
    assert sum(len(one.responses) for one in found) == 2 * len(ids)
    assert [one.steps for one in found] == ([(0, 2)] if context == "append" else [(0, 0), (2, 2)])
    # The last prompt holds the wait, too: three stop ids, but for `fresh`, which repeats replies without
    # theirs.
    assert (found[-1].ids == layout.stop).sum() == (1 if context == "fresh" else 3)


def test_a_warm_start_learns_the_demonstrations(checkpoint: Path, tmp_path: Path) -> None:
    farm = Farm(tmp_path / "run")
    for number in range(8):
        x = 100 + 300 * (number % 2)
        text = json.dumps(
            {
                "note": "",
                "thought": "why",
                "action": {"action": "click_element", "element": "e", "x": x, "y": 7},
            },
            separators=(",", ":"),
        )
        attempts = [
            farm.trajectory(f"g{number}", sample, 1.0, 1, policy_kind="scripted") for sample in range(2)
        ]
        for _, (row,) in attempts:
            row["action"] |= {"raw_text": text, "name": "click_element"}
            row["observation"]["screenshot"]["bytes"] = png(number % 2, 64, 64)
        farm.commit(attempts, [farm.group(f"g{number}", [1.0, 1.0])])
    config = configuration.check(
        {
            "run": {"output_dir": str(tmp_path / "out"), "checkpoint": str(checkpoint), "steps_max": 60},
            "data": {"run_dir": str(tmp_path / "run"), "wait_seconds": 0},
            "optimizer": {"learning_rate": 3e-3},
            "sft": {
                "epochs": 100,
                "trajectories_per_step": 4,
                "dropped": ["thought", "element"],
                "choices_only": True,
            },
            "publish": {"command": [sys.executable, "-c", ""], "every": 20},
        }
    )
    trainer = supervised.train(config)
    lines = read(tmp_path / "out" / "metrics.jsonl")
    assert trainer.state.step == len(lines) == 60 and trainer.state.version == 3
    assert lines[0]["loss/nll"] > 4 > 0.1 > lines[-1]["loss/nll"], (lines[0], lines[-1])
    assert trainer.state.counts["demonstrations left out: copies of a sibling"] > 0
    assert trainer.state.epoch >= 25, "eight groups make two steps an epoch"
    losses = [line["loss/nll"] for line in lines]
    wanted = next(step for step in range(20, 61) if sum(losses[step - 20 : step]) / 20 < 0.5)
    stopped = dataclasses.replace(
        config,
        run=dataclasses.replace(config.run, output_dir=tmp_path / "stopped"),
        sft=dataclasses.replace(config.sft, stop_below=0.5),
        publish=configuration.PublishSection(),
    )
    assert supervised.train(stopped).state.step == wanted < 60


def test_a_checkpoint_is_written_back_as_it_was(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("vl_f32", "vl_bf16_sharded"):
        first = load(ORACLE_VL / name)
        folder = save(first, tmp_path / name, shard_bytes_max=400_000)
        second = load(folder)
        assert (folder / "model.safetensors.index.json").exists()
        assert (
            first.names == second.names
            and first.dtypes == second.dtypes
            and set(first.others) == set(second.others)
        )
        for key, value in first.policy.state_dict().items():
            assert torch.equal(value, second.policy.state_dict()[key]), key
