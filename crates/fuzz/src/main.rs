//! One fuzz target under libFuzzer, whose options it takes: the environment names the target
//! (`FURROW_FUZZ_TARGET`). `tests/run.sh` and `tests/long.sh fuzz` start it.
#![no_main]

use std::sync::OnceLock;

use furrow_fuzz::FuzzTarget;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

static TARGET: OnceLock<&FuzzTarget> = OnceLock::new();

fn target() -> &'static FuzzTarget {
    TARGET.get_or_init(furrow_fuzz::target_of_environment)
}

fuzz_target!(
    init: furrow_fuzz::begin(),
    |input: &[u8]| furrow_fuzz::examine(target(), input)
);

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    furrow_fuzz::change(target(), data, size, max_size, seed, fuzzer_mutate)
});
