//! Shards: layout, atomic appearance, and what is left after a failure.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use furrow_records::fixtures::data_set::{commit_files, commit_group, open, write};
use furrow_records::fixtures::{self, TrajectoryFixture};
use furrow_records::{
    DataSet, RecordsError, ShardPlan, ShardStage, ShardWriter, Table, check_written, local_files,
    remove_shard,
};
use furrow_rollout::{EndKind, Id, PolicyKind, Size, Split};
use parquet::basic::{Compression, Encoding};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::{FileReader, SerializedFileReader};

/// Every stage of every table, in the order it is reached.
fn stages(tables: &[Table]) -> Vec<(Table, ShardStage)> {
    tables.iter().flat_map(|&table| ShardStage::ALL.map(|stage| (table, stage))).collect()
}

fn footer(path: &Path) -> ParquetMetaData {
    SerializedFileReader::new(File::open(path).unwrap()).unwrap().metadata().clone()
}

fn names(dir: &Path) -> Vec<String> {
    local_files(dir).unwrap().into_iter().map(|file| file.name).collect()
}

#[test]
fn columns_lie_as_they_should() {
    let dir = tempfile::tempdir().unwrap();
    let made = [TrajectoryFixture::default().trajectory()];
    let files = write(dir.path(), "s", &made, &[fixtures::group(&[made[0].0.clone()])], &[]);
    let columns: BTreeMap<String, ColumnChunkMetaData> = files
        .iter()
        .flat_map(|file| {
            let footer = footer(&dir.path().join(&file.path));
            let columns = footer.row_group(0).columns().to_vec();
            let name = move |column: &ColumnChunkMetaData| {
                format!("{}/{}", file.table, column.column_path().string())
            };
            columns.into_iter().map(move |column| (name(&column), column))
        })
        .collect();

    #[track_caller]
    fn check(
        column: &ColumnChunkMetaData,
        data: Encoding,
        has_dictionary: bool,
        is_packed: bool,
        has_statistics: bool,
    ) {
        let encodings: Vec<Encoding> = column.encodings().collect();
        assert!(encodings.contains(&data), "{encodings:?} lacks {data:?}");
        assert_eq!(column.dictionary_page_offset().is_some(), has_dictionary, "dictionary");
        assert_eq!(
            matches!(column.compression(), Compression::ZSTD(_)),
            is_packed,
            "{:?}",
            column.compression()
        );
        assert_eq!(column.statistics().is_some(), has_statistics, "statistics");
    }
    for picture in ["steps/observation.screenshot.bytes", "trajectories/evidence.screenshot.bytes"] {
        check(&columns[picture], Encoding::PLAIN, false, false, false);
    }
    for tokens in [
        "prompt_token_ids",
        "response_token_ids",
        "kept_count",
        "kept_token_ids",
        "kept_offsets",
        "policy_versions",
    ] {
        let column = &columns[&format!("steps/{tokens}.list.item")];
        check(column, Encoding::DELTA_BINARY_PACKED, false, true, false);
    }
    for floats in ["logprobs", "sampled_logprobs", "entropy"] {
        let column = &columns[&format!("steps/{floats}.list.item")];
        check(column, Encoding::BYTE_STREAM_SPLIT, false, true, false);
    }
    for plain in [
        "steps/trajectory_id",
        "steps/observation.url",
        "steps/image_spans.list.item.rgb_sha256",
        "steps/observation.tabs.list.item.title",
        "trajectories/task_json",
        "trajectories/score.evidence_sha256",
        "groups/failed.list.item.end",
    ] {
        let column = &columns[plain];
        assert!(matches!(column.compression(), Compression::ZSTD(_)), "{plain}");
        assert!(column.dictionary_page_offset().is_some() || column.num_values() == 1, "{plain}");
    }
    assert!(columns["steps/trajectory_id"].statistics().is_some(), "readers find a trajectory by them");
}

#[test]
fn a_file_says_where_it_comes_from() {
    let dir = tempfile::tempdir().unwrap();
    let files = write(dir.path(), "s", &[TrajectoryFixture::default().trajectory()], &[], &[]);
    let footer = footer(&dir.path().join(&files[0].path));
    let pairs = footer.file_metadata().key_value_metadata().unwrap();
    let value = |key: &str| pairs.iter().find(|pair| pair.key == key).and_then(|pair| pair.value.clone());
    assert_eq!(value("furrow.schema_version").as_deref(), Some("4"));
    assert_eq!(value("furrow.run_id").as_deref(), Some("test"));
    assert_eq!(value("furrow.shard_id").as_deref(), Some("s"));
    assert_eq!(value("furrow.table").as_deref(), Some("trajectories"));
    assert_eq!(value("furrow.job"), None, "a job is stored once, beside the tables");
    let job = value("furrow.job_sha256").unwrap();
    let stored = std::fs::read_to_string(dir.path().join(format!("jobs/{job}.toml"))).unwrap();
    assert_eq!(stored, "[run]\nname = \"test\"\n");
}

/// Pictures that do not compress: 64 x 64 pixels are 12 KB.
fn large(sample: u32, steps: u32) -> TrajectoryFixture {
    TrajectoryFixture {
        sample,
        steps,
        kind: PolicyKind::Scripted,
        size: Size::new(64, 64),
        ..TrajectoryFixture::default()
    }
}

#[test]
fn row_groups_are_capped_and_hold_whole_trajectories() {
    let dir = tempfile::tempdir().unwrap();
    let cap = 100 << 10;
    let mut writer =
        ShardWriter::create(ShardPlan { row_group_bytes: cap, ..fixtures::plan(dir.path(), "s") });
    for sample in 0..12 {
        let (record, steps) = large(sample, 3).trajectory();
        writer.add_trajectory(&record, &steps).unwrap();
    }
    // A trajectory that exceeds a row group is split.
    let (record, steps) = large(12, 40).trajectory();
    writer.add_trajectory(&record, &steps).unwrap();
    assert!(writer.bytes() > 300 << 10, "{}", writer.bytes());
    let files = writer.finish(|_, _| {}).unwrap();
    let steps = files.iter().find(|file| file.table == Table::Steps).unwrap();
    let groups = footer(&dir.path().join(&steps.path)).row_groups().to_vec();
    let rows: Vec<i64> = groups.iter().map(RowGroupMetaData::num_rows).collect();
    assert_eq!(rows.iter().sum::<i64>(), 12 * 3 + 40);
    let whole = rows.iter().scan(0, |sum, rows| {
        *sum += rows;
        Some(*sum)
    });
    assert!(whole.take_while(|sum| *sum <= 36).all(|sum| sum % 3 == 0), "{rows:?}");
    // The last picture may exceed the cap: 12 KB and the other columns.
    assert!(groups.iter().all(|group| group.compressed_size() < (cap + (40 << 10)) as i64), "{groups:?}");
}

#[test]
fn steps_go_to_the_table_of_their_trajectory_with_its_result() {
    let dir = tempfile::tempdir().unwrap();
    let plots = [
        TrajectoryFixture::default(),
        TrajectoryFixture {
            sample: 1,
            end: EndKind::MaxSteps,
            reward: 0.25,
            kind: PolicyKind::Scripted,
            ..TrajectoryFixture::default()
        },
        TrajectoryFixture { sample: 2, end: EndKind::BrowserDead, ..TrajectoryFixture::default() },
        TrajectoryFixture { sample: 3, split: Split::Eval, ..TrajectoryFixture::default() },
        TrajectoryFixture { sample: 0, group: 1, kind: PolicyKind::Random, ..TrajectoryFixture::default() },
        TrajectoryFixture { sample: 1, group: 1, steps: 0, ..TrajectoryFixture::default() },
    ];
    let mut made: Vec<_> = plots.iter().map(TrajectoryFixture::trajectory).collect();
    // The second that `scripted` waits where a page has no action yet.
    made[1].1[1].reply.name.clear();
    let files = write(dir.path(), "s", &made, &[], &[]);
    commit_files(dir.path(), "s", files);
    let set = DataSet::open(dir.path()).unwrap();

    let check = |sample: usize, wanted: [&str; 3]| {
        let id = &made[sample].0.ancestry.trajectory_id;
        let all = set.steps().chain(set.failed_steps()).map(Result::unwrap);
        let got: Vec<String> = all
            .filter(|step| step.ancestry.trajectory_id == *id)
            .map(|step| {
                let derived = step.derived;
                let marks = [
                    ("first ", derived.is_first),
                    ("last ", derived.is_last),
                    ("terminal ", derived.is_terminal),
                    ("truncated ", derived.is_truncated),
                    ("rl ", derived.trainable_rl),
                    ("sft ", derived.trainable_sft),
                ];
                let marks: String = marks.iter().filter(|mark| mark.1).map(|mark| mark.0).collect();
                format!("{marks}{:?} {}", derived.reward, derived.reward_components.len())
            })
            .collect();
        assert_eq!(got, wanted, "sample {sample}");
    };
    check(0, ["first rl sft Some(0.0) 0", "rl sft Some(0.0) 0", "last terminal rl sft Some(1.0) 1"]);
    check(1, ["first sft Some(0.0) 0", "Some(0.0) 0", "last truncated sft Some(0.25) 1"]);
    check(2, ["first None 0", "None 0", "last truncated None 0"]);
    check(3, ["first Some(0.0) 0", "Some(0.0) 0", "last terminal Some(1.0) 1"]);
    check(4, ["first Some(0.0) 0", "Some(0.0) 0", "last terminal Some(1.0) 1"]);
    assert_eq!(set.failed_steps().count(), 3);
    assert_eq!(set.trajectories().count(), 6);
}

#[test]
fn every_file_passes_every_stage() {
    let dir = tempfile::tempdir().unwrap();
    let (record, steps) = TrajectoryFixture::default().trajectory();
    let mut writer = ShardWriter::create(fixtures::plan(dir.path(), "s"));
    writer.add_trajectory(&record, &steps).unwrap();
    writer.add_group(&fixtures::group(&[record])).unwrap();
    let mut reached = Vec::new();
    let files = writer
        .finish(|table, stage| {
            let there = |name: &str| dir.path().join(table.as_str()).join(name).exists();
            let temp = there(".s.parquet.tmp");
            assert_eq!(there("s.parquet"), stage as u32 >= ShardStage::Linked as u32, "{stage:?}");
            assert_eq!(temp, (stage as u32) < ShardStage::TempRemoved as u32, "{stage:?}");
            reached.push((table, stage));
        })
        .unwrap();
    assert_eq!(reached, stages(&[Table::Trajectories, Table::Steps, Table::Groups]));
    files.iter().for_each(|file| check_written(dir.path(), file).unwrap());
    assert_eq!(names(dir.path()), ["groups/s.parquet", "steps/s.parquet", "trajectories/s.parquet"]);
    for file in &files {
        assert_eq!(file.bytes, dir.path().join(&file.path).metadata().unwrap().len());
    }
}

#[test]
fn nothing_is_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let made = TrajectoryFixture::default().trajectory();
    write(dir.path(), "s", std::slice::from_ref(&made), &[], &[]);
    let mut writer = ShardWriter::create(fixtures::plan(dir.path(), "s"));
    let error = writer.add_trajectory(&made.0, &made.1).unwrap_err();
    assert!(matches!(error, RecordsError::Exists { .. }), "{error}");
    // The name may also be taken after the writing began.
    let mut writer = ShardWriter::create(fixtures::plan(dir.path(), "late"));
    writer.add_trajectory(&made.0, &made.1).unwrap();
    let late = dir.path().join("trajectories/late.parquet");
    std::fs::write(&late, "someone else's").unwrap();
    let error = writer.finish(|_, _| {}).unwrap_err();
    assert!(matches!(error, RecordsError::Exists { .. }), "{error}");
    assert_eq!(std::fs::read(&late).unwrap(), b"someone else's");
}

#[test]
fn a_writer_that_is_given_up_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (record, steps) = TrajectoryFixture::default().trajectory();
    let mut writer = ShardWriter::create(fixtures::plan(dir.path(), "s"));
    writer.add_trajectory(&record, &steps).unwrap();
    assert_eq!(names(dir.path()), ["steps/.s.parquet.tmp", "trajectories/.s.parquet.tmp"]);
    drop(writer);
    assert_eq!(names(dir.path()), [""; 0]);
    assert!(ShardWriter::create(fixtures::plan(dir.path(), "s")).finish(|_, _| {}).unwrap().is_empty());
}

#[test]
fn what_does_not_fit_its_column_is_refused_before_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (mut record, steps) = TrajectoryFixture::default().trajectory();
    record.ancestry.attempt = 40_000;
    let mut writer = ShardWriter::create(fixtures::plan(dir.path(), "s"));
    let error = writer.add_trajectory(&record, &steps).unwrap_err();
    assert_eq!(
        format!("{error}"),
        "trajectory test-g000000-s0-a0 cannot be written: attempt 40000 is above 32767"
    );
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn leftovers_are_found_by_shard_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    commit_group(dir.path(), 0, 1);
    let (record, steps) = TrajectoryFixture { group: 1, ..TrajectoryFixture::default() }.trajectory();
    let mut writer = ShardWriter::create(fixtures::plan(dir.path(), "dead"));
    writer.add_trajectory(&record, &steps).unwrap();
    // A killed process runs no destructor.
    std::mem::forget(writer);
    write(dir.path(), "uncommitted", &[(record, steps)], &[], &[]);
    std::fs::write(dir.path().join("steps/notes.txt"), "mine").unwrap();

    let snapshot = open(dir.path()).snapshot().clone();
    let strays: Vec<_> =
        local_files(dir.path()).unwrap().into_iter().filter(|file| !snapshot.holds(&file.name)).collect();
    let found: Vec<_> = strays
        .iter()
        .map(|file| (&*file.name, file.shard_id.as_ref().map(Id::as_str), file.temporary))
        .collect();
    assert_eq!(
        found,
        [
            ("steps/.dead.parquet.tmp", Some("dead"), true),
            ("steps/notes.txt", None, false),
            ("steps/uncommitted.parquet", Some("uncommitted"), false),
            ("trajectories/.dead.parquet.tmp", Some("dead"), true),
            ("trajectories/uncommitted.parquet", Some("uncommitted"), false),
        ]
    );
    for shard in ["dead", "uncommitted", "never-there"] {
        remove_shard(dir.path(), &Id::new(shard).unwrap()).unwrap();
    }
    assert_eq!(
        names(dir.path()),
        [
            "groups/shard-0000.parquet",
            "steps/notes.txt",
            "steps/shard-0000.parquet",
            "trajectories/shard-0000.parquet"
        ]
    );
}

#[test]
fn a_file_that_changed_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let files = write(dir.path(), "s", &[TrajectoryFixture::default().trajectory()], &[], &[]);
    let check = |bytes: &[u8], want: &str| {
        let path = dir.path().join(&files[0].path);
        let before = std::fs::read(&path).unwrap();
        std::fs::write(&path, bytes).unwrap();
        let error = check_written(dir.path(), &files[0]).unwrap_err().to_string();
        assert!(error.contains(want), "{error:?} lacks {want:?}");
        std::fs::write(&path, before).unwrap();
    };
    let whole = std::fs::read(dir.path().join(&files[0].path)).unwrap();
    check(&whole[..whole.len() - 1], "bytes, the manifest says");
    let mut flipped = whole.clone();
    flipped[100] ^= 1;
    check(&flipped, "has SHA-256");
    std::fs::remove_file(dir.path().join(&files[1].path)).unwrap();
    assert!(matches!(check_written(dir.path(), &files[1]), Err(RecordsError::Io { .. })));
}
