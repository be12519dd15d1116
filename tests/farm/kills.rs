//! kill -9 is a normal event: real Chromium on the starter tasks while coordinator, workers and browsers are killed again and again.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::farm::{Farm, Ground, Role, pause, processes};

/// Each kind of process dies so often.
const KILLS: usize = 4;

const REPEAT: u32 = 4;
const GROUP_SIZE: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Role(Role),
    Browser,
}

#[test]
fn nothing_is_lost_or_repeated_or_left_whatever_is_killed() {
    let seed = std::env::var("FURROW_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| u64::from(std::process::id()));
    println!("FURROW_TEST_SEED={seed}");
    let starter = Path::new(env!("CARGO_MANIFEST_DIR")).join("envs/starter");
    let job = format!(
        "[tasks]\nsampler = \"sequential\"\ngroup_size = {GROUP_SIZE}\n[[tasks.source]]\nsuite = \"starter\"\npath = {starter:?}\nexclude = [\"place\", \"tone\", \"colour\"]\nrepeat = {REPEAT}\n\
         [policy]\nkind = \"scripted\"\nthink_millis = 200\n[policy.grammar]\nextra = [\"drag\", \"select_tab\", \"press_key\", \"write\"]\n\
         [env]\nsessions_max = 6\n[limits]\nlease_millis = 3000\nheartbeat_millis = 300\nattempts_max = 60\nfailure_budget = 1.0\n[records]\nmax_delay_millis = 1000\n"
    );
    let mut farm = Farm::new(Ground::Chromium, &job);
    let mut envs = Vec::new();
    farm.start_all();
    envs.push(farm.pid(Role::Env));

    let mut dice = Dice(seed);
    let mut plan: Vec<Victim> = [
        Victim::Role(Role::Coordinator),
        Victim::Role(Role::Env),
        Victim::Role(Role::Policy),
        Victim::Browser,
    ]
    .into_iter()
    .flat_map(|victim| [victim; KILLS])
    .collect();
    dice.shuffle(&mut plan);
    let mut killed = BTreeMap::new();
    for victim in plan {
        for _ in 0..dice.below(20) {
            pause();
        }
        supervise_env(&mut farm, &mut envs, Duration::from_secs(60), |farm| {
            let now = farm.progress();
            assert!(
                now.as_ref().is_none_or(|now| !now.run_over),
                "no trajectory was in flight when {victim:?} should die: {now:?}"
            );
            now.is_some_and(|now| now.assigned > 0)
        });
        match victim {
            Victim::Role(role) => {
                farm.kill(role);
                farm.start(role);
                if role == Role::Env {
                    envs.push(farm.pid(role));
                }
            }
            Victim::Browser => {
                supervise_env(&mut farm, &mut envs, Duration::from_secs(60), kill_a_browser);
            }
        }
        *killed.entry(victim).or_insert(0) += 1;
    }
    assert!(killed.values().all(|count| *count == KILLS), "{killed:?}");
    supervise_env(&mut farm, &mut envs, Duration::from_secs(240), |farm| !farm.lives(Role::Coordinator));
    farm.finish(Duration::from_secs(60));
    let told =
        farm.check(12 * REPEAT, GROUP_SIZE).unwrap_or_else(|breaches| panic!("seed {seed}: {breaches}"));
    farm.assert_nothing_left(&envs);
    println!("killed {killed:?}: {told}");
}

/// Waits until something is so. An environment worker whose first browsers were killed one after another reports that and leaves; meanwhile it is
/// started again.
fn supervise_env(
    farm: &mut Farm,
    envs: &mut Vec<u32>,
    deadline: Duration,
    mut reached: impl FnMut(&mut Farm) -> bool,
) {
    let began = Instant::now();
    while !reached(farm) {
        if farm.restart_failed(Role::Env) {
            envs.push(farm.pid(Role::Env));
        }
        assert!(began.elapsed() < deadline, "not within {deadline:?}\n{}", farm.outputs());
        pause();
    }
}

/// Kills a browser of the environment worker, if it has one and something is in flight. Whether it did.
fn kill_a_browser(farm: &mut Farm) -> bool {
    let mark = format!("furrow-env-{}-", farm.pid(Role::Env));
    let browser =
        processes().into_iter().find(|process| process.is_browser() && process.command.contains(&mark));
    let Some(browser) = browser else { return false };
    // It may end between the look and the kill; then another is looked for.
    farm.progress().is_some_and(|now| now.assigned > 0)
        && Command::new("kill").args(["-9", &browser.pid.to_string()]).status().unwrap().success()
}

/// A small generator with a printed seed: the order of deaths can be had again.
struct Dice(u64);

impl Dice {
    /// xorshift64* of Vigna; good enough to shuffle.
    fn roll(&mut self) -> u64 {
        self.0 = (self.0 ^ 0x9e37_79b9_7f4a_7c15).max(1);
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index as u64 + 1) as usize);
        }
    }
}
