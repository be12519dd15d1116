//! Writes a small, sound data set of generated trajectories, to test readers with:
//! `cargo run --example sample DIR`.

use std::error::Error;
use std::path::PathBuf;

use furrow_records::fixtures::{self, TrajectoryFixture};
use furrow_records::{CommitDraft, Manifest, RescoreRecord, ShardWriter};
use furrow_rollout::{ContextPolicy, EndKind, PolicyKind, Size};

fn main() -> Result<(), Box<dyn Error>> {
    let run_dir =
        PathBuf::from(std::env::args().nth(1).ok_or("give the path of a directory that does not exist yet")?);
    let plan = fixtures::plan(&run_dir.join("data"), "sample");
    let mut writer = ShardWriter::create(plan.clone());
    for group in 0..3 {
        let made: Vec<_> = plots(group).iter().map(TrajectoryFixture::trajectory).collect();
        made.iter().try_for_each(|(record, steps)| writer.add_trajectory(record, steps))?;
        let records: Vec<_> = made.into_iter().map(|(record, _)| record).collect();
        writer.add_group(&fixtures::group(&records))?;
        if let Some(score) = records[0].score.clone() {
            let ancestry = records[0].ancestry.clone();
            let task = &records[0].task;
            let task_id = task.task_id.clone();
            let suite = task.suite.clone();
            let split = task.split;
            let scored_at_micros = fixtures::STARTED;
            writer.add_rescore(&RescoreRecord {
                ancestry,
                task_id,
                suite,
                split,
                score,
                scored_at_micros,
            })?;
        }
    }
    let files = writer.finish(|_, _| {})?;
    let draft = CommitDraft::append(files, plan.run_id, 1, plan.shard_id, fixtures::STARTED);
    futures::executor::block_on(async {
        Manifest::open(Manifest::local_store(&plan.data_dir)?).await?.commit(&draft).await
    })?;
    Ok(())
}

/// Two scored trajectories and a failed attempt of the model, then a demonstration and a random
/// one: with tokens and without.
fn plots(group: u64) -> [TrajectoryFixture; 5] {
    let plot =
        TrajectoryFixture { group, group_size: 4, size: Size::new(64, 48), ..TrajectoryFixture::default() };
    [
        TrajectoryFixture { context: ContextPolicy::Window(2), steps: 4, ..plot.clone() },
        TrajectoryFixture { sample: 1, end: EndKind::PageCrash, ..plot.clone() },
        TrajectoryFixture { sample: 1, attempt: 1, reward: 0.0, end: EndKind::MaxSteps, ..plot.clone() },
        TrajectoryFixture { sample: 2, kind: PolicyKind::Scripted, ..plot.clone() },
        TrajectoryFixture {
            sample: 3,
            kind: PolicyKind::Random,
            reward: 0.0,
            end: EndKind::MaxSteps,
            ..plot
        },
    ]
}
