//! The long tier: as many faults as `FURROW_SIM_FAULTS` says. It goes on where it was stopped.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

use furrow_faulty_disk::Coverage;

use crate::farm::{RunCounts, simulate};
use crate::weather_of;

/// Faults of the disk, unless the environment says otherwise.
const FAULTS: u64 = 500_000;
/// Times that each fault must have happened at each site that is reached.
const LEAST: u64 = 100;
/// Seeds between two notes of how far it is.
const SAVE_EVERY: u64 = 64;

/// How far the storm is.
#[derive(Default)]
struct Progress {
    next_seed: u64,
    seconds: u64,
    counts: RunCounts,
    coverage: Coverage,
    violations: Vec<String>,
}

impl Progress {
    fn read(path: &PathBuf) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut lines = text.lines();
        let mut number = || lines.next().and_then(|line| line.parse().ok()).unwrap_or_default();
        let next_seed = number();
        let seconds = number();
        let counts = RunCounts::of(std::array::from_fn(|_| number()));
        let violations = text.lines().filter_map(|line| line.strip_prefix("violation\t"));
        let violations = violations.map(str::to_owned).collect();
        Self { next_seed, seconds, counts, coverage: Coverage::read(&text), violations }
    }

    fn write(&self, path: &PathBuf, seconds: u64) {
        let numbers: Vec<String> = [self.next_seed, self.seconds + seconds]
            .into_iter()
            .chain(self.counts.numbers())
            .map(|number| number.to_string())
            .collect();
        let violations: String =
            self.violations.iter().map(|one| format!("violation\t{}\n", one.replace('\n', " "))).collect();
        let text = format!("{}\n{}{violations}", numbers.join("\n"), self.coverage.lines());
        let unfinished = path.with_extension("new");
        fs::write(&unfinished, text).unwrap();
        fs::rename(unfinished, path).unwrap();
    }
}

fn number_of(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Runs seeds until there were enough faults; each seed is one run.
#[test]
#[ignore = "takes hours: tests/long.sh sim"]
fn a_long_storm() {
    let wanted = number_of("FURROW_SIM_FAULTS", FAULTS);
    let threads = number_of("FURROW_SIM_THREADS", 2);
    let state = std::env::var_os("FURROW_SIM_STATE")
        .map_or_else(|| std::env::temp_dir().join("furrow-simulation.txt"), PathBuf::from);
    let began = Instant::now();
    let mut progress = Progress::read(&state);
    while progress.coverage.faults() < wanted {
        let next = Mutex::new(progress.next_seed..progress.next_seed + SAVE_EVERY);
        let done = Mutex::new(&mut progress);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(seed) = { next.lock().unwrap().next() } {
                        let result = simulate(seed, weather_of(seed));
                        let mut done = done.lock().unwrap();
                        match result {
                            Ok(outcome) => {
                                done.counts.add(&outcome.counts);
                                done.coverage.merge(&outcome.coverage);
                            }
                            Err(violation) => done.violations.push(violation),
                        }
                    }
                });
            }
        });
        progress.next_seed += SAVE_EVERY;
        progress.write(&state, began.elapsed().as_secs());
    }
    let seconds = progress.seconds + began.elapsed().as_secs();
    println!("{} seeds in {seconds} s, {} faults", progress.next_seed, progress.coverage.faults());
    println!("{:?}\n{}", progress.counts, progress.coverage.table());
    assert!(progress.violations.is_empty(), "{}", progress.violations.join("\n"));
    let gaps = progress.coverage.gaps(LEAST);
    assert!(gaps.is_empty(), "fewer than {LEAST} times: {gaps:?}");
}
