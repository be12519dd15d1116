//! Data sets of earlier schema versions: read, verified and gone on with beside files of today.

use std::fs;
use std::path::Path;

use furrow_records::cell::columns;
use furrow_records::fixtures::TrajectoryFixture;
use furrow_records::fixtures::data_set::{append, open, write};
use furrow_records::merge::{self, MergePlan};
use furrow_records::{DataSet, RecordsError, Table, schema_version, verify};
use furrow_rollout::SCHEMA_VERSION;
use futures::executor::block_on;

/// The data of a run of v0.1.0, schema version 1.
const RELEASED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/v0.1.0/finished/data");

columns! {
    /// A column that version 1 has, beside one that it lacks.
    LaterRow { trajectory_id: String, success: Option<bool> }

    /// Only what version 1 lacks.
    LaterAloneRow { success: Option<bool> }
}

fn copied() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy(Path::new(RELEASED), dir.path());
    dir
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn rows<R: furrow_records::cell::ColumnCell>(dir: &Path) -> Vec<R> {
    DataSet::open(dir).unwrap().rows::<R>(Table::Trajectories).flat_map(Result::unwrap).collect()
}

#[test]
fn a_file_of_version_1_reads_with_nulls_for_what_it_lacks() {
    let dir = copied();
    let report = verify(dir.path()).unwrap();
    assert!(report.is_sound(), "{:#?}", report.breaches);
    assert_eq!(report.counts.trajectories, 16);
    let found = rows::<LaterRow>(dir.path());
    assert_eq!(found.len(), 16);
    assert!(found.iter().all(|row| row.success.is_none() && !row.trajectory_id.is_empty()));
    // A batch without any column still has its rows.
    assert_eq!(rows::<LaterAloneRow>(dir.path()), vec![LaterAloneRow { success: None }; 16]);
    let set = DataSet::open(dir.path()).unwrap();
    let solved = set.trajectories().map(Result::unwrap).filter_map(|record| record.score?.success).count();
    assert_eq!(solved, 10, "what the score says is read as before");
}

#[test]
fn files_of_both_versions_are_one_data_set() {
    let dir = copied();
    let mut manifest = open(dir.path());
    for (shard, group) in [("new-a", 100), ("new-b", 101)] {
        let made = [TrajectoryFixture { group, group_size: 1, ..TrajectoryFixture::default() }.trajectory()];
        let group = furrow_records::fixtures::group(&[made[0].0.clone()]);
        let files = write(dir.path(), shard, &made, &[group], &[]);
        assert_eq!(schema_version(dir.path(), &files), SCHEMA_VERSION);
        block_on(manifest.commit(&append(dir.path(), shard, files))).unwrap();
    }
    let report = verify(dir.path()).unwrap();
    assert!(report.is_sound(), "{:#?}", report.breaches);
    let known: Vec<bool> = rows::<LaterRow>(dir.path()).into_iter().filter_map(|row| row.success).collect();
    assert_eq!(known, [true, true]);

    // The older files name no job, so they stay as they are.
    let parts: Vec<_> = manifest.snapshot().files(Table::Trajectories).cloned().collect();
    let older: Vec<_> =
        parts.into_iter().filter(|part| part.path.starts_with("trajectories/finished-")).collect();
    assert!(!older.is_empty());
    assert_eq!(schema_version(dir.path(), &older), 1);
    let shard = furrow_records::fixtures::plan(dir.path(), "merged");
    let own = furrow_records::ShardPlan { run_id: furrow_rollout::Id::new("finished").unwrap(), ..shard };
    assert_eq!(merge::mergeable_schema(dir.path(), &own.run_id, &older[0]), None);
    let plan = MergePlan { table: Table::Trajectories, schema_version: 1, parts: older };
    let refused = merge::merge(&own, &plan, |_, _| {});
    let Err(error @ RecordsError::Unmergeable { .. }) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("schema version 1"), "{error}");
}
