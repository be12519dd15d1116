//! The data behind the pages, and the task that updates it while there are requests.
//!
//! Without requests nothing is read. A request or an open page wakes the task; it reads what was
//! committed since, once a second, and announces changes through a watch channel, which holds only
//! the newest value: a page that does not listen takes no memory.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use furrow_analysis::KeptReport;
use furrow_analysis::view::{DataSetView, TrajectoryQuery};
use furrow_identity::{Authority, Identity, PeerRole};
use furrow_records::{RecordsError, chain};
use furrow_wire::{Channel, Connector as _, TlsConnector};
use serde::Serialize;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::answers::DeviceKind;
use crate::file_identity::FileIdentity;
use crate::history::{MetricsReader, RunHistory};
use crate::live_run::LiveRun;
use crate::plan::{DeviceFloor, PlannedWork};

/// What a dashboard shows.
#[derive(Debug, Clone)]
pub struct DashboardSubject {
    /// Name on the pages: the run's name.
    pub name: String,
    /// Run directory, or the directory of a data set; `None`: only the coordinator's data is shown.
    pub dir: Option<PathBuf>,
    /// Coordinator of a running job, `host:port`; `None`: the address in the run directory.
    pub coordinator: Option<String>,
    /// Folder of the identity to call it with; `None`: that of the run directory.
    pub identity: Option<PathBuf>,
    /// The resolved job as TOML, if known.
    pub job: Option<String>,
    /// The kind of the policy's device.
    pub device: DeviceKind,
    /// Price of a device-hour in US dollars.
    pub usd_per_device_hour: Option<f64>,
    /// What the job plans, if known.
    pub planned: Option<PlannedWork>,
    /// The lower bound of its device, if model and device are known.
    pub floor: Option<Arc<dyn DeviceFloor>>,
}

/// Everything that answers are made of.
pub(crate) struct DashboardState {
    pub subject: DashboardSubject,
    view: RwLock<Option<OpenDataSet>>,
    /// Locked while lines are read, only by the reading task.
    hours: Mutex<Option<MetricsReader>>,
    /// The lines read so far.
    history: RwLock<Arc<RunHistory>>,
    selections: Mutex<VecDeque<SortedSelection>>,
    kept: RwLock<Option<KeptCache>>,
    /// Locked while the report of kept trajectories is rebuilt.
    rebuilding_kept: Mutex<()>,
    trouble: Mutex<Option<String>>,
    live: Mutex<Option<(Instant, LiveRun)>>,
    /// The coordinator's address in the run directory.
    address: Mutex<Option<String>>,
    /// The connection to the coordinator, with its address.
    channel: Mutex<Option<(String, Channel)>>,
    changed: watch::Sender<StateChange>,
    began: Instant,
    /// Milliseconds since `began` at the last request; [`NEVER`] before the first.
    last_request_millis: AtomicU64,
    woken: Notify,
    firsts: watch::Sender<FirstReads>,
    /// When the first answer was asked for.
    first_request: OnceLock<tokio::time::Instant>,
}

/// What has been read once, whatever came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FirstReads {
    /// The data set and the hours, as they were.
    pub files: bool,
    /// Whether a job runs, which the coordinator alone knows.
    pub coordinator: bool,
}

/// The announcement of a change: enough for pages to know what to request again.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(crate) struct StateChange {
    /// Newest commit that was read.
    pub version: u64,
    /// Changes when rows were read again from the start.
    pub generation: u64,
    /// Trajectories in the index.
    pub trajectories: usize,
    /// Number of step files that are not summed up yet.
    pub step_files_left: usize,
    /// Number of lines read of the run's history.
    pub lines: u64,
    /// Why the run cannot be read, if so.
    pub trouble: Option<String>,
    /// Counts of a running job's coordinator: running trajectories, scored trajectories, steps,
    /// first screenshots. `None`: no coordinator answers.
    pub live: Option<(u32, u32, u64, u32)>,
}

/// An open data set, and the identity of its first commit.
struct OpenDataSet {
    view: Arc<DataSetView>,
    /// Identity of its first commit.
    identity: Option<FileIdentity>,
}

/// The report of kept trajectories, the state of the data set it describes, and the time it took.
struct KeptCache {
    data_version: (u64, u64),
    report: Arc<KeptReport>,
    made: Instant,
    took: Duration,
}

/// A sorted selection, cached while a user scrolls through it.
struct SortedSelection {
    query: TrajectoryQuery,
    /// Generation and length of the index.
    index_version: (u64, usize),
    rows: Arc<Vec<u32>>,
}

/// Number of cached selections: at most 40 MB each, for a few users who scroll at the same time.
const SELECTIONS_MAX: usize = 4;
const NEVER: u64 = u64::MAX;
/// Time for which the first answers wait for what they are of.
const FIRST_READ_MAX: Duration = Duration::from_secs(2);
/// Time between two polls while there are requests.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time after a request for which polling continues. An open page keeps it up: it listens to
/// `/api/events`.
const ACTIVE_TIME: Duration = Duration::from_secs(60);
/// Time for which an answer of the coordinator is valid: it is polled once a second, and not
/// without requests.
const LIVE_MAX: Duration = Duration::from_secs(5);
/// The report of kept trajectories reads the whole table; the next one starts after 20 times the
/// time of the last: at most 5 % of one core.
const KEPT_PAUSE: u32 = 20;

impl DashboardState {
    pub(crate) fn new(subject: DashboardSubject) -> Self {
        let hours = subject.dir.as_ref().map(|dir| MetricsReader::new(&dir.join("metrics.jsonl")));
        Self {
            subject,
            view: RwLock::new(None),
            hours: Mutex::new(hours),
            history: RwLock::default(),
            selections: Mutex::default(),
            kept: RwLock::default(),
            rebuilding_kept: Mutex::default(),
            trouble: Mutex::default(),
            live: Mutex::default(),
            address: Mutex::default(),
            channel: Mutex::default(),
            changed: watch::Sender::new(StateChange::default()),
            began: Instant::now(),
            last_request_millis: AtomicU64::new(NEVER),
            woken: Notify::new(),
            firsts: watch::Sender::default(),
            first_request: OnceLock::new(),
        }
    }

    /// Lets the first answers wait for what they are of, where that takes a moment: without it a
    /// run would be shown as empty, or as over. A large data set is answered in part.
    pub(crate) async fn wait_for_first(&self, is_there: impl Fn(&FirstReads) -> bool) {
        let mut firsts = self.firsts.subscribe();
        if is_there(&firsts.borrow_and_update()) {
            return;
        }
        let deadline = *self.first_request.get_or_init(tokio::time::Instant::now) + FIRST_READ_MAX;
        // At the deadline, or when the reader has ended, the answer is of what is there.
        tokio::time::timeout_at(deadline, firsts.wait_for(is_there)).await.ok();
    }

    pub(crate) fn note_first(&self, note: impl FnOnce(&mut FirstReads)) {
        self.firsts.send_if_modified(|firsts| {
            let before = *firsts;
            note(firsts);
            *firsts != before
        });
    }

    pub(crate) fn note_request(&self) {
        self.last_request_millis.store(self.began.elapsed().as_millis() as u64, Relaxed);
        self.woken.notify_waiters();
    }

    /// Waits until there is a recent request.
    pub(crate) async fn wait_for_request(&self) {
        loop {
            // Registers before the check, so that no request in between is missed.
            let woken = self.woken.notified();
            if self.has_recent_request() {
                return;
            }
            woken.await;
        }
    }

    /// The running job, if its coordinator answers.
    pub(crate) fn live(&self) -> Option<LiveRun> {
        let last = lock(&self.live);
        last.as_ref().filter(|(at, _)| at.elapsed() < LIVE_MAX).map(|(_, live)| live.clone())
    }

    /// Stores the coordinator's answer.
    pub(crate) fn set_live(&self, live: Option<LiveRun>) {
        *lock(&self.live) = live.map(|live| (Instant::now(), live));
        self.notify_change();
    }

    /// Stores the coordinator's address in the run directory.
    pub(crate) fn set_address(&self, address: Option<String>) {
        *lock(&self.address) = address;
    }

    /// A connection to the coordinator, if its address is known; connects at first use, and again
    /// for a new address.
    pub(crate) fn coordinator(&self) -> Option<Channel> {
        let written = || lock(&self.address).clone();
        let address = self.subject.coordinator.clone().or_else(written)?;
        let mut channel = lock(&self.channel);
        match &*channel {
            Some((to, channel)) if *to == address => Some(channel.clone()),
            _ => {
                let made = self.connector()?.channel(PeerRole::Coordinator, &address).ok()?;
                *channel = Some((address, made.clone()));
                Some(made)
            }
        }
    }

    /// Calls with the identity of the run, as far as this user has it: who may only read the run
    /// directory sees no running job.
    fn connector(&self) -> Option<TlsConnector> {
        let of_run = || self.subject.dir.as_deref().map(Authority::dir_of_run);
        let folder = self.subject.identity.clone().or_else(of_run)?;
        // A client may end the run; the folder of another machine may hold an observer's.
        let found = Identity::find(&folder, PeerRole::Client, "dashboard")
            .or_else(|_| Identity::find(&folder, PeerRole::Observer, "dashboard"));
        if let Err(error) = &found {
            tracing::debug!(
                error = error as &dyn std::error::Error,
                "no identity to call the coordinator with"
            );
        }
        Some(TlsConnector::new(found.ok()?))
    }

    /// Whether an answering coordinator is that of this run: another run may have taken over the
    /// address.
    pub(crate) fn is_same_run(&self, run_id: &str) -> bool {
        self.subject.dir.is_none() || self.subject.name == run_id
    }

    /// The data set; `None` before its first commit.
    pub(crate) fn view(&self) -> Option<Arc<DataSetView>> {
        let opened = self.view.read().unwrap_or_else(PoisonError::into_inner);
        opened.as_ref().map(|opened| opened.view.clone())
    }

    /// The run's history, as far as it was read.
    pub(crate) fn load_history(&self) -> Arc<RunHistory> {
        self.history.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The changes from now on. Listening counts as a request: the reader may be idle without one.
    pub(crate) fn changes(&self) -> watch::Receiver<StateChange> {
        let changes = self.changed.subscribe();
        self.woken.notify_waiters();
        changes
    }

    /// Rows of the trajectories that a query selects, in its order.
    pub(crate) fn select(&self, view: &DataSetView, query: &TrajectoryQuery) -> Arc<Vec<u32>> {
        let index_view = view.state();
        let of = (index_view.generation, index_view.index.len());
        let mut orders = lock(&self.selections);
        orders.retain(|order| order.index_version == of);
        if let Some(order) = orders.iter().find(|order| order.query == *query) {
            return order.rows.clone();
        }
        drop(orders);
        let rows = Arc::new(index_view.index.select(query));
        drop(index_view);
        let mut orders = lock(&self.selections);
        orders.push_front(SortedSelection { query: query.clone(), index_version: of, rows: rows.clone() });
        orders.truncate(SELECTIONS_MAX);
        rows
    }

    /// The trajectories that a trainer would keep; reads the whole table of trajectories. Returns
    /// the previous report while a new one is being made or if it is recent; `None` while the first
    /// one is being made: no request waits for it.
    pub(crate) fn kept(&self, view: &DataSetView) -> Result<Option<Arc<KeptReport>>, RecordsError> {
        let now = view.summary();
        let of = (now.generation, now.version);
        if let Some(report) = self.cached_kept(|kept| kept.data_version == of || kept.is_fresh_for(of)) {
            return Ok(Some(report));
        }
        let _making = match self.rebuilding_kept.try_lock() {
            Ok(making) => making,
            Err(TryLockError::Poisoned(making)) => making.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(self.cached_kept(|kept| kept.data_version.0 == of.0)),
        };
        let began = Instant::now();
        let report = Arc::new(furrow_analysis::kept(view.data_dir(), None)?);
        let kept = KeptCache {
            data_version: of,
            report: report.clone(),
            made: Instant::now(),
            took: began.elapsed(),
        };
        *self.kept.write().unwrap_or_else(PoisonError::into_inner) = Some(kept);
        Ok(Some(report))
    }

    fn cached_kept(&self, will_do: impl Fn(&KeptCache) -> bool) -> Option<Arc<KeptReport>> {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().filter(|kept| will_do(kept)).map(|kept| kept.report.clone())
    }

    /// Announces the current state if it differs from the last announcement.
    fn notify_change(&self) {
        let mut change = StateChange { trouble: self.trouble(), ..StateChange::default() };
        if let Some(view) = self.view() {
            // Not `state`: it is locked while a million rows are sorted, and this task must not
            // wait.
            let glance = view.summary();
            change.version = glance.version;
            change.generation = glance.generation;
            change.trajectories = glance.trajectories;
            change.step_files_left = glance.step_files_left;
            change.trouble = change.trouble.or(glance.problem);
        }
        change.lines = self.load_history().lines;
        change.live = self.live().map(|LiveRun { progress, .. }| {
            (progress.assigned, progress.scored, progress.steps, progress.first_shown)
        });
        self.changed.send_if_modified(|last| {
            let is_new = *last != change;
            *last = change;
            is_new
        });
    }

    /// Reads what was added since. Blocks.
    fn catch_up(&self, stop: &CancellationToken) {
        let read = self.catch_up_hours().map_err(|error| error.to_string());
        let read = read.and_then(|_| self.catch_up_records(stop).map_err(|error| chain(&error)));
        let trouble = read.err();
        let mut reported = lock(&self.trouble);
        if trouble.is_some() && *reported != trouble {
            warn!(trouble, "the dashboard cannot read the whole run");
        }
        *reported = trouble;
    }

    /// Reads everything; fails with the reason if something cannot be read. Blocks.
    pub(crate) fn read_all(&self, stop: &CancellationToken) -> Result<(), String> {
        self.catch_up(stop);
        self.trouble().map_or(Ok(()), Err)
    }

    /// Why the run could not be read completely at the last read.
    pub(crate) fn trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }

    fn catch_up_hours(&self) -> std::io::Result<()> {
        let mut hours = lock(&self.hours);
        let Some(hours) = hours.as_mut() else { return Ok(()) };
        let read = hours.catch_up();
        let is_gone = hours.is_empty() && self.load_history().lines > 0;
        if is_gone || !matches!(read, Ok(false)) {
            *self.history.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(hours.history());
        }
        read.map(drop)
    }

    fn catch_up_records(&self, stop: &CancellationToken) -> Result<(), RecordsError> {
        let Some(dir) = &self.subject.dir else { return Ok(()) };
        let view = match self.view() {
            Some(view) if !self.is_replaced(&view) => view,
            // `furrow run --clean` restarted the run: another data set has the same name.
            _ => {
                let view = match DataSetView::open(dir) {
                    // A run without a commit.
                    Err(RecordsError::NoDataSet { .. }) => {
                        self.set_view(None);
                        return Ok(());
                    }
                    view => Arc::new(view?),
                };
                let identity = first_commit(view.data_dir());
                self.set_view(Some(OpenDataSet { view: view.clone(), identity }));
                view
            }
        };
        view.catch_up(&|| stop.is_cancelled()).map(drop)
    }

    /// Whether another data set has replaced this one. A first commit that was added since does not
    /// count.
    fn is_replaced(&self, view: &DataSetView) -> bool {
        let now = first_commit(view.data_dir());
        let mut opened = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let Some(opened) = opened.as_mut() else { return false };
        if opened.identity.is_none() && view.summary().version == 0 {
            opened.identity.clone_from(&now);
        }
        opened.identity != now
    }

    fn set_view(&self, opened: Option<OpenDataSet>) {
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = opened;
    }

    fn has_recent_request(&self) -> bool {
        let looked = self.last_request_millis.load(Relaxed);
        let lingers = looked != NEVER && self.began.elapsed() < Duration::from_millis(looked) + ACTIVE_TIME;
        lingers || self.changed.receiver_count() > 0
    }
}

/// Keeps everything up to date until `stop`, while there are requests.
pub(crate) async fn follow(state: Arc<DashboardState>, stop: CancellationToken) {
    while stop.run_until_cancelled(state.wait_for_request()).await.is_some() {
        let reader = state.clone();
        let cancelled = stop.clone();
        let mut reading = tokio::task::spawn_blocking(move || reader.catch_up(&cancelled));
        // A large data set takes minutes to read: announce what is there meanwhile.
        while tokio::time::timeout(POLL_INTERVAL, &mut reading).await.is_err() {
            state.notify_change();
        }
        state.notify_change();
        state.note_first(|firsts| firsts.files = true);
        if stop.run_until_cancelled(tokio::time::sleep(POLL_INTERVAL)).await.is_none() {
            return;
        }
    }
}

impl KeptCache {
    /// Whether the report is too recent to be made again for the same data set.
    fn is_fresh_for(&self, of: (u64, u64)) -> bool {
        self.data_version.0 == of.0 && self.made.elapsed() < self.took * KEPT_PAUSE
    }
}

fn first_commit(data_dir: &Path) -> Option<FileIdentity> {
    let path = data_dir.join("manifest").join(format!("{:020}.json", 1));
    std::fs::metadata(path).ok().as_ref().map(FileIdentity::from_metadata)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
