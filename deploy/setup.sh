# What the quickstart and the tests stand on: a toolchain, a browser with fonts, the MiniWoB++ wheel; for the tests NVIDIA's compiler. Sourced, never run.
# What is downloaded rests in .cache, so that a second run needs no network. The caller stands in the repository's root.

MINIWOB_WHEEL=.cache/miniwob-1.1.0-py3-none-any.whl
NVRTC_FOLDER=.cache/nvrtc/nvidia/cu13/lib

say() { printf '\033[1m%s\033[0m\n' "$*"; }

need_cargo() {
  if cargo --version >/dev/null 2>&1; then return; fi
  cat >&2 <<'MSG'
Furrow is built with Rust 1.95 or newer, and there is no usable cargo here. Install it with

    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh

open a new shell and run this script again.
MSG
  exit 2
}

# Where cargo puts what it builds.
target_folder() {
  cargo metadata --format-version 1 --no-deps | python3 -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])'
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# install_debian PACKAGE...: installs what is missing; one call, so that a machine that has everything is asked nothing.
install_debian() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  if [ "${#missing[@]}" = 0 ]; then return; fi
  say "installing ${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Whether there is a browser that furrow would find: $FURROW_BROWSER, or one of LOOKED_FOR in crates/env/src/chromium/process.rs.
find_browser() {
  if [ -n "${FURROW_BROWSER:-}" ]; then
    [ -x "$FURROW_BROWSER" ]
    return
  fi
  local program
  for program in /usr/lib/chromium/chromium-headless-shell /usr/lib/chromium-browser/headless_shell \
    /usr/lib/chromium/headless_shell /opt/chromium/chrome-headless-shell; do
    if [ -x "$program" ]; then return; fi
  done
  return 1
}

# A browser: $FURROW_BROWSER if it is set, else Debian's headless shell; on other systems one that is there.
need_browser() {
  if [ -n "${FURROW_BROWSER:-}" ]; then
    if [ -x "$FURROW_BROWSER" ]; then return; fi
    echo "FURROW_BROWSER is $FURROW_BROWSER, which is no program. Point it at a chromium headless shell." >&2
    exit 2
  fi
  if command -v apt-get >/dev/null 2>&1; then
    # util-linux has setpriv, with which a browser is started as an ordinary user that dies with its worker.
    local packages=(chromium-headless-shell fonts-liberation fonts-dejavu-core util-linux)
    # A furrow that is built already needs no compiler.
    [ -n "${FURROW:-}" ] || packages+=(gcc libc6-dev)
    [ -z "${FURROW_FONTS:-}" ] || packages+=(fonts-noto-color-emoji fonts-droid-fallback)
    install_debian "${packages[@]}"
    return
  fi
  if find_browser; then return; fi
  cat >&2 <<'MSG'
This system is not Debian, so nothing is installed for you. Furrow needs
  - chromium-headless-shell (a Chromium build of 2026; the real program, not a wrapper script), the Liberation and DejaVu fonts,
  - setpriv (util-linux) and a C compiler for SQLite and zstd.
Install them and say where the browser is:

    FURROW_BROWSER=/path/to/chromium-headless-shell ./deploy/quickstart.sh

(the same as `--set env.browser=…` or the key env.browser in a job file). CONTRIBUTING.md lists what the tests need besides.
MSG
  exit 2
}

# The MiniWoB++ wheel, pinned by hash. Returns 1 where pip cannot get it: the starter tasks do without.
need_miniwob() {
  if [ -f "$MINIWOB_WHEEL" ]; then return; fi
  mkdir -p .cache
  python3 -m pip download --quiet --no-deps --only-binary=:all: --require-hashes -r deploy/miniwob.txt -d .cache 2>/dev/null &&
    [ -f "$MINIWOB_WHEEL" ]
}

# NVIDIA's run-time compiler, pinned by hash, to compile the kernels without a GPU. Returns 1 where pip cannot get it.
need_nvrtc() {
  if [ -f "$NVRTC_FOLDER/libnvrtc.so.13" ]; then return; fi
  say "installing NVIDIA's run-time compiler"
  python3 -m pip install --quiet --no-deps --only-binary=:all: --require-hashes -r deploy/nvrtc.txt --target .cache/nvrtc &&
    [ -f "$NVRTC_FOLDER/libnvrtc.so.13" ]
}

# Overrides every job of these scripts gets.
setup_overrides() {
  if [ -n "${FURROW_BROWSER:-}" ]; then printf -- '--set\nenv.browser=%s\n' "$FURROW_BROWSER"; fi
}
