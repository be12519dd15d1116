//! Rows of every size that a message can have are written, verified, merged and read.

use std::path::Path;

use furrow_records::cell::columns;
use furrow_records::fixtures::data_set::{commit_files, merge_all, write};
use furrow_records::fixtures::{TrajectoryFixture, plan};
use furrow_records::{DataSet, ShardPlan, ShardWriter, Table, verify};
use proptest::prelude::*;

columns! {
    PageRow { trajectory_id: String, step: i32, observation: PageCell }

    PageCell { axtree: Option<String> }
}

/// A text that packs to next to nothing, or not at all.
fn page(bytes: usize, packs: bool) -> String {
    let letter = |at: usize| match packs {
        true => 'a',
        false => char::from(b'a' + ((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59) as u8 % 26),
    };
    (0..bytes).map(letter).collect()
}

fn read(dir: &Path) -> Vec<usize> {
    let set = DataSet::open(dir).unwrap();
    let rows = set.rows::<PageRow>(Table::Steps).flat_map(Result::unwrap);
    rows.map(|row| row.observation.axtree.unwrap().len()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn rows_of_any_size_are_read(
        sizes in prop::collection::vec((0usize..5, any::<bool>(), 0usize..1000), 1..10),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let made = TrajectoryFixture { steps: sizes.len() as u32, ..TrajectoryFixture::default() };
        let (record, mut steps) = made.trajectory();
        let sizes = sizes.into_iter().map(|(magnitude, packs, more)| {
            ([1, 2_000, 200_000, 2 << 20, 15 << 20][magnitude] + more, packs)
        });
        let mut expected = Vec::new();
        for (step, (bytes, packs)) in steps.iter_mut().zip(sizes) {
            step.observation.axtree = Some(page(bytes, packs));
            expected.push(bytes);
        }
        let files = write(dir.path(), "s-1", &[(record, steps)], &[], &[]);
        commit_files(dir.path(), "s-1", files);
        let made = TrajectoryFixture { sample: 1, ..TrajectoryFixture::default() };
        let (record, mut steps) = made.trajectory();
        for step in &mut steps {
            step.observation.axtree = Some(page(40_000, true));
            expected.push(40_000);
        }
        let files = write(dir.path(), "s-2", &[(record, steps)], &[], &[]);
        commit_files(dir.path(), "s-2", files);
        prop_assert_eq!(read(dir.path()), expected.clone());
        let unread = verify(dir.path()).unwrap().breaches.into_iter().find(|breach| breach.row.is_none());
        prop_assert!(unread.as_ref().is_none_or(|breach| !breach.what.contains("columns unpack")), "{unread:?}");
        merge_all(dir.path());
        prop_assert_eq!(read(dir.path()), expected);
    }
}

/// They unpack to more than a small file may, in a row group without a limit: each page to less.
#[test]
fn long_rows_that_pack_well_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let (record, mut steps) = TrajectoryFixture { steps: 30, ..TrajectoryFixture::default() }.trajectory();
    for (index, step) in steps.iter_mut().enumerate() {
        step.observation.axtree = Some(page((2 << 20) + index, true));
    }
    let mut writer = ShardWriter::create(ShardPlan { row_group_bytes: 1 << 30, ..plan(dir.path(), "s") });
    writer.add_trajectory(&record, &steps).unwrap();
    commit_files(dir.path(), "s", writer.finish(|_, _| {}).unwrap());
    let lengths: Vec<usize> = (0..30).map(|index| (2 << 20) + index).collect();
    assert_eq!(read(dir.path()), lengths);
}
