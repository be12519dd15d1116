"""Unpacks what was carried below a root folder, as far as its parts are there.

Every step can be cut off at any instant and done again: a part is copied under another name and renamed once
its SHA-256 was checked; a component is unpacked into a folder of another name, which also holds the marker
that says from which archive, and renamed when it is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import lzma
import os
import shutil
import stat
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import parts
from parts import Archive, Manifest, Part

_INCOMING = ".incoming"
_LOCK = ".unpack-lock"
_TEMPORARY = ".new-"
_REPLACED = ".old-"
_CHUNK = 1 << 20

# Another unpacking is at work: it takes less than a minute.
_LOCK_SECONDS = 120
# Left free on the disk beside what is unpacked.
_SPARE_BYTES = 256 * parts.MEBIBYTE


class UnpackError(Exception):
    """What was carried, or the root, is not as it must be; the message says what to do."""


class MissingParts(Exception):
    """Parts that are neither here nor came before; `parts` names them."""

    def __init__(self, missing: list[Part]):
        super().__init__(", ".join(part.file for part in missing))
        self.parts = missing


def unpack(folder: str, root: str, say: Callable[[str], None] = print) -> Manifest:
    """Unpacks from the parts in `folder` below `root` whatever is not there yet.

    Raises `MissingParts` after everything was unpacked whose parts are there, `UnpackError` if something is
    damaged or the root is unfit, `parts.ManifestError` and `OSError`.
    """
    manifest = _manifest(folder, root)
    root = _root(root)
    with _locked(root):
        manifest.write(os.path.join(root, parts.MANIFEST))
        _clear_leftovers(root)
        for name in parts.WRITABLE:
            path = os.path.join(root, name)
            os.makedirs(path, exist_ok=True)
            os.chmod(path, 0o1777)
        open_archives = [archive for archive in manifest.archives if not is_unpacked(root, archive)]
        _refuse_a_full_disk(root, open_archives)
        wanted = [
            part
            for part in manifest.parts
            if any(part in manifest.parts_of(archive) for archive in open_archives)
        ]
        incoming = os.path.join(root, _INCOMING)
        os.makedirs(incoming, mode=0o700, exist_ok=True)
        _forget(incoming, keep={_stored(part) for part in wanted})
        missing = [part for part in wanted if not _take(folder, incoming, part)]
        for archive in open_archives:
            needed = manifest.parts_of(archive)
            if not any(part in missing for part in needed):
                began = time.monotonic()
                _install(
                    root,
                    archive,
                    _Stream([(os.path.join(incoming, _stored(part)), part) for part in needed], archive),
                )
                say(
                    f"unpacked {archive.name}: {archive.files} files, "
                    f"{parts.mebibytes(archive.unpacked)} MiB, "
                    f"{time.monotonic() - began:.1f} s"
                )
        if missing:
            raise MissingParts(missing)
        shutil.rmtree(incoming)
    return manifest


def _manifest(folder: str, root: str) -> Manifest:
    """The manifest that came, else the one that came before."""
    paths = [os.path.join(folder, parts.MANIFEST), os.path.join(root, parts.MANIFEST)]
    for path in paths:
        if os.path.exists(path):
            return parts.read(path)
    raise UnpackError(f"{paths[0]} is not there: it travels with each part")


def is_unpacked(root: str, archive: Archive) -> bool:
    """Whether the component is there, from this very archive."""
    try:
        with open(os.path.join(root, archive.name, parts.MARKER), encoding="ascii") as file:
            return file.read().strip() == archive.sha256
    except (OSError, ValueError):
        return False


def verify(folder: str, root: str) -> list[str]:
    """What differs below `root` from what was carried, a line each: components that are not there, files that
    are changed, gone or too many.
    """
    manifest = _manifest(folder, root)
    wrong = []
    for archive in manifest.archives:
        if is_unpacked(root, archive):
            wrong += [
                f"{archive.name}/{line}"
                for line in _differences(os.path.join(root, archive.name), archive.name)
            ]
        else:
            wrong.append(f"{archive.name}: not unpacked from {archive.sha256[:12]}")
    return wrong


def _differences(folder: str, component: str) -> list[str]:
    with open(os.path.join(folder, parts.LISTING), encoding="utf-8") as file:
        listed = {path: (size, sha256, mode) for path, size, sha256, mode in json.load(file)}
    written = {
        parts.MARKER,
        parts.LISTING,
        *(name.removesuffix(parts.TEMPLATE_SUFFIX) for name in parts.TEMPLATES.get(component, ())),
    }
    # Python writes __pycache__ beside modules that root imports.
    wrong = [
        f"{path}: was not carried"
        for path in _files(folder)
        if path not in listed and path not in written and "__pycache__" not in path.split("/")
    ]
    for path, (size, sha256, mode) in sorted(listed.items()):
        full = os.path.join(folder, path)
        try:
            status = os.lstat(full)
        except OSError as error:
            wrong.append(f"{path}: {error.strerror}")
            continue
        if not stat.S_ISREG(status.st_mode) or status.st_size != size or parts.sha256_of(full) != sha256:
            wrong.append(f"{path}: other bytes than were carried")
        elif stat.S_IMODE(status.st_mode) != mode:
            wrong.append(f"{path}: mode {stat.S_IMODE(status.st_mode):o}, wanted {mode:o}")
    return wrong


def _files(folder: str) -> list[str]:
    return [
        os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names
    ]


def _root(path: str) -> str:
    """The root, made if need be, open to every user."""
    if not os.path.isabs(path):
        raise UnpackError(f"the root {path!r} is not an absolute path; set FURROW_GPU_ROOT to one")
    path = os.path.normpath(path)
    os.makedirs(path, mode=0o755, exist_ok=True)
    if os.path.islink(path) or not os.path.isdir(path):
        raise UnpackError(f"the root {path} is not a folder of its own; set FURROW_GPU_ROOT to one")
    if os.stat(path).st_uid != os.geteuid():
        raise UnpackError(
            f"the root {path} is another user's; remove it, or set FURROW_GPU_ROOT to another folder"
        )
    os.chmod(path, 0o755)
    above = os.path.dirname(path)
    while True:
        if not os.stat(above).st_mode & stat.S_IXOTH:
            raise UnpackError(
                f"{above} is closed to the browser's user, so {path} is, too; set FURROW_GPU_ROOT to a "
                "folder that is not"
            )
        if above == os.path.dirname(above):
            return path
        above = os.path.dirname(above)


@contextlib.contextmanager
def _locked(root: str) -> Iterator[None]:
    descriptor = os.open(os.path.join(root, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise UnpackError(
                        f"another process has been unpacking below {root} for {_LOCK_SECONDS} s"
                    ) from None
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def _clear_leftovers(root: str) -> None:
    """Removes what a run that was cut off left behind. The lock says that none is at work."""
    for name in os.listdir(root):
        if name.startswith((_TEMPORARY, _REPLACED)):
            shutil.rmtree(os.path.join(root, name))


def _refuse_a_full_disk(root: str, archives: list[Archive]) -> None:
    status = os.statvfs(root)
    free = status.f_bavail * status.f_frsize
    needed = sum(archive.unpacked + archive.size for archive in archives)
    if archives and free < needed + _SPARE_BYTES:
        raise UnpackError(
            f"{root} has {parts.mebibytes(free)} MiB free; {parts.mebibytes(needed + _SPARE_BYTES)} MiB "
            "are needed: free some, "
            "or set FURROW_GPU_ROOT to another disk"
        )


def _stored(part: Part) -> str:
    # By its hash: a part of an older build never passes for one of this.
    return f"{part.sha256}.part"


def _forget(incoming: str, keep: set[str]) -> None:
    for name in os.listdir(incoming):
        if name not in keep:
            os.unlink(os.path.join(incoming, name))


def _take(folder: str, incoming: str, part: Part) -> bool:
    """Whether the part is among those that came, after taking it from `folder` if it is there."""
    stored = os.path.join(incoming, _stored(part))
    if os.path.exists(stored):
        if os.path.getsize(stored) == part.size and parts.sha256_of(stored) == part.sha256:
            return True
        os.unlink(stored)
    source = os.path.join(folder, part.file)
    if not os.path.isfile(source):
        return False
    digest = hashlib.sha256()
    with open(source, "rb") as reader, open(stored + ".new", "wb") as writer:
        while chunk := reader.read(_CHUNK):
            digest.update(chunk)
            writer.write(chunk)
        size = writer.tell()
    if size != part.size or digest.hexdigest() != part.sha256:
        os.unlink(stored + ".new")
        raise UnpackError(
            f"{source}: {size} bytes with SHA-256 {digest.hexdigest()[:12]}, the manifest says "
            f"{part.size} with "
            f"{part.sha256[:12]}: carry this part and manifest.json again, both of one build"
        )
    os.replace(stored + ".new", stored)
    return True


class _Stream(io.RawIOBase):
    """The bytes of one archive, out of the parts that hold it; `digest` is of those that were read."""

    def __init__(self, stored: list[tuple[str, Part]], archive: Archive):
        super().__init__()
        self._pieces = []
        for path, part in stored:
            begin = max(archive.offset, part.offset)
            end = min(archive.offset + archive.size, part.offset + part.size)
            self._pieces.append((path, begin - part.offset, end - begin))
        self._file: io.BufferedReader | None = None
        self._left = 0
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills as much of `buffer` as the current piece has; 0 at the end."""
        while self._file is None or not self._left:
            if self._file:
                self._file.close()
                self._file = None
            if not self._pieces:
                return 0
            path, skip, self._left = self._pieces.pop(0)
            self._file = open(path, "rb")  # noqa: SIM115 - closed at the next piece
            self._file.seek(skip)
        chunk = self._file.read(min(len(buffer), self._left))
        if not chunk:
            raise UnpackError("a part became shorter while it was read")
        self._left -= len(chunk)
        self.digest.update(chunk)
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        """Closes the part that is open."""
        if self._file:
            self._file.close()
        super().close()


def _install(root: str, archive: Archive, stream: _Stream) -> None:
    final = os.path.join(root, archive.name)
    if os.path.lexists(final) and (os.path.islink(final) or not os.path.isdir(final)):
        raise UnpackError(f"{final} is in the way: it is not a folder; remove it")
    temporary = os.path.join(root, f"{_TEMPORARY}{archive.name}")
    os.mkdir(temporary, 0o755)
    os.chmod(temporary, 0o755)
    try:
        with io.BufferedReader(stream, _CHUNK) as compressed, lzma.open(compressed) as plain:
            _extract(plain, temporary, archive)
            # To the end of the stream: its own check comes last, and the digest is of everything.
            while plain.read(_CHUNK):
                pass
            while compressed.read(_CHUNK):
                pass
    except (lzma.LZMAError, tarfile.TarError, EOFError) as error:
        raise UnpackError(f"archive {archive.name} is damaged: {error}; build the parts again") from error
    if stream.digest.hexdigest() != archive.sha256:
        raise UnpackError(
            f"archive {archive.name} has SHA-256 {stream.digest.hexdigest()[:12]}, the manifest says "
            f"{archive.sha256[:12]}: "
            "carry all parts of one build"
        )
    for name in parts.TEMPLATES.get(archive.name, ()):
        with open(os.path.join(temporary, name), encoding="utf-8") as file:
            text = file.read().replace("@ROOT@", root)
        _write(os.path.join(temporary, name.removesuffix(parts.TEMPLATE_SUFFIX)), [text.encode()], 0o644)
    _write(os.path.join(temporary, parts.MARKER), [archive.sha256.encode() + b"\n"], 0o644)
    if os.path.lexists(final):
        os.rename(final, os.path.join(root, f"{_REPLACED}{archive.name}"))
    os.rename(temporary, final)
    shutil.rmtree(os.path.join(root, f"{_REPLACED}{archive.name}"), ignore_errors=True)


def _extract(plain: io.BufferedIOBase, folder: str, archive: Archive) -> None:
    """Writes the files of a tar stream below an empty folder; nothing but folders and files with plain
    relative names is taken.
    """
    left = archive.unpacked
    files = 0
    with tarfile.open(fileobj=plain, mode="r|") as tar:
        for member in tar:
            path = os.path.join(folder, _inside(member.name, archive))
            if member.isdir():
                _make_folders(folder, path)
                continue
            if not member.isreg():
                raise UnpackError(
                    f"archive {archive.name}: {member.name!r} is neither folder nor file; nothing else "
                    "is unpacked"
                )
            left -= member.size
            files += 1
            if left < 0 or files > archive.files:
                raise UnpackError(
                    f"archive {archive.name} holds more than the {archive.files} files and "
                    f"{archive.unpacked} bytes of the manifest"
                )
            _make_folders(folder, os.path.dirname(path))
            _write(path, _content(tar, member), 0o755 if member.mode & 0o111 else 0o644)
    if left or files != archive.files:
        raise UnpackError(
            f"archive {archive.name}: {files} files, {archive.unpacked - left} bytes; the manifest says "
            f"{archive.files}, {archive.unpacked}"
        )


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    reader = tar.extractfile(member)
    while reader and (chunk := reader.read(_CHUNK)):
        yield chunk


def _inside(name: str, archive: Archive) -> str:
    segments = name.split("/")
    if (
        name.startswith("/")
        or "\0" in name
        or any(segment in ("", ".", "..") for segment in segments)
        or name == parts.MARKER
    ):
        raise UnpackError(
            f"archive {archive.name}: the name {name!r} leads out of its folder, or is not plain"
        )
    return name


def _make_folders(top: str, path: str) -> None:
    if path == top or os.path.isdir(path):
        return
    _make_folders(top, os.path.dirname(path))
    os.mkdir(path)
    os.chmod(path, 0o755)


def _write(path: str, chunks: Iterable[bytes], mode: int) -> None:
    """Writes a new file; one that is there already, or a link, is an error."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:
        file.writelines(chunks)
        os.fchmod(descriptor, mode)
