"""Exporters: against the libraries themselves where they install without gigabytes, else against a schema
written from their sources."""

from __future__ import annotations

import base64
import enum
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from actor import Actor, play
from farm import Farm
from furrow_trainer.data import Reader, Step, Trajectory
from furrow_trainer.export import export, skyrl
from furrow_trainer.learn.images import Images
from furrow_trainer.learn.sequence import sequences
from furrow_trainer.model import load
from paths import ORACLE_VL

CHECKPOINT = ORACLE_VL / "vl_f32"


@pytest.fixture(scope="module", params=["last_image", "append"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp(request.param)
    farm = Farm(folder)
    play(farm, Actor(CHECKPOINT, 3, 7, request.param), 0, 2, 2, 3)
    return folder


def recorded(run: Path) -> list[tuple[Trajectory, list[Step]]]:
    reader = Reader(run)
    return [
        (trajectory, reader.steps(trajectory))
        for group in reader.groups()
        for trajectory in group.trajectories
    ]


def expected(run: Path) -> list[dict[str, Any]]:
    """Sequences as the trainer's own path makes them, which is held to the model's log-probs elsewhere."""
    vision = load(CHECKPOINT).config.vision
    assert vision is not None
    images = Images(vision.tiling, vision.rows_per_tile)
    found = []
    for trajectory, steps in recorded(run):
        for one in sequences(trajectory, steps, images):
            mask = np.zeros(len(one), np.int32)
            logprobs = np.zeros(len(one), np.float32)
            mask[one.responses.position] = one.responses.sampled
            logprobs[one.responses.position] = np.where(one.responses.sampled, one.responses.logprob, 0)
            found.append(
                {
                    "ids": one.ids.tolist(),
                    "mask": mask.tolist(),
                    "logprobs": logprobs,
                    "one": one,
                    "trajectory": trajectory,
                    "steps": steps,
                }
            )
    return found


def test_verl_rows_are_its_agent_loops_output(run: Path, tmp_path: Path) -> None:
    from pydantic import BaseModel, ConfigDict

    class Metrics(BaseModel):
        model_config = ConfigDict(extra="forbid")
        generate_sequences: float = 0.0
        tool_calls: float = 0.0
        compute_score: float = 0.0
        num_preempted: int = -1

    class AgentLoopOutput(BaseModel):
        """Fields of verl 02dd715."""

        model_config = ConfigDict(extra="forbid")
        prompt_ids: list[int]
        response_ids: list[int]
        response_mask: list[int]
        response_logprobs: list[float] | None = None
        multi_modal_data: dict[str, Any] | None = None
        reward_score: float | None = None
        num_turns: int = 0
        metrics: Metrics
        extra_fields: dict[str, Any] = {}

    count = export("verl", run, tmp_path / "out.parquet", None, [])
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    wanted = expected(run)
    assert count == len(rows) == len(wanted)
    for row, want in zip(rows, wanted, strict=True):
        assert row.pop("uid") == want["trajectory"].group_id
        output = AgentLoopOutput(**row)
        assert output.prompt_ids + output.response_ids == want["ids"]
        assert [0] * len(output.prompt_ids) + output.response_mask == want["mask"]
        assert output.response_logprobs == pytest.approx(want["logprobs"][len(output.prompt_ids) :])
        assert output.response_mask[0] == 1 and output.reward_score == want["trajectory"].reward
        assert output.multi_modal_data is not None and len(output.multi_modal_data["images"]) == len(
            want["one"].pictures
        )
        assert output.extra_fields["min_global_steps"] == output.extra_fields["max_global_steps"] == 3


def test_skyrl_output_has_its_lists_in_step(run: Path, tmp_path: Path) -> None:
    export("skyrl", run, tmp_path / "out.json", None, [])
    output = json.loads((tmp_path / "out.json").read_text())
    assert set(output) == set(skyrl.FIELDS)
    wanted = expected(run)
    lists = {name: values for name, values in output.items() if values is not None}
    assert {len(values) for values in lists.values()} == {len(wanted)}
    total = 0.0
    for index, want in enumerate(wanted):
        assert output["prompt_token_ids"][index] + output["response_ids"][index] == want["ids"]
        count = len(output["response_ids"][index])
        assert [len(output[name][index]) for name in ("rewards", "loss_masks", "rollout_logprobs")] == [
            count
        ] * 3
        assert output["trajectory_ids"][index] == {
            "instance_id": want["trajectory"].group_id,
            "repetition_id": want["trajectory"].sample_index,
        }
        assert output["is_last_step"][index] == (want["one"].steps[1] == want["trajectory"].num_steps - 1)
        total += sum(output["rewards"][index])
    assert total == pytest.approx(sum(trajectory.reward or 0 for trajectory, _ in recorded(run)))


def test_slime_lines_become_its_samples(run: Path, tmp_path: Path) -> None:
    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    @dataclass
    class Sample:
        """Fields of slime 0d234f3 that a rollout fills in."""

        group_index: int
        index: int
        prompt: str
        tokens: list[int]
        multimodal_inputs: dict[str, Any]
        response: str
        response_length: int
        label: str | None
        reward: float
        loss_mask: list[int]
        weight_versions: list[str]
        rollout_log_probs: list[float]
        remove_sample: bool
        status: Status
        metadata: dict[str, Any]
        session_id: str
        other: dict[str, Any] = field(default_factory=dict)

    export("slime", run, tmp_path / "out.jsonl", None, [])
    wanted = expected(run)
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert len(lines) == len(wanted)
    for index, (line, want) in enumerate(zip(lines, wanted, strict=True)):
        raw = json.loads(line)
        sample = Sample(**raw | {"status": Status(raw["status"])})
        assert sample.tokens == want["ids"] and sample.index == index
        assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
        assert [0] * (len(sample.tokens) - sample.response_length) + sample.loss_mask == want["mask"]
        assert sample.weight_versions == ["3"] and sample.reward == want["trajectory"].reward
        blobs = [base64.b64decode(uri.partition(",")[2]) for uri in sample.multimodal_inputs["images"]]
        assert blobs == [
            step.screenshot
            for step in want["steps"][want["one"].steps[1] + 1 - len(blobs) : want["one"].steps[1] + 1]
        ]


def test_areal_tensors_are_those_of_its_workflow(run: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    export("areal", run, tmp_path / "out", CHECKPOINT, [])
    wanted = expected(run)
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert len(index) == len(wanted)
    policy = load(CHECKPOINT).policy
    for entry, want in zip(index, wanted, strict=True):
        found = load_file(tmp_path / "out" / entry["file"])
        assert set(found) == {
            "input_ids",
            "loss_mask",
            "logprobs",
            "versions",
            "attention_mask",
            "rewards",
            "pixel_values",
            "image_grid_thw",
        }
        assert found["input_ids"].tolist() == [want["ids"]] and found["loss_mask"].tolist() == [want["mask"]]
        assert {
            tuple(found[name].shape)
            for name in ("input_ids", "loss_mask", "logprobs", "versions", "attention_mask")
        } == {(1, len(want["ids"]))}
        assert bool(((found["versions"] == 3) == (found["loss_mask"] == 1)).all())
        assert len(found["image_grid_thw"]) == len(want["one"].pictures)
    # The exported tensors are enough to score the sampled tokens again: the first one of the last entry.
    at = int(found["loss_mask"][0].argmax())
    with torch.no_grad():
        hidden = policy(found["input_ids"], policy.image_rows(found["pixel_values"]).flatten(0, 1))
        scores = policy.logits(hidden)[0, at - 1] / 4.0
    among = scores[40:48].log_softmax(-1)[found["input_ids"][0, at] - 40]
    assert float(among) == pytest.approx(float(found["logprobs"][0, at]), abs=1e-4)


def test_prime_rl_samples_decode_into_its_struct(run: Path, tmp_path: Path) -> None:
    msgspec: Any = pytest.importorskip("msgspec")
    image = msgspec.defstruct("MMImageRef", [("url", str), ("offset", int), ("length", int)], array_like=True)
    refs = msgspec.defstruct("MMRefs", [("images", list.__class_getitem__(image))], array_like=True)
    optional = list[float] | None
    sample = msgspec.defstruct(
        "TrainingSample",
        [
            ("token_ids", list[int]),
            ("mask", list[bool]),
            ("logprobs", list[float]),
            ("temperatures", list[float]),
            ("env_name", str),
            ("ref_logprobs", optional, None),
            ("mm_refs", refs | None, None),
            ("routed_experts", None, None),
            ("mm_token_type_ids", list[int] | None, None),
            ("rl_weights", optional, None),
            ("ce_weights", optional, None),
            ("ref_kl_weights", optional, None),
            ("advantages", optional, None),
        ],
        array_like=True,
        omit_defaults=True,
        forbid_unknown_fields=True,
    )
    export("prime-rl", run, tmp_path / "out.msgpack", None, [])
    found = msgspec.msgpack.decode(
        (tmp_path / "out.msgpack").read_bytes(), type=list.__class_getitem__(sample)
    )
    wanted = expected(run)
    assert len(found) == len(wanted)
    means: dict[str, list[float]] = {}
    for trajectory, _ in recorded(run):
        means.setdefault(trajectory.group_id, []).append(trajectory.reward or 0.0)
    for one, want in zip(found, wanted, strict=True):
        assert one.token_ids == want["ids"] and one.mask == [bool(sampled) for sampled in want["mask"]]
        assert one.logprobs == pytest.approx(want["logprobs"].tolist()) and set(one.temperatures) == {4.0}
        assert len(one.mm_refs.images) == len(want["one"].pictures) and sum(one.mm_token_type_ids) == sum(
            p.length for p in want["one"].pictures
        )
        advantage = want["trajectory"].reward - float(np.mean(means[want["trajectory"].group_id]))
        assert {
            round(value, 6) for value, sampled in zip(one.advantages, one.mask, strict=True) if sampled
        } == {round(advantage, 6)}


def test_trl_rows_are_a_conversation_with_its_pictures(run: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data_utils = pytest.importorskip("trl.data_utils")
    export("trl", run, tmp_path / "out.parquet", None, [])
    rows = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "out.parquet"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert len(rows) == sum(len(steps) for _, steps in recorded(run))
    for row in rows:
        assert data_utils.is_conversational(row)
        pictures = row["images"]
        assert all(picture.size == (64, 64) for picture in pictures) and len(pictures) == row["step"] + 1
        prepared = data_utils.prepare_multimodal_messages(row["prompt"] + row["completion"], images=pictures)
        placed = [
            part["image"] for message in prepared for part in message["content"] if part["type"] == "image"
        ]
        assert len(placed) == len(pictures)
        assert [message["role"] for message in prepared] == [
            "system",
            *["user", "assistant"] * (row["step"] + 1),
        ]


def test_lerobot_directories_have_its_files_and_columns(run: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    export("lerobot", run, tmp_path / "out", None, [])
    info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    stats = json.loads((tmp_path / "out" / "meta" / "stats.json").read_text())
    data = tmp_path / "out" / info["data_path"].format(chunk_index=0, file_index=0)
    frames = datasets.load_dataset(
        "parquet", data_files=str(data), split="train", cache_dir=str(tmp_path / "cache")
    )
    truth = recorded(run)
    assert info["codebase_version"] == "v3.0" and info["total_frames"] == len(frames) == sum(
        len(steps) for _, steps in truth
    )
    assert set(frames.column_names) == set(info["features"]), (
        "every column is a feature and every feature a column"
    )
    assert frames["index"][:] == list(range(len(frames))) and frames[0]["observation.images.screen"].size == (
        64,
        64,
    )
    for name, feature in info["features"].items():
        assert set(feature) == {"dtype", "shape", "names"}, name
    for name in ("action", "next.reward", "timestamp", "observation.images.screen"):
        assert set(stats[name]) == {"min", "max", "mean", "std", "count"}
    episodes = pq.read_table(
        tmp_path / "out" / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    ).to_pylist()
    assert [(one["dataset_from_index"], one["dataset_to_index"]) for one in episodes] == [
        (3 * i, 3 * i + 3) for i in range(len(truth))
    ]
    tasks = pq.read_table(tmp_path / "out" / "meta" / "tasks.parquet").to_pandas()
    assert list(tasks.index) == ["Do it."] and tasks.loc["Do it."].task_index == 0
    assert sum(frame["next.done"] for frame in frames) == len(truth)
