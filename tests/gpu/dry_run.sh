#!/usr/bin/env bash
# The calls of the runbook without a GPU: the parts of `tests/gpu.sh build`, a bare root, no network.
#
#   dry_run.sh [--cut SECONDS] [--cell CELL] [--options "WORDS"] [--until unpack|probe|farm] [REPORTS]
#
# --cut ends every process of the machine after so many seconds; then it is started again on the same disk,
# and everything is done again. --cell is what `farm start` is given, dry-append-7 if absent; --options are
# further words for it. REPORTS: where what came back is left. Exit status 0 if every step was done.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cut=0 cell=dry-append-7 until=farm options= out=$PWD/.cache/gpu/dry/reports
while [ $# -gt 0 ]; do
  case $1 in
  --cut) cut=$2; shift 2 ;;
  --cell) cell=$2; shift 2 ;;
  --until) until=$2; shift 2 ;;
  --options) options=$2; shift 2 ;;
  -*) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
  *) out=$(realpath -m "$1"); shift ;;
  esac
done
folder=.cache/gpu dry=$PWD/.cache/gpu/dry
machine=tests/gpu/dry_root.sh root=$dry/root tree=$dry/tree
# Below the 10 minutes after which a command is ended.
call_seconds=590 wait_seconds=500

say() { printf '\033[1m%s\033[0m\n' "$*"; }

# send COMMAND [CARRIED...]: one call; what it left in $OUT is kept if there is something.
calls=0
send() {
  calls=$((calls + 1))
  say "call $calls: $*"
  local status=0
  "$machine" call "$root" "$call_seconds" "$dry/out" "$tree" "$@" || status=$?
  if [ -n "$(ls -A "$dry/out" 2>/dev/null)" ]; then
    rm -rf "$out"
    cp -r "$dry/out" "$out"
  fi
  return "$status"
}

# Every part in a call of its own; all but the last say that parts are missing, unless enough was there.
unpack() {
  local part status=3
  for part in "$folder"/parts/*.part; do
    rm -rf "$tree/$folder"
    mkdir -p "$tree/$folder/parts"
    cp "$folder/parts/manifest.json" "$part" "$tree/$folder/parts"
    status=0
    send "tests/gpu.sh unpack" "$folder/parts" || status=$?
    [ "$status" = 0 ] || [ "$status" = 3 ] || return "$status"
  done
  return "$status"
}

ended() {
  send "tests/gpu.sh farm status --json >\$OUT/status.json" >/dev/null || true
  python3 -c 'import json, sys
state = json.load(open(sys.argv[1]))["states"].get(sys.argv[2], {})
sys.exit(0 if state.get("phase") == "ended" else 1)' "$dry/out/status.json" "$cell"
}

farm() {
  local tries
  send "tests/gpu.sh farm start dry-init; tests/gpu.sh farm status --wait $wait_seconds" || return 1
  local turn="tests/gpu.sh farm start $cell $options; tests/gpu.sh farm status --wait $wait_seconds"
  for tries in 1 2 3 4 5 6 7 8; do
    send "$turn; tests/gpu.sh farm collect \$OUT" || return 1
    rm -rf "$dry/kept"
    cp -r "$out" "$dry/kept"
    local done=0
    ended || done=1
    rm -rf "$out"
    mv "$dry/kept" "$out"
    if [ "$done" = 0 ]; then
      # Its exit status says whether a phase failed.
      send "tests/gpu.sh farm status"
      return
    fi
  done
  echo "dry_run: $cell has not ended after $tries calls" >&2
  return 1
}

steps() {
  unpack || return $?
  [ "$until" != unpack ] || return 0
  local look="tests/gpu.sh verify && tests/gpu.sh probe --dry && cp /var/tmp/furrow-gpu/reports/probe.* \$OUT"
  send "$look" || return $?
  [ "$until" != probe ] || return 0
  farm
}

if [ ! -f "$folder/parts/manifest.json" ]; then
  echo "dry_run: no parts: run tests/gpu.sh build first" >&2
  exit 2
fi
finish() { "$machine" stop "$root"; }
trap finish EXIT
say "base system and checkout"
rm -rf "$tree"
tests/gpu.sh tree "$tree"
"$machine" make "$root"
"$machine" start "$root"
if [ "$cut" != 0 ]; then
  (sleep "$cut"; say "cut off after $cut s"; "$machine" stop "$root") &
  timer=$!
  status=0
  steps || status=$?
  wait "$timer"
  if [ "$status" = 0 ]; then
    echo "dry_run: everything had ended before $cut s: nothing was cut off" >&2
    exit 1
  fi
  say "status $status of the run that was cut off; the machine starts again"
  "$machine" start "$root"
fi
status=0
steps || status=$?
say "dry run: status $status after $calls calls and $SECONDS s; what came back: $out"
exit "$status"
