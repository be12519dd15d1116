//! The sessions that a job is planned for: how many run at once, the sizes of their steps, what
//! they keep.

use std::sync::Arc;

use furrow_model::config::{Config, VisionConfig};
use furrow_model::floor::ModelWork as _;
use furrow_rollout::ContextPolicy;
use furrow_simulator::{ContextRetention, SessionMix, Workload};
use furrow_tasks::TaskSet;

use crate::job::Job;
use crate::recorded::RecordedRun;

/// Bytes of a stored step with its screenshot if nothing was recorded; `limits.backlog_max` counts
/// with the same number.
const STEP_BYTES: u64 = 200_000;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SessionSizes {
    /// Number of concurrent sessions.
    pub count: usize,
    /// Sizes of their steps.
    pub workload: Arc<Workload>,
    /// What sessions keep of earlier turns.
    pub keep: ContextRetention,
    /// Bytes of a step in the spool or in a shard.
    pub step_bytes: u64,
    /// Where these numbers come from.
    pub source: String,
}

impl SessionSizes {
    /// Sessions like the recorded ones, which keep what the job's context policy keeps.
    pub(crate) fn recorded(recorded: &RecordedRun, count: usize, context: ContextPolicy) -> Self {
        Self {
            count,
            workload: recorded.workload.clone(),
            keep: keep(context),
            step_bytes: recorded.step_bytes.unwrap_or(STEP_BYTES),
            source: "recorded steps".into(),
        }
    }

    /// Sessions of a mix on a model, which keep what the job's context policy keeps. Without a
    /// model no screenshot is cut into tiles.
    pub(crate) fn assumed(config: Option<&Config>, mix: &SessionMix, context: ContextPolicy) -> Self {
        let tiles = config.map_or(0, |config| {
            let rows = config.screenshot_tokens(mix.screenshot.0, mix.screenshot.1);
            rows / config.vision.as_ref().map_or(1, VisionConfig::rows_per_tile)
        });
        Self {
            count: mix.sessions,
            workload: Arc::new(Workload::uniform(mix, tiles as u32)),
            keep: keep(context),
            step_bytes: STEP_BYTES,
            source: format!(
                "{} steps of {} tokens, screenshots of {tiles} tiles, assumed",
                mix.steps, mix.generated
            ),
        }
    }
}

/// The mix that a job plans: its number of concurrent sessions, its longest replies and
/// trajectories, the screenshots of its largest page. Without readable tasks, `base` stays for what
/// they would set.
pub(crate) fn mix_of(job: &Job, tasks: Option<&TaskSet>, base: SessionMix) -> SessionMix {
    let specs = || tasks.into_iter().flat_map(TaskSet::specs);
    let steps = specs().map(|spec| spec.task.max_steps as usize).max().unwrap_or(base.steps);
    let pages = specs().map(|spec| spec.task.viewport);
    let rules = job.policy.model.as_ref().and_then(|model| model.constrain.as_ref());
    let generated = rules.and_then(|rules| rules.exact_tokens);
    let generated = generated.unwrap_or(job.policy.session.sampling.max_tokens);
    let largest = pages.max_by_key(|page| u64::from(page.width) * u64::from(page.height));
    let screenshot = largest.map_or(base.screenshot, |page| (page.width as usize, page.height as usize));
    let slots = u64::from(job.tasks.group_size) + u64::from(job.tasks.group_spares);
    let in_all = job.tasks.groups.map_or(u64::MAX, |groups| groups.saturating_mul(slots));
    let sessions = u64::from(job.env.sessions_max.min(job.policy.sessions_max)).min(in_all);
    SessionMix { steps, screenshot, generated: generated as usize, sessions: sessions as usize, ..base }
}

/// Windows and fresh prompts are prefilled each turn: `append` keeps at least as much.
fn keep(context: ContextPolicy) -> ContextRetention {
    if context == ContextPolicy::LastImage { ContextRetention::LastImage } else { ContextRetention::Append }
}
