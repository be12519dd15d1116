//! The sessions that a job is planned for: how many at once, what their steps are like, what they keep.

use std::sync::Arc;

use furrow_model::config::{Config, VisionConfig};
use furrow_model::floor::{Keep, Mix, Work as _, Workload};
use furrow_rollout::ContextPolicy;
use furrow_tasks::TaskSet;

use crate::job::Job;
use crate::recorded::Recorded;

/// Bytes of a screenshot with what is stored beside it, where nothing was recorded: what `limits.backlog_max` counts with.
const STEP_BYTES: u64 = 200_000;

/// Sessions of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Sessions {
    /// At once.
    pub count: usize,
    /// What their steps are like.
    pub workload: Arc<Workload>,
    /// What is kept of earlier turns.
    pub keep: Keep,
    /// Bytes of a step in the spool or in a shard.
    pub step_bytes: u64,
    /// Where these come from.
    pub of: String,
}

impl Sessions {
    /// Of trajectories that a run recorded, as a job's context policy has them kept.
    pub fn recorded(recorded: &Recorded, count: usize, context: ContextPolicy) -> Self {
        Self {
            count,
            workload: recorded.workload.clone(),
            keep: keep(context),
            step_bytes: recorded.step_bytes.unwrap_or(STEP_BYTES),
            of: "steps as recorded".into(),
        }
    }

    /// Of a mix on a model, as a job's context policy has them kept. Without a model nothing is cut into tiles.
    pub fn assumed(config: Option<&Config>, mix: &Mix, context: ContextPolicy) -> Self {
        let tiles = config.map_or(0, |config| {
            let rows = config.screenshot_tokens(mix.screenshot.0, mix.screenshot.1);
            rows / config.vision.as_ref().map_or(1, VisionConfig::rows_per_tile)
        });
        Self {
            count: mix.sessions,
            workload: Arc::new(Workload::uniform(mix, tiles as u32)),
            keep: keep(context),
            step_bytes: STEP_BYTES,
            of: format!(
                "{} steps of {} tokens, screenshots of {tiles} tiles, assumed",
                mix.steps, mix.generated
            ),
        }
    }
}

/// What a job says of its sessions: as many at once as it has, replies and trajectories at their longest, the screenshots of its largest page. What its tasks
/// say is left as it is where they cannot be read.
pub fn mix_of(job: &Job, tasks: Option<&TaskSet>, base: Mix) -> Mix {
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
    Mix { steps, screenshot, generated: generated as usize, sessions: sessions as usize, ..base }
}

/// Windows and fresh prompts are read again each turn: `append` holds at least as much.
fn keep(context: ContextPolicy) -> Keep {
    if context == ContextPolicy::LastImage { Keep::LastImage } else { Keep::Append }
}
