#!/usr/bin/env bash
# Lints and formats of all Python in the repository, types, and the trainer's tests. It installs into .cache/trainer.
#
#   trainer/test.sh            everything; the first time, PyTorch and its CUDA libraries are 3 GB to download
#   trainer/test.sh --quick    without PyTorch and without a farm (tests/quick): 110 MB to download; part of tests/run.sh
#   trainer/test.sh ARGS       everything, with these arguments of pytest
#
# FURROW_TRAINER_RUN and FURROW_TRAINER_CHECKPOINT name a run of a model policy and its checkpoint, whose rows are tested, too
# (default: runs/quickstart-model and .cache/tiny-7, where they exist). FURROW names the program that real farms are started
# with (default: the build in target/).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.cache/trainer
python=$PWD/$venv/bin/python
say() { printf '\033[1m%s\033[0m\n' "$*"; }

# need FILE WHAT: installs a requirements file unless it was installed as it is now; WHAT is printed before.
need() {
  if cmp -s "trainer/$1" "$venv/$1"; then return; fi
  say "installing $2"
  "$python" -m pip install --quiet --require-hashes -r "trainer/$1"
  cp "trainer/$1" "$venv/$1"
}

# check_types OPTIONS: the scripts of tests/gpu and the trainer, which share a cache of the libraries' types.
check_types() {
  "$python" -m mypy --cache-dir .cache/mypy "$@"
  (cd trainer && "$python" -m mypy --cache-dir ../.cache/mypy "$@")
}

if [ ! -x "$python" ]; then
  say "making $venv"
  python3 -m venv "$venv"
fi
need requirements-quick.txt "ruff, mypy, pytest, numpy, pyarrow and Pillow: 110 MB to download"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

say "lints and formats"
"$python" -m ruff check
"$python" -m ruff format --check

if [ "${1:-}" = --quick ]; then
  say "types and tests that need no PyTorch"
  # Without PyTorch its names have no types: what follows from them is checked by the whole suite alone.
  check_types --ignore-missing-imports --allow-subclassing-any --allow-untyped-decorators --no-warn-unused-ignores \
    >"$venv/types.txt" 2>&1 &
  types=$! status=0
  (cd trainer && "$python" -m pytest tests/quick) || status=$?
  wait "$types" || status=$?
  cat "$venv/types.txt"
  exit "$status"
fi

# Another virtual environment of this repository may have PyTorch already: one on a machine is enough.
peers=.cache/peers/bin/python
purelib='import sysconfig; print(sysconfig.get_paths()["purelib"])'
if ! "$python" -c 'import torch' 2>/dev/null && "$peers" -c 'import torch' 2>/dev/null; then
  "$peers" -c "$purelib" >"$("$python" -c "$purelib")/peers.pth"
fi
# The package index has no build for Linux without CUDA. Sizes are those of torch 2.15.0 on x86-64.
size="PyTorch with its CUDA libraries, 3.2 GB to download, 5.5 GB on the disk"
if "$python" -c 'import torch' 2>/dev/null; then size="0.2 GB to download"; fi
need requirements.txt "the libraries of the whole suite: $size"

say "types"
check_types
say "tests"
cd trainer
"$python" -m pytest "$@"
