//! What an environment worker says.

use furrow_rollout::{Ancestry, End, OutcomeName, TimeSplit};
use tracing::{info, warn};

use super::{cut, say};
use crate::labels::{BlockReason, BrowserDeath, BrowserLimit, Label};
use crate::names::{event, figures};
use crate::otel;

/// The worker took up a trajectory.
#[derive(Debug)]
pub struct TrajectoryStarted<'a> {
    /// The trajectory.
    pub of: &'a Ancestry,
    /// Token it is held under.
    pub token: u64,
    /// This worker.
    pub worker: &'a str,
    /// The browser it lives in.
    pub browser: &'a str,
}

/// The coordinator acknowledged a step: it is durable.
#[derive(Debug)]
pub struct StepAcknowledged<'a> {
    /// The trajectory.
    pub of: &'a Ancestry,
    /// The step.
    pub step: u32,
    /// Token it was sent under.
    pub token: u64,
    /// What came of its action.
    pub outcome: OutcomeName,
    /// When it began, microseconds since the Unix epoch.
    pub began_at_micros: i64,
    /// Where its time went.
    pub timing: &'a TimeSplit,
    /// Size of its screenshot.
    pub screenshot_bytes: u64,
}

/// The coordinator acknowledged the end of a trajectory: it will be in the data set exactly once.
#[derive(Debug)]
pub struct TrajectoryAcknowledged<'a> {
    /// The trajectory.
    pub of: &'a Ancestry,
    /// Token it was sent under.
    pub token: u64,
    /// How it ended.
    pub end: End,
    /// Its steps.
    pub steps: u32,
    /// Where the time of its life went, until its end was reported.
    pub timing: &'a TimeSplit,
    /// From the report to this acknowledgement.
    pub report_micros: u64,
}

/// The worker dropped a trajectory without an acknowledged end: its lease is another's now, or the coordinator is gone.
#[derive(Debug)]
pub struct TrajectoryAbandoned<'a> {
    /// The trajectory.
    pub of: &'a Ancestry,
    /// Token it was held under.
    pub token: u64,
    /// Where the time of its life went.
    pub timing: &'a TimeSplit,
    /// Why, in a sentence.
    pub reason: &'a str,
}

/// The browser was tried on a page, a dialog, a crash and a screenshot before any work was taken.
#[derive(Debug)]
pub struct ChromiumSelfTest<'a> {
    /// Product and version, as far as it said.
    pub product: &'a str,
    /// Whether the renderer's sandbox is on.
    pub sandbox: bool,
    /// Time the test took.
    pub micros: u64,
    /// What was wrong; the worker does not join the farm then.
    pub problem: Option<&'a str>,
}

/// A browser runs and answers.
#[derive(Debug)]
pub struct BrowserStarted<'a> {
    /// Its name in this worker.
    pub browser: &'a str,
    /// Its main process.
    pub pid: u32,
    /// Product and version.
    pub product: &'a str,
    /// Time from starting the process to the first answer.
    pub micros: u64,
}

/// A browser was stopped on purpose, and its processes are gone.
#[derive(Debug)]
pub struct BrowserStopped<'a> {
    /// Its name in this worker.
    pub browser: &'a str,
    /// Its main process.
    pub pid: u32,
}

/// A running browser was lost, and every trajectory in it.
#[derive(Debug)]
pub struct BrowserDied<'a> {
    /// Its name in this worker.
    pub browser: &'a str,
    /// Its main process.
    pub pid: u32,
    /// How.
    pub death: BrowserDeath,
    /// What is known beyond that.
    pub detail: &'a str,
}

/// A browser took more than it may, and what took most was ended: a page, or the browser itself where no page was to blame.
#[derive(Debug)]
pub struct BrowserOverLimit<'a> {
    /// Its name in this worker.
    pub browser: &'a str,
    /// The process that was ended.
    pub pid: u32,
    /// Which limit.
    pub limit: BrowserLimit,
    /// What all processes of the browser held, in bytes or threads.
    pub held: u64,
    /// What they may hold.
    pub most: u64,
    /// Whether the whole browser was ended.
    pub whole: bool,
}

/// Too little memory is left for another trajectory: the worker takes up none, and its idle slots are idle for admission.
#[derive(Debug)]
pub struct MemoryShort {
    /// What is left to this process.
    pub available_bytes: u64,
    /// What must stay free.
    pub reserve_bytes: u64,
    /// Trajectories in hand, which go on.
    pub in_hand: u64,
}

/// There is memory again, and the worker takes up trajectories.
#[derive(Debug)]
pub struct MemoryEased {
    /// What is left to this process.
    pub available_bytes: u64,
    /// Time without admission.
    pub micros: u64,
}

/// The process of a page died.
#[derive(Debug)]
pub struct PageCrashed<'a> {
    /// The trajectory.
    pub of: &'a Ancestry,
    /// The step it was in.
    pub step: u32,
}

/// A page stopped answering and its script was stopped.
#[derive(Debug)]
pub struct PageHung<'a> {
    /// The trajectory.
    pub of: &'a Ancestry,
    /// The step it was in.
    pub step: u32,
    /// What was waited for, such as `screenshot`.
    pub waited_for: &'static str,
}

/// A page opened a dialog, which was dismissed.
#[derive(Debug)]
pub struct DialogDismissed<'a> {
    /// The trajectory.
    pub of: &'a Ancestry,
}

/// A page opened more tabs than allowed; one was closed.
#[derive(Debug)]
pub struct PopupClosed<'a> {
    /// The trajectory.
    pub of: &'a Ancestry,
}

/// A page started a download, which was denied.
#[derive(Debug)]
pub struct DownloadDenied<'a> {
    /// The trajectory.
    pub of: &'a Ancestry,
}

/// A request of a page was refused by the filter.
#[derive(Debug)]
pub struct RequestBlocked<'a> {
    /// The trajectory, where the filter can tell.
    pub of: Option<&'a Ancestry>,
    /// The host asked for.
    pub host: &'a str,
    /// Why.
    pub reason: BlockReason,
}

impl TrajectoryStarted<'_> {
    /// Logs.
    pub fn emit(self) {
        let Self { of, token, worker, browser } = self;
        say!(info, TRAJECTORY_STARTED, of, "trajectory started", token, worker, browser);
    }
}

impl StepAcknowledged<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        otel::trace(&self);
        let (outcome, micros) = (self.outcome.as_str(), self.timing.total());
        let Self { of, step, token, .. } = self;
        say!(info, STEP_ACKNOWLEDGED, of, "step acknowledged", step, token, outcome, micros);
        let figures = figures();
        figures.env_steps.add(1);
        figures.outcomes.at(self.outcome).add(1);
        figures.step_micros.record(micros);
        figures.screenshot_bytes.add(self.screenshot_bytes);
    }
}

impl TrajectoryAcknowledged<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        otel::trace(&self);
        let (end, micros) = (self.end.as_str(), self.timing.total());
        let Self { of, token, steps, .. } = self;
        say!(info, TRAJECTORY_ACKNOWLEDGED, of, "trajectory acknowledged", token, end, steps, micros);
        figures().env_trajectories.add(1);
    }
}

impl TrajectoryAbandoned<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        otel::trace(&self);
        let (token, reason) = (self.token, cut(self.reason));
        say!(warn, TRAJECTORY_ABANDONED, self.of, "trajectory abandoned", token, reason);
        figures().env_abandoned.add(1);
    }
}

impl ChromiumSelfTest<'_> {
    /// Logs.
    pub fn emit(self) {
        let (event, passed) = (event::CHROMIUM_SELF_TEST, self.problem.is_none());
        let Self { product, sandbox, micros, problem } = self;
        match passed {
            true => info!(event, product, sandbox, micros, passed, "the browser passed its test"),
            false => warn!(event, product, sandbox, micros, passed, problem, "the browser failed"),
        }
    }
}

impl BrowserStarted<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let Self { browser, pid, product, micros } = self;
        info!(event = event::BROWSER_STARTED, browser, pid, product, micros, "browser started");
        figures().browsers_started.add(1);
        figures().browsers.add(1);
    }
}

impl BrowserStopped<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        info!(event = event::BROWSER_STOPPED, browser = self.browser, pid = self.pid, "browser stopped");
        figures().browsers.add(-1);
    }
}

impl BrowserDied<'_> {
    /// Logs and counts. One that never came up ([`BrowserDeath::StartFailed`]) was not running before either.
    pub fn emit(self) {
        let (death, detail) = (self.death.word(), cut(self.detail));
        let Self { browser, pid, .. } = self;
        warn!(event = event::BROWSER_DIED, browser, pid, death, detail, "browser died");
        figures().browsers_died.at(self.death).add(1);
        if self.death != BrowserDeath::StartFailed {
            figures().browsers.add(-1);
        }
    }
}

impl BrowserOverLimit<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let (event, limit) = (event::BROWSER_OVER_LIMIT, self.limit.word());
        let Self { browser, pid, held, most, whole, .. } = self;
        warn!(event, browser, pid, limit, held, most, whole, "browser over its limit");
        figures().over_limit.at(self.limit).add(1);
    }
}

impl MemoryShort {
    /// Logs. How long it lasts is in the slots' time account.
    pub fn emit(self) {
        let Self { available_bytes, reserve_bytes, in_hand } = self;
        warn!(
            event = event::MEMORY_SHORT,
            available_bytes,
            reserve_bytes,
            in_hand,
            "memory is short: nothing new is taken up until more is free (env.memory_reserve_bytes)"
        );
    }
}

impl MemoryEased {
    /// Logs.
    pub fn emit(self) {
        let Self { available_bytes, micros } = self;
        info!(event = event::MEMORY_EASED, available_bytes, micros, "memory is free again");
    }
}

impl PageCrashed<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        say!(warn, PAGE_CRASHED, self.of, "page crashed", step = self.step);
        figures().pages_crashed.add(1);
    }
}

impl PageHung<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let Self { of, step, waited_for } = self;
        say!(warn, PAGE_HUNG, of, "page hung", step, waited_for);
        figures().pages_hung.add(1);
    }
}

impl DialogDismissed<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        say!(debug, DIALOG_DISMISSED, self.of, "dialog dismissed");
        figures().dialogs_dismissed.add(1);
    }
}

impl PopupClosed<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        say!(debug, POPUP_CLOSED, self.of, "popup closed");
        figures().popups_closed.add(1);
    }
}

impl DownloadDenied<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        say!(debug, DOWNLOAD_DENIED, self.of, "download denied");
        figures().downloads_denied.add(1);
    }
}

impl RequestBlocked<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let (host, reason) = (cut(self.host), self.reason.word());
        match self.of {
            Some(of) => say!(debug, REQUEST_BLOCKED, of, "request blocked", host, reason),
            None => tracing::debug!(event = event::REQUEST_BLOCKED, host, reason, "request blocked"),
        }
        figures().requests_blocked.at(self.reason).add(1);
    }
}
