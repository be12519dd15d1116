//! Every metric and every event of the farm, named once, with its unit and what it says.
//!
//! A metric's name is the key in `metrics.jsonl`; its Prometheus name is made from it (`prometheus.rs`). Words of a closed set
//! follow after a slash: `rollout/ends/page_crash`.

use furrow_rollout::{Cause, End, OutcomeName};

use crate::labels::{
    BlockReason, BrowserDeath, BrowserLimit, DeviceUse, Label, PauseReason, SessionEnd, SlotUse, WorkerKind,
};
use crate::metrics::{Average, Buckets, Counter, Family, Gauge, Histogram, Measure};

/// The figures of this process. What counts is an event's `emit`, so few call sites ever name one.
pub fn figures() -> &'static Figures {
    static FIGURES: Figures = Figures::new();
    &FIGURES
}

/// What a metric's number measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Bytes.
    Bytes,
    /// Microseconds; the name ends in `_micros`.
    Micros,
    /// A reward.
    Reward,
}

/// One metric, or one cell of a family, as it stood when it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Name of the metric.
    pub name: &'static str,
    /// What its number measures.
    pub unit: Unit,
    /// What it says, in a sentence.
    pub help: &'static str,
    /// Label and word, for a cell of a family.
    pub label: Option<(&'static str, &'static str)>,
    /// The number.
    pub sample: Sample,
}

/// What was read.
#[derive(Debug, Clone, PartialEq)]
pub enum Sample {
    /// Of a [`Counter`].
    Counter(u64),
    /// Of a [`Gauge`], or of a [`Measure`] that may be unknown.
    Gauge(Option<i64>),
    /// Of an [`Average`].
    Average {
        /// Sum of the values.
        sum: f64,
        /// Number of values.
        count: u64,
    },
    /// Of a [`Histogram`].
    Histogram(Buckets),
}

macro_rules! figures {
    ($($(#[doc = $help:literal])* $field:ident: $kind:ident $(by $label:ident)? = $name:literal in $unit:ident;)*) => {
        /// All figures of a process, one field a metric.
        #[derive(Debug)]
        pub struct Figures { $($(#[doc = $help])* pub $field: figures!(@type $kind $($label)?),)* }

        impl Figures {
            /// All at zero.
            #[expect(clippy::new_without_default, reason = "a process has one, which is made at compile time")]
            pub const fn new() -> Self {
                Self { $($field: figures!(@new $kind $($label)?),)* }
            }

            /// All metrics as they stand, always the same ones in the same order.
            pub fn points(&self) -> Vec<Point> {
                let mut points = Vec::new();
                $({
                    const HELP: &str = concat!($($help),*).trim_ascii();
                    self.$field.read(&mut |label, sample| points.push(Point {
                        name: $name, unit: Unit::$unit, help: HELP, label, sample,
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

figures! {
    // The coordinator.
    /// Trajectories that ended, scored or failed.
    trajectories: Counter = "rollout/trajectories" in Count;
    /// Trajectories with a reward.
    scored: Counter = "rollout/scored" in Count;
    /// Trajectories that ended by the farm's fault.
    failed: Counter = "rollout/failed" in Count;
    /// Ended trajectories by their end.
    ends: Counter by End = "rollout/ends" in Count;
    /// Failed trajectories whose slot is tried again.
    retries: Counter = "rollout/retries" in Count;
    /// Scored trajectories that solved their task.
    successes: Counter = "rollout/successes" in Count;
    /// Reward of the scored trajectories.
    reward: Average = "rollout/reward" in Reward;
    /// Time it took to score a trajectory.
    score_micros: Histogram = "rollout/score_micros" in Micros;
    /// Steps made durable.
    steps: Counter = "rollout/steps" in Count;
    /// Assignments lent to environment workers.
    assignments: Counter = "rollout/assignments" in Count;
    /// Assignments taken back because their worker went silent.
    leases_lost: Counter = "rollout/leases_lost" in Count;
    /// Assignments lent out now.
    running: Gauge = "rollout/running" in Count;
    /// Calls refused because their fencing token was stale.
    calls_fenced: Counter = "rollout/calls_fenced" in Count;
    /// Calls that repeated what was already durable and were acknowledged again.
    calls_repeated: Counter = "rollout/calls_repeated" in Count;
    /// Groups that closed.
    groups: Counter = "rollout/groups" in Count;
    /// Closed groups with fewer scored trajectories than planned.
    groups_short: Counter = "rollout/groups_short" in Count;
    /// Closed groups whose rewards are all equal.
    groups_zero_variance: Counter = "rollout/groups_zero_variance" in Count;
    /// Evaluations that ended.
    evaluations: Counter = "eval/evaluations" in Count;
    /// Evaluations that were ended before they were complete, for newer weights waited.
    evaluations_cut: Counter = "eval/cut" in Count;
    /// Policy version of the last evaluation that ended.
    evaluated_version: Gauge = "eval/version" in Count;
    /// Trajectories with a reward in the last evaluation that ended.
    evaluated_scored: Gauge = "eval/scored" in Count;
    /// Those of them that solved their task.
    evaluated_successes: Gauge = "eval/successes" in Count;
    /// Workers turned away when they wanted to register.
    workers_refused: Counter by WorkerKind = "rollout/workers_refused" in Count;
    /// Workers registered now.
    workers: Gauge by WorkerKind = "rollout/workers" in Count;
    /// 1 while nothing is assigned for this reason.
    paused: Gauge by PauseReason = "rollout/paused" in Count;

    // The data set.
    /// Shards named in the manifest.
    shards: Counter = "records/shards" in Count;
    /// Trajectories named in the manifest.
    published: Counter = "records/trajectories" in Count;
    /// Bytes of published files.
    published_bytes: Counter = "records/bytes" in Bytes;
    /// From the end of a trajectory to its manifest commit.
    publish_micros: Histogram = "records/publish_micros" in Micros;
    /// Bytes in the spool: durable and not yet published.
    spool_bytes: Gauge = "records/spool_bytes" in Bytes;
    /// Spool files taken over from an earlier process.
    spool_recovered: Counter = "records/spool_recovered" in Count;

    // The environment workers.
    /// Steps acknowledged by the coordinator.
    env_steps: Counter = "env/steps" in Count;
    /// A whole step: from one acknowledgement to the next.
    step_micros: Histogram = "env/step_micros" in Micros;
    /// Trajectories whose end the coordinator acknowledged.
    env_trajectories: Counter = "env/trajectories" in Count;
    /// Trajectories given up because another worker holds them now or the coordinator refused them.
    env_abandoned: Counter = "env/abandoned" in Count;
    /// What came of actions.
    outcomes: Counter by OutcomeName = "env/outcomes" in Count;
    /// Where the time of trajectories went; fed by the time account alone.
    session_micros: Counter by Cause = "env/session_micros" in Micros;
    /// Where the time of slots went; the parts add up to slots times time.
    slot_micros: Counter by SlotUse = "env/slot_micros" in Micros;
    /// Slots there are.
    slots: Gauge = "env/slots" in Count;
    /// Slots with a trajectory in them.
    slots_busy: Gauge = "env/slots_busy" in Count;
    /// Bytes of recorded screenshots.
    screenshot_bytes: Counter = "env/screenshot_bytes" in Bytes;
    /// Browsers running.
    browsers: Gauge = "env/browsers" in Count;
    /// Browsers started.
    browsers_started: Counter = "env/browsers_started" in Count;
    /// Browsers lost.
    browsers_died: Counter by BrowserDeath = "env/browsers_died" in Count;
    /// Processes of browsers that were ended because their browser had passed a limit.
    over_limit: Counter by BrowserLimit = "env/over_limit" in Count;
    /// Pages whose process died.
    pages_crashed: Counter = "env/pages_crashed" in Count;
    /// Pages that stopped answering.
    pages_hung: Counter = "env/pages_hung" in Count;
    /// Dialogs dismissed.
    dialogs_dismissed: Counter = "env/dialogs_dismissed" in Count;
    /// Tabs closed because a page opened too many.
    popups_closed: Counter = "env/popups_closed" in Count;
    /// Downloads denied.
    downloads_denied: Counter = "env/downloads_denied" in Count;
    /// Requests of pages refused.
    requests_blocked: Counter by BlockReason = "env/requests_blocked" in Count;

    // The policy workers.
    /// Sessions open now.
    sessions: Gauge = "policy/sessions" in Count;
    /// Sessions opened.
    sessions_opened: Counter = "policy/sessions_opened" in Count;
    /// Sessions rebuilt from traces.
    sessions_rebuilt: Counter = "policy/sessions_rebuilt" in Count;
    /// Sessions that ended.
    sessions_ended: Counter by SessionEnd = "policy/sessions_ended" in Count;
    /// Replies sent.
    replies: Counter = "policy/replies" in Count;
    /// Replies that held no action.
    replies_invalid: Counter = "policy/replies_invalid" in Count;
    /// Replies sent a second time because their step was asked for again.
    replies_repeated: Counter = "policy/replies_repeated" in Count;
    /// From an observation read to its reply sent.
    service_micros: Histogram = "policy/service_micros" in Micros;
    /// Tokens that were scored again by the prefill path.
    scored_again: Counter = "policy/scored_again" in Count;
    /// How far their log-probs lie from the recorded ones, in millionths of a nat.
    prefill_gap: Histogram = "policy/prefill_gap_millionths" in Count;
    /// Where the device's time went; the parts add up to the time the engine ran.
    device_micros: Counter by DeviceUse = "policy/device_micros" in Micros;

    // The endpoint behind the `openai` policy.
    /// Replies of the endpoint.
    remote_replies: Counter = "remote/replies" in Count;
    /// Replies it gave to no attempt.
    remote_failures: Counter = "remote/failures" in Count;
    /// Attempts beyond the first.
    remote_retries: Counter = "remote/retries" in Count;
    /// Tokens of prompts, as it counts them.
    remote_prompt_tokens: Counter = "remote/prompt_tokens" in Count;
    /// Tokens of replies, as it counts them.
    remote_completion_tokens: Counter = "remote/completion_tokens" in Count;
    /// What it cost in millionths of a US dollar, where prices are known.
    remote_cost: Counter = "remote/cost_usd_millionths" in Count;
    /// From the wish to ask to the reply.
    remote_micros: Histogram = "remote/reply_micros" in Micros;

    // Chats that a policy worker serves.
    /// Chats that got a reply.
    serve_replies: Counter = "serve/replies" in Count;
    /// Chats that got none: refused, late or cut.
    serve_refusals: Counter = "serve/refusals" in Count;
    /// Tokens of prompts.
    serve_prompt_tokens: Counter = "serve/prompt_tokens" in Count;
    /// Tokens of prompts that a session held already.
    serve_cached_tokens: Counter = "serve/cached_tokens" in Count;
    /// Tokens of replies.
    serve_completion_tokens: Counter = "serve/completion_tokens" in Count;
    /// From a request's head to the end of its reply.
    serve_micros: Histogram = "serve/reply_micros" in Micros;

    // Export to an OTLP endpoint.
    /// Events whose spans the endpoint took.
    otlp_events: Counter = "otlp/events" in Count;
    /// Events whose spans were dropped: the endpoint was away, slow, or refused them.
    otlp_dropped: Counter = "otlp/events_dropped" in Count;
    /// Calls of the endpoint that failed.
    otlp_failures: Counter = "otlp/failures" in Count;

    // The process, and with it everything it started: browsers are most of a worker.
    /// CPU time of this process.
    process_cpu_micros: Counter = "process/cpu_micros" in Micros;
    /// Resident memory of this process.
    process_rss_bytes: Measure = "process/rss_bytes" in Bytes;
    /// Processes in the tree of this one.
    tree_processes: Measure = "tree/processes" in Count;
    /// CPU time of the tree.
    tree_cpu_micros: Counter = "tree/cpu_micros" in Micros;
    /// Resident memory of the tree, shared pages counted once for each process.
    tree_rss_bytes: Measure = "tree/rss_bytes" in Bytes;
    /// Resident memory of the tree, shared pages divided among their users; measured more seldom than the others, for it is dear.
    tree_pss_bytes: Measure = "tree/pss_bytes" in Bytes;
    /// Panics, each in the log with its place.
    panics: Counter = "process/panics" in Count;
}

macro_rules! event_names {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// Names of events, the value of `event` in a log line.
        pub mod event {
            $($(#[$doc])* pub const $name: &str = $text;)*

            /// All of them.
            pub const ALL: &[&str] = &[$($name),*];
        }
    };
}

event_names! {
    /// The coordinator began to fill a run directory.
    RUN_STARTED = "run.started";
    /// The coordinator is done with it.
    RUN_ENDED = "run.ended";
    /// A worker shook hands.
    WORKER_REGISTERED = "worker.registered";
    /// A worker was turned away.
    WORKER_REFUSED = "worker.refused";
    /// A worker said good-bye.
    WORKER_LEFT = "worker.left";
    /// A worker is gone without a word.
    WORKER_LOST = "worker.lost";
    /// A trajectory was lent to an environment worker.
    ASSIGNMENT_LEASED = "assignment.leased";
    /// It was taken back.
    LEASE_LOST = "lease.lost";
    /// A call carried a stale token.
    CALL_FENCED = "call.fenced";
    /// A call repeated what was durable.
    CALL_REPEATED = "call.repeated";
    /// A step is durable; said by the coordinator.
    STEP_RECORDED = "step.recorded";
    /// The end of a trajectory is durable; said by the coordinator.
    TRAJECTORY_FINISHED = "trajectory.finished";
    /// A trajectory has a reward.
    TRAJECTORY_SCORED = "trajectory.scored";
    /// A trajectory ended by the farm's fault.
    TRAJECTORY_FAILED = "trajectory.failed";
    /// A group closed.
    GROUP_CLOSED = "group.closed";
    /// A version of the weights is being evaluated.
    EVALUATION_BEGUN = "evaluation.begun";
    /// Its evaluation is over.
    EVALUATION_ENDED = "evaluation.ended";
    /// A shard is named in the manifest.
    SHARD_PUBLISHED = "shard.published";
    /// Nothing is assigned for now.
    ADMISSION_PAUSED = "admission.paused";
    /// Assigning goes on.
    ADMISSION_RESUMED = "admission.resumed";
    /// The spool of an earlier process was taken over.
    SPOOL_RECOVERED = "spool.recovered";
    /// An environment worker took up a trajectory.
    TRAJECTORY_STARTED = "trajectory.started";
    /// The coordinator acknowledged a step; said by the environment worker.
    STEP_ACKNOWLEDGED = "step.acknowledged";
    /// The coordinator acknowledged the end of a trajectory; said by the environment worker.
    TRAJECTORY_ACKNOWLEDGED = "trajectory.acknowledged";
    /// An environment worker gave a trajectory up.
    TRAJECTORY_ABANDONED = "trajectory.abandoned";
    /// The browser was tried before work was taken.
    CHROMIUM_SELF_TEST = "chromium.self_test";
    /// A browser runs.
    BROWSER_STARTED = "browser.started";
    /// A browser was stopped on purpose.
    BROWSER_STOPPED = "browser.stopped";
    /// A browser was lost.
    BROWSER_DIED = "browser.died";
    /// A browser passed a limit and something of it was ended.
    BROWSER_OVER_LIMIT = "browser.over_limit";
    /// The process of a page died.
    PAGE_CRASHED = "page.crashed";
    /// A page stopped answering.
    PAGE_HUNG = "page.hung";
    /// A dialog was dismissed.
    DIALOG_DISMISSED = "dialog.dismissed";
    /// A tab too many was closed.
    POPUP_CLOSED = "popup.closed";
    /// A download was denied.
    DOWNLOAD_DENIED = "download.denied";
    /// A request of a page was refused.
    REQUEST_BLOCKED = "request.blocked";
    /// An environment worker takes up nothing new, for memory is short.
    MEMORY_SHORT = "memory.short";
    /// It takes up work again.
    MEMORY_EASED = "memory.eased";
    /// A policy worker opened a session.
    SESSION_OPENED = "session.opened";
    /// A policy worker rebuilt a session from traces.
    SESSION_REBUILT = "session.rebuilt";
    /// A session ended.
    SESSION_CLOSED = "session.closed";
    /// A reply was sent.
    REPLY_SENT = "reply.sent";
    /// A reply was sent again.
    REPLY_REPEATED = "reply.repeated";
    /// Tokens of a step were scored again by the prefill path.
    TOKENS_SCORED_AGAIN = "tokens.scored_again";
    /// A model behind an endpoint gave a reply.
    REMOTE_ANSWERED = "remote.answered";
    /// It gave none.
    REMOTE_FAILED = "remote.failed";
    /// A chat got a reply.
    CHAT_ANSWERED = "chat.answered";
    /// A chat got none.
    CHAT_REFUSED = "chat.refused";
    /// A process stops admitting work.
    DRAINING = "process.draining";
    /// A process has finished or handed back what it had in hand.
    DRAINED = "process.drained";
    /// An OTLP endpoint takes nothing.
    EXPORT_FAILING = "export.failing";
    /// It takes what is sent again.
    EXPORT_RESUMED = "export.resumed";
    /// Code of ours panicked.
    PANICKED = "process.panicked";
}

/// A metric that can tell its samples, with label and word where it has several.
trait Read {
    fn read(&self, push: &mut dyn FnMut(Option<(&'static str, &'static str)>, Sample));
}

/// A metric that is one sample.
trait ReadOne {
    fn sample(&self) -> Sample;
}

impl ReadOne for Counter {
    fn sample(&self) -> Sample {
        Sample::Counter(self.get())
    }
}
impl ReadOne for Gauge {
    fn sample(&self) -> Sample {
        Sample::Gauge(Some(self.get()))
    }
}
impl ReadOne for Measure {
    fn sample(&self) -> Sample {
        Sample::Gauge(self.get())
    }
}
impl ReadOne for Average {
    fn sample(&self) -> Sample {
        let (sum, count) = self.get();
        Sample::Average { sum, count }
    }
}
impl ReadOne for Histogram {
    fn sample(&self) -> Sample {
        Sample::Histogram(self.get())
    }
}

impl<M: ReadOne> Read for M {
    fn read(&self, push: &mut dyn FnMut(Option<(&'static str, &'static str)>, Sample)) {
        push(None, self.sample());
    }
}
impl<L: Label, M: ReadOne, const N: usize> Read for Family<L, M, N> {
    fn read(&self, push: &mut dyn FnMut(Option<(&'static str, &'static str)>, Sample)) {
        for (label, cell) in self.each() {
            push(Some((L::NAME, label.word())), cell.sample());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_metric_is_named_once_and_closes_with_its_unit() {
        let points = Figures::new().points();
        let mut names = BTreeSet::new();
        for point in &points {
            let (name, label) = (point.name, point.label);
            assert!(names.insert((name, label)), "{name} {label:?} twice");
            assert_eq!(name.ends_with("_micros"), point.unit == Unit::Micros, "{name}");
            assert_eq!(name.ends_with("bytes"), point.unit == Unit::Bytes, "{name}");
            assert!(point.help.ends_with('.'), "{name}: {:?}", point.help);
            let plain = |c: char| c.is_ascii_lowercase() || matches!(c, '/' | '_');
            assert!(name.chars().all(plain) && name.matches('/').count() == 1, "{name}");
        }
        assert!(names.contains(&("rollout/ends", Some(("end", "page_crash")))));
    }

    #[test]
    fn no_metric_of_a_family_takes_the_place_of_another() {
        // `rollout/ends/done` must not also be somebody's `rollout/ends` + percentile.
        let keys: Vec<_> = Figures::new().points().iter().map(|point| (point.name, point.label)).collect();
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
