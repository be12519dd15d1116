//! Page time: it stands still while the policy computes, and passes only in grants of a fixed
//! length.
//!
//! A free-running virtual clock does not follow the wall clock: it jumps from timer to timer, 60 s
//! in 13 ms, and through any time limit of a page in one step. Therefore the clock never runs free
//! here, and every grant has an end: Chromium takes a budget of 0 for an unlimited one.

use std::num::NonZeroU32;
use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::emulation::{
    EventVirtualTimeBudgetExpired, SetVirtualTimePolicyParams, VirtualTimePolicy,
};
use chromiumoxide::listeners::EventStream;
use futures::StreamExt;
use tokio::time::timeout;

use super::link::listen;
use super::tab::BrowserTab;
use crate::environment::EnvironmentError;

/// Least page time that contains a frame (17 ms); without a frame, some input is never answered.
const FRAME_MILLIS: u32 = 17;

/// The page time of a step, shared by the actions in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StepTime {
    share_millis: u32,
    left_millis: u32,
}

impl StepTime {
    /// The page time of a step with this many actions. With several actions, one share remains for
    /// the time after the last one.
    pub(super) fn new(step_millis: u32, actions: usize) -> Self {
        let shares = match u32::try_from(actions).unwrap_or(u32::MAX) {
            0 | 1 => 1,
            several => several.saturating_add(1),
        };
        Self { share_millis: (step_millis / shares).max(FRAME_MILLIS), left_millis: step_millis }
    }

    /// Takes the share of one action, to grant while the action is executed.
    pub(super) fn take_share(&mut self) -> u32 {
        self.left_millis = self.left_millis.saturating_sub(self.share_millis);
        self.share_millis
    }

    /// Takes what the actions left, to grant after them.
    pub(super) fn take_rest(&mut self) -> u32 {
        std::mem::take(&mut self.left_millis)
    }
}

/// Stops the page's clock and drops the rest of a grant.
pub(super) async fn stop(tab: &BrowserTab) -> Result<(), EnvironmentError> {
    let pause = SetVirtualTimePolicyParams::new(VirtualTimePolicy::Pause);
    tab.call(pause, tab.deadlines.input, "stopping the page's clock").await?;
    tab.mark_clock_stopped();
    Ok(())
}

/// Lets `millis` of page time pass, then stops the clock again. Timers of that time have fired when
/// this returns.
pub(super) async fn advance(tab: &BrowserTab, millis: u32) -> Result<(), EnvironmentError> {
    let Some(millis) = NonZeroU32::new(millis) else { return Ok(()) };
    let mut expired = grant(tab, VirtualTimePolicy::Advance, millis).await?;
    // 60 s of page time took 13 ms; a page that exceeds this deadline hangs.
    let deadline = tab.deadlines.screenshot.max(Duration::from_millis(u64::from(millis.get())));
    tab.wait_event(expired.next(), deadline, "page time to pass").await.map(drop)
}

/// The same for a document that is loading: its time stands still while it waits for the network.
/// Returns whether the grant ended before `load_timeout`; a document whose requests are never
/// answered has time left then.
pub(super) async fn advance_loading(
    tab: &BrowserTab,
    millis: u32,
    load_timeout: Duration,
) -> Result<bool, EnvironmentError> {
    let Some(millis) = NonZeroU32::new(millis) else { return Ok(true) };
    let mut expired = grant(tab, VirtualTimePolicy::PauseIfNetworkFetchesPending, millis).await?;
    let heard = tab.wait_event(expired.next(), tab.deadlines.navigation, "page time to pass");
    match timeout(load_timeout, heard).await {
        Ok(heard) => heard.map(|_| true),
        Err(_) => Ok(false),
    }
}

async fn grant(
    tab: &BrowserTab,
    policy: VirtualTimePolicy,
    millis: NonZeroU32,
) -> Result<EventStream<EventVirtualTimeBudgetExpired>, EnvironmentError> {
    let expired = listen(&tab.page).await?;
    let mut grant = SetVirtualTimePolicyParams::new(policy);
    grant.budget = Some(f64::from(millis.get()));
    tab.call(grant, tab.deadlines.input, "moving the page's clock").await?;
    tab.mark_clock_stopped();
    Ok(expired)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes the shares of `using` of `actions` actions, then the rest.
    #[track_caller]
    fn check(step_millis: u32, actions: usize, using: usize, shares: &[u32], rest: u32) {
        let mut time = StepTime::new(step_millis, actions);
        let took: Vec<u32> = (0..using).map(|_| time.take_share()).collect();
        assert_eq!(
            (took.as_slice(), time.take_rest()),
            (shares, rest),
            "{using} of {actions} in {step_millis} ms"
        );
        assert_eq!(time.take_rest(), 0, "the rest is taken once");
    }

    #[test]
    fn the_actions_of_a_step_share_its_time() {
        check(1000, 1, 0, &[], 1000);
        check(1000, 1, 1, &[1000], 0);
        check(1000, 2, 1, &[333], 667);
        check(1000, 3, 3, &[250, 250, 250], 250);
        check(1000, 0, 0, &[], 1000);
        // A share contains a frame, even if the step's time does not.
        check(20, 4, 2, &[17, 17], 0);
        check(0, 1, 1, &[17], 0);
    }
}
