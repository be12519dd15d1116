//! What must hold once a simulated run is over.

use std::collections::BTreeMap;

use furrow_coordinator::SteppedCoordinator;
use furrow_coordinator::core::JobOutcome;
use furrow_faulty_disk::Crash;
use furrow_records::{DataSet, verify};
use furrow_rollout::{EndKind, TrajectoryRecord};
use furrow_telemetry::TimeSource;

use crate::farm::{Account, Farm, Violation};
use crate::messages::{GROUP_SIZE, GROUPS, job, mark};

/// Checks the run directory against what the workers were told.
pub(crate) fn check_run(farm: &mut Farm) -> Result<(), Violation> {
    drop(farm.coordinator.take());
    if farm.seed.is_multiple_of(3) {
        restart_once_more(farm)?;
    }
    let run = farm.root.join("run");
    let report = verify(&run).map_err(|error| error.to_string())?;
    if !report.is_sound() || !report.warnings.is_empty() {
        return Err(format!("the data set is not sound: {:?} {:?}", report.breaches, report.warnings));
    }
    let data = DataSet::open(&run).map_err(|error| error.to_string())?;
    let mut rows: BTreeMap<String, TrajectoryRecord> = BTreeMap::new();
    for row in data.trajectories() {
        let row = row.map_err(|error| error.to_string())?;
        let id = row.ancestry.trajectory_id.to_string();
        if rows.insert(id.clone(), row).is_some() {
            return Err(format!("{id} is in the data set twice"));
        }
    }
    let mut marks: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for step in data.steps().chain(data.failed_steps()) {
        let step = step.map_err(|error| error.to_string())?;
        marks
            .entry(step.ancestry.trajectory_id.to_string())
            .or_default()
            .push(step.record.observed_at_micros);
    }
    for (trajectory, account) in &farm.accounts {
        let marks = marks.get(trajectory).map_or(&[][..], Vec::as_slice);
        check_trajectory(trajectory, account, rows.get(trajectory), marks, farm.is_damaged(trajectory))?;
    }
    for row in rows.values() {
        farm.counts.records_lost += u64::from(row.ending.end == EndKind::RecordLost);
    }
    check_copies(farm, &rows)?;
    check_groups(&data, &rows)?;
    check_leftovers(farm)
}

/// What was told to be in the data set survives a power cut after the end, too.
fn restart_once_more(farm: &Farm) -> Result<(), Violation> {
    farm.disk.arm(0);
    farm.disk.crash(Crash::PowerCut);
    farm.disk.revive();
    let job = job(farm.dir.path(), &farm.root, true);
    let opened = SteppedCoordinator::open(job, TimeSource::system(), &farm.runtime);
    let mut opened = opened.map_err(|error| format!("after the end: {}", furrow_records::chain(&error)))?;
    opened.make_durable().map_err(|error| furrow_records::chain(&error))?;
    match opened.over() {
        Some(JobOutcome::Complete) => Ok(()),
        other => Err(format!("after a power cut a complete job is {other:?}")),
    }
}

/// A trajectory is there once, with every acknowledged step, each as it was sent, and with the end
/// that was acknowledged. Only damage at rest may lose a record, and then the row says so.
fn check_trajectory(
    id: &str,
    account: &Account,
    row: Option<&TrajectoryRecord>,
    marks: &[i64],
    is_damaged: bool,
) -> Result<(), Violation> {
    let Some(row) = row else {
        if account.is_end_acknowledged || account.acknowledged > 0 {
            return Err(format!("{id} was acknowledged and is not in the data set: {account:?}"));
        }
        return Ok(());
    };
    let end = row.ending.end;
    let is_lost = end == EndKind::RecordLost;
    if is_lost && !is_damaged {
        return Err(format!("{id} lost its record without damage: {}", row.ending.reason));
    }
    let sent: Vec<i64> = (0..account.sent).map(|step| mark(id, step)).collect();
    if !sent.starts_with(marks) {
        return Err(format!("{id} has steps that no worker sent: {marks:?}, {account:?}"));
    }
    if marks.len() < account.acknowledged as usize && !is_damaged {
        return Err(format!("{id} lost acknowledged steps: {} of {account:?}, {end:?}", marks.len()));
    }
    if !account.is_end_acknowledged || is_lost {
        return Ok(());
    }
    if marks.len() != account.acknowledged as usize && !is_damaged {
        return Err(format!("{id} ended with {} steps: {account:?}", marks.len()));
    }
    // Without evidence it is a crash of the page.
    let is_same = account.end == Some(end) || end == EndKind::PageCrash;
    if !is_same {
        return Err(format!("{id} was acknowledged as {account:?} and became {end:?}"));
    }
    Ok(())
}

/// What is left of a lost record is in `lost+found/`, with every byte that the damage left.
fn check_copies(farm: &Farm, rows: &BTreeMap<String, TrajectoryRecord>) -> Result<(), Violation> {
    let files = farm.disk.files();
    for (name, left) in &farm.damaged {
        let file = name.trim_start_matches("run/spool/");
        let row = rows.get(file.trim_end_matches(".spool"));
        if row.is_none_or(|row| row.ending.end != EndKind::RecordLost) {
            continue;
        }
        let is_copy = |(copy, length): &&(String, u64)| {
            copy.starts_with("run/lost+found/") && copy.contains(file) && length >= left
        };
        if !files.iter().any(|file| is_copy(&file)) {
            return Err(format!("{name} lost its record, and lost+found/ has no copy of its {left} bytes"));
        }
    }
    Ok(())
}

/// Every group is closed, and each of its slots was scored at most once.
fn check_groups(data: &DataSet, rows: &BTreeMap<String, TrajectoryRecord>) -> Result<(), Violation> {
    let mut groups = 0;
    for group in data.groups() {
        group.map_err(|error| error.to_string())?;
        groups += 1;
    }
    let mut slots = BTreeMap::new();
    for row in rows.values().filter(|row| row.score.is_some()) {
        *slots.entry((&row.ancestry.group_id, row.ancestry.sample_index)).or_insert(0) += 1;
    }
    let is_wrong = slots.len() as u64 > GROUPS * u64::from(GROUP_SIZE);
    if groups != GROUPS || is_wrong || slots.values().any(|count| *count != 1) {
        return Err(format!("{groups} groups, scored {slots:?}"));
    }
    Ok(())
}

/// Nothing is left that the next start would have to look at, and nothing was put aside without
/// damage.
fn check_leftovers(farm: &Farm) -> Result<(), Violation> {
    for (name, _) in farm.disk.files() {
        let is_spooled = name.starts_with("run/spool/");
        let has_reason = !farm.damaged.is_empty() || farm.strays > 0;
        let is_put_aside = name.starts_with("run/lost+found/") && !has_reason;
        if is_spooled || is_put_aside {
            let text = std::fs::read_to_string(farm.root.join(name.clone())).unwrap_or_default();
            return Err(format!("{name} is left: {text:.600}"));
        }
    }
    Ok(())
}
