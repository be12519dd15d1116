#!/usr/bin/env bash
# A policy learns online, without a GPU: demonstrations on three starter tasks, a warm start, then the farm and the trainer side by side while
# weights are published; beside it a control that learns from permuted rewards. The report lands in runs/learn/report.
# Stopped, it goes on where it was when it is called again; `rm -r runs/learn` begins anew.
#   FURROW_BROWSER=/path/to/chromium-headless-shell   uses that browser and installs nothing
#   FURROW=/path/to/furrow                            uses that build
#   deploy/learn.sh [further arguments of furrow-trainer learn, such as --report DIR]
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/setup.sh

need_cargo
need_browser
if command -v apt-get >/dev/null 2>&1; then install_debian python3 python3-venv python3-pip; fi

if [ -z "${FURROW:-}" ]; then
  say "building"
  cargo build --release --quiet --bin furrow
  FURROW=$(target_folder)/release/furrow
fi

venv=.cache/trainer
if ! "$venv/bin/python" -c 'import numpy, pyarrow, torch, safetensors, PIL, tokenizers' 2>/dev/null; then
  say "installing PyTorch into $venv (some 5 GB, once)"
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet './trainer[torch]'
fi

mapfile -t overrides < <(setup_overrides)
export PYTHONPATH=$PWD/trainer/src OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "$venv/bin/python" -m furrow_trainer learn deploy/learn runs/learn --furrow "$FURROW" "${overrides[@]}" "$@"
