//! Events of an environment worker.

use furrow_rollout::{EndKind, OutcomeName, TimeSplit, TrajectoryAncestry};
use tracing::{info, warn};

use super::{cut, log_event};
use crate::labels::{BlockReason, BrowserDeath, BrowserLimit, Label};
use crate::names::{event, process_metrics};
use crate::otel;

/// The worker started a trajectory.
#[derive(Debug)]
pub struct TrajectoryStarted<'a> {
    pub of: &'a TrajectoryAncestry,
    /// Fencing token of the lease.
    pub token: u64,
    pub worker: &'a str,
    /// The browser of the trajectory.
    pub browser: &'a str,
}

/// The coordinator acknowledged a step: it is durable.
#[derive(Debug)]
pub struct StepAcknowledged<'a> {
    pub of: &'a TrajectoryAncestry,
    pub step: u32,
    /// Fencing token of the call.
    pub token: u64,
    /// Outcome of its action.
    pub outcome: OutcomeName,
    /// When it began, microseconds since the Unix epoch.
    pub began_at_micros: i64,
    /// Where its time went.
    pub timing: &'a TimeSplit,
    /// Size of its screenshot.
    pub screenshot_bytes: u64,
}

/// The coordinator acknowledged the end of a trajectory: the data set will contain it exactly once.
#[derive(Debug)]
pub struct TrajectoryAcknowledged<'a> {
    pub of: &'a TrajectoryAncestry,
    /// Fencing token of the call.
    pub token: u64,
    pub end: EndKind,
    pub steps: u32,
    /// Where its time went, until its end was reported.
    pub timing: &'a TimeSplit,
    /// From the report to this acknowledgement.
    pub report_micros: u64,
}

/// The worker gave up a trajectory without an acknowledged end: another worker has its lease, or
/// the coordinator is gone.
#[derive(Debug)]
pub struct TrajectoryAbandoned<'a> {
    pub of: &'a TrajectoryAncestry,
    /// Fencing token of the lost lease.
    pub token: u64,
    /// Where its time went.
    pub timing: &'a TimeSplit,
    /// Why, in a sentence.
    pub reason: &'a str,
}

/// The browser was tested on a page, a dialog, a crash and a screenshot before any work was
/// accepted.
#[derive(Debug)]
pub struct ChromiumSelfTest<'a> {
    /// Product and version, if the browser reported them.
    pub product: &'a str,
    /// Whether the renderer's sandbox is on.
    pub sandbox: bool,
    /// How far browsers are shut off from the machine: `basic`, `namespaces` or `full`.
    pub walls: &'a str,
    /// Time the test took.
    pub micros: u64,
    /// What failed; the worker then does not register.
    pub problem: Option<&'a str>,
}

/// A browser runs and answers.
#[derive(Debug)]
pub struct BrowserStarted<'a> {
    /// Its name in this worker.
    pub browser: &'a str,
    pub pid: u32,
    pub product: &'a str,
    /// Time from starting the process to the first answer.
    pub micros: u64,
}

/// A browser was stopped on purpose, and its processes are gone.
#[derive(Debug)]
pub struct BrowserStopped<'a> {
    /// Its name in this worker.
    pub browser: &'a str,
    pub pid: u32,
}

/// A running browser was lost, and every trajectory in it.
#[derive(Debug)]
pub struct BrowserDied<'a> {
    /// Its name in this worker.
    pub browser: &'a str,
    pub pid: u32,
    pub death: BrowserDeath,
    pub detail: &'a str,
}

/// A browser exceeded a limit and its largest process was ended: a page, or the browser itself if
/// no page caused it.
#[derive(Debug)]
pub struct BrowserOverLimit<'a> {
    /// Its name in this worker.
    pub browser: &'a str,
    /// The process that was ended.
    pub pid: u32,
    pub limit: BrowserLimit,
    /// Use of all processes of the browser, in bytes or threads.
    pub used: u64,
    pub most: u64,
    /// Whether the whole browser was ended.
    pub whole: bool,
}

/// Too little memory is available for another trajectory: the worker starts none, and the cause of
/// its idle slots is admission.
#[derive(Debug)]
pub struct MemoryShort {
    /// Memory available to this process.
    pub available_bytes: u64,
    /// Memory that must stay available.
    pub reserve_bytes: u64,
    /// Number of running trajectories, which continue.
    pub in_hand: u64,
}

/// Enough memory is available again, and the worker starts trajectories.
#[derive(Debug)]
pub struct MemoryEased {
    /// Memory available to this process.
    pub available_bytes: u64,
    pub micros: u64,
}

/// The process of a page died.
#[derive(Debug)]
pub struct PageCrashed<'a> {
    pub of: &'a TrajectoryAncestry,
    /// The step it was in.
    pub step: u32,
}

/// A page stopped answering and its script was stopped.
#[derive(Debug)]
pub struct PageHung<'a> {
    pub of: &'a TrajectoryAncestry,
    /// The step it was in.
    pub step: u32,
    /// What did not come, such as `screenshot`.
    pub waited_for: &'static str,
}

/// A page opened a dialog, which was dismissed.
#[derive(Debug)]
pub struct DialogDismissed<'a> {
    pub of: &'a TrajectoryAncestry,
}

/// A page opened more tabs than allowed; one was closed.
#[derive(Debug)]
pub struct PopupClosed<'a> {
    pub of: &'a TrajectoryAncestry,
}

/// A page started a download, which was denied.
#[derive(Debug)]
pub struct DownloadDenied<'a> {
    pub of: &'a TrajectoryAncestry,
}

/// A request of a page was refused by the filter.
#[derive(Debug)]
pub struct RequestBlocked<'a> {
    /// The trajectory, if the filter knows it.
    pub of: Option<&'a TrajectoryAncestry>,
    /// The host asked for.
    pub host: &'a str,
    pub reason: BlockReason,
}

impl TrajectoryStarted<'_> {
    pub fn emit(self) {
        let Self { of, token, worker, browser } = self;
        log_event!(info, TRAJECTORY_STARTED, of, "trajectory started", token, worker, browser);
    }
}

impl StepAcknowledged<'_> {
    pub fn emit(self) {
        otel::trace(&self);
        let outcome = self.outcome.as_str();
        let micros = self.timing.total();
        let Self { of, step, token, .. } = self;
        log_event!(info, STEP_ACKNOWLEDGED, of, "step acknowledged", step, token, outcome, micros);
        let figures = process_metrics();
        figures.env_steps.add(1);
        figures.outcomes.at(self.outcome).add(1);
        figures.step_micros.record(micros);
        figures.screenshot_bytes.add(self.screenshot_bytes);
    }
}

impl TrajectoryAcknowledged<'_> {
    pub fn emit(self) {
        otel::trace(&self);
        let end = self.end.as_str();
        let micros = self.timing.total();
        let Self { of, token, steps, .. } = self;
        log_event!(info, TRAJECTORY_ACKNOWLEDGED, of, "trajectory acknowledged", token, end, steps, micros);
        process_metrics().env_trajectories.add(1);
    }
}

impl TrajectoryAbandoned<'_> {
    pub fn emit(self) {
        otel::trace(&self);
        let token = self.token;
        let reason = cut(self.reason);
        log_event!(warn, TRAJECTORY_ABANDONED, self.of, "trajectory abandoned", token, reason);
        process_metrics().env_abandoned.add(1);
    }
}

impl ChromiumSelfTest<'_> {
    pub fn emit(self) {
        let event = event::CHROMIUM_SELF_TEST;
        let passed = self.problem.is_none();
        let Self { product, sandbox, walls, micros, problem } = self;
        match passed {
            true => info!(event, product, sandbox, walls, micros, passed, "browser self-test passed"),
            false => {
                warn!(event, product, sandbox, walls, micros, passed, problem, "browser self-test failed");
            }
        }
    }
}

impl BrowserStarted<'_> {
    pub fn emit(self) {
        let Self { browser, pid, product, micros } = self;
        info!(event = event::BROWSER_STARTED, browser, pid, product, micros, "browser started");
        process_metrics().browsers_started.add(1);
        process_metrics().browsers.add(1);
    }
}

impl BrowserStopped<'_> {
    pub fn emit(self) {
        info!(event = event::BROWSER_STOPPED, browser = self.browser, pid = self.pid, "browser stopped");
        process_metrics().browsers.add(-1);
    }
}

impl BrowserDied<'_> {
    /// Logs and counts. A browser that failed to start ([`BrowserDeath::StartFailed`]) did not
    /// count as running.
    pub fn emit(self) {
        let death = self.death.value();
        let detail = cut(self.detail);
        let Self { browser, pid, .. } = self;
        warn!(event = event::BROWSER_DIED, browser, pid, death, detail, "browser died");
        process_metrics().browsers_died.at(self.death).add(1);
        if self.death != BrowserDeath::StartFailed {
            process_metrics().browsers.add(-1);
        }
    }
}

impl BrowserOverLimit<'_> {
    pub fn emit(self) {
        let event = event::BROWSER_OVER_LIMIT;
        let limit = self.limit.value();
        let Self { browser, pid, used, most, whole, .. } = self;
        warn!(event, browser, pid, limit, used, most, whole, "browser over its limit");
        process_metrics().over_limit.at(self.limit).add(1);
    }
}

impl MemoryShort {
    /// Logs. The slots' time account counts how long it lasts.
    pub fn emit(self) {
        let Self { available_bytes, reserve_bytes, in_hand } = self;
        warn!(
            event = event::MEMORY_SHORT,
            available_bytes,
            reserve_bytes,
            in_hand,
            "memory is short: no trajectory starts until more is available (env.memory_reserve_bytes)"
        );
    }
}

impl MemoryEased {
    pub fn emit(self) {
        let Self { available_bytes, micros } = self;
        info!(event = event::MEMORY_EASED, available_bytes, micros, "memory is available again");
    }
}

impl PageCrashed<'_> {
    pub fn emit(self) {
        log_event!(warn, PAGE_CRASHED, self.of, "page crashed", step = self.step);
        process_metrics().pages_crashed.add(1);
    }
}

impl PageHung<'_> {
    pub fn emit(self) {
        let Self { of, step, waited_for } = self;
        log_event!(warn, PAGE_HUNG, of, "page hung", step, waited_for);
        process_metrics().pages_hung.add(1);
    }
}

impl DialogDismissed<'_> {
    pub fn emit(self) {
        log_event!(debug, DIALOG_DISMISSED, self.of, "dialog dismissed");
        process_metrics().dialogs_dismissed.add(1);
    }
}

impl PopupClosed<'_> {
    pub fn emit(self) {
        log_event!(debug, POPUP_CLOSED, self.of, "popup closed");
        process_metrics().popups_closed.add(1);
    }
}

impl DownloadDenied<'_> {
    pub fn emit(self) {
        log_event!(debug, DOWNLOAD_DENIED, self.of, "download denied");
        process_metrics().downloads_denied.add(1);
    }
}

impl RequestBlocked<'_> {
    pub fn emit(self) {
        let host = cut(self.host);
        let reason = self.reason.value();
        match self.of {
            Some(of) => log_event!(debug, REQUEST_BLOCKED, of, "request blocked", host, reason),
            None => tracing::debug!(event = event::REQUEST_BLOCKED, host, reason, "request blocked"),
        }
        process_metrics().requests_blocked.at(self.reason).add(1);
    }
}
