//! The closed loop: sessions decode, act in their pages, come back with a screenshot; one device serves them all.

use super::{Device, Part, StepSizes, Work, Workload, seconds};
use crate::config::{Config, VisionConfig};

/// What a session is like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mix {
    /// Steps of a trajectory.
    pub steps: usize,
    /// Pixels of a screenshot.
    pub screenshot: (usize, usize),
    /// Text tokens a turn brings beside the screenshot.
    pub text: usize,
    /// Tokens generated a step.
    pub generated: usize,
    /// Tokens of instructions and task, once.
    pub instructions: usize,
    /// Seconds that the page takes for a step.
    pub page_seconds: f64,
    /// Sessions at once.
    pub sessions: usize,
}

/// What is kept of earlier turns, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Everything stays resident; a turn prefills what is new.
    Append,
    /// Text and the newest screenshot: the text of the turn before is committed, the screenshot read on a fork.
    LastImage,
    /// Everything is in the prompt, and prefilled again each turn.
    Again,
}

/// What the floor of a rollout comes to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rollout {
    /// Trajectories a device and hour, bound by the device.
    pub trajectories_per_hour: f64,
    /// The same if the device took no time at all: bound by sessions and pages.
    pub session_bound_per_hour: f64,
    /// Steps a second.
    pub steps_per_second: f64,
    /// Sessions that decode at a time.
    pub decode_batch: f64,
    /// Mean tokens behind which a token is decoded.
    pub context_mean: f64,
    /// Tokens of a session at its end.
    pub context_max: f64,
    /// Share of the device's time that goes into prefill and vision, as far as that takes time of its own.
    pub prefill_share: f64,
    /// Sessions that fit at their longest.
    pub sessions_that_fit: u64,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            steps: 30,
            screenshot: (1280, 720),
            text: 60,
            generated: 150,
            instructions: 1200,
            page_seconds: 2.0,
            sessions: 100,
        }
    }
}

/// What one step brings: rows of its screenshot and the seconds that the tower's operations for it take, tokens of everything else.
struct Shown {
    instructions: f64,
    image: f64,
    vision: f64,
    text: f64,
    /// Tokens that are decoded one at a time.
    sampled: f64,
    /// Tokens of the reply that are read as a prompt is.
    given: f64,
}

/// Tokens to prefill, and tokens they follow, at one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turn {
    /// To prefill.
    pub new: f64,
    /// Before those.
    pub past: f64,
    /// Sampled behind both.
    pub sampled: f64,
}

/// How long a decode step and so many seconds of the tower take together.
type Joint<'a> = &'a dyn Fn(&[Part], f64) -> f64;

impl Rollout {
    /// The floor of a model on a device that does one thing after another.
    pub fn floor(model: &dyn Work, device: &Device, mix: &Mix, keep: Keep) -> Self {
        Self::bound(
            (model, device),
            &mix.shown(model, device),
            (mix.sessions, mix.page_seconds),
            (keep, &one(device)),
        )
    }

    /// The floor with the tower on a stream of its own: screenshots take no time of their own where the matrix units' time that decode leaves holds
    /// them.
    ///
    /// No schedule of two streams is faster: each does its own parts one after another, and the matrix units do the operations of both,
    ///
    /// ```text
    /// iteration >= max(decode, operations of decode + vision) + prefill
    /// ```
    ///
    /// where decode is in seconds by part and prefill and vision in seconds of their operations, as in [`Self::floor`].
    pub fn floor_beside(model: &dyn Work, device: &Device, mix: &Mix, keep: Keep) -> Self {
        Self::bound(
            (model, device),
            &mix.shown(model, device),
            (mix.sessions, mix.page_seconds),
            (keep, &two(device)),
        )
    }

    /// [`Self::floor`] of so many sessions whose trajectories have these sizes, each as often as the others.
    pub fn floor_of(model: &Config, device: &Device, work: &Workload, sessions: usize, keep: Keep) -> Self {
        Self::bound(
            (model, device),
            &work.shown(model, device),
            (sessions, work.page_seconds),
            (keep, &one(device)),
        )
    }

    /// [`Self::floor_beside`] of so many sessions whose trajectories have these sizes, each as often as the others.
    pub fn floor_beside_of(
        model: &Config,
        device: &Device,
        work: &Workload,
        sessions: usize,
        keep: Keep,
    ) -> Self {
        Self::bound(
            (model, device),
            &work.shown(model, device),
            (sessions, work.page_seconds),
            (keep, &two(device)),
        )
    }

    fn bound(
        (model, device): (&dyn Work, &Device),
        trajectories: &[Vec<Shown>],
        (sessions, page_seconds): (usize, f64),
        (keep, joint): (Keep, Joint<'_>),
    ) -> Self {
        let turns: Vec<Turn> = trajectories.iter().flat_map(|steps| turns(steps, keep)).collect();
        let steps = turns.len().max(1) as f64;
        let sampled_all = turns.iter().map(|turn| turn.sampled).sum::<f64>();
        let sampled = sampled_all / steps;
        let context_max = turns.iter().map(|turn| turn.new + turn.past + turn.sampled).fold(0.0, f64::max);
        // Each token counts: a long reply is decoded behind its own beginning for longer.
        let behind = turns.iter().map(|turn| turn.sampled * (turn.new + turn.past + turn.sampled / 2.0));
        let context_mean = behind.sum::<f64>() / sampled_all.max(1.0);
        // Prefills of many sessions share the weights that decode reads anyway: only their operations count.
        let prefill = |turn: &Turn| operations(&model.prefill(turn.new, turn.past), device);
        let vision = trajectories.iter().flatten().map(|shown| shown.vision).sum::<f64>() / steps;
        let prefill = turns.iter().map(prefill).sum::<f64>() / steps;
        let decode = |batch: f64| model.decode(batch, context_mean);
        let iteration = |batch: f64| {
            let steps = batch / sampled;
            joint(&decode(batch), steps * vision) + steps * prefill
        };
        let batch = balance((sessions as f64, page_seconds, sampled), iteration);
        let steps_per_second = batch / (sampled * iteration(batch));
        let steps_mean = steps / trajectories.len().max(1) as f64;
        Self {
            trajectories_per_hour: steps_per_second * 3600.0 / steps_mean,
            session_bound_per_hour: sessions as f64 * 3600.0 / (page_seconds * steps_mean),
            steps_per_second,
            decode_batch: batch,
            context_mean,
            context_max,
            prefill_share: 1.0 - seconds(&decode(batch), device) / iteration(batch),
            sessions_that_fit: model.sessions_that_fit(device, context_max),
        }
    }
}

impl Mix {
    fn shown(&self, model: &dyn Work, device: &Device) -> [Vec<Shown>; 1] {
        let image = model.screenshot_tokens(self.screenshot.0, self.screenshot.1) as f64;
        let vision = operations(&model.vision(self.screenshot.0, self.screenshot.1), device);
        let step = |index: usize| Shown {
            instructions: if index == 0 { self.instructions as f64 } else { 0.0 },
            image,
            vision,
            text: self.text as f64,
            sampled: self.generated as f64,
            given: 0.0,
        };
        [(0..self.steps).map(step).collect()]
    }
}

impl Workload {
    fn shown(&self, model: &Config, device: &Device) -> Vec<Vec<Shown>> {
        let shown = |step: &StepSizes| step.shown(model, |tiles| operations(&model.tower(tiles), device));
        self.trajectories.iter().map(|steps| steps.iter().map(shown).collect()).collect()
    }

    /// What each step of a model's sessions prefills and samples, trajectory by trajectory.
    pub fn turns(&self, model: &Config, keep: Keep) -> Vec<Vec<Turn>> {
        let turns = |steps: &Vec<StepSizes>| {
            let shown: Vec<Shown> = steps.iter().map(|step| step.shown(model, |_| 0.0)).collect();
            turns(&shown, keep)
        };
        self.trajectories.iter().map(turns).collect()
    }
}

impl StepSizes {
    fn shown(&self, model: &Config, vision: impl Fn(f64) -> f64) -> Shown {
        let rows = model.vision.as_ref().map_or(0, VisionConfig::rows_per_tile) as f64;
        let tiles = f64::from(self.tiles);
        Shown {
            instructions: f64::from(self.instructions),
            image: tiles * rows,
            vision: if self.tiles > 0 { vision(tiles) } else { 0.0 },
            text: f64::from(self.text),
            sampled: f64::from(self.sampled),
            given: f64::from(self.given),
        }
    }
}

/// What a trajectory's steps prefill, and behind how much.
fn turns(steps: &[Shown], keep: Keep) -> Vec<Turn> {
    // Tokens of all turns before, with their screenshots and without, and those of the last one without.
    let (mut whole, mut text, mut last) = (0.0, 0.0, 0.0);
    let turn = |step: &Shown| {
        let words = step.instructions + step.text + step.given;
        let turn = match keep {
            Keep::Append => Turn { new: step.image + words, past: whole, sampled: step.sampled },
            Keep::LastImage => {
                // Beside the new turn, the text of the turn before it is read once more, into the state that stays. The first turn reads its instructions into
                // both.
                let commit = if text > 0.0 { last } else { step.instructions };
                let new = step.image + step.text + step.given + commit;
                let context = text + step.image + words;
                Turn { new, past: (context - new).max(0.0), sampled: step.sampled }
            }
            Keep::Again => Turn { new: whole + step.image + words, past: 0.0, sampled: step.sampled },
        };
        last = step.text + step.given + step.sampled;
        text += words + step.sampled;
        whole += step.image + words + step.sampled;
        turn
    };
    steps.iter().map(turn).collect()
}

/// One thing after another.
fn one(device: &Device) -> impl Fn(&[Part], f64) -> f64 {
    |decode, vision| seconds(decode, device) + vision
}

/// The tower on a stream of its own.
fn two(device: &Device) -> impl Fn(&[Part], f64) -> f64 {
    |decode, vision| seconds(decode, device).max(operations(decode, device) + vision)
}

/// Sessions that decode at a time: those and the ones whose pages act are all there are.
fn balance((sessions, page_seconds, sampled): (f64, f64, f64), iteration: impl Fn(f64) -> f64) -> f64 {
    let needed = |batch: f64| batch + page_seconds * batch / (sampled * iteration(batch));
    let (mut low, mut high) = (1e-3, sessions);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if needed(middle) < sessions { low = middle } else { high = middle }
    }
    low
}

fn operations(parts: &[Part], device: &Device) -> f64 {
    parts.iter().map(|part| part.flops / device.flops).sum()
}
