//! The ledger's own thread: requests that arrive during a commit share the next one.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::{Ledger, LedgerError, Mutation};
use crate::crash;

/// Every fail point of this module: around all commits, and around those that hold a kind of
/// decision.
pub const LEDGER_FAIL_POINTS: &[&str] = &[
    "ledger.before_commit",
    "ledger.after_commit",
    "ledger.before_run_open",
    "ledger.after_run_open",
    "ledger.before_group_draw",
    "ledger.after_group_draw",
    "ledger.before_assign",
    "ledger.after_assign",
    "ledger.before_finish",
    "ledger.after_finish",
    "ledger.before_score",
    "ledger.after_score",
    "ledger.before_fail",
    "ledger.after_fail",
    "ledger.before_group_close",
    "ledger.after_group_close",
    "ledger.before_shard_open",
    "ledger.after_shard_open",
    "ledger.before_shard_write",
    "ledger.after_shard_write",
    "ledger.before_shard_commit",
    "ledger.after_shard_commit",
    "ledger.before_shard_abandon",
    "ledger.after_shard_abandon",
    "ledger.before_version_propose",
    "ledger.after_version_propose",
    "ledger.before_version_take",
    "ledger.after_version_take",
    "ledger.before_version_refuse",
    "ledger.after_version_refuse",
    "ledger.before_version_withdraw",
    "ledger.after_version_withdraw",
    "ledger.before_evaluation_begin",
    "ledger.after_evaluation_begin",
    "ledger.before_evaluation_end",
    "ledger.after_evaluation_end",
];

/// How often a full disk is tried again.
const FULL_RETRY: Duration = Duration::from_millis(500);

/// Bounds of the ledger's queue.
#[derive(Debug, Clone, Copy)]
pub struct LedgerLimits {
    /// Commits that may wait in the queue; further callers wait for space in it.
    pub queued_max: usize,
    /// Commits that share one transaction.
    pub batch_max: usize,
    /// How long a commit waits for a full disk, or for a lock of another process, before it fails.
    pub disk_full_timeout: Duration,
    /// How long it waits between two tries then.
    pub full_retry: Duration,
}

impl Default for LedgerLimits {
    /// 64 commits per transaction bring 25 times the rate of single ones on a disk of 250 syncs a
    /// second; 1,024 waiting commits are then 65 ms of work. A minute is enough to rotate a log or
    /// to page an operator.
    fn default() -> Self {
        Self {
            queued_max: 1024,
            batch_max: 64,
            disk_full_timeout: Duration::from_secs(60),
            full_retry: FULL_RETRY,
        }
    }
}

/// Commits through the ledger's thread. Dropping the last clone waits for the requested commits.
#[derive(Debug, Clone)]
pub struct LedgerHandle {
    owner: Arc<LedgerThread>,
}

#[derive(Debug)]
struct LedgerThread {
    commits: Option<mpsc::Sender<CommitRequest>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct CommitRequest {
    mutations: Vec<Mutation>,
    answer: oneshot::Sender<Result<(), LedgerError>>,
}

impl LedgerHandle {
    /// Gives the ledger to a thread of its own.
    pub fn start(ledger: impl Ledger + 'static, limits: LedgerLimits) -> io::Result<Self> {
        let (commits, queue) = mpsc::channel(limits.queued_max);
        let worker = LedgerWorker { ledger, queue, limits };
        let thread = std::thread::Builder::new().name("ledger".to_owned()).spawn(|| worker.run())?;
        Ok(Self { owner: Arc::new(LedgerThread { commits: Some(commits), thread: Some(thread) }) })
    }

    /// Returns once the mutations are durable, all of them or none.
    pub async fn commit(&self, mutations: Vec<Mutation>) -> Result<(), LedgerError> {
        let (answer, answered) = oneshot::channel();
        let commits = self.commits()?;
        commits.send(CommitRequest { mutations, answer }).await.map_err(|_| LedgerError::Stopped)?;
        answered.await.map_err(|_| LedgerError::Stopped)?
    }

    /// The same for a thread that may block.
    pub fn commit_blocking(&self, mutations: Vec<Mutation>) -> Result<(), LedgerError> {
        let (answer, answered) = oneshot::channel();
        let commits = self.commits()?;
        commits.blocking_send(CommitRequest { mutations, answer }).map_err(|_| LedgerError::Stopped)?;
        answered.blocking_recv().map_err(|_| LedgerError::Stopped)?
    }

    fn commits(&self) -> Result<&mpsc::Sender<CommitRequest>, LedgerError> {
        self.owner.commits.as_ref().ok_or(LedgerError::Stopped)
    }
}

impl Drop for LedgerThread {
    fn drop(&mut self) {
        self.commits = None;
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the ledger's thread panicked");
            }
        }
    }
}

struct LedgerWorker<L> {
    ledger: L,
    queue: mpsc::Receiver<CommitRequest>,
    limits: LedgerLimits,
}

impl<L: Ledger> LedgerWorker<L> {
    fn run(mut self) {
        while let Some(first) = self.queue.blocking_recv() {
            let mut batch = vec![first];
            while batch.len() < self.limits.batch_max
                && let Ok(next) = self.queue.try_recv()
            {
                batch.push(next);
            }
            self.perform(batch);
        }
    }

    fn perform(&mut self, batch: Vec<CommitRequest>) {
        let (mutations, parts, answers) = joined(batch);
        let results = match self.commit(&mutations) {
            // one refused commit must not fail the others in its batch
            Err(LedgerError::Refused { .. }) if parts.len() > 1 => {
                parts.into_iter().map(|part| self.commit(&mutations[part])).collect()
            }
            result => vec![result; parts.len()],
        };
        for (answer, result) in answers.into_iter().zip(results) {
            // the caller may be gone; what is committed stays committed
            answer.send(result).ok();
        }
    }

    fn commit(&mut self, mutations: &[Mutation]) -> Result<(), LedgerError> {
        pass_fail_points("before", mutations);
        self.commit_waiting(mutations)?;
        pass_fail_points("after", mutations);
        Ok(())
    }

    /// Waits while the disk is full or another process has the database locked.
    fn commit_waiting(&mut self, mutations: &[Mutation]) -> Result<(), LedgerError> {
        let deadline = Instant::now() + self.limits.disk_full_timeout;
        loop {
            let result = self.ledger.commit(mutations);
            let Err(error @ (LedgerError::DiskFull { .. } | LedgerError::Busy { .. })) = &result else {
                return result;
            };
            if Instant::now() >= deadline || self.queue.is_closed() {
                return result;
            }
            tracing::warn!(%error, "the ledger waits");
            std::thread::park_timeout(self.limits.full_retry);
        }
    }
}

type CommitAnswer = oneshot::Sender<Result<(), LedgerError>>;

fn joined(batch: Vec<CommitRequest>) -> (Vec<Mutation>, Vec<Range<usize>>, Vec<CommitAnswer>) {
    let mut mutations = Vec::new();
    let mut parts = Vec::new();
    let mut answers = Vec::new();
    for commit in batch {
        let start = mutations.len();
        mutations.extend(commit.mutations);
        parts.push(start..mutations.len());
        answers.push(commit.answer);
    }
    (mutations, parts, answers)
}

/// The fail points around a commit.
fn pass_fail_points(when: &str, mutations: &[Mutation]) {
    if cfg!(feature = "failpoints") {
        crash::point(&format!("ledger.{when}_commit"));
        mutations.iter().for_each(|mutation| crash::point(&format!("ledger.{when}_{}", mutation.verb())));
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Mutex;

    use furrow_rollout::{Id, Shard, Trajectory};

    use super::*;
    use crate::ledger::conformance::{drawn, opened, sample_mutations};
    use crate::ledger::{CommittedShard, LedgerSnapshot, MemoryLedger, ShardPhase, TrajectoryFate};

    /// Counts commits, fails some of them as a full disk would, and is slow enough for others to
    /// queue behind it.
    struct SlowLedger {
        inner: MemoryLedger,
        sizes: Arc<Mutex<Vec<usize>>>,
        full: usize,
        entered: mpsc::Sender<()>,
        gate: std::sync::mpsc::Receiver<()>,
    }

    impl Ledger for SlowLedger {
        fn commit(&mut self, mutations: &[Mutation]) -> Result<(), LedgerError> {
            self.entered.blocking_send(()).unwrap();
            self.gate.recv().unwrap();
            self.sizes.lock().unwrap().push(mutations.len());
            if self.full > 0 {
                self.full -= 1;
                let source = Arc::new(io::Error::from(io::ErrorKind::StorageFull));
                return Err(LedgerError::DiskFull { path: PathBuf::from("ledger"), source });
            }
            self.inner.commit(mutations)
        }
        fn load(&mut self) -> Result<LedgerSnapshot, LedgerError> {
            self.inner.load()
        }
        fn fate(&mut self, id: &Id<Trajectory>) -> Result<Option<TrajectoryFate>, LedgerError> {
            self.inner.fate(id)
        }
        fn shard_of(&mut self, id: &Id<Trajectory>) -> Result<Option<Id<Shard>>, LedgerError> {
            self.inner.shard_of(id)
        }
        fn committed_shards(&mut self, from: u64) -> Result<Vec<CommittedShard>, LedgerError> {
            self.inner.committed_shards(from)
        }
        fn newest_commit(&mut self) -> Result<u64, LedgerError> {
            self.inner.newest_commit()
        }
        fn shard_phase(&mut self, id: &Id<Shard>) -> Result<Option<ShardPhase>, LedgerError> {
            self.inner.shard_phase(id)
        }
    }

    /// The test's side of a slow ledger.
    struct SlowLedgerProbe {
        entered: mpsc::Receiver<()>,
        open: std::sync::mpsc::SyncSender<()>,
        sizes: Arc<Mutex<Vec<usize>>>,
    }

    /// A ledger that fails as a full disk would for the first `full` commits, and lets `passes`
    /// commits through before it waits for the test.
    fn slow(full: usize, passes: usize) -> (SlowLedger, SlowLedgerProbe) {
        let (open, gate) = std::sync::mpsc::sync_channel(100);
        (0..passes).for_each(|_| open.send(()).unwrap());
        let (entering, entered) = mpsc::channel(100);
        let sizes = Arc::default();
        let watch = SlowLedgerProbe { entered, open, sizes: Arc::clone(&sizes) };
        (SlowLedger { inner: MemoryLedger::default(), sizes, full, entered: entering, gate }, watch)
    }

    #[tokio::test]
    async fn waiting_commits_share_a_transaction_and_a_refused_one_stands_alone() {
        let (ledger, mut watch) = slow(0, 0);
        let handle = LedgerHandle::start(ledger, LedgerLimits::default()).unwrap();
        let commit = |mutations: Vec<Mutation>| {
            let handle = handle.clone();
            tokio::spawn(async move { handle.commit(mutations).await })
        };
        let first = commit(vec![opened()]);
        watch.entered.recv().await.unwrap();
        // the thread is now in the first commit; these three queue behind it, in this order
        let good = commit(vec![drawn(0)]);
        let bad = commit(vec![drawn(7)]);
        let last = commit(vec![drawn(1)]);
        while handle.commits().unwrap().capacity() != 1024 - 3 {
            tokio::task::yield_now().await;
        }
        (0..5).for_each(|_| watch.open.send(()).unwrap());
        first.await.unwrap().unwrap();
        good.await.unwrap().unwrap();
        let refused = bad.await.unwrap().unwrap_err().to_string();
        assert!(refused.contains("the next group is 1, not 7"), "{refused}");
        last.await.unwrap().unwrap();
        assert_eq!(*watch.sizes.lock().unwrap(), [1, 3, 1, 1, 1]);
    }

    #[test]
    fn a_full_disk_is_waited_for() {
        let (ledger, watch) = slow(1, 2);
        let handle = LedgerHandle::start(ledger, LedgerLimits::default()).unwrap();
        handle.commit_blocking(vec![opened()]).unwrap();
        assert_eq!(watch.sizes.lock().unwrap().len(), 2);
    }

    #[test]
    fn waiting_for_a_full_disk_times_out() {
        let (ledger, _watch) = slow(1, 2);
        let limits = LedgerLimits { disk_full_timeout: Duration::ZERO, ..LedgerLimits::default() };
        let handle = LedgerHandle::start(ledger, limits).unwrap();
        let error = handle.commit_blocking(vec![opened()]).unwrap_err();
        assert!(matches!(error, LedgerError::DiskFull { .. }), "{error}");
        handle.commit_blocking(vec![opened()]).unwrap();
    }

    #[test]
    fn every_kind_of_decision_has_its_fail_points() {
        for mutation in sample_mutations() {
            for when in ["before", "after"] {
                let name = format!("ledger.{when}_{}", mutation.verb());
                assert!(LEDGER_FAIL_POINTS.contains(&name.as_str()), "{name}");
            }
        }
        assert_eq!(LEDGER_FAIL_POINTS.len(), 2 * (sample_mutations().len() + 1));
    }
}
