//! What must hold once a run is over.

use std::collections::BTreeMap;
use std::path::Path;

use furrow_records::{DataSet, verify};
use furrow_rollout::{EndKind, TrajectoryRecord};

use crate::accounts::Account;
use crate::farm::{GROUP_SIZE, GROUPS};

/// Compares the data set with what the workers know to be acknowledged. Returns how many attempts
/// there were beyond the first of each slot.
pub(crate) fn check_run(run: &Path, accounts: &BTreeMap<String, Account>) -> Result<u64, String> {
    let report = verify(run).map_err(|error| error.to_string())?;
    if !report.is_sound() || !report.warnings.is_empty() {
        return Err(format!("the data set is not sound: {:?} {:?}", report.breaches, report.warnings));
    }
    let data = DataSet::open(run).map_err(|error| error.to_string())?;
    let mut rows: BTreeMap<String, TrajectoryRecord> = BTreeMap::new();
    for row in data.trajectories() {
        let row = row.map_err(|error| error.to_string())?;
        let id = row.ancestry.trajectory_id.to_string();
        if rows.insert(id.clone(), row).is_some() {
            return Err(format!("{id} is in the data set twice"));
        }
    }
    let mut steps: BTreeMap<String, u32> = BTreeMap::new();
    for step in data.steps().chain(data.failed_steps()) {
        let step = step.map_err(|error| error.to_string())?;
        *steps.entry(step.ancestry.trajectory_id.to_string()).or_default() += 1;
    }
    for (id, account) in accounts {
        check_trajectory(id, account, rows.get(id), steps.get(id).copied().unwrap_or(0))?;
    }
    check_groups(&data, &rows)?;
    Ok(rows.len() as u64 - GROUPS * u64::from(GROUP_SIZE))
}

/// Everything that was acknowledged is there.
fn check_trajectory(
    id: &str,
    account: &Account,
    row: Option<&TrajectoryRecord>,
    steps: u32,
) -> Result<(), String> {
    let Some(row) = row else {
        return Err(format!("{id} was acknowledged and is not in the data set: {account:?}"));
    };
    if steps < account.steps {
        return Err(format!("{id} has {steps} steps: {account:?}"));
    }
    let end = row.ending.end;
    match &account.end {
        Some(acknowledged) if acknowledged != end.as_str() && end != EndKind::PageCrash => {
            Err(format!("{id} was acknowledged as {account:?} and became {end:?}"))
        }
        Some(_) if steps != account.steps => Err(format!("{id} ended with {steps} steps: {account:?}")),
        _ => Ok(()),
    }
}

/// Every group is closed, and each of its slots was scored exactly once.
fn check_groups(data: &DataSet, rows: &BTreeMap<String, TrajectoryRecord>) -> Result<(), String> {
    let mut groups = 0;
    for group in data.groups() {
        group.map_err(|error| error.to_string())?;
        groups += 1;
    }
    let mut slots = BTreeMap::new();
    for row in rows.values().filter(|row| row.score.is_some()) {
        *slots.entry((&row.ancestry.group_id, row.ancestry.sample_index)).or_insert(0) += 1;
    }
    let is_whole = slots.len() as u64 == GROUPS * u64::from(GROUP_SIZE);
    if groups != GROUPS || !is_whole || slots.values().any(|count| *count != 1) {
        return Err(format!("{groups} groups, scored {slots:?}"));
    }
    Ok(())
}
