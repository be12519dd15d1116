"""The manifest: numbered commits, each created once, that say which files are the data set.

Commits are numbered in their order, without gaps, and are never rewritten. A reader that starts at 1 and
stops at the first number that is not there reads each row once, whole. A `replace` commit puts a merged file
in the place of small ones with the same rows: a reader that follows the run has read those, and skips the
merged one. The parts move to `data/replaced/` and are removed later; their rows are then in the merged file,
part after part in the order in which the commit names them. An `expire` commit removes the oldest rows for
good (`records.retention_bytes`, `records.retention_hours` of the farm's job); their files, too, stay in
`data/replaced/` for a while.

A file of `data/checkpoints/` is the data set after one commit: a reader that has done everything up to a
later commit begins there. Its first line is JSON, its second one the SHA-256 of the first. It is a copy of
what the commits say; one that is damaged is passed over.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError

# 10,000 files of 200 bytes are 2 MB; the writer has the same limits.
COMMIT_BYTES_MAX = 4 << 20
COMMIT_FILES_MAX = 10_000
TABLES = ("trajectories", "steps", "failed_steps", "groups", "scores")
OPS = ("append", "replace", "expire")
# Columns are only ever added, and every version is read: what an older file lacks is null.
SCHEMA_VERSION_MAX = 4

_COMMIT = re.compile(r"[0-9]{20}\.json")
_PATH = re.compile(r"(?P<table>[a-z_]+)/[A-Za-z0-9._-]+\.parquet")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file as a commit names it."""

    table: str
    path: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the manifest."""

    version: int
    op: str
    files: tuple[DataFile, ...]
    removed: tuple[str, ...]
    run_id: str
    created_at_micros: int

    def file(self, table: str) -> DataFile | None:
        """The file that it adds to a table; an append adds at most one."""
        return next((file for file in self.files if file.table == table), None)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `start` to `stop` of the file that is now at `path`."""

    path: Path
    start: int
    stop: int


class Manifest:
    """The commits of one run directory (or its `data` folder), read as far as a caller requested."""

    def __init__(self, run_dir: Path | str) -> None:
        self.data_dir = _data_dir(Path(run_dir))
        self.version = 0
        """Number of the newest commit read; 0 before the first."""
        self.run_id: str | None = None
        """Id of the run, once a commit has named it."""
        self._commits: dict[int, Commit] = {}
        self._files: dict[str, DataFile] = {}
        self._replaced_by: dict[str, tuple[str, int]] = {}
        self._expired: dict[str, int] = {}
        self._removed: deque[tuple[int, str]] = deque()

    def commit(self, version: int) -> Commit:
        """A commit that was read before, and not released."""
        return self._commits[version]

    def begin_at(self, version: int) -> None:
        """Before the first commit is read: begins at the newest checkpoint up to this commit, if there is
        one."""
        folder = self.data_dir / "checkpoints"
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        found = [int(name[:20]) for name in names if _COMMIT.fullmatch(name)]
        for number in sorted((number for number in found if number <= version), reverse=True):
            checkpoint = _checkpoint(self.data_dir, number)
            if checkpoint is not None:
                self.run_id, self._files = checkpoint
                self.version = number
                return

    def release(self, version: int) -> None:
        """Forgets commits up to this one, and the files that they removed: no caller asks for the rows of a
        file that an earlier commit added and one of these removed."""
        for number in range(min(self._commits, default=version + 1), version + 1):
            self._commits.pop(number, None)
        while self._removed and self._removed[0][0] <= version:
            _, path = self._removed.popleft()
            self._files.pop(path, None)
            self._replaced_by.pop(path, None)
            self._expired.pop(path, None)

    def read_next(self) -> Commit | None:
        """Reads the next commit; `None` while there is none. A malformed one raises a DataError at every
        call."""
        version = self.version + 1
        path = self.data_dir / "manifest" / f"{version:020}.json"
        try:
            with open(path, "rb") as file:
                text = file.read(COMMIT_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        if len(text) > COMMIT_BYTES_MAX:
            raise DataError(f"{path} has more than {COMMIT_BYTES_MAX} bytes")
        commit = _parse(path, version, text)
        self._apply(path, commit)
        return commit

    def read_all(self) -> Iterator[Commit]:
        """Reads all commits that are there now."""
        while (commit := self.read_next()) is not None:
            yield commit

    def newest(self) -> int:
        """Number of the newest commit that is there, read or not; 0 before the first."""
        names = (path.name for path in (self.data_dir / "manifest").iterdir())
        return max((int(name[:20]) for name in names if _COMMIT.fullmatch(name)), default=0)

    def expired_by(self, file: DataFile) -> int | None:
        """The commit after which the rows of a file were no longer part of the data set, among those that
        were read; `None` where there is none."""
        path = file.path
        while path not in self._expired and path in self._replaced_by:
            path, _ = self._replaced_by[path]
        return self._expired.get(path)

    def pieces(self, file: DataFile, verify: bool = False) -> list[Piece] | None:
        """Where the rows of a file are now: in it, in `replaced/`, or in the file that replaced it. `None`:
        they have expired.

        With `verify` the bytes are first compared with the manifest's SHA-256.
        """
        path, start = file.path, 0
        while True:
            entry = self._files[path]
            for candidate in (self.data_dir / path, self.data_dir / "replaced" / path):
                if candidate.exists():
                    _check_bytes(candidate, entry, verify)
                    return [Piece(candidate, start, start + file.rows)]
            if path in self._expired:
                return None
            if path not in self._replaced_by:
                # The commit that removed it may be one that was not read yet.
                if self.read_next() is not None:
                    continue
                raise DataError(f"{self.data_dir / path} is named by the manifest and is not there")
            path, offset = self._replaced_by[path]
            start += offset

    def _apply(self, path: Path, commit: Commit) -> None:
        for removed in commit.removed:
            if removed not in self._files:
                raise DataError(f"{path} removes {removed}, which no commit added")
        for file in commit.files:
            if file.path in self._files:
                raise DataError(f"{path} adds {file.path}, which an earlier commit added")
        if commit.op == "replace":
            self._note_replaced(path, commit)
        elif commit.op == "expire":
            self._expired.update(dict.fromkeys(commit.removed, commit.version))
        self._files.update({file.path: file for file in commit.files})
        self._removed.extend((commit.version, removed) for removed in commit.removed)
        self._commits[commit.version] = commit
        self.version = commit.version
        self.run_id = self.run_id or commit.run_id

    def _note_replaced(self, path: Path, commit: Commit) -> None:
        for file in commit.files:
            offset = 0
            for removed in commit.removed:
                part = self._files[removed]
                if part.table == file.table:
                    self._replaced_by[removed] = (file.path, offset)
                    offset += part.rows
            if offset != file.rows:
                raise DataError(f"{path} replaces {offset} rows of {file.table} by {file.rows}")


def _data_dir(run_dir: Path) -> Path:
    for candidate in (run_dir, run_dir / "data"):
        if (candidate / "manifest").is_dir():
            return candidate
    raise DataError(f"{run_dir} is not a run directory: it has neither manifest/ nor data/manifest/")


def _check_bytes(path: Path, entry: DataFile, verify: bool) -> None:
    size = os.path.getsize(path)
    if size != entry.bytes:
        raise DataError(f"{path} has {size} bytes, the manifest says {entry.bytes}")
    if verify:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != entry.sha256:
            raise DataError(f"{path} has SHA-256 {digest}, the manifest says {entry.sha256}")


def _checkpoint(data_dir: Path, version: int) -> tuple[str, dict[str, DataFile]] | None:
    """The run and the files of a checkpoint; `None` where it is damaged or of another manifest."""
    name = f"{version:020}.json"
    try:
        body, digest = (data_dir / "checkpoints" / name).read_bytes().split(b"\n")[:2]
        if hashlib.sha256(body).hexdigest() != digest.decode("ascii"):
            return None
        raw = json.loads(body)
        commit = (data_dir / "manifest" / name).read_bytes()
        if raw["version"] != version or raw["commit_sha256"] != hashlib.sha256(commit).hexdigest():
            return None
        files = [_file(entry["file"]) for entry in raw["snapshot"]["files"].values()]
        return str(raw["run_id"]), {file.path: file for file in files}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _parse(path: Path, version: int, text: bytes) -> Commit:
    try:
        raw = json.loads(text)
        commit = Commit(
            version=int(raw["version"]),
            op=str(raw["op"]),
            files=tuple(_file(entry) for entry in raw["files"]),
            removed=tuple(str(name) for name in raw.get("removed", [])),
            run_id=str(raw["run_id"]),
            created_at_micros=int(raw["created_at_micros"]),
        )
        schema_version = int(raw["schema_version"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not a commit: {error!r}") from error
    problem = None
    if commit.version != version:
        problem = f"says version {commit.version}"
    elif commit.op not in OPS:
        problem = f"has op {commit.op!r}; this reader knows {', '.join(OPS)}"
    elif not 1 <= schema_version <= SCHEMA_VERSION_MAX:
        problem = f"has schema version {schema_version}; this reader knows 1 to {SCHEMA_VERSION_MAX}"
    elif len(commit.files) + len(commit.removed) > COMMIT_FILES_MAX:
        problem = f"names more than {COMMIT_FILES_MAX} files"
    elif commit.op == "append" and len({file.table for file in commit.files}) != len(commit.files):
        problem = "appends two files of one table"
    if problem is not None:
        raise DataError(f"{path} {problem}")
    return commit


def _file(raw: dict[str, object]) -> DataFile:
    file = DataFile(
        str(raw["table"]), str(raw["path"]), int(str(raw["rows"])), int(str(raw["bytes"])), str(raw["sha256"])
    )
    found = _PATH.fullmatch(file.path)
    if found is None or found["table"] != file.table or file.table not in TABLES:
        raise ValueError(f"{file.path!r} is not a path of table {file.table!r}")
    if file.rows < 0 or file.bytes < 0:
        raise ValueError(f"{file.path} has {file.rows} rows and {file.bytes} bytes")
    return file
