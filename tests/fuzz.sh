#!/usr/bin/env bash
# Fuzzing guided by coverage: each target has its hour, over as many calls as that takes.
#
#   tests/fuzz.sh             targets that have not had their hour, for at most 150 minutes
#   tests/fuzz.sh report      what each target has had: seconds, executions, coverage
#
# FURROW_FUZZ_TARGETS   only these; all of them
# FURROW_FUZZ_HOUR      seconds for each: 3600
# FURROW_FUZZ_PART      seconds for this call: 9000
# FURROW_FUZZ_AT_ONCE   targets at the same time: 2
#
# Inputs that reach new code, and the seconds a target has had, stay in .cache/fuzz (FURROW_FUZZ_STATE); another commit
# goes on with the inputs and begins its hours anew. An input that breaks a promise ends its target, is kept in
# .cache/fuzz/TARGET/findings, and the status is 1.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/setup.sh

STATE=${FURROW_FUZZ_STATE:-.cache/fuzz}
HOUR=${FURROW_FUZZ_HOUR:-3600}
PART=${FURROW_FUZZ_PART:-9000}
AT_ONCE=${FURROW_FUZZ_AT_ONCE:-2}
ALL=$(cd crates/fuzz/corpus && echo *)
read -ra TARGETS <<<"${FURROW_FUZZ_TARGETS:-$ALL}"

# The program, with counters at each edge, and comparisons reported.
build() {
  local host
  host=$(rustc -vV | sed -n 's/^host: //p')
  # With a target's name, build scripts and macros are compiled without the counters.
  RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares" \
    cargo build --profile fuzz --target "$host" -p furrow-fuzz
  PROGRAM=${CARGO_TARGET_DIR:-target}/$host/fuzz/furrow-fuzz
}

# seconds TARGET: how many it has had at this commit.
seconds() {
  if ! [ -f "$STATE/$1/runs" ]; then
    echo 0
    return
  fi
  awk -v commit="$COMMIT" '$1 == commit { sum += $2 } END { print sum + 0 }' "$STATE/$1/runs"
}

# run TARGET SECONDS
run() {
  local target=$1 seconds=$2 folder=$STATE/$1 status=0 began=$SECONDS dictionary=crates/fuzz/dictionaries/$1.txt
  mkdir -p "$folder/inputs" "$folder/findings"
  local options=(-max_total_time="$seconds" -max_len="$(max_len "$target")" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1
    -use_value_profile=1 -artifact_prefix="$folder/findings/")
  if [ -f "$dictionary" ]; then options+=(-dict="$dictionary"); fi
  FURROW_FUZZ_TARGET=$target FURROW_FUZZ_CPU_MILLIS=1000 FURROW_FUZZ_SCRATCH=$SCRATCH \
    "$PROGRAM" "${options[@]}" "$folder/inputs" "crates/fuzz/corpus/$target" >"$folder/log" 2>&1 || status=$?
  local executions coverage
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$folder/log")
  coverage=$(sed -n 's/.* cov: \([0-9]*\) ft: \([0-9]*\) corp: \([0-9]*\).*/\1 \2 \3/p' "$folder/log" | tail -n 1)
  echo "$COMMIT $((SECONDS - began)) ${executions:-0} ${coverage:-0 0 0} $status" >>"$folder/runs"
  if [ "$status" != 0 ]; then
    tail -n 30 "$folder/log" >&2
    echo "failed: FURROW_FUZZ_TARGET=$target $PROGRAM FILE repeats a file of $folder/findings" >&2
  fi
  report_of "$target"
  return "$status"
}

max_len() {
  sed -n 's/^ *bytes_max: \([0-9]*\) << 10,$/\1/p' "crates/fuzz/src/targets/$1.rs" | awk '{ print $1 * 1024 }'
}

report_of() {
  if ! [ -f "$STATE/$1/runs" ]; then
    echo "$1 has not run"
    return
  fi
  awk -v target="$1" -v commit="$COMMIT" '
    $1 == commit { seconds += $2; runs += $3; if ($4 > edges) { edges = $4; features = $5; inputs = $6 } failed += $7 != 0 }
    END { printf "%-12s %6d s %12d executions %6d edges %7d features %6d inputs %d findings\n",
          target, seconds, runs, edges, features, inputs, failed }' "$STATE/$1/runs"
}

COMMIT=$(git rev-parse --short HEAD 2>/dev/null || echo none)
if [ "${1:-}" = report ]; then
  for target in "${TARGETS[@]}"; do report_of "$target"; done
  exit
fi

need_cargo
build
SCRATCH=$(mktemp -d "$([ -d /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/furrow-fuzz.XXXXXX")
trap 'rm -rf "$SCRATCH"' EXIT
failed=() running=0
began=$SECONDS
for target in "${TARGETS[@]}"; do
  left=$((HOUR - $(seconds "$target")))
  if [ "$left" -le 0 ]; then continue; fi
  if [ "$running" -ge "$AT_ONCE" ]; then
    wait -n || failed+=("one")
    running=$((running - 1))
  fi
  if [ $((SECONDS - began + left)) -gt "$PART" ]; then continue; fi
  run "$target" "$left" &
  running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
  wait -n || failed+=("one")
  running=$((running - 1))
done
waiting=()
for target in "${TARGETS[@]}"; do
  if [ "$(seconds "$target")" -lt "$HOUR" ]; then waiting+=("$target"); fi
done
if [ ${#waiting[@]} -gt 0 ]; then say "not yet an hour: ${waiting[*]}"; else say "all targets had their hour"; fi
[ ${#failed[@]} -eq 0 ]
