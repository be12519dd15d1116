//! Reads a run's data set: rewards by task, how trajectories ended, which actions were taken.
//!
//! `cargo run --release --example read_run runs/quickstart-scripted`
#![expect(clippy::print_stdout, reason = "an example prints what it finds")]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use furrow_records::DataSet;

fn main() -> Result<(), Box<dyn Error>> {
    let run_dir = std::env::args().nth(1).ok_or("give a run directory, such as runs/quickstart-scripted")?;
    let data = DataSet::open(Path::new(&run_dir))?;

    let mut rewards: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for trajectory in data.trajectories() {
        // A damaged file is one error; the records behind it follow.
        let trajectory = trajectory?;
        *ends.entry(trajectory.ending.end.as_str()).or_default() += 1;
        // What failed through the farm has no score, and is not a reward of 0.
        if let Some(reward) = trajectory.score.and_then(|score| score.reward) {
            let task = format!("{}/{}", trajectory.task.suite, trajectory.task.task_id);
            rewards.entry(task).or_default().push(reward);
        }
    }

    let mut actions: BTreeMap<String, usize> = BTreeMap::new();
    for step in data.steps() {
        let name = step?.record.reply.name;
        let name = if name.is_empty() { "(no action)".to_owned() } else { name };
        *actions.entry(name).or_default() += 1;
    }

    println!("{:40} {:>12} {:>12}", "task", "trajectories", "mean reward");
    for (task, rewards) in &rewards {
        let mean = rewards.iter().sum::<f32>() / rewards.len() as f32;
        println!("{task:40} {:>12} {mean:>12.3}", rewards.len());
    }
    print_counts("end", &ends);
    print_counts("action", &actions);
    Ok(())
}

fn print_counts<K: std::fmt::Display>(of: &str, counts: &BTreeMap<K, usize>) {
    println!("\n{of:40} {:>12}", "number");
    for (name, number) in counts {
        println!("{name:40} {number:>12}");
    }
}
