//! The start of a coordinator: ledger, manifest, spool and files are compared, and only then brought into agreement.
//!
//! Nothing that was acknowledged is removed here. What a crash left between two stages is finished or undone; a manifest commit that
//! is missing is made again from the ledger; what cannot be accounted for is put aside in `lost+found/`; what contradicts the ledger stops
//! the start before anything was changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use furrow_records::{
    Commit, Draft, LocalFile, Manifest, Op, RecordsError, StoredCommits, Table, WrittenFile, check_written,
    local_files, merge, remove_shard, written_file,
};
use furrow_rollout::{Id, Shard, Trajectory};

use super::reconcile::{Origin, compare};
use super::settle::{Settlement, lost, settle};
use super::{Blocking, PublishError, PublishSettings, Publisher, now_micros, pass};
use crate::crash;
use crate::durable::{DurableError, make_durable_dir};
use crate::ledger::{
    Fate, Ledger, LedgerHandle, LedgerLimits, Mutation, RunRow, ShardPhase, ShardRow, Snapshot, SqliteLedger,
    Standing, TrajectoryRow,
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

/// What becomes of a shard that a crash left before its publication.
enum Unfinished {
    /// Its files are whole: the manifest is to name them.
    Publish,
    /// A file is damaged, and all its rows are elsewhere: they go into another shard.
    WriteAgain { damaged: PathBuf, error: RecordsError },
    /// Its files were never finished. Where its rows are nowhere else, what is there of them is kept.
    Undo { keeps_files: bool },
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
            foreign: BTreeSet::new(),
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
        let plan = |shard| Ok((shard, self.plan(&manifest, before, &spooled, shard)?));
        let unfinished: Vec<_> = before.shards.iter().map(plan).collect::<Result<_, PublishError>>()?;
        self.check_spooled(before, &spooled, &unfinished)?;
        self.check_room(&manifest, &repair)?;

        self.carry_out(&manifest, &repair)?;
        for (shard, plan) in unfinished {
            match plan {
                Unfinished::Publish => self.finish(&mut manifest, shard)?,
                Unfinished::WriteAgain { damaged, error } => self.write_again(shard, &damaged, &error)?,
                Unfinished::Undo { keeps_files } => self.undo(shard, keeps_files)?,
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

    /// A commit that is made again must not name files that are gone: then the data set itself was not put back. Where the manifest is whole
    /// and files are not, the run goes on, for they may have been taken elsewhere; the log says so.
    fn check_files(&self, manifest: &Manifest, repair: &Repair) -> Result<(), PublishError> {
        let data_dir = &self.settings.data_dir;
        // A link to where the file was taken is as good: readers follow it.
        let is_gone = |file: &&WrittenFile| {
            let found = data_dir.join(&file.path).metadata();
            !found.is_ok_and(|found| found.is_file() && found.len() == file.bytes)
        };
        let named = Table::ALL.iter().flat_map(|table| manifest.snapshot().files(*table));
        let gone: Vec<&WrittenFile> = named.filter(is_gone).collect();
        let Some(first) = gone.first() else { return Ok(()) };
        let first = data_dir.join(&first.path);
        let mut restored = repair.restored.iter().flat_map(|commit| &commit.files);
        if restored.any(|file| gone.iter().any(|gone| gone.path == file.path)) {
            return Err(PublishError::FilesLost { count: gone.len(), first });
        }
        tracing::error!(
            count = gone.len(),
            first = %first.display(),
            "published files are gone or have another length: put them back; `furrow records verify` lists them"
        );
        Ok(())
    }

    /// What is to come into `lost+found/` must fit there before the first of it is moved.
    fn check_room(&mut self, manifest: &Manifest, repair: &Repair) -> Result<(), PublishError> {
        let data_dir = &self.settings.data_dir;
        let damaged = repair.damaged.iter().map(|version| data_dir.join(StoredCommits::file_name(*version)));
        let mut paths: Vec<PathBuf> = damaged.collect();
        for file in unlisted(manifest, data_dir)? {
            let phase = file.shard_id.as_ref().map(|id| self.ledger.shard_phase(id)).transpose()?.flatten();
            if phase.is_none() || matches!(phase, Some(ShardPhase::Published { .. })) {
                paths.push(file.path);
            }
        }
        match paths.first() {
            Some(first) => Ok(self.lost_found.check_room(paths.len(), first)?),
            None => Ok(()),
        }
    }

    /// What the ledger has acknowledged must have a file in the spool, and what has a file must be known to the ledger.
    fn check_spooled(
        &mut self,
        before: &Snapshot,
        spooled: &[RecoveredTrajectory],
        unfinished: &[(&ShardRow, Unfinished)],
    ) -> Result<(), PublishError> {
        let mut strangers = Vec::new();
        for found in spooled {
            if self.ledger.fate(&found.trajectory_id)?.is_none() {
                strangers.push(&found.trajectory_id);
            }
        }
        if let Some(&first) = strangers.first() {
            return Err(PublishError::Stranger { trajectory: first.clone(), count: strangers.len() });
        }
        let published = unfinished.iter().filter(|(_, plan)| matches!(plan, Unfinished::Publish));
        let published: Vec<_> = published.map(|(shard, _)| &shard.shard_id).collect();
        let is_written =
            |row: &TrajectoryRow| row.shard_id.as_ref().is_some_and(|id| published.contains(&id));
        let waiting = before.trajectories.iter().filter(|row| !row.published && !is_written(row));
        let absent = |row: &TrajectoryRow| {
            let trajectory = &row.start.trajectory_id;
            match settle(row, found(spooled, trajectory)) {
                Settlement::Absent { what } => Some((trajectory.clone(), what)),
                _ => None,
            }
        };
        let mut absent: Vec<_> = waiting.filter_map(absent).collect();
        let count = absent.len();
        match absent.drain(..).next() {
            Some((trajectory, what)) => Err(PublishError::Absent { trajectory, what, count }),
            None => Ok(()),
        }
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
        // Of a failed trajectory nothing is trained on: what the spool has of it is enough.
        let is_spooled = |id: &Id<Trajectory>| {
            let row = before.trajectories.iter().find(|row| row.start.trajectory_id == *id);
            row.is_some_and(|row| {
                let settlement = settle(row, found(spooled, id));
                matches!(row.standing, Standing::Failed { .. })
                    || matches!(
                        settlement,
                        Settlement::Keep | Settlement::Cut | Settlement::CopyAndCut { .. }
                    )
            })
        };
        shard.replaces.iter().all(part_is_there) && shard.trajectories.iter().all(is_spooled)
    }

    /// Reads the files of a written shard, and says what is to become of it. Changes nothing.
    fn plan(
        &self,
        manifest: &Manifest,
        before: &Snapshot,
        spooled: &[RecoveredTrajectory],
        shard: &ShardRow,
    ) -> Result<Unfinished, PublishError> {
        let can_be_redone = self.can_be_redone(manifest, before, spooled, shard);
        let Some(files) = &shard.files else {
            return Ok(Unfinished::Undo { keeps_files: !can_be_redone });
        };
        let data_dir = &self.settings.data_dir;
        let damaged = files.iter().find_map(|file| Some((file, check_written(data_dir, file).err()?)));
        let Some((file, error)) = damaged else { return Ok(Unfinished::Publish) };
        let path = data_dir.join(&file.path);
        // A disk that fails is no damaged file.
        if !is_damage(&error) {
            return Err(error.into());
        }
        let damage = furrow_records::chain(&error);
        let is_merge = shard.trajectories.is_empty() && !shard.replaces.is_empty();
        if !can_be_redone && !is_merge && path.symlink_metadata().is_ok() {
            return Err(PublishError::OnlyCopyDamaged { path, damage });
        }
        // Who read this version of the data set has seen the file: it is not replaced behind their backs.
        if let Some(version) = manifest.snapshot().version_of(&shard.shard_id) {
            let commit = data_dir.join(StoredCommits::file_name(version));
            return Err(PublishError::NamedAndDamaged { path, damage, commit });
        }
        match can_be_redone || is_merge {
            true => Ok(Unfinished::WriteAgain { damaged: path, error }),
            false => Ok(Unfinished::Undo { keeps_files: true }),
        }
    }

    /// Its files may be anywhere between the first byte and the last name.
    fn undo(&mut self, shard: &ShardRow, keeps_files: bool) -> Result<(), PublishError> {
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
        remove_shard(&self.settings.data_dir, &shard_id)?;
        crash::point("ledger.before_shard_abandon");
        self.ledger.commit(&[Mutation::ShardAbandoned { shard_id }])?;
        crash::point("ledger.after_shard_abandon");
        Ok(())
    }

    /// Its files are durable; whether the manifest names them is for the manifest to say.
    fn finish(&mut self, manifest: &mut Manifest, shard: &ShardRow) -> Result<(), PublishError> {
        let ShardRow { shard_id, files, replaces: removed, .. } = shard.clone();
        let files = files.unwrap_or_default();
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

    /// Removes what is left of shards that the ledger gave up, and puts aside what it does not know.
    fn sweep(&mut self, manifest: &Manifest) -> Result<(), PublishError> {
        // Where the commit of a merge was taken away, its parts belong to the data set again.
        merge::put_back(&self.settings.data_dir, manifest.snapshot())?;
        for file in unlisted(manifest, &self.settings.data_dir)? {
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
        merge::set_aside(&self.settings.data_dir, manifest.snapshot().removed().keys())?;
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
                None => return Err(PublishError::Stranger { trajectory, count: 1 }),
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
                Settlement::Absent { what } => {
                    return Err(PublishError::Absent { trajectory, what, count: 1 });
                }
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

/// Files below the data set's folder that the manifest does not name. `scores` belong to who scores again.
fn unlisted(manifest: &Manifest, data_dir: &Path) -> Result<Vec<LocalFile>, RecordsError> {
    let known = manifest.snapshot();
    let is_known = |file: &LocalFile| known.holds(&file.name) || known.removed().contains_key(&file.name);
    let mut files = local_files(data_dir)?;
    files.retain(|file| file.table != Table::Scores && !is_known(file));
    Ok(files)
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
    folders.iter().try_for_each(check_dir)?;
    check_entries(&run_dir.join("data").join("manifest"))
}

/// Whatever reads a commit must not wait for a named pipe, nor read a device.
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
