//! kill -9 is a normal event: real Chromium on the starter tasks while coordinator, workers and
//! browsers are killed repeatedly.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::farm::{FarmBrowser, FarmHarness, FarmRole, pause, processes};

/// Number of kills of each kind of process.
const KILLS: usize = 4;

const REPEAT: u32 = 4;
const GROUP_SIZE: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum KillTarget {
    Role(FarmRole),
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
    let mut farm = FarmHarness::new(FarmBrowser::Chromium, &job);
    let mut envs = Vec::new();
    farm.start_all();
    envs.push(farm.pid(FarmRole::Env));

    let mut dice = SeededRandom(seed);
    let mut plan: Vec<KillTarget> = [
        KillTarget::Role(FarmRole::Coordinator),
        KillTarget::Role(FarmRole::Env),
        KillTarget::Role(FarmRole::Policy),
        KillTarget::Browser,
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
            KillTarget::Role(role) => {
                farm.kill(role);
                farm.start(role);
                if role == FarmRole::Env {
                    envs.push(farm.pid(role));
                }
            }
            KillTarget::Browser => {
                supervise_env(&mut farm, &mut envs, Duration::from_secs(60), kill_a_browser);
            }
        }
        *killed.entry(victim).or_insert(0) += 1;
    }
    assert!(killed.values().all(|count| *count == KILLS), "{killed:?}");
    supervise_env(&mut farm, &mut envs, Duration::from_secs(240), |farm| {
        !farm.is_alive(FarmRole::Coordinator)
    });
    farm.finish(Duration::from_secs(60));
    let summary =
        farm.check(12 * REPEAT, GROUP_SIZE).unwrap_or_else(|breaches| panic!("seed {seed}: {breaches}"));
    farm.assert_nothing_left(&envs);
    println!("killed {killed:?}: {summary}");
}

/// A task that may download gives its browser a session folder. The next worker removes what a
/// killed one left of it.
#[test]
fn the_next_worker_removes_the_session_folders_of_a_killed_one() {
    let suite = tempfile::tempdir().unwrap();
    let task = r#"{"task_id":"wait","goal":"Wait.","start_url":"/wait.html","downloads":true,"score":{"kind":"url","path":"/"}}"#;
    std::fs::write(suite.path().join("tasks.jsonl"), task).unwrap();
    std::fs::write(suite.path().join("wait.html"), "<!doctype html><title>wait</title>").unwrap();
    let job = format!(
        "[tasks]\ngroup_size = 1\n[[tasks.source]]\nsuite = \"files\"\npath = {:?}\n\
         [policy]\nkind = \"random\"\nthink_millis = 60000\n[env]\nsessions_max = 1\n\
         [limits]\nlease_millis = 3000\nheartbeat_millis = 300\n",
        suite.path()
    );
    let mut farm = FarmHarness::new(FarmBrowser::Chromium, &job);
    farm.start_all();
    let pid = farm.pid(FarmRole::Env);
    let session = wait_for_session_folder(&farm, pid);
    std::fs::write(session.join("downloads/half.crdownload"), "half of it").unwrap();
    farm.kill(FarmRole::Env);
    assert!(session.join("downloads/half.crdownload").exists(), "nothing removes it at the death");
    farm.start(FarmRole::Env);
    wait_for_session_folder(&farm, farm.pid(FarmRole::Env));
    let left: Vec<PathBuf> = folders_of(pid).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Waits until a worker has made the folder of its first session, and returns it.
fn wait_for_session_folder(farm: &FarmHarness, pid: u32) -> PathBuf {
    let began = Instant::now();
    loop {
        let mut sessions = folders_of(pid).map(|folder| folder.join("0"));
        if let Some(session) = sessions.find(|session| session.join("downloads").is_dir()) {
            return session;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "no session began\n{}", farm.outputs());
        pause();
    }
}

/// What a worker with this process id has among the temporary files.
fn folders_of(pid: u32) -> impl Iterator<Item = PathBuf> {
    let mark = format!("furrow-env-{pid}-");
    let entries = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    entries
        .filter(move |entry| entry.file_name().to_string_lossy().starts_with(&mark))
        .map(|entry| entry.path())
}

/// Waits for a condition. An environment worker whose first browsers were all killed reports that
/// and ends; it is then restarted.
fn supervise_env(
    farm: &mut FarmHarness,
    envs: &mut Vec<u32>,
    deadline: Duration,
    mut reached: impl FnMut(&mut FarmHarness) -> bool,
) {
    let began = Instant::now();
    while !reached(farm) {
        if farm.restart_failed(FarmRole::Env) {
            envs.push(farm.pid(FarmRole::Env));
        }
        assert!(began.elapsed() < deadline, "not within {deadline:?}\n{}", farm.outputs());
        pause();
    }
}

/// Kills a browser of the environment worker, if it has one and a trajectory runs. Returns whether
/// it did.
fn kill_a_browser(farm: &mut FarmHarness) -> bool {
    let mark = format!("furrow-env-{}-", farm.pid(FarmRole::Env));
    let browser =
        processes().into_iter().find(|process| process.is_browser() && process.command.contains(&mark));
    let Some(browser) = browser else { return false };
    // The trajectory may end between the check and the kill; then the next call tries again.
    farm.progress().is_some_and(|now| now.assigned > 0)
        && Command::new("kill").args(["-9", &browser.pid.to_string()]).status().unwrap().success()
}

/// A small generator with a printed seed: the order of deaths can be reproduced.
struct SeededRandom(u64);

impl SeededRandom {
    /// xorshift64* by Vigna; good enough to shuffle.
    fn next_u64(&mut self) -> u64 {
        self.0 = (self.0 ^ 0x9e37_79b9_7f4a_7c15).max(1);
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next_u64() % limit
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index as u64 + 1) as usize);
        }
    }
}
