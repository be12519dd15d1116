//! The closed loop: sessions decode, act in their pages, come back with a screenshot; one device serves them all.

use super::{Device, Part, Work, seconds};

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

/// Tokens to prefill, tokens they follow, screenshots to encode, at one step.
struct Turn {
    new: f64,
    past: f64,
}

impl Rollout {
    /// The floor of a model on a device that does one thing after another.
    pub fn floor(model: &dyn Work, device: &Device, mix: &Mix, keep: Keep) -> Self {
        Self::bound(model, device, mix, keep, |decode, vision| seconds(decode, device) + vision)
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
        Self::bound(model, device, mix, keep, |decode, vision| {
            seconds(decode, device).max(operations(decode, device) + vision)
        })
    }

    /// `joint` says how long a decode step and so many seconds of the tower take together.
    fn bound(
        model: &dyn Work,
        device: &Device,
        mix: &Mix,
        keep: Keep,
        joint: impl Fn(&[Part], f64) -> f64,
    ) -> Self {
        let image = model.screenshot_tokens(mix.screenshot.0, mix.screenshot.1) as f64;
        let turns: Vec<Turn> = (0..mix.steps).map(|step| mix.turn(step as f64, image, keep)).collect();
        let contexts = turns.iter().map(|turn| turn.new + turn.past);
        let context_max = contexts.clone().fold(0.0, f64::max) + mix.generated as f64;
        let context_mean = contexts.sum::<f64>() / mix.steps as f64 + mix.generated as f64 / 2.0;
        // Prefills of many sessions share the weights that decode reads anyway: only their operations count.
        let prefill = |turn: &Turn| operations(&model.prefill(turn.new, turn.past), device);
        let vision = operations(&model.vision(mix.screenshot.0, mix.screenshot.1), device);
        let prefill = turns.iter().map(prefill).sum::<f64>() / mix.steps as f64;
        let decode = |batch: f64| model.decode(batch, context_mean);
        let iteration = |batch: f64| {
            let steps = batch / mix.generated as f64;
            joint(&decode(batch), steps * vision) + steps * prefill
        };
        let batch = mix.balance(iteration);
        let steps_per_second = batch / (mix.generated as f64 * iteration(batch));
        Self {
            trajectories_per_hour: steps_per_second * 3600.0 / mix.steps as f64,
            session_bound_per_hour: mix.sessions as f64 * 3600.0 / (mix.page_seconds * mix.steps as f64),
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
    fn turn(&self, step: f64, image: f64, keep: Keep) -> Turn {
        let (text, generated, head) = (self.text as f64, self.generated as f64, self.instructions as f64);
        let first = if step == 0.0 { head } else { 0.0 };
        match keep {
            Keep::Append => {
                let past = if step == 0.0 { 0.0 } else { head + step * (image + text + generated) };
                Turn { new: image + text + first, past }
            }
            Keep::LastImage => {
                // Beside the new turn, the text of the turn before it is read once more, into the state that stays.
                let commit = if step == 0.0 { head } else { text + generated };
                let context = head + image + (step + 1.0) * text + step * generated;
                let new = image + text + commit;
                Turn { new, past: (context - new).max(0.0) }
            }
            Keep::Again => Turn { new: head + step * (image + text + generated) + image + text, past: 0.0 },
        }
    }

    /// Sessions that decode at a time: those and the ones whose pages act are all there are.
    fn balance(&self, iteration: impl Fn(f64) -> f64) -> f64 {
        let sessions = self.sessions as f64;
        let needed =
            |batch: f64| batch + self.page_seconds * batch / (self.generated as f64 * iteration(batch));
        let (mut low, mut high) = (1e-3, sessions);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if needed(middle) < sessions { low = middle } else { high = middle }
        }
        low
    }
}

fn operations(parts: &[Part], device: &Device) -> f64 {
    parts.iter().map(|part| part.flops / device.flops).sum()
}
