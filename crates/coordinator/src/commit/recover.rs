//! The start of a coordinator: compares ledger, manifest, spool and files, and only then reconciles
//! them.
//!
//! Recovery removes nothing that was acknowledged. It finishes or undoes what a crash left between
//! two stages; it restores a missing manifest commit from the ledger; it moves what it cannot
//! account for to `lost+found/`. A contradiction with the ledger fails the start before anything
//! changes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use furrow_records::{
    CommitDraft, Manifest, RecordsError, StoredCommits, Table, WrittenFile, check_written, local_files,
    merge, merge::MergePlanner, schema_version,
};
use furrow_rollout::{Id, Shard, Trajectory};

use super::error::CommitError;
use super::reconcile::{CommitOrigin, compare, operation};
use super::settle::{SpoolSettlement, lost, settle};
use super::stage::pass;
use super::survey::ManifestRepair;
use super::survey::{RecoveryPlan, RecoverySurvey, UnfinishedShard, is_regular, unlisted};
use super::{
    BlockingRuntime, CommitSettings, FULL_RETRY, ShardCommitter, now_micros, remove_aborted, write_checkpoint,
};
use crate::card::renew_card;
use crate::crash;
use crate::durable::{DurableError, make_durable_dir, sync_dir};
use crate::ledger::{
    Ledger, LedgerHandle, LedgerLimits, LedgerSnapshot, Mutation, RunRow, ShardPhase, ShardRow, SqliteLedger,
    TrajectoryFate,
};
use crate::lost_found::LostFound;
use crate::spool::{RecoveredTrajectory, Spool};

/// Missing files that are logged by name.
const GONE_LOGGED_MAX: usize = 100;

/// What a coordinator starts with.
pub(crate) struct RecoveredRun {
    /// Commits shards from now on.
    pub committer: ShardCommitter,
    /// The ledger on its own thread.
    pub ledger: LedgerHandle,
    /// What is not settled, after the recovery.
    pub snapshot: LedgerSnapshot,
    /// What the spool still holds.
    pub spooled: Vec<RecoveredTrajectory>,
    /// Trajectories whose record was damaged; they ended as `record_lost`.
    pub lost: Vec<Id<Trajectory>>,
    /// Files of the data set that are missing or have another length.
    pub gone: Vec<WrittenFile>,
}

/// The parts that recovery works on, before anything is served.
struct RunRecovery<'a, L> {
    settings: &'a CommitSettings,
    ledger: &'a mut L,
    spool: &'a Spool,
    runtime: &'a BlockingRuntime,
    origin: CommitOrigin,
    lost_found: &'a mut LostFound,
}

impl ShardCommitter {
    /// Compares ledger, manifest, spool and files, then reconciles them; nothing may be served
    /// before. The run must be open.
    ///
    /// Undoes shards that the ledger calls opened: their trajectories wait for a new shard. Commits
    /// shards that it calls written. Restores commits that the manifest lacks.
    ///
    /// # Errors
    /// Fails where an acknowledged record is missing, or where ledger and manifest contradict each
    /// other. Nothing is changed then.
    pub(crate) fn recover<L: Ledger + 'static>(
        settings: CommitSettings,
        mut ledger: L,
        limits: LedgerLimits,
        spool: Spool,
        spooled: Vec<RecoveredTrajectory>,
    ) -> Result<RecoveredRun, CommitError> {
        let runtime = BlockingRuntime::new()?;
        let before = ledger.load()?;
        let run = opened_run(&before)?;
        let origin =
            CommitOrigin { run_id: settings.run_id.clone(), epoch: run.epoch, now_micros: now_micros() };
        let epoch = run.epoch;
        let mut lost_found = LostFound::of_start(&settings.run_dir, epoch);
        make_durable_dir(&settings.data_dir)?;
        sync_folders(&settings.run_dir)?;
        let recovery = RunRecovery {
            settings: &settings,
            ledger: &mut ledger,
            spool: &spool,
            runtime: &runtime,
            origin,
            lost_found: &mut lost_found,
        };
        let Reconciled { manifest, snapshot, spooled, lost, gone } = recovery.run(before, spooled)?;
        let next_shard = opened_run(&snapshot)?.next_shard;
        let started = LedgerHandle::start(ledger, limits);
        let ledger = started.map_err(|error| CommitError::Stopped { why: error.to_string() })?;
        let committer = ShardCommitter {
            settings,
            epoch,
            next_shard,
            spool,
            ledger: ledger.clone(),
            manifest,
            runtime,
            lost_found,
            waiting: None,
            merges_from: Instant::now(),
            planner: MergePlanner::default(),
            retired_at: None,
            began: (Instant::now(), now_micros()),
            full_retry: FULL_RETRY,
            reached: Box::new(pass),
        };
        Ok(RecoveredRun { committer, ledger, snapshot, spooled, lost, gone })
    }
}

/// The run directory once its parts agree.
struct Reconciled {
    manifest: Manifest,
    snapshot: LedgerSnapshot,
    spooled: Vec<RecoveredTrajectory>,
    lost: Vec<Id<Trajectory>>,
    gone: Vec<WrittenFile>,
}

impl<L: Ledger> RunRecovery<'_, L> {
    fn run(
        mut self,
        before: LedgerSnapshot,
        spooled: Vec<RecoveredTrajectory>,
    ) -> Result<Reconciled, CommitError> {
        let store = Manifest::local_store(&self.settings.data_dir)?;
        // A checkpoint that is newer than the ledger must not hide that the ledger is too old.
        let known = self.ledger.newest_commit()?;
        let mut stored = self.runtime.block_on(StoredCommits::read_newest(&store, Some(known)))?;
        if !self.settings.records.retention.keeps_all() && !stored.knows_ages() {
            // Once: the next checkpoint says it.
            stored = self.runtime.block_on(StoredCommits::read(&store))?;
        }
        let checkpoint = stored.checkpoint();
        // Every check comes before the first change.
        let survey = RecoverySurvey {
            data_dir: &self.settings.data_dir,
            ledger: self.ledger,
            origin: &self.origin,
            lost_found: self.lost_found,
        };
        let RecoveryPlan { repair, manifest, unfinished, gone } =
            survey.plan_recovery(&before, &spooled, stored)?;
        report_gone(&self.settings.data_dir, &gone);
        let mut manifest = Manifest::at(store, manifest, checkpoint);

        self.carry_out(&manifest, &repair)?;
        if crash::planted("bug.sweep_without_ledger") {
            for file in unlisted(manifest.snapshot(), &self.settings.data_dir)? {
                fs::remove_file(&file.path).map_err(DurableError::on("remove", &file.path))?;
            }
        }
        for (shard, plan) in &unfinished {
            match plan {
                UnfinishedShard::Commit => self.finish(&mut manifest, shard)?,
                UnfinishedShard::Rewrite { damaged, error } => self.rewrite_shard(shard, damaged, error)?,
                UnfinishedShard::Undo { keeps_files } => self.undo(shard, *keeps_files)?,
            }
        }
        self.sweep(&manifest)?;
        write_checkpoint(self.runtime, &mut manifest);
        let now = if unfinished.is_empty() { before } else { self.ledger.load()? };
        let (spooled, lost) = self.settle(&manifest, &now, spooled)?;
        let snapshot = if lost.is_empty() { now } else { self.ledger.load()? };
        Ok(Reconciled { manifest, snapshot, spooled, lost, gone })
    }

    /// Moves damaged commits to `lost+found/` and restores the missing ones.
    fn carry_out(&mut self, manifest: &Manifest, repair: &ManifestRepair) -> Result<(), CommitError> {
        for &version in &repair.damaged {
            let path = self.settings.data_dir.join(StoredCommits::file_name(version));
            self.lost_found.take(&path, "the ledger remembers another commit, or it cannot be read")?;
        }
        for commit in &repair.restored {
            let version = commit.version;
            tracing::warn!(
                manifest_version = version,
                shard_id = %commit.txn.shard_id,
                "restoring a missing manifest commit from the ledger"
            );
            self.runtime.block_on(manifest.restore(commit))?;
        }
        Ok(())
    }

    /// Its files may be in any state of being written.
    fn undo(&mut self, shard: &ShardRow, keeps_files: bool) -> Result<(), CommitError> {
        let shard_id = shard.shard_id.clone();
        tracing::info!(%shard_id, trajectories = shard.trajectories.len(), "undoing an unfinished shard");
        if keeps_files {
            let files = local_files(&self.settings.data_dir)?.into_iter();
            let own = files.filter(|file| !file.temporary && file.shard_id.as_ref() == Some(&shard_id));
            for file in own {
                let why =
                    "of an unfinished shard whose rows are nowhere else: is ledger.sqlite an older copy?";
                self.lost_found.take(&file.path, why)?;
            }
        }
        remove_aborted(&self.settings.data_dir, &shard_id)?;
        crash::point("ledger.before_shard_abandon");
        self.ledger.commit(&[Mutation::ShardAbandoned { shard_id }])?;
        crash::point("ledger.after_shard_abandon");
        Ok(())
    }

    /// Its files are durable; the manifest decides whether it names them.
    fn finish(&mut self, manifest: &mut Manifest, shard: &ShardRow) -> Result<(), CommitError> {
        let ShardRow { shard_id, files, replaces: removed, .. } = shard.clone();
        let files = files.unwrap_or_default();
        let op = operation(&files, &removed);
        let CommitOrigin { run_id, epoch, now_micros: created_at_micros } = self.origin.clone();
        // An earlier release may have written them, before it was killed.
        let schema_version = schema_version(&self.settings.data_dir, &files);
        let draft =
            CommitDraft { op, files, removed, run_id, epoch, shard_id, schema_version, created_at_micros };
        let manifest_version = self.runtime.block_on(manifest.commit(&draft))?.version();
        tracing::info!(shard_id = %draft.shard_id, manifest_version, "committed a written shard");
        renew_card(&self.settings.data_dir, &draft, manifest_version);
        Ok(self.ledger.commit(&[Mutation::ShardCommitted { shard_id: draft.shard_id, manifest_version }])?)
    }

    /// Abandons a written shard with a damaged file: the spool, or the parts of a merge, still hold
    /// all its rows.
    fn rewrite_shard(
        &mut self,
        shard: &ShardRow,
        damaged: &Path,
        error: &RecordsError,
    ) -> Result<(), CommitError> {
        if damaged.symlink_metadata().is_ok() {
            self.lost_found.take(damaged, &format!("written, not yet committed, and damaged: {error}"))?;
        }
        let shard_id = shard.shard_id.clone();
        tracing::warn!(%shard_id, %error, "a written shard is damaged: its rows go into another shard");
        self.ledger.commit(&[Mutation::ShardAbandoned { shard_id }])?;
        remove_aborted(&self.settings.data_dir, &shard.shard_id)
    }

    /// Removes what is left of abandoned shards, and moves unknown files to `lost+found/`.
    fn sweep(&mut self, manifest: &Manifest) -> Result<(), CommitError> {
        // Where the commit of a merge was taken away, its parts belong to the data set again.
        merge::put_back(&self.settings.data_dir, manifest.snapshot())?;
        for file in unlisted(manifest.snapshot(), &self.settings.data_dir)? {
            let phase = match &file.shard_id {
                Some(shard_id) => self.ledger.shard_phase(shard_id)?,
                None => None,
            };
            // The removal of a temporary name is not synced. The rows of a committed shard are in
            // its files, or in those that they were merged into.
            let is_leftover = phase == Some(ShardPhase::Abandoned)
                || file.temporary && matches!(phase, Some(ShardPhase::Committed { .. }));
            if is_leftover && crash::planted("bug.leak_on_abort") {
                continue;
            }
            if is_leftover && is_regular(&file.path) {
                tracing::info!(path = %file.path.display(), "removing what is left of a shard");
                fs::remove_file(&file.path).map_err(DurableError::on("remove", &file.path))?;
            } else {
                self.lost_found.take(&file.path, "it belongs to no shard of this run")?;
            }
        }
        // A crash may have come between a merge's commit and this; parts whose grace is over are
        // gone.
        merge::set_aside(&self.settings.data_dir, manifest.snapshot().removed().keys())?;
        Ok(Manifest::clear_staged(&self.settings.data_dir)?)
    }

    /// Drops committed trajectories from the spool, cuts what was never acknowledged, and ends
    /// trajectories that lost their record. Returns what the spool keeps, and the trajectories
    /// whose record is lost.
    fn settle(
        &mut self,
        manifest: &Manifest,
        now: &LedgerSnapshot,
        spooled: Vec<RecoveredTrajectory>,
    ) -> Result<(Vec<RecoveredTrajectory>, Vec<Id<Trajectory>>), CommitError> {
        let rows: BTreeMap<_, _> =
            now.trajectories.iter().map(|row| (&row.start.trajectory_id, row)).collect();
        let mut kept = Vec::with_capacity(spooled.len());
        let mut without = Vec::new();
        let mut checked = BTreeMap::new();
        for mut found in spooled {
            let trajectory = found.trajectory_id.clone();
            match self.ledger.fate(&trajectory)? {
                Some(TrajectoryFate::Committed) => {
                    self.release_spool_file(manifest, &trajectory, &mut checked)?;
                    continue;
                }
                Some(TrajectoryFate::Open | TrajectoryFate::Ended) => {}
                None => return Err(CommitError::UnknownTrajectory { trajectory, count: 1 }),
            }
            // A group in the data set waits for nothing; the ledger does not load its trajectories.
            let settlement =
                rows.get(&trajectory).map_or(SpoolSettlement::Keep, |row| settle(row, Some(&found)));
            match settlement {
                SpoolSettlement::Keep => {}
                SpoolSettlement::Cut => self.spool.cut(&trajectory)?,
                SpoolSettlement::CopyAndCut { why } => self.copy_and_cut(&trajectory, &why)?,
                SpoolSettlement::Lose { why } => {
                    self.copy_and_cut(&trajectory, &why)?;
                    let ended = lost(rows[&trajectory], &found, why, self.origin.now_micros);
                    tracing::error!(%trajectory, reason = %ended.reason, "an acknowledged record is lost");
                    let trajectory_id = trajectory.clone();
                    self.ledger.commit(&[Mutation::RecordLost { trajectory_id, ended }])?;
                    // An ending without its steps ends nothing.
                    found.ending = None;
                    without.push(trajectory);
                }
                SpoolSettlement::Absent { what } => {
                    return Err(CommitError::Absent { trajectory, what, count: 1 });
                }
            }
            kept.push(found);
        }
        Ok((kept, without))
    }

    /// Drops committed trajectories from the spool. Where a file that should hold the rows is
    /// damaged or gone, the spool has the last readable copy and keeps it.
    fn release_spool_file(
        &mut self,
        manifest: &Manifest,
        trajectory: &Id<Trajectory>,
        checked: &mut BTreeMap<Id<Shard>, Option<String>>,
    ) -> Result<(), CommitError> {
        if let Some(shard) = self.ledger.shard_of(trajectory)? {
            let data_dir = &self.settings.data_dir;
            let damage = checked.entry(shard.clone()).or_insert_with(|| {
                // Rows of a file that a merge replaced are in the merged one, which was read back
                // before its commit.
                let files = manifest.snapshot().files_of(&shard);
                files
                    .into_iter()
                    .find_map(|file| Some(furrow_records::chain(&check_written(data_dir, file).err()?)))
            });
            if let Some(damage) = damage {
                tracing::error!(%trajectory, %damage, "a committed file is damaged: the spool's copy stays");
                let why = format!("the spool's copy of the rows in a damaged committed file: {damage}");
                self.lost_found.copy(&self.spool.path(trajectory), &why)?;
            }
        }
        Ok(self.spool.delete(trajectory)?)
    }

    fn copy_and_cut(&mut self, trajectory: &Id<Trajectory>, why: &str) -> Result<(), CommitError> {
        self.lost_found.copy(&self.spool.path(trajectory), why)?;
        Ok(self.spool.cut(trajectory)?)
    }
}

fn report_gone(data_dir: &Path, gone: &[WrittenFile]) {
    for file in gone.iter().take(GONE_LOGGED_MAX) {
        let path = data_dir.join(&file.path);
        tracing::error!(
            path = %path.display(),
            rows = file.rows,
            "a file of the data set is missing or has a wrong length: restore it from a copy"
        );
    }
    if gone.len() > GONE_LOGGED_MAX {
        tracing::error!(count = gone.len(), "`furrow records verify` lists all of them");
    }
}

/// Makes sure that the folders and files a run works in are its own, not links to others.
pub(crate) fn check_run_dir(run_dir: &Path) -> Result<(), DurableError> {
    let check_dir = |path: &PathBuf| furrow_storage::check_dir(path).map_err(DurableError::on("use", path));
    folders_of(run_dir).iter().try_for_each(check_dir)?;
    check_entries(&run_dir.join("data").join("manifest"))
}

fn folders_of(run_dir: &Path) -> Vec<PathBuf> {
    let data = run_dir.join("data");
    let mut folders: Vec<PathBuf> = Table::ALL.iter().map(|table| data.join(table.as_str())).collect();
    let replaced = data.join("replaced");
    folders.extend(Table::ALL.iter().map(|table| replaced.join(table.as_str())));
    folders.extend([data.join("manifest"), data.join("checkpoints"), data.join("jobs"), replaced, data]);
    folders.extend(["spool", "logs", "archive", "lost+found"].map(|name| run_dir.join(name)));
    folders
}

/// Makes every name of a run durable: a process that was killed may have created some and not
/// synced them, and the code takes what is there as durable.
fn sync_folders(run_dir: &Path) -> Result<(), DurableError> {
    let folders = folders_of(run_dir);
    let present = folders.iter().filter(|folder| folder.is_dir());
    present.map(PathBuf::as_path).chain([run_dir]).try_for_each(sync_dir)
}

/// Reading a commit must not block on a named pipe or a device.
fn check_entries(folder: &Path) -> Result<(), DurableError> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_other = path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
        if is_other {
            furrow_storage::check_file(&path).map_err(DurableError::on("use", &path))?;
        }
    }
    Ok(())
}

/// Refuses a data set whose manifest lacks what the ledger beside it records: the next commit would
/// take a number that belongs to another shard. A run directory without a ledger passes.
pub(crate) fn check_manifest_is_whole(run_dir: &Path, data_dir: &Path) -> Result<(), CommitError> {
    let path = run_dir.join("ledger.sqlite");
    if !path.exists() {
        return Ok(());
    }
    let mut ledger = SqliteLedger::open_to_read(path)?;
    let store = Manifest::local_store(data_dir)?;
    let known = ledger.newest_commit()?;
    let stored = BlockingRuntime::new()?.block_on(StoredCommits::read_newest(&store, Some(known)))?;
    let committed = ledger.committed_shards(stored.first())?;
    let gaps = compare(&stored, &committed, |shard| ledger.shard_phase(shard))?;
    if gaps.is_empty() {
        return Ok(());
    }
    Err(CommitError::ManifestBehind { count: gaps.remembered.len() + gaps.unknown.len() })
}

fn opened_run(snapshot: &LedgerSnapshot) -> Result<&RunRow, CommitError> {
    snapshot.run.as_ref().ok_or_else(|| CommitError::Stopped { why: "no run was opened".to_owned() })
}
