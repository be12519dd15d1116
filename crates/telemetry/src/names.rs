//! Every metric and every event of the farm, named once, with unit and description.
//!
//! A metric's name is the key in `metrics.jsonl`; `prometheus.rs` derives its Prometheus name from
//! it. Label values follow after a slash: `rollout/ends/page_crash`.

use furrow_rollout::{EndKind, OutcomeName, TimeCause};

use crate::labels::{
    BlockReason, BrowserDeath, BrowserLimit, DeviceUse, Label, PauseReason, SessionEnd, SlotUse, WorkerKind,
};
use crate::metrics::{Counter, Family, Gauge, Histogram, HistogramBuckets, MeanMetric, OptionalGauge};

/// The metrics of this process. Events update them in `emit`, so few call sites use a metric
/// directly.
pub fn process_metrics() -> &'static ProcessMetrics {
    static FIGURES: ProcessMetrics = ProcessMetrics::new();
    &FIGURES
}

/// The unit of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricUnit {
    /// A number of things.
    Count,
    Bytes,
    /// Microseconds; the name ends in `_micros`.
    Micros,
    Reward,
}

/// One metric, or one cell of a family, at the time of reading.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricPoint {
    /// Name of the metric.
    pub name: &'static str,
    /// The unit of its value.
    pub unit: MetricUnit,
    /// Its description, one sentence.
    pub help: &'static str,
    /// Label name and label value, for a cell of a family.
    pub label: Option<(&'static str, &'static str)>,
    pub sample: MetricSample,
}

/// The value of a metric that was read.
#[derive(Debug, Clone, PartialEq)]
pub enum MetricSample {
    Counter(u64),
    /// Of a [`Gauge`], or of an [`OptionalGauge`], which may be unknown.
    Gauge(Option<i64>),
    Average {
        /// Sum of the values.
        sum: f64,
        count: u64,
    },
    Histogram(HistogramBuckets),
}

macro_rules! define_metrics {
    ($($(#[doc = $help:literal])* $field:ident: $kind:ident $(by $label:ident)? = $name:literal in $unit:ident;)*) => {
        /// All metrics of a process, one field per metric.
        #[derive(Debug)]
        pub struct ProcessMetrics { $($(#[doc = $help])* pub $field: define_metrics!(@type $kind $($label)?),)* }

        impl ProcessMetrics {
            #[expect(clippy::new_without_default, reason = "a process has one, which is created at compile time")]
            pub const fn new() -> Self {
                Self { $($field: define_metrics!(@new $kind $($label)?),)* }
            }

            /// All metrics at this moment, always the same ones in the same order.
            pub fn points(&self) -> Vec<MetricPoint> {
                let mut points = Vec::new();
                $({
                    const HELP: &str = concat!($($help),*).trim_ascii();
                    self.$field.read(&mut |label, sample| points.push(MetricPoint {
                        name: $name, unit: MetricUnit::$unit, help: HELP, label, sample,
                    }));
                })*
                points
            }
        }
    };
    (@type $kind:ident) => { $kind };
    (@type $kind:ident $label:ident) => { Family<$label, $kind, { <$label as Label>::ALL.len() }> };
    (@new $kind:ident) => { $kind::new() };
    (@new $kind:ident $label:ident) => { Family::of([const { $kind::new() }; <$label as Label>::ALL.len()]) };
}

define_metrics! {
    // The coordinator.
    /// Trajectories that ended, scored or failed.
    trajectories: Counter = "rollout/trajectories" in Count;
    /// Trajectories with a reward.
    scored: Counter = "rollout/scored" in Count;
    /// Trajectories that ended by a fault of the farm.
    failed: Counter = "rollout/failed" in Count;
    /// Ended trajectories by their end.
    ends: Counter by EndKind = "rollout/ends" in Count;
    /// Failed trajectories whose slot is retried.
    retries: Counter = "rollout/retries" in Count;
    /// Scored trajectories that solved their task.
    successes: Counter = "rollout/successes" in Count;
    /// Reward of the scored trajectories.
    reward: MeanMetric = "rollout/reward" in Reward;
    /// Time it took to score a trajectory.
    score_micros: Histogram = "rollout/score_micros" in Micros;
    /// Steps that the coordinator made durable.
    steps: Counter = "rollout/steps" in Count;
    /// Assignments leased to environment workers.
    assignments: Counter = "rollout/assignments" in Count;
    /// Assignments revoked because their worker went silent.
    leases_lost: Counter = "rollout/leases_lost" in Count;
    /// Assignments leased at the moment.
    running: Gauge = "rollout/running" in Count;
    /// Calls refused because their caller did not hold the lease that they name.
    calls_fenced: Counter = "rollout/calls_fenced" in Count;
    /// Calls that repeated what was already durable; acknowledged again.
    calls_repeated: Counter = "rollout/calls_repeated" in Count;
    /// Groups that closed, complete or not.
    groups: Counter = "rollout/groups" in Count;
    /// Closed groups with fewer scored trajectories than planned.
    groups_short: Counter = "rollout/groups_short" in Count;
    /// Closed groups whose rewards are all equal.
    groups_zero_variance: Counter = "rollout/groups_zero_variance" in Count;
    /// Evaluations of a version that ended, complete or cut short.
    evaluations: Counter = "eval/evaluations" in Count;
    /// Evaluations that ended before they were complete, because newer weights waited or the
    /// version was withdrawn.
    evaluations_cut: Counter = "eval/cut" in Count;
    /// Policy version of the last evaluation that ended.
    evaluated_version: Gauge = "eval/version" in Count;
    /// Trajectories with a reward in the last evaluation that ended.
    evaluated_scored: Gauge = "eval/scored" in Count;
    /// Trajectories of the last evaluation that ended which solved their task.
    evaluated_successes: Gauge = "eval/successes" in Count;
    /// Policy versions that were withdrawn, because their weights were broken.
    versions_withdrawn: Counter = "rollout/versions_withdrawn" in Count;
    /// Workers whose registration was refused.
    workers_refused: Counter by WorkerKind = "rollout/workers_refused" in Count;
    /// Workers registered with the coordinator at the moment.
    workers: Gauge by WorkerKind = "rollout/workers" in Count;
    /// 1 while nothing is assigned for this reason.
    paused: Gauge by PauseReason = "rollout/paused" in Count;

    // The data set.
    /// Shards named in the manifest.
    shards: Counter = "records/shards" in Count;
    /// Trajectories named in the manifest.
    committed: Counter = "records/trajectories" in Count;
    /// Bytes of committed files.
    committed_bytes: Counter = "records/bytes" in Bytes;
    /// Trajectories that are no longer part of the data set, because they were the oldest.
    expired: Counter = "records/expired" in Count;
    /// Bytes of files that are no longer part of the data set, because they were the oldest.
    expired_bytes: Counter = "records/expired_bytes" in Bytes;
    /// From the end of a trajectory to its manifest commit.
    commit_micros: Histogram = "records/commit_micros" in Micros;
    /// Bytes in the spool: durable and not yet committed.
    spool_bytes: Gauge = "records/spool_bytes" in Bytes;
    /// Spool files recovered from an earlier process.
    spool_recovered: Counter = "records/spool_recovered" in Count;

    // The environment workers.
    /// Steps acknowledged by the coordinator.
    env_steps: Counter = "env/steps" in Count;
    /// A whole step: from one acknowledgement to the next.
    step_micros: Histogram = "env/step_micros" in Micros;
    /// Trajectories whose end the coordinator acknowledged.
    env_trajectories: Counter = "env/trajectories" in Count;
    /// Trajectories given up because another worker has their lease or the coordinator refused
    /// them.
    env_abandoned: Counter = "env/abandoned" in Count;
    /// Outcomes of the actions in acknowledged steps.
    outcomes: Counter by OutcomeName = "env/outcomes" in Count;
    /// Where the time of trajectories went; only the time account adds to it.
    session_micros: Counter by TimeCause = "env/session_micros" in Micros;
    /// Where the time of slots went; the parts add up to slots times time.
    slot_micros: Counter by SlotUse = "env/slot_micros" in Micros;
    /// Trajectories that the environment workers of this process can run at once.
    slots: Gauge = "env/slots" in Count;
    /// Slots with a trajectory.
    slots_busy: Gauge = "env/slots_busy" in Count;
    /// Bytes of recorded screenshots.
    screenshot_bytes: Counter = "env/screenshot_bytes" in Bytes;
    /// Browsers running at the moment.
    browsers: Gauge = "env/browsers" in Count;
    /// Browsers that started and answered.
    browsers_started: Counter = "env/browsers_started" in Count;
    /// Browsers that died, were killed or did not start.
    browsers_died: Counter by BrowserDeath = "env/browsers_died" in Count;
    /// Processes of browsers that were ended because their browser exceeded a limit.
    over_limit: Counter by BrowserLimit = "env/over_limit" in Count;
    /// Pages whose process died.
    pages_crashed: Counter = "env/pages_crashed" in Count;
    /// Pages that stopped answering.
    pages_hung: Counter = "env/pages_hung" in Count;
    /// Dialogs that pages opened and that were dismissed.
    dialogs_dismissed: Counter = "env/dialogs_dismissed" in Count;
    /// Tabs closed because a page opened too many.
    popups_closed: Counter = "env/popups_closed" in Count;
    /// Downloads that pages started and that were denied.
    downloads_denied: Counter = "env/downloads_denied" in Count;
    /// Requests of pages refused.
    requests_blocked: Counter by BlockReason = "env/requests_blocked" in Count;

    // The policy workers.
    /// Sessions open at the moment.
    sessions: Gauge = "policy/sessions" in Count;
    /// Sessions that the policy workers of this process opened.
    sessions_opened: Counter = "policy/sessions_opened" in Count;
    /// Sessions rebuilt from traces.
    sessions_rebuilt: Counter = "policy/sessions_rebuilt" in Count;
    /// Sessions that ended, by their end.
    sessions_ended: Counter by SessionEnd = "policy/sessions_ended" in Count;
    /// Replies sent to environment workers, one for each observation.
    replies: Counter = "policy/replies" in Count;
    /// Replies without an action.
    replies_invalid: Counter = "policy/replies_invalid" in Count;
    /// Replies sent again because their step was requested again.
    replies_repeated: Counter = "policy/replies_repeated" in Count;
    /// From reading an observation to sending its reply.
    service_micros: Histogram = "policy/service_micros" in Micros;
    /// Tokens whose log-probs were recomputed by the prefill path.
    recomputed_tokens: Counter = "policy/recomputed_tokens" in Count;
    /// Difference between recomputed and recorded log-probs, in millionths of a nat.
    prefill_gap: Histogram = "policy/prefill_gap_millionths" in Count;
    /// Where the device's time went; the parts add up to the time the engine ran.
    device_micros: Counter by DeviceUse = "policy/device_micros" in Micros;

    // The endpoint behind the `openai` policy.
    /// Replies of the endpoint.
    remote_replies: Counter = "remote/replies" in Count;
    /// Attempts of the endpoint that gave no reply.
    remote_failures: Counter = "remote/failures" in Count;
    /// Attempts beyond the first.
    remote_retries: Counter = "remote/retries" in Count;
    /// Tokens of prompts, as the endpoint counts them.
    remote_prompt_tokens: Counter = "remote/prompt_tokens" in Count;
    /// Tokens of replies, as the endpoint counts them.
    remote_completion_tokens: Counter = "remote/completion_tokens" in Count;
    /// Cost in millionths of a US dollar, where prices are known.
    remote_cost: Counter = "remote/cost_usd_millionths" in Count;
    /// From the need for a reply to the reply.
    remote_micros: Histogram = "remote/reply_micros" in Micros;

    // Chats that a policy worker serves.
    /// Chats that got a reply.
    serve_replies: Counter = "serve/replies" in Count;
    /// Chats without a reply: refused, late or cut off.
    serve_refusals: Counter = "serve/refusals" in Count;
    /// Tokens of the prompts of served chats.
    serve_prompt_tokens: Counter = "serve/prompt_tokens" in Count;
    /// Tokens of prompts that a session already had.
    serve_cached_tokens: Counter = "serve/cached_tokens" in Count;
    /// Tokens of the replies of served chats.
    serve_completion_tokens: Counter = "serve/completion_tokens" in Count;
    /// From a request's head to the end of its reply.
    serve_micros: Histogram = "serve/reply_micros" in Micros;

    // Export to an OTLP endpoint.
    /// Events whose spans the endpoint accepted.
    otlp_events: Counter = "otlp/events" in Count;
    /// Events whose spans were dropped: the endpoint was unavailable, slow, or refused them.
    otlp_dropped: Counter = "otlp/events_dropped" in Count;
    /// Calls of the endpoint that failed.
    otlp_failures: Counter = "otlp/failures" in Count;

    // The process and its whole tree: browsers are most of a worker.
    /// CPU time of this process.
    process_cpu_micros: Counter = "process/cpu_micros" in Micros;
    /// Resident memory of this process.
    process_rss_bytes: OptionalGauge = "process/rss_bytes" in Bytes;
    /// Processes in the tree of this one.
    tree_processes: OptionalGauge = "tree/processes" in Count;
    /// CPU time of the tree.
    tree_cpu_micros: Counter = "tree/cpu_micros" in Micros;
    /// Resident memory of the tree, shared pages counted once for each process.
    tree_rss_bytes: OptionalGauge = "tree/rss_bytes" in Bytes;
    /// Resident memory of the tree, shared pages divided among their users; measured less often,
    /// because it is expensive.
    tree_pss_bytes: OptionalGauge = "tree/pss_bytes" in Bytes;
    /// Panics, each in the log with its location.
    panics: Counter = "process/panics" in Count;
}

macro_rules! event_names {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// Names of events, the value of `event` in a log line.
        pub mod event {
            $($(#[$doc])* pub const $name: &str = $text;)*

            pub const ALL: &[&str] = &[$($name),*];
        }
    };
}

event_names! {
    /// The coordinator began to fill a run directory.
    RUN_STARTED = "run.started";
    /// The run is over for the coordinator.
    RUN_ENDED = "run.ended";
    WORKER_REGISTERED = "worker.registered";
    /// A worker's registration was refused.
    WORKER_REFUSED = "worker.refused";
    WORKER_LEFT = "worker.left";
    /// A registered worker went silent.
    WORKER_LOST = "worker.lost";
    /// A trajectory was leased to an environment worker.
    ASSIGNMENT_LEASED = "assignment.leased";
    /// A lease was revoked.
    LEASE_LOST = "lease.lost";
    /// A call came from another than the holder of its lease.
    CALL_FENCED = "call.fenced";
    /// A call repeated what was already durable.
    CALL_REPEATED = "call.repeated";
    /// A step is durable, reported by the coordinator.
    STEP_RECORDED = "step.recorded";
    /// The end of a trajectory is durable, reported by the coordinator.
    TRAJECTORY_FINISHED = "trajectory.finished";
    /// A trajectory has a reward.
    TRAJECTORY_SCORED = "trajectory.scored";
    /// A trajectory ended by a fault of the farm.
    TRAJECTORY_FAILED = "trajectory.failed";
    GROUP_CLOSED = "group.closed";
    /// The weights of a version are broken; no worker is ordered to run it any more.
    VERSION_WITHDRAWN = "version.withdrawn";
    /// A version of the weights is being evaluated.
    EVALUATION_BEGUN = "evaluation.begun";
    /// Its evaluation is over.
    EVALUATION_ENDED = "evaluation.ended";
    /// A shard is named in the manifest.
    SHARD_COMMITTED = "shard.published";
    /// The oldest rows are no longer part of the data set.
    ROWS_EXPIRED = "rows.expired";
    /// Nothing is assigned at the moment.
    ADMISSION_PAUSED = "admission.paused";
    ADMISSION_RESUMED = "admission.resumed";
    /// The spool of an earlier process was recovered.
    SPOOL_RECOVERED = "spool.recovered";
    /// An environment worker started a trajectory.
    TRAJECTORY_STARTED = "trajectory.started";
    /// The coordinator acknowledged a step, reported by the environment worker.
    STEP_ACKNOWLEDGED = "step.acknowledged";
    /// The coordinator acknowledged the end of a trajectory, reported by the environment worker.
    TRAJECTORY_ACKNOWLEDGED = "trajectory.acknowledged";
    /// An environment worker gave a trajectory up.
    TRAJECTORY_ABANDONED = "trajectory.abandoned";
    /// The browser was tested before any work was accepted.
    CHROMIUM_SELF_TEST = "chromium.self_test";
    BROWSER_STARTED = "browser.started";
    /// A browser was stopped on purpose.
    BROWSER_STOPPED = "browser.stopped";
    /// A browser was lost.
    BROWSER_DIED = "browser.died";
    /// A browser exceeded a limit and one or all of its processes were ended.
    BROWSER_OVER_LIMIT = "browser.over_limit";
    /// The process of a page died.
    PAGE_CRASHED = "page.crashed";
    /// A page stopped answering.
    PAGE_HUNG = "page.hung";
    /// A dialog was dismissed.
    DIALOG_DISMISSED = "dialog.dismissed";
    /// A tab beyond the limit was closed.
    POPUP_CLOSED = "popup.closed";
    /// A download was denied.
    DOWNLOAD_DENIED = "download.denied";
    /// A request of a page was refused.
    REQUEST_BLOCKED = "request.blocked";
    /// An environment worker starts no trajectory because memory is short.
    MEMORY_SHORT = "memory.short";
    /// It starts trajectories again.
    MEMORY_EASED = "memory.eased";
    /// A policy worker opened a session.
    SESSION_OPENED = "session.opened";
    /// A policy worker rebuilt a session from traces.
    SESSION_REBUILT = "session.rebuilt";
    SESSION_CLOSED = "session.closed";
    /// A reply was sent.
    REPLY_SENT = "reply.sent";
    /// A reply was sent again.
    REPLY_REPEATED = "reply.repeated";
    /// Log-probs of a step's tokens were recomputed by the prefill path.
    LOGPROBS_RECOMPUTED = "tokens.scored_again";
    /// A model behind an endpoint gave a reply.
    REMOTE_ANSWERED = "remote.answered";
    /// A model behind an endpoint gave no reply.
    REMOTE_FAILED = "remote.failed";
    /// A chat got a reply.
    CHAT_ANSWERED = "chat.answered";
    /// A chat got none.
    CHAT_REFUSED = "chat.refused";
    /// A process stops admitting work.
    DRAINING = "process.draining";
    /// A process finished or handed back its work.
    DRAINED = "process.drained";
    /// An OTLP endpoint accepts nothing.
    EXPORT_FAILING = "export.failing";
    /// The endpoint accepts data again.
    EXPORT_RESUMED = "export.resumed";
    /// Code of furrow panicked.
    PANICKED = "process.panicked";
}

/// A metric that yields its samples, with label name and value if it has several.
trait ReadMetric {
    fn read(&self, push: &mut dyn FnMut(Option<(&'static str, &'static str)>, MetricSample));
}

/// A metric with one sample.
trait ReadSample {
    fn sample(&self) -> MetricSample;
}

impl ReadSample for Counter {
    fn sample(&self) -> MetricSample {
        MetricSample::Counter(self.get())
    }
}
impl ReadSample for Gauge {
    fn sample(&self) -> MetricSample {
        MetricSample::Gauge(Some(self.get()))
    }
}
impl ReadSample for OptionalGauge {
    fn sample(&self) -> MetricSample {
        MetricSample::Gauge(self.get())
    }
}
impl ReadSample for MeanMetric {
    fn sample(&self) -> MetricSample {
        let (sum, count) = self.get();
        MetricSample::Average { sum, count }
    }
}
impl ReadSample for Histogram {
    fn sample(&self) -> MetricSample {
        MetricSample::Histogram(self.get())
    }
}

impl<M: ReadSample> ReadMetric for M {
    fn read(&self, push: &mut dyn FnMut(Option<(&'static str, &'static str)>, MetricSample)) {
        push(None, self.sample());
    }
}
impl<L: Label, M: ReadSample, const N: usize> ReadMetric for Family<L, M, N> {
    fn read(&self, push: &mut dyn FnMut(Option<(&'static str, &'static str)>, MetricSample)) {
        for (label, cell) in self.each() {
            push(Some((L::NAME, label.value())), cell.sample());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_metric_is_named_once_and_closes_with_its_unit() {
        let points = ProcessMetrics::new().points();
        let mut names = BTreeSet::new();
        for point in &points {
            let name = point.name;
            let label = point.label;
            assert!(names.insert((name, label)), "{name} {label:?} occurs twice");
            assert_eq!(name.ends_with("_micros"), point.unit == MetricUnit::Micros, "{name}");
            assert_eq!(name.ends_with("bytes"), point.unit == MetricUnit::Bytes, "{name}");
            assert!(point.help.ends_with('.'), "{name}: {:?}", point.help);
            let plain = |c: char| c.is_ascii_lowercase() || matches!(c, '/' | '_');
            assert!(name.chars().all(plain) && name.matches('/').count() == 1, "{name}");
        }
        assert!(names.contains(&("rollout/ends", Some(("end", "page_crash")))));
    }

    #[test]
    fn no_metric_of_a_family_hides_another() {
        // `rollout/ends/done` must not equal another metric's `rollout/ends` plus a percentile's
        // name.
        let keys: Vec<_> =
            ProcessMetrics::new().points().iter().map(|point| (point.name, point.label)).collect();
        for (name, label) in &keys {
            let same = keys.iter().filter(|(other, _)| other == name).count();
            assert_eq!(same > 1, label.is_some(), "{name}");
        }
    }

    #[test]
    fn each_event_is_named_once() {
        let names: BTreeSet<_> = event::ALL.iter().collect();
        assert_eq!(names.len(), event::ALL.len());
    }
}
