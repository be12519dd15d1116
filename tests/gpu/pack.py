"""Packs folders into archives whose bytes depend on nothing but their files, and cuts them into parts."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from typing import IO

import parts
from parts import Archive, Manifest, Part

# Blocks of their own, always through xz's threaded coder: the bytes depend on the block size and not on how
# many threads there are.
_BLOCK_BYTES = 64 * parts.MEBIBYTE
_XZ = (
    "xz",
    "--format=xz",
    "--check=sha256",
    "--stdout",
    "--threads=2",
    f"--block-size={_BLOCK_BYTES}",
    "--x86",
    "--lzma2=preset=7,dict=64MiB",
)

# Travels with each part; it takes 2 kB.
_MANIFEST_BYTES = 64 << 10


class PackError(Exception):
    """Parts cannot be made; the message says what to do."""


def pack(
    stages: list[tuple[str, str]], work: str, out: str, commit: str, tree: int, limit: int = parts.LIMIT_BYTES
) -> Manifest:
    """Packs the folders `stages` (component, folder), in order, and writes parts and manifest into `out`.

    Compressed archives are kept in `work` and made again only when a file changed. `tree` is the size of the
    checkout that travels with each part, in bytes. Raises `PackError` if that leaves no space.
    """
    if tree + parts.MEBIBYTE > limit:
        raise PackError(
            f"the checkout holds {parts.mebibytes(tree)} MiB, of {parts.mebibytes(limit)} MiB for it and "
            "one part: travel with the small "
            "one of `tests/gpu.sh tree`"
        )
    os.makedirs(work, exist_ok=True)
    archives, paths, offset = [], [], 0
    for name, folder in stages:
        path, files, unpacked = _compressed(name, folder, work)
        size = os.path.getsize(path)
        archives.append(Archive(name, parts.sha256_of(path), offset, size, unpacked, files))
        paths.append(path)
        offset += size
    pieces = _cut(archives, paths, out, limit - tree - _MANIFEST_BYTES)
    manifest = Manifest(commit, limit, tree, tuple(archives), tuple(pieces))
    manifest.write(os.path.join(out, parts.MANIFEST))
    return manifest


def listing(folder: str) -> list[tuple[str, int, str, int]]:
    """Files below a folder, sorted: path, size, SHA-256, mode (0755 or 0644). A link is an error: it may lead
    anywhere on another machine.
    """
    entries = []
    for at, folders, names in os.walk(folder):
        for name in folders + names:
            path = os.path.join(at, name)
            if os.path.islink(path):
                raise PackError(f"{path} is a link; put the file itself there")
        for name in names:
            path = os.path.join(at, name)
            mode = 0o755 if os.stat(path).st_mode & 0o111 else 0o644
            entries.append(
                (os.path.relpath(path, folder), os.path.getsize(path), parts.sha256_of(path), mode)
            )
    return sorted(entries)


def _compressed(name: str, folder: str, work: str) -> tuple[str, int, int]:
    """The archive's path, its number of files and their bytes."""
    entries = listing(folder)
    if not entries:
        raise PackError(f"{folder}: nothing to pack")
    text = json.dumps(entries, indent=0).encode()
    key = hashlib.sha256(repr(_XZ).encode() + text).hexdigest()[:24]
    path = os.path.join(work, f"{name}-{key}.tar.xz")
    if not os.path.exists(path):
        for old in os.listdir(work):
            if old.startswith(f"{name}-"):
                os.unlink(os.path.join(work, old))
        with (
            open(path + ".new", "wb") as file,
            subprocess.Popen(_XZ, stdin=subprocess.PIPE, stdout=file) as coder,
        ):
            assert coder.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                _write_tar(coder.stdin, folder, entries, text)
        if coder.returncode:
            raise PackError(f"xz ended with status {coder.returncode} at {name}")
        os.replace(path + ".new", path)
    return path, len(entries) + 1, sum(size for _, size, _, _ in entries) + len(text)


def _write_tar(out: IO[bytes], folder: str, entries: list[tuple[str, int, str, int]], text: bytes) -> None:
    """Sorted, without owners and times: the same files make the same bytes."""
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        head = tarfile.TarInfo(parts.LISTING)
        head.size = len(text)
        tar.addfile(head, io.BytesIO(text))
        for path, size, _, mode in entries:
            member = tarfile.TarInfo(path)
            member.size, member.mode = size, mode
            with open(os.path.join(folder, path), "rb") as file:
                tar.addfile(member, file)


def _cut(archives: list[Archive], paths: list[str], out: str, capacity: int) -> list[Part]:
    """Cuts the archives, end to end, into parts of `capacity` bytes, the last one smaller: what a run needs
    first is then complete after as few transfers as can be.
    """
    total = sum(archive.size for archive in archives)
    count, size = -(-total // capacity), capacity
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    pieces: list[Part] = []
    stream = _bytes_of(paths)
    rest = b""
    for index in range(count):
        offset = index * size
        wanted = min(size, total - offset)
        names = [a.name for a in archives if a.offset < offset + wanted and offset < a.offset + a.size]
        file_name = f"{index + 1:03}-{'-'.join(names)}.part"
        digest, left = hashlib.sha256(), wanted
        with open(os.path.join(out, file_name), "wb") as file:
            while left:
                chunk = rest or next(stream)
                rest = chunk[left:]
                chunk = chunk[:left]
                left -= len(chunk)
                digest.update(chunk)
                file.write(chunk)
        pieces.append(Part(file_name, digest.hexdigest(), offset, wanted))
    return pieces


def _bytes_of(paths: list[str]) -> Iterator[bytes]:
    for path in paths:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                yield chunk


def table(manifest: Manifest, manifest_bytes: int) -> str:
    """What travels, a line each: bytes alone and with the checkout, beside the limit."""
    lines = [f"{'archive':<12}{'files':>8}{'unpacked MiB':>14}{'packed MiB':>12}"]
    lines += [
        f"{archive.name:<12}{archive.files:>8}{parts.mebibytes(archive.unpacked):>14}"
        f"{parts.mebibytes(archive.size):>12}"
        for archive in manifest.archives
    ]
    width = max(len(part.file) for part in manifest.parts) + 2
    lines += ["", f"{'part':<{width}}{'bytes':>12}{'tree + part':>14}{'limit':>12}   MiB"]
    for part in manifest.parts:
        together = transfer_bytes(manifest, part, manifest_bytes)
        lines.append(
            f"{part.file:<{width}}{part.size:>12}{together:>14}{manifest.limit:>12}   "
            f"{parts.mebibytes(together)} of {parts.mebibytes(manifest.limit)}"
            f"{'' if together <= manifest.limit else '   TOO LARGE'}"
        )
    lines += [
        "",
        f"each part travels with {parts.MANIFEST} and {parts.mebibytes(manifest.tree)} MiB of the checkout",
    ]
    return "\n".join(lines)


def transfer_bytes(manifest: Manifest, part: Part, manifest_bytes: int) -> int:
    """What one transfer holds: the checkout, the part, and the manifest."""
    return manifest.tree + part.size + manifest_bytes
