//! Page time that stands still while the policy thinks.

use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::emulation::{
    EventVirtualTimeBudgetExpired, SetVirtualTimePolicyParams, VirtualTimePolicy,
};
use futures::StreamExt;

use super::tab::Tab;
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
    let lost = |error: chromiumoxide::error::CdpError| StageError::Failed(error.to_string());
    let mut expired = tab.page.event_listener::<EventVirtualTimeBudgetExpired>().await.map_err(lost)?;
    let mut grant = SetVirtualTimePolicyParams::new(VirtualTimePolicy::Advance);
    grant.budget = Some(f64::from(millis));
    tab.call(grant, tab.deadlines.input, "moving the page's clock").await?;
    // 60 s of page time took 13 ms; a page that loops inside it is a page that hangs.
    let deadline = tab.deadlines.screenshot.max(Duration::from_millis(u64::from(millis)));
    match tokio::time::timeout(deadline, expired.next()).await {
        Ok(Some(_)) if !tab.has_crashed() => Ok(()),
        Ok(_) => Err(StageError::PageCrash),
        Err(_) => Err(StageError::PageHang { waited_for: "page time to pass" }),
    }
}
