"""The reader: each group once, whole, whatever is merged, removed or killed between two looks."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from farm import Farm, schema
from furrow_trainer.data import Choice, Cursor, Reader
from furrow_trainer.data.manifest import Manifest
from furrow_trainer.data.reader import share
from furrow_trainer.data.rows import STEP_COLUMNS, _plain
from furrow_trainer.errors import DataError, ExpiredError
from paths import REPOSITORY


def simple(farm: Farm, number: int, rewards: tuple[float, ...] = (0.0, 1.0), steps: int = 2) -> None:
    """One group in one commit."""
    name = f"g{number:03}"
    farm.commit(
        [farm.trajectory(name, i, reward, steps) for i, reward in enumerate(rewards)],
        [farm.group(name, list(rewards))],
    )


def drain(reader: Reader, wait_seconds: float = 0.0) -> list[str]:
    """Groups to the end, each read and done."""
    names = []
    for group in reader.groups(wait_seconds):
        for trajectory in group.trajectories:
            assert len(reader.steps(trajectory)) == trajectory.num_steps
        reader.done(group)
        names.append(group.group_id)
    return names


def test_a_resumed_reader_begins_at_a_checkpoint(tmp_path: Path) -> None:
    farm = Farm(tmp_path)
    for number in range(4):
        simple(farm, number)
    reader = Reader(tmp_path)
    assert len(drain(reader)) == 4
    cursor = reader.cursor()
    path = farm.checkpoint()
    simple(farm, 4)
    # A merge of files from before the checkpoint and after it.
    farm.merge("steps")
    simple(farm, 5)
    farm.checkpoint()  # newer than the cursor
    for number in (1, 2, 3):
        (tmp_path / "data" / "manifest" / f"{number:020}.json").unlink()
    assert drain(Reader(tmp_path, cursor=cursor)) == ["g004", "g005"]
    with pytest.raises(DataError, match="the cursor is of run other"):
        Reader(tmp_path, cursor=Cursor("other", cursor.version))
    whole = path.read_text()
    for damaged in ("", whole[:-9], whole.replace('"rows": 4', '"rows": 5', 1), f"{whole.splitlines()[0]}\n"):
        assert damaged != whole
        path.write_text(damaged)
        # The commits, of which the first are gone here, decide.
        with pytest.raises(DataError, match="the cursor stands at commit 4"):
            Reader(tmp_path, cursor=cursor)


def test_a_long_run_is_not_kept_in_memory(tmp_path: Path) -> None:
    farm = Farm(tmp_path)
    farm.commit([farm.trajectory("open", 0, 1.0, 2)], [])
    for number in range(99):
        simple(farm, number, rewards=(1.0,))
    farm.merge("steps")
    reader = Reader(tmp_path)
    drain(reader)
    # The first group is open, so nothing is behind every open group.
    assert len(reader.manifest._commits) == 101
    farm.commit([], [farm.group("open", [1.0])])
    for number in range(100, 200):
        simple(farm, number, rewards=(1.0,))
    assert len(drain(reader)) == 101
    assert len(reader.manifest._commits) <= 100
    assert len(reader.manifest._files) < 600
    assert not reader.manifest._replaced_by


def test_a_group_comes_when_its_row_does_with_all_its_scored_trajectories(tmp_path: Path) -> None:
    farm = Farm(tmp_path)
    farm.commit(
        [
            farm.trajectory("g0", 0, 1.0, 3),
            farm.trajectory("g0", 1, None, 1, status="failed", end="env_crash"),
        ]
    )
    reader = Reader(tmp_path)
    assert drain(reader) == []
    assert reader.cursor().version == 0, "nothing is done before the group is"
    farm.commit([farm.trajectory("g0", 1, 0.0, 2, attempt=1)], [farm.group("g0", [1.0, 0.0])])
    (group,) = list(reader.groups())
    assert [(t.sample_index, t.attempt, t.reward) for t in group.trajectories] == [(0, 0, 1.0), (1, 1, 0.0)]
    assert [step.step for step in reader.steps(group.trajectories[0])] == [0, 1, 2]
    assert reader.cursor().version == 0, "handed out is not done"
    reader.done(group)
    assert reader.cursor() == Cursor("run", 2)
    assert reader.counts["trajectories left out: failed"] == 1


@pytest.mark.parametrize("trainable", ["rl", "sft"])
def test_of_an_evaluation_nothing_is_learned_whatever_its_flags_say(tmp_path: Path, trainable: str) -> None:
    farm = Farm(tmp_path)
    tried = [farm.trajectory("g0", i, 1.0, 2, split="eval") for i in range(2)]
    assert all(step["trainable_rl"] and step["trainable_sft"] for _, steps in tried for step in steps)
    farm.commit(
        [*tried, farm.trajectory("g1", 0)],
        [farm.group("g0", [1.0, 1.0], split="eval"), farm.group("g1", [1.0])],
    )
    reader = Reader(tmp_path, Choice(trainable=trainable))
    assert drain(reader) == ["g1"]
    assert reader.counts["trajectories left out: evaluation"] == 2
    assert drain(Reader(tmp_path)) == ["g0", "g1"], "a reader without `trainable` gets them"
    assert drain(Reader(tmp_path, Choice(trainable=trainable, splits=frozenset({"eval"})))) == [], (
        "nor where `splits` names it"
    )


def test_a_reader_that_stops_in_the_middle_of_a_commit_finds_the_rest(tmp_path: Path) -> None:
    farm = Farm(tmp_path)
    farm.commit(
        [farm.trajectory(f"g{i}", 0) for i in range(3)], [farm.group(f"g{i}", [1.0]) for i in range(3)]
    )
    reader = Reader(tmp_path)
    for group in reader.groups():
        reader.done(group)
        break
    cursor = reader.cursor()
    assert (cursor.version, cursor.done) == (0, frozenset({"g0"}))
    assert drain(reader) == ["g1", "g2"]
    assert drain(Reader(tmp_path, cursor=cursor)) == ["g1", "g2"]


@pytest.mark.parametrize("seed", range(12))
def test_each_group_is_done_once_over_restarts_merges_and_many_readers(tmp_path: Path, seed: int) -> None:
    """A random life: commits whose groups straddle each other, merges, parts removed, readers killed and
    started again."""
    rng = np.random.default_rng(seed)
    farm = Farm(tmp_path)
    world = int(rng.integers(1, 4))
    cursors = [Cursor(rank=rank, world=world) for rank in range(world)]
    readers: list[Reader | None] = [None] * world
    done: list[str] = []
    open_groups: dict[str, list[float]] = {}
    made: dict[str, int] = {}
    for _ in range(60):
        act = rng.choice(["commit", "read", "kill", "save", "merge"], p=[0.4, 0.3, 0.1, 0.1, 0.1])
        rank = int(rng.integers(world))
        if act == "commit":
            for _ in range(int(rng.integers(3))):
                open_groups[f"g{len(made):03}"] = []
                made[f"g{len(made):03}"] = 0
            trajectories, rows = [], []
            for name in list(open_groups):
                for _ in range(int(rng.integers(3))):
                    made[name] += 1
                    reward = float(rng.integers(2))
                    open_groups[name].append(reward)
                    trajectories.append(farm.trajectory(name, made[name], reward, int(rng.integers(1, 4))))
                if rng.random() < 0.5:
                    rows.append(farm.group(name, open_groups.pop(name)))
            if trajectories or rows:
                farm.commit(trajectories, rows)
        elif act == "merge":
            table = str(rng.choice(["trajectories", "steps", "groups"]))
            parts = sorted(path for path, entry in farm.files.items() if entry["table"] == table)
            count = int(rng.integers(2, 5))
            if len(parts) >= count:
                begin = int(rng.integers(len(parts) - count + 1))
                farm.merge(table, parts[begin : begin + count], keep_parts=rng.random() < 0.5)
        elif act == "kill":
            readers[rank] = None
        else:
            reader = readers[rank] = readers[rank] or Reader(
                tmp_path, cursor=cursors[rank], rank=rank, world=world
            )
            if act == "read":
                pending = []
                for group in reader.groups():
                    steps = [len(reader.steps(trajectory)) for trajectory in group.trajectories]
                    assert steps == [trajectory.num_steps for trajectory in group.trajectories]
                    assert len(group.trajectories) == group.row.valid
                    pending.append(group)
                    if rng.random() < 0.3:
                        break
                # A checkpoint: what is done and the cursor are saved in one go. What is not done is read
                # again after a kill.
                for group in pending:
                    if rng.random() < 0.7:
                        reader.done(group)
                        done.append(group.group_id)
                cursors[rank] = reader.cursor()
    for name in list(open_groups):
        farm.commit([], [farm.group(name, open_groups.pop(name))])
    for rank in range(world):
        done += drain(Reader(tmp_path, cursor=cursors[rank], rank=rank, world=world))
    assert sorted(done) == sorted(name for name, count in made.items() if count), f"seed {seed}"


def test_a_cursor_survives_its_own_text_and_other_cursors_are_refused(tmp_path: Path) -> None:
    cursor = Cursor("run", 4, frozenset({"a", "b"}), 1, 2)
    assert Cursor.from_json(cursor.to_json()) == cursor
    for text in (
        "",
        "[]",
        "{}",
        '{"run_id":null,"version":-1,"done":[],"rank":0,"world":1}',
        '{"run_id":null,"version":0,"done":[],"rank":1,"world":1}',
    ):
        with pytest.raises(DataError):
            Cursor.from_json(text)
    farm = Farm(tmp_path)
    simple(farm, 0)
    for other, why in (
        (Cursor("other", 1), "is of run other"),
        (Cursor("run", 7), "stands at commit 7"),
        (Cursor("run", 1, rank=1, world=2), "is of reader 1 of 2"),
    ):
        with pytest.raises(DataError, match=why):
            Reader(tmp_path, cursor=other)


def test_it_waits_for_new_shards_up_to_its_timeout(tmp_path: Path) -> None:
    farm = Farm(tmp_path)
    simple(farm, 0)

    def later() -> None:
        for number in (1, 2):
            time.sleep(0.3)
            simple(farm, number)

    thread = threading.Thread(target=later)
    thread.start()
    begun = time.monotonic()
    assert drain(Reader(tmp_path), wait_seconds=1.5) == ["g000", "g001", "g002"]
    thread.join()
    assert 2.0 < time.monotonic() - begun < 10


def test_readers_share_a_run_without_overlap(tmp_path: Path) -> None:
    farm = Farm(tmp_path)
    for number in range(20):
        simple(farm, number)
    parts = [drain(Reader(tmp_path, rank=rank, world=3)) for rank in range(3)]
    assert sorted(name for names in parts for name in names) == [f"g{number:03}" for number in range(20)]
    assert all(share(name, 3) == rank for rank, names in enumerate(parts) for name in names)


@pytest.mark.parametrize(
    ("choice", "want"),
    [
        (Choice(), ["a0", "a1", "b0", "c0", "d0"]),
        (Choice(trainable="rl"), ["a0", "a1", "c0"]),
        (Choice(splits=frozenset({"train"})), ["a0", "a1", "c0", "d0"]),
        (Choice(policy_kinds=frozenset({"scripted"})), ["c0"]),
        (Choice(version_min=2), ["a1"]),
        (Choice(version_max=1), ["a0"]),
        (Choice(reward_min=0.5), ["a1", "c0", "d0"]),
        (Choice(tasks=frozenset({"type"})), ["b0"]),
        (Choice(suites=frozenset({"web"})), []),
    ],
)
def test_a_choice_keeps_what_it_names(tmp_path: Path, choice: Choice, want: list[str]) -> None:
    farm = Farm(tmp_path)
    farm.commit(
        [
            farm.trajectory("a", 0, 0.0, policy_version_min=0, policy_version_max=1),
            farm.trajectory("a", 1, 1.0, policy_version_min=2, policy_version_max=2),
        ],
        [farm.group("a", [0.0, 1.0])],
    )
    farm.commit([farm.trajectory("b", 0, 0.0, split="eval", task_id="type")], [farm.group("b", [0.0])])
    farm.commit([farm.trajectory("c", 0, 1.0, policy_kind="scripted")], [farm.group("c", [1.0])])
    farm.commit([farm.trajectory("d", 0, 1.0, step={"trainable_rl": False})], [farm.group("d", [1.0])])
    reader = Reader(tmp_path, choice)
    got = [
        f"{group.group_id}{trajectory.sample_index}"
        for group in reader.groups()
        for trajectory in group.trajectories
    ]
    assert got == want


def expire(farm: Farm, number: int) -> None:
    for table in ("trajectories", "steps", "groups"):
        farm.expire(f"{table}/run-x{number:06}.parquet")


def test_what_expired_before_a_reader_began_is_counted_and_does_not_stop_it(tmp_path: Path) -> None:
    farm = Farm(tmp_path)
    simple(farm, 0)
    simple(farm, 1)
    expire(farm, 1)
    reader = Reader(tmp_path)
    assert drain(reader) == ["g001"]
    assert reader.counts["files expired before they were read"] == 3


def test_a_reader_that_is_too_slow_learns_the_key(tmp_path: Path) -> None:
    farm = Farm(tmp_path)
    simple(farm, 0)
    reader = Reader(tmp_path)
    assert drain(reader) == ["g000"]
    cursor = reader.cursor()
    # It is away for a while.
    simple(farm, 1)
    simple(farm, 2)
    expire(farm, 2)
    for slow in (reader, Reader(tmp_path, cursor=Cursor.from_json(cursor.to_json()))):
        with pytest.raises(
            ExpiredError, match=r"run-x000002\.parquet expired with commit 4.*retention_bytes"
        ):
            drain(slow)
    willing = Reader(tmp_path, cursor=cursor, skip_expired=True)
    assert drain(willing) == ["g002"]
    # One that begins now was promised nothing.
    assert drain(Reader(tmp_path)) == ["g000", "g002"]


def test_rows_that_were_merged_and_expired_later_are_not_taken_for_missing(tmp_path: Path) -> None:
    farm = Farm(tmp_path)
    simple(farm, 0)
    reader = Reader(tmp_path)
    assert drain(reader) == ["g000"]
    simple(farm, 1)
    simple(farm, 2)
    for table in ("trajectories", "steps", "groups"):
        parts = [f"{table}/run-x{number:06}.parquet" for number in (2, 3)]
        farm.merge(table, parts, keep_parts=False)
        farm.expire(f"{table}/run-x{farm.shards:06}.parquet")
    with pytest.raises(ExpiredError, match="expired with commit 5"):
        drain(reader)


def test_a_group_that_lost_trajectories_is_left_out(tmp_path: Path) -> None:
    """The rewards that are left would be compared with each other as if they were all."""
    farm = Farm(tmp_path)
    farm.commit([farm.trajectory("a", 0, 0.0)])
    farm.commit([farm.trajectory("a", 1, 1.0)], [farm.group("a", [0.0, 1.0])])
    simple(farm, 7)
    for table in ("trajectories", "steps"):
        farm.expire(f"{table}/run-x000001.parquet")
    reader = Reader(tmp_path)
    assert drain(reader) == ["g007"]
    assert reader.counts["groups left out: trajectories have expired"] == 1
    assert reader.discarded == 2


def test_steps_that_expire_while_their_group_is_in_use_name_the_key(tmp_path: Path) -> None:
    farm = Farm(tmp_path)
    simple(farm, 0)
    reader = Reader(tmp_path)
    group = next(reader.groups())
    expire(farm, 1)
    with pytest.raises(ExpiredError, match=r"steps of .* have expired: .*records\.retention_hours"):
        reader.steps(group.trajectories[0])


def test_values_made_by_columns_are_pyarrows_own() -> None:
    """Every column of a step, with nulls wherever the schema has them, beside `to_pylist`."""
    rng = np.random.default_rng(5)

    def value(dtype: pa.DataType, nullable: bool) -> Any:
        if nullable and rng.random() < 0.4:
            return None
        if pa.types.is_struct(dtype):
            return {member.name: value(member.type, member.nullable) for member in dtype}
        if pa.types.is_list(dtype):
            return [value(dtype.value_type, dtype.value_field.nullable) for _ in range(int(rng.integers(3)))]
        if pa.types.is_fixed_size_binary(dtype):
            return rng.bytes(dtype.byte_width)
        number = int(rng.integers(100))
        return {"string": f"é{number}", "bool": number % 2 == 0, "binary": rng.bytes(number)}.get(
            str(dtype), number
        )

    fields = [field for field in schema("steps") if field.name in STEP_COLUMNS]
    for field in fields:
        column = pa.array([value(field.type, field.nullable) for _ in range(40)], field.type)
        for part in (column, column.slice(7, 20), column.slice(0, 0)):
            assert _plain(part) == part.to_pylist(), field


def test_a_run_of_the_first_release_is_read() -> None:
    reader = Reader(REPOSITORY / "tests" / "fixtures" / "v0.1.0" / "finished", verify=True)
    groups = list(reader.groups())
    found = [trajectory for group in groups for trajectory in group.trajectories]
    assert len(found) == 10
    assert {trajectory.success for trajectory in found} == {None}, "its files lack the column"
    assert all(len(reader.steps(trajectory)) == trajectory.num_steps for trajectory in found)


def test_a_run_goes_on_with_columns_that_its_first_files_lack(tmp_path: Path) -> None:
    farm = Farm(tmp_path, schema_version=1)
    farm.commit([farm.trajectory("g0", 0, 1.0, 2)], [farm.group("g0", [1.0])])
    farm.schema_version = 2
    farm.commit([farm.trajectory("g1", 0, 1.0, 2, success=True)], [farm.group("g1", [1.0])])
    found = [group.trajectories[0].success for group in Reader(tmp_path).groups()]
    assert found == [None, True]


def test_damage_is_named(tmp_path: Path) -> None:
    farm = Farm(tmp_path)
    simple(farm, 0)
    path = tmp_path / "data" / "steps" / "run-x000001.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="SHA-256"):
        drain(Reader(tmp_path, verify=True))
    path.write_bytes(data[:-1])
    with pytest.raises(DataError, match="bytes, the manifest says"):
        drain(Reader(tmp_path))
    path.unlink()
    with pytest.raises(DataError, match="is not there"):
        drain(Reader(tmp_path))
    with pytest.raises(DataError, match="is not a run directory"):
        Reader(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "says version 2"),
        ({"op": "rewrite"}, "has op 'rewrite'"),
        ({"schema_version": 9}, "schema version 9"),
        (
            {
                "files": [
                    {"table": "steps", "path": "../steps/a.parquet", "rows": 1, "bytes": 1, "sha256": ""}
                ]
            },
            "is not a path",
        ),
        (
            {"files": [{"table": "steps", "path": "groups/a.parquet", "rows": 1, "bytes": 1, "sha256": ""}]},
            "is not a path",
        ),
        (
            {"files": [{"table": "steps", "path": "steps/a.parquet", "rows": -1, "bytes": 1, "sha256": ""}]},
            "has -1 rows",
        ),
        ({"files": 7}, "is not a commit"),
        ({"op": "expire", "removed": ["steps/a.parquet"]}, "which no commit added"),
    ],
)
def test_a_commit_that_cannot_be_is_refused(tmp_path: Path, change: dict[str, object], why: str) -> None:
    farm = Farm(tmp_path)
    farm.commit([], [farm.group("g", [])])
    path = tmp_path / "data" / "manifest" / f"{1:020}.json"
    commit = json.loads(path.read_text())
    path.write_text(json.dumps(commit | change))
    with pytest.raises(DataError, match=why):
        list(Manifest(tmp_path).read_all())
