//! Writes a small, sound data set of made-up trajectories, for trying readers on: `cargo run --example sample DIR`.

use std::error::Error;
use std::path::PathBuf;

use furrow_records::fixtures::{self, Plot};
use furrow_records::{Draft, Manifest, Rescore, ShardWriter};
use furrow_rollout::{ContextPolicy, End, PolicyKind, Size};

fn main() -> Result<(), Box<dyn Error>> {
    let run_dir = PathBuf::from(std::env::args().nth(1).ok_or("give a directory that is not there yet")?);
    let plan = fixtures::plan(&run_dir.join("data"), "sample");
    let mut writer = ShardWriter::create(plan.clone());
    for group in 0..3 {
        let made: Vec<_> = plots(group).iter().map(Plot::trajectory).collect();
        made.iter().try_for_each(|(record, steps)| writer.add_trajectory(record, steps))?;
        let records: Vec<_> = made.into_iter().map(|(record, _)| record).collect();
        writer.add_group(&fixtures::group(&records))?;
        if let Some(score) = records[0].score.clone() {
            let (ancestry, task) = (records[0].ancestry.clone(), &records[0].task);
            let (task_id, suite, split) = (task.task_id.clone(), task.suite.clone(), task.split);
            let scored_at_micros = fixtures::STARTED;
            writer.add_rescore(&Rescore { ancestry, task_id, suite, split, score, scored_at_micros })?;
        }
    }
    let files = writer.finish(|_, _| {})?;
    let draft = Draft::append(files, plan.run_id, 1, plan.shard_id, fixtures::STARTED);
    futures::executor::block_on(async {
        Manifest::open(Manifest::local_store(&plan.data_dir)?).await?.commit(&draft).await
    })?;
    Ok(())
}

/// Two scored trajectories and a failed attempt of the model, then a demonstration and a random one: with tokens and without.
fn plots(group: u64) -> [Plot; 5] {
    let plot = Plot { group, group_size: 4, size: Size::new(64, 48), ..Plot::default() };
    [
        Plot { context: ContextPolicy::Window(2), steps: 4, ..plot.clone() },
        Plot { sample: 1, end: End::PageCrash, ..plot.clone() },
        Plot { sample: 1, attempt: 1, reward: 0.0, end: End::MaxSteps, ..plot.clone() },
        Plot { sample: 2, kind: PolicyKind::Scripted, ..plot.clone() },
        Plot { sample: 3, kind: PolicyKind::Random, reward: 0.0, end: End::MaxSteps, ..plot },
    ]
}
