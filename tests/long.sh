#!/usr/bin/env bash
# The tests that take too long for tests/run.sh: more seeds, more kills, more rows, every template.
#
#   tests/long.sh             all parts, some two hours on 2 cores
#   tests/long.sh PART...     only these
#
#   simulation    the coordinator's simulation with 100,000 seeds (FURROW_SIM_SEEDS), released
#   lost          every single call of a GPU backend fails once, instead of every fourth (FURROW_LOST_STRIDE)
#   rows          a million trajectories: counted, compared with the reader's answers, and looked through in a browser
#   weeks         a ledger and a manifest of a million trajectories and commits, and 20 starts on them (FURROW_WEEKS; 10 GB
#                 of disk, in FURROW_WEEKS_SCRATCH)
#   web           every template of every offline site, twice, in a browser
#   crashes       every crash point at its first and at its second visit, instead of at one of them
#   kills         the kill test with 10 random seeds (FURROW_KILL_SEEDS); each is printed
#   damage        every kind of file of a run damaged at every block (FURROW_DAMAGE_ALL)
#   backups       200 backups of a run under load, restored and verified (FURROW_BACKUPS)
#   recompute     the log-probs of 40 groups recomputed (FURROW_RECOMPUTE_GROUPS)
#   trainer       the trainer's tests with PyTorch
#   clients       a browser-use agent acts in a browser against a served checkpoint; installs it (some 200 MB) the first time
#   release       the released program is below 80 MB and has the names of its functions
#   gpu           the GPU machine's scripts, run whole without a GPU, twice, the second time cut off in the middle
#
# Run tests/run.sh first: it installs what these need. Prints seconds a part; a part that fails does not stop the others,
# and the status is 1 then.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/setup.sh

FEATURES=failpoints,otel
PARTS=(simulation lost rows weeks web crashes kills damage backups recompute trainer clients release gpu)

simulation() {
  FURROW_SIM_SEEDS=${FURROW_SIM_SEEDS:-100000} \
    cargo test --release -p furrow-coordinator --features failpoints --lib simulation
}

lost() {
  FURROW_LOST_STRIDE=1 cargo test --features "$FEATURES" --workspace --test backend lost::
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

recompute() {
  FURROW_RECOMPUTE_GROUPS=${FURROW_RECOMPUTE_GROUPS:-40} cargo test --features "$FEATURES" --test farm recompute::
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
  cargo build --release --bin furrow
  local program=${CARGO_TARGET_DIR:-target}/release/furrow bytes names
  bytes=$(stat -c %s "$program")
  names=$(nm -C "$program" | grep -c ' furrow_coordinator::')
  echo "$program: $bytes bytes, $names functions of the coordinator with their names"
  [ "$bytes" -lt 80000000 ]
  [ "$names" -gt 1000 ]
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
