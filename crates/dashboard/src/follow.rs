//! What is looked at, and the one task that keeps it up to date while somebody looks.
//!
//! Nobody looks: nothing is read. A request or an open page wakes the task; it reads what was published since, once a second, and says
//! so through a watch channel, which holds the newest word alone: a page that does not listen makes nothing grow.

use std::collections::VecDeque;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use furrow_records::view::{Query, View};
use furrow_records::{KeptReport, RecordsError, chain};
use furrow_wire::{Channel, Connect as _, Tcp};
use serde::Serialize;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::figures::Device;
use crate::hours::{Hours, Story};
use crate::live::Live;
use crate::plan::{Floor, Planned};

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
    /// What the job plans, where it is known.
    pub planned: Option<Planned>,
    /// What its device could do, where model and device are known.
    pub floor: Option<Arc<dyn Floor>>,
}

/// Everything that requests are answered from.
pub(crate) struct State {
    pub subject: Subject,
    view: RwLock<Option<Opened>>,
    /// Held while lines are read: by the one task that reads, and nobody else.
    hours: Mutex<Option<Hours>>,
    /// What was read of them.
    story: RwLock<Arc<Story>>,
    orders: Mutex<VecDeque<Order>>,
    kept: RwLock<Option<Kept>>,
    /// Held by whoever makes the report anew.
    keeping: Mutex<()>,
    trouble: Mutex<Option<String>>,
    live: Mutex<Option<(Instant, Live)>>,
    /// Where the coordinator listens, as the run directory says.
    address: Mutex<Option<String>>,
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
    /// Another number where rows were read anew.
    pub generation: u64,
    /// Trajectories in the index.
    pub trajectories: usize,
    /// Files of steps that are not summed up yet.
    pub step_files_left: usize,
    /// Lines of the run's hours.
    pub lines: u64,
    /// What cannot be read.
    pub trouble: Option<String>,
    /// What a running job's coordinator counts: trajectories that run, that were scored, steps. `None`: none answers.
    pub live: Option<(u32, u32, u64)>,
}

/// A data set, and which one it is.
struct Opened {
    view: Arc<View>,
    /// Of its first commit.
    identity: Option<Identity>,
}

/// Tells a file from another one that took its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    /// A number may be given again, a moment is not; where the file system knows it.
    created: Option<std::time::SystemTime>,
}

/// What a trainer would keep, of which state of which data set, and what it cost to say so.
struct Kept {
    of: (u64, u64),
    report: Arc<KeptReport>,
    made: Instant,
    took: Duration,
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
/// How long after a request somebody still looks. An open page does so all the time: it listens to `/api/events`.
const LINGER: Duration = Duration::from_secs(60);
/// What a coordinator said counts for so long: it is asked once a second, and not while nobody looks.
const LIVE_MAX: Duration = Duration::from_secs(5);
/// What a trainer keeps is read from the whole table, and not again before 20 times as long has passed: at most 5 % of one core.
const KEPT_PAUSE: u32 = 20;

impl State {
    pub fn new(subject: Subject) -> Self {
        let hours = subject.dir.as_ref().map(|dir| Hours::new(&dir.join("metrics.jsonl")));
        Self {
            subject,
            view: RwLock::new(None),
            hours: Mutex::new(hours),
            story: RwLock::default(),
            orders: Mutex::default(),
            kept: RwLock::default(),
            keeping: Mutex::default(),
            trouble: Mutex::default(),
            live: Mutex::default(),
            address: Mutex::default(),
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
        let said = lock(&self.live);
        said.as_ref().filter(|(at, _)| at.elapsed() < LIVE_MAX).map(|(_, live)| live.clone())
    }

    /// What the coordinator said.
    pub fn set_live(&self, live: Option<Live>) {
        *lock(&self.live) = live.map(|live| (Instant::now(), live));
        self.tell();
    }

    /// Where the run directory says that the coordinator listens.
    pub fn set_address(&self, address: Option<String>) {
        *lock(&self.address) = address;
    }

    /// A link to the coordinator, where there may be one; it connects when first used, and a new address gets a new one.
    pub fn coordinator(&self) -> Option<Channel> {
        let written = || lock(&self.address).clone();
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
        let opened = self.view.read().unwrap_or_else(PoisonError::into_inner);
        opened.as_ref().map(|opened| opened.view.clone())
    }

    /// The run's hours, as far as they were read.
    pub fn story(&self) -> Arc<Story> {
        self.story.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What changed, from now on. Whoever listens looks: the reader may rest because nobody did.
    pub fn changes(&self) -> watch::Receiver<Change> {
        let changes = self.changed.subscribe();
        self.woken.notify_waiters();
        changes
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

    /// What a trainer would keep; reads the whole table of trajectories. A report of before is given where another one is being made,
    /// or was a short while ago; `None` while the first one is being made: nobody waits for it.
    pub fn kept(&self, view: &View) -> Result<Option<Arc<KeptReport>>, RecordsError> {
        let now = view.glance();
        let of = (now.generation, now.version);
        if let Some(report) = self.kept_before(|kept| kept.of == of || kept.is_fresh_for(of)) {
            return Ok(Some(report));
        }
        let _making = match self.keeping.try_lock() {
            Ok(making) => making,
            Err(TryLockError::Poisoned(making)) => making.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(self.kept_before(|kept| kept.of.0 == of.0)),
        };
        let began = Instant::now();
        let report = Arc::new(furrow_records::kept(view.data_dir(), None)?);
        let kept = Kept { of, report: report.clone(), made: Instant::now(), took: began.elapsed() };
        *self.kept.write().unwrap_or_else(PoisonError::into_inner) = Some(kept);
        Ok(Some(report))
    }

    fn kept_before(&self, will_do: impl Fn(&Kept) -> bool) -> Option<Arc<KeptReport>> {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().filter(|kept| will_do(kept)).map(|kept| kept.report.clone())
    }

    /// Tells what is there now, if it is not what was told last.
    fn tell(&self) {
        let mut change = Change { trouble: self.trouble(), ..Change::default() };
        if let Some(view) = self.view() {
            // Not `shown`: whoever sorts a million rows holds it, and this is told from a task that must not wait.
            let glance = view.glance();
            change.version = glance.version;
            change.generation = glance.generation;
            change.trajectories = glance.trajectories;
            change.step_files_left = glance.step_files_left;
            change.trouble = change.trouble.or(glance.problem);
        }
        change.lines = self.story().lines;
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
        let read = self.catch_up_hours().map_err(|error| error.to_string());
        let read = read.and_then(|_| self.catch_up_records(stop).map_err(|error| chain(&error)));
        let trouble = read.err();
        let mut told = lock(&self.trouble);
        if trouble.is_some() && *told != trouble {
            warn!(trouble, "the dashboard cannot read all of the run");
        }
        *told = trouble;
    }

    /// Reads all there is, or says why that cannot be. Blocks.
    pub fn read_all(&self, stop: &CancellationToken) -> Result<(), String> {
        self.catch_up(stop);
        self.trouble().map_or(Ok(()), Err)
    }

    /// Why not all of the run can be read, as it was found when it was read last.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }

    fn catch_up_hours(&self) -> std::io::Result<()> {
        let mut hours = lock(&self.hours);
        let Some(hours) = hours.as_mut() else { return Ok(()) };
        let read = hours.catch_up();
        let is_gone = hours.is_empty() && self.story().lines > 0;
        if is_gone || !matches!(read, Ok(false)) {
            *self.story.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(hours.story());
        }
        read.map(drop)
    }

    fn catch_up_records(&self, stop: &CancellationToken) -> Result<(), RecordsError> {
        let Some(dir) = &self.subject.dir else { return Ok(()) };
        let view = match self.view() {
            Some(view) if !self.is_replaced(&view) => view,
            // `furrow run --clean` began the run anew: under the same name lies another data set.
            _ => {
                let view = match View::open(dir) {
                    // A run that has published nothing yet.
                    Err(RecordsError::NoDataSet { .. }) => {
                        self.show(None);
                        return Ok(());
                    }
                    view => Arc::new(view?),
                };
                let identity = first_commit(view.data_dir());
                self.show(Some(Opened { view: view.clone(), identity }));
                view
            }
        };
        view.catch_up(&|| stop.is_cancelled()).map(drop)
    }

    /// Whether another data set lies where this one was. A first commit that came since is none.
    fn is_replaced(&self, view: &View) -> bool {
        let now = first_commit(view.data_dir());
        let mut opened = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let Some(opened) = opened.as_mut() else { return false };
        if opened.identity.is_none() && view.glance().version == 0 {
            opened.identity.clone_from(&now);
        }
        opened.identity != now
    }

    fn show(&self, opened: Option<Opened>) {
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = opened;
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

impl Kept {
    /// Whether it is too early to say it anew of the same data set.
    fn is_fresh_for(&self, of: (u64, u64)) -> bool {
        self.of.0 == of.0 && self.made.elapsed() < self.took * KEPT_PAUSE
    }
}

impl Identity {
    pub fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino(), created: metadata.created().ok() }
    }
}

fn first_commit(data_dir: &Path) -> Option<Identity> {
    let path = data_dir.join("manifest").join(format!("{:020}.json", 1));
    std::fs::metadata(path).ok().as_ref().map(Identity::of)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
