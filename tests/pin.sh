#!/usr/bin/env bash
# Pins every Python package that the tests install, with the hashes of its files.
#
#   tests/pin.sh            writes each requirements.txt anew from the requirements.in beside it, keeping the versions
#                           that are pinned already
#   tests/pin.sh --upgrade  with the newest versions that the .in files allow
#
# Resolves for every platform and for Python 3.11 and newer, with uv, which it installs into .cache/pin.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! [ -x .cache/pin/bin/uv ]; then
  python3 -m venv .cache/pin
  .cache/pin/bin/python -m pip install --quiet uv
fi
for wanted in tests/requirements.in tests/browser_use.in tests/peers/requirements.in trainer/requirements-quick.in \
  trainer/requirements.in; do
  # Neither the index nor the command line of this machine belongs into the files.
  .cache/pin/bin/uv pip compile "$wanted" --output-file "${wanted%.in}.txt" --universal --python-version 3.11 \
    --generate-hashes --no-strip-extras --no-emit-index-url --no-emit-find-links \
    --custom-compile-command tests/pin.sh --quiet "$@"
done
