//! Puts a trajectory's row together: the ledger and the job know how it was lent and scored, the spool knows what happened.

use furrow_records::chain;
use furrow_rollout::{
    Ancestry, Ending, Engine, EnvironmentFingerprint, Hashes, PolicyKind, SessionSpec, Status, StepRecord,
    Task, TimeSplit, TokenTrace, TrajectoryRecord,
};

use super::PublishError;
use crate::crash;
use crate::ledger::{Ended, Verdict};
use crate::spool::{Key, Spool};

/// What is known of a trajectory that ended, beside its steps and its evidence.
#[derive(Debug, Clone, PartialEq)]
pub struct TrajectoryFacts {
    /// Where it belongs.
    pub ancestry: Ancestry,
    /// The task as assigned.
    pub task: Task,
    /// The task's line in its file.
    pub task_json: String,
    /// What made the steps.
    pub policy_kind: PolicyKind,
    /// What the policy was made of.
    pub hashes: Hashes,
    /// Session settings it ran under.
    pub session: SessionSpec,
    /// Slots planned in its group.
    pub group_size: u32,
    /// Fencing token it was lent under.
    pub token: u64,
    /// Who acted it.
    pub env_worker: String,
    /// From the slot being free to start to the lease.
    pub queue_micros: u64,
    /// Wall clock at the lease.
    pub started_at_micros: i64,
    /// How it ended, as the coordinator decided.
    pub ended: Ended,
    /// The verdict; `None` says that it failed.
    pub verdict: Option<Verdict>,
    /// Cost in US dollars, when a price is known.
    pub cost_usd: Option<f64>,
}

/// A trajectory's rows.
pub(super) struct Assembled {
    /// Its own.
    pub record: TrajectoryRecord,
    /// Its steps'.
    pub steps: Vec<StepRecord>,
    /// Why steps of a failed trajectory are missing, where the spool could not be read to its end.
    pub damage: Option<String>,
}

/// Reads a trajectory's entries, which nothing can be added to afterwards, and makes its rows.
///
/// Of a failed trajectory what can be read is enough: nothing is trained on it. A scored one is whole or it is an error.
pub(super) fn assemble(spool: &Spool, facts: &TrajectoryFacts) -> Result<Assembled, PublishError> {
    let trajectory = &facts.ancestry.trajectory_id;
    spool.seal(trajectory)?;
    let (mut steps, mut ending, mut damage) = (Vec::new(), None, None);
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
        let undecodable = |source| PublishError::Undecodable { trajectory: trajectory.clone(), key, source };
        match key {
            Key::Step(_) => steps.push(furrow_wire::decode_step(entry.payload).map_err(undecodable)?),
            Key::End => ending = Some(furrow_wire::decode_ending(entry.payload).map_err(undecodable)?),
        }
    }
    facts.check(&steps, ending.as_ref(), damage.as_deref())?;
    Ok(Assembled { record: facts.record(&steps, ending), steps, damage })
}

impl TrajectoryFacts {
    /// A scored trajectory is what was acknowledged: all of its steps, and the evidence the scorer saw.
    fn check(
        &self,
        steps: &[StepRecord],
        ending: Option<&Ending>,
        damage: Option<&str>,
    ) -> Result<(), PublishError> {
        let Some(verdict) = &self.verdict else { return Ok(()) };
        let trajectory = self.ancestry.trajectory_id.clone();
        let unreadable = |why: String| {
            let steps = steps.len() as u32;
            Err(PublishError::Unreadable { trajectory, steps, why })
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

    fn record(&self, steps: &[StepRecord], ending: Option<Ending>) -> TrajectoryRecord {
        let tokens = || steps.iter().filter_map(|step| step.trace.tokens.as_ref());
        let sum = |count: fn(&TokenTrace) -> usize| tokens().map(|tokens| count(tokens) as u64).sum::<u64>();
        // Of an endpoint that tells no ids its own counts are all there is.
        let untold =
            || steps.iter().filter(|step| step.trace.tokens.is_none()).map(|step| &step.trace.engine);
        let prompt = |engine: &Engine| u64::from(engine.prefill_tokens) + u64::from(engine.reused_tokens);
        let costs = steps.iter().filter_map(|step| step.trace.engine.cost_usd);
        let cost_usd = costs.chain(self.cost_usd).reduce(|sum, cost| sum + cost);
        TrajectoryRecord {
            ancestry: self.ancestry.clone(),
            task: self.task.clone(),
            task_json: self.task_json.clone(),
            policy_kind: self.policy_kind,
            status: if self.verdict.is_some() { Status::Scored } else { Status::Failed },
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
            prompt_tokens: sum(|tokens| tokens.prompt_token_ids.len()) + untold().map(prompt).sum::<u64>(),
            response_tokens: sum(|tokens| tokens.response_token_ids.len())
                + untold().map(|engine| u64::from(engine.decode_steps)).sum::<u64>(),
            invalid_actions: steps.iter().filter(|step| step.reply.action.is_err()).count() as u32,
            cost_usd,
            started_at_micros: self.started_at_micros,
            ended_at_micros: self.ended.at_micros,
        }
    }

    /// The coordinator has the last word on how it ended; the environment worker saw the rest, if it came to tell.
    fn ending(&self, steps: &[StepRecord], told: Option<Ending>) -> Ending {
        let (end, reason, count) = (self.ended.end, self.ended.reason.clone(), steps.len() as u32);
        match told {
            Some(told) => Ending { end, reason, steps: count, ..told },
            None => Ending {
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
