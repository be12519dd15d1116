//! Scores stored trajectories again with the current scorers; the verdicts go to `data/scores/`. It
//! neither rewrites stored rows nor calls the policy.
//!
//! Only trajectories with a score are scored again: a failed one has no end that counts. The
//! evidence is the stored one, so `furrow records verify` can check each new score against it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use furrow_records::{
    CommitDraft, CommitOutcome, DataSet, Manifest, RecordsConfig, RecordsError, RescoreRecord, ShardPlan,
    ShardWriter, Table,
};
use furrow_rollout::{Id, Run, Score, Shard, TrajectoryRecord, TrajectoryStatus};
use furrow_tasks::{EndFacts, FinishedTrajectory, ScoreError, Scorer, TaskSet};
use tokio_util::sync::CancellationToken;

use crate::card::renew_card;
use crate::commit::{CommitError, check_manifest_is_whole, check_run_dir};
use crate::judge::{JudgeClient, JudgeConfig};
use crate::lock::{LockError, RunLock};
use crate::lost_found::LostFound;

/// Trajectories held in memory at once: evidence of 200 kB and a few more pictures each are 200 MB.
const BATCH_MAX: usize = 250;

/// Trajectories without a verdict that are listed by name; further ones are only counted.
const NAMED_MAX: usize = 20;

/// What to score again, and how.
#[derive(Debug)]
pub struct RescoreJob {
    pub run_dir: PathBuf,
    /// Task sets that provide scorers; the first set that has the task wins. `None` uses each
    /// trajectory's own record.
    pub tasks: Option<Vec<TaskSet>>,
    pub filter: RescoreFilter,
    /// The judge that scorers may call, its key read.
    pub judge: Option<JudgeConfig>,
    /// Trajectories scored at the same time.
    pub scorers_max: usize,
    pub records: RecordsConfig,
    /// The job as TOML, without secrets and paths of this machine; the file names it.
    pub shared_job: String,
    pub dry_run: bool,
}

#[derive(Debug, Clone, Default)]
pub struct RescoreFilter {
    /// Suite, `None` for all.
    pub suite: Option<String>,
    /// Pattern of the task's id, `None` for all.
    pub task: Option<String>,
}

/// Result of a rescoring.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RescoreSummary {
    /// Trajectories that were given to a scorer.
    pub submitted: u64,
    /// Failed trajectories, which are not scored again.
    pub failed: u64,
    /// Trajectories whose task the job does not have, or that the filter excludes.
    pub left_out: u64,
    pub scored: u64,
    /// Verdicts with another reward than the stored one.
    pub changed: u64,
    /// Trajectories whose scorer returned no verdict; they get no row.
    pub unscored: u64,
    /// The first of them, with the reason.
    pub named: Vec<(String, String)>,
    /// Sum of the stored rewards of the trajectories with a new verdict.
    pub reward_before: f64,
    /// Sum of their new rewards.
    pub reward_after: f64,
    /// Stored successes among them.
    pub successes_before: u64,
    /// New successes among them.
    pub successes_after: u64,
    /// Cost of the judge calls in US dollars, where prices are known.
    pub cost_usd: Option<f64>,
    /// The manifest commit that names the new scores, if any.
    pub manifest_version: Option<u64>,
}

/// Why a rescoring failed.
#[derive(Debug, thiserror::Error)]
pub enum RescoreError {
    /// Another process holds the run directory.
    #[error("cannot take the run directory")]
    Lock(#[from] LockError),
    /// The data set cannot be read or written.
    #[error("cannot use the data set")]
    Records(#[from] RecordsError),
    /// The run directory does not match its ledger.
    #[error(transparent)]
    RunDir(#[from] CommitError),
    /// The caller cancelled the rescoring.
    #[error("stopped; nothing was written")]
    Stopped,
}

impl RescoreFilter {
    fn matches(&self, suite: &str, task_id: &str) -> bool {
        let in_suite = self.suite.as_deref().is_none_or(|wanted| wanted == suite);
        in_suite && self.task.as_deref().is_none_or(|pattern| furrow_tasks::fits_pattern(pattern, task_id))
    }
}

/// Why a stored trajectory gets no new score.
#[derive(Debug, thiserror::Error)]
enum UnscoredReason {
    #[error("it is stored without evidence")]
    NoEvidence,
    /// Its task's record has no valid scorer, or the scorer came to no verdict.
    #[error(transparent)]
    Scorer(#[from] ScoreError),
}

/// A stored trajectory and its new score, or why there is none.
type ScoredTrajectory = (Box<TrajectoryRecord>, Result<Score, UnscoredReason>);

/// Scores a run's stored trajectories again; `on_progress` receives the numbers of those done and
/// of all. Blocks: not for async code.
pub fn rescore(
    job: &RescoreJob,
    stop: &CancellationToken,
    mut on_progress: impl FnMut(u64, u64),
) -> Result<RescoreSummary, RescoreError> {
    DataSet::open(&job.run_dir)?; // before the lock, whose file must not appear in other folders
    let _lock = RunLock::take(&job.run_dir)?;
    let data = DataSet::open(&job.run_dir)?;
    check_run_dir(&job.run_dir).map_err(CommitError::from)?;
    check_manifest_is_whole(&job.run_dir, data.data_dir())?;
    if !job.dry_run {
        put_unlisted_aside(job, &data)?;
    }
    let total = data.snapshot().files(Table::Trajectories).map(|file| file.rows).sum();
    let judge = job.judge.clone().map(|config| JudgeClient::new(config, stop.clone()));
    let mut pass =
        RescorePass { job, judge, data: &data, stop, summary: RescoreSummary::default(), rows: Vec::new() };
    let mut batch = Vec::new();
    let mut done = 0;
    for record in data.trajectories() {
        let record = record?;
        done += 1;
        match pass.scorer_of(&record) {
            Some(scorer) => batch.push((Box::new(record), scorer)),
            None => continue,
        }
        if batch.len() == BATCH_MAX {
            pass.score(std::mem::take(&mut batch))?;
            on_progress(done, total);
        }
    }
    pass.score(batch)?;
    on_progress(total, total);
    let RescorePass { mut summary, rows, .. } = pass;
    if !rows.is_empty() && !job.dry_run {
        summary.manifest_version = Some(commit_scores(job, &data, &rows)?);
    }
    Ok(summary)
}

/// A rescoring in progress.
struct RescorePass<'a> {
    job: &'a RescoreJob,
    judge: Option<JudgeClient>,
    data: &'a DataSet,
    stop: &'a CancellationToken,
    summary: RescoreSummary,
    rows: Vec<RescoreRecord>,
}

impl RescorePass<'_> {
    /// The scorer of a trajectory that is to be scored; otherwise counts why it is not.
    fn scorer_of(&mut self, record: &TrajectoryRecord) -> Option<Result<Scorer, ScoreError>> {
        let suite = &record.task.suite;
        let task_id = &record.task.task_id;
        if record.status != TrajectoryStatus::Scored {
            self.summary.failed += 1;
            return None;
        }
        if !self.job.filter.matches(suite, task_id) {
            self.summary.left_out += 1;
            return None;
        }
        match &self.job.tasks {
            None => Some(Scorer::of_task_json(&record.task_json)),
            Some(sets) => match sets.iter().find_map(|set| set.find(suite, task_id)) {
                Some(spec) => Some(Ok(spec.scorer.clone())),
                None => {
                    self.summary.left_out += 1;
                    None
                }
            },
        }
    }

    /// Scores a batch, several at a time, and records the results in the order of the batch.
    fn score(
        &mut self,
        batch: Vec<(Box<TrajectoryRecord>, Result<Scorer, ScoreError>)>,
    ) -> Result<(), RescoreError> {
        let pictures = self.pictures(&batch)?;
        let next = AtomicUsize::new(0);
        let scored = Mutex::new(BTreeMap::new());
        std::thread::scope(|scope| {
            for _ in 0..self.job.scorers_max.min(batch.len()) {
                scope.spawn(|| {
                    while !self.stop.is_cancelled() {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some((record, scorer)) = batch.get(index) else { return };
                        let earlier = pictures.get(record.ancestry.trajectory_id.as_str());
                        let verdict = scorer.clone().map_err(UnscoredReason::from).and_then(|scorer| {
                            score_record(
                                &scorer,
                                record,
                                earlier.map_or(&[], Vec::as_slice),
                                self.judge.as_ref(),
                            )
                        });
                        scored.lock().unwrap_or_else(PoisonError::into_inner).insert(index, verdict);
                    }
                });
            }
        });
        if self.stop.is_cancelled() {
            return Err(RescoreError::Stopped);
        }
        let verdicts = scored.into_inner().unwrap_or_else(PoisonError::into_inner);
        batch
            .into_iter()
            .zip(verdicts.into_values())
            .for_each(|((record, _), verdict)| self.record_result((record, verdict)));
        Ok(())
    }

    /// The last screenshots of trajectories whose scorer needs more than the evidence. One pass
    /// over the steps serves a whole batch.
    fn pictures(
        &self,
        batch: &[(Box<TrajectoryRecord>, Result<Scorer, ScoreError>)],
    ) -> Result<BTreeMap<String, Vec<Bytes>>, RescoreError> {
        let Some(judge) = &self.judge else { return Ok(BTreeMap::new()) };
        let wanted = |scorer: &Result<Scorer, ScoreError>| {
            scorer.as_ref().map_or(0, |scorer| scorer.screenshots(judge.habits()))
        };
        let mut counts: BTreeMap<&str, usize> = batch
            .iter()
            .map(|(record, scorer)| (record.ancestry.trajectory_id.as_str(), wanted(scorer)))
            .collect();
        counts.retain(|_, count| *count > 0);
        let mut pictures = BTreeMap::new();
        if counts.is_empty() {
            return Ok(pictures);
        }
        for step in self.data.steps() {
            let step = step?;
            let of = step.ancestry.trajectory_id.as_str();
            let Some(count) = counts.get(of) else { continue };
            let last: &mut Vec<Bytes> = pictures.entry(of.to_owned()).or_default();
            if last.len() == *count {
                last.remove(0);
            }
            last.push(step.record.observation.screenshot.bytes);
        }
        Ok(pictures)
    }

    fn record_result(&mut self, (record, verdict): ScoredTrajectory) {
        let summary = &mut self.summary;
        summary.submitted += 1;
        let score = match verdict {
            Ok(score) => score,
            Err(why) => {
                summary.unscored += 1;
                if summary.named.len() < NAMED_MAX {
                    summary.named.push((record.ancestry.trajectory_id.to_string(), why.to_string()));
                }
                return;
            }
        };
        let before = record.score.as_ref();
        let reward = |score: &Score| score.reward.map_or(0.0, f64::from);
        summary.scored += 1;
        summary.changed += u64::from(before.map(|score| score.reward) != Some(score.reward));
        summary.reward_before += before.map_or(0.0, reward);
        summary.reward_after += reward(&score);
        summary.successes_before += u64::from(before.is_some_and(|score| score.success == Some(true)));
        summary.successes_after += u64::from(score.success == Some(true));
        if let Some(cost) = furrow_tasks::judge_cost_usd(&score) {
            *summary.cost_usd.get_or_insert(0.0) += cost;
        }
        let TrajectoryRecord { ancestry, task, .. } = *record;
        let task_id = task.task_id;
        let suite = task.suite;
        let split = task.split;
        self.rows.push(RescoreRecord {
            ancestry,
            task_id,
            suite,
            split,
            score,
            scored_at_micros: now_micros(),
        });
    }
}

fn score_record(
    scorer: &Scorer,
    record: &TrajectoryRecord,
    earlier: &[Bytes],
    judge: Option<&JudgeClient>,
) -> Result<Score, UnscoredReason> {
    let ending = &record.ending;
    let evidence = ending.evidence.as_ref().ok_or(UnscoredReason::NoEvidence)?;
    let facts = EndFacts { end: ending.end, steps: ending.steps, max_steps: record.task.max_steps };
    let finished = FinishedTrajectory { evidence, facts: &facts, goal: &ending.goal, earlier };
    let sitting = judge.map(JudgeClient::begin_scoring);
    let scoring_judge = sitting.as_ref().map(|sitting| sitting as &dyn furrow_tasks::Judge);
    Ok(scorer.score_with(&finished, scoring_judge)?)
}

/// Moves score files that no commit names: a rescoring was killed before its commit, or the commit
/// was lost.
fn put_unlisted_aside(job: &RescoreJob, data: &DataSet) -> Result<(), RescoreError> {
    let mut lost_found = LostFound::of_scoring(&job.run_dir, now_micros());
    for file in furrow_records::local_files(data.data_dir())? {
        if file.table == Table::Scores && !data.snapshot().holds(&file.name) {
            let taken = lost_found.take(&file.path, "scores that no manifest commit names");
            taken.map_err(CommitError::from)?;
        }
    }
    Ok(())
}

/// Writes the new scores as one durable file and names it in the manifest. The lock keeps
/// coordinators away meanwhile.
fn commit_scores(job: &RescoreJob, data: &DataSet, rows: &[RescoreRecord]) -> Result<u64, RecordsError> {
    let run_id: Id<Run> = rows[0].ancestry.run_id.clone();
    let created_at_micros = now_micros();
    let name = format!("{run_id}-score-{created_at_micros}");
    let shard_id: Id<Shard> = Id::new(&name)
        .map_err(|bad| RecordsError::Unwritable { what: "the scores".to_owned(), why: bad.to_string() })?;
    let mut shard = ShardWriter::create(ShardPlan {
        data_dir: data.data_dir().to_owned(),
        shard_id: shard_id.clone(),
        run_id: run_id.clone(),
        job_toml: job.shared_job.clone(),
        row_group_bytes: job.records.row_group_bytes,
        compression_level: job.records.compression_level,
    });
    rows.iter().try_for_each(|row| shard.add_rescore(row))?;
    let files = shard.finish(|_, _| {})?;
    let draft = CommitDraft::append(files, run_id, 0, shard_id, created_at_micros);
    let store = Manifest::local_store(data.data_dir())?;
    let committing = async { Manifest::open(store).await?.commit(&draft).await };
    // The store's futures need a runtime; this one serves a single commit.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| RecordsError::Unwritable {
        what: "the scores".to_owned(),
        why: format!("no thread to commit them on: {error}"),
    })?;
    let version = runtime.block_on(committing).map(CommitOutcome::version)?;
    renew_card(data.data_dir(), &draft, version);
    Ok(version)
}

fn now_micros() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_micros() as i64)
}
