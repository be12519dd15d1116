//! Page time that stands still while the policy thinks.

use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::emulation::{
    EventVirtualTimeBudgetExpired, SetVirtualTimePolicyParams, VirtualTimePolicy,
};
use futures::StreamExt;

use super::tab::{Tab, listen};
use crate::stage::StageError;

/// Stops the page's clock.
pub(super) async fn stop(tab: &Tab) -> Result<(), StageError> {
    let pause = SetVirtualTimePolicyParams::new(VirtualTimePolicy::Pause);
    tab.call(pause, tab.deadlines.input, "stopping the page's clock").await.map(drop)
}

/// Lets the page's clock run free, as fast as there is work.
pub(super) async fn release(tab: &Tab) -> Result<(), StageError> {
    let run = SetVirtualTimePolicyParams::new(VirtualTimePolicy::Advance);
    tab.call(run, tab.deadlines.input, "releasing the page's clock").await.map(drop)
}

/// Lets so much page time pass, then stops the clock again. Timers of that time have fired when this returns.
pub(super) async fn advance(tab: &Tab, millis: u32) -> Result<(), StageError> {
    let mut expired = listen::<EventVirtualTimeBudgetExpired>(&tab.page).await?;
    let mut grant = SetVirtualTimePolicyParams::new(VirtualTimePolicy::Advance);
    grant.budget = Some(f64::from(millis));
    tab.call(grant, tab.deadlines.input, "moving the page's clock").await?;
    // 60 s of page time took 13 ms; a page that loops inside it is a page that hangs.
    let deadline = tab.deadlines.screenshot.max(Duration::from_millis(u64::from(millis)));
    tab.hear(expired.next(), deadline, "page time to pass").await.map(drop)
}
