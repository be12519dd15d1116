"""A copy of the scripts below the root, from which a supervisor runs: each command on the GPU machine writes
the checkout anew."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import tempfile

# What a supervisor and the programs that it starts import.
PARTS = ("tests/gpu", "trainer/src")


def make(tree: pathlib.Path, root: pathlib.Path) -> pathlib.Path:
    """The folder of the copy, whole; the same files are copied once.

    Raises OSError."""
    names = sorted(
        path.relative_to(tree)
        for part in PARTS
        for path in (tree / part).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    digest = hashlib.sha256()
    for name in names:
        content = (tree / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    folder = root / "scripts" / digest.hexdigest()[:16]
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = pathlib.Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    for name in names:
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tree / name, partial / name)
    partial.chmod(0o755)
    try:
        os.rename(partial, folder)
    except OSError:
        # Another start made the same one.
        shutil.rmtree(partial, ignore_errors=True)
        if not folder.is_dir():
            raise
    return folder
