//! What a resolved job plans, read from its TOML text, so that jobs of older builds can be shown,
//! too.

use std::path::Path;
use std::sync::Arc;

use furrow_dashboard::{DeviceFloor, MeasuredWork, PlannedWork};
use furrow_model::config::Config;
use furrow_model::floor::DeviceSpec;
use furrow_simulator::{ContextRetention, RolloutFloor, SessionMix};
use toml::{Table, Value};

/// The floor of a model on a GPU, as `furrow plan` computes it, for the run's own steps, tokens and
/// pages.
#[derive(Debug)]
struct GpuFloor {
    device: &'static DeviceSpec,
    model: Config,
    keep: ContextRetention,
}

impl DeviceFloor for GpuFloor {
    fn device(&self) -> &str {
        self.device.name
    }

    fn trajectories_per_hour(&self, work: &MeasuredWork) -> f64 {
        let whole = |value: f64| value.round().max(1.0) as usize;
        let mix = SessionMix {
            steps: whole(work.steps),
            generated: whole(work.tokens),
            page_seconds: work.page_seconds,
            sessions: work.sessions.max(1) as usize,
            ..SessionMix::default()
        };
        RolloutFloor::floor(&self.model, self.device, &mix, self.keep).trajectories_per_hour
    }
}

/// What the job plans; `None` if it does not set the number of sessions.
pub(crate) fn planned(job: &Table) -> Option<PlannedWork> {
    let whole = |path| value_at(job, path).and_then(Value::as_integer);
    let groups = whole("tasks.groups").zip(whole("tasks.group_size"));
    let has_tokens = text_at(job, "policy.kind") == Some("model");
    let tokens_max = whole("policy.sampling.max_tokens").filter(|_| has_tokens);
    Some(PlannedWork {
        trajectories: groups.and_then(|(groups, size)| u64::try_from(groups.saturating_mul(size)).ok()),
        sessions: u32::try_from(whole("env.sessions_max")?).ok()?,
        tokens_max: tokens_max.and_then(|tokens| u32::try_from(tokens).ok()),
    })
}

/// The floor of the job's model on the GPU that its dashboard names; `None` if either is missing,
/// or if the job computes on the CPU: its hours are not those of a GPU.
pub(crate) fn floor(job: &Table) -> Option<Arc<dyn DeviceFloor>> {
    if text_at(job, "policy.kind") != Some("model") || text_at(job, "policy.engine.backend") != Some("cuda") {
        return None;
    }
    let device = DeviceSpec::named(text_at(job, "dashboard.gpu")?)?;
    let keep = match text_at(job, "policy.context.keep") {
        Some("last_image") => ContextRetention::LastImage,
        _ => ContextRetention::Append,
    };
    let model = Config::read(Path::new(text_at(job, "policy.checkpoint")?)).ok()?;
    Some(Arc::new(GpuFloor { device, model, keep }))
}

/// The string at a path of keys separated by dots.
pub(crate) fn text_at<'a>(job: &'a Table, path: &str) -> Option<&'a str> {
    value_at(job, path)?.as_str()
}

/// The value at a path of keys separated by dots.
fn value_at<'a>(job: &'a Table, path: &str) -> Option<&'a Value> {
    let (section, key) = path.split_once('.')?;
    match key.split_once('.') {
        Some((below, key)) => job.get(section)?.get(below)?.get(key),
        None => job.get(section)?.get(key),
    }
}

#[cfg(test)]
mod tests {
    use furrow_model::init::{InitSpec, ModelSize, SHARD_BYTES_MAX, StoredType, init};

    use super::*;

    const JOB: &str = "[tasks]\ngroups = 50\ngroup_size = 8\n[env]\nsessions_max = 100\n[policy]\nkind = \"model\"\n\
                       [policy.sampling]\nmax_tokens = 150\n[policy.context]\nkeep = \"last_image\"\n";

    #[test]
    fn a_job_names_what_it_plans() {
        let planned_of = |text: &str| planned(&text.parse().unwrap());
        let of_model = PlannedWork { trajectories: Some(400), sessions: 100, tokens_max: Some(150) };
        assert_eq!(planned_of(JOB), Some(of_model.clone()));
        let of_script = PlannedWork { tokens_max: None, ..of_model.clone() };
        assert_eq!(planned_of(&JOB.replace("\"model\"", "\"scripted\"")), Some(of_script));
        let of_all_tasks = PlannedWork { trajectories: None, ..of_model };
        assert_eq!(planned_of(&JOB.replace("groups = 50\n", "")), Some(of_all_tasks));
        assert_eq!(planned_of(""), None);
        assert_eq!(planned_of("env = 3\ntasks = \"no\""), None);
    }

    #[test]
    fn a_floor_is_that_of_furrow_plan_with_the_runs_own_work() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = dir.path().join("tiny");
        let tiny = InitSpec {
            size: ModelSize::Tiny,
            seed: 1,
            dtype: StoredType::Float32,
            shard_bytes_max: SHARD_BYTES_MAX,
        };
        init(&checkpoint, &tiny).unwrap();
        let job = |gpu: &str, checkpoint: &Path| -> Table {
            let named = format!("checkpoint = {:?}\n[policy.sampling]", checkpoint.display().to_string());
            let job = JOB.replace("[policy.sampling]", &named);
            format!("{job}[policy.engine]\nbackend = \"cuda\"\n[dashboard]\ngpu = {gpu:?}\n").parse().unwrap()
        };
        let mut on_cpu = job("h200", &checkpoint);
        on_cpu["policy"]["engine"]["backend"] = "cpu".into();
        assert!(floor(&job("", &checkpoint)).is_none());
        assert!(floor(&job("h200", dir.path())).is_none(), "there is no checkpoint yet");
        assert!(floor(&on_cpu).is_none(), "a CPU-hour has no floor of a GPU");
        let known_floor = floor(&job("h200", &checkpoint)).unwrap();
        assert_eq!(known_floor.device(), "h200");
        let work = MeasuredWork { steps: 29.6, tokens: 150.2, page_seconds: 2.0, sessions: 100 };
        let model = Config::read(&checkpoint).unwrap();
        let device = DeviceSpec::named("h200").unwrap();
        let wanted = RolloutFloor::floor(&model, device, &SessionMix::default(), ContextRetention::LastImage);
        assert_eq!(known_floor.trajectories_per_hour(&work), wanted.trajectories_per_hour);
    }
}
