//! Page time: it stands still while the policy thinks, and passes only in grants that end by themselves.
//!
//! A clock that runs free does not run at the pace of the wall: it leaps from timer to timer, 60 s in 13 ms, and through any time limit of a page in
//! one step. So nothing here lets it run free, and no grant is without an end: Chromium takes a budget of 0 for none at all.

use std::num::NonZeroU32;
use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::emulation::{
    EventVirtualTimeBudgetExpired, SetVirtualTimePolicyParams, VirtualTimePolicy,
};
use chromiumoxide::listeners::EventStream;
use futures::StreamExt;
use tokio::time::timeout;

use super::tab::{Tab, listen};
use crate::stage::StageError;

/// Least page time that holds a frame (17 ms), without which some input is never answered.
const FRAME_MILLIS: u32 = 17;

/// What a step is granted of page time, shared by the actions in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StepTime {
    share_millis: u32,
    left_millis: u32,
}

impl StepTime {
    /// The time of a step with so many actions. Of several one share is left for what comes of the last.
    pub fn new(step_millis: u32, actions: usize) -> Self {
        let shares = match u32::try_from(actions).unwrap_or(u32::MAX) {
            0 | 1 => 1,
            several => several.saturating_add(1),
        };
        Self { share_millis: (step_millis / shares).max(FRAME_MILLIS), left_millis: step_millis }
    }

    /// Takes the share of one action, for what happens while it is carried out.
    pub fn take_share(&mut self) -> u32 {
        self.left_millis = self.left_millis.saturating_sub(self.share_millis);
        self.share_millis
    }

    /// Takes what no action used, for what happens after them.
    pub fn take_rest(&mut self) -> u32 {
        std::mem::take(&mut self.left_millis)
    }
}

/// Stops the page's clock, whatever is left of a grant.
pub(super) async fn stop(tab: &Tab) -> Result<(), StageError> {
    let pause = SetVirtualTimePolicyParams::new(VirtualTimePolicy::Pause);
    tab.call(pause, tab.deadlines.input, "stopping the page's clock").await?;
    tab.leave_clock_stopped();
    Ok(())
}

/// Lets so much page time pass, then stops the clock again. Timers of that time have fired when this returns.
pub(super) async fn advance(tab: &Tab, millis: u32) -> Result<(), StageError> {
    let Some(millis) = NonZeroU32::new(millis) else { return Ok(()) };
    let mut expired = grant(tab, VirtualTimePolicy::Advance, millis).await?;
    // 60 s of page time took 13 ms; a page that loops inside it is a page that hangs.
    let deadline = tab.deadlines.screenshot.max(Duration::from_millis(u64::from(millis.get())));
    tab.hear(expired.next(), deadline, "page time to pass").await.map(drop)
}

/// The same for a document that is loading: its time stands still while it waits for the network. Whether it is over before `patience` is; a
/// document whose requests are never answered has time left then.
pub(super) async fn advance_loading(tab: &Tab, millis: u32, patience: Duration) -> Result<bool, StageError> {
    let Some(millis) = NonZeroU32::new(millis) else { return Ok(true) };
    let mut expired = grant(tab, VirtualTimePolicy::PauseIfNetworkFetchesPending, millis).await?;
    let heard = tab.hear(expired.next(), tab.deadlines.navigation, "page time to pass");
    match timeout(patience, heard).await {
        Ok(heard) => heard.map(|_| true),
        Err(_) => Ok(false),
    }
}

async fn grant(
    tab: &Tab,
    policy: VirtualTimePolicy,
    millis: NonZeroU32,
) -> Result<EventStream<EventVirtualTimeBudgetExpired>, StageError> {
    let expired = listen(&tab.page).await?;
    let mut grant = SetVirtualTimePolicyParams::new(policy);
    grant.budget = Some(f64::from(millis.get()));
    tab.call(grant, tab.deadlines.input, "moving the page's clock").await?;
    tab.leave_clock_stopped();
    Ok(expired)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes the shares of `using` of so many actions, then the rest.
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
        // A share holds a frame, though the step has none.
        check(20, 4, 2, &[17, 17], 0);
        check(0, 1, 1, &[17], 0);
    }
}
