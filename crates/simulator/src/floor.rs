//! The closed loop: sessions decode, act in their pages and return with a screenshot; one device
//! serves them all.

use furrow_model::config::{Config, VisionConfig};
use furrow_model::floor::{DeviceSpec, ModelWork, WorkPart, seconds};

use crate::workload::{SessionMix, StepSizes, Workload};

/// What is kept of earlier turns, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextRetention {
    /// Everything stays resident; a turn prefills only new tokens.
    Append,
    /// Text and the newest screenshot: the text of the previous turn is committed, the screenshot
    /// is prefilled on a fork.
    LastImage,
    /// Everything is in the prompt and is prefilled again each turn.
    Recompute,
}

/// The lower bounds of a rollout.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RolloutFloor {
    /// Trajectories per device and hour, limited by the device.
    pub trajectories_per_hour: f64,
    /// Trajectories per hour if the device took no time at all: limited by sessions and pages.
    pub session_bound_per_hour: f64,
    pub steps_per_second: f64,
    /// Sessions that decode at the same time.
    pub decode_batch: f64,
    /// Mean number of tokens before a decoded token.
    pub context_mean: f64,
    /// Tokens of a session at its end.
    pub context_max: f64,
    /// Share of the device's time for prefill and vision, as far as those take time of their own.
    pub prefill_share: f64,
    /// Sessions that fit at their greatest length.
    pub sessions_that_fit: u64,
}

/// Work of one step: rows of its screenshot, the seconds of the tower's operations for it, and
/// tokens of everything else.
struct StepWork {
    instructions: f64,
    image: f64,
    vision: f64,
    text: f64,
    /// Tokens that are decoded one at a time.
    sampled: f64,
    /// Tokens of the reply that are prefilled like a prompt.
    given: f64,
}

/// Tokens to prefill at one step, and tokens before them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TurnTokens {
    pub new: f64,
    pub past: f64,
    /// Sampled tokens after both.
    pub sampled: f64,
}

/// How long a decode step and this many seconds of the tower take together.
type JointSeconds<'a> = &'a dyn Fn(&[WorkPart], f64) -> f64;

impl RolloutFloor {
    /// Lower bound of a model on a device that runs one kernel after another.
    pub fn floor(
        model: &dyn ModelWork,
        device: &DeviceSpec,
        mix: &SessionMix,
        keep: ContextRetention,
    ) -> Self {
        Self::bound(
            (model, device),
            &mix.step_work(model, device),
            (mix.sessions, mix.page_seconds),
            (keep, &one_stream(device)),
        )
    }

    /// Lower bound with the tower on a stream of its own: screenshots take no extra time if they
    /// fit into the time of the matrix units that decode does not use.
    ///
    /// No schedule of two streams is faster: each runs its own parts one after another, and the
    /// matrix units compute the operations of both,
    ///
    /// ```text
    /// iteration >= max(decode, operations of decode + vision) + prefill
    /// ```
    ///
    /// where decode is in seconds by part and prefill and vision in seconds of their operations, as
    /// in [`Self::floor`].
    pub(crate) fn floor_concurrent(
        model: &dyn ModelWork,
        device: &DeviceSpec,
        mix: &SessionMix,
        keep: ContextRetention,
    ) -> Self {
        Self::bound(
            (model, device),
            &mix.step_work(model, device),
            (mix.sessions, mix.page_seconds),
            (keep, &two_streams(device)),
        )
    }

    /// [`Self::floor`] of this many sessions whose trajectories have the given sizes, all equally
    /// frequent.
    pub fn workload_floor(
        model: &Config,
        device: &DeviceSpec,
        work: &Workload,
        sessions: usize,
        keep: ContextRetention,
    ) -> Self {
        Self::bound(
            (model, device),
            &work.step_work(model, device),
            (sessions, work.page_seconds),
            (keep, &one_stream(device)),
        )
    }

    /// [`Self::floor_concurrent`] of this many sessions whose trajectories have the given sizes,
    /// all equally frequent.
    pub fn workload_floor_concurrent(
        model: &Config,
        device: &DeviceSpec,
        work: &Workload,
        sessions: usize,
        keep: ContextRetention,
    ) -> Self {
        Self::bound(
            (model, device),
            &work.step_work(model, device),
            (sessions, work.page_seconds),
            (keep, &two_streams(device)),
        )
    }

    fn bound(
        (model, device): (&dyn ModelWork, &DeviceSpec),
        trajectories: &[Vec<StepWork>],
        (sessions, page_seconds): (usize, f64),
        (keep, joint): (ContextRetention, JointSeconds<'_>),
    ) -> Self {
        let turns: Vec<TurnTokens> = trajectories.iter().flat_map(|steps| turns(steps, keep)).collect();
        let steps = turns.len().max(1) as f64;
        let sampled_all = turns.iter().map(|turn| turn.sampled).sum::<f64>();
        let sampled = sampled_all / steps;
        let context_max = turns.iter().map(|turn| turn.new + turn.past + turn.sampled).fold(0.0, f64::max);
        // Each token counts: a long reply is decoded after its own beginning for longer.
        let behind = turns.iter().map(|turn| turn.sampled * (turn.new + turn.past + turn.sampled / 2.0));
        let context_mean = behind.sum::<f64>() / sampled_all.max(1.0);
        // Prefills of many sessions share the weights that decode reads anyway: only their
        // operations count.
        let prefill = |turn: &TurnTokens| operations(&model.prefill(turn.new, turn.past), device);
        let vision = trajectories.iter().flatten().map(|step| step.vision).sum::<f64>() / steps;
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

impl SessionMix {
    fn step_work(&self, model: &dyn ModelWork, device: &DeviceSpec) -> [Vec<StepWork>; 1] {
        let image = model.screenshot_tokens(self.screenshot.0, self.screenshot.1) as f64;
        let vision = operations(&model.vision(self.screenshot.0, self.screenshot.1), device);
        let step = |index: usize| StepWork {
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
    fn step_work(&self, model: &Config, device: &DeviceSpec) -> Vec<Vec<StepWork>> {
        let step_work =
            |step: &StepSizes| step.step_work(model, |tiles| operations(&model.tower(tiles), device));
        self.trajectories.iter().map(|steps| steps.iter().map(step_work).collect()).collect()
    }

    /// What each step of a model's sessions prefills and samples, trajectory by trajectory.
    pub fn turns(&self, model: &Config, keep: ContextRetention) -> Vec<Vec<TurnTokens>> {
        let turns = |steps: &Vec<StepSizes>| {
            let steps_work: Vec<StepWork> = steps.iter().map(|step| step.step_work(model, |_| 0.0)).collect();
            turns(&steps_work, keep)
        };
        self.trajectories.iter().map(turns).collect()
    }
}

impl StepSizes {
    fn step_work(&self, model: &Config, vision: impl Fn(f64) -> f64) -> StepWork {
        let rows = model.vision.as_ref().map_or(0, VisionConfig::rows_per_tile) as f64;
        let tiles = f64::from(self.tiles);
        StepWork {
            instructions: f64::from(self.instructions),
            image: tiles * rows,
            vision: if self.tiles > 0 { vision(tiles) } else { 0.0 },
            text: f64::from(self.text),
            sampled: f64::from(self.sampled),
            given: f64::from(self.given),
        }
    }
}

/// Tokens that a trajectory's steps prefill, and tokens before them.
fn turns(steps: &[StepWork], keep: ContextRetention) -> Vec<TurnTokens> {
    // Tokens of all earlier turns with their screenshots and without, and tokens of the last turn
    // without.
    let mut whole = 0.0;
    let mut text = 0.0;
    let mut last = 0.0;
    let turn = |step: &StepWork| {
        let text_tokens = step.instructions + step.text + step.given;
        let turn = match keep {
            ContextRetention::Append => {
                TurnTokens { new: step.image + text_tokens, past: whole, sampled: step.sampled }
            }
            ContextRetention::LastImage => {
                // In addition to the new turn, the text of the previous turn is prefilled once
                // more, into the state that stays. The first turn prefills its instructions into
                // both.
                let commit = if text > 0.0 { last } else { step.instructions };
                let new = step.image + step.text + step.given + commit;
                let context = text + step.image + text_tokens;
                TurnTokens { new, past: (context - new).max(0.0), sampled: step.sampled }
            }
            ContextRetention::Recompute => {
                TurnTokens { new: whole + step.image + text_tokens, past: 0.0, sampled: step.sampled }
            }
        };
        last = step.text + step.given + step.sampled;
        text += text_tokens + step.sampled;
        whole += step.image + text_tokens + step.sampled;
        turn
    };
    steps.iter().map(turn).collect()
}

/// One kernel after another.
fn one_stream(device: &DeviceSpec) -> impl Fn(&[WorkPart], f64) -> f64 {
    |decode, vision| seconds(decode, device) + vision
}

/// The tower on a stream of its own.
fn two_streams(device: &DeviceSpec) -> impl Fn(&[WorkPart], f64) -> f64 {
    |decode, vision| seconds(decode, device).max(operations(decode, device) + vision)
}

/// Sessions that decode at the same time: they and the sessions whose pages act are all sessions.
fn balance((sessions, page_seconds, sampled): (f64, f64, f64), iteration: impl Fn(f64) -> f64) -> f64 {
    let needed = |batch: f64| batch + page_seconds * batch / (sampled * iteration(batch));
    let mut low = 1e-3;
    let mut high = sessions;
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if needed(middle) < sessions { low = middle } else { high = middle }
    }
    low
}

fn operations(parts: &[WorkPart], device: &DeviceSpec) -> f64 {
    parts.iter().map(|part| part.flops / device.flops).sum()
}

#[cfg(test)]
mod tests;
