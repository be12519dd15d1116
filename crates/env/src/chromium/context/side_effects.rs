//! Side effects of an action: dialogs, downloads and windows, which the browser dismissed, denied
//! and closed.

use furrow_rollout::{Outcome, OutcomeName, TrajectoryAncestry};
use furrow_telemetry::{DialogDismissed, DownloadDenied};

use super::tabs::ContextTabs;
use crate::chromium::tab::BrowserTab;

pub(super) struct SideEffects {
    of: TrajectoryAncestry,
    tabs_max: u32,
    dialogs_reported: u32,
    downloads_reported: u32,
}

impl SideEffects {
    pub fn new(of: TrajectoryAncestry, tabs_max: u32) -> Self {
        Self { of, tabs_max, dialogs_reported: 0, downloads_reported: 0 }
    }

    /// Reports side effects of an action, which tell the policy more than that the action was
    /// executed. Each dialog, download and window is counted; one of them is reported.
    pub fn report(&mut self, tabs: &mut ContextTabs, outcome: Outcome) -> Outcome {
        let (dialogs, text) = tabs.sum(BrowserTab::dialogs);
        let (downloads, name) = tabs.sum(BrowserTab::downloads);
        let new_dialogs = dialogs.saturating_sub(std::mem::replace(&mut self.dialogs_reported, dialogs));
        let new_downloads =
            downloads.saturating_sub(std::mem::replace(&mut self.downloads_reported, downloads));
        let popups = tabs.take_popups_closed();
        (0..new_dialogs).for_each(|_| DialogDismissed { of: &self.of }.emit());
        (0..new_downloads).for_each(|_| DownloadDenied { of: &self.of }.emit());
        match (new_dialogs, new_downloads, popups) {
            _ if outcome.name != OutcomeName::Ok => outcome,
            (0, 0, 0) => outcome,
            (0, 0, popups) => {
                let most = self.tabs_max;
                let detail = format!("{popups} tabs were closed; at most {most} stay open");
                Outcome::with_detail(OutcomeName::PopupClosed, detail)
            }
            (0, _, _) => Outcome::with_detail(
                OutcomeName::DownloadDenied,
                format!("the page offered the file {name:?}; no file is kept here"),
            ),
            _ => {
                Outcome::with_detail(OutcomeName::DialogDismissed, format!("a dialog was dismissed: {text}"))
            }
        }
    }
}
