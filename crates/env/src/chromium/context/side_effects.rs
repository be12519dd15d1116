//! Side effects of an action: dialogs, which the browser dismissed, windows, which it closed,
//! downloads and file choosers, which it denied unless the task allows them.

use furrow_rollout::{Outcome, OutcomeName, TrajectoryAncestry};
use furrow_telemetry::{DialogDismissed, DownloadDenied};

use super::files::ContextFiles;
use super::tabs::ContextTabs;
use crate::chromium::tab::BrowserTab;

pub(super) struct SideEffects {
    of: TrajectoryAncestry,
    tabs_max: u32,
    dialogs_reported: u32,
    downloads_reported: u32,
    choosers_reported: u32,
}

impl SideEffects {
    pub(super) fn new(of: TrajectoryAncestry, tabs_max: u32) -> Self {
        Self { of, tabs_max, dialogs_reported: 0, downloads_reported: 0, choosers_reported: 0 }
    }

    /// Reports side effects of an action, which tell the policy more than that the action was
    /// executed. Each dialog, download, chooser and window is counted; one of them is reported.
    /// `chosen` is the file that was chosen for a policy that cannot name it.
    pub(super) fn report(
        &mut self,
        tabs: &mut ContextTabs,
        files: &mut ContextFiles,
        chosen: Option<String>,
        outcome: Outcome,
    ) -> Outcome {
        let dialog = self.dialog(tabs);
        let download = self.download(tabs, files);
        let chooser = self.chooser(tabs, files, chosen);
        let popups = self.popups(tabs);
        match outcome.name {
            OutcomeName::Ok => dialog.or(download).or(chooser).or(popups).unwrap_or(outcome),
            _ => outcome,
        }
    }

    fn dialog(&mut self, tabs: &ContextTabs) -> Option<Outcome> {
        let (dialogs, text) = tabs.sum(BrowserTab::dialogs);
        let new = dialogs.saturating_sub(std::mem::replace(&mut self.dialogs_reported, dialogs));
        (0..new).for_each(|_| DialogDismissed { of: &self.of }.emit());
        let detail = || format!("a dialog was dismissed: {text}");
        (new > 0).then(|| Outcome::with_detail(OutcomeName::DialogDismissed, detail()))
    }

    fn download(&mut self, tabs: &ContextTabs, files: &mut ContextFiles) -> Option<Outcome> {
        let (downloads, name) = tabs.sum(BrowserTab::downloads);
        let new = downloads.saturating_sub(std::mem::replace(&mut self.downloads_reported, downloads));
        if files.allows_downloads() {
            return files.download_outcome();
        }
        (0..new).for_each(|_| DownloadDenied { of: &self.of }.emit());
        let detail = || format!("the page offered the file {name:?}; no file is kept here");
        (new > 0).then(|| Outcome::with_detail(OutcomeName::DownloadDenied, detail()))
    }

    fn chooser(
        &mut self,
        tabs: &ContextTabs,
        files: &ContextFiles,
        chosen: Option<String>,
    ) -> Option<Outcome> {
        let (choosers, _) = tabs.sum(|tab| (tab.choosers_opened(), String::new()));
        let new = choosers.saturating_sub(std::mem::replace(&mut self.choosers_reported, choosers));
        match chosen {
            Some(name) => {
                let detail = format!("the page asked for a file and got {name:?}");
                Some(Outcome::with_detail(OutcomeName::Ok, detail))
            }
            None => (new > 0).then(|| files.chooser_outcome(tabs)),
        }
    }

    fn popups(&self, tabs: &mut ContextTabs) -> Option<Outcome> {
        let popups = tabs.take_popups_closed();
        let most = self.tabs_max;
        let detail = || format!("{popups} tabs were closed; at most {most} stay open");
        (popups > 0).then(|| Outcome::with_detail(OutcomeName::PopupClosed, detail()))
    }
}
