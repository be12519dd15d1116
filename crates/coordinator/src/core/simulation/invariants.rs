//! What must hold once a simulated run is over.

use super::*;

impl SimulatedFarm {
    pub(super) fn check_harvest(&mut self) -> Result<(), InvariantViolation> {
        if self.over != Some(JobOutcome::Complete) {
            return Err(format!("it ended as {:?}", self.over));
        }
        let snapshot = self.ledger.load().map_err(|error| error.to_string())?;
        let core = self.core.as_ref().ok_or("the coordinator is dead")?;
        if !snapshot.groups.is_empty() || core.leases.len() + core.groups.len() + core.scoring.len() > 0 {
            return Err(format!("work is left open: {:?}, {core:?}", snapshot.groups));
        }
        let progress = core.progress();
        let want = (GROUPS, progress.scored + progress.failed.values().sum::<u64>());
        if (progress.groups_closed, progress.committed) != want {
            return Err(format!("the totals do not agree: {progress:?}"));
        }
        self.check_rows()?;
        self.check_evaluations(&snapshot.evaluations)
    }

    /// Every evaluation ended, on problems drawn once and trajectories of one version.
    fn check_evaluations(&mut self, rows: &[EvaluationRow]) -> Result<(), InvariantViolation> {
        let Some(schedule) = self.schedule else { return Ok(()) };
        if rows.is_empty() || rows.iter().any(EvaluationRow::is_open) {
            return Err(format!("evaluations are missing or open: {rows:?}"));
        }
        let mut draws = BTreeMap::new();
        for (_, decision) in &self.log {
            for mutation in &decision.commit {
                let Mutation::GroupDrawn { draw, .. } = mutation else { continue };
                draws.extend(draw.problem.map(|problem| (draw.group_id.clone(), problem.version)));
            }
        }
        for trajectory in &self.scored {
            let group = group_name(trajectory);
            let version = draws.iter().find(|(id, _)| id.as_str() == group).map(|(_, version)| *version);
            let acted_on = self.evaluated_on.get(trajectory);
            if let (Some(version), Some(range)) = (version, acted_on)
                && *range != (version, version)
            {
                return Err(format!("{trajectory} of the evaluation of {version} was acted on {range:?}"));
            }
        }
        let slots = schedule.problems * u64::from(schedule.group_size);
        match rows.iter().find(|row| row.scored > slots || row.drawn > row.problems) {
            Some(row) => Err(format!("more was evaluated than was drawn: {row:?}")),
            None => Ok(()),
        }
    }

    /// Every acknowledged end is in the data set once, as it was reported; every slot is scored at
    /// most once.
    fn check_rows(&self) -> Result<(), InvariantViolation> {
        let mut rows = BTreeMap::new();
        let mut slots = BTreeMap::new();
        for trajectory in self.manifest.iter().flat_map(|shard| &shard.trajectories) {
            *rows.entry(trajectory.clone()).or_insert(0) += 1;
        }
        for trajectory in &self.scored {
            let slot = trajectory.as_str().rsplit_once("-a").map(|(slot, _)| slot.to_owned());
            *slots.entry(slot).or_insert(0) += 1;
        }
        for (trajectory, reported) in &self.acknowledged {
            if rows.get(trajectory) != Some(&1) {
                return Err(format!(
                    "{trajectory} was acknowledged and is in the data set {:?} times",
                    rows.get(trajectory)
                ));
            }
            // Without evidence it is a page crash, and a scorer may fail; no other end is valid.
            let end = self.ended.get(trajectory);
            // The same holds for a cut evaluation.
            let may_be_late = self.spares > 0 || self.schedule.is_some();
            let is_late = may_be_late && end == Some(&EndKind::Cancelled);
            let is_lost = end == Some(&EndKind::RecordLost) && self.damaged.contains(trajectory);
            if !is_late
                && !is_lost
                && !end.is_some_and(|end| [*reported, EndKind::PageCrash, EndKind::ScorerError].contains(end))
            {
                return Err(format!("{trajectory} was acknowledged as {reported:?} and became {end:?}"));
            }
        }
        match (rows.values().max(), slots.values().max()) {
            (Some(1), None | Some(1)) => Ok(()),
            other => Err(format!("a row or a slot is there more than once: {other:?}")),
        }
    }
}
