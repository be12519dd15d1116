//! Endings: what may be spooled, what an end comes to, verdicts, failures, groups that close, rows that are published.

use furrow_rollout::{End, Fault, Id, Trajectory};

use super::{
    Answer, Claim, Core, Effect, Notice, Outgoing, Refused, Reported, Scoring, ShardNews, Turn, Unpublished,
};
use crate::groups::judge;
use crate::lease::{Lease, Stale};
use crate::ledger::{Ended, Mutation, Start, Verdict};

/// Pause before evidence is shown to a failing scorer again, times the attempts so far.
const SCORE_AGAIN_MILLIS: u64 = 500;

impl Core {
    pub(super) fn check_step(&mut self, claim: Claim, turn: &mut Turn) {
        match self.renewed(claim, turn) {
            Ok(go) => turn.reply(claim.call, go),
            Err(why) => self.fence(claim, why, "record_step", turn),
        }
    }

    pub(super) fn keep_step(
        &mut self,
        trajectory: &Id<Trajectory>,
        step: u32,
        policy_versions: Option<(i32, i32)>,
    ) {
        // Of a trajectory that was lost in between it is in the spool all the same, and published from there.
        if let Some(lease) = self.leases.get_mut(trajectory) {
            self.tally.steps += u64::from(step >= lease.steps);
            lease.keep_step(step, policy_versions);
        }
    }

    pub(super) fn check_ending(&mut self, claim: Claim, digest: [u8; 32], turn: &mut Turn) {
        match self.renewed(claim, turn) {
            Ok(go) => turn.reply(claim.call, go),
            Err(why) => self.recognise(claim, digest, why, turn),
        }
    }

    /// An ending is durable in the spool: the trajectory is over.
    pub(super) fn finish(&mut self, claim: Claim, report: Reported, turn: &mut Turn) {
        let lease = match self.leases.finish(claim.trajectory, claim.token, report.digest) {
            Ok(lease) => lease,
            Err(why) => return self.recognise(claim, report.digest, why, turn),
        };
        let hung_before = self.group(lease.group).hung_before(lease.start.sample_index);
        let judged = |report: &Reported| judge(report.end, hung_before, report.evidence_sha256.is_some());
        // An end by the farm's fault keeps its own name.
        let other = self.on_other_weights(&lease, &report).filter(|_| judged(&report).1 == Fault::Policy);
        let report = other.unwrap_or(report);
        let (end, fault) = judged(&report);
        let (of, token) = (lease.of.clone(), claim.token);
        turn.tell(Notice::Finished { of, token, end, steps: report.steps });
        let lease = Lease { steps: report.steps, ..lease };
        match (fault, report.evidence_sha256) {
            (Fault::Policy, Some(evidence)) => self.await_score(lease, end, &report.reason, evidence, turn),
            _ => self.fail_lease(lease, end, &reason_for(end, report), turn),
        }
        turn.reply_when_durable(claim.call, Answer::Finished);
    }

    /// A scorer said something about a finished trajectory.
    pub(super) fn judge(
        &mut self,
        trajectory: &Id<Trajectory>,
        verdict: Result<Verdict, String>,
        turn: &mut Turn,
    ) {
        let Some(mut scoring) = self.scoring.remove(trajectory) else { return };
        match verdict.and_then(|verdict| sound(verdict, scoring.evidence_sha256)) {
            Ok((verdict, reward)) => self.score(scoring, verdict, reward, turn),
            Err(_) if scoring.attempts < self.rules.score_attempts_max => {
                let pause_millis = SCORE_AGAIN_MILLIS * u64::from(scoring.attempts);
                scoring.again_millis = Some(turn.now.millis + pause_millis);
                self.scoring.insert(trajectory.clone(), scoring);
            }
            Err(why) => {
                let ended = Ended { end: End::ScorerError, reason: cut(&why), ..scoring.ended };
                self.fail(
                    Failing { start: scoring.start, of: scoring.of, group: scoring.group, ended },
                    turn,
                );
            }
        }
    }

    /// Shows evidence again to scorers that failed before.
    pub(super) fn score_again(&mut self, turn: &mut Turn) {
        let due = |scoring: &Scoring| scoring.again_millis.is_some_and(|at| at <= turn.now.millis);
        for (trajectory, scoring) in self.scoring.iter_mut().filter(|(_, scoring)| due(scoring)) {
            scoring.attempts += 1;
            scoring.again_millis = None;
            let draw = self.groups[&scoring.group].draw().clone();
            let (trajectory, sample_index) = (trajectory.clone(), scoring.of.sample_index);
            turn.decision.then.push(Effect::Score { trajectory, draw, sample_index });
        }
    }

    /// Ends a lease by the farm's fault.
    pub(super) fn fail_lease(&mut self, lease: Lease, end: End, reason: &str, turn: &mut Turn) {
        let ended = self.ended(&lease, end, reason, turn);
        self.fail(Failing { start: lease.start, of: lease.of, group: lease.group, ended }, turn);
    }

    pub(super) fn published(
        &mut self,
        shard: ShardNews,
        trajectories: &[Id<Trajectory>],
        groups: &[Id<furrow_rollout::Group>],
        turn: &mut Turn,
    ) {
        let published = trajectories.iter().filter_map(|id| self.unpublished.remove(id));
        let delay = |one: Unpublished| turn.now.millis.saturating_sub(one.since_millis);
        let delays_millis: Vec<_> = published.map(delay).collect();
        self.tally.published += delays_millis.len() as u64;
        turn.at_once(Effect::Tell(Notice::Published { shard, delays_millis }));
        self.groups.retain(|_, group| !groups.contains(&group.draw().group_id));
    }

    /// A scored trajectory fails after all: its record was damaged before it was published. It is published as far as it can be read,
    /// and its slot is tried again while its group is open. A closed group's row is written anew.
    pub(super) fn lose_record(
        &mut self,
        trajectory: &Id<Trajectory>,
        steps: u32,
        why: &str,
        turn: &mut Turn,
    ) {
        let Some(one) = self.unpublished.remove(trajectory) else { return };
        let Outgoing { of, start, ended, verdict, draw } = *one.outgoing;
        let Some(verdict) = verdict else { return };
        self.unmeasure(draw.index, &verdict);
        let (attempts_max, now_millis) = (self.rules.attempts_max, turn.now.millis);
        let retried = self.group(draw.index).lose_record(start.sample_index, attempts_max, now_millis);
        let ended = Ended { end: End::RecordLost, reason: cut(why), steps, ..ended };
        *self.tally.failed.entry(ended.end).or_default() += 1;
        turn.commit(Mutation::RecordLost { trajectory_id: trajectory.clone(), ended: ended.clone() });
        turn.tell(Notice::Failed { of: of.clone(), end: ended.end, reason: ended.reason.clone(), retried });
        let index = draw.index;
        self.publish(Outgoing { of, start, ended, verdict: None, draw }, turn);
        let run_id = self.run_id.clone();
        match self.group(index).record(&run_id) {
            Some(record) => turn.then(Effect::PublishGroup { record: Box::new(record) }),
            None => self.close_if_settled(index, turn),
        }
        self.stop_over_budget(turn);
    }

    /// Writes a settled group's row, after its last trajectory.
    pub(super) fn close_if_settled(&mut self, index: u64, turn: &mut Turn) {
        let run_id = self.run_id.clone();
        let group = self.group(index);
        if !group.may_close() {
            return;
        }
        let at_micros = turn.now.wall_micros;
        group.close(at_micros);
        turn.commit(Mutation::GroupClosed { group_id: group.draw().group_id.clone(), at_micros });
        if let Some(record) = group.record(&run_id) {
            turn.tell(Notice::GroupClosed(Box::new(record.clone())));
            turn.then(Effect::PublishGroup { record: Box::new(record) });
        }
        match self.kept_to(index) {
            Some(_) => self.end_evaluation_if_done(turn),
            None => self.tally.groups_closed += 1,
        }
    }

    fn await_score(
        &mut self,
        lease: Lease,
        end: End,
        reason: &str,
        evidence_sha256: [u8; 32],
        turn: &mut Turn,
    ) {
        let ended = self.ended(&lease, end, reason, turn);
        let trajectory = lease.start.trajectory_id.clone();
        turn.commit(Mutation::Finished {
            trajectory_id: trajectory.clone(),
            token: lease.start.token,
            ended: ended.clone(),
            evidence_sha256,
        });
        let draw = self.group(lease.group).draw().clone();
        let sample_index = lease.of.sample_index;
        turn.then(Effect::Score { trajectory: trajectory.clone(), draw, sample_index });
        let Lease { start, of, group, .. } = lease;
        let scoring = Scoring { start, of, group, ended, evidence_sha256, attempts: 1, again_millis: None };
        self.scoring.insert(trajectory, scoring);
    }

    fn score(&mut self, scoring: Scoring, verdict: Verdict, reward: f32, turn: &mut Turn) {
        let Scoring { start, of, group, ended, .. } = scoring;
        self.group(group).score(start.sample_index, reward, ended.policy_versions);
        self.tally.scored += 1;
        self.tally.reward_sum += f64::from(reward);
        self.tally.successes += u64::from(verdict.score.success == Some(true));
        self.measure(group, reward, verdict.score.success);
        turn.commit(Mutation::Scored {
            trajectory_id: start.trajectory_id.clone(),
            verdict: verdict.clone(),
        });
        turn.tell(Notice::Scored { of: of.clone(), end: ended.end, reward, verdict: verdict.clone() });
        let draw = self.group(group).draw().clone();
        self.publish(Outgoing { of, start, ended, verdict: Some(verdict), draw }, turn);
        if self.group(group).has_enough() {
            self.cancel_rest(group, "its group has enough", turn);
        }
        self.close_if_settled(group, turn);
    }

    fn measure(&mut self, group: u64, reward: f32, success: Option<bool>) {
        let succeeded = success == Some(true);
        let draw = self.group(group).draw().clone();
        if draw.problem.is_some() {
            self.tally.evaluated += 1;
            return self.count_evaluated(succeeded);
        }
        self.tally.training_judged += u64::from(success.is_some());
        self.tally.training_successes += u64::from(succeeded);
        let tally = self.tallies.entry((draw.suite.clone(), draw.task_id.clone())).or_default();
        tally.scored += 1;
        tally.judged += u64::from(success.is_some());
        tally.succeeded += u64::from(succeeded);
        tally.reward_sum += f64::from(reward);
    }

    /// Takes back what [`score`](Self::score) counted.
    fn unmeasure(&mut self, group: u64, verdict: &Verdict) {
        let (reward, success) = (verdict.score.reward.unwrap_or_default(), verdict.score.success);
        let (judged, succeeded) = (u64::from(success.is_some()), u64::from(success == Some(true)));
        self.tally.scored = self.tally.scored.saturating_sub(1);
        self.tally.reward_sum -= f64::from(reward);
        self.tally.successes = self.tally.successes.saturating_sub(succeeded);
        let draw = self.group(group).draw().clone();
        if draw.problem.is_some() {
            self.tally.evaluated = self.tally.evaluated.saturating_sub(1);
            return self.discount_evaluated(succeeded);
        }
        self.tally.training_judged = self.tally.training_judged.saturating_sub(judged);
        self.tally.training_successes = self.tally.training_successes.saturating_sub(succeeded);
        if let Some(tally) = self.tallies.get_mut(&(draw.suite.clone(), draw.task_id.clone())) {
            tally.scored = tally.scored.saturating_sub(1);
            tally.judged = tally.judged.saturating_sub(judged);
            tally.succeeded = tally.succeeded.saturating_sub(succeeded);
            tally.reward_sum -= f64::from(reward);
        }
    }

    /// A group needs no more trajectories: those that still run or wait for a score are too late.
    pub(super) fn cancel_rest(&mut self, group: u64, why: &str, turn: &mut Turn) {
        for lease in self.leases.take_where(|lease| lease.group == group) {
            self.fail_lease(lease, End::Cancelled, why, turn);
        }
        let waiting = self.scoring.iter().filter(|(_, scoring)| scoring.group == group);
        let waiting: Vec<Id<Trajectory>> = waiting.map(|(trajectory, _)| trajectory.clone()).collect();
        for trajectory in waiting {
            let Some(Scoring { start, of, group, ended, .. }) = self.scoring.remove(&trajectory) else {
                continue;
            };
            let ended = Ended { end: End::Cancelled, reason: why.to_owned(), ..ended };
            self.fail(Failing { start, of, group, ended }, turn);
        }
    }

    fn fail(&mut self, failing: Failing, turn: &mut Turn) {
        let Failing { start, of, group, ended } = failing;
        let (attempts_max, now_millis) = (self.rules.attempts_max, turn.now.millis);
        let retried = self.group(group).fail(start.sample_index, ended.end, attempts_max, now_millis);
        *self.tally.failed.entry(ended.end).or_default() += 1;
        turn.commit(Mutation::Failed { trajectory_id: start.trajectory_id.clone(), ended: ended.clone() });
        turn.tell(Notice::Failed { of: of.clone(), end: ended.end, reason: ended.reason.clone(), retried });
        let draw = self.group(group).draw().clone();
        self.publish(Outgoing { of, start, ended, verdict: None, draw }, turn);
        self.close_if_settled(group, turn);
        self.stop_over_budget(turn);
    }

    pub(super) fn publish(&mut self, outgoing: Outgoing, turn: &mut Turn) {
        let outgoing = Box::new(outgoing);
        let one = Unpublished { since_millis: turn.now.millis, outgoing: outgoing.clone() };
        self.unpublished.insert(outgoing.of.trajectory_id.clone(), one);
        self.shards_closing = false;
        turn.then(Effect::Publish(outgoing));
    }

    fn ended(&self, lease: &Lease, end: End, reason: &str, turn: &Turn) -> Ended {
        let behind = |newest: i32| lease.start.policy.version.map(|started| newest - started);
        Ended {
            end,
            reason: cut(reason),
            steps: lease.steps,
            policy_versions: lease.policy_versions,
            staleness: self.newest_version.and_then(behind),
            at_micros: turn.now.wall_micros,
        }
    }

    /// The caller's lease, prolonged: whoever brings something is alive.
    fn renewed(&mut self, claim: Claim, turn: &Turn) -> Result<Answer, Stale> {
        let expires_millis = turn.now.millis + self.rules.lease_millis;
        let lease = self.leases.renew(claim.trajectory, claim.token, expires_millis)?;
        Ok(Answer::Go { of: lease.of.clone(), steps: lease.steps })
    }

    /// An ending for a trajectory that is not lent: perhaps it is the one that was acknowledged.
    fn recognise(&mut self, claim: Claim, digest: [u8; 32], why: Stale, turn: &mut Turn) {
        let Claim { call, trajectory, token } = claim;
        match self.leases.acknowledged(trajectory, token, digest) {
            Some(true) => {
                let (run_id, trajectory) = (self.run_id.clone(), trajectory.clone());
                turn.tell(Notice::Repeated { run_id, trajectory });
                // Not at once: the first one may still be on its way to the ledger.
                turn.reply_when_durable(call, Answer::Finished);
            }
            Some(false) => {
                let trajectory = trajectory.clone();
                turn.reply(call, Answer::Refused(Refused::OtherEnding { trajectory }));
            }
            None => self.fence(claim, why, "finish", turn),
        }
    }

    fn fence(&self, claim: Claim, why: Stale, call: &'static str, turn: &mut Turn) {
        let (run_id, trajectory, token) = (self.run_id.clone(), claim.trajectory.clone(), claim.token);
        turn.at_once(Effect::Tell(Notice::Fenced { run_id, trajectory, token, call }));
        turn.reply(claim.call, Answer::Refused(Refused::stale(claim, why)));
    }
}

/// A trajectory about to fail.
struct Failing {
    start: Start,
    of: furrow_rollout::Ancestry,
    group: u64,
    ended: Ended,
}

/// A verdict is taken only with a reward, and only if its scorer saw the evidence that was acknowledged.
fn sound(verdict: Verdict, evidence_sha256: [u8; 32]) -> Result<(Verdict, f32), String> {
    if verdict.score.evidence_sha256 != evidence_sha256 {
        return Err(format!("{} saw other evidence than was acknowledged", verdict.score.scorer));
    }
    match verdict.score.reward {
        Some(reward) if reward.is_finite() => Ok((verdict, reward)),
        Some(reward) => Err(format!("{} gave the reward {reward}", verdict.score.scorer)),
        None => Err(format!("{} came to no verdict: {}", verdict.score.scorer, verdict.score.rationale)),
    }
}

fn reason_for(end: End, report: Reported) -> String {
    if end == report.end {
        return report.reason;
    }
    format!("ended as {} without evidence: {}", report.end.as_str(), report.reason)
}

/// Reasons may hold page text; they must not fill the ledger.
fn cut(reason: &str) -> String {
    reason.chars().take(500).collect()
}
