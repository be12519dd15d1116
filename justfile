# Short names of the commands that CONTRIBUTING.md describes; `just` lists them.

set positional-arguments

[private]
default:
    @"{{ just_executable() }}" --list --unsorted

# format, lints, and tests that need no browser; installs nothing
check:
    tests/run.sh check

# all tests, as CI runs them; on Debian installs what they need
test:
    tests/run.sh

# tests that start browsers and whole farms, then the quickstart job
e2e:
    tests/run.sh e2e

# format and lint of JavaScript and CSS; `just js --fix` writes the format
js *arguments:
    tests/js.sh "$@"

# the trainer's lints, types and tests; `just trainer --quick`: what needs no PyTorch
trainer *arguments:
    trainer/test.sh "$@"

# what takes too long for `just test`; `just long kills` runs one part
long *arguments:
    tests/long.sh "$@"

# what needs a GPU, such as `just gpu parity`; without arguments lists it
gpu *arguments:
    tests/gpu.sh "$@"
