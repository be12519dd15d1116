//! Evidence: the final state of a page, which a scorer grades.

use furrow_rollout::{ErrorPage, Evidence, FaultOwner, Screenshot, Task, strip_graded};

use super::findings::{ContextChecks, FindingSource};
use super::grading::{self, GradedSite, GradingParts};
use super::tabs::ContextTabs;
use crate::chromium::conceal::{self, ConcealedPicture};
use crate::chromium::observe::current_entry;
use crate::chromium::tab::BrowserTab;
use crate::chromium::{clock, navigate, picture, script};
use crate::egress::EgressFilter;
use crate::environment::EnvironmentError;
use crate::secrets::Scrubber;

/// An address in evidence is cut to this length.
const URL_CHARS_MAX: usize = 2048;

/// What the evidence is gathered from.
pub(super) struct EvidenceSource<'a> {
    pub tabs: &'a ContextTabs,
    pub task: &'a Task,
    pub checks: &'a ContextChecks,
    pub egress: &'a EgressFilter,
    /// Whether the page's clock is under control.
    pub is_clock_stopped: bool,
    /// Whether the policy is responsible for where its page is.
    pub has_acted: bool,
    /// The site, where it is graded.
    pub graded: Option<(&'a GradedSite, &'a GradingParts)>,
    /// Values that must not be in its picture.
    pub scrubber: &'a Scrubber,
}

impl EvidenceSource<'_> {
    /// The evidence without an answer; `None` if the page cannot be observed any more.
    pub(super) async fn gather(&self) -> Option<Evidence> {
        let tab = self.tabs.active().ok()?;
        if tab.has_hung() {
            // Even if it still hangs: no caller should wait for another deadline to learn that.
            tab.stop_script().await.ok()?;
        }
        // The interruption of the step may have left some of its time, which must not pass while
        // evidence is gathered.
        if self.is_clock_stopped && clock::stop(tab).await.is_err() {
            // A page that is being left answers when the navigation is stopped; one that loops
            // answers when its script is stopped.
            navigate::stop_loading(tab).await.ok()?;
            tab.stop_script().await.ok()?;
            clock::stop(tab).await.ok()?;
        }
        let mut captured = self.picture(tab).await;
        if matches!(captured, Err(EnvironmentError::PageHang { .. })) {
            tab.stop_script().await.ok()?;
            navigate::ensure_content(tab).await.ok()?;
            captured = self.picture(tab).await;
        }
        let entry = current_entry(tab).await.ok()?;
        let screenshot = captured.ok()?.bytes;
        let findings_json = self.findings().await.ok()?;
        let probe_json = match self.graded {
            // The last of all, because it may leave the page.
            Some((site, parts)) => self.grade(site, parts).await,
            None => self.probe_page().await,
        };
        Some(Evidence {
            screenshot: Some(screenshot),
            url: Some(entry.url),
            title: Some(entry.title),
            answer: None,
            probe_json,
            findings_json,
        })
    }

    /// What the page in front reports of itself, or why it cannot.
    async fn probe_page(&self) -> Option<String> {
        let reported = probe(self.tabs, self.task).await.ok().flatten();
        if reported.as_deref().is_some_and(|json| !reports_error_page(json)) {
            return reported;
        }
        match self.error_page().await {
            Some(page) => Some(page.report()),
            None => reported,
        }
    }

    /// `None` gives no verdict: whatever a policy does to its page, the site can be asked.
    async fn grade(&self, site: &GradedSite, parts: &GradingParts) -> Option<String> {
        let graded = grading::grade(site, self.tabs, self.task, parts).await;
        let report = |why: &EnvironmentError| tracing::warn!(task = self.task.task_id, %why, "no report");
        graded.inspect_err(report).ok()
    }

    async fn picture(&self, tab: &BrowserTab) -> Result<Screenshot, EnvironmentError> {
        let Task { observation, viewport, .. } = self.task;
        let take = || picture::screenshot(tab, observation, *viewport);
        match conceal::picture(tab, self.scrubber, take).await? {
            ConcealedPicture::Shown(picture) => Ok(picture),
            ConcealedPicture::Withheld(why) => {
                tracing::warn!(task = self.task.task_id, why, "the final screenshot is withheld");
                picture::grey(observation, *viewport)
            }
        }
    }

    /// What the scorer looks up; an error says that the page died meanwhile.
    async fn findings(&self) -> Result<Option<String>, EnvironmentError> {
        if self.checks.queries.is_empty() {
            return Ok(None);
        }
        let source = FindingSource { tab: self.tabs.active()?, task: self.task, checks: self.checks };
        source.gather().await.map(Some)
    }

    /// The browser's error page, if it is in front, and who caused it.
    async fn error_page(&self) -> Option<ErrorPage> {
        let url = navigate::unreachable_url(self.tabs.active().ok()?).await.ok().flatten()?;
        let fault = match self.has_acted && self.egress.is_answering(&url).await {
            true => FaultOwner::Policy,
            false => FaultOwner::Farm,
        };
        Some(ErrorPage { fault, url: url.chars().take(URL_CHARS_MAX).collect() })
    }
}

/// Whether a script of the farm's own pages still runs, after a deadline has passed. A page that is
/// only slow, on a machine with too much to do, answers when it is asked once more.
pub(super) async fn has_looping_script(tabs: &ContextTabs, egress: &EgressFilter) -> bool {
    let Ok(tab) = tabs.active() else { return false };
    let Ok(entry) = current_entry(tab).await else { return false };
    if !egress.serves(&entry.url) || tab.answers().await {
        return false;
    }
    // Whether anything can be seen of the page now, the evidence shows.
    tab.stop_script().await.is_ok()
}

/// The result of the suite's probe; `None` if there is no probe.
pub(super) async fn probe(tabs: &ContextTabs, task: &Task) -> Result<Option<String>, EnvironmentError> {
    let Some(probe) = &task.hooks.probe else { return Ok(None) };
    let tab = tabs.active()?;
    let report = script::evaluate_in_page(tab, probe, tab.deadlines.input, "the probe").await?;
    Ok(Some(strip_graded(report.to_string())))
}

/// Whether a probe reports that it ran in an error page. Only the browser knows whether that is
/// true.
fn reports_error_page(json: &str) -> bool {
    serde_json::from_str(json).is_ok_and(|report| ErrorPage::is_reported(&report))
}
