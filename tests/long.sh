#!/usr/bin/env bash
# The tests that take too long for tests/run.sh: more seeds, more kills, more rows, every template.
#
#   tests/long.sh             all parts, some two hours on 2 cores
#   tests/long.sh PART...     only these
#
#   simulation    the coordinator's simulation with 100,000 seeds (FURROW_SIM_SEEDS), released
#   sim           the coordinator's simulation on a disk that fails and loses power, with 500,000 faults (FURROW_SIM_FAULTS),
#                 on two threads (FURROW_SIM_THREADS), released; it goes on where it was stopped (FURROW_SIM_STATE), and
#                 fails where a fault hit a site fewer than 100 times
#   network       whole runs over a simulated network that fails: 5,000 seeds (FURROW_NETWORK_SEEDS), released; it goes on
#                 where it was stopped (FURROW_NETWORK_STATE). Then a planted bug that it must catch
#   lost          every single call of a GPU backend fails once, instead of every tenth (FURROW_LOST_STRIDE)
#   device        a device that fails or hangs at every kind of call, first, middle and last, with two workers
#                 (FURROW_DEVICE_ALL); then 20 hangs in real time (FURROW_DEVICE_HANGS); nothing slow is taken for one
#   rows          a million trajectories: counted, compared with the reader's answers, and looked through in a browser
#   weeks         a ledger and a manifest of a million trajectories and commits, and 20 starts on them (FURROW_WEEKS; 10 GB
#                 of disk, in FURROW_WEEKS_SCRATCH)
#   web           every template of every offline site, twice, in a browser
#   attacks       the policies of tests/attacks and one that leaves what it cannot solve; then `furrow tasks attack` on every
#                 template of the offline web
#   crashes       every crash point at its first and at its second visit, instead of at one of them
#   kills         the kill test with 10 random seeds (FURROW_KILL_SEEDS); each is printed
#   damage        every kind of file of a run damaged at every block (FURROW_DAMAGE_ALL)
#   backups       200 backups of a run under load, restored and verified (FURROW_BACKUPS)
#   load          100,000 unfinished streams of one worker of the run beside a farm (FURROW_LOAD_STREAMS)
#   recompute     the log-probs of 40 groups recomputed (FURROW_RECOMPUTE_GROUPS)
#   fuzz          each fuzz target for an hour, guided by coverage (FURROW_FUZZ_TARGETS, FURROW_FUZZ_HOUR, FURROW_FUZZ_AT_ONCE).
#                 Takes targets that have not had their hour while 150 minutes last (FURROW_FUZZ_PART), so run it again
#                 until it says that all had theirs; inputs and seconds stay in .cache/fuzz
#   trainer       the trainer's tests with PyTorch
#   clients       a browser-use agent acts in a browser against a served checkpoint; installs it (some 200 MB) the first time
#   release       builds a release and checks it: size, names of functions, no path of this machine, SBOM and notices
#   gpu           the GPU machine's scripts, run whole without a GPU, twice, the second time cut off in the middle
#
# Run tests/run.sh first: it installs what these need. Prints seconds a part; a part that fails does not stop the others,
# and the status is 1 then.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/setup.sh

FEATURES=failpoints,otel
PARTS=(simulation sim network lost device rows weeks web attacks crashes kills damage backups load recompute fuzz trainer clients release gpu)

simulation() {
  FURROW_SIM_SEEDS=${FURROW_SIM_SEEDS:-100000} \
    cargo test --release -p furrow-coordinator --features failpoints --lib simulation
}

sim() {
  FURROW_SIM_STATE=${FURROW_SIM_STATE:-$PWD/.cache/simulation.txt} \
    cargo test --release -p furrow-coordinator --features failpoints --test simulation -- --ignored --nocapture a_long_storm
}

network() {
  FURROW_NETWORK_STATE=${FURROW_NETWORK_STATE:-$PWD/.cache/network.txt} \
    cargo test --release --workspace --features "$FEATURES" --test network -- --ignored --nocapture --skip child_
}

lost() {
  FURROW_LOST_STRIDE=1 cargo test --features "$FEATURES" --workspace --test backend lost::
}

device() {
  FURROW_DEVICE_ALL=1 FURROW_DEVICE_HANGS=${FURROW_DEVICE_HANGS:-20} \
    cargo test --features "$FEATURES" --workspace --test farm device:: -- --nocapture --test-threads=1
}

rows() {
  cargo test --release -p furrow-analysis --test integration -- --ignored a_million
  cargo test --release -p furrow-dashboard --test pages -- --ignored a_million
}

weeks() {
  cargo test --release -p furrow-coordinator --features failpoints --test integration -- --ignored --nocapture a_million
}

web() {
  FURROW_WEB_ALL=1 cargo test --features "$FEATURES" --test farm web::
}

attacks() {
  cargo test --features "$FEATURES" --workspace --test farm attacks:: -- --include-ignored --nocapture
  "$(target_folder)/debug/furrow" tasks attack deploy/web.toml
}

crashes() {
  FURROW_CRASH_VISITS=all cargo test --features "$FEATURES" --test farm crash_points::
}

kills() {
  local try
  for ((try = 0; try < ${FURROW_KILL_SEEDS:-10}; try++)); do
    FURROW_TEST_SEED=$RANDOM cargo test --features "$FEATURES" --test farm kills:: -- --nocapture
  done
}

damage() {
  FURROW_DAMAGE_ALL=1 cargo test --features "$FEATURES" --test farm damage::
}

backups() {
  FURROW_BACKUPS=${FURROW_BACKUPS:-200} cargo test --features "$FEATURES" --test farm backup:: -- --nocapture
}

load() {
  FURROW_LOAD_STREAMS=${FURROW_LOAD_STREAMS:-100000} \
    cargo test --features "$FEATURES" --workspace --test farm load:: -- --nocapture
}

recompute() {
  FURROW_RECOMPUTE_GROUPS=${FURROW_RECOMPUTE_GROUPS:-40} cargo test --features "$FEATURES" --test farm recompute::
}

fuzz() {
  tests/fuzz.sh
}

trainer() {
  trainer/test.sh
}

clients() {
  local venv=.cache/browser-use
  if ! cmp -s tests/browser_use.txt "$venv/installed.txt"; then
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet -r tests/browser_use.txt
    cp tests/browser_use.txt "$venv/installed.txt"
  fi
  cargo build --release --bin furrow
  "$venv/bin/python" tests/browser_use_client.py "${CARGO_TARGET_DIR:-target}/release/furrow" \
    "${FURROW_BROWSER:-/usr/lib/chromium/chromium-headless-shell}"
}

release() {
  deploy/release.sh .cache/release
  python3 tests/release.py .cache/release
}

gpu() {
  tests/gpu.sh build
  tests/gpu.sh dry-run .cache/gpu/long-whole
  tests/gpu.sh dry-run --cut 120 .cache/gpu/long-cut
}

chosen=("$@")
if [ $# -eq 0 ]; then chosen=("${PARTS[@]}"); fi
for part in "${chosen[@]}"; do
  if [[ " ${PARTS[*]} " != *" $part "* ]]; then
    echo "$0: there is no part $part" >&2
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
  fi
done

need_cargo
need_browser
export FURROW_TEST_PYTHON=${FURROW_TEST_PYTHON:-$PWD/.cache/venv/bin/python}
if ! [ -x "$FURROW_TEST_PYTHON" ]; then
  echo "$0: $FURROW_TEST_PYTHON is missing; run tests/run.sh once, or set FURROW_TEST_PYTHON" >&2
  exit 2
fi
failed=()
for part in "${chosen[@]}"; do
  began=$SECONDS
  say "$part"
  # A shell of its own, because `set -e` does not hold inside of a condition.
  bash -c "set -euo pipefail; $(declare -f "$part"); FEATURES=$FEATURES; $part" || failed+=("$part")
  say "$part: $((SECONDS - began)) s"
done
say "all: $SECONDS s"
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
