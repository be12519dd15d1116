#!/usr/bin/env bash
# What needs a GPU. Offline there: the driver, Python, and NVIDIA's libnvrtc and libcublasLt are enough.
#
#   tests/gpu.sh build     with a Rust toolchain and Debian's browser: what travels, in parts below
#                          .cache/gpu/parts, each for a transfer in .cache/gpu/sendN, and a table of their
#                          sizes; fails if one is too large for a transfer beside the checkout of `tree`
#                          (--whole-tree: beside the whole one, which makes more and smaller parts)
#   tests/gpu.sh tree DIR  the checkout that travels with a part: tests/gpu/tree.txt of the last commit, as a
#                          repository at DIR; `tree here` thins out this checkout instead, `tree whole` brings
#                          everything back
#   tests/gpu.sh unpack [--parts .cache/gpu/sendN]
#                          on the machine with the GPU: the parts that came, to FURROW_GPU_ROOT
#                          (/var/tmp/furrow-gpu); status 3: some are missing, and are named. It may be cut off
#                          and done again at any instant
#   tests/gpu.sh verify    there: compares every file with what was carried
#   tests/gpu.sh measure   there, first of all: what the machine is, how fast it writes and pins memory, and
#                          which cell to begin with (75 s at most); reports/measure.txt below the root
#   tests/gpu.sh probe     there: says within 20 s whether a farm can run; state/probe.json and
#                          reports/probe.txt below the root (--dry: on the small checkpoint)
#   tests/gpu.sh dry-run   without a GPU: all of that in a bare root without a network (tests/gpu/dry_run.sh)
#   tests/gpu.sh parity    there: each kernel's tests on it, then the backend's; report in
#                          .cache/gpu/parity.txt
#   tests/gpu.sh bench     there, too: the published model with weights of noise, each figure beside its
#                          floor, in .cache/gpu/bench.txt
#   tests/gpu.sh peers     there, with torch and transformers (tests/peers/README.md): what they take, in
#                          .cache/gpu/peers.txt, beside what bench took
#   tests/gpu.sh farm start|status|collect|watch|stop
#                          there: the whole farm, cell by cell, in the background (tests/gpu/farm.py,
#                          docs/benchmarks/GPU_RUNBOOK.md)
#   tests/gpu.sh logprobs RUN_DIR CHECKPOINT_DIR...
#                          with torch, anywhere: log-probs of 20 steps of a run recomputed from files
#                          (tests/gpu/logprobs.py --help)
#   tests/gpu.sh sanitize [memcheck|racecheck|initcheck|synccheck]
#                          there, with compute-sanitizer: that tool over the tests of parity, one a process;
#                          report in .cache/gpu/sanitize-TOOL.txt; status 3: call it again, it goes on with
#                          the tests that are left
#
# Each but build and dry-run takes less than nine minutes; farm returns within seconds and goes on. The libraries are looked for in
# FURROW_CUDA_LIBRARIES (folders, colon between), in Python's site-packages/nvidia, and where the system keeps
# them.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=.cache/gpu
# What was unpacked there; .cache/gpu where the binaries were built.
root=${FURROW_GPU_ROOT:-/var/tmp/furrow-gpu}

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
  cargo build --release --package furrow --package furrow-bench
  for name in furrow furrow-bench; do
    strip -o "$folder/$name" "${CARGO_TARGET_DIR:-target}/release/$name"
  done
  git describe --always --dirty >"$folder/commit"
  python3 tests/gpu/bundle.py build --program "$folder/furrow" \
    --bench "$folder/furrow-bench" --test "$folder/kernels" --test "$folder/backend" "$@"
}

# What of the repository travels with a part.
tree() {
  local patterns
  mapfile -t patterns < <(grep -v '^#' tests/gpu/tree.txt)
  case ${1:?a folder, here, or whole} in
  here) git sparse-checkout set --no-cone "${patterns[@]/#//}" ;;
  whole) git sparse-checkout disable ;;
  *)
    [ ! -e "$1" ] || { echo "$1 is there already: remove it first" >&2; exit 2; }
    mkdir -p "$1"
    # Named one by one: git archive refuses a pattern that nothing matches yet.
    git ls-files -z --cached -- "${patterns[@]}" | xargs -0 git archive HEAD | tar -x -C "$1"
    git -C "$1" init --quiet
    git -C "$1" add --all
    git -C "$1" -c user.name=furrow -c user.email=furrow@localhost commit --quiet \
      --message "$(git describe --always)"
    (cd "$1" && echo "$1: $(git ls-files | wc -l) files, $(git ls-files -z | xargs -0 cat | wc -c) bytes")
    ;;
  esac
}

# Where a binary is: unpacked from the parts, or built here.
found() {
  local path
  for path in "$root/$1/$2" "$folder/$2"; do
    [ -x "$path" ] && { echo "$path"; return; }
  done
  echo "$2 is not there: run tests/gpu.sh build where there is a Rust toolchain, then unpack here" >&2
  return 2
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

# The commit that the binaries are of.
commit() {
  cat "$folder/commit" 2>/dev/null ||
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["commit"])' "$root/manifest.json" || true
}

# What the tests and peers read checkpoints of: this repository, or the copy that travels with the tests.
export FURROW_REPOSITORY=$PWD
[ -d crates/model/tests/oracle ] || FURROW_REPOSITORY=$root/gpu

# Begins a report and says what it is of.
begin() {
  report=$folder/$1.txt
  mkdir -p "$folder"
  {
    date --utc +%FT%TZ
    commit
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
  } >"$report" 2>&1
}

# Runs some of a binary's tests on the GPU, one at a time: each opens the device. Their seconds are what is
# left of nine minutes.
on_the_gpu() {
  local binary
  binary=$(found gpu "$1")
  shift
  export FURROW_TEST_GPU=1
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
  local status=0 program
  program=$(found gpu furrow-bench)
  begin bench
  on_the_gpu backend --ignored --nocapture measured::gap || status=$?
  local given=()
  IFS=: read -ra folders <<<"$FURROW_CUDA_LIBRARIES"
  for library in "${folders[@]}"; do given+=(--cuda-libraries "$library"); done
  timeout $((SECONDS < 530 ? 540 - SECONDS : 10)) "$program" gpu --json \
    --kernel-cache "$folder/kernels-$$" "${given[@]}" "$@" >>"$report" 2>&1 || status=$?
  rm -rf "$folder/kernels-$$"
  end "$status"
}

peers() {
  local status=0 python=${FURROW_PEER_PYTHON:-python3}
  begin peers
  timeout 540 "$python" tests/peers/transformers_gpu.py measure "$@" >>"$report" 2>&1 || status=$?
  if [ "$status" -eq 0 ] && [ -f "$folder/bench.txt" ]; then
    "$python" tests/peers/transformers_gpu.py beside "$folder/bench.txt" "$report" >"$folder/beside.txt" &&
      cat "$folder/beside.txt" >>"$report"
  fi
  end "$status"
}

logprobs() {
  local status=0 python=${FURROW_PEER_PYTHON:-python3}
  begin logprobs
  timeout 540 "$python" tests/gpu/logprobs.py --json "$folder/logprobs.json" "$@" >>"$report" 2>&1 || status=$?
  end "$status"
}

sanitize() {
  export FURROW_CUDA_LIBRARIES=${FURROW_CUDA_LIBRARIES:-$(libraries)}
  exec python3 tests/gpu/sanitize.py "$@"
}

case "${1:-}" in
build) build "${@:2}" ;;
tree) tree "${@:2}" ;;
unpack | verify) exec python3 tests/gpu/bundle.py "$@" ;;
measure) exec "${FURROW_GPU_PYTHON:-python3}" tests/gpu/measure.py ;;
probe) exec "${FURROW_GPU_PYTHON:-python3}" tests/gpu/probe.py "${@:2}" ;;
dry-run) exec tests/gpu/dry_run.sh "${@:2}" ;;
parity) parity ;;
bench) bench "${@:2}" ;;
peers) peers "${@:2}" ;;
logprobs) logprobs "${@:2}" ;;
sanitize) sanitize "${@:2}" ;;
farm) exec "${FURROW_GPU_PYTHON:-python3}" tests/gpu/farm.py "${@:2}" ;;
*)
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
  exit 2
  ;;
esac
