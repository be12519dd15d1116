//! A folder of runs: its list, a dashboard over each of them, and how they differ.
//!
//! A run is opened when its pages are asked for, and closed when others are. Keys of runs come from
//! the list: no path is made from a request.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use furrow_analysis::{EvaluationQuery, SuccessCounts, compare_runs, success_counts};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answers::{CompareAnswer, ComparisonAnswer, RunLine, RunsAnswer};
use crate::api_error::DashboardApiError;
use crate::comparison::compare;
use crate::follow::{DashboardState, DashboardSubject, follow};
use crate::live::poll;

/// A folder of runs, as its owner lists and describes them. Both calls read files and block.
pub trait RunFolder: Send + Sync {
    /// Where the runs are.
    fn path(&self) -> &Path;
    /// The runs in it now.
    fn list(&self) -> Vec<RunSummary>;
    /// What a dashboard over one of them needs.
    fn subject(&self, dir: &Path) -> DashboardSubject;
}

/// A run of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSummary {
    /// Where its files are.
    pub dir: PathBuf,
    /// `run.name` of its job.
    pub name: String,
    /// `running`, `complete`, `stopped` or `cut off`.
    pub state: String,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Trajectories in the data set; `None` if it cannot be read.
    pub trajectories: Option<u64>,
    /// Wall clock of its first start, UTC.
    pub started: Option<String>,
    /// Kind of the policy, and its checkpoint or model.
    pub policy: String,
}

/// Makes the service of one run.
type MakeRouter = Box<dyn Fn(Arc<DashboardState>, CancellationToken) -> Router + Send + Sync>;

pub(crate) struct RunsState {
    folder: Arc<dyn RunFolder>,
    tracker: TaskTracker,
    stop: CancellationToken,
    make_router: MakeRouter,
    listed: Mutex<Option<(Instant, Arc<Vec<ListedRun>>)>>,
    opened: Mutex<Vec<OpenRun>>,
    counted: Mutex<HashMap<PathBuf, (u64, SuccessCounts)>>,
    compared: Mutex<HashMap<(PathBuf, PathBuf), CachedComparison>>,
}

#[derive(Debug, Clone)]
struct ListedRun {
    key: String,
    summary: RunSummary,
}

struct OpenRun {
    dir: PathBuf,
    router: Router,
    /// Ends its tasks and its streams.
    stop: CancellationToken,
}

struct CachedComparison {
    answer: ComparisonAnswer,
    /// Trajectories of both when it was made.
    of: [Option<u64>; 2],
    made: Instant,
    took: Duration,
}

/// Most runs of a list.
const LISTED_MAX: usize = 500;
/// Runs that are open at a time: an index takes 99 MB for a million trajectories.
const OPENED_MAX: usize = 8;
/// Time for which a list is valid: it looks at every file of the folder.
const LIST_VALID: Duration = Duration::from_secs(3);
/// A comparison reads both tables; the next one starts after 20 times the time of the last.
const COMPARISON_PAUSE: u32 = 20;
/// Most comparisons that are kept.
const COMPARED_MAX: usize = 64;
/// Most runs of a comparison.
pub(crate) const COMPARE_MAX: usize = 6;

impl RunsState {
    pub(crate) fn new(
        folder: Arc<dyn RunFolder>,
        tracker: TaskTracker,
        stop: CancellationToken,
        make_router: MakeRouter,
    ) -> Self {
        Self {
            folder,
            tracker,
            stop,
            make_router,
            listed: Mutex::default(),
            opened: Mutex::default(),
            counted: Mutex::default(),
            compared: Mutex::default(),
        }
    }

    fn list(&self) -> Arc<Vec<ListedRun>> {
        let mut listed = lock(&self.listed);
        if let Some((_, list)) = listed.as_ref().filter(|(at, _)| at.elapsed() < LIST_VALID) {
            return list.clone();
        }
        let list = Arc::new(with_keys(self.folder.path(), self.folder.list()));
        *listed = Some((Instant::now(), list.clone()));
        list
    }

    /// The list with the success of each run. Blocks.
    pub(crate) fn runs(&self) -> RunsAnswer {
        let list = self.list();
        let line = |run: &ListedRun| {
            let summary = &run.summary;
            let counts = self.counts(summary);
            RunLine {
                key: run.key.clone(),
                name: summary.name.clone(),
                dir: relative(self.folder.path(), &summary.dir),
                state: summary.state.clone(),
                policy: summary.policy.clone(),
                started: summary.started.clone(),
                bytes: summary.bytes,
                trajectories: summary.trajectories,
                success_rate: counts.and_then(|counts| counts.success_rate()),
                judged: counts.map(|counts| counts.success_known),
                reward_mean: counts.and_then(|counts| counts.reward_mean()),
            }
        };
        RunsAnswer {
            folder: self.folder.path().display().to_string(),
            runs: list.iter().take(LISTED_MAX).map(line).collect(),
            left_out: list.len().saturating_sub(LISTED_MAX) as u64,
        }
    }

    /// Counts of a data set, read again only when it has grown.
    fn counts(&self, summary: &RunSummary) -> Option<SuccessCounts> {
        let trajectories = summary.trajectories?;
        let known = lock(&self.counted).get(&summary.dir).copied();
        if let Some((_, counts)) = known.filter(|(of, _)| *of == trajectories) {
            return Some(counts);
        }
        let counts = success_counts(&summary.dir).ok()?;
        lock(&self.counted).insert(summary.dir.clone(), (trajectories, counts));
        Some(counts)
    }

    /// How runs differ from the first of them. Blocks.
    pub(crate) fn compare(&self, query: &str) -> Result<CompareAnswer, DashboardApiError> {
        let keys: Vec<String> = url::form_urlencoded::parse(query.as_bytes())
            .filter(|(name, _)| name == "run")
            .map(|(_, key)| key.into_owned())
            .collect();
        if !(2..=COMPARE_MAX).contains(&keys.len()) {
            return Err(DashboardApiError::BadRequest(format!(
                "run: {} runs; name 2 to {COMPARE_MAX}, as run=A&run=B",
                keys.len()
            )));
        }
        let list = self.list();
        let found = keys.iter().map(|key| find(&list, key).ok_or_else(|| missing(key)));
        let found: Vec<&ListedRun> = found.collect::<Result<_, _>>()?;
        let comparisons = found[1..].iter().map(|second| self.comparison(&found[0].summary, &second.summary));
        Ok(CompareAnswer { comparisons: comparisons.collect::<Result<_, _>>()?, keys })
    }

    fn comparison(
        &self,
        first: &RunSummary,
        second: &RunSummary,
    ) -> Result<ComparisonAnswer, DashboardApiError> {
        let pair = (first.dir.clone(), second.dir.clone());
        let of = [first.trajectories, second.trajectories];
        if let Some(known) = lock(&self.compared).get(&pair)
            && (known.of == of || known.made.elapsed() < known.took * COMPARISON_PAUSE)
        {
            return Ok(known.answer.clone());
        }
        let began = Instant::now();
        let found = compare_runs(&first.dir, &second.dir, &EvaluationQuery::default())?;
        let answer = compare(&first.name, &second.name, &found);
        let mut compared = lock(&self.compared);
        if compared.len() >= COMPARED_MAX {
            compared.clear();
        }
        let made =
            CachedComparison { answer: answer.clone(), of, made: Instant::now(), took: began.elapsed() };
        compared.insert(pair, made);
        Ok(answer)
    }

    /// The service of a run, which is opened if it is not. Blocks.
    pub(crate) fn open(&self, key: &str) -> Result<Router, DashboardApiError> {
        let list = self.list();
        let dir = &find(&list, key).ok_or_else(|| missing(key))?.summary.dir;
        let mut opened = lock(&self.opened);
        if let Some(at) = opened.iter().position(|run| run.dir == *dir) {
            // The one that was asked for last is closed last.
            let run = opened.remove(at);
            let router = run.router.clone();
            opened.push(run);
            return Ok(router);
        }
        if opened.len() >= OPENED_MAX {
            opened.remove(0).stop.cancel();
        }
        let stop = self.stop.child_token();
        let state = Arc::new(DashboardState::new(self.folder.subject(dir)));
        self.tracker.spawn(follow(state.clone(), stop.clone()));
        self.tracker.spawn(poll(state.clone(), stop.clone()));
        let router = (self.make_router)(state, stop.clone());
        opened.push(OpenRun { dir: dir.clone(), router: router.clone(), stop });
        Ok(router)
    }
}

fn find<'a>(list: &'a [ListedRun], key: &str) -> Option<&'a ListedRun> {
    list.iter().find(|run| run.key == key)
}

fn missing(key: &str) -> DashboardApiError {
    let key: String = key.chars().take(128).collect();
    DashboardApiError::NotFound(format!("{key}: no such run in this folder; /api/runs lists them"))
}

/// A key for each run: its directory below the folder, in letters that an address keeps.
fn with_keys(folder: &Path, runs: Vec<RunSummary>) -> Vec<ListedRun> {
    let mut listed: Vec<ListedRun> = Vec::new();
    for summary in runs {
        let dir = relative(folder, &summary.dir);
        let safe = |letter: char| {
            if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '~' }
        };
        let plain: String = dir.chars().map(safe).collect();
        // A browser takes a part of dots for a folder.
        let plain = if plain.chars().all(|letter| letter == '.') { "run".to_owned() } else { plain };
        let mut key = plain.clone();
        let mut count = 1;
        while listed.iter().any(|run| run.key == key) {
            count += 1;
            key = format!("{plain}~{count}");
        }
        listed.push(ListedRun { key, summary });
    }
    listed
}

fn relative(folder: &Path, dir: &Path) -> String {
    dir.strip_prefix(folder).unwrap_or(dir).display().to_string()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_has_a_key_of_its_own_that_an_address_keeps() {
        let run = |dir: &str| RunSummary {
            dir: Path::new("/runs").join(dir),
            name: dir.into(),
            state: "complete".into(),
            bytes: 0,
            trajectories: None,
            started: None,
            policy: String::new(),
        };
        let dirs = ["night", "a/b", "a~b", "größe 1", "x?#%2f..", ""];
        let listed = with_keys(Path::new("/runs"), dirs.into_iter().map(run).collect());
        let keys: Vec<&str> = listed.iter().map(|run| run.key.as_str()).collect();
        assert_eq!(keys, ["night", "a~b", "a~b~2", "gr~~e~1", "x~~~2f..", "run"]);
        assert_eq!(find(&listed, "a~b~2").unwrap().summary.name, "a~b");
        assert!(find(&listed, "../etc").is_none());
    }
}
