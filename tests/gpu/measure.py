#!/usr/bin/env python3
"""The first minute on a GPU machine: what it is, how fast its disk writes and its driver pins memory, and
which cell to begin with by these.

Needs nothing that is carried. Writes state/measure.json and reports/measure.txt below FURROW_GPU_ROOT and
prints the text; 4 GiB of disk and of memory are taken and given back. Nothing takes more than its limit, all
of it 75 s.
"""

from __future__ import annotations

import json
import os
import pathlib
import platform
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import cells
from machine import Layout, write_json

BYTES = 4 << 30
BLOCK = 64 << 20
DISK_SECONDS = 20.0
PIN_SECONDS = 45.0
# Both versions of the 12B: 26.34 GB, and one shard of 3.06 GB again.
CHECKPOINT_BYTES = 29_400_000_000
# 4 GiB pinned once say less than 92 GB: 7 % more, so that 23 times the 4 GiB stand for append-7's 92.3 GB.
PIN_MARGIN = 1.07
# What is in the runbook's sums for a policy worker to pin its memory.
PIN_MOST = 90.0
# What is in its sums for making the checkpoints: 100 s.
DISK_LEAST = 0.3e9
ORDER = ("append-7", "append-3", "last_image-3")

_PIN = f"""import json, time
import torch
began = time.monotonic()
torch.cuda.init()
init = time.monotonic() - began
began = time.monotonic()
pinned = torch.empty({BYTES}, dtype=torch.uint8, pin_memory=True)
pin = time.monotonic() - began
began = time.monotonic()
pinned.fill_(1)
fill = time.monotonic() - began
began = time.monotonic()
del pinned
torch._C._host_emptyCache() if hasattr(torch._C, "_host_emptyCache") else None
print(json.dumps(dict(context_seconds=init, pin_seconds=pin, fill_seconds=fill,
                      unpin_seconds=time.monotonic() - began, torch=torch.__version__)))"""


def write_rate(folder: pathlib.Path, size: int = BYTES, seconds: float = DISK_SECONDS) -> dict[str, float]:
    """Bytes a second of one writer until they are on the disk; of what was written where `seconds` were
    over first."""
    path = folder / ".measure"
    block = os.urandom(min(size, BLOCK))
    written, unsynced, began = 0, 0, time.monotonic()
    try:
        with open(path, "wb", buffering=0) as file:
            while written < size and time.monotonic() - began < seconds:
                written += file.write(block)
                unsynced += 1
                # Memory takes all of it at once: without this the limit would be looked at too late.
                if unsynced == 8:
                    os.fdatasync(file.fileno())
                    unsynced = 0
            os.fdatasync(file.fileno())
        took = time.monotonic() - began
    finally:
        path.unlink(missing_ok=True)
    return {"bytes": written, "seconds": took, "bytes_a_second": written / took}


def pin_rate() -> dict[str, Any]:
    """Seconds in which PyTorch pins 4 GiB and fills them."""
    done = subprocess.run(
        [sys.executable, "-c", _PIN], capture_output=True, text=True, timeout=PIN_SECONDS, check=False
    )
    if done.returncode:
        raise OSError(f"status {done.returncode}: {done.stderr[-300:].strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def output_of(*command: str) -> str:
    """What a command printed."""
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()


def limits() -> dict[str, int]:
    """Soft and hard limits of descriptors and processes; -1: none."""
    (soft, hard), (few, many) = (
        resource.getrlimit(which) for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
    )
    return {"nofile_soft": soft, "nofile_hard": hard, "nproc_soft": few, "nproc_hard": many}


def free(paths: tuple[str, ...]) -> dict[str, str]:
    """GiB free of GiB in all where each path is."""
    found = {}
    for path in paths:
        usage = shutil.disk_usage(path)
        found[path] = f"{usage.free / (1 << 30):.1f} of {usage.total / (1 << 30):.1f} GiB free"
    return found


def packages() -> dict[str, str]:
    """Versions that this Python would import."""
    import importlib.metadata

    found = {"python": platform.python_version()}
    for name in ("torch", "numpy", "safetensors", "pyarrow", "pillow"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not there"
    return found


def advise(pin_seconds: float | None, disk: float | None) -> dict[str, Any]:
    """Which cell comes first, by seconds that 4 GiB took to pin and bytes a second that the disk took; either
    is None where it could not be measured."""
    expected = {
        name: None
        if pin_seconds is None
        else pin_seconds * PIN_MARGIN * cells.CELLS[name].pinned_bytes / BYTES
        for name in ORDER
    }
    quick = [name for name in ORDER if (expected[name] or 0.0) <= PIN_MOST]
    lines = []
    if pin_seconds is None:
        lines.append("pinning was not measured: begin with append-7, and look at its first minute")
    first = quick[0] if quick else ORDER[-1]
    lines.append(
        f"begin with {first}; expected seconds of pinning: "
        + ", ".join(f"{name} {'?' if value is None else f'{value:.0f}'}" for name, value in expected.items())
    )
    if not quick:
        lines.append(f"even {ORDER[-1]} pins for more than {PIN_MOST:.0f} s: it alone has time")
    seconds = CHECKPOINT_BYTES / disk if disk else None
    if not disk or seconds is None:
        lines.append("the disk was not measured")
    else:
        size = CHECKPOINT_BYTES / 1e9
        lines.append(f"the checkpoints' {size:.1f} GB are written in {seconds:.0f} s or more")
        if disk < DISK_LEAST:
            more = seconds - CHECKPOINT_BYTES / DISK_LEAST
            lines.append(
                f"that is {more:.0f} s more than the runbook has: take them off the second cell's --minutes"
            )
    return {"first": first, "pin_seconds": expected, "checkpoint_seconds": seconds, "lines": lines}


def examine(layout: Layout) -> dict[str, Any]:
    """Everything; what cannot be had says why."""
    found: dict[str, Any] = {"at": time.time()}

    def had(name: str, of: Callable[[], Any]) -> None:
        try:
            found[name] = of()
        except (OSError, ValueError, subprocess.SubprocessError) as why:
            found[name] = {"failed": f"{type(why).__name__}: {why}"[:400]}

    had("kernel", lambda: " ".join(platform.uname()[i] for i in (0, 2, 3, 4)))
    had("cores", lambda: len(os.sched_getaffinity(0)))
    had("limits", limits)
    had("disks", lambda: free(("/", "/var/tmp", "/tmp", "/dev/shm", str(layout.root))))
    had("memory", lambda: output_of("free", "-m"))
    had("cgroup", lambda: pathlib.Path("/sys/fs/cgroup/memory.max").read_text().strip())
    had("gpu", lambda: output_of("nvidia-smi"))
    had("packages", packages)
    had("cuda_libraries", cells.cuda_libraries)
    had("disk", lambda: write_rate(layout.root))
    had("pin", pin_rate)
    found["advice"] = advise(found["pin"].get("pin_seconds"), found["disk"].get("bytes_a_second"))
    return found


def text(found: dict[str, Any]) -> str:
    """For people: a line a fact, the advice last."""
    lines = []
    for name, value in found.items():
        if name in ("at", "advice"):
            continue
        if isinstance(value, dict):
            printed = ", ".join(
                f"{key} {what:.3f}" if isinstance(what, float) else f"{key} {what}"
                for key, what in value.items()
            )
        else:
            printed = f"\n{value}" if isinstance(value, str) and "\n" in value else value
        lines.append(f"{name:<15} {printed}")
    return "\n".join(lines + [f"=> {line}" for line in found["advice"]["lines"]])


def main() -> int:
    """Measures, writes both reports, prints the text."""
    layout = Layout()
    layout.make()
    found = examine(layout)
    write_json(layout.states / "measure.json", found)
    (layout.reports / "measure.txt").write_text(text(found) + "\n")
    print(text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
