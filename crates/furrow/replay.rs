//! What differs between a trajectory as it was recorded and as it was acted again, step by step.

use furrow_env::{ActedAgain, Expectation, SeenStep};
use furrow_records::Picture;
use furrow_rollout::{
    End, Evidence, ImageFormat, Observation, Outcome, OutcomeName, Score, Screenshot, Size, StepRecord,
    TrajectoryRecord,
};
use furrow_tasks::{Facts, Scorer};
use serde::Serialize;

/// How far pictures may lie apart and still count as equal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// A pixel differs when red, green or blue is off by more than so many levels of 255.
    pub levels: u8,
    /// Pictures differ when more than this share of their pixels does.
    pub share: f64,
}

/// One thing that is not as it was.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// The step, counted from 0; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<usize>,
    /// What differs: `url`, `title`, `tabs`, `pixels`, `outcome`, `unrecorded_request`, `goal`, `steps`, `end`, `answer`,
    /// `reward`, `success`, `stopped`.
    pub what: &'static str,
    /// As it was.
    pub recorded: String,
    /// As it is.
    pub replayed: String,
}

/// What became of one trajectory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replayed {
    /// The trajectory.
    pub trajectory_id: String,
    /// `suite/task`.
    pub task: String,
    /// Where its pages came from: `sites` or `archive`.
    pub from: &'static str,
    /// Whether it was the same build of the browser.
    pub same_browser: bool,
    /// Steps recorded.
    pub steps: usize,
    /// Steps whose pictures are equal to the last bit; the others lie within the tolerance or are among the differences.
    pub identical_pictures: usize,
    /// The recorded reward.
    pub reward: Option<f32>,
    /// What differs; empty when nothing does.
    pub differences: Vec<Difference>,
}

/// Holds a trajectory against itself.
pub fn compare(
    record: &TrajectoryRecord,
    steps: &[StepRecord],
    again: &ActedAgain,
    from: &'static str,
    tolerance: Tolerance,
) -> Replayed {
    let mut comparison = Comparison::new(tolerance);
    comparison.whole(record, steps, again);
    let Comparison { identical, differences, .. } = comparison;
    Replayed {
        trajectory_id: record.ancestry.trajectory_id.to_string(),
        task: format!("{}/{}", record.task.suite, record.task.task_id),
        from,
        same_browser: record.ending.environment.browser == again.environment.browser,
        steps: steps.len(),
        identical_pictures: identical,
        reward: record.score.as_ref().and_then(|score| score.reward),
        differences,
    }
}

/// What a trajectory's pages looked like, for whoever waits for them to look so again.
pub struct Looks<'a> {
    record: &'a TrajectoryRecord,
    steps: &'a [StepRecord],
    tolerance: Tolerance,
}

impl<'a> Looks<'a> {
    /// Of a trajectory as it was recorded.
    pub fn of(record: &'a TrajectoryRecord, steps: &'a [StepRecord], tolerance: Tolerance) -> Self {
        Self { record, steps, tolerance }
    }

    fn are_found(&self, look: impl FnOnce(&mut Comparison)) -> bool {
        let mut comparison = Comparison::new(self.tolerance);
        look(&mut comparison);
        comparison.differences.is_empty()
    }
}

impl Expectation for Looks<'_> {
    fn before_step(&self, step: usize, seen: &Observation) -> bool {
        let Some(then) = self.steps.get(step) else { return true };
        self.are_found(|comparison| comparison.observation(&then.observation, seen))
    }

    fn at_end(&self, seen: &Evidence) -> bool {
        let Some(then) = &self.record.ending.evidence else { return true };
        self.are_found(|comparison| comparison.last_look(then, seen, self.record))
    }
}

/// Differences as they are found.
struct Comparison {
    tolerance: Tolerance,
    /// Where it is.
    step: Option<usize>,
    identical: usize,
    differences: Vec<Difference>,
}

impl Comparison {
    fn new(tolerance: Tolerance) -> Self {
        Self { tolerance, step: None, identical: 0, differences: Vec::new() }
    }

    fn whole(&mut self, record: &TrajectoryRecord, steps: &[StepRecord], again: &ActedAgain) {
        if let Some(goal) = &again.goal {
            self.same("goal", &record.ending.goal, goal);
        }
        for (at, (then, now)) in steps.iter().zip(&again.steps).enumerate() {
            self.step = Some(at);
            self.step(then, now);
        }
        self.step = None;
        self.asked_in_vain(&again.unrecorded);
        if let Some(why) = &again.stopped {
            self.tell("stopped", "", why);
            return;
        }
        self.same("steps", &steps.len().to_string(), &again.steps.len().to_string());
        let end = self.end(record.ending.end, again.end);
        self.evidence(record, again);
        self.score(record, again, end);
    }

    fn step(&mut self, then: &StepRecord, now: &SeenStep) {
        self.observation(&then.observation, &now.observation);
        // A busy machine settles later: that tells of the machine, and the picture of the page.
        let outcome = now.outcome.as_ref().map_or_else(String::new, told);
        self.same("outcome", &told(&then.outcome), &outcome);
        self.asked_in_vain(&now.unrecorded);
    }

    fn observation(&mut self, then: &Observation, now: &Observation) {
        self.same("url", &then.url, &now.url);
        self.same("title", &then.title, &now.title);
        let tabs = |seen: &Observation| {
            let urls =
                seen.tabs.iter().map(|tab| format!("{}{}", if tab.active { "*" } else { "" }, tab.url));
            urls.collect::<Vec<_>>().join(" ")
        };
        if then.tabs.len() > 1 || now.tabs.len() > 1 {
            self.same("tabs", &tabs(then), &tabs(now));
        }
        if self.pictures("pixels", &then.screenshot, &now.screenshot) {
            self.identical += 1;
        }
    }

    /// Whether they are equal to the last bit.
    fn pictures(&mut self, what: &'static str, then: &Screenshot, now: &Screenshot) -> bool {
        if then.bytes == now.bytes {
            return true;
        }
        let (before, after) = match (Picture::decode(then), Picture::decode(now)) {
            (Ok(before), Ok(after)) => (before, after),
            (before, after) => {
                self.tell(what, &before.err().unwrap_or_default(), &after.err().unwrap_or_default());
                return false;
            }
        };
        if before == after {
            return true;
        }
        let size = |picture: &Picture| format!("{}x{}", picture.width, picture.height);
        let Some(differing) = before.differing(&after, self.tolerance.levels) else {
            self.tell(what, &size(&before), &size(&after));
            return false;
        };
        let all = f64::from(before.width) * f64::from(before.height);
        if differing as f64 > self.tolerance.share * all {
            let levels = self.tolerance.levels;
            let said = format!("{differing} of {all} pixels differ by more than {levels} levels");
            self.tell(what, &size(&before), &said);
        }
        false
    }

    /// The end to score by: a limit of the farm's ends a trajectory that its page would let go on.
    fn end(&mut self, then: End, now: Option<End>) -> End {
        let by_limit = matches!(then, End::MaxSteps | End::Unparsable | End::ContextFull);
        match now {
            None if by_limit || then.fault(true) == furrow_rollout::Fault::Farm => then,
            None => {
                self.tell("end", then.as_str(), "the page goes on");
                End::MaxSteps
            }
            Some(now) => {
                self.same("end", then.as_str(), now.as_str());
                now
            }
        }
    }

    fn evidence(&mut self, record: &TrajectoryRecord, again: &ActedAgain) {
        let (Some(then), Some(now)) = (&record.ending.evidence, &again.evidence) else { return };
        self.same("answer", &part(&then.answer), &part(&now.answer));
        self.last_look(then, now, record);
    }

    fn last_look(&mut self, then: &Evidence, now: &Evidence, record: &TrajectoryRecord) {
        self.same("url", &part(&then.url), &part(&now.url));
        self.same("title", &part(&then.title), &part(&now.title));
        let format = record.task.observation.format;
        if let (Some(then), Some(now)) = (picture(then, format), picture(now, format)) {
            self.pictures("pixels", &then, &now);
        }
    }

    fn score(&mut self, record: &TrajectoryRecord, again: &ActedAgain, end: End) {
        let Some(then) = &record.score else { return };
        let now = match scored(record, again, end) {
            Ok(Some(now)) => now,
            Ok(None) => return,
            Err(why) => return self.tell("reward", &number(then), &why),
        };
        self.same("reward", &number(then), &number(&now));
        self.same("success", &format!("{:?}", then.success), &format!("{:?}", now.success));
    }

    fn asked_in_vain(&mut self, requests: &[String]) {
        requests.iter().for_each(|request| self.tell("unrecorded_request", "", request));
    }

    fn same(&mut self, what: &'static str, recorded: &str, replayed: &str) {
        if recorded != replayed {
            self.tell(what, recorded, replayed);
        }
    }

    fn tell(&mut self, what: &'static str, recorded: &str, replayed: &str) {
        let cut = |text: &str| text.chars().take(TEXT_CHARS_MAX).collect();
        let (recorded, replayed) = (cut(recorded), cut(replayed));
        self.differences.push(Difference { step: self.step, what, recorded, replayed });
    }
}

/// Page text in a difference; an address may be long.
const TEXT_CHARS_MAX: usize = 2_000;

fn told(outcome: &Outcome) -> String {
    match outcome.detail.is_empty() {
        _ if outcome.name == OutcomeName::NotSettled => OutcomeName::Ok.as_str().to_owned(),
        true => outcome.name.as_str().to_owned(),
        false => format!("{}: {}", outcome.name.as_str(), outcome.detail),
    }
}

fn part(part: &Option<String>) -> String {
    part.clone().unwrap_or_default()
}

fn number(score: &Score) -> String {
    score.reward.map_or("none".to_owned(), |reward| reward.to_string())
}

/// The size is read from the picture itself.
fn picture(evidence: &Evidence, format: ImageFormat) -> Option<Screenshot> {
    let bytes = evidence.screenshot.clone()?;
    Some(Screenshot { bytes, format, size: Size::new(0, 0) })
}

/// What the task's scorer says of this time's evidence; `None` where it takes a judge, whom a replay does not ask.
fn scored(record: &TrajectoryRecord, again: &ActedAgain, end: End) -> Result<Option<Score>, String> {
    let scorer = Scorer::of_task_json(&record.task_json).map_err(|error| error.to_string())?;
    if scorer.needs_judge() {
        return Ok(None);
    }
    let evidence = again.evidence.as_ref().ok_or("nothing was to be seen at the end")?;
    let facts = Facts { end, steps: again.steps.len() as u32, max_steps: record.task.max_steps };
    scorer.score(evidence, &facts).map(Some).map_err(|error| error.to_string())
}
