//! What a trainer would keep of a data set and what it would leave out, by suite, difficulty and
//! length: for `furrow records kept`.
//!
//! Leaving out trajectories unevenly biases training: long trajectories fail and go stale more
//! often than short ones, easy tasks have no spread. Each line has the mean reward of all scored
//! trajectories beside that of the kept ones.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use furrow_records::cell::columns;
use furrow_records::{DataSet, RecordsError, Table};
use furrow_rollout::Split;
use serde::{Deserialize, Serialize};

/// Trajectories kept and left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeptReport {
    /// Versions a trajectory may be behind when it ends; `None` for any number.
    pub max_off_policy_versions: Option<i32>,
    /// All trajectories, then those of each suite, each difficulty and each length.
    pub lines: Vec<KeptLine>,
}

/// Trajectories that have something in common.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct KeptLine {
    /// `all`, `suite`, `difficulty` or `steps`.
    pub by: Cow<'static, str>,
    /// Its value; empty for all.
    pub value: String,
    /// Attempts of any result.
    pub trajectories: u64,
    /// Of these, trajectories that a trainer takes.
    pub kept: u64,
    /// Those that failed by the farm's fault, by end.
    pub failed: BTreeMap<String, u64>,
    /// Scored trajectories that are too many versions behind.
    pub stale: u64,
    /// Scored trajectories that are not stale, in a group whose rewards are all the same.
    pub zero_variance: u64,
    /// Mean reward of all scored trajectories.
    pub reward_mean_scored: Option<f64>,
    /// Mean reward of the kept trajectories.
    pub reward_mean_kept: Option<f64>,
}

columns! {
    /// The columns that decide.
    KeptRow {
        group_id: String,
        suite: String,
        split: String,
        status: String,
        end: String,
        reward: Option<f32>,
        num_steps: i32,
        staleness: Option<i32>,
        task_json: String,
    }

    SpreadRow {
        group_id: String,
        zero_variance: Option<bool>,
    }
}

/// Whether a trajectory is kept, or why not.
enum KeptFate {
    Failed,
    Stale,
    ZeroVariance,
    Kept,
}

/// Sums for a line.
#[derive(Default)]
struct KeptSums {
    line: KeptLine,
    scored: u64,
    reward_scored: f64,
    reward_kept: f64,
}

/// The order of the lines.
const BY: [&str; 4] = ["all", "suite", "difficulty", "steps"];

/// Reads a run directory or its `data` folder. Without a limit nothing counts as stale.
pub fn kept(dir: &Path, max_off_policy_versions: Option<i32>) -> Result<KeptReport, RecordsError> {
    let set = DataSet::open(dir)?;
    let mut flat = HashSet::new();
    for batch in set.rows::<SpreadRow>(Table::Groups) {
        let without = batch?.into_iter().filter(|row| row.zero_variance == Some(true));
        flat.extend(without.map(|row| row.group_id));
    }
    let mut sums: BTreeMap<(usize, u32, String), KeptSums> = BTreeMap::new();
    for batch in set.rows::<KeptRow>(Table::Trajectories) {
        // No trainer learns from evaluations, so leaving them out causes no bias.
        for row in batch?.into_iter().filter(|row| row.split != Split::Eval.as_str()) {
            let fate = row.fate(&flat, max_off_policy_versions);
            for key in row.keys() {
                sums.entry(key).or_default().add(&row, &fate);
            }
        }
    }
    let lines = sums.into_iter().map(|((by, _, value), sums)| sums.line(BY[by], value)).collect();
    Ok(KeptReport { max_off_policy_versions, lines })
}

impl KeptRow {
    fn fate(&self, flat: &HashSet<String>, most: Option<i32>) -> KeptFate {
        if self.status != "scored" || self.reward.is_none() {
            KeptFate::Failed
        } else if self.staleness.zip(most).is_some_and(|(behind, most)| behind > most) {
            KeptFate::Stale
        } else if flat.contains(&self.group_id) {
            KeptFate::ZeroVariance
        } else {
            KeptFate::Kept
        }
    }

    /// The lines it counts in: dimension, order and value.
    fn keys(&self) -> [(usize, u32, String); 4] {
        let (first, steps) = length(self.num_steps);
        [
            (0, 0, String::new()),
            (1, 0, self.suite.clone()),
            (2, 0, difficulty(&self.task_json)),
            (3, first, steps),
        ]
    }
}

/// Lengths are grouped by powers of two: 0, 1, 2–3, 4–7, 8–15 and so on.
fn length(steps: i32) -> (u32, String) {
    let steps = u32::try_from(steps).unwrap_or(0);
    match steps.checked_ilog2() {
        None => (0, "0".to_owned()),
        Some(0) => (1, "1".to_owned()),
        Some(log) => (1 << log, format!("{}–{}", 1_u64 << log, (2_u64 << log) - 1)),
    }
}

/// The difficulty in the task's line.
fn difficulty(task_json: &str) -> String {
    let task: serde_json::Value = serde_json::from_str(task_json).unwrap_or_default();
    match task.get("difficulty") {
        Some(serde_json::Value::String(text)) => text.chars().take(64).collect(),
        Some(serde_json::Value::Number(number)) => number.to_string(),
        _ => "not told".to_owned(),
    }
}

impl KeptSums {
    fn add(&mut self, row: &KeptRow, fate: &KeptFate) {
        let line = &mut self.line;
        line.trajectories += 1;
        let reward = f64::from(row.reward.unwrap_or_default());
        match fate {
            KeptFate::Failed => {
                *line.failed.entry(row.end.clone()).or_default() += 1;
                return;
            }
            KeptFate::Stale => line.stale += 1,
            KeptFate::ZeroVariance => line.zero_variance += 1,
            KeptFate::Kept => {
                line.kept += 1;
                self.reward_kept += reward;
            }
        }
        self.scored += 1;
        self.reward_scored += reward;
    }

    fn line(self, by: &'static str, value: String) -> KeptLine {
        let Self { line, scored, reward_scored, reward_kept } = self;
        let mean = |sum: f64, count: u64| (count > 0).then(|| sum / count as f64);
        KeptLine {
            by: Cow::Borrowed(by),
            value,
            reward_mean_scored: mean(reward_scored, scored),
            reward_mean_kept: mean(reward_kept, line.kept),
            ..line
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_columns_of_their_tables() {
        assert!(Table::Trajectories.has_columns::<KeptRow>());
        assert!(Table::Groups.has_columns::<SpreadRow>());
    }

    #[test]
    fn lengths_and_difficulties_have_names() {
        let table =
            [(-1, "0"), (0, "0"), (1, "1"), (2, "2–3"), (3, "2–3"), (4, "4–7"), (31, "16–31"), (32, "32–63")];
        for (steps, want) in table {
            assert_eq!(length(steps).1, want, "{steps}");
        }
        let check = |json: &str, want: &str| assert_eq!(difficulty(json), want, "{json}");
        check(r#"{"difficulty": "hard"}"#, "hard");
        check(r#"{"difficulty": 3}"#, "3");
        check(r#"{"difficulty": []}"#, "not told");
        check("torn", "not told");
    }

    #[test]
    fn each_trajectory_has_one_fate() {
        let row = |group: &str, status: &str, steps, staleness, reward| KeptRow {
            group_id: group.into(),
            suite: "s".into(),
            split: "train".into(),
            status: status.into(),
            end: if status == "failed" { "env_crash".into() } else { "done".into() },
            reward,
            num_steps: steps,
            staleness,
            task_json: r#"{"difficulty": "easy"}"#.into(),
        };
        let flat = HashSet::from(["flat".to_owned()]);
        let rows = [
            row("g", "scored", 2, Some(0), Some(1.0)),
            row("g", "scored", 3, Some(3), Some(0.0)),
            row("flat", "scored", 2, Some(3), Some(0.5)),
            row("flat", "scored", 2, None, Some(0.5)),
            row("g", "failed", 9, Some(0), None),
        ];
        let mut sums = KeptSums::default();
        rows.iter().for_each(|one| sums.add(one, &one.fate(&flat, Some(2))));
        let line = sums.line("suite", "s".into());
        assert_eq!((line.trajectories, line.kept, line.stale, line.zero_variance), (5, 1, 2, 1));
        assert_eq!(line.failed, BTreeMap::from([("env_crash".to_owned(), 1)]));
        assert_eq!((line.reward_mean_scored, line.reward_mean_kept), (Some(0.5), Some(1.0)));
        let whole = line.kept + line.stale + line.zero_variance + line.failed.values().sum::<u64>();
        assert_eq!(whole, line.trajectories, "every trajectory counts in one of them");
        let any: u64 =
            rows.iter().map(|one| u64::from(matches!(one.fate(&flat, None), KeptFate::Stale))).sum();
        assert_eq!(any, 0);
    }
}
