//! What the blind checks print: a table for people, JSON for programs.

use std::time::Duration;

use furrow_tasks::TaskSpec;
use serde_json::{Value, json};

use super::gate::{self, BlindRate, BlindVerdict, CHANCE_MAX};
use crate::{CommandFailure, output};

/// The results of a check.
#[derive(Debug)]
pub(super) struct BlindReport {
    pub seed: u64,
    /// Blind policies; otherwise replays.
    pub is_blind: bool,
    pub templates: Vec<TemplateReport>,
}

/// The result for a template, and what it rests on.
#[derive(Debug)]
pub(super) struct TemplateReport {
    task: String,
    /// The success rate of a blind policy that its line declares.
    declared: Option<f64>,
    result: TemplateResult,
    /// Draws that the policies learned from.
    pub training: usize,
    /// How the draws were made.
    kind: &'static str,
    made: u64,
    failed: u64,
    took: Duration,
    /// The rates of all policies, those of another trial last.
    pub policies: Vec<BlindRate>,
}

#[derive(Debug)]
pub(super) enum TemplateResult {
    Measured {
        best: BlindRate,
        verdict: BlindVerdict,
    },
    /// The task is the same under every seed, so any policy may know it by heart.
    Fixed,
    /// A judge scores it.
    Judged,
    NoDemonstration,
    /// The check failed, for this reason.
    Unknown(String),
}

impl TemplateResult {
    /// The result by the best of these rates.
    pub(super) fn measured(first: &[BlindRate], repeated: &[BlindRate]) -> Self {
        match gate::best(first, repeated) {
            Some(best) => Self::Measured { verdict: best.verdict(), best },
            None => Self::Unknown("no policy was tried".to_owned()),
        }
    }

    fn as_str(&self) -> &'static str {
        match self {
            Self::Measured { verdict: BlindVerdict::Pass, .. } => "pass",
            Self::Measured { verdict: BlindVerdict::Fail, .. } => "FAIL",
            Self::Fixed => "one task only",
            Self::Judged => "judged",
            Self::NoDemonstration => "no demonstration",
            Self::Unknown(_) => "NOT CHECKED",
        }
    }
}

impl TemplateReport {
    pub(super) fn of(spec: &TaskSpec, result: TemplateResult) -> Self {
        Self {
            task: spec.name(),
            declared: spec.chance_level,
            result,
            training: 0,
            kind: "none",
            made: 0,
            failed: 0,
            took: Duration::ZERO,
            policies: Vec::new(),
        }
    }

    /// Says how its draws were made: successful ones, failed ones, and the time of all.
    pub(super) fn note_draws(&mut self, kind: &'static str, made: u64, failed: u64, took: Duration) {
        (self.kind, self.made, self.failed, self.took) = (kind, made, failed, took);
    }

    /// The result as one line, for progress.
    pub(super) fn line(&self) -> String {
        let task = &self.task;
        match &self.result {
            TemplateResult::Measured { best, .. } => format!(
                "{task}: {} of {} by {}, {}; {} {}, {:.0} ms each",
                best.successes,
                best.draws,
                best.policy,
                self.result.as_str(),
                self.made,
                self.kind,
                self.millis_each()
            ),
            TemplateResult::Unknown(why) => format!("{task}: not checked: {why}"),
            other => format!("{task}: not checked: {}", other.as_str()),
        }
    }

    fn millis_each(&self) -> f64 {
        self.took.as_secs_f64() * 1000.0 / (self.made.max(1)) as f64
    }

    /// What is wrong with the declared rate: the interval of the measured one lies above it.
    fn too_low(&self) -> Option<String> {
        let TemplateResult::Measured { best, .. } = &self.result else { return None };
        let declared = self.declared?;
        let (low, high) = best.bounds();
        (declared < low).then(|| {
            format!(
                "{}: chance level {declared} is lower than measured: {:.2} ({low:.2} to {high:.2}) by {}",
                self.task,
                best.rate(),
                best.policy
            )
        })
    }

    fn row(&self) -> Vec<String> {
        let TemplateResult::Measured { best, .. } = &self.result else {
            let dashes = (0..5).map(|_| "–".to_owned());
            return [self.task.clone()]
                .into_iter()
                .chain(dashes)
                .chain([self.result.as_str().to_owned()])
                .collect();
        };
        vec![
            self.task.clone(),
            self.training.to_string(),
            best.policy.clone(),
            format!("{}/{}", best.successes, best.draws),
            format!("{:.3}", best.bounds().1),
            self.declared.map_or("–".to_owned(), |level| level.to_string()),
            self.result.as_str().to_owned(),
        ]
    }

    fn describe(&self) -> Value {
        let best = match &self.result {
            TemplateResult::Measured { best, .. } => Some(best),
            _ => None,
        };
        let why = match &self.result {
            TemplateResult::Unknown(why) => Some(why),
            _ => None,
        };
        let policies: Vec<Value> = self.policies.iter().map(describe_rate).collect();
        json!({
            "task": self.task, "verdict": self.result.as_str().to_lowercase(), "best": best.map(describe_rate),
            "training_draws": self.training, "made_by": self.kind, "made": self.made, "failed": self.failed,
            "millis_each": self.millis_each().round(), "chance_level": self.declared, "chance_level_too_low": self.too_low(),
            "policies": policies, "problem": why,
        })
    }
}

fn describe_rate(rate: &BlindRate) -> Value {
    let (low, high) = rate.bounds();
    json!({
        "policy": rate.policy, "successes": rate.successes, "draws": rate.draws, "rate": rate.rate(),
        "low": low, "high": high,
    })
}

impl BlindReport {
    /// Prints the report; an error if a template failed or could not be checked.
    pub(super) fn print(&self, as_json: bool) -> Result<(), CommandFailure> {
        let count = |fits: &dyn Fn(&TemplateResult) -> bool| {
            self.templates.iter().filter(|template| fits(&template.result)).count()
        };
        let failed =
            count(&|result| matches!(result, TemplateResult::Measured { verdict: BlindVerdict::Fail, .. }));
        let unknown = count(&|result| matches!(result, TemplateResult::Unknown(_)));
        let measured = count(&|result| matches!(result, TemplateResult::Measured { .. }));
        if as_json {
            let rows: Vec<Value> = self.templates.iter().map(TemplateReport::describe).collect();
            output::json(&json!({
                "seed": self.seed, "check": if self.is_blind { "blind" } else { "replays" }, "upper_bound_max": CHANCE_MAX,
                "templates": rows, "measured": measured, "failed": failed, "not_checked": unknown,
            }))?;
        } else {
            self.print_table(measured, failed);
        }
        if failed + unknown == 0 {
            return Ok(());
        }
        let solved = if self.is_blind {
            "can be solved without looking"
        } else {
            "are solved by a fixed list of actions"
        };
        Err(CommandFailure::Work(anyhow::anyhow!(
            "{failed} of {measured} templates {solved}, {unknown} could not be checked; see above"
        )))
    }

    fn print_table(&self, measured: usize, failed: usize) {
        let rows: Vec<Vec<String>> = self.templates.iter().map(TemplateReport::row).collect();
        let header =
            ["template", "training", "best policy", "successes", "upper bound", "chance level", "verdict"];
        output::table(&header, &rows);
        for problem in self.templates.iter().filter_map(TemplateReport::too_low) {
            output::line(problem);
        }
        let made: u64 = self.templates.iter().map(|template| template.made).sum();
        let took: f64 = self.templates.iter().map(|template| template.took.as_secs_f64()).sum();
        output::line(format!(
            "{} of {measured} templates pass; seed {}; {made} {}, {:.0} ms each",
            measured - failed,
            self.seed,
            if self.is_blind { "draws" } else { "replays" },
            took * 1000.0 / (made.max(1)) as f64
        ));
    }
}
