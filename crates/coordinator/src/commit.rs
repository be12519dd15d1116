//! Commits shards: what ended becomes durable Parquet files, the files become part of the data set,
//! and the spool deletes its copy.
//!
//! The order guarantees recovery. Ids enter the ledger before the first byte; files are durable and
//! checked before the ledger calls them written; the manifest names them only then; the spool keeps
//! everything until it does. After a crash between any two stages,
//! [`recover`](ShardCommitter::recover) finishes or undoes the shard.

mod error;
mod inspect;
mod reconcile;
mod record;
mod recover;
mod repair;
mod settle;
mod stage;
mod survey;
mod thread;

#[cfg(test)]
mod tests;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use furrow_records::{
    CommitDraft, Manifest, Op, RecordsConfig, RecordsError, ShardPlan, ShardWriter, Table, WrittenFile,
    check_written, merge, merge::MergePlanner, remove_shard,
};
use furrow_rollout::{Group, GroupRecord, Id, Run, Shard, Trajectory};
use furrow_telemetry::RowsExpired;
use tokio::runtime::{Builder, Runtime};

use crate::card::renew_card;
use crate::crash;
use crate::ledger::{LedgerHandle, Mutation, ShardOpening};
use crate::lost_found::LostFound;
use crate::spool::Spool;
pub use error::CommitError;
pub use inspect::{RepairedBy, RunFinding, RunInspection, inspect_run};
pub(crate) use inspect::{inspect_copy, read_commits};
pub(crate) use record::TrajectoryFacts;
use record::TrajectoryRows;
pub(crate) use recover::RecoveredRun;
pub(crate) use recover::{check_manifest_is_whole, check_run_dir};
pub use repair::{RunRepair, repair_run};
pub use stage::CommitStage;
pub(crate) use stage::EXPIRY_FAIL_POINTS;
use stage::pass_expiry;
#[cfg(feature = "failpoints")]
pub(crate) use thread::SteppedCommitter;
pub(crate) use thread::{CommitHandle, CommitReport, CommitReports};

/// How long a shard whose files are written waits for disk space for its manifest commit.
const DISK_FULL_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a full disk is waited for before the next try.
const FULL_RETRY: Duration = Duration::from_millis(500);

/// The same after many tries: each writes until the disk is full again.
const FULL_RETRY_MAX: Duration = Duration::from_secs(30);

/// How long merging pauses after a failure that is no damage of a part.
const MERGE_PAUSE: Duration = Duration::from_secs(60);

/// How often files that left the data set are checked for the end of their grace.
const RETIRE_EVERY: Duration = Duration::from_secs(60);

/// The rows of one shard.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ShardBatch {
    /// Trajectories that ended, in no other shard.
    pub trajectories: Vec<TrajectoryFacts>,
    /// Closed groups; their trajectories are in this batch or committed.
    pub groups: Vec<GroupRecord>,
}

/// A shard that is part of the data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardCommit {
    pub shard_id: Id<Shard>,
    /// The manifest commit that names it.
    pub manifest_version: u64,
    pub trajectories: Vec<Id<Trajectory>>,
    pub groups: Vec<Id<Group>>,
    pub files: Vec<WrittenFile>,
    /// Time since its opening.
    pub took: Duration,
}

/// What a shard committer needs to know about the job.
#[derive(Debug, Clone)]
pub(crate) struct CommitSettings {
    pub run_dir: PathBuf,
    /// The run's `data` folder.
    pub data_dir: PathBuf,
    pub run_id: Id<Run>,
    /// The job as TOML, without secrets and paths of this machine.
    pub job_toml: String,
    /// When shards close and how they are packed.
    pub records: RecordsConfig,
}

/// Commits one shard after another. Blocks: it runs on a thread of its own.
pub struct ShardCommitter {
    settings: CommitSettings,
    epoch: u64,
    next_shard: u64,
    spool: Spool,
    ledger: LedgerHandle,
    manifest: Manifest,
    runtime: BlockingRuntime,
    lost_found: LostFound,
    /// A shard that is opened and waits for disk space or a descriptor.
    waiting: Option<ShardOpening>,
    /// No merge before this time: the last one failed.
    merges_from: Instant,
    /// Knows which committed files are merged, and which are left alone.
    planner: MergePlanner,
    retired_at: Option<Instant>,
    /// When it began, by both clocks.
    began: (Instant, i64),
    /// How long a full disk is waited for before the next try.
    full_retry: Duration,
    reached: Box<dyn FnMut(CommitStage) + Send>,
}

/// A shard whose files are written and checked; it can only be committed.
struct WrittenShard {
    draft: CommitDraft,
    trajectories: Vec<Id<Trajectory>>,
}

/// Runs async code on a thread that may block. Unlike a bare runtime it may be dropped anywhere.
struct BlockingRuntime(Option<Runtime>);

impl ShardCommitter {
    /// Commits one shard, from its opening to the deletion of the spool's copy.
    pub fn commit(&mut self, batch: &ShardBatch) -> Result<ShardCommit, CommitError> {
        let began = Instant::now();
        let opening = self.open_again(batch)?;
        let files = match self.write(&opening.shard_id, batch) {
            Err(CommitError::Records(full)) if full.is_disk_full() => {
                self.set_back(opening)?;
                return Err(CommitError::DiskFull(full));
            }
            Err(shortage) if shortage.is_descriptor_shortage() => {
                self.set_back(opening)?;
                return Err(CommitError::NoDescriptor(Box::new(shortage)));
            }
            Err(unreadable @ CommitError::Unreadable { .. }) => {
                self.undo(&opening.shard_id)?;
                return Err(unreadable);
            }
            files => files?,
        };
        let draft = self.draft(Op::Append, opening.shard_id.clone(), files.clone(), Vec::new());
        let written = WrittenShard { draft, trajectories: opening.trajectories.clone() };
        self.remember(&written)?;
        let manifest_version = self.finish(&written)?;
        let ShardOpening { shard_id, trajectories, groups, .. } = opening;
        Ok(ShardCommit { shard_id, manifest_version, trajectories, groups, files, took: began.elapsed() })
    }

    /// Merges small files until there are few. Their rows are safe as they are, so a failure only
    /// leaves some of them as they are.
    ///
    /// Parts stay on disk for readers of older versions until the grace is over.
    pub fn merge(&mut self) -> Result<(), CommitError> {
        while self.merge_once()? {}
        Ok(())
    }

    /// Merges the small files of one table into one, where enough have gathered: of the table that
    /// has the most. Returns whether there was one.
    pub fn merge_once(&mut self) -> Result<bool, CommitError> {
        self.retire();
        if Instant::now() < self.merges_from {
            return Ok(false);
        }
        let CommitSettings { data_dir, run_id, records, .. } = &self.settings;
        let schema = |file: &WrittenFile| merge::mergeable_schema(data_dir, run_id, file);
        let plans = self.planner.plan(self.manifest.snapshot(), records, schema);
        let Some(plan) = plans.into_iter().max_by_key(|plan| plan.parts.len()) else { return Ok(false) };
        self.merge_table(&plan)?;
        Ok(true)
    }

    /// Takes the oldest rows out of the data set, where there are more than the job keeps. Their
    /// files stay on disk for readers of older versions until the grace is over.
    ///
    /// A shard without rows and files records it, so a crash at any stage leaves what a merge
    /// leaves.
    pub fn expire(&mut self) -> Result<(), CommitError> {
        let retention = self.settings.records.retention;
        while let Some(plan) = retention.plan(self.manifest.snapshot(), self.unhurried_micros()) {
            let opening = self.opening(Vec::new(), Vec::new(), plan.removed.clone())?;
            self.remember_opening(&opening)?;
            pass_expiry(CommitStage::Open);
            let draft = self.draft(Op::Expire, opening.shard_id, Vec::new(), plan.removed.clone());
            let written = WrittenShard { draft, trajectories: Vec::new() };
            self.remember(&written)?;
            let version = self.finish(&written)?;
            let rows = |table| plan.rows.get(&table).copied().unwrap_or(0);
            RowsExpired {
                version,
                up_to: plan.up_to,
                trajectories: rows(Table::Trajectories),
                steps: rows(Table::Steps),
                files: plan.removed.len() as u64,
                bytes: plan.bytes,
            }
            .emit();
        }
        Ok(())
    }

    /// The wall clock, unless it was set forward since this began: rows are no older for that.
    fn unhurried_micros(&self) -> i64 {
        let (began, began_micros) = self.began;
        let passed = i64::try_from(began.elapsed().as_micros()).unwrap_or(i64::MAX);
        now_micros().min(began_micros.saturating_add(passed))
    }

    /// Removes files whose grace is over.
    fn retire(&mut self) {
        if self.retired_at.is_some_and(|at| at.elapsed() < RETIRE_EVERY) {
            return;
        }
        self.retired_at = Some(Instant::now());
        let CommitSettings { data_dir, records, .. } = &self.settings;
        match merge::retire(data_dir, self.manifest.snapshot(), now_micros(), records.merge_grace) {
            Ok(retired) => {
                for error in &retired.damaged {
                    tracing::error!(
                        error = error as &dyn Error,
                        "a merged file is damaged: its parts are kept"
                    );
                }
                self.manifest.forget(&retired.gone);
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn Error, "files that left the data set were not removed");
            }
        }
    }

    /// Calls `reached` at every stage, so that a test can inspect what a crash there would leave.
    #[cfg(test)]
    pub(crate) fn on_stage(&mut self, mut reached: impl FnMut(CommitStage) + Send + 'static) {
        self.reached = Box::new(move |stage| {
            stage::pass(stage);
            reached(stage);
        });
    }

    fn merge_table(&mut self, plan: &merge::MergePlan) -> Result<(), CommitError> {
        let removed: Vec<_> = plan.parts.iter().map(|part| part.path.clone()).collect();
        let opening = self.opening(Vec::new(), Vec::new(), removed.clone())?;
        let shard = self.shard_plan(&opening.shard_id);
        self.remember_opening(&opening)?;
        let reached = &mut self.reached;
        match merge::merge(&shard, plan, |_, stage| reached(stage.into())) {
            Ok(file) => {
                let draft = self.draft(Op::Replace, opening.shard_id, vec![file], removed);
                let draft = CommitDraft { schema_version: plan.schema_version, ..draft };
                let written = WrittenShard { draft, trajectories: Vec::new() };
                self.remember(&written)?;
                self.finish(&written).map(drop)
            }
            Err(error) => {
                self.leave_unmerged(plan, &error);
                self.undo(&opening.shard_id)
            }
        }
    }

    /// Damaged parts are merged no more, nor are files that do not fit each other; the others are.
    /// After any other failure merging pauses.
    fn leave_unmerged(&mut self, plan: &merge::MergePlan, error: &RecordsError) {
        tracing::warn!(table = %plan.table, error = error as &dyn Error, "small files were not merged");
        let is_shortage = error.is_disk_full() || error.is_descriptor_shortage();
        let data_dir = &self.settings.data_dir;
        let damaged = plan.parts.iter().filter(|part| !is_shortage && check_written(data_dir, part).is_err());
        let damaged: Vec<String> = damaged.map(|part| part.path.clone()).collect();
        for path in &damaged {
            tracing::error!(path, "a committed file is damaged: restore it from a copy");
        }
        if !damaged.is_empty() {
            self.planner.leave_alone(damaged);
        } else if matches!(error, RecordsError::Unmergeable { .. } | RecordsError::Parquet { .. }) {
            self.planner.leave_alone(plan.parts.iter().map(|part| part.path.clone()));
        } else {
            self.merges_from = Instant::now() + MERGE_PAUSE;
        }
    }

    /// The shard that waits for the disk, where this batch is the one it waits with; else a new
    /// one.
    fn open_again(&mut self, batch: &ShardBatch) -> Result<ShardOpening, CommitError> {
        let Some(waiting) = self.waiting.take() else { return self.open(batch) };
        let trajectories = batch.trajectories.iter().map(|facts| &facts.ancestry.trajectory_id);
        let groups = batch.groups.iter().map(|group| &group.group_id);
        if waiting.trajectories.iter().eq(trajectories) && waiting.groups.iter().eq(groups) {
            return Ok(waiting);
        }
        self.undo(&waiting.shard_id)?;
        self.open(batch)
    }

    /// Removes what was written of a shard. It stays opened: another try needs no row of the
    /// ledger, which may be on the same full disk.
    fn set_back(&mut self, opening: ShardOpening) -> Result<(), CommitError> {
        remove_aborted(&self.settings.data_dir, &opening.shard_id)?;
        self.waiting = Some(opening);
        Ok(())
    }

    /// The ledger records the shard before its first byte.
    fn open(&mut self, batch: &ShardBatch) -> Result<ShardOpening, CommitError> {
        let trajectories =
            batch.trajectories.iter().map(|facts| facts.ancestry.trajectory_id.clone()).collect();
        let groups = batch.groups.iter().map(|group| group.group_id.clone()).collect();
        let opening = self.opening(trajectories, groups, Vec::new())?;
        self.remember_opening(&opening)?;
        Ok(opening)
    }

    fn opening(
        &self,
        trajectories: Vec<Id<Trajectory>>,
        groups: Vec<Id<Group>>,
        replaces: Vec<String>,
    ) -> Result<ShardOpening, CommitError> {
        let run_id = &self.settings.run_id;
        let index = self.next_shard;
        let named = Id::new(format!("{run_id}-x{index:06}"));
        let shard_id = named.map_err(|_| CommitError::Unnamable { run_id: run_id.clone(), index })?;
        Ok(ShardOpening { shard_id, index, trajectories, groups, replaces })
    }

    fn remember_opening(&mut self, opening: &ShardOpening) -> Result<(), CommitError> {
        self.ledger.commit_blocking(vec![Mutation::ShardOpened(opening.clone())])?;
        self.next_shard += 1;
        (self.reached)(CommitStage::Open);
        Ok(())
    }

    /// From the spool to durable files under their final names.
    fn write(&mut self, shard_id: &Id<Shard>, batch: &ShardBatch) -> Result<Vec<WrittenFile>, CommitError> {
        let mut writer = ShardWriter::create(self.shard_plan(shard_id));
        for facts in &batch.trajectories {
            let TrajectoryRows { record, steps, damage } = record::assemble(&self.spool, facts)?;
            if crash::planted("bug.ack_before_manifest") {
                self.spool.delete(&facts.ancestry.trajectory_id)?;
            }
            if let Some(why) = damage {
                let path = self.spool.path(&facts.ancestry.trajectory_id);
                // A removed file, or one replaced by a link, holds nothing of this run.
                if path.symlink_metadata().is_ok_and(|found| found.is_file()) {
                    self.lost_found.copy(&path, &why)?;
                }
            }
            writer.add_trajectory(&record, &steps)?;
        }
        for group in &batch.groups {
            writer.add_group(group)?;
        }
        let reached = &mut self.reached;
        Ok(writer.finish(|_, stage| reached(stage.into()))?)
    }

    fn remember(&mut self, written: &WrittenShard) -> Result<(), CommitError> {
        let CommitDraft { shard_id, files, .. } = written.draft.clone();
        self.ledger.commit_blocking(vec![Mutation::ShardWritten { shard_id, files }])?;
        self.reach(CommitStage::Written, written);
        Ok(())
    }

    /// From written files to rows of the data set. May be repeated: the manifest knows the shard's
    /// id.
    fn finish(&mut self, written: &WrittenShard) -> Result<u64, CommitError> {
        let manifest_version = self.commit_waiting_for_disk(&written.draft)?;
        self.reach(CommitStage::Manifest, written);
        merge::set_aside(&self.settings.data_dir, &written.draft.removed)?;
        // After the files have moved: it names the tables that have some.
        renew_card(&self.settings.data_dir, &written.draft, manifest_version);
        self.reach(CommitStage::Aside, written);
        let shard_id = written.draft.shard_id.clone();
        self.ledger.commit_blocking(vec![Mutation::ShardCommitted { shard_id, manifest_version }])?;
        self.reach(CommitStage::Committed, written);
        for trajectory in &written.trajectories {
            self.spool.delete(trajectory)?;
            (self.reached)(CommitStage::Delete);
        }
        Ok(manifest_version)
    }

    fn reach(&mut self, stage: CommitStage, written: &WrittenShard) {
        if written.draft.op == Op::Expire {
            pass_expiry(stage);
        }
        (self.reached)(stage);
    }

    /// A written shard cannot be undone, so this waits while the disk is full.
    fn commit_waiting_for_disk(&mut self, draft: &CommitDraft) -> Result<u64, CommitError> {
        let deadline = Instant::now() + DISK_FULL_TIMEOUT;
        loop {
            match self.runtime.block_on(self.manifest.commit(draft)) {
                Ok(committed) => {
                    write_checkpoint(&self.runtime, &mut self.manifest);
                    return Ok(committed.version());
                }
                Err(error)
                    if (error.is_disk_full() || error.is_descriptor_shortage())
                        && Instant::now() < deadline =>
                {
                    let shard_id = &draft.shard_id;
                    tracing::warn!(%shard_id, %error, "a manifest commit waits for disk space or a descriptor");
                    std::thread::park_timeout(self.full_retry);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Undoes an opened shard; its rows are free again.
    fn undo(&mut self, shard_id: &Id<Shard>) -> Result<(), CommitError> {
        remove_aborted(&self.settings.data_dir, shard_id)?;
        let abandoned = Mutation::ShardAbandoned { shard_id: shard_id.clone() };
        Ok(self.ledger.commit_blocking(vec![abandoned])?)
    }

    fn shard_plan(&self, shard_id: &Id<Shard>) -> ShardPlan {
        let CommitSettings { data_dir, run_id, job_toml, records, .. } = self.settings.clone();
        let RecordsConfig { row_group_bytes, compression_level, .. } = records;
        let shard_id = shard_id.clone();
        ShardPlan { data_dir, shard_id, run_id, job_toml, row_group_bytes, compression_level }
    }

    fn draft(
        &self,
        op: Op,
        shard_id: Id<Shard>,
        files: Vec<WrittenFile>,
        removed: Vec<String>,
    ) -> CommitDraft {
        let run_id = self.settings.run_id.clone();
        let draft = CommitDraft::append(files, run_id, self.epoch, shard_id, now_micros());
        CommitDraft { op, removed, ..draft }
    }
}

impl BlockingRuntime {
    /// The manifest's store needs blocking threads, and the committer a clock.
    fn new() -> Result<Self, CommitError> {
        let built = Builder::new_current_thread().enable_time().thread_name("manifest").build();
        let runtime = built.map_err(|error| CommitError::Stopped { why: format!("no runtime: {error}") })?;
        Ok(Self(Some(runtime)))
    }

    fn block_on<F: Future>(&self, work: F) -> F::Output {
        self.0.as_ref().expect("the runtime lives as long as this does").block_on(work)
    }
}

impl Drop for BlockingRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Removes what was written of a shard that comes to nothing.
fn remove_aborted(data_dir: &Path, shard_id: &Id<Shard>) -> Result<(), CommitError> {
    if !crash::planted("bug.leak_on_abort") {
        remove_shard(data_dir, shard_id)?;
    }
    Ok(())
}

/// Readers and the next start do without it, so a run does not fail for it.
fn write_checkpoint(runtime: &BlockingRuntime, manifest: &mut Manifest) {
    if let Err(error) = runtime.block_on(manifest.write_checkpoint_if_due()) {
        tracing::warn!(error = &error as &dyn Error, "the manifest's checkpoint was not written");
    }
}

fn now_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
