//! The start of a coordinator: finishes or undoes what a crash left between two stages, and throws away what nobody knows.

use std::fs;

use furrow_records::{
    Draft, LocalFile, Manifest, Op, Table, check_written, local_files, merge, remove_shard,
};

use super::{Blocking, PublishError, PublishSettings, Publisher, now_micros, pass};
use crate::crash;
use crate::durable::{DurableError, make_durable_dir};
use crate::ledger::{
    Fate, Ledger, LedgerHandle, LedgerLimits, Mutation, RunRow, ShardRow, Snapshot, Standing, TrajectoryRow,
};
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
}

/// The parts that recovery works on, before anything is served.
struct Recovery<'a, L> {
    settings: &'a PublishSettings,
    ledger: &'a mut L,
    spool: &'a Spool,
    manifest: &'a mut Manifest,
    runtime: &'a Blocking,
    epoch: u64,
}

impl Publisher {
    /// Brings ledger, spool, files and manifest into agreement; nothing may be served before. The run is opened already.
    ///
    /// Shards the ledger calls opened are undone: their trajectories wait for a new shard. Shards it calls written are
    /// published. Files that neither the ledger nor the manifest knows are removed. What was acknowledged and is not there is
    /// an error, not a repair.
    pub fn recover<L: Ledger + 'static>(
        settings: PublishSettings,
        mut ledger: L,
        limits: LedgerLimits,
        spool: Spool,
        spooled: Vec<RecoveredTrajectory>,
    ) -> Result<Recovered, PublishError> {
        let runtime = Blocking::new()?;
        make_durable_dir(&settings.data_dir)?;
        let store = Manifest::local_store(&settings.data_dir)?;
        let mut manifest = runtime.block_on(Manifest::open(store))?;
        let epoch = opened_run(&ledger.load()?)?.epoch;
        let spooled = Recovery {
            settings: &settings,
            ledger: &mut ledger,
            spool: &spool,
            manifest: &mut manifest,
            runtime: &runtime,
            epoch,
        }
        .run(spooled)?;
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
            merges: true,
            retired_at: None,
            reached: Box::new(pass),
        };
        Ok(Recovered { publisher, ledger, snapshot, spooled })
    }
}

impl<L: Ledger> Recovery<'_, L> {
    fn run(mut self, spooled: Vec<RecoveredTrajectory>) -> Result<Vec<RecoveredTrajectory>, PublishError> {
        for shard in self.ledger.load()?.shards {
            match shard.files {
                Some(_) => self.finish(shard)?,
                None => self.undo(&shard)?,
            }
        }
        self.sweep()?;
        let kept = self.let_go(spooled)?;
        for row in self.ledger.load()?.trajectories.iter().filter(|row| !row.published) {
            check_kept(row, &kept)?;
        }
        Ok(kept)
    }

    /// Its files may be anywhere between the first byte and the last name.
    fn undo(&mut self, shard: &ShardRow) -> Result<(), PublishError> {
        let shard_id = shard.shard_id.clone();
        if self.manifest.snapshot().version_of(&shard_id).is_some() {
            return Err(PublishError::LedgerBehind { shard_id });
        }
        tracing::info!(%shard_id, trajectories = shard.trajectories.len(), "undoing an unfinished shard");
        remove_shard(&self.settings.data_dir, &shard_id)?;
        crash::point("ledger.before_shard_abandon");
        self.ledger.commit(&[Mutation::ShardAbandoned { shard_id }])?;
        crash::point("ledger.after_shard_abandon");
        Ok(())
    }

    /// Its files are durable; whether the manifest names them is for the manifest to say.
    fn finish(&mut self, shard: ShardRow) -> Result<(), PublishError> {
        let ShardRow { shard_id, files, replaces: removed, .. } = shard;
        let files = files.unwrap_or_default();
        for file in &files {
            check_written(&self.settings.data_dir, file)?;
        }
        let op = if removed.is_empty() { Op::Append } else { Op::Replace };
        let (run_id, epoch, created_at_micros) = (self.settings.run_id.clone(), self.epoch, now_micros());
        let draft = Draft { op, files, removed, run_id, epoch, shard_id, created_at_micros };
        let manifest_version = self.runtime.block_on(self.manifest.commit(&draft))?.version();
        tracing::info!(shard_id = %draft.shard_id, manifest_version, "published a written shard");
        Ok(self.ledger.commit(&[Mutation::ShardPublished { shard_id: draft.shard_id, manifest_version }])?)
    }

    /// Removes files that neither the manifest nor the ledger knows. `scores` belongs to whoever scores again.
    fn sweep(&self) -> Result<(), PublishError> {
        let known = self.manifest.snapshot();
        let is_known = |file: &LocalFile| known.holds(&file.name) || known.removed().contains_key(&file.name);
        let files = local_files(&self.settings.data_dir)?.into_iter();
        for file in files.filter(|file| file.table != Table::Scores && !is_known(file)) {
            tracing::info!(path = %file.path.display(), "removing a file that belongs to no shard");
            fs::remove_file(&file.path).map_err(DurableError::on("remove", &file.path))?;
        }
        // A crash may have come between a merge's commit and this; parts whose grace is over are gone.
        merge::set_aside(&self.settings.data_dir, known.removed().keys())?;
        self.sweep_manifest()
    }

    /// A crash inside a create-if-absent put leaves its staging file, `<commit>.json#<n>`.
    fn sweep_manifest(&self) -> Result<(), PublishError> {
        let dir = self.settings.data_dir.join("manifest");
        for entry in fs::read_dir(&dir).map_err(DurableError::on("list", &dir))? {
            let path = entry.map_err(DurableError::on("list", &dir))?.path();
            if path.to_string_lossy().contains(".json#") {
                fs::remove_file(&path).map_err(DurableError::on("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Drops what is published from the spool; returns what it keeps.
    fn let_go(
        &mut self,
        spooled: Vec<RecoveredTrajectory>,
    ) -> Result<Vec<RecoveredTrajectory>, PublishError> {
        let mut kept = Vec::with_capacity(spooled.len());
        for found in spooled {
            match self.ledger.fate(&found.trajectory_id)? {
                Some(Fate::Published) => self.spool.delete(&found.trajectory_id)?,
                Some(Fate::Open | Fate::Ended) => kept.push(found),
                None => return Err(PublishError::Stranger { trajectory: found.trajectory_id }),
            }
        }
        Ok(kept)
    }
}

/// What was acknowledged as finished must be there, to the last step.
fn check_kept(row: &TrajectoryRow, kept: &[RecoveredTrajectory]) -> Result<(), PublishError> {
    let (Standing::Finished { ended, .. } | Standing::Scored { ended, .. }) = &row.standing else {
        return Ok(());
    };
    let trajectory = &row.start.trajectory_id;
    let lost = |what: String| Err(PublishError::Lost { trajectory: trajectory.clone(), what });
    let found = kept.binary_search_by(|found| found.trajectory_id.cmp(trajectory));
    let Ok(found) = found.map(|at| &kept[at]) else {
        return lost("the spool holds nothing of it".to_owned());
    };
    if found.ending.is_none() {
        return lost("the spool does not hold its ending".to_owned());
    }
    if found.steps.len() != ended.steps as usize {
        return lost(format!("of its {} steps the spool holds {}", ended.steps, found.steps.len()));
    }
    Ok(())
}

fn opened_run(snapshot: &Snapshot) -> Result<&RunRow, PublishError> {
    snapshot.run.as_ref().ok_or_else(|| PublishError::Stopped { why: "no run was opened".to_owned() })
}
