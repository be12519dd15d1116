//! The trajectories of a run as a workload: steps of each, length of each prompt and reply, tiles
//! of each screenshot.
//!
//! Simulations and benchmarks that take this workload run what the run ran, not a mix of constants:
//! only then can their rates be compared with the run's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use furrow_analysis::{StepSize, StepTokens, step_sizes};
use furrow_coordinator::spool::read_finished;
use furrow_records::{DataSet, Table};
use furrow_rollout::{ContextPolicy, FaultOwner};
use furrow_simulator::{StepSizes, Workload};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::commands::view::planned;
use crate::job::stored;
use crate::{CommandFailure, output};
use furrow_model::checkpoint::chain;

/// The finished trajectories of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedRun {
    /// Sizes of every step.
    pub workload: Arc<Workload>,
    /// What the run's sessions kept.
    pub keep: ContextPolicy,
    /// Number of concurrent sessions that its job set.
    pub sessions: Option<u32>,
    /// Bytes of a step in the files of the data set; `None` before the first commit.
    pub(crate) step_bytes: Option<u64>,
    job: RecordedJob,
    spreads: Vec<ValueSpread>,
    /// Number of finished trajectories left out because one of their steps has no tokens.
    without_tokens: usize,
}

/// The job of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct RecordedJob {
    run: String,
    /// SHA-256 of the resolved `job.toml`, hexadecimal.
    job_sha256: String,
    policy: String,
    checkpoint: String,
    context: String,
}

/// The distribution of a number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ValueSpread {
    /// Name of the number.
    pub what: &'static str,
    /// How many values there are.
    pub count: usize,
    pub mean: f64,
    /// The smallest value with at least 5 % of the values at or below it.
    pub p5: u32,
    /// The same for 50 %.
    pub p50: u32,
    /// The same for 95 %.
    pub p95: u32,
}

impl ValueSpread {
    /// The distribution of values in any order; all zero without values.
    pub(crate) fn from_numbers(what: &'static str, numbers: impl IntoIterator<Item = u32>) -> Self {
        let mut numbers: Vec<u32> = numbers.into_iter().collect();
        numbers.sort_unstable();
        let at = |percent: usize| {
            let rank = (percent * numbers.len()).div_ceil(100);
            numbers.get(rank.saturating_sub(1)).copied().unwrap_or(0)
        };
        let sum: u64 = numbers.iter().map(|number| u64::from(*number)).sum();
        let mean = sum as f64 / numbers.len().max(1) as f64;
        Self { what, count: numbers.len(), mean, p5: at(5), p50: at(50), p95: at(95) }
    }
}

impl RecordedRun {
    /// Reads the scored trajectories of a run directory, and those that ended but are not committed
    /// yet.
    ///
    /// # Errors
    /// If the directory holds no run, no trajectory has ended, or the policy recorded no tokens.
    pub fn read(dir: &Path) -> Result<Self, CommandFailure> {
        let (job, table) = identity(dir)?;
        let wrong = |why: String| CommandFailure::Input(vec![format!("--recorded {}: {why}", dir.display())]);
        let context = job.context.clone();
        let keep = match context.as_str() {
            "append" => ContextPolicy::Append,
            "last_image" => ContextPolicy::LastImage,
            other => {
                let why = format!(
                    "policy.context.keep was {other:?}, which the simulator does not support; use a run with \"append\" or \"last_image\""
                );
                return Err(wrong(why));
            }
        };
        let (committed, step_bytes) = committed(dir).map_err(&wrong)?;
        let known: BTreeSet<String> = committed.iter().map(|size| size.trajectory_id.clone()).collect();
        let mut sizes = committed;
        sizes.extend(uncommitted(dir, &known).map_err(&wrong)?);
        let mut of_trajectory: BTreeMap<&str, Vec<&StepSize>> = BTreeMap::new();
        for size in &sizes {
            of_trajectory.entry(&size.trajectory_id).or_default().push(size);
        }
        if of_trajectory.is_empty() {
            return Err(wrong("no trajectory has ended; use a run with scored trajectories".into()));
        }
        let mut whole = Vec::new();
        let mut without_tokens = 0;
        for mut steps in of_trajectory.into_values() {
            steps.sort_by_key(|size| size.step);
            let tokens: Option<Vec<StepTokens>> = steps.iter().map(|size| size.tokens).collect();
            match tokens {
                Some(tokens) => whole.push((tokens, steps.iter().map(|size| size.page_micros).sum::<u64>())),
                None => without_tokens += 1,
            }
        }
        if whole.is_empty() {
            return Err(wrong(format!(
                "its policy, policy.kind = {:?}, recorded no tokens to simulate; use a run with policy.kind = \"model\"",
                job.policy
            )));
        }
        let tokens = || whole.iter().flat_map(|(tokens, _)| tokens);
        let spreads = vec![
            ValueSpread::from_numbers(
                "steps a trajectory",
                whole.iter().map(|(tokens, _)| tokens.len() as u32),
            ),
            ValueSpread::from_numbers("prompt tokens a step", tokens().map(|step| step.prompt)),
            ValueSpread::from_numbers("response tokens a step", tokens().map(|step| step.response)),
            ValueSpread::from_numbers("sampled tokens a step", tokens().map(|step| step.sampled)),
            ValueSpread::from_numbers("tiles a step", tokens().map(|step| step.tiles)),
        ];
        let page_micros = whole.iter().map(|(_, micros)| micros).sum::<u64>() as f64;
        let page_seconds = page_micros / 1e6 / tokens().count() as f64;
        let size = |(index, step): (usize, &StepTokens)| sizes_of(index == 0, *step);
        let trajectories =
            whole.iter().map(|(tokens, _)| tokens.iter().enumerate().map(size).collect()).collect();
        let sessions = planned::planned(&table).map(|planned| planned.sessions);
        let workload = Arc::new(Workload { trajectories, page_seconds });
        Ok(Self { workload, keep, sessions, step_bytes, job, spreads, without_tokens })
    }

    /// Prints the distribution as a table, with its source.
    pub fn print(&self) {
        let RecordedJob { run, job_sha256, policy, checkpoint, context } = &self.job;
        output::line(format!(
            "\nRecorded by run {run:?} (job {}, {policy} policy, {context}, {checkpoint}); pages took {:.2} s per step",
            &job_sha256[..12],
            self.workload.page_seconds
        ));
        let row = |spread: &ValueSpread| {
            let ValueSpread { what, count, mean, p5, p50, p95 } = spread;
            vec![
                format!("  {what}"),
                count.to_string(),
                format!("{mean:.1}"),
                p5.to_string(),
                p50.to_string(),
                p95.to_string(),
            ]
        };
        let rows: Vec<Vec<String>> = self.spreads.iter().map(row).collect();
        output::table(&["", "count", "mean", "p5", "p50", "p95"], &rows);
        if self.without_tokens > 0 {
            output::line(format!(
                "  {} trajectories left out: one of their steps has no tokens",
                self.without_tokens
            ));
        }
    }

    pub fn value(&self) -> Value {
        json!({
            "job": self.job, "spreads": self.spreads, "page_seconds": self.workload.page_seconds,
            "without_tokens": self.without_tokens, "step_bytes": self.step_bytes,
        })
    }
}

/// A step as simulations take it: the rows of the screenshot follow from the model, so all others
/// of the prompt are text.
fn sizes_of(is_first: bool, step: StepTokens) -> StepSizes {
    let StepTokens { prompt, before_image, image_rows, tiles, response, sampled } = step;
    // The image marker before the screenshot belongs to the turn's text.
    let instructions = if is_first { before_image.saturating_sub(1) } else { 0 };
    let text = prompt.saturating_sub(image_rows).saturating_sub(instructions);
    StepSizes { instructions, text, tiles, sampled, given: response.saturating_sub(sampled) }
}

/// Name and hash of the run's job, and the job.
fn identity(dir: &Path) -> Result<(RecordedJob, toml::Table), CommandFailure> {
    let path = dir.join("job.toml");
    let wrong = |why: String| CommandFailure::Input(vec![format!("--recorded {}: {why}", dir.display())]);
    let text = std::fs::read_to_string(&path)
        .map_err(|why| wrong(format!("cannot read job.toml ({why}); use the directory of a run")))?;
    let table = stored::table(&text).map_err(|why| wrong(format!("job.toml: {why}")))?;
    let of = |key| planned::text_at(&table, key).unwrap_or_default().to_owned();
    let identity = RecordedJob {
        run: of("run.name"),
        job_sha256: format!("{:x}", Sha256::digest(&text)),
        policy: of("policy.kind"),
        checkpoint: of("policy.checkpoint"),
        context: of("policy.context.keep"),
    };
    Ok((identity, table))
}

/// Sizes of all committed scored steps, and the mean bytes of one in its file; `None` before the
/// first commit.
fn committed(dir: &Path) -> Result<(Vec<StepSize>, Option<u64>), String> {
    let set = match DataSet::open(dir) {
        Ok(set) => set,
        Err(furrow_records::RecordsError::NoDataSet { .. }) => return Ok((Vec::new(), None)),
        Err(error) => return Err(chain(&error)),
    };
    let files = || set.snapshot().files(Table::Steps);
    let (bytes, rows) = files().fold((0, 0), |(bytes, rows), file| (bytes + file.bytes, rows + file.rows));
    let sizes = step_sizes(&set).map_err(|error| chain(&error))?;
    Ok((sizes, (rows > 0).then(|| bytes / rows)))
}

/// Sizes of the steps of trajectories that the policy ended and that are only in the spool.
fn uncommitted(dir: &Path, committed: &BTreeSet<String>) -> Result<Vec<StepSize>, String> {
    let mut sizes = Vec::new();
    let read = read_finished(&dir.join("spool"), &mut |id, steps, ending| {
        let ended = furrow_wire::decode_ending(ending.payload).ok();
        let is_policys = ended.is_some_and(|ending| ending.end.fault(false) == FaultOwner::Policy);
        if is_policys && !committed.contains(id.as_str()) {
            let steps = steps.into_iter().filter_map(|entry| furrow_wire::decode_step(entry.payload).ok());
            sizes.extend(steps.map(|record| StepSize::of(id.as_str(), &record)));
        }
    });
    read.map_err(|error| chain(&error))?;
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occur() {
        let spread = |numbers: &[u32]| {
            let ValueSpread { count, mean, p5, p50, p95, .. } =
                ValueSpread::from_numbers("x", numbers.iter().copied());
            (count, mean, [p5, p50, p95])
        };
        assert_eq!(spread(&[]), (0, 0.0, [0; 3]));
        assert_eq!(spread(&[7]), (1, 7.0, [7; 3]));
        assert_eq!(spread(&[4, 1, 3, 2]), (4, 2.5, [1, 2, 4]));
        let hundred: Vec<u32> = (1..=100).rev().collect();
        assert_eq!(spread(&hundred), (100, 50.5, [5, 50, 95]));
    }

    #[test]
    fn a_step_is_as_long_to_a_simulation_as_it_was() {
        let step = StepTokens {
            prompt: 1400,
            before_image: 1200,
            image_rows: 100,
            tiles: 1,
            response: 30,
            sampled: 20,
        };
        let first = sizes_of(true, step);
        let want = StepSizes { instructions: 1199, text: 101, tiles: 1, sampled: 20, given: 10 };
        assert_eq!(first, want);
        assert_eq!(first.instructions + first.text + step.image_rows, step.prompt);
        assert_eq!(first.reply(), step.response);
        // Later turns begin with the outcome of the step before, without instructions.
        let later = sizes_of(false, StepTokens { prompt: 160, before_image: 40, ..step });
        assert_eq!((later.instructions, later.text), (0, 60));
    }
}
