//! The first half of a start, which only reads: what recovery would change in a run directory, or
//! why the start must be refused.

use std::io;
use std::path::{Path, PathBuf};

use furrow_records::{
    Commit, LocalFile, ManifestSnapshot, RecordsError, StoredCommits, Table, WrittenFile, check_written,
    local_files, written_file,
};
use furrow_rollout::{Id, Trajectory};

use super::error::CommitError;
use super::reconcile::{CommitOrigin, compare};
use super::settle::{SpoolSettlement, settle};
use crate::ledger::{Ledger, LedgerSnapshot, ShardPhase, ShardRow, TrajectoryRow, TrajectoryStanding};
use crate::lost_found::LostFound;
use crate::spool::RecoveredTrajectory;

/// What a start changes.
pub(super) struct RecoveryPlan {
    pub repair: ManifestRepair,
    /// The manifest once it is repaired.
    pub manifest: ManifestSnapshot,
    /// Shards that the ledger calls opened or written, and what becomes of each.
    pub unfinished: Vec<(ShardRow, UnfinishedShard)>,
    /// Files of the data set that are gone or have another length.
    pub gone: Vec<WrittenFile>,
}

/// Changes that make the manifest match the ledger.
pub(super) struct ManifestRepair {
    /// Numbers of commits to move to `lost+found/`.
    pub damaged: Vec<u64>,
    /// Commits to restore, in order of their numbers.
    pub restored: Vec<Commit>,
}

/// What happens to a shard that a crash left before its commit.
pub(super) enum UnfinishedShard {
    /// Its files are whole: the manifest shall name them.
    Commit,
    /// A file is damaged, and all its rows exist elsewhere: they go into another shard.
    Rewrite { damaged: PathBuf, error: RecordsError },
    /// Its files were never finished. What is there is kept where its rows exist nowhere else.
    Undo { keeps_files: bool },
}

/// Compares ledger, manifest, spool and files. Changes none of them.
pub(super) struct RecoverySurvey<'a, L> {
    pub data_dir: &'a Path,
    pub ledger: &'a mut L,
    pub origin: &'a CommitOrigin,
    pub lost_found: &'a LostFound,
}

impl<L: Ledger> RecoverySurvey<'_, L> {
    /// Plans the recovery.
    ///
    /// # Errors
    /// Why the start must be refused.
    pub(super) fn plan_recovery(
        mut self,
        before: &LedgerSnapshot,
        spooled: &[RecoveredTrajectory],
        mut stored: StoredCommits,
    ) -> Result<RecoveryPlan, CommitError> {
        let repair = self.repair(&stored)?;
        let restored = repair.restored.iter().cloned();
        restored.for_each(|commit| stored.insert(commit));
        let manifest = stored.without(&repair.unreplaced()).into_snapshot()?;
        let gone = self.check_files(&manifest, &repair)?;
        let plan = |shard: &ShardRow| Ok((shard.clone(), self.plan(&manifest, before, spooled, shard)?));
        let unfinished: Vec<_> = before.shards.iter().map(plan).collect::<Result<_, CommitError>>()?;
        self.check_spooled(before, spooled, &unfinished)?;
        self.check_lost_found_capacity(&manifest, &repair)?;
        Ok(RecoveryPlan { repair, manifest, unfinished, gone })
    }

    /// Returns what the manifest lacks and how to restore it.
    fn repair(&mut self, stored: &StoredCommits) -> Result<ManifestRepair, CommitError> {
        let committed = self.ledger.committed_shards(stored.first())?;
        let ledger = &mut *self.ledger;
        let gaps = compare(stored, &committed, |shard| ledger.shard_phase(shard))?;
        let newest = stored.newest().max(committed.last().map_or(0, |shard| shard.manifest_version));
        // The newest commit, damaged and not in the ledger, belongs to the shard that the ledger
        // calls written: it is committed again.
        let wanted: Vec<u64> = gaps.unknown.into_iter().filter(|version| *version < newest).collect();
        let data_dir = self.data_dir;
        let mut restored: Vec<_> =
            gaps.remembered.into_iter().map(|shard| self.origin.commit(data_dir, shard)).collect();
        let mut files = if wanted.is_empty() { Vec::new() } else { self.unlisted_scores(stored)? };
        for version in wanted {
            let Some(file) = (!files.is_empty()).then(|| files.remove(0)) else {
                return Err(CommitError::CommitLost { version });
            };
            let shard_id = file.shard_id.ok_or(CommitError::CommitLost { version })?;
            let listed = written_file(self.data_dir, Table::Scores, &shard_id)?;
            restored.push(self.origin.scoring(self.data_dir, version, listed, shard_id));
        }
        restored.sort_by_key(|commit| commit.version);
        Ok(ManifestRepair { damaged: gaps.damaged, restored })
    }

    /// Whole files of scores that no commit names, the oldest first: their names end in the time.
    fn unlisted_scores(&self, stored: &StoredCommits) -> Result<Vec<LocalFile>, CommitError> {
        let mut files = local_files(self.data_dir)?;
        files.retain(|file| file.table == Table::Scores && !file.temporary && file.shard_id.is_some());
        files.retain(|file| !stored.name(&file.name));
        Ok(files)
    }

    /// Returns the files of the data set that are gone or have another length.
    ///
    /// A restored commit must not name one of them: then the data set itself was not restored.
    /// Where the manifest is whole, the run continues, for the files may have been moved elsewhere;
    /// the log says so, and the run's exit status.
    fn check_files(
        &self,
        manifest: &ManifestSnapshot,
        repair: &ManifestRepair,
    ) -> Result<Vec<WrittenFile>, CommitError> {
        // A link to the moved file is enough: readers follow it.
        let is_gone = |file: &&WrittenFile| {
            let found = self.data_dir.join(&file.path).metadata();
            !found.is_ok_and(|found| found.is_file() && found.len() == file.bytes)
        };
        let named = Table::ALL.iter().flat_map(|table| manifest.files(*table));
        let gone: Vec<WrittenFile> = named.filter(is_gone).cloned().collect();
        let Some(first) = gone.first() else { return Ok(gone) };
        let first = self.data_dir.join(&first.path);
        let mut restored = repair.restored.iter().flat_map(|commit| &commit.files);
        if restored.any(|file| gone.iter().any(|gone| gone.path == file.path)) {
            return Err(CommitError::FilesLost { count: gone.len(), first });
        }
        Ok(gone)
    }

    /// Makes sure that everything bound for `lost+found/` fits there before the first of it is
    /// moved.
    fn check_lost_found_capacity(
        &mut self,
        manifest: &ManifestSnapshot,
        repair: &ManifestRepair,
    ) -> Result<(), CommitError> {
        let data_dir = self.data_dir;
        let damaged = repair.damaged.iter().map(|version| data_dir.join(StoredCommits::file_name(*version)));
        let mut paths: Vec<PathBuf> = damaged.collect();
        for file in unlisted(manifest, data_dir)? {
            let phase = file.shard_id.as_ref().map(|id| self.ledger.shard_phase(id)).transpose()?.flatten();
            let is_committed = matches!(phase, Some(ShardPhase::Committed { .. }));
            if phase.is_none() || is_committed && !file.temporary {
                paths.push(file.path);
            }
        }
        match paths.first() {
            Some(first) => Ok(self.lost_found.check_capacity(paths.len(), first)?),
            None => Ok(()),
        }
    }

    /// Makes sure that everything acknowledged has a file in the spool, and that the ledger knows
    /// every file there.
    fn check_spooled(
        &mut self,
        before: &LedgerSnapshot,
        spooled: &[RecoveredTrajectory],
        unfinished: &[(ShardRow, UnfinishedShard)],
    ) -> Result<(), CommitError> {
        let mut strangers = Vec::new();
        for found in spooled {
            if self.ledger.fate(&found.trajectory_id)?.is_none() {
                strangers.push(&found.trajectory_id);
            }
        }
        if let Some(&first) = strangers.first() {
            return Err(CommitError::UnknownTrajectory { trajectory: first.clone(), count: strangers.len() });
        }
        let committing = unfinished.iter().filter(|(_, plan)| matches!(plan, UnfinishedShard::Commit));
        let committing: Vec<_> = committing.map(|(shard, _)| &shard.shard_id).collect();
        let is_written =
            |row: &TrajectoryRow| row.shard_id.as_ref().is_some_and(|id| committing.contains(&id));
        let waiting = before.trajectories.iter().filter(|row| !row.committed && !is_written(row));
        let absent = |row: &TrajectoryRow| {
            let trajectory = &row.start.trajectory_id;
            match settle(row, find_spooled(spooled, trajectory)) {
                SpoolSettlement::Absent { what } => Some((trajectory.clone(), what)),
                _ => None,
            }
        };
        let mut absent: Vec<_> = waiting.filter_map(absent).collect();
        let count = absent.len();
        match absent.drain(..).next() {
            Some((trajectory, what)) => Err(CommitError::Absent { trajectory, what, count }),
            None => Ok(()),
        }
    }

    /// Whether all rows of a shard exist elsewhere: in the spool or, for a merge, in parts that
    /// still exist. After a crash they do; where an older ledger was restored, the shard's files
    /// may be the only copy.
    fn can_be_redone(
        &self,
        manifest: &ManifestSnapshot,
        before: &LedgerSnapshot,
        spooled: &[RecoveredTrajectory],
        shard: &ShardRow,
    ) -> bool {
        let part_is_there = |path: &String| manifest.holds(path) && is_regular(&self.data_dir.join(path));
        // Nothing trains on a failed trajectory: what the spool holds of it is enough.
        let is_spooled = |id: &Id<Trajectory>| {
            let row = before.trajectories.iter().find(|row| row.start.trajectory_id == *id);
            row.is_some_and(|row| {
                let settlement = settle(row, find_spooled(spooled, id));
                matches!(row.standing, TrajectoryStanding::Failed { .. })
                    || matches!(
                        settlement,
                        SpoolSettlement::Keep | SpoolSettlement::Cut | SpoolSettlement::CopyAndCut { .. }
                    )
            })
        };
        shard.replaces.iter().all(part_is_there) && shard.trajectories.iter().all(is_spooled)
    }

    /// Reads the files of a written shard and decides what happens to it. Changes nothing.
    fn plan(
        &self,
        manifest: &ManifestSnapshot,
        before: &LedgerSnapshot,
        spooled: &[RecoveredTrajectory],
        shard: &ShardRow,
    ) -> Result<UnfinishedShard, CommitError> {
        let can_be_redone = self.can_be_redone(manifest, before, spooled, shard);
        let Some(files) = &shard.files else {
            return Ok(UnfinishedShard::Undo { keeps_files: !can_be_redone });
        };
        let data_dir = self.data_dir;
        let damaged = files.iter().find_map(|file| Some((file, check_written(data_dir, file).err()?)));
        let Some((file, error)) = damaged else { return Ok(UnfinishedShard::Commit) };
        let path = data_dir.join(&file.path);
        // A failing disk is not a damaged file.
        if !is_damage(&error) {
            return Err(error.into());
        }
        let damage = furrow_records::chain(&error);
        let is_merge = shard.trajectories.is_empty() && !shard.replaces.is_empty();
        if !can_be_redone && !is_merge && path.symlink_metadata().is_ok() {
            return Err(CommitError::OnlyCopyDamaged { path, damage });
        }
        // Readers of this version of the data set have seen the file, so it must not be replaced.
        if let Some(version) = manifest.version_of(&shard.shard_id) {
            let commit = data_dir.join(StoredCommits::file_name(version));
            return Err(CommitError::NamedAndDamaged { path, damage, commit });
        }
        match can_be_redone || is_merge {
            true => Ok(UnfinishedShard::Rewrite { damaged: path, error }),
            false => Ok(UnfinishedShard::Undo { keeps_files: true }),
        }
    }
}

impl ManifestRepair {
    /// Numbers of damaged commits that nothing replaces.
    fn unreplaced(&self) -> Vec<u64> {
        let is_restored = |version: &u64| self.restored.iter().any(|commit| commit.version == *version);
        self.damaged.iter().copied().filter(|version| !is_restored(version)).collect()
    }
}

/// Files below the data set's folder that the manifest does not name. Recovery leaves `scores` to
/// the next rescoring.
pub(super) fn unlisted(manifest: &ManifestSnapshot, data_dir: &Path) -> Result<Vec<LocalFile>, RecordsError> {
    let is_known =
        |file: &LocalFile| manifest.holds(&file.name) || manifest.removed().contains_key(&file.name);
    let mut files = local_files(data_dir)?;
    files.retain(|file| file.table != Table::Scores && !is_known(file));
    Ok(files)
}

pub(super) fn find_spooled<'a>(
    spooled: &'a [RecoveredTrajectory],
    trajectory: &Id<Trajectory>,
) -> Option<&'a RecoveredTrajectory> {
    let at = spooled.binary_search_by(|found| found.trajectory_id.cmp(trajectory));
    at.ok().map(|at| &spooled[at])
}

/// Whether a file is missing or not what was written, as opposed to a disk that failed.
fn is_damage(error: &RecordsError) -> bool {
    match error {
        RecordsError::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
        RecordsError::Damaged { .. } | RecordsError::Parquet { .. } => true,
        _ => false,
    }
}

pub(super) fn is_regular(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_file())
}
