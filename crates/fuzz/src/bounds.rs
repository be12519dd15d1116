//! Runs an input within bounds of memory and time.

use std::cell::Cell;
use std::env;
use std::panic;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use peak_alloc::PeakAlloc;
use rustix::time::{ClockId, clock_gettime};

use crate::FuzzTarget;

/// Most milliseconds of processor time for an input. An optimised program has 1,000; the default
/// is for one that is not optimised.
const CPU_MILLIS: &str = "FURROW_FUZZ_CPU_MILLIS";
const CPU_MILLIS_USUAL: u64 = 10_000;

#[global_allocator]
static COUNTED: PeakAlloc = PeakAlloc;

/// Number of inputs that a parser accepted.
static ACCEPTED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether a parser runs that catches panics.
    static CATCHES: Cell<bool> = const { Cell::new(false) };
}

/// Prepares the process: a panic ends it, unless the parser that runs catches panics.
pub fn begin() {
    cpu_max();
    // The runtime's own, which ends the process.
    let fatal = panic::take_hook();
    panic::set_hook(Box::new(move |what| {
        if !CATCHES.get() {
            fatal(what);
        }
    }));
}

/// Counts an input, or a part of one, that a parser accepted.
pub(crate) fn accept() {
    ACCEPTED.fetch_add(1, Ordering::Relaxed);
}

/// Whether the parser accepts an input.
pub fn accepts(target: &FuzzTarget, input: &[u8]) -> bool {
    let before = ACCEPTED.load(Ordering::Relaxed);
    run(target, input);
    ACCEPTED.load(Ordering::Relaxed) > before
}

/// Runs an input.
///
/// # Panics
/// If it takes more memory or time than the target's bounds, or breaks a promise.
pub fn examine(target: &FuzzTarget, input: &[u8]) {
    let most = (target.memory_max)(input);
    let before = COUNTED.current_usage();
    COUNTED.reset_peak_usage();
    let began = cpu_time();
    run(target, input);
    let took = cpu_time().saturating_sub(began);
    let peak = COUNTED.peak_usage().saturating_sub(before);
    assert!(peak <= most, "{}: {peak} bytes allocated at once, at most {most} are promised", target.name);
    let cpu_max = cpu_max();
    assert!(took <= cpu_max, "{}: {took:?} of processor time, at most {cpu_max:?}", target.name);
}

fn run(target: &FuzzTarget, input: &[u8]) {
    if !target.catches_panics {
        return (target.run)(input);
    }
    CATCHES.set(true);
    let ended = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    CATCHES.set(false);
    if let Err(what) = ended {
        let text = what.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| what.downcast_ref::<&str>().copied()).unwrap_or_default();
        panic!("{}: a panic was not caught: {text}", target.name);
    }
}

fn cpu_max() -> Duration {
    static MOST: OnceLock<Duration> = OnceLock::new();
    *MOST.get_or_init(|| {
        let millis = env::var(CPU_MILLIS).ok().map_or(CPU_MILLIS_USUAL, |text| {
            text.parse().unwrap_or_else(|_| panic!("{CPU_MILLIS} is {text:?}; set it to milliseconds"))
        });
        Duration::from_millis(millis)
    })
}

/// Time of all threads of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
