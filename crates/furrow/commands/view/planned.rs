//! What a resolved job plans, read out of its own text: a run that was begun by an older build is shown, too, with what it says.

use std::path::Path;
use std::sync::Arc;

use furrow_dashboard::{Floor, Planned, Work};
use furrow_model::config::Config;
use furrow_model::floor::{Device, Keep, Mix, Rollout};
use toml::{Table, Value};

/// The floor of a model on a GPU: that of `furrow plan`, with the run's own steps, tokens and pages.
#[derive(Debug)]
struct OfGpu {
    device: &'static Device,
    model: Config,
    keep: Keep,
}

impl Floor for OfGpu {
    fn device(&self) -> &str {
        self.device.name
    }

    fn trajectories_per_hour(&self, work: &Work) -> f64 {
        let whole = |value: f64| value.round().max(1.0) as usize;
        let mix = Mix {
            steps: whole(work.steps),
            generated: whole(work.tokens),
            page_seconds: work.page_seconds,
            sessions: work.sessions.max(1) as usize,
            ..Mix::default()
        };
        Rollout::floor(&self.model, self.device, &mix, self.keep).trajectories_per_hour
    }
}

/// What the job plans; `None` where it does not say how many sessions it has.
pub fn planned(job: &Table) -> Option<Planned> {
    let whole = |path| at(job, path).and_then(Value::as_integer);
    let groups = whole("tasks.groups").zip(whole("tasks.group_size"));
    let has_tokens = text(job, "policy.kind") == Some("model");
    let tokens_max = whole("policy.sampling.max_tokens").filter(|_| has_tokens);
    Some(Planned {
        trajectories: groups.and_then(|(groups, size)| u64::try_from(groups.saturating_mul(size)).ok()),
        sessions: u32::try_from(whole("env.sessions_max")?).ok()?,
        tokens_max: tokens_max.and_then(|tokens| u32::try_from(tokens).ok()),
    })
}

/// The floor of the job's model on the GPU that its dashboard names; `None` where either is not there.
pub fn floor(job: &Table) -> Option<Arc<dyn Floor>> {
    let device = Device::named(text(job, "dashboard.gpu")?)?;
    let keep = match text(job, "policy.context.keep") {
        Some("last_image") => Keep::LastImage,
        _ => Keep::Append,
    };
    let model = Config::read(Path::new(text(job, "policy.checkpoint")?)).ok()?;
    Some(Arc::new(OfGpu { device, model, keep }))
}

/// The text behind keys that are parted by dots.
pub fn text<'a>(job: &'a Table, path: &str) -> Option<&'a str> {
    at(job, path)?.as_str()
}

/// The value behind keys that are parted by dots.
fn at<'a>(job: &'a Table, path: &str) -> Option<&'a Value> {
    let (section, key) = path.split_once('.')?;
    match key.split_once('.') {
        Some((below, key)) => job.get(section)?.get(below)?.get(key),
        None => job.get(section)?.get(key),
    }
}

#[cfg(test)]
mod tests {
    use furrow_model::init::{Init, SHARD_BYTES_MAX, Size, StoredType, init};

    use super::*;

    const JOB: &str = "[tasks]\ngroups = 50\ngroup_size = 8\n[env]\nsessions_max = 100\n[policy]\nkind = \"model\"\n\
                       [policy.sampling]\nmax_tokens = 150\n[policy.context]\nkeep = \"last_image\"\n";

    #[test]
    fn a_job_tells_what_it_plans() {
        let planned_of = |text: &str| planned(&text.parse().unwrap());
        let of_model = Planned { trajectories: Some(400), sessions: 100, tokens_max: Some(150) };
        assert_eq!(planned_of(JOB), Some(of_model.clone()));
        let of_script = Planned { tokens_max: None, ..of_model.clone() };
        assert_eq!(planned_of(&JOB.replace("\"model\"", "\"scripted\"")), Some(of_script));
        let of_all_tasks = Planned { trajectories: None, ..of_model };
        assert_eq!(planned_of(&JOB.replace("groups = 50\n", "")), Some(of_all_tasks));
        assert_eq!(planned_of(""), None);
        assert_eq!(planned_of("env = 3\ntasks = \"no\""), None);
    }

    #[test]
    fn a_floor_is_that_of_furrow_plan_with_the_runs_own_work() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = dir.path().join("tiny");
        let tiny =
            Init { size: Size::Tiny, seed: 1, dtype: StoredType::Float32, shard_bytes_max: SHARD_BYTES_MAX };
        init(&checkpoint, &tiny).unwrap();
        let job = |gpu: &str, checkpoint: &Path| -> Table {
            let named = format!("checkpoint = {:?}\n[policy.sampling]", checkpoint.display().to_string());
            let job = JOB.replace("[policy.sampling]", &named);
            format!("{job}[dashboard]\ngpu = {gpu:?}\n").parse().unwrap()
        };
        assert!(floor(&job("", &checkpoint)).is_none());
        assert!(floor(&job("h200", dir.path())).is_none(), "no checkpoint is there");
        let told = floor(&job("h200", &checkpoint)).unwrap();
        assert_eq!(told.device(), "h200");
        let work = Work { steps: 29.6, tokens: 150.2, page_seconds: 2.0, sessions: 100 };
        let (model, device) = (Config::read(&checkpoint).unwrap(), Device::named("h200").unwrap());
        let wanted = Rollout::floor(&model, device, &Mix::default(), Keep::LastImage);
        assert_eq!(told.trajectories_per_hour(&work), wanted.trajectories_per_hour);
    }
}
