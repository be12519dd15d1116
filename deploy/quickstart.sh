#!/usr/bin/env bash
# From a clone to a data set: installs what is missing (Debian), builds, collects, verifies, says where to look.
#   FURROW_BROWSER=/path/to/chromium-headless-shell   uses that browser and installs nothing
#   FURROW=/path/to/furrow                            uses that build, and needs no Rust and no compiler
#   FURROW_FONTS=1                                    installs emoji and CJK fonts, too, for pages of the live web (12 MB)
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/setup.sh

if [ -n "${FURROW:-}" ]; then
  "$FURROW" --version >/dev/null || {
    echo "FURROW is $FURROW, which does not start here. Point it at a furrow for this system, or unset it to build one." >&2
    exit 2
  }
else
  need_cargo
fi
need_browser
need_miniwob || say "pip cannot get the MiniWoB++ wheel here: collecting the starter tasks alone"

if [ -z "${FURROW:-}" ]; then
  say "building"
  cargo build --profile quickstart --locked --quiet --bin furrow
  FURROW=$(target_folder)/quickstart/furrow
fi
mapfile -t overrides < <(setup_overrides)

if [ ! -d .cache/tiny-7 ]; then
  say "writing a tiny random checkpoint of the hybrid architecture"
  mkdir -p .cache
  "$FURROW" checkpoint init --size tiny --seed 7 .cache/tiny-7
fi

collect() { # POLICY [more arguments of furrow run]
  local policy=$1
  shift
  say "collecting with the $policy policy"
  "$FURROW" run deploy/quickstart.toml --clean --set "policy.kind=$policy" --set "run.name=quickstart-$policy" "${overrides[@]}" "$@"
  "$FURROW" records verify "runs/quickstart-$policy"
}
collect scripted
collect random
# The starter tasks: a random model is slow on a CPU and solves nothing. It likes to wait: all of its sessions wait together.
collect model --set tasks.groups=12 --set env.sessions_max=48

for policy in scripted random model; do
  say "runs/quickstart-$policy"
  "$FURROW" records inspect "runs/quickstart-$policy"
done

cat <<'MSG'

The data sets are plain Parquet. Look at one with

    python3 -m pip install pyarrow pandas
    python3 -c 'import pandas; print(pandas.read_parquet("runs/quickstart-scripted/data/trajectories")[["task_id", "reward", "end", "num_steps"]])'

or in DuckDB with

    SELECT task_id, avg(reward) FROM 'runs/quickstart-*/data/trajectories/*.parquet' GROUP BY ALL;

Every screenshot, action and reward is in data/steps; runs/quickstart-model also has every token and its log-probability. docs/DATASET.md explains each
column, and tests/recompute.py runs/quickstart-model .cache/tiny-7 recomputes the log-probabilities from the files alone (numpy, pyarrow, pillow).
MSG
