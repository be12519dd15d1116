//! Disk of the run directory: what a run writes, and what it keeps free.

use super::demand::{DemandTerm, ResourceDemand};
use super::machine::MachineCapacity;
use super::weights::{loads_new_versions, weight_files};
use crate::job::Job;
use crate::sessions::SessionSizes;

/// Machine code of all kernels for one GPU, kept in `policy.engine.kernel_cache`.
const KERNELS_BYTES: u64 = 64 << 20;

/// The demand at any time during the run, and that of the whole data set.
pub(super) fn sums(
    job: &Job,
    sessions: &SessionSizes,
    is_cuda: bool,
    machine: &MachineCapacity,
) -> Vec<ResourceDemand> {
    let at_once = peak_terms(job, sessions, is_cuda, machine.has_checkpoint);
    let remedy = "free disk space, use a run.output_dir on a larger disk, or lower records.disk_reserve_bytes, records.max_shard_bytes or env.sessions_max";
    let first = ResourceDemand {
        what: "disk to run",
        terms: at_once,
        available: machine.disk.clone(),
        remedy: remedy.into(),
        must_fit: false,
    };
    let Some(data) = data_set(job, sessions) else { return vec![first] };
    let mut terms = first.terms.clone();
    terms.extend(data);
    let remedy = "free disk space, use a larger disk, lower tasks.groups, or set records.retention_bytes and env.archive_bytes_max; below records.disk_reserve_bytes of free disk no trajectory starts";
    let whole = ResourceDemand { what: "disk to the end", terms, remedy: remedy.into(), ..first.clone() };
    vec![first, whole]
}

fn peak_terms(job: &Job, sessions: &SessionSizes, is_cuda: bool, has_checkpoint: bool) -> Vec<DemandTerm> {
    let count = sessions.count as u64;
    let steps = sessions.workload.steps_mean().ceil() as u64;
    let shard = job.records.max_shard_bytes;
    let mut terms = vec![
        DemandTerm::new(
            "spool of open trajectories",
            count * steps * sessions.step_bytes,
            format!("{count} sessions x {steps} steps x {} kB", sessions.step_bytes / 1000),
        ),
        DemandTerm::new("a shard and its spool", 2 * shard, "2 x records.max_shard_bytes"),
        DemandTerm::new("reserve", job.records.disk_reserve_bytes, "records.disk_reserve_bytes"),
    ];
    if is_cuda {
        terms.push(DemandTerm::new("compiled kernels", KERNELS_BYTES, "estimated"));
    }
    if let Some(model) = job.policy.model.as_ref().filter(|_| !has_checkpoint) {
        let files = weight_files(model);
        terms.push(DemandTerm::new("checkpoint", files.iter().sum(), format!("{} files", files.len())));
        if loads_new_versions(model) {
            let largest = files.iter().max().copied().unwrap_or(0);
            terms.push(DemandTerm::new(
                "the next version",
                largest,
                "its largest file; the others are links",
            ));
        }
    }
    terms
}

/// What all trajectories of the job take, or what is kept of them; `None` if the job limits
/// neither.
fn data_set(job: &Job, sessions: &SessionSizes) -> Option<Vec<DemandTerm>> {
    let size = u64::from(job.tasks.group_size);
    let steps = sessions.workload.steps_mean().ceil() as u64;
    let trajectories = job.tasks.groups.map(|groups| groups.saturating_mul(size));
    let rows = trajectories.zip(job.tasks.groups).map(|(trajectories, groups)| {
        let how = format!("{groups} groups x {size} x {steps} steps x {} kB", sessions.step_bytes / 1000);
        (trajectories.saturating_mul(steps).saturating_mul(sessions.step_bytes), how)
    });
    let kept = job.records.retention.bytes.map(|most| (most, "records.retention_bytes".to_owned()));
    let (bytes, how) = rows.into_iter().chain(kept).min_by_key(|(bytes, _)| *bytes)?;
    let mut terms = vec![DemandTerm::new("the data set", bytes, how)];
    if let Some(archive) = &job.env.archive {
        let each = archive.trajectory_bytes_max;
        let whole =
            trajectories.map(|count| (count.saturating_mul(each), "env.archive_trajectory_bytes_max each"));
        let kept = archive.bytes_max.map(|most| (most, "env.archive_bytes_max"));
        let (bytes, how) = whole.into_iter().chain(kept).min_by_key(|(bytes, _)| *bytes)?;
        terms.push(DemandTerm::new("the archive, at most", bytes, how));
    }
    Some(terms)
}
