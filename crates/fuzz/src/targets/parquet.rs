//! Parquet files of a data set.

use std::hint::black_box;

use furrow_records::fixtures::data_set::{append, write};
use furrow_records::fixtures::{TrajectoryFixture, group};
use furrow_records::{DataSet, RecordIter, Table, verify, written_file};
use furrow_rollout::{EndKind, Id};

use crate::{FuzzTarget, Seed, accept, files};

pub(super) const PARQUET: FuzzTarget = FuzzTarget {
    name: "parquet",
    run,
    repair: Some(repair),
    memory_max: |_| 256 << 20,
    bytes_max: 64 << 10,
    catches_panics: true,
    seeds,
};

const SHARD: &str = "s";
const MAGIC: &[u8] = b"PAR1";

/// The first byte is the number of the table, behind it the file, which a manifest lists with its
/// own length and hash.
fn run(input: &[u8]) {
    let Some((table, file)) = input.split_first() else { return };
    let Some(table) = Table::ALL.into_iter().nth(usize::from(table.wrapping_sub(b'0'))) else { return };
    let folder = files::scratch();
    files::put(folder, &format!("{table}/{SHARD}.parquet"), file);
    let shard = Id::new(SHARD).expect("the name of a shard");
    let Ok(listed) = written_file(folder, table, &shard) else { return };
    if listed.rows == 0 {
        return;
    }
    let commit = append(folder, SHARD, vec![listed.clone()]).numbered(1);
    let commit = serde_json::to_vec(&commit).expect("a commit contains only plain values");
    files::put(folder, "manifest/00000000000000000001.json", &commit);
    let set = DataSet::open(folder).expect("the manifest is sound");
    match table {
        Table::Trajectories => read(set.trajectories()),
        Table::Steps => read(set.steps()),
        Table::FailedSteps => read(set.failed_steps()),
        Table::Groups => read(set.groups()),
        Table::Scores => read(set.rescores()),
    }
    drop(set.prefill_gap(&listed));
    drop(set.job());
    let report = verify(folder).expect("a readable folder is verified");
    assert_eq!(report.counts.files, 1, "the file is looked at");
}

/// Reads all rows, and those behind one that cannot be read.
fn read<T>(rows: RecordIter<'_, T>) {
    for row in rows {
        if black_box(row).is_ok() {
            accept();
        }
    }
}

/// Restores the marks at both ends.
fn repair(input: &[u8]) -> Vec<u8> {
    let mut repaired = input.to_vec();
    let length = repaired.len();
    if length > 12 {
        repaired[1..5].copy_from_slice(MAGIC);
        repaired[length - 4..].copy_from_slice(MAGIC);
        repaired[0] = b'0' + repaired[0].wrapping_sub(b'0') % Table::ALL.len() as u8;
    }
    repaired
}

fn seeds() -> Vec<Seed> {
    let folder = files::scratch();
    let scored = TrajectoryFixture { steps: 2, group_size: 2, ..TrajectoryFixture::default() };
    let failed = TrajectoryFixture { sample: 1, end: EndKind::ALL[EndKind::ALL.len() - 1], ..scored.clone() };
    let made = [scored.trajectory(), failed.trajectory()];
    let records = [made[0].0.clone(), made[1].0.clone()];
    let written = write(folder, SHARD, &made, &[group(&records)], &[]);
    written
        .iter()
        .map(|file| {
            let bytes = std::fs::read(folder.join(&file.path)).expect("the file was written");
            let table = Table::ALL.into_iter().position(|table| table == file.table).unwrap_or(0);
            Seed::new(file.table.as_str(), [&[b'0' + table as u8], &bytes[..]].concat())
        })
        .collect()
}
