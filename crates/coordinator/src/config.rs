//! Settings of `[limits]`: intervals, deadlines, retries and queue bounds of the coordinator.

use std::time::Duration;

use furrow_wire::LEASE_WAIT_MILLIS_MAX;
use serde::{Deserialize, Serialize};

use crate::assign::AdmissionPacing;
use crate::core::CoreRules;
use crate::ledger::LedgerLimits;
use crate::spool::SpoolLimits;

/// The section as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsFile {
    /// Attempts at one slot before it is given up; four cancelled ones count as one.
    pub attempts_max: u32,
    /// The job stops when more than this share of all attempts failed by the farm's fault; 1 never
    /// stops it.
    pub failure_budget: f64,
    /// Failed attempts that are allowed before the share applies; absent: a quarter of the job's
    /// trajectories, at least 8 and at most 40.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failures_free: Option<u64>,
    /// A lease expires when its worker does not renew it for this long.
    pub lease_millis: u64,
    /// How often a worker sends a heartbeat; it renews the leases.
    pub heartbeat_millis: u64,
    /// Most assignments in one answer to a worker that asks for work.
    pub leases_per_call_max: u32,
    /// Time for running trajectories to finish when the coordinator is asked to stop.
    pub drain_grace_millis: u64,
    /// How long the coordinator keeps telling workers that the job is over before it exits.
    pub farewell_millis: u64,
    /// How often evidence is sent to a scorer that fails.
    pub score_attempts_max: u32,
    /// Time for one scoring by rules; a judge has `score.judge.deadline_millis` in addition.
    pub score_millis: u64,
    /// Trajectories scored at the same time. Raise it if a judge is slow.
    pub scorers_max: usize,
    /// Admission pauses while more trajectories than this wait to be scored or committed; their
    /// steps fill the spool.
    pub backlog_max: usize,
    /// Calls waiting for a decision; further ones wait for space in the queue.
    pub calls_max: usize,
    /// Decisions waiting to be durable; while there are more, no further one is made.
    pub commits_max: usize,
    /// Steps and endings waiting for the spool; further ones wait for space in its queue.
    pub spool_queue_max: usize,
    /// Bytes of the steps and endings that wait for the spool; the default holds one step of 200 KB
    /// of a thousand sessions.
    pub spool_queue_bytes_max: usize,
    /// Spool files held open at once.
    pub spool_open_files_max: usize,
    /// Commits waiting for the ledger; further ones wait for space in its queue.
    pub ledger_queue_max: usize,
    /// Commits that share one transaction of the ledger.
    pub ledger_batch_max: usize,
    /// How long the ledger waits on a full disk, or on another process that has it locked, before
    /// the coordinator stops.
    pub disk_full_millis: u64,
    /// Deadline of a call, in addition to the time a request for work asks to stay open.
    pub call_millis: u64,
    /// Trajectories a trainer consumes for one version of the weights; without it, admission is not
    /// paced. Trajectories that the trainer reports as discarded (`furrow discarded`) are collected
    /// anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trajectories_per_version: Option<u64>,
    /// Versions a trajectory may be behind when it ends, with `trajectories_per_version`: admission
    /// pauses while it would be more. 0 is training on policy.
    pub max_off_policy_versions: u64,
    /// For measurements: the first trajectories, as many as run at once, get step limits spread
    /// evenly over 1 to the task's own limit, so that their ages are even from the start. They end
    /// as `max_steps` before their tasks could be done: do not use it for a job that a trainer
    /// learns from.
    pub spread_first_steps: bool,
}

/// Checked settings; only [`LimitsFile::check`] creates them.
#[derive(Debug, Clone)]
pub struct LimitsConfig {
    pub(crate) rules: CoreRules,
    pub(crate) farewell: Duration,
    pub(crate) score_deadline: Duration,
    pub(crate) scorers_max: usize,
    pub(crate) calls_max: usize,
    pub(crate) commits_max: usize,
    pub(crate) spool: SpoolLimits,
    pub(crate) ledger: LedgerLimits,
    pub(crate) call_deadline: Duration,
    pub(crate) spread_first_steps: bool,
}

impl Default for LimitsFile {
    fn default() -> Self {
        let spool = SpoolLimits::default();
        let ledger = LedgerLimits::default();
        Self {
            attempts_max: 3,
            failure_budget: 0.5,
            failures_free: None,
            // Five heartbeats: a worker that misses four in a row is gone.
            lease_millis: 15_000,
            heartbeat_millis: 3_000,
            leases_per_call_max: 16,
            drain_grace_millis: 30_000,
            farewell_millis: 5_000,
            score_attempts_max: 3,
            score_millis: 30_000,
            scorers_max: 4,
            // 30 steps of 200 KB: 6 MB a trajectory, 6 GB of spool.
            backlog_max: 1_000,
            calls_max: 1_024,
            commits_max: 256,
            spool_queue_max: spool.queued_max,
            spool_queue_bytes_max: spool.queued_bytes_max,
            spool_open_files_max: spool.open_files_max,
            ledger_queue_max: ledger.queued_max,
            ledger_batch_max: ledger.batch_max,
            disk_full_millis: ledger.disk_full_timeout.as_millis() as u64,
            call_millis: 10_000,
            trajectories_per_version: None,
            max_off_policy_versions: 2,
            spread_first_steps: false,
        }
    }
}

impl LimitsFile {
    /// Checks every value and reports every problem.
    pub fn check(self) -> Result<LimitsConfig, Vec<String>> {
        let problems = self.problems();
        if problems.is_empty() { Ok(self.config()) } else { Err(problems) }
    }

    fn problems(&self) -> Vec<String> {
        let hour = 3_600_000;
        let mut problems: Vec<String> = [
            range("attempts_max", u64::from(self.attempts_max), 1, 100),
            self.failures_free.and_then(|free| range("failures_free", free, 0, u64::MAX / 2)),
            range("lease_millis", self.lease_millis, 100, hour),
            range("heartbeat_millis", self.heartbeat_millis, 20, hour),
            range("leases_per_call_max", u64::from(self.leases_per_call_max), 1, 64),
            range("drain_grace_millis", self.drain_grace_millis, 0, 24 * hour),
            range("farewell_millis", self.farewell_millis, 0, hour),
            range("score_attempts_max", u64::from(self.score_attempts_max), 1, 100),
            range("score_millis", self.score_millis, 1, hour),
            range("scorers_max", self.scorers_max as u64, 1, 256),
            range("backlog_max", self.backlog_max as u64, 1, 1_000_000),
            range("calls_max", self.calls_max as u64, 1, 100_000),
            range("commits_max", self.commits_max as u64, 1, 100_000),
            range("spool_queue_max", self.spool_queue_max as u64, 1, 100_000),
            range("spool_queue_bytes_max", self.spool_queue_bytes_max as u64, 1 << 20, 1 << 36),
            range("spool_open_files_max", self.spool_open_files_max as u64, 1, 100_000),
            range("ledger_queue_max", self.ledger_queue_max as u64, 1, 100_000),
            range("ledger_batch_max", self.ledger_batch_max as u64, 1, 10_000),
            range("disk_full_millis", self.disk_full_millis, 0, hour),
            range("call_millis", self.call_millis, 100, hour),
            self.trajectories_per_version
                .and_then(|count| range("trajectories_per_version", count, 1, u64::MAX / 2)),
            range("max_off_policy_versions", self.max_off_policy_versions, 0, 1_000_000),
        ]
        .into_iter()
        .flatten()
        .collect();
        if self.spread_first_steps && self.trajectories_per_version.is_some() {
            problems.push(
                "limits.spread_first_steps: true conflicts with limits.trajectories_per_version: it cuts \
                 short the first trajectories, which a trainer would learn from; remove one of the two"
                    .into(),
            );
        }
        if !(0.0..=1.0).contains(&self.failure_budget) {
            problems.push(format!(
                "limits.failure_budget: {} is out of range; use 0 to 1, where 1 never stops the job",
                self.failure_budget
            ));
        }
        if self.lease_millis < self.heartbeat_millis.saturating_mul(2) {
            problems.push(format!(
                "limits.lease_millis: {} is less than two heartbeats of {}; raise it: otherwise one lost \
                 message ends every trajectory",
                self.lease_millis, self.heartbeat_millis
            ));
        }
        problems
    }

    fn config(self) -> LimitsConfig {
        let pacing = self.trajectories_per_version.map(|trajectories_per_version| AdmissionPacing {
            trajectories_per_version,
            max_off_policy_versions: self.max_off_policy_versions,
        });
        LimitsConfig {
            rules: CoreRules {
                attempts_max: self.attempts_max,
                failure_budget: self.failure_budget,
                failures_free: self.failures_free,
                lease_millis: self.lease_millis,
                heartbeat_millis: self.heartbeat_millis,
                lease_wait_millis: LEASE_WAIT_MILLIS_MAX,
                leases_per_call_max: self.leases_per_call_max,
                drain_grace_millis: self.drain_grace_millis,
                score_attempts_max: self.score_attempts_max,
                backlog_max: self.backlog_max,
                pacing,
                fencing: true,
            },
            farewell: Duration::from_millis(self.farewell_millis),
            score_deadline: Duration::from_millis(self.score_millis),
            scorers_max: self.scorers_max,
            calls_max: self.calls_max,
            commits_max: self.commits_max,
            spool: SpoolLimits {
                queued_max: self.spool_queue_max,
                queued_bytes_max: self.spool_queue_bytes_max,
                open_files_max: self.spool_open_files_max,
            },
            ledger: LedgerLimits {
                queued_max: self.ledger_queue_max,
                batch_max: self.ledger_batch_max,
                disk_full_timeout: Duration::from_millis(self.disk_full_millis),
                ..LedgerLimits::default()
            },
            call_deadline: Duration::from_millis(self.call_millis),
            spread_first_steps: self.spread_first_steps,
        }
    }
}

impl LimitsConfig {
    /// Trajectories scored at the same time.
    pub fn scorers_max(&self) -> usize {
        self.scorers_max
    }

    /// Most bytes of steps and endings that wait for the spool.
    pub fn spool_queue_bytes_max(&self) -> u64 {
        self.spool.queued_bytes_max as u64
    }

    /// Whether the step limits of the first trajectories are spread.
    pub fn spreads_first_steps(&self) -> bool {
        self.spread_first_steps
    }

    /// How often a worker sends a heartbeat.
    pub fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.rules.heartbeat_millis)
    }
}

fn range(key: &str, value: u64, from: u64, to: u64) -> Option<String> {
    (!(from..=to).contains(&value))
        .then(|| format!("limits.{key}: {value} is out of range; use {from} to {to}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: impl FnOnce(&mut LimitsFile), want: &[&str]) {
        let mut file = LimitsFile::default();
        change(&mut file);
        let problems = file.check().err().unwrap_or_default();
        let named: Vec<_> =
            problems.iter().map(|problem| problem.split(": ").next().unwrap_or_default()).collect();
        assert_eq!(named, want, "{problems:?}");
    }

    #[test]
    fn every_wrong_value_is_named_by_its_key() {
        check(|_| {}, &[]);
        check(|file| file.attempts_max = 0, &["limits.attempts_max"]);
        check(|file| file.failure_budget = 1.5, &["limits.failure_budget"]);
        check(|file| file.failure_budget = f64::NAN, &["limits.failure_budget"]);
        check(|file| file.lease_millis = 5_999, &["limits.lease_millis"]);
        check(|file| file.backlog_max = 0, &["limits.backlog_max"]);
        check(|file| file.trajectories_per_version = Some(0), &["limits.trajectories_per_version"]);
        check(|file| file.spread_first_steps = true, &[]);
        check(
            |file| (file.spread_first_steps, file.trajectories_per_version) = (true, Some(64)),
            &["limits.spread_first_steps"],
        );
        check(
            |file| (file.calls_max, file.scorers_max) = (0, 0),
            &["limits.scorers_max", "limits.calls_max"],
        );
    }

    #[test]
    fn without_a_trainer_nothing_is_paced() {
        assert_eq!(LimitsFile::default().check().unwrap().rules.pacing, None);
        let file = LimitsFile { trajectories_per_version: Some(64), ..LimitsFile::default() };
        let want = AdmissionPacing { trajectories_per_version: 64, max_off_policy_versions: 2 };
        assert_eq!(file.check().unwrap().rules.pacing, Some(want));
    }
}
