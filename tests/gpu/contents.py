"""What travels to a GPU machine: one folder a component, made ready below a stage folder."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable

import parts

# Where Debian's package puts the browser.
PACKAGE = "/usr/lib/chromium"
PROGRAM = "chromium-headless-shell"
# Of the package's folder: what the headless shell opens (seen with strace on a page with text, WebGL and
# WebCrypto), and the resources that `--screenshot` takes its script from. The rest of the folder is the
# windowed browser's.
PACKAGE_FILES = (
    "headless_command_resources.pak",
    "headless_lib_data.pak",
    "headless_lib_strings.pak",
    "icudtl.dat",
    "libEGL.so",
    "libGLESv2.so",
    "libvk_swiftshader.so",
    "libvulkan.so.1",
    "snapshot_blob.bin",
    "v8_context_snapshot.bin",
    "vk_swiftshader_icd.json",
    "locales/en-US.pak",
)

# NSS opens these by name while it runs, from the folder of libnss3 or along the search path.
NSS_MODULES = ("libsoftokn3.so", "libfreebl3.so", "libfreeblpriv3.so", "libnssckbi.so", "libnssdbm3.so")

# glibc's own: they must be those of the machine's dynamic loader.
GLIBC = re.compile(
    r"(ld-linux-x86-64|lib(c|m|mvec|pthread|dl|rt|resolv|util|anl|nsl|thread_db|BrokenLocale|c_malloc_debug"
    r"|nss_\w+))\.so(\.\d+)*"
)

FONT_FOLDER = "/usr/share/fonts/truetype"
_STYLES = ("", "-Bold", "-Oblique", "-BoldOblique")
_SERIF_STYLES = ("", "-Bold", "-Italic", "-BoldItalic")
_LIBERATION_STYLES = ("-Regular", "-Bold", "-Italic", "-BoldItalic")
FONTS = tuple(
    [f"dejavu/{family}{style}.ttf" for family in ("DejaVuSans", "DejaVuSansMono") for style in _STYLES]
    + [f"dejavu/DejaVuSerif{style}.ttf" for style in _SERIF_STYLES]
    + [
        f"liberation/Liberation{family}{style}.ttf"
        for family in ("Sans", "SansNarrow", "Serif", "Mono")
        for style in _LIBERATION_STYLES
    ]
)
# Packages whose terms travel with the browser.
TERMS = ("chromium-common", "chromium-headless-shell", "fonts-dejavu-core", "fonts-liberation")

# Of pyarrow's wheel: headers, tests, second copies, and services that no check asks for.
WHEEL_LEFT_OUT = (
    "pyarrow/include/*",
    "pyarrow/tests/*",
    "pyarrow/src/*",
    "pyarrow/includes/*",
    "pyarrow/*flight*",
    "pyarrow/*s3*",
    "pyarrow/libarrow_python*.so",
    "pyarrow/libarrow_python*.so.*.*.*",
)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64")

# Text, script, WebGL, WebCrypto and a video element: what makes a browser open libraries that it is not
# linked with.
_TRIAL_PAGE = """<!doctype html><meta charset="utf-8"><title>trial</title>
<body style="font-family: sans-serif">
<b>Text</b> <i>text</i> <input value="typed"> <button>press</button> Ünïcödé → ★ Ж <canvas id="c"></canvas>
<p style="font: 13px Arial">Arial <b>bold</b></p><p style="font: 13px Georgia">Georgia</p>
<p style="font: 13px Courier New">Courier New</p><p style="font: 7px DejaVu Sans">small</p>
<p style="font: italic 15px serif">serif</p><p style="font: 15px monospace">monospace</p>
<video src="data:video/mp4;base64,AAAA"></video><script>document.getElementById("c").getContext("webgl");
crypto.subtle.digest("SHA-256", new Uint8Array(8)); new Audio();
fetch("https://127.0.0.1:9/").catch(() => {});</script>"""
_TRIAL_SECONDS = 60


class ContentsError(Exception):
    """Something that must travel is not there; the message says how to get it."""


def stage_program(stage: str, program: str) -> None:
    """`bin/furrow`, without its symbols."""
    os.makedirs(stage)
    _need(program, "build it with cargo build --release --package furrow")
    _run("strip", "-o", os.path.join(stage, "furrow"), program)


def stage_tests(stage: str, binaries: list[str], oracle: str) -> None:
    """The test binaries and the benchmark, without their symbols, and the checkpoints that the backend's
    tests read, at the path that they know.
    """
    os.makedirs(stage)
    for binary in binaries:
        _need(binary, "build it with tests/gpu.sh build")
        _run("strip", "-o", os.path.join(stage, os.path.basename(binary)), binary)
    _need(oracle, "it is part of the repository")
    shutil.copytree(oracle, os.path.join(stage, "crates/model/tests/oracle"))


def stage_envs(stage: str, envs: str) -> None:
    """The suites of tasks, and the pages that they happen on."""
    _need(envs, "it is part of the repository")
    shutil.copytree(envs, stage, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))


def stage_site(stage: str, requirements: str, wheels: str) -> None:
    """The contents of the pinned wheels. `wheels` keeps those that were downloaded: with all of them there,
    no registry is asked.
    """
    os.makedirs(wheels, exist_ok=True)
    wanted = _pins(requirements)
    if not wanted <= _hashes(wheels).keys():
        platforms = [argument for platform in PLATFORMS for argument in ("--platform", platform)]
        _run(
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--require-hashes",
            "--no-deps",
            "--only-binary=:all:",
            "--python-version",
            "3.12",
            "--implementation",
            "cp",
            "--abi",
            "cp312",
            *platforms,
            "--dest",
            wheels,
            "--requirement",
            requirements,
        )
    found = _hashes(wheels)
    os.makedirs(stage)
    for sha256 in sorted(wanted):
        if sha256 not in found:
            raise ContentsError(f"{wheels}: no wheel has the SHA-256 {sha256} of {requirements}")
        with zipfile.ZipFile(found[sha256]) as wheel:
            for name in wheel.namelist():
                if name.split("/")[0].endswith(".data"):
                    raise ContentsError(
                        f"{found[sha256]}: {name} belongs elsewhere than into site-packages; carry "
                        "another wheel"
                    )
                if not any(fnmatch.fnmatchcase(name, pattern) for pattern in WHEEL_LEFT_OUT):
                    wheel.extract(name, stage)
    # What was left out is nothing that the rest is linked with.
    for path in glob.glob(os.path.join(stage, "**", "*.so*"), recursive=True):
        linked(path)


def _pins(requirements: str) -> set[str]:
    with open(requirements, encoding="utf-8") as file:
        text = file.read()
    pins = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))
    if not pins:
        raise ContentsError(f"{requirements}: no wheel is pinned by --hash=sha256:")
    return pins


def _hashes(folder: str) -> dict[str, str]:
    return {parts.sha256_of(path): path for path in glob.glob(os.path.join(folder, "*.whl"))}


def stage_browser(stage: str, fonts_conf: str, say: Callable[[str], None] = print) -> None:
    """The headless shell as `chrome-headless-shell`, what it opens of its package, its libraries in `lib`,
    `fonts` and their fontconfig file.
    """
    os.makedirs(os.path.join(stage, "locales"))
    for name in (PROGRAM, *PACKAGE_FILES):
        source = os.path.join(PACKAGE, name)
        _need(source, "apt-get install chromium-headless-shell")
        target = os.path.join(stage, "chrome-headless-shell" if name == PROGRAM else name)
        shutil.copyfile(source, target)
        os.chmod(target, 0o755 if name == PROGRAM else 0o644)
    os.makedirs(os.path.join(stage, "fonts"))
    for name in FONTS:
        source = os.path.join(FONT_FOLDER, name)
        _need(source, "apt-get install fonts-dejavu-core fonts-dejavu-extra fonts-liberation")
        shutil.copyfile(source, os.path.join(stage, "fonts", os.path.basename(name)))
    shutil.copyfile(fonts_conf, os.path.join(stage, os.path.basename(fonts_conf)))
    os.makedirs(os.path.join(stage, "terms"))
    for package in TERMS:
        source = f"/usr/share/doc/{package}/copyright"
        if os.path.exists(source):
            shutil.copyfile(source, os.path.join(stage, "terms", package))
    _stage_libraries(stage, say)


def _stage_libraries(stage: str, say: Callable[[str], None]) -> None:
    folder = os.path.join(stage, "lib")
    os.makedirs(folder)
    program = os.path.join(PACKAGE, PROGRAM)
    libraries = linked(program)
    # Its own folder's libraries are linked with some of the same.
    for name in PACKAGE_FILES:
        if ".so" in name:
            libraries |= linked(os.path.join(PACKAGE, name))
    beside = os.path.dirname(os.path.realpath(_need_key(libraries, "libnss3.so")))
    for name in NSS_MODULES:
        path = _first(os.path.join(beside, name), os.path.join(beside, "nss", name))
        libraries |= {name: path} | linked(path)
    while True:
        for name, path in libraries.items():
            target = os.path.join(folder, name)
            if not os.path.exists(target):
                shutil.copyfile(path, target)
                os.chmod(target, 0o644)
        opened = {name: path for name, path in _opened(stage, say).items() if name not in libraries}
        if not opened:
            return
        say(f"opened while it runs: {', '.join(sorted(opened))}")
        for path in opened.values():
            libraries |= linked(path)
        libraries |= opened


def linked(path: str) -> dict[str, str]:
    """Shared libraries that a file is linked with, theirs too, except glibc's: name to path. Raises
    `ContentsError` if one is not found.
    """
    listing = _run("ldd", path, with_output=True)
    libraries = {}
    for line in listing.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if not arrow:
            continue
        found = rest.split(" (")[0].strip()
        if found == "not found":
            raise ContentsError(
                f"{path} needs {name}, which this machine lacks; install the package that holds it"
            )
        if found.startswith("/") and not is_glibc(name):
            libraries[os.path.basename(name)] = found
    return libraries


def is_glibc(name: str) -> bool:
    """Whether a library is glibc's own."""
    return GLIBC.fullmatch(os.path.basename(name)) is not None


def _opened(stage: str, say: Callable[[str], None]) -> dict[str, str]:
    """Libraries from outside the stage that its browser opens on the trial page, glibc's left out, as the
    dynamic loader says: name to path. Says so if it draws that page otherwise than the installed browser.
    """
    with tempfile.TemporaryDirectory(prefix="furrow-trial-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o777)
        copy = os.path.join(folder, "browser")
        shutil.copytree(stage, copy, ignore=shutil.ignore_patterns("terms"))
        with open(os.path.join(copy, "fonts.conf.in"), encoding="utf-8") as file:
            text = file.read().replace("@ROOT@", folder)
        for path, content in (
            (os.path.join(copy, "fonts.conf"), text),
            (os.path.join(folder, "page.html"), _TRIAL_PAGE),
        ):
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
            os.chmod(path, 0o644)
        for at, _, _ in os.walk(copy):
            os.chmod(at, 0o755)
        here = (
            f"FONTCONFIG_FILE={copy}/fonts.conf",
            f"LD_LIBRARY_PATH={copy}/lib",
            "LD_DEBUG=files",
            f"LD_DEBUG_OUTPUT={folder}/loader",
        )
        collected = _drawn(os.path.join(copy, "chrome-headless-shell"), folder, *here)
        if collected != _drawn(os.path.join(PACKAGE, PROGRAM), folder):
            say("the collected browser draws text otherwise than the installed one: tests/gpu/fonts.conf.in")
        opened: dict[str, str] = {}
        for path in glob.glob(os.path.join(folder, "loader.*")):
            with open(path, encoding="utf-8", errors="replace") as file:
                found = re.findall(r"calling init: (/\S+)", file.read())
                opened |= {os.path.basename(name): name for name in found}
        if not any(name.startswith(copy) for name in opened.values()):
            raise ContentsError("the dynamic loader said nothing of the collected browser's libraries")
        system = ("/lib", "/usr/lib", "/usr/local/lib")
        return {name: path for name, path in opened.items() if path.startswith(system) and not is_glibc(name)}


def _drawn(program: str, folder: str, *environment: str) -> bytes:
    """The trial page in `folder` as a PNG file, drawn by an ordinary user's browser; `NAME=VALUE` are for it
    alone, not for `setpriv`, whose own libraries are the machine's.
    """
    out = os.path.join(folder, "page.png")
    profile = os.path.join(folder, "profile")
    command = [
        *("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--") * (os.geteuid() == 0),
        *("env", *environment, program, "--headless", f"--user-data-dir={profile}", f"--screenshot={out}"),
        *("--font-render-hinting=none", "--disable-lcd-text", "--timeout=3000", f"file://{folder}/page.html"),
    ]
    stderr = ""
    for sandbox in ([], ["--no-sandbox"]):
        ended = subprocess.run(
            command + sandbox,
            env={"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=_TRIAL_SECONDS,
            check=False,
        )
        shutil.rmtree(profile, ignore_errors=True)
        if os.path.exists(out):
            with open(out, "rb") as file:
                data = file.read()
            os.unlink(out)
            return data
        stderr = ended.stderr[-2000:]
    raise ContentsError(f"{program} took no screenshot: {stderr}")


def _first(*paths: str) -> str:
    for path in paths:
        if os.path.exists(path):
            return path
    raise ContentsError(f"none of {', '.join(paths)} is there: apt-get install libnss3")


def _need_key(libraries: dict[str, str], name: str) -> str:
    if name not in libraries:
        raise ContentsError(
            f"{PROGRAM} is not linked with {name}: it is another browser than this was made for"
        )
    return libraries[name]


def _need(path: str, how: str) -> None:
    if not os.path.exists(path):
        raise ContentsError(f"{path} is not there: {how}")


def _run(*command: str, with_output: bool = False) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise ContentsError(
            f"{' '.join(command)} ended with status {ended.returncode}: {ended.stderr.strip()[-2000:]}"
        )
    return ended.stdout if with_output else ""
