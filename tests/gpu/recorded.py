"""Steps of a finished run, chosen over all ages, and the prompts that their log-probs were recorded for,
rebuilt from Parquet alone.

`look` reads a few columns of every step (no screenshot: a run of 7,000 steps has gigabytes of them), `choose`
decides which steps are recomputed, `rebuild` reads the trajectories that were chosen and puts their prompts
together, each held against the hash that was recorded with it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from furrow_trainer.data import pixels, rows
from furrow_trainer.data.pixels import Pixels, Tiling
from furrow_trainer.data.rows import Step
from furrow_trainer.data.token_hash import token_hash
from furrow_trainer.errors import DataError

_LIGHT = [
    "trajectory_id",
    "step",
    "prefix_len",
    "prompt_token_ids",
    "response_token_ids",
    "commit_token_ids",
    "policy_versions",
    "state_version_min",
    "observed_at",
    "engine.state_origin",
    "timing.policy_micros",
    "logprobs",
]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A step as `look` sees it."""

    trajectory_id: str
    step: int
    file: Path
    row_group: int
    context_tokens: int
    """Of the prompt with what was kept before it, and of the response."""
    version: int | None
    """Of the weights that drew every token and wrote every state it was drawn from; absent where there were
    several.
    """
    last_version: int
    """The newest that drew a token of it."""
    grows: bool
    """The session keeps prompt and response, so the next step's prompt begins with all of this one."""
    origin: str
    replied_micros: int
    """When the reply was there: a step that a kill interrupted was observed before and drawn after it."""
    drawn: int
    """Tokens that have a log-prob."""


def look(run: Path) -> list[Candidate]:
    """Every step with tokens: of scored trajectories, and of those that have no reward, such as the ones that
    a drain cancelled. Theirs are all there, and where a swap keeps states, steps of the second version alone
    are of trajectories that began after it: in a short window most of these are open when it is drained.

    Raises:
        DataError: when there is none, or a file cannot be read.
    """
    found: list[Candidate] = []
    folders = [run / "data" / name for name in ("steps", "failed_steps")]
    files = [path for folder in folders for path in sorted(folder.glob("*.parquet"))]
    try:
        with ThreadPoolExecutor(8) as several:
            for part in several.map(_look_at, files):
                found.extend(part)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{run}: steps cannot be read: {error}") from error
    # A scored trajectory whose steps are not all there is an error for `rebuild` to name.
    found = [one for one in found if one.file.parent.name == "steps"] + _unbroken(
        [one for one in found if one.file.parent.name != "steps"]
    )
    if not found:
        raise DataError(
            f"{run / 'data' / 'steps'} holds no step with tokens ({len(files)} files): did a "
            "trajectory of a model policy end?"
        )
    return found


def _unbroken(found: list[Candidate]) -> list[Candidate]:
    """Steps that have all steps of their trajectory before them: without one of these no prompt can be
    rebuilt."""
    steps: dict[str, set[int]] = {}
    for one in found:
        steps.setdefault(one.trajectory_id, set()).add(one.step)
    whole = {}
    for name, there in steps.items():
        whole[name] = 0
        while whole[name] in there:
            whole[name] += 1
    return [one for one in found if one.step < whole[one.trajectory_id]]


def _look_at(path: Path) -> list[Candidate]:
    file = pq.ParquetFile(path)
    found = []
    for group in range(file.num_row_groups):
        # pyarrow reads one field of a struct by its path, and leaves the others (the screenshot) alone.
        table = file.read_row_group(group, columns=_LIGHT)
        length = {
            name: pc.list_value_length(table[name]).to_pylist()
            for name in ("prompt_token_ids", "response_token_ids")
        }
        micros = table["observed_at"].cast(pa.int64()).to_pylist()
        plain = {
            name: table[name].to_pylist()
            for name in (
                "trajectory_id",
                "step",
                "prefix_len",
                "policy_versions",
                "state_version_min",
                "logprobs",
            )
        }
        commits = table["commit_token_ids"].is_null().to_pylist()
        waits = table["timing"].to_pylist()
        origins = table["engine"].to_pylist()
        for row in range(table.num_rows):
            if length["prompt_token_ids"][row] is None or not plain["policy_versions"][row]:
                continue
            versions = set(plain["policy_versions"][row])
            single = len(versions | {plain["state_version_min"][row]}) == 1
            found.append(
                Candidate(
                    trajectory_id=plain["trajectory_id"][row],
                    step=plain["step"][row],
                    file=path,
                    row_group=group,
                    context_tokens=(plain["prefix_len"][row] or 0)
                    + length["prompt_token_ids"][row]
                    + length["response_token_ids"][row],
                    version=max(versions) if single else None,
                    last_version=max(versions),
                    grows=commits[row],
                    origin=origins[row]["state_origin"] or "",
                    replied_micros=micros[row] + waits[row]["policy_micros"],
                    drawn=sum(value is not None for value in plain["logprobs"][row] or []),
                )
            )
    return found


# -- which steps --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Choice:
    """Steps to recompute, and what was asked for and is not there."""

    steps: list[Candidate] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    tokens: int = 0
    """To be read by the model, as far as `choose` can say."""


class _Chosen:
    """Steps chosen so far, and what another one would cost."""

    def __init__(self, budget: int, seed: int) -> None:
        self.steps: list[Candidate] = []
        self.left = budget
        self.random = random.Random(seed)

    def cost(self, one: Candidate) -> int:
        """Tokens that are read for it alone: those behind the longest chosen step that it goes on from, 0
        where a chosen one goes on from it.
        """
        shared = 0
        for other in self.steps:
            if (
                other.trajectory_id == one.trajectory_id
                and other.version == one.version
                and other.grows
                and one.grows
            ):
                shared = max(shared, min(other.context_tokens, one.context_tokens))
        return one.context_tokens - shared

    def take(self, among: Iterable[Candidate], age: int | None) -> bool:
        """Takes the one nearest to an age (any where absent): of a trajectory of its own where that fits, of
        the version least chosen.
        """
        taken = {(one.trajectory_id, one.step) for one in self.steps}
        free = [one for one in among if (one.trajectory_id, one.step) not in taken]
        if not free:
            return False
        trajectories = [one.trajectory_id for one in self.steps]
        versions = [one.version for one in self.steps]
        self.random.shuffle(free)

        def rank(one: Candidate) -> tuple[object, ...]:
            cost = self.cost(one)
            far = 0 if age is None else abs(one.step - age)
            return (
                cost > self.left,
                far,
                versions.count(one.version),
                trajectories.count(one.trajectory_id),
                cost,
            )

        best = min(free, key=rank)
        self.left -= self.cost(best)
        self.steps.append(best)
        return True


def choose(
    found: Sequence[Candidate], count: int, known: Iterable[int], after: int | None, budget: int, seed: int
) -> Choice:
    """`count` steps of single versions: one of each known version and one behind `after` at least, the others
    spread over all ages.

    Args:
        found: from `look`.
        known: versions whose checkpoint is at hand; each must be among the steps.
        after: microseconds since 1970: a step drawn later must be among them, one whose state was rebuilt
            if there is any.
        budget: tokens that the model may read in all; ages are taken of longer steps already chosen when it
            is used up.
    """
    choice = Choice()
    known = sorted(set(known))
    fit = [one for one in found if one.version in known and one.drawn]
    chosen = _Chosen(budget, seed)
    ages = max((one.step for one in fit), default=0)
    for version in known[1:]:
        # Of a later version the oldest there is: most of its state was written since the swap.
        mine = [one for one in fit if one.version == version]
        later = max((one.step for one in mine), default=0)
        if not chosen.take(mine, later // 2):
            mixed = sum(one.last_version == version for one in found)
            choice.problems.append(
                f"no step of version {version} alone to recompute ({mixed} drawn by it from states of "
                "several versions)"
            )
    if after is not None:
        later_on = [one for one in fit if one.replied_micros > after]
        rebuilt = [one for one in later_on if one.origin == "rebuilt"]
        if not chosen.take(rebuilt or later_on, None):
            choice.problems.append(f"no step to recompute that was sampled after {after}")
        elif not rebuilt:
            choice.problems.append(
                f"no state was rebuilt after {after}: none of the {len(later_on)} steps later than "
                "that has this origin"
            )
    rest = count - len(chosen.steps)
    for fraction in _spread(rest):
        chosen.take(fit, round(fraction * ages))
    choice.steps = sorted(chosen.steps, key=lambda one: (one.step, one.trajectory_id))
    choice.tokens = budget - chosen.left
    if known and not any(one.version == known[0] for one in choice.steps):
        choice.problems.append(f"no step of version {known[0]} alone to recompute")
    if len(choice.steps) < count:
        choice.problems.append(
            f"{len(choice.steps)} steps can be recomputed, {count} are asked for; {_left_out(found, known)}"
        )
    return choice


def _spread(count: int) -> list[float]:
    """`count` fractions from 0 to 1, evenly, the ends first and each next one far from those before it: a
    budget that ends early leaves no end out.
    """
    left = [fraction / max(count - 1, 1) for fraction in range(count)]
    order: list[float] = []
    while left:
        # The last age first, then the first one, then whatever is farthest from all.
        best = max(left, key=lambda one: (min((abs(one - other) for other in order), default=one), one))
        left.remove(best)
        order.append(best)
    return order


def _left_out(found: Sequence[Candidate], known: Sequence[int]) -> str:
    mixed = sum(one.version is None for one in found)
    unknown = sum(one.version is not None and one.version not in known for one in found)
    silent = sum(not one.drawn for one in found)
    known_text = f"{mixed} of several versions, {unknown} of versions without a checkpoint"
    return f"of {len(found)}: {known_text}, {silent} without log-probs"


# -- what the model read ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Placed:
    """A screenshot's rows in a sequence."""

    start: int
    length: int
    key: bytes
    """`blob_sha256`."""
    grid: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Target:
    """A chosen step: its row, and where its response begins in the sequence."""

    step: Step
    candidate: Candidate
    begin: int


@dataclass(slots=True)
class Rebuilt:
    """Tokens that the model reads in one go, under one version, for one or more chosen steps."""

    version: int
    ids: np.ndarray
    pictures: tuple[Placed, ...]
    targets: list[Target]


@dataclass(frozen=True, slots=True)
class Blob:
    """A recorded picture, as it lies in the data set."""

    data: bytes
    rgb_sha256: bytes
    grid: tuple[int, int]


def rebuild(
    chosen: Sequence[Candidate], found: Sequence[Candidate]
) -> tuple[list[Rebuilt], dict[bytes, Blob]]:
    """Sequences for the chosen steps and the pictures that they show.

    Raises:
        DataError: when a prompt does not have the hash that was recorded with it, or a picture is not the
            recorded one.
    """
    wanted: dict[str, list[Candidate]] = {}
    for one in chosen:
        wanted.setdefault(one.trajectory_id, []).append(one)
    row_groups: dict[str, set[tuple[Path, int]]] = {}
    for one in found:
        if one.trajectory_id in wanted and one.step <= max(each.step for each in wanted[one.trajectory_id]):
            row_groups.setdefault(one.trajectory_id, set()).add((one.file, one.row_group))
    sequences: list[Rebuilt] = []
    blobs: dict[bytes, Blob] = {}
    for name, mine in wanted.items():
        steps: dict[int, Step] = {}
        for path, group in sorted(row_groups[name]):
            table = pq.ParquetFile(path).read_row_group(group, columns=rows.STEP_COLUMNS)
            for step in rows.steps(table.filter(pc.equal(table["trajectory_id"], name))):
                steps[step.step] = step
        sequences += _walk(name, steps, {one.step: one for one in mine}, blobs)
    return sequences, blobs


def _walk(
    name: str, steps: dict[int, Step], chosen: dict[int, Candidate], blobs: dict[bytes, Blob]
) -> list[Rebuilt]:
    found: list[Rebuilt] = []
    growing: Rebuilt | None = None
    kept = np.zeros(0, np.int32)
    for index in range(max(chosen) + 1):
        step = steps.get(index)
        where = f"{name} step {index}"
        if step is None or step.prompt_token_ids is None or step.response_token_ids is None:
            raise DataError(f"{where} is not in the data set, or has no tokens")
        prompt = np.concatenate([kept, step.prompt_token_ids])
        if step.prefix_len != len(kept):
            raise DataError(f"{where}: prefix_len is {step.prefix_len}, the commits make it {len(kept)}")
        if token_hash(prompt, step.image_spans) != step.prompt_hash:
            raise DataError(f"{where}: the rebuilt prompt has another hash than the recorded one")
        whole = np.concatenate([prompt, step.response_token_ids])
        if index in chosen:
            target = Target(step, chosen[index], len(prompt))
            version = chosen[index].version
            assert version is not None, "steps of several versions are not chosen"
            pictures = tuple(_placed(where, span, steps, len(prompt), blobs) for span in step.image_spans)
            if growing is not None and growing.version == version:
                growing.ids, growing.pictures = whole, pictures
                growing.targets.append(target)
            else:
                growing = Rebuilt(version, whole, pictures, [target])
                found.append(growing)
        if step.commit_token_ids is None:
            kept = whole
        else:
            kept, growing = np.concatenate([kept, step.commit_token_ids]), None
    return found


def _placed(
    where: str, span: rows.ImageSpan, steps: dict[int, Step], prompt: int, blobs: dict[bytes, Blob]
) -> Placed:
    if not (span.token_start >= 0 and span.token_start + span.token_len <= prompt and span.step in steps):
        raise DataError(f"{where}: an image span of step {span.step} lies outside of the prompt")
    data = steps[span.step].screenshot
    if hashlib.sha256(data).digest() != span.blob_sha256:
        raise DataError(f"{where}: the screenshot of step {span.step} is not the one that was shown")
    grid = (span.tiles_x, span.tiles_y)
    blobs.setdefault(span.blob_sha256, Blob(data, span.rgb_sha256, grid))
    return Placed(span.token_start, span.token_len, span.blob_sha256, grid)


JPEG = b"\xff\xd8\xff"
"""What every JPEG file begins with."""


def cut(
    blobs: dict[bytes, Blob], tiling: Tiling, rows_per_tile: int, sequences: Iterable[Rebuilt], workers: int
) -> dict[bytes, Pixels]:
    """Tiles [n, tile, tile, 3] of each picture; 0.3 s a picture of seven tiles and a core.

    A JPEG picture's pixels depend on the decoder by a level or two, here as between an engine and a trainer:
    its bytes and its grid are held to what was recorded, its pixels are not.

    Raises:
        DataError: when a picture's pixels, grid or rows are not those that the policy saw.
    """

    def one(item: tuple[bytes, Blob]) -> tuple[bytes, Pixels]:
        key, blob = item
        decoded = pixels.decode(blob.data)
        is_jpeg = blob.data.startswith(JPEG)
        if not is_jpeg and pixels.rgb_sha256(decoded) != blob.rgb_sha256:
            raise DataError(
                f"a picture of {len(blob.data)} bytes does not decode to the pixels that the policy saw"
            )
        tiles, grid = pixels.tiles(decoded, tiling)
        if grid != blob.grid:
            raise DataError(f"a picture is cut into {grid}, the policy cut it into {blob.grid}")
        return key, tiles

    with ThreadPoolExecutor(workers) as several:
        found = dict(several.map(one, blobs.items()))
    for sequence in sequences:
        for picture in sequence.pictures:
            if picture.length != len(found[picture.key]) * rows_per_tile:
                raise DataError(
                    f"a picture of {len(found[picture.key]) * rows_per_tile} rows stands at "
                    f"{picture.length} placeholders"
                )
    return found
