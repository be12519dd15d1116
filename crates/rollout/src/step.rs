//! One step: what was seen, what was said, what came of it.

use crate::{Observation, Reply, TimeSplit, Trace};

/// A closed set of things that can come of an action. Page text never becomes a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutcomeName {
    /// The action was carried out.
    Ok,
    /// The reply held no action; nothing was done.
    InvalidAction,
    /// The point lies outside the page.
    OutsidePage,
    /// An option of a native select list was chosen.
    OptionChosen,
    /// There is no such tab.
    NoSuchTab,
    /// There is no page to go back to.
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
    /// The page did not settle before the cap.
    NotSettled,
    /// The page stopped answering; its script was stopped.
    PageHang,
    /// The page's process died.
    PageCrash,
    /// The browser died.
    BrowserDead,
    /// The answer was given.
    Answered,
}

/// What came of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// One of a closed set.
    pub name: OutcomeName,
    /// One plain sentence for people and prompts; empty when the name says it all. At most 500 characters.
    pub detail: String,
}

/// One row of `steps`.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRecord {
    /// Counted from 0.
    pub step: u32,
    /// State before the action.
    pub observation: Observation,
    /// What the policy replied.
    pub reply: Reply,
    /// What came of it.
    pub outcome: Outcome,
    /// The policy's account.
    pub trace: Trace,
    /// Where the step's time went in the environment worker.
    pub timing: TimeSplit,
    /// Wall clock at the observation, microseconds since the Unix epoch (a column, never a decision).
    pub observed_at_micros: i64,
}

impl OutcomeName {
    /// All names.
    pub const ALL: [OutcomeName; 16] = [
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
        OutcomeName::NotSettled,
        OutcomeName::PageHang,
        OutcomeName::PageCrash,
        OutcomeName::BrowserDead,
        OutcomeName::Answered,
    ];

    /// The word in columns and on the wire.
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
            OutcomeName::NotSettled => "not_settled",
            OutcomeName::PageHang => "page_hang",
            OutcomeName::PageCrash => "page_crash",
            OutcomeName::BrowserDead => "browser_dead",
            OutcomeName::Answered => "answered",
        }
    }

    /// Reads the word back.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|name| name.as_str() == word)
    }
}

impl StepRecord {
    /// Recorded log-probs minus those of the prefill path, in nats, of the tokens that were scored again.
    pub fn prefill_gaps(&self) -> impl Iterator<Item = f64> {
        self.trace.prefill_gaps()
    }
}

impl Outcome {
    /// An outcome whose name says it all.
    pub fn named(name: OutcomeName) -> Self {
        Self { name, detail: String::new() }
    }

    /// An outcome with a sentence, cut to 500 characters.
    pub fn told(name: OutcomeName, detail: impl AsRef<str>) -> Self {
        Self { name, detail: detail.as_ref().chars().take(500).collect() }
    }
}
