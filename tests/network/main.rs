//! Whole runs over a network that fails: a coordinator, environment workers and policy workers as
//! in a farm, with real gRPC between them, on hosts that crash and links that delay, hold and cut
//! off.
//!
//! The second tier beside the simulation of `crates/coordinator/tests/simulation`. That one replays
//! each run exactly, because its parts move one at a time and messages are values. Here
//! connections, streams, flow control, keepalives and retries are those of tonic, and ledger, spool
//! and shards have their own threads. Times, faults and the network come from a seed, but not the
//! moments at which threads answer, so a violation prints its seed and the faults of its run.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod accounts;
mod check;
mod farm;
mod faults;
mod transport;

use std::panic::catch_unwind;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::farm::{RunCounts, run_seed};

/// Seeds in every run of the tests, and in the long one without `FURROW_NETWORK_SEEDS`.
const SEEDS: u64 = 4;
const SEEDS_OF_LONG: u64 = 5_000;
const SEEDS_AT_ONCE: u64 = 50;
/// Most of a run is waiting for the disk.
const THREADS: usize = 4;

/// Time that each host gets in turn.
const TICK: Duration = Duration::from_millis(5);

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// Runs each seed from `first` on and returns what the runs went through.
fn run_seeds(first: u64, count: u64) -> RunCounts {
    let next = AtomicU64::new(first);
    let counts: Vec<RunCounts> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let mut counts = RunCounts::default();
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= first + count {
                            return counts;
                        }
                        counts.add(&run_seed(seed).unwrap_or_else(|violation| panic!("{violation}")));
                    }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut sum = RunCounts::default();
    counts.iter().for_each(|counts| sum.add(counts));
    sum
}

/// Names the planted bug for a child.
const BUG: &str = "FURROW_NETWORK_BUG";
/// Seeds that a bug may take.
const BUG_SEEDS_MAX: u64 = 40;

#[test]
fn no_fault_of_the_network_loses_or_doubles_a_trajectory() {
    let began = Instant::now();
    let counts = match number("FURROW_NETWORK_SEED") {
        Some(seed) => run_seeds(seed, 1),
        None => run_seeds(0, SEEDS),
    };
    println!("{counts} in {:.1?}", began.elapsed());
    assert!(counts.runs == 1 || counts.is_varied(), "{counts}");
}

/// The same with many seeds. The next seed is in a file, so that it goes on where it was stopped.
#[test]
#[ignore = "takes hours: tests/long.sh network"]
fn no_fault_of_the_network_loses_or_doubles_a_trajectory_in_thousands_of_runs() {
    let state = std::env::var_os("FURROW_NETWORK_STATE").map(PathBuf::from).expect("FURROW_NETWORK_STATE");
    let last = number("FURROW_NETWORK_SEEDS").unwrap_or(SEEDS_OF_LONG);
    let mut next: u64 = std::fs::read_to_string(&state).map_or(0, |text| text.trim().parse().unwrap());
    while next < last {
        let count = SEEDS_AT_ONCE.min(last - next);
        let began = Instant::now();
        let counts = run_seeds(next, count);
        println!("seeds {next} to {}: {counts} in {:.1?}", next + count - 1, began.elapsed());
        next += count;
        std::fs::write(&state, next.to_string()).unwrap();
    }
    println!("{last} seeds are done; remove {} to begin anew", state.display());
}

/// A coordinator that records a repeated call twice is caught, so the checks can fail.
#[test]
#[ignore = "takes a minute: tests/long.sh network"]
fn a_planted_bug_is_caught() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_with_a_bug", "--ignored", "--nocapture"]);
    command.env(BUG, "1").env("FAILPOINTS", "bug.no_key=return").env("RUST_BACKTRACE", "0");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let caught = text.lines().find(|line| line.starts_with("caught: "));
    println!("{}", caught.unwrap_or_else(|| panic!("not caught in {BUG_SEEDS_MAX} seeds")));
}

#[test]
#[ignore = "runs only as a child of the other test"]
fn child_with_a_bug() {
    assert!(std::env::var_os(BUG).is_some(), "only its parent runs this");
    furrow_coordinator::arm_fail_points();
    for seed in 0..BUG_SEEDS_MAX {
        // An assertion of the code that catches it counts as well.
        let violation = match catch_unwind(|| run_seed(seed)) {
            Ok(Ok(_)) => continue,
            Ok(Err(violation)) => violation,
            Err(_) => format!("seed {seed}: it panicked"),
        };
        println!("caught: {violation:.200}");
        return;
    }
}
