//! The shard committer's own thread: gathers what ended and closes a shard by size, by age or on
//! request.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use furrow_rollout::{Group, GroupRecord, Id, Trajectory};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout_at;

use super::{
    CommitError, DISK_FULL_TIMEOUT, FULL_RETRY_MAX, ShardBatch, ShardCommit, ShardCommitter, TrajectoryFacts,
};

/// Most trajectories of a shard: each is a row the ledger changes in one transaction.
const TRAJECTORIES_MAX: usize = 4096;

/// Hands over what ended. When the last clone is dropped, the rest is committed and the thread
/// ends.
#[derive(Debug, Clone)]
pub struct CommitHandle {
    intake: mpsc::Sender<CommitInput>,
}

/// Reports of the committer. They never block it: a report waits here until it is taken, at most
/// one per shard.
#[derive(Debug)]
pub struct CommitReports {
    shared: Arc<SharedReports>,
    thread: Option<JoinHandle<()>>,
}

/// A report of the committer.
#[derive(Debug)]
pub enum CommitReport {
    /// A shard is part of the data set.
    Committed(ShardCommit),
    /// The record of a scored trajectory cannot be read back. The trajectory is left out until it
    /// is handed over again as failed.
    Unreadable {
        trajectory: Id<Trajectory>,
        /// Steps that can be read, from the first one on.
        steps: u32,
        why: String,
    },
    /// The committer failed and ended; what it held is committed after a restart.
    Failed(CommitError),
}

#[derive(Debug)]
enum CommitInput {
    Trajectory(Box<TrajectoryFacts>, Instant),
    Group(Box<GroupRecord>, Instant),
    Flush,
}

#[derive(Debug, Default)]
struct SharedReports {
    reports: Mutex<ReportQueue>,
    news: Notify,
}

#[derive(Debug, Default)]
struct ReportQueue {
    waiting: VecDeque<CommitReport>,
    ended: bool,
}

impl ShardCommitter {
    /// Moves the committer to a thread of its own, with a queue of `queued_max` entries.
    pub fn start(self, queued_max: usize) -> io::Result<(CommitHandle, CommitReports)> {
        let (gathering, intake) = ShardGatherer::new(self, queued_max);
        let shared = Arc::new(SharedReports::default());
        let end = ThreadEnd { shared: Arc::clone(&shared) };
        let run = move || end.report(gathering.run(&end));
        let thread = std::thread::Builder::new().name("commit".to_owned()).spawn(run)?;
        Ok((intake, CommitReports { shared, thread: Some(thread) }))
    }

    /// The same without a thread: it moves when it is told to, and a full disk is tried again at
    /// once.
    #[cfg(feature = "failpoints")]
    pub(crate) fn start_stepped(mut self, queued_max: usize) -> io::Result<(CommitHandle, SteppedCommitter)> {
        self.full_retry = Duration::ZERO;
        let (gathering, intake) = ShardGatherer::new(self, queued_max);
        let end = ThreadEnd { shared: Arc::default() };
        Ok((intake, SteppedCommitter { gathering, end }))
    }
}

/// A committer that moves when it is told to.
#[cfg(feature = "failpoints")]
pub(crate) struct SteppedCommitter {
    gathering: ShardGatherer,
    end: ThreadEnd,
}

#[cfg(feature = "failpoints")]
impl SteppedCommitter {
    /// Commits everything that was handed over. Returns the reports.
    pub(crate) fn commit_all(&mut self) -> Vec<CommitReport> {
        let Self { gathering, end } = self;
        let mut commit = || {
            while let Ok(what) = gathering.arriving.try_recv() {
                if gathering.take(what)? || gathering.is_full() {
                    gathering.commit_batch(end)?;
                }
            }
            gathering.commit_batch(end)
        };
        let result = commit();
        end.report(result);
        end.shared.lock().waiting.drain(..).collect()
    }
}

impl CommitHandle {
    /// Hands over a trajectory that is scored or failed, once its ledger row is committed.
    pub async fn trajectory(&self, facts: TrajectoryFacts) -> Result<(), CommitError> {
        self.hand_over(CommitInput::Trajectory(Box::new(facts), Instant::now())).await
    }

    /// Hands over a group that closed, after the last of its trajectories.
    pub async fn group(&self, group: GroupRecord) -> Result<(), CommitError> {
        self.hand_over(CommitInput::Group(Box::new(group), Instant::now())).await
    }

    /// Closes the open shard whatever its size and age.
    pub async fn flush(&self) -> Result<(), CommitError> {
        self.hand_over(CommitInput::Flush).await
    }

    async fn hand_over(&self, what: CommitInput) -> Result<(), CommitError> {
        let ended =
            |_| CommitError::Stopped { why: "it had already ended; its last report says why".to_owned() };
        self.intake.send(what).await.map_err(ended)
    }
}

impl CommitReports {
    /// The next report, in order; `None` once the committer has ended. Cancel safe.
    pub async fn next(&mut self) -> Option<CommitReport> {
        loop {
            let news = self.shared.news.notified();
            {
                let mut queue = self.shared.lock();
                if let Some(report) = queue.waiting.pop_front() {
                    return Some(report);
                }
                if queue.ended {
                    break;
                }
            }
            news.await;
        }
        // the thread has sent its last report, so this does not wait
        self.thread.take().map(JoinHandle::join);
        None
    }
}

impl SharedReports {
    fn lock(&self) -> MutexGuard<'_, ReportQueue> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports that the thread has ended, even after a panic.
struct ThreadEnd {
    shared: Arc<SharedReports>,
}

impl ThreadEnd {
    fn send(&self, report: CommitReport) {
        self.shared.lock().waiting.push_back(report);
        self.shared.news.notify_one();
    }

    fn report(&self, result: Result<(), CommitError>) {
        if let Err(error) = result {
            self.send(CommitReport::Failed(error));
        }
    }
}

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.send(CommitReport::Failed(CommitError::Stopped { why: "it panicked".to_owned() }));
        }
        self.shared.lock().ended = true;
        self.shared.news.notify_one();
    }
}

struct ShardGatherer {
    committer: ShardCommitter,
    arriving: mpsc::Receiver<CommitInput>,
    batch: ShardBatch,
    /// Unreadable trajectories that were not yet handed over again as failed, and their groups.
    left_out: BTreeMap<Id<Trajectory>, Id<Group>>,
    bytes: u64,
    oldest: Option<Instant>,
}

/// Why the thread woke up.
enum WakeReason {
    Arrived(CommitInput),
    Due,
    Closing,
}

impl ShardGatherer {
    fn new(committer: ShardCommitter, queued_max: usize) -> (Self, CommitHandle) {
        let (intake, arriving) = mpsc::channel(queued_max);
        let batch = ShardBatch::default();
        let left_out = BTreeMap::new();
        (Self { committer, arriving, batch, left_out, bytes: 0, oldest: None }, CommitHandle { intake })
    }

    fn run(mut self, end: &ThreadEnd) -> Result<(), CommitError> {
        loop {
            let must_close = match self.wait() {
                WakeReason::Arrived(what) => self.take(what)?,
                WakeReason::Due => true,
                WakeReason::Closing => break,
            };
            if must_close || self.is_full() {
                self.commit_batch(end)?;
            }
        }
        self.commit_batch(end)
    }

    fn wait(&mut self) -> WakeReason {
        let Self { committer, arriving, oldest, .. } = self;
        let deadline = oldest.map(|oldest| oldest + committer.settings.records.max_delay);
        let arrived = committer.runtime.block_on(async {
            match deadline {
                Some(deadline) => timeout_at(deadline.into(), arriving.recv()).await,
                None => Ok(arriving.recv().await),
            }
        });
        match arrived {
            Ok(Some(what)) => WakeReason::Arrived(what),
            Ok(None) => WakeReason::Closing,
            Err(_) => WakeReason::Due,
        }
    }

    /// Adds the input to the batch. Returns whether the shard must close now.
    fn take(&mut self, what: CommitInput) -> Result<bool, CommitError> {
        let at = match what {
            CommitInput::Flush => return Ok(true),
            // Made when the trajectory still counted as scored; the correct one follows the
            // trajectory.
            CommitInput::Group(group, _)
                if self.left_out.values().any(|left_out| *left_out == group.group_id) =>
            {
                return Ok(false);
            }
            CommitInput::Group(group, at) => {
                self.batch.groups.push(*group);
                at
            }
            CommitInput::Trajectory(facts, at) => {
                self.left_out.remove(&facts.ancestry.trajectory_id);
                self.bytes += self.committer.spool.seal(&facts.ancestry.trajectory_id)?;
                self.batch.trajectories.push(*facts);
                at
            }
        };
        self.oldest.get_or_insert(at);
        Ok(false)
    }

    fn is_full(&self) -> bool {
        // spool bytes estimate file bytes: screenshots dominate and do not compress
        self.bytes >= self.committer.settings.records.max_shard_bytes
            || self.batch.trajectories.len() + self.batch.groups.len() >= TRAJECTORIES_MAX
    }

    /// Commits what was gathered, lets the oldest rows expire, then merges small files: all there
    /// are if nothing waits, and those of one table otherwise, or a busy run would never merge.
    fn commit_batch(&mut self, end: &ThreadEnd) -> Result<(), CommitError> {
        let mut batch = std::mem::take(&mut self.batch);
        (self.bytes, self.oldest) = (0, None);
        while batch != ShardBatch::default() {
            match self.commit_waiting_for_disk(&batch) {
                Err(CommitError::Unreadable { trajectory, steps, why }) => {
                    self.leave_out(&mut batch, &trajectory);
                    end.send(CommitReport::Unreadable { trajectory, steps, why });
                }
                committed => {
                    end.send(CommitReport::Committed(committed?));
                    break;
                }
            }
        }
        self.committer.expire()?;
        if self.arriving.is_empty() { self.committer.merge() } else { self.committer.merge_once().map(drop) }
    }

    /// Removes this trajectory, and its group, whose row says that it was scored.
    fn leave_out(&mut self, batch: &mut ShardBatch, trajectory: &Id<Trajectory>) {
        let is_it = |facts: &TrajectoryFacts| facts.ancestry.trajectory_id == *trajectory;
        let Some(at) = batch.trajectories.iter().position(is_it) else { return };
        let group = batch.trajectories.remove(at).ancestry.group_id;
        batch.groups.retain(|record| record.group_id != group);
        self.left_out.insert(trajectory.clone(), group);
    }

    /// Waits while the disk is full or no descriptor is left: admission has stopped, and the spool
    /// keeps everything.
    fn commit_waiting_for_disk(&mut self, batch: &ShardBatch) -> Result<ShardCommit, CommitError> {
        let mut closing_since = None;
        let mut pause = self.committer.full_retry;
        loop {
            let result = self.committer.commit(batch);
            let Err(error @ (CommitError::DiskFull(_) | CommitError::NoDescriptor(_))) = &result else {
                return result;
            };
            let closing = self.arriving.is_closed().then(|| *closing_since.get_or_insert_with(Instant::now));
            if closing.is_some_and(|since| since.elapsed() >= DISK_FULL_TIMEOUT) {
                return result;
            }
            tracing::warn!(%error, pause_millis = pause.as_millis(), "a shard waits for disk space or a descriptor");
            self.wait_for_disk(pause);
            pause = (pause * 2).min(FULL_RETRY_MAX);
        }
    }

    /// Waits, but no longer than one try apart while the run closes.
    fn wait_for_disk(&self, pause: Duration) {
        let until = Instant::now() + pause;
        loop {
            std::thread::park_timeout(self.committer.full_retry);
            if self.arriving.is_closed() || Instant::now() >= until {
                return;
            }
        }
    }
}
