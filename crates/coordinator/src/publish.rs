//! Publishing: what ended becomes durable Parquet files, the files become part of the data set, the spool lets go.
//!
//! The order is the promise. Ids enter the ledger before the first byte; files are durable and checked before the ledger calls
//! them written; the manifest names them only then; the spool keeps everything until it does. Between any two stages a crash
//! leaves something [`recover`](Publisher::recover) finishes or undoes.

mod reconcile;
mod record;
mod recover;
mod settle;
mod thread;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use furrow_records::{
    Draft, Manifest, Op, RecordsConfig, RecordsError, ShardPlan, ShardStage, ShardWriter, WrittenFile, merge,
    remove_shard,
};
use furrow_rollout::{Group, GroupRecord, Id, Run, Shard, Trajectory};
use furrow_wire::WireError;
use tokio::runtime::{Builder, Runtime};

use crate::crash;
use crate::durable::DurableError;
use crate::ledger::{LedgerError, LedgerHandle, Mutation, ShardOpening};
use crate::lost_found::{LostFound, LostFoundError};
use crate::spool::{Key, Spool, SpoolError};
pub use reconcile::Disagreement;
use record::Assembled;
pub use record::TrajectoryFacts;
pub use recover::Recovered;
pub(crate) use recover::{check_manifest_is_whole, check_run_dir};
pub use thread::{PublishHandle, PublishReport, PublishReports};

/// How long a shard whose files are written waits for room for its manifest commit.
const FULL_PATIENCE: Duration = Duration::from_secs(60);

/// How often a full disk is looked at again.
const FULL_RETRY: Duration = Duration::from_millis(500);

/// How often parts of merged files are looked through.
const RETIRE_EVERY: Duration = Duration::from_secs(60);

/// A stage that a shard has passed. The first and the last three belong to the shard, those between to each of its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The ledger knows the shard's id and its rows.
    Open,
    /// All rows of a file are written under its temporary name.
    Temp,
    /// Its footer is written.
    Footer,
    /// Its bytes are durable.
    Fsync,
    /// Its last name exists.
    Link,
    /// Its last name is durable.
    DirSync,
    /// Its temporary name is gone.
    TempRemoved,
    /// It was opened again; rows, columns and hash are right.
    Check,
    /// The ledger knows the files.
    Written,
    /// The manifest names them.
    Manifest,
    /// The ledger knows that it does.
    Published,
    /// The spool let go of one of its trajectories.
    Delete,
}

/// What a shard is made of.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// Trajectories that ended, in no other shard.
    pub trajectories: Vec<TrajectoryFacts>,
    /// Closed groups; their trajectories are in this batch or published.
    pub groups: Vec<GroupRecord>,
}

/// A shard that is part of the data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The shard.
    pub shard_id: Id<Shard>,
    /// The manifest commit that names it.
    pub manifest_version: u64,
    /// Its trajectories.
    pub trajectories: Vec<Id<Trajectory>>,
    /// Its groups.
    pub groups: Vec<Id<Group>>,
    /// Its files.
    pub files: Vec<WrittenFile>,
    /// How long it took from its opening.
    pub took: Duration,
}

/// What a publisher needs to know of the job.
#[derive(Debug, Clone)]
pub struct PublishSettings {
    /// The run's directory.
    pub run_dir: PathBuf,
    /// The run's `data` folder.
    pub data_dir: PathBuf,
    /// The run.
    pub run_id: Id<Run>,
    /// The resolved job, as TOML.
    pub job_toml: String,
    /// When shards close and how they are packed.
    pub records: RecordsConfig,
}

/// Why nothing was published. After anything but `DiskFull` the publisher must not go on: start again with `--resume`.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// There was no room for the shard; it was undone and its rows wait for another.
    #[error("no space left for a shard: free some; its trajectories stay in the spool")]
    DiskFull(#[source] RecordsError),
    /// The spool failed.
    #[error("cannot read what was acknowledged")]
    Spool(#[from] SpoolError),
    /// The ledger failed.
    #[error("cannot remember a shard")]
    Ledger(#[from] LedgerError),
    /// A file or the manifest failed.
    #[error("cannot write a shard")]
    Records(#[from] RecordsError),
    /// A file operation of our own failed.
    #[error("cannot tidy up the run directory")]
    File(#[from] DurableError),
    /// An acknowledged entry is no message of this version.
    #[error(
        "{trajectory}: {key} in the spool cannot be read by this furrow; finish the run with the one that began it"
    )]
    Undecodable {
        /// Whose.
        trajectory: Id<Trajectory>,
        /// Which entry.
        key: Key,
        /// Why.
        source: WireError,
    },
    /// What was acknowledged of a scored trajectory cannot be read back. The shard was undone; without this one it can be written.
    #[error("{trajectory} was acknowledged, but {why}")]
    Unreadable {
        /// Which.
        trajectory: Id<Trajectory>,
        /// Steps from the first one on that can be read.
        steps: u32,
        /// What is wrong.
        why: String,
    },
    /// The spool holds what the ledger never heard of.
    #[error(
        "spool/ holds {trajectory}, which the ledger does not know ({count} such files): ledger.sqlite is older than spool/, or its \
         -wal file was left behind. Put back the ledger that belongs here, with its -wal file; files of another run, move away"
    )]
    Stranger {
        /// The first.
        trajectory: Id<Trajectory>,
        /// How many there are.
        count: usize,
    },
    /// An acknowledged trajectory has no file in the spool.
    #[error(
        "{trajectory} was acknowledged ({what}), but spool/ has no file of it ({count} such trajectories): put spool/ back as it was when \
         ledger.sqlite was copied, or the ledger that belongs to this spool/. Files that are gone for good: an empty file \
         {trajectory}.spool there gives this one trajectory up"
    )]
    Absent {
        /// Which.
        trajectory: Id<Trajectory>,
        /// What the spool must hold of it.
        what: String,
        /// How many trajectories have no file.
        count: usize,
    },
    /// Ledger and manifest contradict each other.
    #[error(transparent)]
    Disagreement(#[from] Disagreement),
    /// A commit is missing that neither the ledger nor a file of scores can make again.
    #[error(
        "manifest commit {version} is missing or damaged, and neither the ledger nor data/scores/ knows what it was: put data/manifest/ \
         back from the copy that data/ came from"
    )]
    CommitLost {
        /// Its number.
        version: u64,
    },
    /// The manifest lacks commits, and this is no start that could make them again.
    #[error(
        "{count} commits of the manifest are missing or damaged: go on with the run once (`furrow run … --resume`), which makes them again"
    )]
    ManifestBehind {
        /// How many.
        count: usize,
    },
    /// The ledger remembers files of the data set that are not on the disk, nor in the manifest.
    #[error(
        "{count} files that ledger.sqlite calls published are neither in the manifest nor whole on the disk, {} first: data/ is older than \
         the ledger. Put data/ back from the copy that ledger.sqlite came from", first.display()
    )]
    FilesLost {
        /// How many.
        count: usize,
        /// One of them.
        first: PathBuf,
    },
    /// A file of a shard that was written and not yet published is damaged, and its rows are nowhere else.
    #[error(
        "{}: {damage}. It was written and not yet published, and its rows are nowhere else: put the file, or spool/, back from the copy \
         that ledger.sqlite came from. Without a copy, move the file away and start again: the shard is given up, and what is left of \
         it is kept in lost+found/", path.display()
    )]
    OnlyCopyDamaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        damage: String,
    },
    /// A file is damaged whose commit a crash kept from the ledger.
    #[error(
        "{}: {damage}. Put the file back from a copy; without one, move it and {} out of the run directory and start again: its rows are \
         in the spool, or in the files that were merged, and go into another shard", path.display(), commit.display()
    )]
    NamedAndDamaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        damage: String,
        /// The commit that names it.
        commit: PathBuf,
    },
    /// Something could not be put aside.
    #[error(transparent)]
    LostFound(#[from] LostFoundError),
    /// The shard would bear a name that is no id.
    #[error("shard {index} of run {run_id} cannot be named")]
    Unnamable {
        /// The run.
        run_id: Id<Run>,
        /// The shard's number.
        index: u64,
    },
    /// The publisher's thread or its runtime could not be had, or it panicked.
    #[error("the publisher stopped: {why}")]
    Stopped {
        /// Why.
        why: String,
    },
}

/// Publishes one shard after another. Blocks: it lives on a thread of its own.
pub struct Publisher {
    settings: PublishSettings,
    epoch: u64,
    next_shard: u64,
    spool: Spool,
    ledger: LedgerHandle,
    manifest: Manifest,
    runtime: Blocking,
    lost_found: LostFound,
    merges: bool,
    /// Published files that another job of this run wrote: they are not merged.
    foreign: BTreeSet<String>,
    retired_at: Option<Instant>,
    reached: Box<dyn FnMut(Stage) + Send>,
}

/// A shard whose files are written and checked; it can only be published.
struct Written {
    draft: Draft,
    trajectories: Vec<Id<Trajectory>>,
}

/// Runs async code on a thread that may block. Unlike a bare runtime it may be dropped anywhere.
struct Blocking(Option<Runtime>);

impl Publisher {
    /// Publishes one shard, from its opening to the spool's letting go.
    pub fn publish(&mut self, batch: &Batch) -> Result<Published, PublishError> {
        let began = Instant::now();
        let opening = self.open(batch)?;
        let files = match self.write(&opening.shard_id, batch) {
            Err(PublishError::Records(full)) if full.is_disk_full() => {
                self.undo(&opening.shard_id)?;
                return Err(PublishError::DiskFull(full));
            }
            Err(unreadable @ PublishError::Unreadable { .. }) => {
                self.undo(&opening.shard_id)?;
                return Err(unreadable);
            }
            files => files?,
        };
        let draft = self.draft(Op::Append, opening.shard_id.clone(), files.clone(), Vec::new());
        let written = Written { draft, trajectories: opening.trajectories.clone() };
        self.remember(&written)?;
        let manifest_version = self.finish(&written)?;
        let ShardOpening { shard_id, trajectories, groups, .. } = opening;
        Ok(Published { shard_id, manifest_version, trajectories, groups, files, took: began.elapsed() })
    }

    /// Makes one file of the small files of a table, where enough have gathered. Their rows are safe as they are, so a failure
    /// only ends the merging.
    ///
    /// Parts stay on disk for readers of older versions until the grace is over.
    pub fn merge(&mut self) -> Result<(), PublishError> {
        self.retire();
        loop {
            let known = self.foreign.len();
            for plan in merge::plan(self.manifest.snapshot(), &self.settings.records, &self.foreign) {
                if self.merges {
                    self.merge_table(&plan)?;
                }
            }
            // Without the files that turned out to be of another job there may be enough of this one.
            if self.foreign.len() == known {
                break;
            }
        }
        Ok(())
    }

    /// Removes parts whose grace is over. The list of parts only grows, so it is not walked after every shard.
    fn retire(&mut self) {
        if self.retired_at.is_some_and(|at| at.elapsed() < RETIRE_EVERY) {
            return;
        }
        self.retired_at = Some(Instant::now());
        let PublishSettings { data_dir, records, .. } = &self.settings;
        match merge::retire(data_dir, self.manifest.snapshot(), now_micros(), records.merge_grace) {
            Ok(retired) => retired.damaged.iter().for_each(|error| {
                tracing::error!(error = error as &dyn Error, "a merged file is damaged: its parts are kept");
            }),
            Err(error) => {
                tracing::warn!(error = &error as &dyn Error, "parts of merged files were not removed");
            }
        }
    }

    /// Calls `reached` at every stage, so that a test can look at what a crash there would leave.
    pub fn on_stage(&mut self, mut reached: impl FnMut(Stage) + Send + 'static) {
        self.reached = Box::new(move |stage| {
            pass(stage);
            reached(stage);
        });
    }

    fn merge_table(&mut self, plan: &merge::MergePlan) -> Result<(), PublishError> {
        let removed: Vec<_> = plan.parts.iter().map(|part| part.path.clone()).collect();
        let opening = self.opening(Vec::new(), Vec::new(), removed.clone())?;
        let shard = self.shard_plan(&opening.shard_id);
        match merge::foreign(&shard, plan) {
            Ok(foreign) if foreign.is_empty() => {}
            Ok(foreign) => {
                self.foreign.extend(foreign);
                return Ok(());
            }
            Err(error) => {
                self.merges = false;
                tracing::warn!(table = %plan.table, error = &error as &dyn Error, "small files were not merged");
                return Ok(());
            }
        }
        self.remember_opening(&opening)?;
        let reached = &mut self.reached;
        match merge::merge(&shard, plan, |_, stage| reached(stage.into())) {
            Ok(file) => {
                let draft = self.draft(Op::Replace, opening.shard_id, vec![file], removed);
                let written = Written { draft, trajectories: Vec::new() };
                self.remember(&written)?;
                self.finish(&written).map(drop)
            }
            Err(error) => {
                self.merges = error.is_disk_full();
                tracing::warn!(table = %plan.table, error = &error as &dyn Error, "small files were not merged");
                self.undo(&opening.shard_id)
            }
        }
    }

    /// The ledger learns of the shard before its first byte.
    fn open(&mut self, batch: &Batch) -> Result<ShardOpening, PublishError> {
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
    ) -> Result<ShardOpening, PublishError> {
        let (run_id, index) = (&self.settings.run_id, self.next_shard);
        let named = Id::new(format!("{run_id}-x{index:06}"));
        let shard_id = named.map_err(|_| PublishError::Unnamable { run_id: run_id.clone(), index })?;
        Ok(ShardOpening { shard_id, index, trajectories, groups, replaces })
    }

    fn remember_opening(&mut self, opening: &ShardOpening) -> Result<(), PublishError> {
        self.ledger.commit_blocking(vec![Mutation::ShardOpened(opening.clone())])?;
        self.next_shard += 1;
        (self.reached)(Stage::Open);
        Ok(())
    }

    /// From the spool to durable files under their last names.
    fn write(&mut self, shard_id: &Id<Shard>, batch: &Batch) -> Result<Vec<WrittenFile>, PublishError> {
        let mut writer = ShardWriter::create(self.shard_plan(shard_id));
        for facts in &batch.trajectories {
            let Assembled { record, steps, damage } = record::assemble(&self.spool, facts)?;
            if let Some(why) = damage {
                let path = self.spool.path(&facts.ancestry.trajectory_id);
                // What was removed, or is a link by now, holds nothing of this run.
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

    fn remember(&mut self, written: &Written) -> Result<(), PublishError> {
        let Draft { shard_id, files, .. } = written.draft.clone();
        self.ledger.commit_blocking(vec![Mutation::ShardWritten { shard_id, files }])?;
        (self.reached)(Stage::Written);
        Ok(())
    }

    /// From written files to rows of the data set. May be repeated: the manifest knows the shard's id.
    fn finish(&mut self, written: &Written) -> Result<u64, PublishError> {
        let manifest_version = self.commit_when_there_is_room(&written.draft)?;
        merge::set_aside(&self.settings.data_dir, &written.draft.removed)?;
        (self.reached)(Stage::Manifest);
        let shard_id = written.draft.shard_id.clone();
        self.ledger.commit_blocking(vec![Mutation::ShardPublished { shard_id, manifest_version }])?;
        (self.reached)(Stage::Published);
        for trajectory in &written.trajectories {
            self.spool.delete(trajectory)?;
            (self.reached)(Stage::Delete);
        }
        Ok(manifest_version)
    }

    /// What is written cannot be undone, so a full disk is waited for.
    fn commit_when_there_is_room(&mut self, draft: &Draft) -> Result<u64, PublishError> {
        let deadline = Instant::now() + FULL_PATIENCE;
        loop {
            match self.runtime.block_on(self.manifest.commit(draft)) {
                Ok(committed) => return Ok(committed.version()),
                Err(error) if error.is_disk_full() && Instant::now() < deadline => {
                    tracing::warn!(shard_id = %draft.shard_id, "no space left for a manifest commit: waiting for some");
                    std::thread::park_timeout(FULL_RETRY);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Undoes an opened shard; its rows are free again.
    fn undo(&mut self, shard_id: &Id<Shard>) -> Result<(), PublishError> {
        remove_shard(&self.settings.data_dir, shard_id)?;
        let abandoned = Mutation::ShardAbandoned { shard_id: shard_id.clone() };
        Ok(self.ledger.commit_blocking(vec![abandoned])?)
    }

    fn shard_plan(&self, shard_id: &Id<Shard>) -> ShardPlan {
        let PublishSettings { data_dir, run_id, job_toml, records, .. } = self.settings.clone();
        let RecordsConfig { row_group_bytes, compression_level, .. } = records;
        let shard_id = shard_id.clone();
        ShardPlan { data_dir, shard_id, run_id, job_toml, row_group_bytes, compression_level }
    }

    fn draft(&self, op: Op, shard_id: Id<Shard>, files: Vec<WrittenFile>, removed: Vec<String>) -> Draft {
        let (run_id, epoch) = (self.settings.run_id.clone(), self.epoch);
        Draft { op, files, removed, run_id, epoch, shard_id, created_at_micros: now_micros() }
    }
}

impl Blocking {
    /// The manifest's store needs blocking threads and the publisher a clock, nothing else.
    fn new() -> Result<Self, PublishError> {
        let built = Builder::new_current_thread().enable_time().thread_name("manifest").build();
        let runtime = built.map_err(|error| PublishError::Stopped { why: format!("no runtime: {error}") })?;
        Ok(Self(Some(runtime)))
    }

    fn block_on<F: Future>(&self, work: F) -> F::Output {
        self.0.as_ref().expect("the runtime goes when this does").block_on(work)
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Stage; 12] = [
        Stage::Open,
        Stage::Temp,
        Stage::Footer,
        Stage::Fsync,
        Stage::Link,
        Stage::DirSync,
        Stage::TempRemoved,
        Stage::Check,
        Stage::Written,
        Stage::Manifest,
        Stage::Published,
        Stage::Delete,
    ];

    /// The place a test can kill the process at.
    pub fn fail_point(self) -> &'static str {
        match self {
            Stage::Open => "publish.after_open",
            Stage::Temp => "publish.after_temp",
            Stage::Footer => "publish.after_footer",
            Stage::Fsync => "publish.after_fsync",
            Stage::Link => "publish.after_link",
            Stage::DirSync => "publish.after_dir_sync",
            Stage::TempRemoved => "publish.after_temp_removed",
            Stage::Check => "publish.after_check",
            Stage::Written => "publish.after_written",
            Stage::Manifest => "publish.after_manifest",
            Stage::Published => "publish.after_published",
            Stage::Delete => "publish.after_delete",
        }
    }
}

impl From<ShardStage> for Stage {
    fn from(stage: ShardStage) -> Self {
        match stage {
            ShardStage::TempWritten => Stage::Temp,
            ShardStage::FooterClosed => Stage::Footer,
            ShardStage::Fsynced => Stage::Fsync,
            ShardStage::Linked => Stage::Link,
            ShardStage::DirFsynced => Stage::DirSync,
            ShardStage::TempRemoved => Stage::TempRemoved,
            ShardStage::Checked => Stage::Check,
        }
    }
}

/// Stages without a test to look at them are fail points only.
fn pass(stage: Stage) {
    crash::point(stage.fail_point());
}

fn now_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
