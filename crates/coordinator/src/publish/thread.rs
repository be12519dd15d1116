//! The publisher's own thread: gathers what ended and closes a shard by size, by age or when told.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use furrow_rollout::{Group, GroupRecord, Id, Trajectory};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout_at;

use super::{Batch, FULL_PATIENCE, FULL_RETRY, PublishError, Published, Publisher, TrajectoryFacts};

/// Most trajectories of a shard: each is a row the ledger changes in one transaction.
const TRAJECTORIES_MAX: usize = 4096;

/// Hands over what ended. When the last clone goes, the rest is published and the thread ends.
#[derive(Debug, Clone)]
pub struct PublishHandle {
    intake: mpsc::Sender<Intake>,
}

/// What became of it. Never in the way of the publisher: a report waits here until somebody asks, at most one a shard.
#[derive(Debug)]
pub struct PublishReports {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// News from the publisher.
#[derive(Debug)]
pub enum PublishReport {
    /// A shard is part of the data set.
    Published(Published),
    /// What was acknowledged of a scored trajectory cannot be read back. It is left out until it comes again as a failed one.
    Unreadable {
        /// Which.
        trajectory: Id<Trajectory>,
        /// Steps from the first one on that can be read.
        steps: u32,
        /// What is wrong.
        why: String,
    },
    /// The publisher gave up and ended; what it held is published after a restart.
    Failed(PublishError),
}

#[derive(Debug)]
enum Intake {
    Trajectory(Box<TrajectoryFacts>, Instant),
    Group(Box<GroupRecord>, Instant),
    Flush,
}

#[derive(Debug, Default)]
struct Shared {
    reports: Mutex<Queue>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<PublishReport>,
    ended: bool,
}

impl Publisher {
    /// Gives the publisher to a thread of its own, with room for `queued_max` things handed over and not yet looked at.
    pub fn start(self, queued_max: usize) -> io::Result<(PublishHandle, PublishReports)> {
        let (intake, arriving) = mpsc::channel(queued_max);
        let shared = Arc::new(Shared::default());
        let end = End { shared: Arc::clone(&shared) };
        let gathering = Gathering {
            publisher: self,
            arriving,
            batch: Batch::default(),
            left_out: BTreeMap::new(),
            bytes: 0,
            oldest: None,
        };
        let run = move || end.report(gathering.run(&end));
        let thread = std::thread::Builder::new().name("publish".to_owned()).spawn(run)?;
        Ok((PublishHandle { intake }, PublishReports { shared, thread: Some(thread) }))
    }
}

impl PublishHandle {
    /// Hands over a trajectory that is scored or failed, once its ledger row is committed.
    pub async fn trajectory(&self, facts: TrajectoryFacts) -> Result<(), PublishError> {
        self.hand_over(Intake::Trajectory(Box::new(facts), Instant::now())).await
    }

    /// Hands over a group that closed, after the last of its trajectories.
    pub async fn group(&self, group: GroupRecord) -> Result<(), PublishError> {
        self.hand_over(Intake::Group(Box::new(group), Instant::now())).await
    }

    /// Closes the shard in hand whatever its size and age.
    pub async fn flush(&self) -> Result<(), PublishError> {
        self.hand_over(Intake::Flush).await
    }

    async fn hand_over(&self, what: Intake) -> Result<(), PublishError> {
        let ended =
            |_| PublishError::Stopped { why: "it had ended before, its last report says why".to_owned() };
        self.intake.send(what).await.map_err(ended)
    }
}

impl PublishReports {
    /// The next report, in order; `None` once the publisher has ended. May be dropped while waiting.
    pub async fn next(&mut self) -> Option<PublishReport> {
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
        // it has said its last word, so this does not wait
        self.thread.take().map(JoinHandle::join);
        None
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that the thread has ended, even when it panicked.
struct End {
    shared: Arc<Shared>,
}

impl End {
    fn tell(&self, report: PublishReport) {
        self.shared.lock().waiting.push_back(report);
        self.shared.news.notify_one();
    }

    fn report(&self, result: Result<(), PublishError>) {
        if let Err(error) = result {
            self.tell(PublishReport::Failed(error));
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell(PublishReport::Failed(PublishError::Stopped { why: "it panicked".to_owned() }));
        }
        self.shared.lock().ended = true;
        self.shared.news.notify_one();
    }
}

struct Gathering {
    publisher: Publisher,
    arriving: mpsc::Receiver<Intake>,
    batch: Batch,
    /// Unreadable trajectories that have not come again as failed ones, and their groups.
    left_out: BTreeMap<Id<Trajectory>, Id<Group>>,
    bytes: u64,
    oldest: Option<Instant>,
}

/// Why the thread woke up.
enum Woken {
    Arrived(Intake),
    Due,
    Closing,
}

impl Gathering {
    fn run(mut self, end: &End) -> Result<(), PublishError> {
        loop {
            let told = match self.wait() {
                Woken::Arrived(what) => self.take(what)?,
                Woken::Due => true,
                Woken::Closing => break,
            };
            if told || self.is_full() {
                self.publish(end)?;
            }
        }
        self.publish(end)
    }

    fn wait(&mut self) -> Woken {
        let Self { publisher, arriving, oldest, .. } = self;
        let deadline = oldest.map(|oldest| oldest + publisher.settings.records.max_delay);
        let arrived = publisher.runtime.block_on(async {
            match deadline {
                Some(deadline) => timeout_at(deadline.into(), arriving.recv()).await,
                None => Ok(arriving.recv().await),
            }
        });
        match arrived {
            Ok(Some(what)) => Woken::Arrived(what),
            Ok(None) => Woken::Closing,
            Err(_) => Woken::Due,
        }
    }

    /// Says whether the shard must close now.
    fn take(&mut self, what: Intake) -> Result<bool, PublishError> {
        let at = match what {
            Intake::Flush => return Ok(true),
            // Made when the trajectory still counted as scored; the right one comes after the trajectory.
            Intake::Group(group, _) if self.left_out.values().any(|left_out| *left_out == group.group_id) => {
                return Ok(false);
            }
            Intake::Group(group, at) => {
                self.batch.groups.push(*group);
                at
            }
            Intake::Trajectory(facts, at) => {
                self.left_out.remove(&facts.ancestry.trajectory_id);
                self.bytes += self.publisher.spool.seal(&facts.ancestry.trajectory_id)?;
                self.batch.trajectories.push(*facts);
                at
            }
        };
        self.oldest.get_or_insert(at);
        Ok(false)
    }

    fn is_full(&self) -> bool {
        // what lies in the spool is what the files will hold: pictures, which do not compress
        self.bytes >= self.publisher.settings.records.max_shard_bytes
            || self.batch.trajectories.len() + self.batch.groups.len() >= TRAJECTORIES_MAX
    }

    /// Publishes what was gathered, then tidies up if nobody waits.
    fn publish(&mut self, end: &End) -> Result<(), PublishError> {
        let mut batch = std::mem::take(&mut self.batch);
        (self.bytes, self.oldest) = (0, None);
        while batch != Batch::default() {
            match self.publish_when_there_is_room(&batch) {
                Err(PublishError::Unreadable { trajectory, steps, why }) => {
                    self.leave_out(&mut batch, &trajectory);
                    end.tell(PublishReport::Unreadable { trajectory, steps, why });
                }
                published => {
                    end.tell(PublishReport::Published(published?));
                    break;
                }
            }
        }
        if self.arriving.is_empty() { self.publisher.merge() } else { Ok(()) }
    }

    /// Without this trajectory, and without its group, whose row says that it was scored.
    fn leave_out(&mut self, batch: &mut Batch, trajectory: &Id<Trajectory>) {
        let is_it = |facts: &TrajectoryFacts| facts.ancestry.trajectory_id == *trajectory;
        let Some(at) = batch.trajectories.iter().position(is_it) else { return };
        let group = batch.trajectories.remove(at).ancestry.group_id;
        batch.groups.retain(|record| record.group_id != group);
        self.left_out.insert(trajectory.clone(), group);
    }

    /// A full disk is waited for: admission has stopped, and the spool keeps everything.
    fn publish_when_there_is_room(&mut self, batch: &Batch) -> Result<Published, PublishError> {
        let mut closing_since = None;
        loop {
            let result = self.publisher.publish(batch);
            let Err(PublishError::DiskFull(_)) = &result else { return result };
            let closing = self.arriving.is_closed().then(|| *closing_since.get_or_insert_with(Instant::now));
            if closing.is_some_and(|since| since.elapsed() >= FULL_PATIENCE) {
                return result;
            }
            tracing::warn!("no space left for a shard: waiting for some");
            std::thread::park_timeout(FULL_RETRY);
        }
    }
}
