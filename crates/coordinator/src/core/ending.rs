//! Endings: what may be spooled, how an end is classified, verdicts, failures, groups that close,
//! rows that are committed.

use furrow_rollout::{EndKind, FaultOwner, Id, Trajectory};

use super::answer::{CallRefusal, CallResponse};
use super::decision::{Effect, EndedTrajectory, EventContext};
use super::event::{CallId, LeaseClaim, ReportedEnd, ShardSummary};
use super::notice::CoreNotice;
use super::state::{Core, PendingScore, UncommittedTrajectory};
use crate::groups::classify_end;
use crate::lease::{Lease, StaleLease};
use crate::ledger::{Mutation, TimedScore, TrajectoryEnd, TrajectoryStart};

/// Pause before a failed scoring is retried, times the attempts so far.
const SCORE_RETRY_MILLIS: u64 = 500;

impl Core {
    /// Answers a call, by its name, that only the holder of a lease may make.
    pub(super) fn check_claim(
        &mut self,
        call: CallId,
        claim: &LeaseClaim,
        name: &'static str,
        turn: &mut EventContext,
    ) {
        match self.renew_claim(claim, turn) {
            Ok(go) => turn.reply(call, go),
            Err(why) => self.fence((call, name), claim, why, turn),
        }
    }

    pub(super) fn keep_step(
        &mut self,
        trajectory: &Id<Trajectory>,
        step: u32,
        policy_versions: Option<(i32, i32)>,
    ) {
        // The step of a trajectory that was lost meanwhile is in the spool all the same, and is
        // committed from there.
        if let Some(lease) = self.leases.get_mut(trajectory) {
            self.tally.steps += u64::from(step >= lease.steps);
            lease.keep_step(step, policy_versions);
        }
    }

    pub(super) fn check_ending(
        &mut self,
        call: CallId,
        claim: &LeaseClaim,
        digest: [u8; 32],
        turn: &mut EventContext,
    ) {
        match self.renew_claim(claim, turn) {
            Ok(go) => turn.reply(call, go),
            Err(why) => self.match_repeated_ending(call, claim, (digest, why), turn),
        }
    }

    /// Records an ending that is durable in the spool: the trajectory is over.
    pub(super) fn finish(
        &mut self,
        call: CallId,
        claim: &LeaseClaim,
        report: ReportedEnd,
        turn: &mut EventContext,
    ) {
        let lease = match self.leases.finish(&claim.proof, claim.holds(), report.digest) {
            Ok(lease) => lease,
            Err(why) => return self.match_repeated_ending(call, claim, (report.digest, why), turn),
        };
        let hung_before = self.group(lease.group).hung_before(lease.start.sample_index);
        let classify =
            |report: &ReportedEnd| classify_end(report.end, hung_before, report.evidence_sha256.is_some());
        // An end by the farm's fault keeps its own name.
        let other =
            self.reject_other_weights(&lease, &report).filter(|_| classify(&report).1 == FaultOwner::Policy);
        let report = other.unwrap_or(report);
        let (end, fault) = classify(&report);
        let of = lease.of.clone();
        let token = claim.proof.token;
        turn.notify(CoreNotice::Finished { of, token, end, steps: report.steps });
        let lease = Lease { steps: report.steps, ..lease };
        match (fault, report.evidence_sha256) {
            (FaultOwner::Policy, Some(evidence)) => {
                self.await_score(lease, end, &report.reason, evidence, turn);
            }
            _ => self.fail_lease(lease, end, &reason_for(end, report), turn),
        }
        turn.reply_when_durable(call, CallResponse::Finished);
    }

    /// Records a scorer's result for a finished trajectory.
    pub(super) fn record_score(
        &mut self,
        trajectory: &Id<Trajectory>,
        verdict: Result<TimedScore, String>,
        turn: &mut EventContext,
    ) {
        let Some(mut scoring) = self.scoring.remove(trajectory) else { return };
        match verdict.and_then(|verdict| check_verdict(verdict, scoring.evidence_sha256)) {
            Ok((verdict, reward)) => self.accept_score(scoring, verdict, reward, turn),
            Err(_) if scoring.attempts < self.rules.score_attempts_max => {
                let pause_millis = SCORE_RETRY_MILLIS * u64::from(scoring.attempts);
                scoring.retry_at_millis = Some(turn.now.millis + pause_millis);
                self.scoring.insert(trajectory.clone(), scoring);
            }
            Err(why) => {
                let ended = TrajectoryEnd {
                    end: EndKind::ScorerError,
                    reason: truncate_reason(&why),
                    ..scoring.ended
                };
                self.fail(
                    FailingTrajectory { start: scoring.start, of: scoring.of, group: scoring.group, ended },
                    turn,
                );
            }
        }
    }

    /// Retries scorings that failed.
    pub(super) fn retry_scoring(&mut self, turn: &mut EventContext) {
        let due = |scoring: &PendingScore| scoring.retry_at_millis.is_some_and(|at| at <= turn.now.millis);
        for (trajectory, scoring) in self.scoring.iter_mut().filter(|(_, scoring)| due(scoring)) {
            scoring.attempts += 1;
            scoring.retry_at_millis = None;
            let draw = self.groups[&scoring.group].draw().clone();
            let trajectory = trajectory.clone();
            let sample_index = scoring.of.sample_index;
            turn.decision.then.push(Effect::Score { trajectory, draw, sample_index });
        }
    }

    /// Ends a lease by the farm's fault.
    pub(super) fn fail_lease(&mut self, lease: Lease, end: EndKind, reason: &str, turn: &mut EventContext) {
        let ended = self.ended(&lease, end, reason, turn);
        self.fail(FailingTrajectory { start: lease.start, of: lease.of, group: lease.group, ended }, turn);
    }

    pub(super) fn mark_committed(
        &mut self,
        shard: ShardSummary,
        trajectories: &[Id<Trajectory>],
        groups: &[Id<furrow_rollout::Group>],
        turn: &mut EventContext,
    ) {
        let committed = trajectories.iter().filter_map(|id| self.uncommitted.remove(id));
        let delay = |one: UncommittedTrajectory| turn.now.millis.saturating_sub(one.since_millis);
        let delays_millis: Vec<_> = committed.map(delay).collect();
        self.tally.committed += delays_millis.len() as u64;
        turn.at_once(Effect::Notify(CoreNotice::ShardCommitted { shard, delays_millis }));
        self.groups.retain(|_, group| !groups.contains(&group.draw().group_id));
    }

    /// Fails a trajectory after it was scored: its record was damaged before its commit. Its
    /// readable part is committed, and its slot is tried again while its group is open. A closed
    /// group's row is written again.
    pub(super) fn lose_record(
        &mut self,
        trajectory: &Id<Trajectory>,
        steps: u32,
        why: &str,
        turn: &mut EventContext,
    ) {
        let Some(one) = self.uncommitted.remove(trajectory) else { return };
        let EndedTrajectory { of, start, ended, verdict, draw } = *one.outgoing;
        let Some(verdict) = verdict else { return };
        self.uncount_score(draw.index, &verdict);
        let attempts_max = self.rules.attempts_max;
        let now_millis = turn.now.millis;
        let retried = self.group(draw.index).lose_record(start.sample_index, attempts_max, now_millis);
        let ended = TrajectoryEnd { end: EndKind::RecordLost, reason: truncate_reason(why), steps, ..ended };
        *self.tally.failed.entry(ended.end).or_default() += 1;
        turn.commit(Mutation::RecordLost { trajectory_id: trajectory.clone(), ended: ended.clone() });
        turn.notify(CoreNotice::Failed {
            of: of.clone(),
            end: ended.end,
            reason: ended.reason.clone(),
            retried,
        });
        let index = draw.index;
        self.commit_trajectory(EndedTrajectory { of, start, ended, verdict: None, draw }, turn);
        let run_id = self.run_id.clone();
        match self.group(index).record(&run_id) {
            Some(record) => turn.then(Effect::CommitGroup { record: Box::new(record) }),
            None => self.close_if_settled(index, turn),
        }
        self.stop_over_budget(turn);
    }

    /// Writes a settled group's row, after its last trajectory.
    pub(super) fn close_if_settled(&mut self, index: u64, turn: &mut EventContext) {
        let run_id = self.run_id.clone();
        let group = self.group(index);
        if !group.may_close() {
            return;
        }
        let at_micros = turn.now.wall_micros;
        group.close(at_micros);
        turn.commit(Mutation::GroupClosed { group_id: group.draw().group_id.clone(), at_micros });
        if let Some(record) = group.record(&run_id) {
            turn.notify(CoreNotice::GroupClosed(Box::new(record.clone())));
            turn.then(Effect::CommitGroup { record: Box::new(record) });
        }
        match self.pinned_version(index) {
            Some(_) => self.end_evaluation_if_done(turn),
            None => self.tally.groups_closed += 1,
        }
    }

    fn await_score(
        &mut self,
        lease: Lease,
        end: EndKind,
        reason: &str,
        evidence_sha256: [u8; 32],
        turn: &mut EventContext,
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
        let scoring =
            PendingScore { start, of, group, ended, evidence_sha256, attempts: 1, retry_at_millis: None };
        self.scoring.insert(trajectory, scoring);
    }

    fn accept_score(
        &mut self,
        scoring: PendingScore,
        verdict: TimedScore,
        reward: f32,
        turn: &mut EventContext,
    ) {
        let PendingScore { start, of, group, ended, .. } = scoring;
        self.group(group).score(start.sample_index, reward, ended.policy_versions);
        self.tally.scored += 1;
        self.tally.reward_sum += f64::from(reward);
        self.tally.successes += u64::from(verdict.score.success == Some(true));
        self.count_score(group, reward, verdict.score.success);
        turn.commit(Mutation::Scored {
            trajectory_id: start.trajectory_id.clone(),
            verdict: verdict.clone(),
        });
        turn.notify(CoreNotice::Scored { of: of.clone(), end: ended.end, reward, verdict: verdict.clone() });
        let draw = self.group(group).draw().clone();
        self.commit_trajectory(EndedTrajectory { of, start, ended, verdict: Some(verdict), draw }, turn);
        if self.group(group).has_enough() {
            self.cancel_rest(group, "its group has enough", turn);
        }
        self.close_if_settled(group, turn);
    }

    fn count_score(&mut self, group: u64, reward: f32, success: Option<bool>) {
        let succeeded = success == Some(true);
        let draw = self.group(group).draw().clone();
        if draw.problem.is_some() {
            self.tally.evaluated += 1;
            return self.count_evaluated(succeeded);
        }
        self.tally.training_success_known += u64::from(success.is_some());
        self.tally.training_successes += u64::from(succeeded);
        let tally = self.tallies.entry((draw.suite.clone(), draw.task_id.clone())).or_default();
        tally.scored += 1;
        tally.success_known += u64::from(success.is_some());
        tally.succeeded += u64::from(succeeded);
        tally.reward_sum += f64::from(reward);
    }

    /// Reverts what [`accept_score`](Self::accept_score) counted.
    fn uncount_score(&mut self, group: u64, verdict: &TimedScore) {
        let reward = verdict.score.reward.unwrap_or_default();
        let success = verdict.score.success;
        let success_known = u64::from(success.is_some());
        let succeeded = u64::from(success == Some(true));
        self.tally.scored = self.tally.scored.saturating_sub(1);
        self.tally.reward_sum -= f64::from(reward);
        self.tally.successes = self.tally.successes.saturating_sub(succeeded);
        let draw = self.group(group).draw().clone();
        if draw.problem.is_some() {
            self.tally.evaluated = self.tally.evaluated.saturating_sub(1);
            return self.discount_evaluated(succeeded);
        }
        self.tally.training_success_known = self.tally.training_success_known.saturating_sub(success_known);
        self.tally.training_successes = self.tally.training_successes.saturating_sub(succeeded);
        if let Some(tally) = self.tallies.get_mut(&(draw.suite.clone(), draw.task_id.clone())) {
            tally.scored = tally.scored.saturating_sub(1);
            tally.success_known = tally.success_known.saturating_sub(success_known);
            tally.succeeded = tally.succeeded.saturating_sub(succeeded);
            tally.reward_sum -= f64::from(reward);
        }
    }

    /// Cancels the rest of a group that needs no more trajectories: those that still run or wait
    /// for a score are too late.
    pub(super) fn cancel_rest(&mut self, group: u64, why: &str, turn: &mut EventContext) {
        for lease in self.leases.take_where(|lease| lease.group == group) {
            self.fail_lease(lease, EndKind::Cancelled, why, turn);
        }
        let waiting = self.scoring.iter().filter(|(_, scoring)| scoring.group == group);
        let waiting: Vec<Id<Trajectory>> = waiting.map(|(trajectory, _)| trajectory.clone()).collect();
        for trajectory in waiting {
            let Some(PendingScore { start, of, group, ended, .. }) = self.scoring.remove(&trajectory) else {
                continue;
            };
            let ended = TrajectoryEnd { end: EndKind::Cancelled, reason: why.to_owned(), ..ended };
            self.fail(FailingTrajectory { start, of, group, ended }, turn);
        }
    }

    fn fail(&mut self, failing: FailingTrajectory, turn: &mut EventContext) {
        let FailingTrajectory { start, of, group, ended } = failing;
        let attempts_max = self.rules.attempts_max;
        let now_millis = turn.now.millis;
        let retried = self.group(group).fail(start.sample_index, ended.end, attempts_max, now_millis);
        *self.tally.failed.entry(ended.end).or_default() += 1;
        turn.commit(Mutation::Failed { trajectory_id: start.trajectory_id.clone(), ended: ended.clone() });
        turn.notify(CoreNotice::Failed {
            of: of.clone(),
            end: ended.end,
            reason: ended.reason.clone(),
            retried,
        });
        let draw = self.group(group).draw().clone();
        self.commit_trajectory(EndedTrajectory { of, start, ended, verdict: None, draw }, turn);
        self.close_if_settled(group, turn);
        self.stop_over_budget(turn);
    }

    pub(super) fn commit_trajectory(&mut self, outgoing: EndedTrajectory, turn: &mut EventContext) {
        let outgoing = Box::new(outgoing);
        let one = UncommittedTrajectory { since_millis: turn.now.millis, outgoing: outgoing.clone() };
        self.uncommitted.insert(outgoing.of.trajectory_id.clone(), one);
        self.shards_closing = false;
        turn.then(Effect::CommitTrajectory(outgoing));
    }

    fn ended(&self, lease: &Lease, end: EndKind, reason: &str, turn: &EventContext) -> TrajectoryEnd {
        let behind = |newest: i32| lease.start.policy.version.map(|started| newest - started);
        TrajectoryEnd {
            end,
            reason: truncate_reason(reason),
            steps: lease.steps,
            policy_versions: lease.policy_versions,
            staleness: self.newest_version.and_then(behind),
            at_micros: turn.now.wall_micros,
        }
    }

    /// Renews the caller's lease: any call for it proves that its worker is alive.
    fn renew_claim(&mut self, claim: &LeaseClaim, turn: &EventContext) -> Result<CallResponse, StaleLease> {
        let expires_millis = turn.now.millis + self.rules.lease_millis;
        let lease = self.leases.renew(&claim.proof, claim.holds(), expires_millis)?;
        let draw = self.groups.get(&lease.group).map(|group| group.draw().clone());
        Ok(CallResponse::Go { of: lease.of.clone(), steps: lease.steps, draw })
    }

    /// Answers an ending for a trajectory that is not leased to the caller: it may repeat the
    /// acknowledged one.
    fn match_repeated_ending(
        &mut self,
        call: CallId,
        claim: &LeaseClaim,
        (digest, why): ([u8; 32], StaleLease),
        turn: &mut EventContext,
    ) {
        match self.leases.acknowledged(&claim.proof, claim.holds(), digest) {
            Some(true) => {
                let run_id = self.run_id.clone();
                let trajectory = claim.proof.trajectory_id.clone();
                turn.notify(CoreNotice::Repeated { run_id, trajectory });
                // Not at once: the first one may still be on its way to the ledger.
                turn.reply_when_durable(call, CallResponse::Finished);
            }
            Some(false) => {
                let trajectory = claim.proof.trajectory_id.clone();
                turn.reply(call, CallResponse::Refused(CallRefusal::OtherEnding { trajectory }));
            }
            None => self.fence((call, "finish"), claim, why, turn),
        }
    }

    /// Refuses a caller that does not hold the lease. The log has the reason, the answer has none.
    fn fence(
        &self,
        (call, name): (CallId, &'static str),
        claim: &LeaseClaim,
        why: StaleLease,
        turn: &mut EventContext,
    ) {
        let run_id = self.run_id.clone();
        let trajectory = claim.proof.trajectory_id.clone();
        let token = claim.proof.token;
        let refused = CallRefusal::Stale { trajectory: trajectory.clone(), token };
        let why = why.as_str();
        turn.at_once(Effect::Notify(CoreNotice::Fenced { run_id, trajectory, token, call: name, why }));
        turn.reply(call, CallResponse::Refused(refused));
    }
}

/// A trajectory about to fail.
struct FailingTrajectory {
    start: TrajectoryStart,
    of: furrow_rollout::TrajectoryAncestry,
    group: u64,
    ended: TrajectoryEnd,
}

/// Accepts a verdict only with a reward, and only if its scorer received the acknowledged evidence.
fn check_verdict(verdict: TimedScore, evidence_sha256: [u8; 32]) -> Result<(TimedScore, f32), String> {
    if verdict.score.evidence_sha256 != evidence_sha256 {
        return Err(format!("{} saw other evidence than was acknowledged", verdict.score.scorer));
    }
    match verdict.score.reward {
        Some(reward) if reward.is_finite() => Ok((verdict, reward)),
        Some(reward) => Err(format!("{} gave the reward {reward}", verdict.score.scorer)),
        None => Err(format!("{} came to no verdict: {}", verdict.score.scorer, verdict.score.rationale)),
    }
}

fn reason_for(end: EndKind, report: ReportedEnd) -> String {
    if end == report.end {
        return report.reason;
    }
    format!("ended as {} without evidence: {}", report.end.as_str(), report.reason)
}

/// Reasons may hold page text; they must not fill the ledger.
fn truncate_reason(reason: &str) -> String {
    reason.chars().take(500).collect()
}
