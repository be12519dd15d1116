//! The task and the session of a trajectory, as they were assigned.

use furrow_rollout::{
    ContextPolicy, ExtraAction, Grammar, ObservationSpec, PageClock, PageHooks, SamplingParams, SessionSpec,
    Split, Task,
};

use super::error::RowError;
use super::values::{elapsed, format, micros, parse_text, quality_cell, size};
use crate::schema::{HooksCell, ObservationSpecCell, SamplingCell, SessionCell, TaskCell};

impl From<&SessionSpec> for SessionCell {
    fn from(session: &SessionSpec) -> Self {
        let (context, context_window) = context_cells(session.context);
        Self {
            grammar: session.grammar.name.clone(),
            grammar_extra: session.grammar.extra.iter().map(|extra| extra.as_str().into()).collect(),
            sampling: SamplingCell::from(&session.sampling),
            context: context.into(),
            context_window,
            instructions: session.instructions.clone(),
        }
    }
}

impl SessionCell {
    pub(super) fn into_domain(self) -> Result<SessionSpec, RowError> {
        let extra = |text: &String| parse_text("session.grammar_extra", text, ExtraAction::parse);
        let extra = self.grammar_extra.iter().map(extra).collect::<Result<_, _>>()?;
        Ok(SessionSpec {
            grammar: Grammar { name: self.grammar, extra },
            sampling: SamplingParams::from(&self.sampling),
            context: context(&self.context, self.context_window)?,
            instructions: self.instructions,
        })
    }
}

fn context_cells(context: ContextPolicy) -> (&'static str, Option<i32>) {
    match context {
        ContextPolicy::Append => ("append", None),
        ContextPolicy::LastImage => ("last_image", None),
        ContextPolicy::Window(kept) => ("window", Some(kept.cast_signed())),
        ContextPolicy::Fresh => ("fresh", None),
    }
}

fn context(text: &str, window: Option<i32>) -> Result<ContextPolicy, RowError> {
    match (text, window) {
        ("append", None) => Ok(ContextPolicy::Append),
        ("last_image", None) => Ok(ContextPolicy::LastImage),
        ("window", Some(kept)) => Ok(ContextPolicy::Window(kept.cast_unsigned())),
        ("fresh", None) => Ok(ContextPolicy::Fresh),
        _ => Err(RowError::Context),
    }
}

impl From<&Task> for TaskCell {
    fn from(task: &Task) -> Self {
        let (clock, clock_step_millis) = match task.clock {
            PageClock::Real => ("real", None),
            PageClock::Virtual { step_millis } => ("virtual", Some(step_millis.cast_signed())),
        };
        Self {
            goal: task.goal.clone(),
            start_url: task.start_url.clone(),
            seed: task.seed,
            max_steps: task.max_steps.cast_signed(),
            time_limit_millis: micros(task.time_limit_millis),
            viewport_width: task.viewport.width.cast_signed(),
            viewport_height: task.viewport.height.cast_signed(),
            observation: ObservationSpecCell::from(&task.observation),
            allow_hosts: task.allow_hosts.clone(),
            hooks: HooksCell {
                start: task.hooks.start.clone(),
                probe: task.hooks.probe.clone(),
                solve: task.hooks.solve.clone(),
            },
            clock: clock.into(),
            clock_step_millis,
        }
    }
}

impl From<&ObservationSpec> for ObservationSpecCell {
    fn from(spec: &ObservationSpec) -> Self {
        Self {
            format: spec.format.as_str().into(),
            quality: quality_cell(spec.format),
            clip_width: spec.clip.map(|clip| clip.width.cast_signed()),
            clip_height: spec.clip.map(|clip| clip.height.cast_signed()),
            square: spec.square,
        }
    }
}

impl ObservationSpecCell {
    fn into_domain(self) -> Result<ObservationSpec, RowError> {
        Ok(ObservationSpec {
            format: format(&self.format, self.quality)?,
            clip: self.clip_width.zip(self.clip_height).map(|(width, height)| size(width, height)),
            square: self.square,
        })
    }
}

impl TaskCell {
    pub(super) fn into_domain(self, task_id: String, suite: String, split: Split) -> Result<Task, RowError> {
        let clock = match (&*self.clock, self.clock_step_millis) {
            ("real", None) => PageClock::Real,
            ("virtual", Some(step)) => PageClock::Virtual { step_millis: step.cast_unsigned() },
            _ => return Err(RowError::Clock),
        };
        Ok(Task {
            task_id,
            suite,
            split,
            goal: self.goal,
            start_url: self.start_url,
            seed: self.seed,
            max_steps: self.max_steps.cast_unsigned(),
            time_limit_millis: elapsed(self.time_limit_millis),
            viewport: size(self.viewport_width, self.viewport_height),
            observation: self.observation.into_domain()?,
            allow_hosts: self.allow_hosts,
            hooks: PageHooks { start: self.hooks.start, probe: self.hooks.probe, solve: self.hooks.solve },
            clock,
        })
    }
}
