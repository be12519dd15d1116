#!/usr/bin/env bash
# What needs a GPU. Offline there: the driver, Python, and NVIDIA's libnvrtc and libcublasLt are enough.
#
#   tests/gpu.sh build    with a Rust toolchain, anywhere: two test binaries and the released program, stripped, in .cache/gpu
#   tests/gpu.sh parity   on the machine with the GPU: each kernel's tests on it, then the backend's; report in .cache/gpu/parity.txt
#   tests/gpu.sh bench    there, too: the published model with weights of noise, each figure beside its floor, in .cache/gpu/bench.txt
#   tests/gpu.sh peers    there, with torch and transformers (tests/peers/README.md): what they take, in .cache/gpu/peers.txt, beside what bench took
#
# Each takes less than nine minutes. The libraries are looked for in FURROW_CUDA_LIBRARIES (folders, colon between), in Python's site-packages/nvidia, and where the system keeps them.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=.cache/gpu

say() { printf '\033[1m%s\033[0m\n' "$*"; }

build() {
  mkdir -p "$folder"
  local name built
  for name in kernels backend; do
    built=$(cargo test --package furrow-cuda --test "$name" --no-run --message-format=json |
      python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == sys.argv[1]:
        print(message["executable"])' "$name" | tail -n 1)
    strip -o "$folder/$name" "$built"
  done
  cargo build --release --package furrow
  strip -o "$folder/furrow" "${CARGO_TARGET_DIR:-target}/release/furrow"
  gzip --force "$folder/furrow"
  git describe --always --dirty >"$folder/commit"
  ls -l "$folder"
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

# Begins a report and says what it is of.
begin() {
  report=$folder/$1.txt
  mkdir -p "$folder"
  {
    date --utc +%FT%TZ
    cat "$folder/commit" || true
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
  } >"$report" 2>&1
}

# Runs some of a binary's tests on the GPU, one at a time: each opens the device. Their seconds are what is left of nine minutes.
on_the_gpu() {
  local binary=$folder/$1
  shift
  [ -x "$binary" ] || { echo "$binary is not there: run tests/gpu.sh build where there is a Rust toolchain" >&2; exit 2; }
  export FURROW_TEST_GPU=1 FURROW_REPOSITORY=$PWD
  export FURROW_CUDA_LIBRARIES=${FURROW_CUDA_LIBRARIES:-$(libraries)}
  echo "$binary, libraries: $FURROW_CUDA_LIBRARIES" >>"$report"
  timeout $((SECONDS < 530 ? 540 - SECONDS : 10)) "$binary" --test-threads=1 "$@" >>"$report" 2>&1
}

# Shows the end of the report; the exit status is that of what was run.
end() {
  tail -n 60 "$report"
  say "report: $report"
  exit "$1"
}

parity() {
  local status=0
  begin parity
  # What plants bugs and what compiles for other devices needs compilers, and runs without a GPU.
  on_the_gpu kernels agree || status=$?
  on_the_gpu backend || status=$?
  end "$status"
}

bench() {
  local status=0 program=/tmp/furrow-bench-$$
  begin bench
  on_the_gpu backend --ignored --nocapture measured::gap || status=$?
  gzip --decompress --stdout "$folder/furrow.gz" >"$program" && chmod +x "$program"
  local given=()
  IFS=: read -ra folders <<<"$FURROW_CUDA_LIBRARIES"
  for library in "${folders[@]}"; do given+=(--cuda-libraries "$library"); done
  timeout $((SECONDS < 530 ? 540 - SECONDS : 10)) "$program" bench gpu --json --kernel-cache "$folder/kernels-$$" "${given[@]}" "$@" >>"$report" 2>&1 || status=$?
  rm -rf "$program" "$folder/kernels-$$"
  end "$status"
}

peers() {
  local status=0 python=${FURROW_PEER_PYTHON:-python3}
  begin peers
  timeout 540 "$python" tests/peers/transformers_gpu.py measure "$@" >>"$report" 2>&1 || status=$?
  if [ "$status" -eq 0 ] && [ -f "$folder/bench.txt" ]; then
    "$python" tests/peers/transformers_gpu.py beside "$folder/bench.txt" "$report" >"$folder/beside.txt" && cat "$folder/beside.txt" >>"$report"
  fi
  end "$status"
}

case "${1:-}" in
build) build ;;
parity) parity ;;
bench) bench "${@:2}" ;;
peers) peers "${@:2}" ;;
*)
  sed -n '2,11s/^# \{0,1\}//p' "$0"
  exit 2
  ;;
esac
