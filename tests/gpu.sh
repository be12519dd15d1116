#!/usr/bin/env bash
# What needs a GPU. Offline there: the driver, Python, and NVIDIA's libnvrtc and libcublasLt are enough.
#
#   tests/gpu.sh build    with a Rust toolchain, anywhere: one stripped test binary, .cache/gpu/backend
#   tests/gpu.sh parity   on the machine with the GPU: the backend's tests on it, report in .cache/gpu/parity.txt
#   tests/gpu.sh bench    there, too: the published model with weights of noise, each figure beside its floor, in .cache/gpu/bench.txt
#
# The libraries are looked for in FURROW_CUDA_LIBRARIES (folders, colon between), in Python's site-packages/nvidia, and where the system keeps them.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=.cache/gpu
binary=$folder/backend

say() { printf '\033[1m%s\033[0m\n' "$*"; }

build() {
  mkdir -p "$folder"
  local built
  built=$(cargo test --package furrow-cuda --test backend --no-run --message-format=json |
    python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == "backend":
        print(message["executable"])' | tail -n 1)
  strip -o "$binary" "$built"
  local size
  size=$(stat -c %s "$binary")
  [ "$size" -le $((20 << 20)) ] || { echo "$binary has $size bytes, more than 20 MiB" >&2; exit 1; }
  say "$binary: $size bytes"
}

# Folders of Python's packages that hold the libraries.
libraries() {
  python3 - <<'PY'
import glob, os, site, sysconfig
roots = {sysconfig.get_paths()["purelib"], *site.getsitepackages(), site.getusersitepackages()}
folders = {os.path.dirname(path) for root in roots for name in ("libnvrtc.so.*", "libcublasLt.so.*")
           for path in glob.glob(os.path.join(root, "nvidia", "**", name), recursive=True)}
folders |= {path for path in ("/usr/local/cuda/lib64",) if os.path.isdir(path)}
print(":".join(sorted(folders)))
PY
}

# Runs some of the tests on the GPU, one at a time: each opens the device.
on_the_gpu() {
  local report=$folder/$1.txt
  shift
  [ -x "$binary" ] || { echo "$binary is not there: run tests/gpu.sh build where there is a Rust toolchain" >&2; exit 2; }
  export FURROW_TEST_GPU=1 FURROW_REPOSITORY=$PWD
  export FURROW_CUDA_LIBRARIES=${FURROW_CUDA_LIBRARIES:-$(libraries)}
  {
    date --utc +%FT%TZ
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
    echo "libraries: $FURROW_CUDA_LIBRARIES"
  } >"$report"
  local status=0
  timeout 540 "$binary" --test-threads=1 "$@" >>"$report" 2>&1 || status=$?
  tail -n 60 "$report"
  say "report: $report"
  return "$status"
}

case "${1:-}" in
build) build ;;
parity) on_the_gpu parity ;;
bench) on_the_gpu bench --ignored --nocapture measured::bench ;;
*)
  sed -n '2,8s/^# \{0,1\}//p' "$0"
  exit 2
  ;;
esac
