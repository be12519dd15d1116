//! Draws of a task under many seeds, from a real browser.
//!
//! A draw needs the goal and the evidence of an untouched page, and no picture. To open a page as a
//! trajectory does takes about a second; a frame in a page that is open takes a fraction of that.
//! So draws are made in frames where that gives what an opened page gives, which the first draws
//! are compared for, and by opening pages elsewhere (`miniwob`, back ends, the final page).

use std::time::{Duration, Instant};

use furrow_env::{Environment, EnvironmentFactory};
use furrow_rollout::{Evidence, PageHooks, SessionSpec, mark_graded};
use furrow_tasks::TaskSpec;
use serde_json::{Map, Value};

use super::draw::{Draw, DrawScorer};
use crate::prove;

const SCRIPT: &str = include_str!("draws.js");

/// Time of one batch of frames; the last draw of a batch begins before this.
const BATCH: Duration = Duration::from_millis(1500);
/// Letters after which a batch ends; a result may have 256 KiB, and a report 60 KiB.
const BATCH_LETTERS: usize = 100 << 10;
/// Draws in one page, so that what its frames leave behind stays small.
const PAGE_DRAWS: usize = 50;
/// Pages in a row that make no draw before the rest of the seeds is given up.
const USELESS_PAGES_MAX: usize = 3;
/// Draws that are made in both ways and compared.
pub(super) const COMPARED: usize = 2;

/// How the draws of a task are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DrawKind {
    /// In frames of one page.
    Frames,
    /// Each in a page that is opened as for a trajectory.
    Pages,
}

/// Makes the draws of one task.
pub(super) struct DrawSource<'a> {
    pub spec: &'a TaskSpec,
    pub stages: &'a dyn EnvironmentFactory,
    pub session: &'a SessionSpec,
    /// Differs between the tasks of a check, and so do the names of their trajectories.
    pub index: usize,
    pub kind: DrawKind,
    /// Evidence of an opened page, which frames give no part of but the report.
    idle: Evidence,
    /// Draws made so far, and the time that they took.
    pub made: u64,
    pub took: Duration,
    /// Seeds under which the page made no task.
    pub failed: u64,
    pub last_error: Option<String>,
}

impl DrawKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            DrawKind::Frames => "frames",
            DrawKind::Pages => "pages",
        }
    }
}

impl<'a> DrawSource<'a> {
    /// Opens the pages of the first seeds and finds out whether frames give the same. Fails if no
    /// page opens.
    pub(super) async fn open(
        spec: &'a TaskSpec,
        stages: &'a dyn EnvironmentFactory,
        session: &'a SessionSpec,
        index: usize,
        seeds: &[u64],
    ) -> Result<Self, String> {
        let mut source = Self {
            spec,
            stages,
            session,
            index,
            kind: DrawKind::Pages,
            idle: Evidence::default(),
            made: 0,
            took: Duration::ZERO,
            failed: 0,
            last_error: None,
        };
        let seeds = &seeds[..COMPARED.min(seeds.len())];
        let by_pages = source.draws(seeds).await;
        let Some(first) = by_pages.first() else {
            return Err(source.last_error.unwrap_or_else(|| "no page opened".to_owned()));
        };
        source.idle = Evidence { probe_json: None, ..first.idle.clone() };
        if source.may_frame() && source.failed == 0 {
            source.kind = DrawKind::Frames;
            let by_frames = source.draws(seeds).await;
            if !are_alike(&by_pages, &by_frames) {
                source.kind = DrawKind::Pages;
            }
        }
        (source.made, source.took, source.failed, source.last_error) = (0, Duration::ZERO, 0, None);
        Ok(source)
    }

    /// The task under each of these seeds. A seed that makes no task is left out and counted.
    pub(super) async fn draws(&mut self, seeds: &[u64]) -> Vec<Draw> {
        let began = Instant::now();
        let scorer = DrawScorer { scorer: &self.spec.scorer, max_steps: self.spec.task.max_steps };
        let mut draws = Vec::new();
        let mut untouched: Vec<Result<(String, Evidence), String>> = Vec::new();
        match self.kind {
            DrawKind::Pages => {
                for &seed in seeds {
                    untouched.push(self.by_page(seed).await);
                }
            }
            DrawKind::Frames => {
                untouched = self.by_frames(seeds).await;
            }
        }
        for made in untouched {
            match made {
                Ok((goal, idle)) => draws.push(scorer.draw(&goal, idle)),
                Err(why) => {
                    self.failed += 1;
                    self.last_error = Some(why);
                }
            }
        }
        self.made += draws.len() as u64;
        self.took += began.elapsed();
        draws
    }

    /// Whether a frame of the start page could start the task: the suite's library does it, and
    /// the scorer reads nothing but its report.
    fn may_frame(&self) -> bool {
        let TaskSpec { task, scorer, reset, .. } = self.spec;
        frame_start(&task.hooks).is_some() && scorer.queries().is_empty() && reset.is_none()
    }

    async fn by_page(&self, seed: u64) -> Result<(String, Evidence), String> {
        let assignment = prove::assignment(self.spec, seed, self.index, self.session)?;
        let mut stage = self.stages.open(&assignment).await.map_err(|error| error.to_string())?;
        let untouched = self.untouched(stage.as_mut()).await;
        stage.close().await;
        untouched
    }

    async fn untouched(&self, stage: &mut dyn Environment) -> Result<(String, Evidence), String> {
        let made = stage.begin().await.map_err(|error| error.to_string())?;
        let goal = self.spec.task.goal.clone().or(made).ok_or("neither the task nor its page has a goal")?;
        let idle = stage.evidence().await.ok_or("the start page gives no evidence")?;
        Ok((goal, Evidence { screenshot: None, ..idle }))
    }

    /// The same in frames. A page that fails, as on a machine with too much to do, is followed by
    /// another one, which goes on where it stopped.
    async fn by_frames(&self, seeds: &[u64]) -> Vec<Result<(String, Evidence), String>> {
        let mut made = Vec::new();
        let mut useless_pages = 0;
        while made.len() < seeds.len() {
            let left = &seeds[made.len()..];
            let mut draws = Vec::new();
            let filled = self.fill_by_frames(&left[..left.len().min(PAGE_DRAWS)], &mut draws).await;
            useless_pages = if draws.is_empty() { useless_pages + 1 } else { 0 };
            made.append(&mut draws);
            if let Err(why) = filled
                && useless_pages == USELESS_PAGES_MAX
            {
                made.resize_with(seeds.len(), || Err(why.clone()));
            }
        }
        made
    }

    async fn fill_by_frames(
        &self,
        seeds: &[u64],
        made: &mut Vec<Result<(String, Evidence), String>>,
    ) -> Result<(), String> {
        let mut spec = self.spec.clone();
        let script = script(&spec, seeds).ok_or("the suite's start script cannot run in a frame")?;
        // Without a start script the page is not graded, and its probe is asked each time.
        spec.task.hooks = PageHooks { start: None, probe: Some(script), solve: None };
        let assignment = prove::assignment(&spec, 0, self.index, self.session)?;
        let mut stage = self.stages.open(&assignment).await.map_err(|error| error.to_string())?;
        let filled = self.fill_from(stage.as_mut(), seeds.len(), made).await;
        stage.close().await;
        filled
    }

    async fn fill_from(
        &self,
        stage: &mut dyn Environment,
        count: usize,
        made: &mut Vec<Result<(String, Evidence), String>>,
    ) -> Result<(), String> {
        stage.begin().await.map_err(|error| error.to_string())?;
        while made.len() < count {
            let json = stage.probe().await.map_err(|error| error.to_string())?.unwrap_or_default();
            let mut batch: Value = serde_json::from_str(&json).map_err(|error| error.to_string())?;
            let draws = batch["draws"].as_array_mut().map(std::mem::take).unwrap_or_default();
            if draws.is_empty() {
                return Err("the page made no draw".to_owned());
            }
            made.extend(draws.into_iter().map(|draw| self.framed(draw)));
        }
        Ok(())
    }

    /// A draw as the script reports it.
    fn framed(&self, mut draw: Value) -> Result<(String, Evidence), String> {
        if let Some(error) = draw["error"].as_str() {
            return Err(error.to_owned());
        }
        let goal = self.spec.task.goal.clone().or_else(|| draw["goal"].as_str().map(str::to_owned));
        let goal = goal.ok_or("neither the task nor its page has a goal")?;
        let report = match draw["report"].take() {
            Value::Object(report) => report,
            other => return Err(format!("its report is no object: {other}").chars().take(200).collect()),
        };
        // A frame of a graded site is asked as the farm asks it; no policy acted there.
        Ok((goal, Evidence { probe_json: Some(mark_graded(report)), ..self.idle.clone() }))
    }
}

/// The start script with the variable `seed` in the place of the seed; `None` if it does more than
/// call the suite's library.
fn frame_start(hooks: &PageHooks) -> Option<String> {
    let start = hooks.start.as_ref().filter(|start| start.contains("furrow.start("))?;
    let start = start.replace("\"{seed}\"", "seed").replace("'{seed}'", "seed");
    (!start.contains("{seed}")).then_some(start)
}

/// The call that makes the draws of these seeds; `None` if no frame can start the task.
fn script(spec: &TaskSpec, seeds: &[u64]) -> Option<String> {
    let start = frame_start(&spec.task.hooks)?;
    let seeds: Vec<String> = seeds.iter().map(ToString::to_string).collect();
    let url = Value::from(spec.task.start_url.as_str());
    let budget = BATCH.as_millis();
    Some(format!(
        "({SCRIPT})({}, {url}, {budget}, {BATCH_LETTERS}, (seed, window, furrow) => ({start}))",
        Value::from(seeds)
    ))
}

/// Whether draws have the same goals, right answers and reports, but for the farm's mark.
fn are_alike(one: &[Draw], other: &[Draw]) -> bool {
    let report = |draw: &Draw| -> Option<Map<String, Value>> {
        let report: Map<String, Value> = serde_json::from_str(draw.idle.probe_json.as_deref()?).ok()?;
        serde_json::from_str(&mark_graded(report)).ok()
    };
    let are_alike = |one: &Draw, other: &Draw| {
        one.goal.text == other.goal.text
            && one.right_answer == other.right_answer
            && report(one) == report(other)
    };
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| are_alike(one, other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_script_is_called_with_the_frames_seed() {
        let hooks = |start: &str| PageHooks { start: Some(start.to_owned()), ..PageHooks::default() };
        for (start, want) in [
            (
                "furrow.start(\"toy-a\", \"{seed}\", \"test\")",
                Some("furrow.start(\"toy-a\", seed, \"test\")"),
            ),
            ("furrow.start('{seed}')", Some("furrow.start(seed)")),
            ("core.start('{seed}')", None),
            ("furrow.start({seed})", None),
        ] {
            assert_eq!(frame_start(&hooks(start)).as_deref(), want, "{start}");
        }
    }
}
