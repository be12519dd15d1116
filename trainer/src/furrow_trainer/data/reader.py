"""Follows a run's manifest and returns its groups, each once, whole, with all its scored trajectories.

A group is returned when its row is there, which Furrow commits with or after the group's last trajectory.
Until then only the locations of its rows are kept; screenshots and tokens are read when a group is used. A
group is passed when the caller calls `done`: the cursor is never ahead of what a checkpoint was trained on.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import DataError, ExpiredError
from . import rows
from .cursor import Cursor
from .manifest import Commit, DataFile, Manifest, Piece
from .rows import GroupRow, Step, Trajectory

# A row group is 32 MiB at most; neighbours in a file share one, and a group's trajectories are in few.
CACHE_BYTES_MAX = 256 << 20
# Shards that a group's trajectories come from; an open file costs a descriptor and a footer.
FILES_MAX = 8
POLL_SECONDS = 0.2
# Commits that are read before the manifest forgets those that no open group needs.
RELEASE_EVERY = 100
# The split of what `[eval]` collects.
EVALUATION = "eval"
# The error of a reader whose rows have gone.
EXPIRED = (
    "the farm removes the oldest rows (records.retention_bytes, records.retention_hours of its job); raise "
    "the key, or go on behind them with skip_expired (data.skip_expired)"
)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which trajectories are wanted. `None` and empty mean any."""

    trainable: str | None = None
    """`rl` or `sft`: trajectories with at least one step that is trainable so."""
    splits: frozenset[str] = frozenset()
    suites: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()
    policy_kinds: frozenset[str] = frozenset()
    version_min: int | None = None
    """Oldest policy version that may have written any part of a trajectory."""
    version_max: int | None = None
    reward_min: float | None = None

    def __post_init__(self) -> None:
        if self.trainable not in (None, "rl", "sft"):
            raise ValueError(f"trainable is {self.trainable!r}; use 'rl', 'sft' or None")

    def refuses(self, trajectory: Trajectory, trainable_rl: bool, trainable_sft: bool) -> str | None:
        """The reason why a trajectory is not wanted; `None` where it is."""
        oldest, newest = trajectory.policy_version_min, trajectory.policy_version_max
        refusals = {
            "failed": trajectory.status != "scored",
            # Whatever its flags say: an evaluation is never trained on.
            "evaluation": self.trainable is not None and trajectory.split == EVALUATION,
            "not trainable": {"rl": not trainable_rl, "sft": not trainable_sft, None: False}[self.trainable],
            "split": bool(self.splits) and trajectory.split not in self.splits,
            "suite": bool(self.suites) and trajectory.suite not in self.suites,
            "task": bool(self.tasks) and trajectory.task_id not in self.tasks,
            "policy kind": bool(self.policy_kinds) and trajectory.policy_kind not in self.policy_kinds,
            "version": (self.version_min is not None and (oldest is None or oldest < self.version_min))
            or (self.version_max is not None and (newest is None or newest > self.version_max)),
            "reward": self.reward_min is not None
            and (trajectory.reward is None or trajectory.reward < self.reward_min),
        }
        return next((reason for reason, refused in refusals.items() if refused), None)


@dataclass(frozen=True, slots=True)
class Group:
    """A closed group: its row, and those of its scored trajectories that were wanted, by slot."""

    row: GroupRow
    trajectories: tuple[Trajectory, ...]

    @property
    def group_id(self) -> str:
        return self.row.group_id


@dataclass(slots=True)
class _StepLocation:
    """Where a trajectory's steps are: rows `start` to `stop` of a file as it was appended."""

    trajectory: Trajectory
    file: DataFile
    start: int
    stop: int


@dataclass(slots=True)
class _Open:
    """A group that was not returned, or is not done, yet."""

    first: int
    last: int
    scored: int = 0
    row: GroupRow | None = None
    locations: list[_StepLocation] = field(default_factory=list)


class Reader:
    """One of `world` readers of a run; each takes the groups whose ids' hashes are its own.

    Args:
        run_dir: a run directory, or its `data` folder.
        choice: which trajectories are wanted.
        cursor: where an earlier reader stopped; its rank and world must be these.
        rank: this reader's number, from 0.
        world: how many share the run.
        verify: compare each file with the manifest's SHA-256 before it is read.
        skip_expired: leave out rows that the farm removed before they were read, and groups that lack
            trajectories for it. Without it they end the reading with an ExpiredError, unless they were gone
            before a reader without a cursor began.

    Raises:
        DataError: when the cursor is of another run, another rank or another number of readers.
    """

    def __init__(
        self,
        run_dir: Path | str,
        choice: Choice | None = None,
        cursor: Cursor | None = None,
        rank: int = 0,
        world: int = 1,
        verify: bool = False,
        skip_expired: bool = False,
    ) -> None:
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} of {world} readers")
        self.manifest = Manifest(run_dir)
        self.choice = choice or Choice()
        self.counts: Counter[str] = Counter()
        """Groups and trajectories read so far, and why some were left out."""
        self.discarded = 0
        """Scored trajectories outside of evaluations in groups of which none is wanted: the farm collected
        them, and no caller gets them."""
        self._verify = verify
        self._skip_expired = skip_expired
        self._has_skipped = False
        self._rank, self._world = rank, world
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._ready: deque[Group] = deque()
        self._done: dict[str, int] = {}
        self._locations: dict[str, _StepLocation] = {}
        self._cache = _RowGroups()
        self._scanned = 0
        self._earlier: dict[str, int | None] = {}
        is_first = cursor is None or cursor == Cursor(rank=cursor.rank, world=cursor.world)
        # What expired up to this commit was promised to no reader.
        self._begun_at = self.manifest.newest() if is_first else 0
        self._resume(cursor or Cursor(rank=rank, world=world))

    def _resume(self, cursor: Cursor) -> None:
        if (cursor.rank, cursor.world) != (self._rank, self._world):
            raise DataError(
                f"the cursor is of reader {cursor.rank} of {cursor.world}, this is {self._rank} of "
                f"{self._world}: resume with as many readers"
            )
        self.manifest.begin_at(cursor.version)
        while self.manifest.version < cursor.version:
            if self.manifest.read_next() is None:
                raise DataError(
                    f"the cursor stands at commit {cursor.version}, {self.manifest.data_dir} has "
                    f"{self.manifest.version}"
                )
        if cursor.run_id is not None and self.manifest.run_id not in (None, cursor.run_id):
            raise DataError(f"the cursor is of run {cursor.run_id}, this is {self.manifest.run_id}")
        self._scanned = cursor.version
        # Done by an earlier reader; the last commit that holds each is known when it is read again.
        self._earlier = dict.fromkeys(cursor.done)

    def groups(
        self,
        wait_seconds: float = 0.0,
        stop: Callable[[], bool] = lambda: False,
        idle: Callable[[], None] = lambda: None,
    ) -> Iterator[Group]:
        """Groups in the order in which they closed. Ends when nothing was committed for `wait_seconds`, or
        when it would wait and `stop` is true.

        `idle` is called at every poll while there is no group to return.
        """
        deadline = time.monotonic() + wait_seconds
        while True:
            if self._ready:
                # Removed before it is returned: a caller that stops here has it, and the others stay for the
                # next call.
                yield self._ready.popleft()
                deadline = time.monotonic() + wait_seconds
            elif self._scanned < self.manifest.version or self.manifest.read_next() is not None:
                self._scan(self.manifest.commit(self._scanned + 1))
                self._scanned += 1
                if self._scanned % RELEASE_EVERY == 0:
                    self.manifest.release(self._behind())
                deadline = time.monotonic() + wait_seconds
            elif time.monotonic() < deadline and not stop():
                idle()
                time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
            else:
                return

    def steps(self, trajectory: Trajectory) -> list[Step]:
        """All steps of a trajectory of a group that is not done, in order.

        Raises:
            DataError: when some are missing, or do not belong to the trajectory.
        """
        location = self._locations[trajectory.trajectory_id]
        pieces = self.manifest.pieces(location.file)
        if pieces is None:
            raise ExpiredError(f"the steps of {trajectory.trajectory_id} have expired: {EXPIRED}")
        found: list[Step] = []
        for piece in pieces:
            found += self._cache.steps(
                Piece(piece.path, piece.start + location.start, piece.start + location.stop)
            )
        numbers = [step.step for step in found]
        strangers = [step for step in found if step.trajectory_id != trajectory.trajectory_id]
        if strangers or numbers != list(range(trajectory.num_steps)):
            raise DataError(
                f"{trajectory.trajectory_id} should have steps 0 to {trajectory.num_steps - 1}, its rows "
                f"hold {numbers}"
            )
        return found

    def done(self, group: Group) -> None:
        """Passes a group: a cursor taken from now on is behind it."""
        self._close(group.group_id)

    def cursor(self) -> Cursor:
        """Where another reader continues: behind every group that is done, before every other."""
        version = self._behind()
        self._done = {name: last for name, last in self._done.items() if last > version}
        # Groups that an earlier reader did stay listed while commits that hold them may be read again.
        earlier = frozenset(name for name, last in self._earlier.items() if last is None or last > version)
        return Cursor(self.manifest.run_id, version, frozenset(self._done) | earlier, self._rank, self._world)

    def _behind(self) -> int:
        """The last commit before every group that is not done."""
        # Without an open group, all that was scanned is done.
        return min((group.first - 1 for group in self._open.values()), default=self._scanned)

    def _close(self, group_id: str) -> None:
        group = self._open.pop(group_id)
        self._done[group_id] = group.last
        for location in group.locations:
            self._locations.pop(location.trajectory.trajectory_id, None)

    def _scan(self, commit: Commit) -> None:
        if commit.op != "append":
            self.counts[f"commits: {commit.op}"] += 1
            return
        self._scan_trajectories(commit)
        file = commit.file("groups")
        table = self._table(file, rows.GROUP_COLUMNS) if file else None
        for row in rows.group_rows(table) if table else []:
            if not self._is_mine(row.group_id, commit.version):
                continue
            self.counts["groups"] += 1
            group = self._open.setdefault(row.group_id, _Open(commit.version, commit.version))
            group.row, group.last = row, commit.version
            group.locations.sort(key=lambda location: location.trajectory.sample_index)
            if self._has_skipped and group.scored < row.valid:
                # Its rewards alone would mislead a comparison.
                self.counts["groups left out: trajectories have expired"] += 1
                self.discarded += 0 if row.split == EVALUATION else row.valid
                self._close(row.group_id)
            elif group.locations:
                self._ready.append(Group(row, tuple(location.trajectory for location in group.locations)))
            else:
                self.counts["groups left out: no trajectory is wanted"] += 1
                self.discarded += 0 if row.split == EVALUATION else row.valid
                self._close(row.group_id)

    def _scan_trajectories(self, commit: Commit) -> None:
        file = commit.file("trajectories")
        if file is None:
            return
        table = self._table(file, rows.TRAJECTORY_COLUMNS)
        steps_file = commit.file("steps")
        ranges = self._ranges(steps_file) if steps_file else {}
        if table is None or ranges is None:
            return
        for trajectory in rows.trajectories(table):
            if not self._is_mine(trajectory.group_id, commit.version):
                continue
            group = self._open.setdefault(trajectory.group_id, _Open(commit.version, commit.version))
            group.last = commit.version
            group.scored += trajectory.status == "scored"
            found = ranges.get(trajectory.trajectory_id)
            flags = (found.rl, found.sft) if found else (False, False)
            self.counts["trajectories"] += 1
            if (why := self.choice.refuses(trajectory, *flags)) is not None:
                self.counts[f"trajectories left out: {why}"] += 1
                continue
            if found is None or steps_file is None:
                raise DataError(
                    f"commit {commit.version}: {trajectory.trajectory_id} is scored and has no steps"
                )
            location = _StepLocation(trajectory, steps_file, found.start, found.stop)
            group.locations.append(location)
            self._locations[trajectory.trajectory_id] = location

    def _ranges(self, file: DataFile) -> dict[str, _Range] | None:
        table = self._table(file, ["trajectory_id", "trainable_rl", "trainable_sft"])
        if table is None:
            return None
        names, rl, sft = (
            table.column(name).to_pylist() for name in ("trajectory_id", "trainable_rl", "trainable_sft")
        )
        ranges: dict[str, _Range] = {}
        for index, name in enumerate(names):
            found = ranges.setdefault(name, _Range(index, index))
            if found.stop != index:
                raise DataError(f"{file.path}: the steps of {name} are not contiguous")
            found.stop += 1
            found.rl |= rl[index]
            found.sft |= sft[index]
        return ranges

    def _table(self, file: DataFile, columns: list[str]) -> pa.Table | None:
        """Some columns of a file as it was appended, wherever its rows are now; `None` where they have
        expired and may be left out."""
        pieces = self.manifest.pieces(file, self._verify)
        if pieces is None:
            by = self.manifest.expired_by(file)
            if not self._skip_expired and (by is None or by > self._begun_at):
                raise ExpiredError(
                    f"{file.path} expired with commit {by}, before this reader had read it: {EXPIRED}"
                )
            self._has_skipped = True
            self.counts["files expired before they were read"] += 1
            return None
        tables = []
        for piece in pieces:
            names = pq.read_schema(piece.path).names
            lacking = {name for name in columns if name in rows.LATER_COLUMNS} - set(names)
            whole = pq.read_table(piece.path, columns=[name for name in columns if name not in lacking])
            for name in sorted(lacking):
                nulls = pa.nulls(len(whole), rows.LATER_COLUMNS[name])
                whole = whole.append_column(name, nulls)
            if len(whole) < piece.stop:
                raise DataError(f"{piece.path} has {len(whole)} rows, the manifest promises {piece.stop}")
            tables.append(whole.slice(piece.start, piece.stop - piece.start))
        return pa.concat_tables(tables)

    def _is_mine(self, group_id: str, version: int) -> bool:
        if group_id in self._earlier:
            self._earlier[group_id] = version
            return False
        return share(group_id, self._world) == self._rank


@dataclass(slots=True)
class _Range:
    start: int
    stop: int
    rl: bool = False
    sft: bool = False


def share(group_id: str, world: int) -> int:
    """The rank of the reader that a group belongs to: the same on every machine and in every process."""
    return int.from_bytes(hashlib.sha256(group_id.encode()).digest()[:8], "big") % world


class _RowGroups:
    """The files opened and the row groups read last."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, _File] = OrderedDict()
        self._groups: OrderedDict[tuple[Path, int], tuple[list[Step], int]] = OrderedDict()
        self._bytes = 0

    def steps(self, piece: Piece) -> list[Step]:
        """Steps of a piece; its file is opened once."""
        file = self._file(piece.path)
        if file.begins[-1] < piece.stop:
            raise DataError(f"{piece.path} has {file.begins[-1]} rows, the manifest promises {piece.stop}")
        found: list[Step] = []
        for index in range(len(file.begins) - 1):
            begin, end = file.begins[index], file.begins[index + 1]
            start, stop = max(piece.start, begin), min(piece.stop, end)
            if start < stop:
                found += self._group(file, piece.path, index)[start - begin : stop - begin]
        return found

    def _file(self, path: Path) -> _File:
        if path in self._files:
            self._files.move_to_end(path)
            return self._files[path]
        parquet = pq.ParquetFile(path, memory_map=True)
        counts = [parquet.metadata.row_group(index).num_rows for index in range(parquet.num_row_groups)]
        self._files[path] = _File(parquet, [sum(counts[:index]) for index in range(len(counts) + 1)])
        if len(self._files) > FILES_MAX:
            self._files.popitem(last=False)[1].parquet.close()
        return self._files[path]

    def _group(self, file: _File, path: Path, index: int) -> list[Step]:
        key = (path, index)
        if key in self._groups:
            self._groups.move_to_end(key)
            return self._groups[key][0]
        table = file.parquet.read_row_group(index, columns=rows.STEP_COLUMNS)
        self._groups[key] = (rows.steps(table), table.nbytes)
        self._bytes += table.nbytes
        while self._bytes > CACHE_BYTES_MAX and len(self._groups) > 1:
            self._bytes -= self._groups.popitem(last=False)[1][1]
        return self._groups[key][0]


@dataclass(frozen=True, slots=True)
class _File:
    parquet: pq.ParquetFile
    begins: list[int]
    """First row of each row group, and one past the last row."""
