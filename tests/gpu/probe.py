#!/usr/bin/env python3
"""Says within 20 s whether a farm can run on this machine, from what was unpacked below FURROW_GPU_ROOT.

Writes state/probe.json (`ok`, `sandbox`, `checks`: name, ok, needed, value, seconds, said) and
reports/probe.txt below the root, and prints the text. Exit status 0 if everything that a run needs is there,
else 1. Nothing is waited for without a limit.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import pwd
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import picture

# All checks together. A check that would begin later is left out, which is a failure if it is a needed one.
BUDGET_SECONDS = 20.0
USER = os.environ.get("FURROW_BROWSER_USER", "nobody")

# What 100 sessions need: descriptors of the environment worker (4 a session and 60 a browser), processes and
# threads of the browsers (16 a session).
DESCRIPTORS_MIN = 4_096
PROCESSES_MIN = 4_096
SHM_MIN = 512 << 20
# Two versions of the 12B are 29.4 GB; runs, kernels and browsers' profiles take 6 to 9 GB.
DISK_MIN = 40 << 30
DISK_MIN_MADE = 10 << 30
DISK_MIN_DRY = 4 << 30

WIDTH, HEIGHT = 480, 320
# The script draws its bar in green if an M is wider than an i: a browser without fonts, or without scripts,
# does not.
PAGE = """<!doctype html><title>probe</title>
<body style="margin: 0; background: #fff; color: #000; font: 32px sans-serif">
<p style="margin: 20px">Furrow <b>probe</b> <i>text</i> 0123456789</p>
<p style="margin: 20px; font-family: monospace; color: #00f">monospace</p>
<p style="margin: 20px"><span id="narrow">iiiiiiii</span> <span id="wide">MMMMMMMM</span></p>
<div id="bar" style="position: absolute; left: 0; top: 280px; width: 480px; height: 40px; background: #f00">
</div>
<script>const width = name => document.getElementById(name).getBoundingClientRect().width;
if (width("wide") > 2 * width("narrow") && width("narrow") > 8)
  document.getElementById("bar").style.background = "#0f0";</script>"""


class Failed(Exception):
    """A check failed; the message says what was found."""


class TooSlow(Failed):
    """It did not end in its time, which says nothing of what it would have found."""


class Probe:
    """The checks done so far, and the time that is left for more."""

    def __init__(self, root: str, dry: bool = False):
        self.root = root
        self.dry = dry
        self.checks: list[dict[str, Any]] = []
        self.began = time.monotonic()

    def left(self, most: float) -> float:
        """Seconds that something may take: `most`, or what is left."""
        return max(0.1, min(most, BUDGET_SECONDS - (time.monotonic() - self.began)))

    def check(self, name: str, needed: bool, look: Callable[[], object]) -> object:
        """Does one check; `look` returns its value or raises `Failed`. Returns the value, None where it
        failed.
        """
        began, value, ok, message = time.monotonic(), None, False, ""
        is_slow = False
        if began - self.began > BUDGET_SECONDS:
            message = f"left out: {BUDGET_SECONDS:.0f} s are over"
        else:
            try:
                value, ok = look(), True
            except Failed as error:
                message, is_slow = str(error), isinstance(error, TooSlow)
            except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
                message = f"{type(error).__name__}: {error}"
        seconds = round(time.monotonic() - began, 2)
        self.checks.append(
            {"name": name, "ok": ok, "needed": needed, "value": value, "seconds": seconds, "said": message}
            | ({"slow": True} if is_slow else {})
        )
        return value

    def run(
        self, *command: str, most: float = 5.0, environment: dict[str, str] | None = None
    ) -> tuple[int, str]:
        """Runs a command in a session of its own, and ends all of it at its limit: exit status (124: it was
        ended) and its output.
        """
        with tempfile.TemporaryFile() as output:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
                cwd="/",
            )
            try:
                status = child.wait(self.left(most))
            except subprocess.TimeoutExpired:
                status = 124
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            output.seek(0)
            return status, output.read().decode(errors="replace").strip()

    def as_user(self) -> list[str]:
        """What a command begins with that runs as the browser's user."""
        if os.geteuid() != 0:
            return []
        entry = pwd.getpwnam(USER)
        return [
            "setpriv",
            "--pdeathsig=KILL",
            f"--reuid={entry.pw_uid}",
            f"--regid={entry.pw_gid}",
            "--clear-groups",
            "--",
        ]

    def browser(self, *names: str) -> str:
        """A path below the browser's folder."""
        return os.path.join(self.root, "browser", *names)


def components(probe: Probe) -> list[str]:
    """Names of what was unpacked. `site` is asked for by `imports`, where the machine lacks what is in it."""
    found = [
        name
        for name in ("bin", "envs", "browser", "site", "gpu")
        if os.path.isfile(os.path.join(probe.root, name, ".furrow-archive"))
    ]
    lacking = [name for name in ("bin", "envs", "browser") if name not in found]
    if lacking:
        raise Failed(
            f"{', '.join(lacking)} not unpacked below {probe.root}; run tests/gpu.sh unpack with every part"
        )
    return found


def program(probe: Probe) -> str:
    """The version that the released program prints."""
    status, output = probe.run(os.path.join(probe.root, "bin", "furrow"), "--version")
    if status:
        raise Failed(f"furrow --version ended with {status}: {output}")
    return output


def libraries(probe: Probe) -> dict[str, int]:
    """How many libraries of the browser come from where; none may be missing, nor be too old for another."""
    status, output = probe.run(
        "ldd",
        probe.browser("chrome-headless-shell"),
        environment=os.environ | {"LD_LIBRARY_PATH": probe.browser("lib")},
    )
    wrong = [line.strip() for line in output.splitlines() if "not found" in line]
    if status or wrong:
        raise Failed("; ".join(wrong) or f"ldd ended with {status}: {output[:500]}")
    found = re.findall(r"=> (/\S+)", output)
    carried = sum(path.startswith(probe.browser("lib")) for path in found)
    return {"carried": carried, "of the machine": len(found) - carried}


def user(probe: Probe) -> str:
    """The browser's user, who can be changed to and can read what was unpacked."""
    if os.geteuid() != 0:
        return f"already an ordinary user ({os.geteuid()})"
    if shutil.which("setpriv") is None:
        raise Failed("there is no setpriv (util-linux): browsers cannot be started as another user")
    try:
        command = probe.as_user()
    except KeyError:
        raise Failed(
            f"there is no user {USER!r}; name one with FURROW_BROWSER_USER and env.browser_user"
        ) from None
    read = (
        'test -x "$0/chrome-headless-shell" && test -r "$0/fonts.conf" && test -r "$0/lib/libnss3.so" '
        '&& test -w "$1" && test -w /tmp && id -u'
    )
    status, output = probe.run(
        *command, "/bin/sh", "-c", read, probe.browser(), os.path.join(probe.root, "cache", "fontconfig")
    )
    if status or output == "0":
        raise Failed(
            f"as {USER}: status {status}, "
            f"{output or 'a file of the browser cannot be read, or the cache or /tmp not written'}"
        )
    return f"{USER} ({output})"


def namespaces(probe: Probe) -> str:
    """Whether the user may make the namespaces that Chromium's sandbox is made of."""
    status, output = probe.run(
        *probe.as_user(), "unshare", "--user", "--map-root-user", "--pid", "--net", "--fork", "true"
    )
    if status:
        raise Failed(f"unshare ended with {status}: {output}")
    return "user, pid, net"


def shared_memory(probe: Probe) -> str:
    """Size of /dev/shm, which the user can write; Furrow uses files where it is below 512 MiB."""
    status, output = probe.run(
        *probe.as_user(), "/bin/sh", "-c", 'f=/dev/shm/furrow-probe-$$; echo x >"$f" && rm "$f"'
    )
    if status:
        raise Failed(f"/dev/shm cannot be written: {output}")
    size = _free("/dev/shm")
    if size < SHM_MIN:
        raise Failed(f"{_mebibytes(size)} MiB free: browsers use files instead, which is slower")
    return f"{_mebibytes(size)} MiB free"


def descriptors() -> dict[str, int]:
    """Files that a process may have open; `farm start` raises the soft limit towards the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _at_least(_unlimited(hard), DESCRIPTORS_MIN, f"descriptors (soft {soft}): raise it with ulimit -Hn")
    return {"soft": soft, "hard": hard}


def processes() -> int:
    """Processes and threads that there may be."""
    limits = [_unlimited(resource.getrlimit(resource.RLIMIT_NPROC)[1])]
    for path in (
        "/proc/sys/kernel/pid_max",
        "/proc/sys/kernel/threads-max",
        "/sys/fs/cgroup/pids.max",
        "/sys/fs/cgroup/pids/pids.max",
    ):
        text = _read(path)
        if text.isdigit():
            limits.append(int(text))
    return _at_least(min(limits), PROCESSES_MIN, "processes")


def cores() -> float:
    """Cores that this process may use."""
    count: float = len(os.sched_getaffinity(0))
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        count = min(count, int(quota[0]) / int(quota[1]))
    return count


def memory() -> dict[str, str]:
    """MiB of memory, all and available, and the container's limit if there is one."""
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE))
    found = {
        "all": f"{int(fields['MemTotal']) >> 10} MiB",
        "available": f"{int(fields.get('MemAvailable', 0)) >> 10} MiB",
    }
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(path)
        if text.isdigit() and int(text) < 1 << 50:
            found["limit"] = f"{_mebibytes(int(text))} MiB"
    return found


def disk(probe: Probe) -> dict[str, str]:
    """MiB free where the root, temporary files and shared memory are."""
    found = {path: _free(path) for path in (probe.root, "/tmp", "/dev/shm")}
    made = os.path.isfile(os.path.join(probe.root, "checkpoints", "first.json"))
    least = DISK_MIN_DRY if probe.dry else DISK_MIN_MADE if made else DISK_MIN
    _at_least(found[probe.root], least, f"bytes free below {probe.root}")
    return {path: f"{_mebibytes(size)} MiB" for path, size in found.items()}


def kernel() -> str:
    """The kernel, and whether it is gVisor's: that one takes longer for every system call."""
    version = _read("/proc/version")
    gvisor = "gVisor" in version or platform.release() == "4.4.0"
    libc = " ".join(platform.libc_ver())
    return f"{platform.release()}{' (gVisor)' if gvisor else ''}, {libc}"


def python() -> dict[str, str]:
    """Versions of Python and of the packages that the checks need, without importing them."""
    site = [os.path.join(os.environ.get("FURROW_GPU_ROOT", "/var/tmp/furrow-gpu"), "site")]
    found = {"python": platform.python_version(), "program": sys.executable}
    lacking = []
    for name in ("torch", "numpy", "safetensors", "pyarrow", "pillow"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            carried = [there.version for there in importlib.metadata.distributions(name=name, path=site)]
            if carried:
                found[name] = f"{carried[0]} (carried)"
            else:
                lacking.append(name)
    if sys.version_info[:2] != (3, 12):
        lacking.append("Python 3.12, for which the wheels were carried")
    if lacking:
        raise Failed(f"{found}; lacking: {', '.join(lacking)}")
    return found


def imports(probe: Probe) -> str:
    """Whether this Python loads what the checks need: its own packages, else the carried ones."""
    code = "import pyarrow.parquet, pyarrow.dataset, PIL.Image; print(pyarrow.__version__, PIL.__version__)"
    status, own = probe.run(sys.executable, "-c", code)
    if not status:
        return f"the machine's own pyarrow and pillow {own}"
    status, output = probe.run(
        sys.executable, "-c", code, environment=os.environ | {"PYTHONPATH": os.path.join(probe.root, "site")}
    )
    if status:
        raise Failed(f"own: {own[-200:]}; carried: status {status}: {output[-300:]}")
    return f"carried pyarrow and pillow {output}"


def doctor(probe: Probe, sandbox: bool) -> str:
    """What `furrow doctor` says of this machine with the carried browser."""
    status, output = probe.run(
        os.path.join(probe.root, "bin", "furrow"),
        "doctor",
        "--json",
        *("--browser", probe.browser("chrome-headless-shell")),
        *("--browser-libraries", probe.browser("lib")),
        *("--browser-fonts", probe.browser("fonts.conf")),
        *([] if sandbox else ["--no-sandbox"]),
        most=8,
    )
    try:
        # Warnings may stand before it.
        rows = json.loads(output[output.index("[\n") :])
    except ValueError:
        raise Failed(f"furrow doctor ended with {status}: {output[-400:]}") from None
    unfit = [f"{row['what']}: {row['found']}" for row in rows if not row["fit"]]
    if unfit:
        raise Failed("; ".join(unfit))
    return "; ".join(f"{row['what']}: {row['found']}" for row in rows)


def gpu(probe: Probe) -> str:
    """Name, driver, memory as nvidia-smi says."""
    if shutil.which("nvidia-smi") is None:
        raise Failed("there is no nvidia-smi")
    status, output = probe.run(
        "nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader", most=6
    )
    if status:
        raise Failed(f"nvidia-smi ended with {status}: {output[:500]}")
    return output


def screenshot(probe: Probe, sandbox: bool, kept: str) -> dict[str, object]:
    """Colours of a page's picture that the browser took as its user. A failure with a picture keeps it at
    `kept`.
    """
    with tempfile.TemporaryDirectory(prefix="furrow-probe-") as folder:
        page, out, profile = (os.path.join(folder, name) for name in ("page.html", "page.png", "profile"))
        with open(page, "w", encoding="utf-8") as file:
            file.write(PAGE)
        os.chmod(page, 0o644)
        os.mkdir(profile)
        os.chmod(folder, 0o755)
        if os.geteuid() == 0:
            entry = pwd.getpwnam(USER)
            os.chown(folder, entry.pw_uid, entry.pw_gid)
            os.chown(profile, entry.pw_uid, entry.pw_gid)
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": profile,
            "TMPDIR": profile,
            "LANG": "en_US.UTF-8",
            "LD_LIBRARY_PATH": probe.browser("lib"),
            "FONTCONFIG_FILE": probe.browser("fonts.conf"),
        }
        flags = [
            "--headless",
            f"--user-data-dir={profile}",
            f"--window-size={WIDTH},{HEIGHT}",
            "--no-first-run",
            "--disable-breakpad",
            "--disable-background-networking",
            "--font-render-hinting=none",
            "--disable-lcd-text",
            "--force-color-profile=srgb",
            "--disable-dev-shm-usage",
            "--timeout=3000",
            f"--screenshot={out}",
        ]
        if not sandbox:
            flags.append("--no-sandbox")
        began = time.monotonic()
        status, output = probe.run(
            *probe.as_user(),
            probe.browser("chrome-headless-shell"),
            *flags,
            f"file://{page}",
            most=8,
            environment=environment,
        )
        seconds = round(time.monotonic() - began, 2)
        if not os.path.exists(out) and status == 124:
            raise TooSlow(f"no picture within {seconds} s: is something else at work? {output[-300:]}")
        if not os.path.exists(out):
            raise Failed(f"no picture after {seconds} s, status {status}: {output[-600:]}")
        shutil.copyfile(out, kept)
    with open(kept, "rb") as file:
        width, height, rows = picture.decode(file.read())
    if (width, height) != (WIDTH, HEIGHT):
        raise Failed(f"the picture is {width}x{height}, asked for {WIDTH}x{HEIGHT}; it is kept as {kept}")
    colours = picture.colours(rows)
    green, dark = (
        colours.get((0, 255, 0), 0),
        sum(count for (r, g, b), count in colours.items() if r + g + b < 150),
    )
    if len(colours) < 16 or not green or dark < 500:
        raise Failed(
            f"{len(colours)} colours, {green} pixels of the script's bar, {dark} of text: the page was "
            f"not drawn; kept as {kept}"
        )
    return {"colours": len(colours), "browser seconds": seconds, "sandbox": sandbox}


def _at_least(value: int, least: int, what: str) -> int:
    if value < least:
        raise Failed(f"{value} {what}; {least} are needed")
    return value


def _unlimited(limit: int) -> int:
    return 1 << 31 if limit == resource.RLIM_INFINITY else limit


def _free(path: str) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def _mebibytes(count: int) -> int:
    return count >> 20


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def examine(root: str, dry: bool = False) -> dict[str, Any]:
    """All checks. `sandbox`: whether the browser draws pages with its sandbox; None where it is not known."""
    probe = Probe(root, dry)
    for name in ("state", "reports"):
        os.makedirs(os.path.join(root, name), exist_ok=True)
        os.chmod(os.path.join(root, name), 0o755)
    kept = os.path.join(root, "reports", "probe.png")
    probe.check("kernel", False, kernel)
    probe.check("components", True, lambda: components(probe))
    probe.check("program", True, lambda: program(probe))
    probe.check("libraries", True, lambda: libraries(probe))
    probe.check("user", True, lambda: user(probe))
    has_namespaces = bool(probe.check("namespaces", False, lambda: namespaces(probe)))
    sandbox = None
    if probe.check("screenshot", False, lambda: screenshot(probe, True, kept)):
        sandbox = True
    else:
        is_slow = bool(probe.checks[-1].get("slow"))
        if probe.check("screenshot without sandbox", True, lambda: screenshot(probe, False, kept)):
            sandbox = without_sandbox(is_slow, has_namespaces)
    probe.check("gpu", False, lambda: gpu(probe))
    probe.check("/dev/shm", False, lambda: shared_memory(probe))
    probe.check("descriptors", True, descriptors)
    probe.check("processes", True, processes)
    probe.check("cores", False, cores)
    probe.check("memory", False, memory)
    probe.check("disk", True, lambda: disk(probe))
    probe.check("python", False, python)
    probe.check("imports", True, lambda: imports(probe))
    probe.check("doctor", False, lambda: doctor(probe, sandbox is not False))
    return {
        "ok": all(check["ok"] for check in probe.checks if check["needed"]),
        "sandbox": sandbox,
        "browser_user": USER,
        "seconds": round(time.monotonic() - probe.began, 1),
        "checks": probe.checks,
    }


def without_sandbox(is_slow: bool, has_namespaces: bool) -> bool | None:
    """`sandbox` where the page was drawn without it and not with it: a browser that was merely slow, on a
    machine that allows namespaces, is no reason to go without."""
    return None if is_slow and has_namespaces else False


def text(report: dict[str, Any]) -> str:
    """The report, a line a check."""
    lines = []
    for check in report["checks"]:
        mark = "ok  " if check["ok"] else "FAIL" if check["needed"] else "warn"
        value = check["value"]
        if isinstance(value, dict):
            value = ", ".join(f"{name} {what}" for name, what in value.items())
        elif isinstance(value, list):
            value = ", ".join(value)
        lines.append(
            f"{mark} {check['name']:<27}{check['seconds']:>6.2f} s  {value if check['ok'] else check['said']}"
        )
    if report["sandbox"] is False:
        lines.append("the browser's sandbox does not work here: jobs get env.sandbox = false")
    lines.append(
        f"{'a farm can run here' if report['ok'] else 'NO farm can run here'} ({report['seconds']} s)"
    )
    return "\n".join(lines)


def main() -> int:
    """Examines, writes both reports, prints the text."""
    root = os.environ.get("FURROW_GPU_ROOT") or "/var/tmp/furrow-gpu"
    report = examine(root, "--dry" in sys.argv[1:])
    summary = text(report)
    for path, content in (
        (os.path.join(root, "state", "probe.json"), json.dumps(report, indent=1)),
        (os.path.join(root, "reports", "probe.txt"), summary),
    ):
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(content + "\n")
        os.replace(path + ".new", path)
    print(summary)
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
