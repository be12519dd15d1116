//! Assembles a trajectory's rows: the ledger and the job hold its lease and score, the spool holds
//! what happened.

use furrow_records::chain;
use furrow_rollout::{
    EngineStats, EnvironmentFingerprint, PolicyHashes, PolicyKind, SessionSpec, StepRecord, Task, TimeSplit,
    TokenTrace, TrajectoryAncestry, TrajectoryEnding, TrajectoryRecord, TrajectoryStatus,
};

use super::error::CommitError;
use crate::crash;
use crate::ledger::{TimedScore, TrajectoryEnd};
use crate::spool::{EntryKey, Spool};

/// What is known of an ended trajectory, apart from its steps and its evidence.
#[derive(Debug, Clone, PartialEq)]
pub struct TrajectoryFacts {
    /// Its run, group, slot and attempt.
    pub ancestry: TrajectoryAncestry,
    /// The task as assigned.
    pub task: Task,
    /// The task's line in its file.
    pub task_json: String,
    /// Kind of policy that made the steps.
    pub policy_kind: PolicyKind,
    /// Hashes of what the policy consists of.
    pub hashes: PolicyHashes,
    /// Session settings it ran under.
    pub session: SessionSpec,
    /// Slots planned in its group.
    pub group_size: u32,
    /// Fencing token of its lease.
    pub token: u64,
    /// The environment worker that acted it.
    pub env_worker: String,
    /// Microseconds from when the slot was free to the lease.
    pub queue_micros: u64,
    /// Wall clock at the lease, microseconds since the Unix epoch.
    pub started_at_micros: i64,
    /// How it ended, as the coordinator decided.
    pub ended: TrajectoryEnd,
    /// The verdict; `None` when it failed.
    pub verdict: Option<TimedScore>,
    /// Cost in US dollars, when a price is known.
    pub cost_usd: Option<f64>,
}

pub(super) struct TrajectoryRows {
    pub record: TrajectoryRecord,
    /// The rows of its steps.
    pub steps: Vec<StepRecord>,
    /// Why steps of a failed trajectory are missing, where the spool could not be read to its end.
    pub damage: Option<String>,
}

/// Seals a trajectory's file, reads its entries and assembles its rows.
///
/// For a failed trajectory the readable part is enough: nothing trains on it. A scored one is whole
/// or an error.
pub(super) fn assemble(spool: &Spool, facts: &TrajectoryFacts) -> Result<TrajectoryRows, CommitError> {
    let trajectory = &facts.ancestry.trajectory_id;
    spool.seal(trajectory)?;
    let mut steps = Vec::new();
    let mut ending = None;
    let mut damage = None;
    let entries = match spool.read(trajectory) {
        Err(lost) if lost.is_damage() => {
            damage = Some(chain(&lost));
            None
        }
        entries => Some(entries?),
    };
    for entry in entries.into_iter().flatten() {
        let entry = match entry {
            Err(damaged) if damaged.is_damage() => {
                damage = Some(chain(&damaged));
                break;
            }
            entry => entry?,
        };
        let key = entry.key;
        let undecodable = |source| CommitError::Undecodable { trajectory: trajectory.clone(), key, source };
        match key {
            EntryKey::Step(_) => steps.push(furrow_wire::decode_step(entry.payload).map_err(undecodable)?),
            EntryKey::End => ending = Some(furrow_wire::decode_ending(entry.payload).map_err(undecodable)?),
        }
    }
    facts.check(&steps, ending.as_ref(), damage.as_deref())?;
    Ok(TrajectoryRows { record: facts.record(&steps, ending), steps, damage })
}

impl TrajectoryFacts {
    /// Makes sure that a scored trajectory is what was acknowledged: all its steps, and the
    /// evidence the scorer received.
    fn check(
        &self,
        steps: &[StepRecord],
        ending: Option<&TrajectoryEnding>,
        damage: Option<&str>,
    ) -> Result<(), CommitError> {
        let Some(verdict) = &self.verdict else { return Ok(()) };
        let trajectory = self.ancestry.trajectory_id.clone();
        let unreadable = |why: String| {
            let steps = steps.len() as u32;
            Err(CommitError::Unreadable { trajectory, steps, why })
        };
        if let Some(damage) = damage {
            return unreadable(damage.to_owned());
        }
        let Some(evidence) = ending.and_then(|ending| ending.evidence.as_ref()) else {
            return unreadable("the spool holds no evidence of its end".to_owned());
        };
        if evidence.sha256() != verdict.score.evidence_sha256 {
            return unreadable("the evidence in the spool is not what the scorer saw".to_owned());
        }
        if steps.len() != self.ended.steps as usize && !crash::planted("bug.no_key") {
            return unreadable(format!("of its {} steps the spool holds {}", self.ended.steps, steps.len()));
        }
        Ok(())
    }

    fn record(&self, steps: &[StepRecord], ending: Option<TrajectoryEnding>) -> TrajectoryRecord {
        let tokens = || steps.iter().filter_map(|step| step.trace.tokens.as_ref());
        let sum = |count: fn(&TokenTrace) -> usize| tokens().map(|tokens| count(tokens) as u64).sum::<u64>();
        // For an endpoint that sends no token ids, its own counts are the only ones.
        let untraced =
            || steps.iter().filter(|step| step.trace.tokens.is_none()).map(|step| &step.trace.engine);
        let prompt =
            |engine: &EngineStats| u64::from(engine.prefill_tokens) + u64::from(engine.reused_tokens);
        let costs = steps.iter().filter_map(|step| step.trace.engine.cost_usd);
        let cost_usd = costs.chain(self.cost_usd).reduce(|sum, cost| sum + cost);
        TrajectoryRecord {
            ancestry: self.ancestry.clone(),
            task: self.task.clone(),
            task_json: self.task_json.clone(),
            policy_kind: self.policy_kind,
            status: if self.verdict.is_some() { TrajectoryStatus::Scored } else { TrajectoryStatus::Failed },
            ending: self.ending(steps, ending),
            score: self.verdict.as_ref().map(|verdict| verdict.score.clone()),
            policy_versions: version_range(tokens()),
            staleness: self.ended.staleness,
            hashes: self.hashes.clone(),
            session: self.session.clone(),
            group_size: self.group_size,
            token: self.token,
            queue_micros: self.queue_micros,
            score_micros: self.verdict.as_ref().map_or(0, |verdict| verdict.micros),
            gpu_micros: steps.iter().map(|step| step.trace.engine.gpu_micros).sum(),
            prompt_tokens: sum(|tokens| tokens.prompt_token_ids.len()) + untraced().map(prompt).sum::<u64>(),
            response_tokens: sum(|tokens| tokens.response_token_ids.len())
                + untraced().map(|engine| u64::from(engine.decode_steps)).sum::<u64>(),
            invalid_actions: steps.iter().filter(|step| step.reply.action.is_err()).count() as u32,
            cost_usd,
            started_at_micros: self.started_at_micros,
            ended_at_micros: self.ended.at_micros,
        }
    }

    /// The coordinator's record decides how it ended; the environment worker's report, if any,
    /// gives the rest.
    fn ending(&self, steps: &[StepRecord], reported: Option<TrajectoryEnding>) -> TrajectoryEnding {
        let end = self.ended.end;
        let reason = self.ended.reason.clone();
        let count = steps.len() as u32;
        match reported {
            Some(reported) => TrajectoryEnding { end, reason, steps: count, ..reported },
            None => TrajectoryEnding {
                end,
                reason,
                evidence: None,
                goal: self.task.goal.clone().unwrap_or_default(),
                steps: count,
                last_outcome: steps.last().map(|step| step.outcome.clone()),
                timing: total_time(steps),
                environment: EnvironmentFingerprint { worker: self.env_worker.clone(), ..Default::default() },
            },
        }
    }
}

fn version_range<'a>(tokens: impl Iterator<Item = &'a TokenTrace>) -> Option<(i32, i32)> {
    let versions = tokens.flat_map(|tokens| tokens.policy_versions.iter().copied());
    versions.fold(None, |range, version| match range {
        None => Some((version, version)),
        Some((min, max)) => Some((version.min(min), version.max(max))),
    })
}

fn total_time(steps: &[StepRecord]) -> TimeSplit {
    steps.iter().fold(TimeSplit::default(), |mut sum, step| {
        sum.merge(&step.timing);
        sum
    })
}
