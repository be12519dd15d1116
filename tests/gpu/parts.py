"""The format of what travels to a GPU machine: archives laid end to end, cut into parts, and the manifest
that says how.

An archive is a `.tar.xz` of one component: a folder below the root there. All archives make one stream of
bytes, in the order in which they are needed; a part is a piece of that stream. So a part may hold several
small archives, and a large archive may lie in several parts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from typing import Any, TypeVar

FORMAT = 1
MEBIBYTE = 1 << 20

# What one transfer may hold: the checkout's files and one part. The machine's own limit is 64 MiB; 4 MiB are
# for what else lies in the checkout.
LIMIT_BYTES = 60 * MEBIBYTE

MANIFEST = "manifest.json"
# In a component's folder: which archive it came from, and what it must hold.
MARKER = ".furrow-archive"
LISTING = ".furrow-files.json"

# Files of a component that say `@ROOT@` for the folder that it lies below; the name without `.in` is written
# there.
TEMPLATE_SUFFIX = ".in"
TEMPLATES = {"browser": ("fonts.conf.in",)}
# Folders that the browser's user writes: outside the components, which nothing changes after they were
# unpacked.
WRITABLE = ("cache", "cache/fontconfig")

_COMPONENT = re.compile(r"[a-z][a-z0-9-]{0,31}")
_PART = re.compile(r"[0-9]{3}-[a-z0-9-]{1,64}\.part")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ManifestError(Exception):
    """The manifest is not one; the message says where and why."""


@dataclasses.dataclass(frozen=True)
class Archive:
    """One component: `offset` and `size` in the stream, `unpacked` bytes in `files` files."""

    name: str
    sha256: str
    offset: int
    size: int
    unpacked: int
    files: int


@dataclasses.dataclass(frozen=True)
class Part:
    """One file that travels: `offset` and `size` in the stream."""

    file: str
    sha256: str
    offset: int
    size: int


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Everything that travels. `tree` is the size of the checkout's files in bytes, measured when the parts
    were cut.
    """

    commit: str
    limit: int
    tree: int
    archives: tuple[Archive, ...]
    parts: tuple[Part, ...]

    def parts_of(self, archive: Archive) -> list[Part]:
        """The parts that hold a piece of the archive, in order."""
        end = archive.offset + archive.size
        return [part for part in self.parts if part.offset < end and archive.offset < part.offset + part.size]

    def archives_of(self, part: Part) -> list[Archive]:
        """The archives that have a piece in the part, in order."""
        return [archive for archive in self.archives if part in self.parts_of(archive)]

    def write(self, path: str) -> None:
        """Writes it as JSON, whole or not at all."""
        fields = {"format": FORMAT} | dataclasses.asdict(self)
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(fields, file, indent=1)
            file.write("\n")
        os.replace(path + ".new", path)


def read(path: str) -> Manifest:
    """Reads and checks a manifest. Raises `ManifestError` for what is none, `OSError`."""
    with open(path, encoding="utf-8") as file:
        try:
            fields = json.load(file)
        except ValueError as error:
            raise ManifestError(f"{path}: not JSON: {error}") from error
    try:
        return _checked(fields)
    except ManifestError as error:
        raise ManifestError(f"{path}: {error}; build the parts again with tests/gpu.sh build") from error


def _checked(fields: object) -> Manifest:
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ManifestError(
            f"format {fields.get('format') if isinstance(fields, dict) else fields!r}, wanted {FORMAT}"
        )
    archives = tuple(_entry(Archive, entry) for entry in _list(fields, "archives"))
    parts = tuple(_entry(Part, entry) for entry in _list(fields, "parts"))
    for what, names, pattern in (
        ("archive", [a.name for a in archives], _COMPONENT),
        ("part", [p.file for p in parts], _PART),
    ):
        for name in names:
            if not pattern.fullmatch(name):
                raise ManifestError(f"{what} {name!r} is not the name of one")
        if len(set(names)) != len(names):
            raise ManifestError(f"two entries of one {what}: {names}")
    for entries in (archives, parts):
        end = 0
        for entry in entries:
            if entry.offset != end or entry.size <= 0:
                raise ManifestError(f"{entry} does not begin at byte {end}, or is empty")
            end += entry.size
        if end != sum(archive.size for archive in archives):
            raise ManifestError(f"the parts hold {end} bytes, the archives {sum(a.size for a in archives)}")
    commit, limit, tree = str(fields.get("commit", "")), _number(fields, "limit"), _number(fields, "tree")
    return Manifest(commit, limit, tree, archives, parts)


def _list(fields: dict[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list) or not value:
        raise ManifestError(f"{name} is {value!r}, wanted a list with something in it")
    return value


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ManifestError(f"{name} is {value!r}, wanted a whole number of at least 0")
    return value


Entry = TypeVar("Entry", Archive, Part)


def _entry(kind: type[Entry], fields: object) -> Entry:
    if not isinstance(fields, dict):
        raise ManifestError(f"{fields!r} is not an entry of {kind.__name__}")
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.type == "int":
            values[field.name] = _number(fields, field.name)
        else:
            values[field.name] = fields.get(field.name)
            if not isinstance(values[field.name], str):
                raise ManifestError(f"{field.name} is {values[field.name]!r}, wanted text")
    if not _SHA256.fullmatch(values["sha256"]):
        raise ManifestError(f"sha256 {values['sha256']!r} is none")
    return kind(**values)


def sha256_of(path: str) -> str:
    """SHA-256 of a file's bytes, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mebibytes(count: int) -> str:
    """A number of bytes for a table: `12.3`."""
    return f"{count / MEBIBYTE:.1f}"
