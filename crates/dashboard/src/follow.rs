//! What is looked at, and the one task that keeps it up to date while somebody looks.
//!
//! Nobody looks: nothing is read. A request or an open page wakes the task; it reads what was published since, once a second, and says
//! so through a watch channel, which holds the newest word alone: a page that does not listen makes nothing grow.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use furrow_records::view::{Query, View};
use furrow_records::{KeptReport, RecordsError};
use furrow_wire::{Channel, Connect as _, Tcp};
use serde::Serialize;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::figures::Device;
use crate::hours::{Hours, Totals};
use crate::live::{self, Live};

/// What a dashboard shows.
#[derive(Debug, Clone)]
pub struct Subject {
    /// What it is called on the pages: the run's name.
    pub name: String,
    /// Run directory, or the folder of a data set; `None`: only what a coordinator says is shown.
    pub dir: Option<PathBuf>,
    /// Coordinator of a running job, `host:port`; where it is left out, the run directory says.
    pub coordinator: Option<String>,
    /// The resolved job, as TOML, where it is known.
    pub job: Option<String>,
    /// What a device is.
    pub device: Device,
    /// Price of an hour of a device in US dollars.
    pub usd_per_device_hour: Option<f64>,
}

/// Everything that requests are answered from.
pub(crate) struct State {
    pub subject: Subject,
    view: RwLock<Option<Arc<View>>>,
    hours: Mutex<Hours>,
    orders: Mutex<VecDeque<Order>>,
    kept: Mutex<Option<(u64, Arc<KeptReport>)>>,
    trouble: Mutex<Option<String>>,
    live: Mutex<Option<Live>>,
    /// The link to the coordinator, with the address it goes to.
    channel: Mutex<Option<(String, Channel)>>,
    changed: watch::Sender<Change>,
    began: Instant,
    /// Milliseconds since `began` at the last request; [`NEVER`] before the first.
    looked: AtomicU64,
    woken: Notify,
}

/// What the pages are told when something changed: enough to know what to ask for again.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(crate) struct Change {
    /// Newest commit that was read.
    pub version: u64,
    /// Trajectories in the index.
    pub trajectories: usize,
    /// Files of steps that are not summed up yet.
    pub step_files_left: usize,
    /// Moments of the run's hours.
    pub moments: usize,
    /// What cannot be read.
    pub trouble: Option<String>,
    /// What a running job's coordinator counts: trajectories that run, that were scored, steps. `None`: none answers.
    pub live: Option<(u32, u32, u64)>,
}

/// A sorted selection, kept while somebody scrolls through it.
struct Order {
    query: Query,
    /// Of the index: its generation and its length.
    of: (u64, usize),
    places: Arc<Vec<u32>>,
}

/// Selections kept: 40 MB each at most, and a few people scroll at once.
const ORDERS_MAX: usize = 4;
/// Nobody looked yet.
const NEVER: u64 = u64::MAX;
/// How often is looked while somebody looks.
const LOOK: Duration = Duration::from_secs(1);
/// How long after a request somebody still looks. An open page asks again within 20 s (`events` of `api.rs`).
const LINGER: Duration = Duration::from_secs(60);

impl State {
    pub fn new(subject: Subject) -> Self {
        let hours = Hours::new(&subject.dir.clone().unwrap_or_default().join("metrics.jsonl"));
        Self {
            subject,
            view: RwLock::new(None),
            hours: Mutex::new(hours),
            orders: Mutex::default(),
            kept: Mutex::default(),
            trouble: Mutex::default(),
            live: Mutex::default(),
            channel: Mutex::default(),
            changed: watch::Sender::new(Change::default()),
            began: Instant::now(),
            looked: AtomicU64::new(NEVER),
            woken: Notify::new(),
        }
    }

    /// Somebody looks.
    pub fn look(&self) {
        self.looked.store(self.began.elapsed().as_millis() as u64, Relaxed);
        self.woken.notify_waiters();
    }

    /// Waits until somebody looks.
    pub async fn until_looked_at(&self) {
        loop {
            // Waits from before the question, so that no request falls in between.
            let woken = self.woken.notified();
            if self.is_looked_at() {
                return;
            }
            woken.await;
        }
    }

    /// The running job, where its coordinator answers.
    pub fn live(&self) -> Option<Live> {
        lock(&self.live).clone()
    }

    /// What the coordinator said.
    pub fn set_live(&self, live: Option<Live>) {
        *lock(&self.live) = live;
        self.tell();
    }

    /// A link to the coordinator, where there may be one; it connects when first used, and a new address gets a new one.
    pub fn coordinator(&self) -> Option<Channel> {
        let written = || live::address(self.subject.dir.as_deref()?);
        let address = self.subject.coordinator.clone().or_else(written)?;
        let mut channel = lock(&self.channel);
        match &*channel {
            Some((to, channel)) if *to == address => Some(channel.clone()),
            _ => {
                let made = Tcp::default().channel(&address).ok()?;
                *channel = Some((address, made.clone()));
                Some(made)
            }
        }
    }

    /// Whether a coordinator that answers is that of this run: an address may have gone over to another run's.
    pub fn is_of(&self, run_id: &str) -> bool {
        self.subject.dir.is_none() || self.subject.name == run_id
    }

    /// The data set; `None` before its first commit.
    pub fn view(&self) -> Option<Arc<View>> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The run's hours.
    pub fn hours(&self) -> MutexGuard<'_, Hours> {
        lock(&self.hours)
    }

    /// Totals of the run's hours.
    pub fn totals(&self) -> Option<Totals> {
        self.hours().totals()
    }

    /// What changed, from now on.
    pub fn changes(&self) -> watch::Receiver<Change> {
        self.changed.subscribe()
    }

    /// Places of the trajectories that a query lets through, in its order.
    pub fn select(&self, view: &View, query: &Query) -> Arc<Vec<u32>> {
        let shown = view.shown();
        let of = (shown.generation, shown.index.len());
        let mut orders = lock(&self.orders);
        orders.retain(|order| order.of == of);
        if let Some(order) = orders.iter().find(|order| order.query == *query) {
            return order.places.clone();
        }
        drop(orders);
        let places = Arc::new(shown.index.select(query));
        drop(shown);
        let mut orders = lock(&self.orders);
        orders.push_front(Order { query: query.clone(), of, places: places.clone() });
        orders.truncate(ORDERS_MAX);
        places
    }

    /// What a trainer would keep. Reads the whole table of trajectories, once for each state of the data set.
    pub fn kept(&self, view: &View) -> Result<Arc<KeptReport>, RecordsError> {
        let version = view.shown().version;
        let mut kept = lock(&self.kept);
        if let Some((of, report)) = &*kept
            && *of == version
        {
            return Ok(report.clone());
        }
        let report = Arc::new(furrow_records::kept(view.data_dir(), None)?);
        *kept = Some((version, report.clone()));
        Ok(report)
    }

    /// Tells what is there now, if it is not what was told last.
    fn tell(&self) {
        let mut change = Change { trouble: lock(&self.trouble).clone(), ..Change::default() };
        if let Some(view) = self.view() {
            let shown = view.shown();
            change.version = shown.version;
            change.trajectories = shown.index.len();
            change.step_files_left = shown.step_files_left();
            change.trouble = change.trouble.or_else(|| shown.problems.first().cloned());
        }
        change.moments = self.hours().moments().len();
        change.live =
            self.live().map(|live| (live.progress.assigned, live.progress.scored, live.progress.steps));
        self.changed.send_if_modified(|last| {
            let is_new = *last != change;
            *last = change;
            is_new
        });
    }

    /// Reads what came since. Blocks.
    fn catch_up(&self, stop: &CancellationToken) {
        let read = self.hours().catch_up().map_err(|error| error.to_string());
        let read = read.and_then(|_| self.catch_up_records(stop).map_err(|error| chain(&error)));
        let trouble = read.err();
        let mut told = lock(&self.trouble);
        if trouble.is_some() && *told != trouble {
            warn!(trouble, "the dashboard cannot read all of the run");
        }
        *told = trouble;
    }

    fn catch_up_records(&self, stop: &CancellationToken) -> Result<(), RecordsError> {
        let Some(dir) = &self.subject.dir else { return Ok(()) };
        let view = match self.view() {
            Some(view) => view,
            None => {
                let view = match View::open(dir) {
                    // A run that has published nothing yet.
                    Err(RecordsError::NoDataSet { .. }) => return Ok(()),
                    view => Arc::new(view?),
                };
                *self.view.write().unwrap_or_else(PoisonError::into_inner) = Some(view.clone());
                view
            }
        };
        view.catch_up(&|| stop.is_cancelled()).map(drop)
    }

    fn is_looked_at(&self) -> bool {
        let looked = self.looked.load(Relaxed);
        let lingers = looked != NEVER && self.began.elapsed() < Duration::from_millis(looked) + LINGER;
        lingers || self.changed.receiver_count() > 0
    }
}

/// Keeps everything up to date until `stop`, as long as somebody looks.
pub(crate) async fn follow(state: Arc<State>, stop: CancellationToken) {
    while stop.run_until_cancelled(state.until_looked_at()).await.is_some() {
        let (reader, told) = (state.clone(), stop.clone());
        let mut reading = tokio::task::spawn_blocking(move || reader.catch_up(&told));
        // A large data set is read for minutes: what is there already is told meanwhile.
        while tokio::time::timeout(LOOK, &mut reading).await.is_err() {
            state.tell();
        }
        state.tell();
        if stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_none() {
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error and its causes on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
