#!/usr/bin/env bash
# The trainer's tests. What is installed rests in .cache/trainer, beside the rest of the repository's cache.
#
#   trainer/test.sh            everything: types, lints, tests. PyTorch from the package index brings some 5 GB, once
#   trainer/test.sh --reader   the reader alone: pyarrow and numpy, some 100 MB
#
# FURROW_TRAINER_RUN and FURROW_TRAINER_CHECKPOINT name a run of a model policy and its checkpoint: their rows are tested, too.
# Without them runs/quickstart-model and .cache/tiny-7 are taken where they are there.
# FURROW names the program that real farms are started with; without it what is built in target/ is taken.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.cache/trainer
python=$venv/bin/python
say() { printf '\033[1m%s\033[0m\n' "$*"; }

if [ ! -x "$python" ]; then
  say "making $venv"
  python3 -m venv "$venv"
fi
if ! "$python" -c 'import numpy, pyarrow, pytest' 2>/dev/null; then
  say "installing pyarrow, numpy, pytest"
  "$python" -m pip install --quiet -r trainer/requirements-reader.txt
fi
cd trainer
if [ "${1:-}" = --reader ]; then
  exec "../$python" -m pytest tests/quick/test_reader.py
fi

# Another virtual environment of this repository may have PyTorch already: one on a machine is enough.
if ! "../$python" -c 'import torch' 2>/dev/null && ../.cache/peers/bin/python -c 'import torch' 2>/dev/null; then
  ../.cache/peers/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' \
    >"$("../$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/peers.pth"
fi
if ! "../$python" -c 'import torch, safetensors, PIL, tokenizers, mypy, ruff, trl, datasets, msgspec' 2>/dev/null; then
  say "installing PyTorch, the linters and the libraries that exporters are held to"
  "../$python" -m pip install --quiet -r requirements.txt
fi

say "lints"
"../$python" -m ruff check .
say "types"
"../$python" -m mypy
say "tests"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
"../$python" -m pytest "$@"
