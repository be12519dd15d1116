//! A parser that keeps none of its promises: a campaign must find each.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::{FuzzTarget, Seed};

pub(super) const PLANTED: FuzzTarget = FuzzTarget {
    name: "planted",
    run,
    repair: None,
    memory_max: |_| 1 << 20,
    bytes_max: 1 << 10,
    catches_panics: false,
    seeds: || vec![Seed::new("none", "none")],
};

fn run(input: &[u8]) {
    match input {
        b"panic" => panic!("planted"),
        b"overflow" => drop(black_box(black_box(255_u8) + input.len() as u8)),
        b"memory" => drop(black_box(vec![0_u8; 2 << 20])),
        b"time" => {
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(1) {
                black_box(began);
            }
        }
        _ => {}
    }
}
