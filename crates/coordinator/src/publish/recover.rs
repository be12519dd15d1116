//! The start of a coordinator: ledger, manifest, spool and files are compared, and only then brought into agreement.
//!
//! Nothing that was acknowledged is removed here. What a crash left between two stages is finished or undone; a manifest commit that
//! is missing is made again from the ledger; what cannot be accounted for is put aside in `lost+found/`; what contradicts the ledger stops
//! the start before anything was changed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use furrow_records::{
    Commit, Draft, LocalFile, Manifest, Op, RecordsError, StoredCommits, Table, check_written, local_files,
    merge, remove_shard, written_file,
};
use furrow_rollout::{Id, Shard, Trajectory};

use super::reconcile::{Origin, compare};
use super::settle::{Settlement, lost, settle};
use super::{Blocking, PublishError, PublishSettings, Publisher, now_micros, pass};
use crate::crash;
use crate::durable::{DurableError, make_durable_dir};
use crate::ledger::{
    Fate, Ledger, LedgerHandle, LedgerLimits, Mutation, RunRow, ShardPhase, ShardRow, Snapshot, SqliteLedger,
    TrajectoryRow,
};
use crate::lost_found::LostFound;
use crate::spool::{RecoveredTrajectory, Spool};

/// What a coordinator begins with.
pub struct Recovered {
    /// Publishes from now on.
    pub publisher: Publisher,
    /// The ledger on its own thread.
    pub ledger: LedgerHandle,
    /// What is not settled, after the recovery.
    pub snapshot: Snapshot,
    /// What the spool still holds.
    pub spooled: Vec<RecoveredTrajectory>,
    /// Trajectories whose record was damaged; they ended as `record_lost`.
    pub lost: Vec<Id<Trajectory>>,
}

/// What makes the manifest say what the ledger remembers.
struct Repair {
    /// Numbers of commits that are put aside.
    damaged: Vec<u64>,
    /// Commits that are made again, in the order of their numbers.
    restored: Vec<Commit>,
}

/// The parts that recovery works on, before anything is served.
struct Recovery<'a, L> {
    settings: &'a PublishSettings,
    ledger: &'a mut L,
    spool: &'a Spool,
    runtime: &'a Blocking,
    origin: Origin,
    lost_found: &'a mut LostFound,
}

impl Publisher {
    /// Compares ledger, manifest, spool and files, then brings them into agreement; nothing may be served before. The run is opened
    /// already.
    ///
    /// Shards that the ledger calls opened are undone: their trajectories wait for a new shard. Shards that it calls written are
    /// published. Commits that the manifest lacks are made again.
    ///
    /// # Errors
    /// What was acknowledged is not there, or ledger and manifest contradict each other. Nothing was changed then.
    pub fn recover<L: Ledger + 'static>(
        settings: PublishSettings,
        mut ledger: L,
        limits: LedgerLimits,
        spool: Spool,
        spooled: Vec<RecoveredTrajectory>,
    ) -> Result<Recovered, PublishError> {
        let runtime = Blocking::new()?;
        let before = ledger.load()?;
        let run = opened_run(&before)?;
        let origin = Origin { run_id: settings.run_id.clone(), epoch: run.epoch, now_micros: now_micros() };
        let epoch = run.epoch;
        let mut lost_found = LostFound::of_start(&settings.run_dir, epoch);
        make_durable_dir(&settings.data_dir)?;
        let recovery = Recovery {
            settings: &settings,
            ledger: &mut ledger,
            spool: &spool,
            runtime: &runtime,
            origin,
            lost_found: &mut lost_found,
        };
        let (manifest, spooled, lost) = recovery.run(&before, spooled)?;
        let snapshot = ledger.load()?;
        let next_shard = opened_run(&snapshot)?.next_shard;
        let started = LedgerHandle::start(ledger, limits);
        let ledger = started.map_err(|error| PublishError::Stopped { why: error.to_string() })?;
        let publisher = Publisher {
            settings,
            epoch,
            next_shard,
            spool,
            ledger: ledger.clone(),
            manifest,
            runtime,
            lost_found,
            merges: true,
            retired_at: None,
            reached: Box::new(pass),
        };
        Ok(Recovered { publisher, ledger, snapshot, spooled, lost })
    }
}

type Brought = (Manifest, Vec<RecoveredTrajectory>, Vec<Id<Trajectory>>);

impl<L: Ledger> Recovery<'_, L> {
    fn run(mut self, before: &Snapshot, spooled: Vec<RecoveredTrajectory>) -> Result<Brought, PublishError> {
        let store = Manifest::local_store(&self.settings.data_dir)?;
        let mut stored = self.runtime.block_on(StoredCommits::read(&store))?;
        // First all that can be wrong, then the first change.
        let repair = self.repair(&stored)?;
        let restored = repair.restored.iter().cloned();
        restored.for_each(|commit| stored.insert(commit));
        let mut manifest = Manifest::of(store, stored.without(&repair.unreplaced()))?;
        self.check_files(&manifest, &repair)?;
        self.check_spooled(before, &spooled)?;

        self.carry_out(&manifest, &repair)?;
        for shard in &before.shards {
            let can_be_redone = self.can_be_redone(&manifest, before, &spooled, shard);
            match &shard.files {
                Some(_) => self.finish(&mut manifest, shard, can_be_redone)?,
                None => self.undo(shard, can_be_redone)?,
            }
        }
        self.sweep(&manifest)?;
        let (kept, lost) = self.settle(&manifest, spooled)?;
        Ok((manifest, kept, lost))
    }

    /// What the manifest lacks and how it is made again.
    fn repair(&mut self, stored: &StoredCommits) -> Result<Repair, PublishError> {
        let published = self.ledger.published_shards()?;
        let ledger = &mut *self.ledger;
        let gaps = compare(stored, &published, |shard| ledger.shard_phase(shard))?;
        let newest = stored.newest().max(published.last().map_or(0, |shard| shard.manifest_version));
        // The newest commit, damaged and not in the ledger, is the one whose shard the ledger calls written: it is committed again.
        let wanted: Vec<u64> = gaps.unknown.into_iter().filter(|version| *version < newest).collect();
        let mut restored: Vec<_> =
            gaps.remembered.into_iter().map(|shard| self.origin.commit(shard)).collect();
        let mut files = if wanted.is_empty() { Vec::new() } else { self.unlisted_scores(stored)? };
        for version in wanted {
            let Some(file) = (!files.is_empty()).then(|| files.remove(0)) else {
                return Err(PublishError::CommitLost { version });
            };
            let shard_id = file.shard_id.ok_or(PublishError::CommitLost { version })?;
            let listed = written_file(&self.settings.data_dir, Table::Scores, &shard_id)?;
            restored.push(self.origin.scoring(version, listed, shard_id));
        }
        restored.sort_by_key(|commit| commit.version);
        Ok(Repair { damaged: gaps.damaged, restored })
    }

    /// Whole files of scores that no commit names, the oldest first: their names end in the time.
    fn unlisted_scores(&self, stored: &StoredCommits) -> Result<Vec<LocalFile>, PublishError> {
        let listed = |file: &LocalFile| {
            let mut commits = stored.iter().filter_map(|(_, commit)| commit.as_ref().ok());
            commits.any(|commit| commit.files.iter().any(|listed| listed.path == file.name))
        };
        let mut files = local_files(&self.settings.data_dir)?;
        files.retain(|file| file.table == Table::Scores && !file.temporary && file.shard_id.is_some());
        files.retain(|file| !listed(file));
        Ok(files)
    }

    /// A commit that is made again must not name files that are gone: then the data set itself was not put back.
    fn check_files(&self, manifest: &Manifest, repair: &Repair) -> Result<(), PublishError> {
        let data_dir = &self.settings.data_dir;
        let restored = repair.restored.iter().flat_map(|commit| &commit.files);
        let held = restored.filter(|file| manifest.snapshot().holds(&file.path));
        let is_there = |path: &Path, bytes: u64| {
            path.symlink_metadata().is_ok_and(|found| found.is_file() && found.len() == bytes)
        };
        let gone: Vec<&str> = held
            .filter(|file| !is_there(&data_dir.join(&file.path), file.bytes))
            .map(|file| file.path.as_str())
            .collect();
        match gone.first() {
            None => Ok(()),
            Some(first) => Err(PublishError::FilesLost { count: gone.len(), first: data_dir.join(first) }),
        }
    }

    /// What the ledger has acknowledged must have a file in the spool, and what has a file must be known to the ledger.
    fn check_spooled(
        &mut self,
        before: &Snapshot,
        spooled: &[RecoveredTrajectory],
    ) -> Result<(), PublishError> {
        for found in spooled {
            if self.ledger.fate(&found.trajectory_id)?.is_none() {
                return Err(PublishError::Stranger { trajectory: found.trajectory_id.clone() });
            }
        }
        let written: Vec<_> = before.shards.iter().filter(|shard| shard.files.is_some()).collect();
        let is_written = |row: &TrajectoryRow| {
            row.shard_id.as_ref().is_some_and(|id| written.iter().any(|shard| shard.shard_id == *id))
        };
        let waiting = before.trajectories.iter().filter(|row| !row.published && !is_written(row));
        for row in waiting {
            let found = found(spooled, &row.start.trajectory_id);
            if let Settlement::Absent { what } = settle(row, found) {
                let trajectory = row.start.trajectory_id.clone();
                return Err(PublishError::Absent { trajectory, what });
            }
        }
        Ok(())
    }

    /// Puts damaged commits aside and the missing ones back.
    fn carry_out(&mut self, manifest: &Manifest, repair: &Repair) -> Result<(), PublishError> {
        for &version in &repair.damaged {
            let path = self.settings.data_dir.join(StoredCommits::file_name(version));
            self.lost_found.take(&path, "the ledger remembers another commit, or it cannot be read")?;
        }
        for commit in &repair.restored {
            let version = commit.version;
            tracing::warn!(
                manifest_version = version,
                shard_id = %commit.txn.shard_id,
                "a manifest commit was missing: it is made again"
            );
            self.runtime.block_on(manifest.restore(commit))?;
        }
        Ok(())
    }

    /// Whether all rows of a shard are elsewhere: in the spool, or, of a merge, in parts that are there. After a crash they are; where the
    /// ledger was put back from before, the shard's files may be the only copy.
    fn can_be_redone(
        &self,
        manifest: &Manifest,
        before: &Snapshot,
        spooled: &[RecoveredTrajectory],
        shard: &ShardRow,
    ) -> bool {
        let part_is_there =
            |path: &String| manifest.snapshot().holds(path) && is_regular(&self.settings.data_dir.join(path));
        let is_spooled = |id: &Id<Trajectory>| {
            let row = before.trajectories.iter().find(|row| row.start.trajectory_id == *id);
            row.and_then(|row| row.standing.ended()).is_some_and(|ended| {
                let steps = found(spooled, id).map_or(0, |found| found.steps.len() as u32);
                steps >= ended.steps
            })
        };
        shard.replaces.iter().all(part_is_there) && shard.trajectories.iter().all(is_spooled)
    }

    /// Its files may be anywhere between the first byte and the last name.
    fn undo(&mut self, shard: &ShardRow, can_be_redone: bool) -> Result<(), PublishError> {
        let shard_id = shard.shard_id.clone();
        tracing::info!(%shard_id, trajectories = shard.trajectories.len(), "undoing an unfinished shard");
        if !can_be_redone {
            let files = local_files(&self.settings.data_dir)?.into_iter();
            let own = files.filter(|file| !file.temporary && file.shard_id.as_ref() == Some(&shard_id));
            for file in own {
                let why =
                    "of an unfinished shard whose rows are nowhere else: is ledger.sqlite an older copy?";
                self.lost_found.take(&file.path, why)?;
            }
        }
        remove_shard(&self.settings.data_dir, &shard_id)?;
        crash::point("ledger.before_shard_abandon");
        self.ledger.commit(&[Mutation::ShardAbandoned { shard_id }])?;
        crash::point("ledger.after_shard_abandon");
        Ok(())
    }

    /// Its files are durable; whether the manifest names them is for the manifest to say.
    fn finish(
        &mut self,
        manifest: &mut Manifest,
        shard: &ShardRow,
        can_be_redone: bool,
    ) -> Result<(), PublishError> {
        let ShardRow { shard_id, files, replaces: removed, .. } = shard.clone();
        let files = files.unwrap_or_default();
        let data_dir = &self.settings.data_dir;
        let damaged = files.iter().find_map(|file| Some((file, check_written(data_dir, file).err()?)));
        if let Some((file, error)) = damaged {
            let is_published = manifest.snapshot().version_of(&shard_id).is_some();
            // A published file is not written twice, a disk that fails is no damaged file, and rows that are nowhere else are not given up.
            if is_published || !is_damage(&error) || !can_be_redone {
                return Err(error.into());
            }
            let path = data_dir.join(&file.path);
            return self.write_again(shard, &path, &error);
        }
        let op = if removed.is_empty() { Op::Append } else { Op::Replace };
        let Origin { run_id, epoch, now_micros: created_at_micros } = self.origin.clone();
        let draft = Draft { op, files, removed, run_id, epoch, shard_id, created_at_micros };
        let manifest_version = self.runtime.block_on(manifest.commit(&draft))?.version();
        tracing::info!(shard_id = %draft.shard_id, manifest_version, "published a written shard");
        Ok(self.ledger.commit(&[Mutation::ShardPublished { shard_id: draft.shard_id, manifest_version }])?)
    }

    /// A written shard with a damaged file is given up: the spool, or the parts of a merge, still hold all its rows.
    fn write_again(
        &mut self,
        shard: &ShardRow,
        damaged: &Path,
        error: &RecordsError,
    ) -> Result<(), PublishError> {
        if damaged.symlink_metadata().is_ok() {
            self.lost_found.take(damaged, &format!("written, not yet published, and damaged: {error}"))?;
        }
        let shard_id = shard.shard_id.clone();
        tracing::warn!(%shard_id, %error, "a written shard is damaged: its rows go into another");
        self.ledger.commit(&[Mutation::ShardAbandoned { shard_id }])?;
        Ok(remove_shard(&self.settings.data_dir, &shard.shard_id)?)
    }

    /// Removes what is left of shards that the ledger gave up, and puts aside what it does not know. `scores` belong to who scores
    /// again.
    fn sweep(&mut self, manifest: &Manifest) -> Result<(), PublishError> {
        let known = manifest.snapshot();
        let is_known = |file: &LocalFile| known.holds(&file.name) || known.removed().contains_key(&file.name);
        let files = local_files(&self.settings.data_dir)?.into_iter();
        for file in files.filter(|file| file.table != Table::Scores && !is_known(file)) {
            let phase = match &file.shard_id {
                Some(shard_id) => self.ledger.shard_phase(shard_id)?,
                None => None,
            };
            if phase == Some(ShardPhase::Abandoned) && is_regular(&file.path) {
                tracing::info!(path = %file.path.display(), "removing a file of an abandoned shard");
                fs::remove_file(&file.path).map_err(DurableError::on("remove", &file.path))?;
            } else {
                self.lost_found.take(&file.path, "it belongs to no shard of this run")?;
            }
        }
        // A crash may have come between a merge's commit and this; parts whose grace is over are gone.
        merge::set_aside(&self.settings.data_dir, known.removed().keys())?;
        Ok(Manifest::clear_staged(&self.settings.data_dir)?)
    }

    /// Drops what is published from the spool, cuts what was never acknowledged, and ends what lost its record. Returns what the spool
    /// keeps, and whose record is lost.
    fn settle(
        &mut self,
        manifest: &Manifest,
        spooled: Vec<RecoveredTrajectory>,
    ) -> Result<(Vec<RecoveredTrajectory>, Vec<Id<Trajectory>>), PublishError> {
        let now = self.ledger.load()?;
        let rows: BTreeMap<_, _> =
            now.trajectories.iter().map(|row| (&row.start.trajectory_id, row)).collect();
        let (mut kept, mut without) = (Vec::with_capacity(spooled.len()), Vec::new());
        let mut checked = BTreeMap::new();
        for mut found in spooled {
            let trajectory = found.trajectory_id.clone();
            match self.ledger.fate(&trajectory)? {
                Some(Fate::Published) => {
                    self.let_go(manifest, &trajectory, &mut checked)?;
                    continue;
                }
                Some(Fate::Open | Fate::Ended) => {}
                None => return Err(PublishError::Stranger { trajectory }),
            }
            // Of a group that is in the data set nothing waits; the ledger does not load its trajectories.
            let settlement = rows.get(&trajectory).map_or(Settlement::Keep, |row| settle(row, Some(&found)));
            match settlement {
                Settlement::Keep => {}
                Settlement::Cut => self.spool.cut(&trajectory)?,
                Settlement::CopyAndCut { why } => self.copy_and_cut(&trajectory, &why)?,
                Settlement::Lose { why } => {
                    self.copy_and_cut(&trajectory, &why)?;
                    let ended = lost(rows[&trajectory], &found, why, self.origin.now_micros);
                    tracing::error!(%trajectory, reason = %ended.reason, "an acknowledged record is lost");
                    let trajectory_id = trajectory.clone();
                    self.ledger.commit(&[Mutation::RecordLost { trajectory_id, ended }])?;
                    // An ending without its steps ends nothing.
                    found.ending = None;
                    without.push(trajectory);
                }
                Settlement::Absent { what } => return Err(PublishError::Absent { trajectory, what }),
            }
            kept.push(found);
        }
        Ok((kept, without))
    }

    /// Drops what is published from the spool. Where a file that should hold its rows is damaged or gone, the spool has the last readable
    /// copy: that one is kept.
    fn let_go(
        &mut self,
        manifest: &Manifest,
        trajectory: &Id<Trajectory>,
        checked: &mut BTreeMap<Id<Shard>, Option<String>>,
    ) -> Result<(), PublishError> {
        if let Some(shard) = self.ledger.shard_of(trajectory)? {
            let data_dir = &self.settings.data_dir;
            let damage = checked.entry(shard.clone()).or_insert_with(|| {
                // Rows of a file that a merge replaced lie in the merged one, which was read back before it was committed.
                let held = manifest.snapshot().files_of(&shard);
                held.into_iter()
                    .find_map(|file| Some(furrow_records::chain(&check_written(data_dir, file).err()?)))
            });
            if let Some(damage) = damage {
                tracing::error!(%trajectory, %damage, "a published file is damaged: the spool's copy is kept");
                let why = format!("the spool's copy of what a damaged published file holds: {damage}");
                self.lost_found.copy(&self.spool.path(trajectory), &why)?;
            }
        }
        Ok(self.spool.delete(trajectory)?)
    }

    fn copy_and_cut(&mut self, trajectory: &Id<Trajectory>, why: &str) -> Result<(), PublishError> {
        self.lost_found.copy(&self.spool.path(trajectory), why)?;
        Ok(self.spool.cut(trajectory)?)
    }
}

impl Repair {
    /// Numbers of damaged commits that nothing takes the place of.
    fn unreplaced(&self) -> Vec<u64> {
        let is_restored = |version: &u64| self.restored.iter().any(|commit| commit.version == *version);
        self.damaged.iter().copied().filter(|version| !is_restored(version)).collect()
    }
}

fn found<'a>(
    spooled: &'a [RecoveredTrajectory],
    trajectory: &Id<Trajectory>,
) -> Option<&'a RecoveredTrajectory> {
    let at = spooled.binary_search_by(|found| found.trajectory_id.cmp(trajectory));
    at.ok().map(|at| &spooled[at])
}

/// Whether a file is missing or not what was written, rather than a disk that failed.
fn is_damage(error: &RecordsError) -> bool {
    match error {
        RecordsError::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
        RecordsError::Damaged { .. } | RecordsError::Parquet { .. } => true,
        _ => false,
    }
}

fn is_regular(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_file())
}

/// Folders that a run works in, and files that it writes to, are its own.
pub(crate) fn check_run_dir(run_dir: &Path) -> Result<(), DurableError> {
    let check_dir = |path: &PathBuf| furrow_storage::check_dir(path).map_err(DurableError::on("use", path));
    let data = run_dir.join("data");
    let mut folders: Vec<PathBuf> = Table::ALL.iter().map(|table| data.join(table.as_str())).collect();
    let replaced = data.join("replaced");
    folders.extend(Table::ALL.iter().map(|table| replaced.join(table.as_str())));
    folders.extend([data.join("manifest"), replaced, data]);
    folders.extend(["spool", "logs", "archive", "lost+found"].map(|name| run_dir.join(name)));
    folders.iter().try_for_each(check_dir)
}

/// Refuses a data set whose manifest lacks what the ledger beside it remembers: the next commit would take a number that is another
/// shard's. A run directory without a ledger passes.
pub(crate) fn check_manifest_is_whole(run_dir: &Path, data_dir: &Path) -> Result<(), PublishError> {
    let path = run_dir.join("ledger.sqlite");
    if !path.exists() {
        return Ok(());
    }
    let mut ledger = SqliteLedger::open_to_read(path)?;
    let store = Manifest::local_store(data_dir)?;
    let stored = Blocking::new()?.block_on(StoredCommits::read(&store))?;
    let published = ledger.published_shards()?;
    let gaps = compare(&stored, &published, |shard| ledger.shard_phase(shard))?;
    if gaps.is_empty() {
        return Ok(());
    }
    Err(PublishError::ManifestBehind { count: gaps.remembered.len() + gaps.unknown.len() })
}

fn opened_run(snapshot: &Snapshot) -> Result<&RunRow, PublishError> {
    snapshot.run.as_ref().ok_or_else(|| PublishError::Stopped { why: "no run was opened".to_owned() })
}
