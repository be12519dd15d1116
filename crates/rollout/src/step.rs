//! One step: the observation, the reply and the outcome.

use crate::{Observation, PolicyReply, TimeSplit, Trace};

/// The closed set of outcomes of an action. Page text never becomes a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutcomeName {
    /// The action was carried out.
    Ok,
    /// The reply contained no action; nothing was done.
    InvalidAction,
    /// The point lies outside the page.
    OutsidePage,
    /// An option of a native select list was chosen.
    OptionChosen,
    /// The requested tab does not exist.
    NoSuchTab,
    /// The tab's history has no page to go to.
    NoHistory,
    /// The address did not load.
    NavigationFailed,
    /// The address is not on the task's list.
    OffList,
    /// The page opened a dialog, which was dismissed.
    DialogDismissed,
    /// The page opened more tabs than allowed; they were closed.
    PopupClosed,
    /// The page started a download, which was denied.
    DownloadDenied,
    /// The page started a download, which the task allows; the file is part of the evidence.
    Downloaded,
    /// The page opened a file chooser, which waits for an upload.
    FileChooser,
    /// The page opened a file chooser, but the task offers no file for it.
    UploadDenied,
    /// The page did not settle before the cap.
    NotSettled,
    /// The page stopped answering; its script was stopped.
    PageHang,
    /// The page's renderer process died.
    PageCrash,
    /// The browser's process died or was killed, and every page in it is lost.
    BrowserDead,
    /// The answer was given.
    Answered,
}

/// The outcome of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Name from the closed set.
    pub name: OutcomeName,
    /// One plain sentence for people and prompts, at most 500 characters; empty if the name is
    /// sufficient.
    pub detail: String,
}

/// One row of the table `steps`.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRecord {
    /// Number of the step, counted from 0.
    pub step: u32,
    /// State before the action.
    pub observation: Observation,
    /// What the policy wrote at this step, and the action that its grammar read from it.
    pub reply: PolicyReply,
    /// The outcome of the action.
    pub outcome: Outcome,
    /// The policy's token-level account of the step.
    pub trace: Trace,
    /// Where the step's time went in the environment worker.
    pub timing: TimeSplit,
    /// Wall clock at the observation, in microseconds since the Unix epoch. It is only recorded; no
    /// decision depends on it.
    pub observed_at_micros: i64,
}

impl OutcomeName {
    /// Every name in the order of declaration: `ALL[i] as usize` is `i`, which labels of metrics
    /// need.
    pub const ALL: [OutcomeName; 19] = [
        OutcomeName::Ok,
        OutcomeName::InvalidAction,
        OutcomeName::OutsidePage,
        OutcomeName::OptionChosen,
        OutcomeName::NoSuchTab,
        OutcomeName::NoHistory,
        OutcomeName::NavigationFailed,
        OutcomeName::OffList,
        OutcomeName::DialogDismissed,
        OutcomeName::PopupClosed,
        OutcomeName::DownloadDenied,
        OutcomeName::Downloaded,
        OutcomeName::FileChooser,
        OutcomeName::UploadDenied,
        OutcomeName::NotSettled,
        OutcomeName::PageHang,
        OutcomeName::PageCrash,
        OutcomeName::BrowserDead,
        OutcomeName::Answered,
    ];

    /// The name in columns and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            OutcomeName::Ok => "ok",
            OutcomeName::InvalidAction => "invalid_action",
            OutcomeName::OutsidePage => "outside_page",
            OutcomeName::OptionChosen => "option_chosen",
            OutcomeName::NoSuchTab => "no_such_tab",
            OutcomeName::NoHistory => "no_history",
            OutcomeName::NavigationFailed => "navigation_failed",
            OutcomeName::OffList => "off_list",
            OutcomeName::DialogDismissed => "dialog_dismissed",
            OutcomeName::PopupClosed => "popup_closed",
            OutcomeName::DownloadDenied => "download_denied",
            OutcomeName::Downloaded => "downloaded",
            OutcomeName::FileChooser => "file_chooser",
            OutcomeName::UploadDenied => "upload_denied",
            OutcomeName::NotSettled => "not_settled",
            OutcomeName::PageHang => "page_hang",
            OutcomeName::PageCrash => "page_crash",
            OutcomeName::BrowserDead => "browser_dead",
            OutcomeName::Answered => "answered",
        }
    }

    /// Parses what `as_str` returns.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|name| name.as_str() == text)
    }
}

impl StepRecord {
    /// Recorded log-probs minus those of the prefill path, in nats, for the tokens that the drift
    /// audit computed again.
    pub fn prefill_gaps(&self) -> impl Iterator<Item = f64> {
        self.trace.prefill_gaps()
    }
}

impl Outcome {
    /// An outcome without a detail.
    pub fn named(name: OutcomeName) -> Self {
        Self { name, detail: String::new() }
    }

    /// An outcome with a detail sentence, cut to 500 characters.
    pub fn with_detail(name: OutcomeName, detail: impl AsRef<str>) -> Self {
        Self { name, detail: detail.as_ref().chars().take(500).collect() }
    }
}
