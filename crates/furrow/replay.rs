//! Compares a recorded trajectory with its replay, step by step.

use furrow_env::{ReplayExpectation, ReplayedStep, ReplayedTrajectory};
use furrow_records::{DecodedPicture, PictureError};
use furrow_rollout::{
    EndKind, Evidence, FinalQuery, Finding, ImageFormat, Observation, Outcome, OutcomeName, Score,
    Screenshot, Size, StepRecord, TrajectoryRecord,
};
use furrow_tasks::{EndFacts, Scorer};
use serde::Serialize;

/// How much pictures may differ and still count as equal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PictureTolerance {
    /// Levels of 255 by which red, green or blue may be off before a pixel counts as different.
    pub levels: u8,
    /// Share of the pixels that may differ before the pictures count as different.
    pub share: f64,
}

/// One difference between record and replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ReplayDifference {
    /// The step, counted from 0; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<usize>,
    /// What differs: `url`, `title`, `tabs`, `pixels`, `outcome`, `unrecorded_request`, `goal`,
    /// `steps`, `end`, `answer`, `reward`, `success`, `stopped`.
    pub what: &'static str,
    pub recorded: String,
    pub replayed: String,
}

/// The result of one trajectory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ReplayResult {
    /// Id of the trajectory.
    pub trajectory_id: String,
    pub task: String,
    /// Source of its pages: `sites` or `archive`.
    pub from: &'static str,
    /// Whether the browser's build is the same.
    pub same_browser: bool,
    /// Number of recorded steps.
    pub steps: usize,
    /// Number of steps with pictures equal to the last bit; the others are within the tolerance or
    /// among the differences.
    pub identical_pictures: usize,
    pub reward: Option<f32>,
    pub differences: Vec<ReplayDifference>,
}

/// Compares a trajectory with its replay.
pub(crate) fn compare(
    record: &TrajectoryRecord,
    steps: &[StepRecord],
    replayed: &ReplayedTrajectory,
    from: &'static str,
    tolerance: PictureTolerance,
) -> ReplayResult {
    let mut comparison = ReplayComparison::new(tolerance);
    comparison.compare_trajectory(record, steps, replayed);
    let ReplayComparison { identical, differences, .. } = comparison;
    ReplayResult {
        trajectory_id: record.ancestry.trajectory_id.to_string(),
        task: format!("{}/{}", record.task.suite, record.task.task_id),
        from,
        same_browser: record.ending.environment.browser == replayed.environment.browser,
        steps: steps.len(),
        identical_pictures: identical,
        reward: record.score.as_ref().and_then(|score| score.reward),
        differences,
    }
}

/// The recorded look of a trajectory's pages, for a replay that waits until the pages match it.
pub(crate) struct RecordedPages<'a> {
    record: &'a TrajectoryRecord,
    steps: &'a [StepRecord],
    tolerance: PictureTolerance,
}

impl<'a> RecordedPages<'a> {
    /// The pages of a recorded trajectory.
    pub(crate) fn new(
        record: &'a TrajectoryRecord,
        steps: &'a [StepRecord],
        tolerance: PictureTolerance,
    ) -> Self {
        Self { record, steps, tolerance }
    }

    fn matches(&self, look: impl FnOnce(&mut ReplayComparison)) -> bool {
        let mut comparison = ReplayComparison::new(self.tolerance);
        look(&mut comparison);
        comparison.differences.is_empty()
    }
}

impl ReplayExpectation for RecordedPages<'_> {
    fn matches_before_step(&self, step: usize, observation: &Observation) -> bool {
        let Some(then) = self.steps.get(step) else { return true };
        self.matches(|comparison| comparison.compare_observation(&then.observation, observation))
    }

    fn matches_at_end(&self, evidence: &Evidence) -> bool {
        let Some(then) = &self.record.ending.evidence else { return true };
        self.matches(|comparison| comparison.compare_final_page(then, evidence, self.record))
    }
}

struct ReplayComparison {
    tolerance: PictureTolerance,
    /// The step being compared; `None` at the end.
    step: Option<usize>,
    identical: usize,
    differences: Vec<ReplayDifference>,
}

impl ReplayComparison {
    fn new(tolerance: PictureTolerance) -> Self {
        Self { tolerance, step: None, identical: 0, differences: Vec::new() }
    }

    fn compare_trajectory(
        &mut self,
        record: &TrajectoryRecord,
        steps: &[StepRecord],
        replayed: &ReplayedTrajectory,
    ) {
        if let Some(goal) = &replayed.goal {
            self.compare_text("goal", &record.ending.goal, goal);
        }
        for (at, (then, now)) in steps.iter().zip(&replayed.steps).enumerate() {
            self.step = Some(at);
            self.compare_step(then, now);
        }
        self.step = None;
        self.add_unrecorded_requests(&replayed.unrecorded);
        if let Some(why) = &replayed.stopped {
            self.add_difference("stopped", "", why);
            return;
        }
        self.compare_text("steps", &steps.len().to_string(), &replayed.steps.len().to_string());
        let end = self.compare_end(record.ending.end, replayed.end);
        self.compare_evidence(record, replayed);
        self.compare_score(record, replayed, end);
    }

    fn compare_step(&mut self, then: &StepRecord, now: &ReplayedStep) {
        self.compare_observation(&then.observation, &now.observation);
        // A busy machine settles later, which says nothing about the page; the picture does.
        let outcome = now.outcome.as_ref().map_or_else(String::new, outcome_text);
        self.compare_text("outcome", &outcome_text(&then.outcome), &outcome);
        self.add_unrecorded_requests(&now.unrecorded);
    }

    fn compare_observation(&mut self, then: &Observation, now: &Observation) {
        self.compare_text("url", &then.url, &now.url);
        self.compare_text("title", &then.title, &now.title);
        let tabs = |observation_now: &Observation| {
            let urls = observation_now
                .tabs
                .iter()
                .map(|tab| format!("{}{}", if tab.active { "*" } else { "" }, tab.url));
            urls.collect::<Vec<_>>().join(" ")
        };
        if then.tabs.len() > 1 || now.tabs.len() > 1 {
            self.compare_text("tabs", &tabs(then), &tabs(now));
        }
        if self.compare_pictures("pixels", &then.screenshot, &now.screenshot) {
            self.identical += 1;
        }
    }

    /// Whether the pictures are equal to the last bit; adds a difference if they exceed the
    /// tolerance.
    fn compare_pictures(&mut self, what: &'static str, then: &Screenshot, now: &Screenshot) -> bool {
        if then.bytes == now.bytes {
            return true;
        }
        let (before, after) = match (DecodedPicture::decode(then), DecodedPicture::decode(now)) {
            (Ok(before), Ok(after)) => (before, after),
            (before, after) => {
                let why = |error: Option<PictureError>| error.map_or_else(String::new, |why| why.to_string());
                self.add_difference(what, &why(before.err()), &why(after.err()));
                return false;
            }
        };
        if before == after {
            return true;
        }
        let size = |picture: &DecodedPicture| format!("{}x{}", picture.width, picture.height);
        let Some(differing) = before.differing(&after, self.tolerance.levels) else {
            self.add_difference(what, &size(&before), &size(&after));
            return false;
        };
        let all = f64::from(before.width) * f64::from(before.height);
        if differing as f64 > self.tolerance.share * all {
            let levels = self.tolerance.levels;
            let summary = format!("{differing} of {all} pixels differ by more than {levels} levels");
            self.add_difference(what, &size(&before), &summary);
        }
        false
    }

    /// The end to score with: limits of the farm end a trajectory although its page would continue.
    fn compare_end(&mut self, then: EndKind, now: Option<EndKind>) -> EndKind {
        let by_limit =
            matches!(then, EndKind::MaxSteps | EndKind::Unparsable | EndKind::ContextFull | EndKind::MaxTime);
        match now {
            // A replay does not ask why the page hangs.
            Some(EndKind::PageHang) if then == EndKind::ScriptLoop => then,
            None if by_limit || then.fault(true) == furrow_rollout::FaultOwner::Farm => then,
            None => {
                self.add_difference("end", then.as_str(), "the page did not end");
                EndKind::MaxSteps
            }
            Some(now) => {
                self.compare_text("end", then.as_str(), now.as_str());
                now
            }
        }
    }

    fn compare_evidence(&mut self, record: &TrajectoryRecord, replayed: &ReplayedTrajectory) {
        let (Some(then), Some(now)) = (&record.ending.evidence, &replayed.evidence) else { return };
        self.compare_text("answer", &optional_text(&then.answer), &optional_text(&now.answer));
        self.compare_final_page(then, now, record);
    }

    fn compare_final_page(&mut self, then: &Evidence, now: &Evidence, record: &TrajectoryRecord) {
        self.compare_text("url", &optional_text(&then.url), &optional_text(&now.url));
        self.compare_text("title", &optional_text(&then.title), &optional_text(&now.title));
        let format = record.task.observation.format;
        if let (Some(then), Some(now)) = (picture(then, format), picture(now, format)) {
            self.compare_pictures("pixels", &then, &now);
        }
    }

    fn compare_score(&mut self, record: &TrajectoryRecord, replayed: &ReplayedTrajectory, end: EndKind) {
        let Some(then) = &record.score else { return };
        let now = match scored(record, replayed, end) {
            Ok(Some(now)) => now,
            Ok(None) => return,
            Err(why) => return self.add_difference("reward", &number(then), &why),
        };
        self.compare_text("reward", &number(then), &number(&now));
        self.compare_text("success", &format!("{:?}", then.success), &format!("{:?}", now.success));
    }

    fn add_unrecorded_requests(&mut self, requests: &[String]) {
        requests.iter().for_each(|request| self.add_difference("unrecorded_request", "", request));
    }

    fn compare_text(&mut self, what: &'static str, recorded: &str, replayed: &str) {
        if recorded != replayed {
            self.add_difference(what, recorded, replayed);
        }
    }

    fn add_difference(&mut self, what: &'static str, recorded: &str, replayed: &str) {
        let cut = |text: &str| text.chars().take(TEXT_CHARS_MAX).collect();
        let recorded = cut(recorded);
        let replayed = cut(replayed);
        self.differences.push(ReplayDifference { step: self.step, what, recorded, replayed });
    }
}

/// Longest page text in a difference; a URL may be long.
const TEXT_CHARS_MAX: usize = 2_000;

fn outcome_text(outcome: &Outcome) -> String {
    match outcome.detail.is_empty() {
        _ if outcome.name == OutcomeName::NotSettled => OutcomeName::Ok.as_str().to_owned(),
        true => outcome.name.as_str().to_owned(),
        false => format!("{}: {}", outcome.name.as_str(), outcome.detail),
    }
}

fn optional_text(part: &Option<String>) -> String {
    part.clone().unwrap_or_default()
}

fn number(score: &Score) -> String {
    score.reward.map_or("none".to_owned(), |reward| reward.to_string())
}

/// The size comes from the picture itself.
fn picture(evidence: &Evidence, format: ImageFormat) -> Option<Screenshot> {
    let bytes = evidence.screenshot.clone()?;
    Some(Screenshot { bytes, format, size: Size::new(0, 0) })
}

/// What a scorer looks up in the page, which a replay has; it contacts no back end.
pub(crate) fn page_queries(record: &TrajectoryRecord) -> Vec<FinalQuery> {
    let queries = Scorer::of_task_json(&record.task_json).map(|scorer| scorer.queries());
    queries.unwrap_or_default().into_iter().filter(is_of_page).collect()
}

/// The replay's evidence with what back ends said when the trajectory was recorded.
fn with_recorded_back_ends(evidence: &Evidence, record: &TrajectoryRecord) -> Evidence {
    let findings = |evidence: &Evidence| {
        let json = evidence.findings_json.as_deref();
        json.and_then(|json| Finding::list_of_json(json).ok()).unwrap_or_default()
    };
    let then = record.ending.evidence.as_ref().map(findings).unwrap_or_default();
    let kept: Vec<Finding> = then.into_iter().filter(|finding| !is_of_page(&finding.query)).collect();
    if kept.is_empty() {
        return evidence.clone();
    }
    let all: Vec<Finding> = findings(evidence).into_iter().chain(kept).collect();
    Evidence { findings_json: Some(Finding::list_to_json(&all)), ..evidence.clone() }
}

fn is_of_page(query: &FinalQuery) -> bool {
    matches!(query, FinalQuery::Page { .. })
}

/// The score of the replay's evidence by the task's scorer; `None` for a judge, which a replay does
/// not call.
fn scored(
    record: &TrajectoryRecord,
    replayed: &ReplayedTrajectory,
    end: EndKind,
) -> Result<Option<Score>, String> {
    let scorer = Scorer::of_task_json(&record.task_json).map_err(|error| error.to_string())?;
    if scorer.needs_judge() {
        return Ok(None);
    }
    let evidence = replayed.evidence.as_ref().ok_or("the last page gave no evidence")?;
    let facts = EndFacts { end, steps: replayed.steps.len() as u32, max_steps: record.task.max_steps };
    let evidence = with_recorded_back_ends(evidence, record);
    scorer.score(&evidence, &facts).map(Some).map_err(|error| error.to_string())
}
