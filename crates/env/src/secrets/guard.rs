//! An environment whose texts have placeholders in place of the values of secrets.

use std::borrow::Cow;

use async_trait::async_trait;
use bytes::Bytes;
use furrow_rollout::{
    Action, ActionHint, DownloadReport, DownloadedFile, Evidence, Observation, Outcome, TabInfo,
};
use sha2::{Digest, Sha256};

use super::TrajectorySecrets;
use super::scrub::Scrubber;
use crate::environment::{Environment, EnvironmentError, PageError};

/// Replaces values in everything that an environment returns. Pictures are the environment's own
/// concern, and what a policy wrote passes unchanged.
pub(crate) struct SecretGuard {
    inner: Box<dyn Environment>,
    secrets: TrajectorySecrets,
}

impl SecretGuard {
    pub(crate) fn new(inner: Box<dyn Environment>, secrets: TrajectorySecrets) -> Self {
        Self { inner, secrets }
    }

    fn text(&self, text: String) -> String {
        self.secrets.scrubber().owned(text)
    }

    fn error(&self, error: EnvironmentError) -> EnvironmentError {
        scrubbed_error(self.secrets.scrubber(), error)
    }

    fn outcome(&self, outcome: Outcome) -> Outcome {
        Outcome { detail: self.text(outcome.detail), ..outcome }
    }

    fn json(&self, json: Option<String>) -> Option<String> {
        json.map(|json| self.secrets.scrubber().json(json))
    }

    fn scrubbed_observation(&self, observation: Observation) -> Observation {
        let tab = |tab: TabInfo| TabInfo { title: self.text(tab.title), url: self.text(tab.url), ..tab };
        let marks = observation.marks.map(|mut marks| {
            for mark in &mut marks {
                mark.role = self.text(std::mem::take(&mut mark.role));
                mark.text = self.text(std::mem::take(&mut mark.text));
            }
            marks
        });
        Observation {
            url: self.text(observation.url),
            title: self.text(observation.title),
            tabs: observation.tabs.into_iter().map(tab).collect(),
            axtree: observation.axtree.map(|text| self.text(text)),
            marks,
            ..observation
        }
    }

    fn scrubbed_evidence(&self, evidence: Evidence) -> Evidence {
        Evidence {
            url: evidence.url.map(|text| self.text(text)),
            title: evidence.title.map(|text| self.text(text)),
            probe_json: self.json(evidence.probe_json),
            findings_json: self.json(evidence.findings_json),
            ..evidence
        }
    }

    /// A file with a value in it is reported as if it had been written with the placeholder.
    fn file(&self, file: DownloadedFile) -> DownloadedFile {
        let name = self.text(file.name);
        let scrubbed =
            file.content.as_ref().and_then(|content| match self.secrets.scrubber().bytes(content) {
                Cow::Owned(scrubbed) => Some(Bytes::from(scrubbed)),
                Cow::Borrowed(_) => None,
            });
        let Some(content) = scrubbed else { return DownloadedFile { name, ..file } };
        let sha256 = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
        DownloadedFile { name, bytes: content.len() as u64, sha256, content: Some(content) }
    }
}

/// An error with placeholders in place of values.
pub(crate) fn scrubbed_error(scrubber: &Scrubber, error: EnvironmentError) -> EnvironmentError {
    match error {
        EnvironmentError::Blocked(why) => EnvironmentError::Blocked(scrubber.owned(why)),
        EnvironmentError::Failed(why) => EnvironmentError::Failed(scrubber.owned(why)),
        other @ (EnvironmentError::PageHang { .. }
        | EnvironmentError::PageCrash
        | EnvironmentError::BrowserDead) => other,
    }
}

#[async_trait]
impl Environment for SecretGuard {
    fn browser(&self) -> &str {
        self.inner.browser()
    }

    async fn begin(&mut self) -> Result<Option<String>, EnvironmentError> {
        let goal = self.inner.begin().await.map_err(|error| self.error(error))?;
        Ok(goal.map(|goal| self.text(goal)))
    }

    async fn observe(&mut self) -> Result<Observation, EnvironmentError> {
        let observation = self.inner.observe().await.map_err(|error| self.error(error))?;
        Ok(self.scrubbed_observation(observation))
    }

    async fn hint(&mut self, goal: &str, step: u32) -> Result<Option<ActionHint>, EnvironmentError> {
        let hint = self.inner.hint(goal, step).await.map_err(|error| self.error(error))?;
        Ok(hint.map(|hint| ActionHint { json: self.secrets.scrubber().json(hint.json) }))
    }

    async fn act(&mut self, action: &Action) -> Result<Outcome, EnvironmentError> {
        let outcome = self.inner.act(action).await.map_err(|error| self.error(error))?;
        Ok(self.outcome(outcome))
    }

    async fn settle(&mut self, outcome: Outcome) -> Result<Outcome, EnvironmentError> {
        let outcome = self.inner.settle(outcome).await.map_err(|error| self.error(error))?;
        Ok(self.outcome(outcome))
    }

    async fn probe(&mut self) -> Result<Option<String>, EnvironmentError> {
        let report = self.inner.probe().await.map_err(|error| self.error(error))?;
        Ok(self.json(report))
    }

    async fn evidence(&mut self) -> Option<Evidence> {
        let evidence = self.inner.evidence().await?;
        Some(self.scrubbed_evidence(evidence))
    }

    async fn downloads(&mut self) -> Option<DownloadReport> {
        let report = self.inner.downloads().await?;
        Some(DownloadReport { files: report.files.into_iter().map(|file| self.file(file)).collect() })
    }

    fn unrecorded(&mut self) -> Vec<String> {
        let requests = self.inner.unrecorded();
        requests.into_iter().map(|request| self.text(request)).collect()
    }

    async fn page_errors(&mut self) -> Vec<PageError> {
        let errors = self.inner.page_errors().await;
        let scrubbed = |error: PageError| PageError {
            kind: error.kind,
            location: error.location.map(|location| self.text(location)),
            text: self.text(error.text),
        };
        errors.into_iter().map(scrubbed).collect()
    }

    fn death_cause(&self) -> Option<String> {
        self.inner.death_cause().map(|cause| self.text(cause))
    }

    async fn close(self: Box<Self>) {
        self.inner.close().await;
    }
}
