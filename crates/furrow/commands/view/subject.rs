//! What the pages of a run need to know before they read its data.

use std::path::Path;

use furrow_dashboard::{DashboardSubject, DeviceKind};
use furrow_records::DataSet;

use super::planned;
use crate::job::stored;
use crate::run_dir;

/// What the pages need to know of a run directory or a data set.
pub(crate) fn subject(dir: &Path, usd_per_device_hour: Option<f64>) -> DashboardSubject {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    // For the `data` directory of a run: job.toml and metrics.jsonl are beside it.
    let is_data = absolute.join("manifest").is_dir();
    let above = absolute.parent().filter(|above| is_data && above.join("job.toml").is_file());
    let run = above.map_or(absolute.clone(), Path::to_owned);
    // A data set that was copied without its run has the job in its own folder.
    let of_data = || DataSet::open(dir).ok().and_then(|set| set.job());
    let job = run_dir::job_text(&run).ok().flatten().or_else(of_data);
    let table = job.as_deref().and_then(|job| stored::table(job).ok()).unwrap_or_default();
    // The name in the job, which the coordinator also reports; the directory may have been renamed.
    let name_in_job = planned::text_at(&table, "run.name").map(str::to_owned);
    let folder = || run.file_name().map_or("data set".into(), |name| name.to_string_lossy().into_owned());
    let name = name_in_job.unwrap_or_else(folder);
    DashboardSubject {
        name,
        dir: Some(run),
        coordinator: None,
        identity: None,
        device: device(&table),
        planned: planned::planned(&table),
        floor: planned::floor(&table),
        job,
        usd_per_device_hour,
    }
}

/// What the policy of a job computes on.
fn device(job: &toml::Table) -> DeviceKind {
    let text_of = |path| planned::text_at(job, path).unwrap_or_default();
    match (text_of("policy.kind"), text_of("policy.engine.backend")) {
        ("model", "cuda") => DeviceKind::Gpu,
        ("model", _) => DeviceKind::Cpu,
        _ => DeviceKind::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_called_what_its_job_says_wherever_it_lies() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().file_name().unwrap().to_string_lossy().into_owned();
        assert_eq!(subject(dir.path(), None).name, folder);
        for (job, want) in [("[run]\nname = \"night\"", "night"), ("[run]", &folder), ("not toml", &folder)] {
            std::fs::write(dir.path().join("job.toml"), job).unwrap();
            assert_eq!(subject(dir.path(), None).name, want, "{job}");
        }
    }

    #[test]
    fn a_job_says_what_it_computes_with() {
        let check = |job: &str, want: DeviceKind| assert_eq!(device(&job.parse().unwrap()), want, "{job}");
        check("[policy]\nkind = \"model\"\n[policy.engine]\nbackend = \"cuda\"", DeviceKind::Gpu);
        check("[policy]\nkind = \"model\"\n[policy.engine]\nbackend = \"cpu\"", DeviceKind::Cpu);
        check("[policy]\nkind = \"scripted\"\n[policy.engine]\nbackend = \"cpu\"", DeviceKind::None);
        check("", DeviceKind::None);
    }
}
