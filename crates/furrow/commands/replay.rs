//! `furrow replay`: replays recorded trajectories in real browsers and reports where they differ.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use furrow_env::{
    ArchiveMode, EnvironmentFactory, HostPort, RecordedReply, SiteServer, TrajectoryArchive,
    replay_trajectory,
};
use furrow_policy::{ModelPolicy, Policy};
use furrow_records::{DataSet, FoundTrajectory, LogprobGap};
use furrow_rollout::{
    Assignment, Id, LEASE_SECRET_BYTES, LeaseSecret, StepRecord, Task, TaskChecks, TaskFiles, TimeCause,
    Trajectory,
};
use furrow_tasks::TaskSet;
use futures::StreamExt;
use serde_json::json;

use super::export::no_trajectory;
use crate::job::Job;
use crate::launch;
use crate::replay::{PictureTolerance, RecordedPages, ReplayDifference, ReplayResult, compare, page_queries};
use crate::tokens::{TokenDifference, TokenReplay, play};
use crate::{CommandFailure, output};

/// Which trajectories to replay, and what counts as equal.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// Ids of the trajectories to replay
    #[arg(required_unless_present = "all")]
    trajectory: Vec<String>,
    /// Run directory that holds the trajectories
    #[arg(long)]
    run: PathBuf,
    /// Replay every trajectory of the run
    #[arg(long, conflicts_with = "trajectory")]
    all: bool,
    /// Job file to use instead of the run's own job.toml
    #[arg(long)]
    job: Option<PathBuf>,
    /// Replace one key of the job, such as `env.sessions_max=1`; repeat the option for more keys
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Load every page from the recorded archive, even if the job serves the site itself
    #[arg(long)]
    archive: bool,
    /// Wait before each action as long as the policy took when it was recorded
    #[arg(long)]
    pace: bool,
    /// Milliseconds that a page in real time gets to look as it was recorded, before it counts as
    /// different
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    timeout_millis: u64,
    /// Levels of 255 by which a pixel may be off before it counts as different [default: 8; 64 with
    /// another browser build]
    #[arg(long)]
    levels: Option<u8>,
    /// Share of the pixels, 0 to 1, that may differ before the pictures count as different
    /// [default: 0.0005; 0.05 with another browser build]
    #[arg(long)]
    share: Option<f64>,
    /// Replay the policy's tokens instead of the pages, on the job's checkpoint or on --checkpoint
    #[arg(long, conflicts_with_all = ["archive", "pace", "levels", "share"])]
    tokens: bool,
    /// Directory of a full checkpoint to replay the tokens on, instead of the job's
    #[arg(long, requires = "tokens")]
    checkpoint: Option<PathBuf>,
    /// Share of the sampled tokens, 0 to 1, whose log-probabilities are also recomputed by the
    /// prefill path
    #[arg(long, requires = "tokens", default_value_t = 0.05)]
    prefill_share: f64,
    /// Print every trajectory with its differences as JSON instead of text, once all are replayed
    #[arg(long)]
    json: bool,
}

/// Seed of the choice of tokens for the prefill path: every replay takes the same ones.
const PREFILL_SEED: u64 = 1;

/// Within one build the edge of a raster tile may be off by a level, and a caret may blink in a
/// browser without a rule against it (2 x 24 of 512 x 512 pixels are 0.0002).
const SAME_BUILD: PictureTolerance = PictureTolerance { levels: 8, share: 0.0005 };
/// Another build renders the edges of letters differently, and letters cover a twentieth of a page.
const OTHER_BUILD: PictureTolerance = PictureTolerance { levels: 64, share: 0.05 };

pub(crate) fn run(args: &ReplayArgs) -> Result<(), CommandFailure> {
    if let Some(share) = args.share.filter(|share| !(0.0..=1.0).contains(share)) {
        return Err(CommandFailure::Input(vec![format!("--share: {share}; use 0 to 1")]));
    }
    let set = DataSet::open(&args.run)?;
    let found = find(&set, args)?;
    if args.tokens {
        return play_tokens(args, &found);
    }
    let inputs = ReplayInputs::read(args)?;
    let at_once = inputs.job.env.sessions_max as usize;
    let (archived, served): (Vec<_>, Vec<_>) =
        found.iter().partition(|(record, _)| inputs.takes_archive(&record.task));
    inputs.check(&archived)?;
    let replayed = launch::runtime()?.block_on(async {
        let mut replayed = Vec::new();
        for (from, found) in [(ReplaySource::Sites, served), (ReplaySource::Archive, archived)] {
            if found.is_empty() {
                continue;
            }
            let stages = inputs.environments(from).await?;
            let acting = found
                .into_iter()
                .map(|found| replay_one(stages.clone(), from, inputs.given(&found.0.task), found, args));
            replayed.extend(futures::stream::iter(acting).buffered(at_once).collect::<Vec<_>>().await);
            stages.close().await;
        }
        Ok::<_, CommandFailure>(replayed)
    })?;
    print_results(&replayed, args.json)
}

/// Replays the tokens of one trajectory after another: the model is loaded once and has its own
/// threads.
fn play_tokens(args: &ReplayArgs, found: &[FoundTrajectory]) -> Result<(), CommandFailure> {
    if !(0.0..=1.0).contains(&args.prefill_share) {
        return Err(CommandFailure::Input(vec![format!(
            "--prefill-share: {}; use 0 to 1",
            args.prefill_share
        )]));
    }
    let mut settings = args.set.clone();
    if let Some(checkpoint) = &args.checkpoint {
        let wrong =
            |why| CommandFailure::Input(vec![format!("--checkpoint: {}: {why}", checkpoint.display())]);
        let checkpoint = checkpoint.canonicalize().map_err(wrong)?;
        settings.push(format!("policy.checkpoint={}", checkpoint.display()));
    }
    // The replay computes its own log-probabilities, so the drift audit is off.
    settings.push("policy.audit.share=0.0".to_owned());
    let path = args.job.clone().unwrap_or_else(|| args.run.join("job.toml"));
    let policy = Job::read(&path, &settings).map_err(CommandFailure::Input)?.policy;
    let Some(model) = policy.model.clone() else {
        let kind = policy.choice.kind().as_str();
        let message =
            format!("policy.kind: {kind:?} has no tokens; use --tokens with a run of a \"model\" policy");
        return Err(CommandFailure::Input(vec![message]));
    };
    let played = launch::runtime()?.block_on(async {
        let loading = tokio::task::spawn_blocking(move || ModelPolicy::open(&model, &policy.session));
        let model = Arc::new(loading.await??);
        let mut played = Vec::new();
        for one in found {
            played.push(play(&model, one, args.prefill_share, PREFILL_SEED).await?);
        }
        model.stop().await.map_err(anyhow::Error::msg)?;
        Ok::<_, CommandFailure>(played)
    })?;
    print_token_results(&played, args.json)
}

fn print_token_results(played: &[TokenReplay], as_json: bool) -> Result<(), CommandFailure> {
    let identical = played.iter().filter(|one| one.first_difference.is_none()).count();
    if as_json {
        output::json(&json!({ "replayed": played.len(), "identical": identical, "trajectories": played }))?;
    } else {
        played.iter().for_each(print_tokens);
        output::line(format!("{identical} of {} identical", played.len()));
    }
    match played.len() - identical {
        0 => Ok(()),
        differ => Err(anyhow::anyhow!("{differ} of {} trajectories differ", played.len()).into()),
    }
}

fn print_tokens(one: &TokenReplay) {
    let TokenReplay { trajectory_id, steps, tokens, identical_steps, .. } = one;
    let verdict = if one.first_difference.is_none() { "identical" } else { "DIFFERS  " };
    output::line(format!("{verdict} {trajectory_id}: {identical_steps} of {steps} steps, {tokens} tokens"));
    if let Some(TokenDifference { step, token, what, recorded, replayed }) = &one.first_difference {
        let token_text = token.map_or_else(String::new, |token| format!(", token {token}"));
        output::line(format!("  first at step {step}{token_text}: {what}: {recorded} then, {replayed} now"));
    }
    for (path, gap) in [("decode", one.decoded), ("prefill", one.prefilled)] {
        let Some(LogprobGap { tokens, mean_abs, p50, p99, max }) = gap else { continue };
        output::line(format!(
            "  log-probs by the {path} path, {tokens} tokens: mean gap {mean_abs:.2e}, p50 {p50:.2e}, p99 {p99:.2e}, max {max:.2e}"
        ));
    }
    if !one.same_weights {
        output::line("  the weights of this checkpoint are not those that the trajectory began with");
    }
    if let Some((oldest, newest)) = one.policy_versions.filter(|(oldest, newest)| oldest != newest) {
        output::line(format!(
            "  its tokens are of versions {oldest} to {newest}: one checkpoint reproduces only one of them"
        ));
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplaySource {
    Sites,
    /// The recorded network traffic.
    Archive,
}

/// The job's tasks and the archive, as far as the replay needs them.
struct ReplayInputs {
    job: Job,
    /// Absent if only archives are used: the sites may no longer exist.
    sets: Option<(TaskSet, Option<TaskSet>)>,
    archive: PathBuf,
}

/// What a task's line gives its trajectories, which records do not hold.
struct GivenToTask {
    files: TaskFiles,
    secrets: Vec<String>,
}

impl ReplayInputs {
    fn read(args: &ReplayArgs) -> Result<Self, CommandFailure> {
        let path = args.job.clone().unwrap_or_else(|| args.run.join("job.toml"));
        let job = Job::read(&path, &args.set).map_err(CommandFailure::Input)?;
        let sets = match args.archive {
            true => None,
            false => Some(launch::load(&job)?),
        };
        Ok(Self { job, sets, archive: launch::archive(&args.run) })
    }

    /// Whether a task needs an archive: not if the job serves its site.
    fn takes_archive(&self, task: &Task) -> bool {
        let host = HostPort::parse_url(&task.start_url).map(|url| url.host.to_string()).unwrap_or_default();
        let sets = self.sets.iter().flat_map(|(set, eval)| [Some(set), eval.as_ref()]).flatten();
        !sets.flat_map(TaskSet::sites).any(|site| site.host == host)
    }

    /// What the task files give a task now.
    fn given(&self, task: &Task) -> GivenToTask {
        GivenToTask { files: self.files(task), secrets: self.secrets(task) }
    }

    /// The files that a task's pages may take and give, as the task files have them now. A file
    /// that changed since the recording shows in the pages.
    fn files(&self, task: &Task) -> TaskFiles {
        let sets = self.sets.iter().flat_map(|(set, eval)| [Some(set), eval.as_ref()]).flatten();
        let spec = sets.filter_map(|set| set.find(&task.suite, &task.task_id)).next();
        spec.map(|spec| spec.files.clone()).unwrap_or_default()
    }

    /// Names of the secrets that a task may use, as the task files have them now. An archive fills
    /// in placeholders: any that the job declares.
    fn secrets(&self, task: &Task) -> Vec<String> {
        let Some((set, eval)) = &self.sets else { return self.job.tasks.secrets.clone() };
        let sets = [Some(set), eval.as_ref()].into_iter().flatten();
        let spec = sets.filter_map(|set| set.find(&task.suite, &task.task_id)).next();
        spec.map(|spec| spec.secrets.clone()).unwrap_or_default()
    }

    /// Requires every archive: a replay from the live web would be a different visit.
    fn check(&self, archived: &[&FoundTrajectory]) -> Result<(), CommandFailure> {
        let ids = archived.iter().map(|(record, _)| &record.ancestry.trajectory_id);
        let missing: Vec<String> = ids
            .filter(|id| !TrajectoryArchive::exists(&self.archive, id))
            .map(|id| {
                let folder = self.archive.display();
                format!("{id}: {folder} holds no archive of this trajectory; record the next run with env.archive = true, and a larger env.archive_bytes_max if that removed it")
            })
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(CommandFailure::Input(missing)) }
    }

    async fn environments(&self, from: ReplaySource) -> Result<Arc<dyn EnvironmentFactory>, CommandFailure> {
        let env = &self.job.env;
        match (from, &self.sets) {
            (ReplaySource::Sites, Some((set, eval))) => {
                launch::browsers(env, launch::sites(set, eval.as_ref(), env)?, None).await
            }
            _ => {
                let archives = ArchiveMode::Replay { folder: self.archive.clone() };
                launch::browsers(env, SiteServer::open(&[], env.sites)?, Some(archives)).await
            }
        }
    }
}

impl ReplaySource {
    fn as_str(self) -> &'static str {
        match self {
            ReplaySource::Sites => "sites",
            ReplaySource::Archive => "archive",
        }
    }
}

fn find(set: &DataSet, args: &ReplayArgs) -> Result<Vec<FoundTrajectory>, CommandFailure> {
    let names = if args.all { set.trajectory_ids()? } else { args.trajectory.clone() };
    let ids: Vec<Id<Trajectory>> = names
        .iter()
        .map(Id::new)
        .collect::<Result<_, _>>()
        .map_err(|bad| CommandFailure::Input(vec![bad.to_string()]))?;
    let found = set.find(&ids)?;
    let is_there = |id: &Id<Trajectory>| found.iter().any(|(record, _)| record.ancestry.trajectory_id == *id);
    let missing: Vec<String> =
        ids.iter().filter(|id| !is_there(id)).map(|id| no_trajectory(id.as_str(), &args.run, set)).collect();
    if missing.is_empty() { Ok(found) } else { Err(CommandFailure::Input(missing)) }
}

async fn replay_one(
    stages: Arc<dyn EnvironmentFactory>,
    from: ReplaySource,
    GivenToTask { files, secrets }: GivenToTask,
    (record, steps): &FoundTrajectory,
    args: &ReplayArgs,
) -> ReplayResult {
    let assignment = Assignment {
        ancestry: record.ancestry.clone(),
        token: record.token,
        // The run keeps no secret, and no coordinator asks for it.
        secret: LeaseSecret::new([0; LEASE_SECRET_BYTES]),
        lease_millis: 60_000,
        task: record.task.clone(),
        files,
        // An archive holds no back end; what its scorer found there is in the record.
        checks: TaskChecks { reset: None, queries: page_queries(record) },
        secrets,
        session: record.session.clone(),
        policy_address: String::new(),
    };
    let recorded = |step: &StepRecord| RecordedReply {
        reply: step.reply.clone(),
        pause: match args.pace {
            true => Duration::from_micros(step.timing.of(TimeCause::Policy)),
            false => Duration::ZERO,
        },
    };
    let recorded: Vec<RecordedReply> = steps.iter().map(recorded).collect();
    let build = match record.ending.environment.browser == stages.fingerprint(None).browser {
        true => SAME_BUILD,
        false => OTHER_BUILD,
    };
    let tolerance = PictureTolerance {
        levels: args.levels.unwrap_or(build.levels),
        share: args.share.unwrap_or(build.share),
    };
    let looks = RecordedPages::new(record, steps, tolerance);
    let timeout = Duration::from_millis(args.timeout_millis);
    let replayed = replay_trajectory(stages.as_ref(), &assignment, &recorded, &looks, timeout).await;
    compare(record, steps, &replayed, from.as_str(), tolerance)
}

fn print_results(replayed: &[ReplayResult], as_json: bool) -> Result<(), CommandFailure> {
    let differ = replayed.iter().filter(|one| !one.differences.is_empty()).count();
    if as_json {
        let equal = replayed.len() - differ;
        output::json(&json!({ "replayed": replayed.len(), "equal": equal, "trajectories": replayed }))?;
    } else {
        replayed.iter().for_each(print);
        output::line(format!("{} of {} equal", replayed.len() - differ, replayed.len()));
    }
    match differ {
        0 => Ok(()),
        _ => Err(anyhow::anyhow!("{differ} of {} trajectories differ", replayed.len()).into()),
    }
}

fn print(one: &ReplayResult) {
    let verdict = if one.differences.is_empty() { "equal  " } else { "DIFFERS" };
    let ReplayResult { trajectory_id, task, steps, identical_pictures, from, .. } = one;
    let build = if one.same_browser { "" } else { ", another browser build" };
    output::line(format!(
        "{verdict} {trajectory_id} {task}: {steps} steps from its {from}, {identical_pictures} pictures identical{build}"
    ));
    for ReplayDifference { step, what, recorded, replayed } in &one.differences {
        let step_text = step.map_or("at the end".to_owned(), |step| format!("step {step}"));
        output::line(format!("  {step_text}: {what}: {recorded:?} then, {replayed:?} now"));
    }
}
