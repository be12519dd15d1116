//! `furrow replay`: acts recorded trajectories again in real browsers and says where they differ.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use furrow_env::{Archive, Archives, Place, Recorded, Sites, Stages, act_again};
use furrow_policy::{Model, Policy};
use furrow_records::{DataSet, Found, Gap};
use furrow_rollout::{Assignment, Cause, Id, StepRecord, Task, Trajectory};
use furrow_tasks::TaskSet;
use futures::StreamExt;
use serde_json::json;

use crate::job::Job;
use crate::launch;
use crate::replay::{Difference, Looks, Replayed, Tolerance, compare};
use crate::tokens::{Parting, Played, play};
use crate::{Failure, output};

/// Which trajectories, and what counts as equal.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Trajectories, by id
    #[arg(required_unless_present = "all")]
    trajectory: Vec<String>,
    /// Run directory that holds them
    #[arg(long)]
    run: PathBuf,
    /// Every trajectory of the run
    #[arg(long, conflicts_with = "trajectory")]
    all: bool,
    /// Job file, where it is not the run's own job.toml
    #[arg(long)]
    job: Option<PathBuf>,
    /// Replace a key of the job, such as `env.sessions_max=1`; may be given again
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Take every page from the archive, also those of sites that are at hand
    #[arg(long)]
    archive: bool,
    /// Wait before each action as long as the policy took then
    #[arg(long)]
    pace: bool,
    /// A page in real time that does not look as it did is given so long to come to it
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    patience_millis: u64,
    /// A pixel differs when it is off by more than so many levels of 255 [default: 8, of another browser build 64]
    #[arg(long)]
    levels: Option<u8>,
    /// Pictures differ when more than this share of their pixels does [default: 0.0005, of another browser build 0.05]
    #[arg(long)]
    share: Option<f64>,
    /// Play the policy's tokens again instead of the pages: on the job's checkpoint, or on --checkpoint
    #[arg(long, conflicts_with_all = ["archive", "pace", "levels", "share"])]
    tokens: bool,
    /// With --tokens: the directory of the checkpoint, whole
    #[arg(long, requires = "tokens")]
    checkpoint: Option<PathBuf>,
    /// With --tokens: share of the drawn tokens that are scored by the prefill path as well
    #[arg(long, requires = "tokens", default_value_t = 0.05)]
    prefill_share: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Which tokens are scored by the prefill path: the same ones every time.
const PREFILL_SEED: u64 = 1;

/// Within one build a raster tile's edge may be off by a level, and in a browser that knows no rule for carets one may blink (2 x 24 of 512 x 512
/// pixels are 0.0002).
const SAME_BUILD: Tolerance = Tolerance { levels: 8, share: 0.0005 };
/// Another build draws the edges of letters anew, and letters cover a twentieth of a page.
const OTHER_BUILD: Tolerance = Tolerance { levels: 64, share: 0.05 };

/// Runs the command.
pub fn run(args: &ReplayArgs) -> Result<(), Failure> {
    if let Some(share) = args.share.filter(|share| !(0.0..=1.0).contains(share)) {
        return Err(Failure::Input(vec![format!("--share: {share}; use 0 to 1")]));
    }
    let set = DataSet::open(&args.run)?;
    let found = find(&set, args)?;
    if args.tokens {
        return play_tokens(args, &found);
    }
    let places = Places::read(args)?;
    let at_once = places.job.env.sessions_max as usize;
    let (archived, served): (Vec<_>, Vec<_>) =
        found.iter().partition(|(record, _)| places.takes_archive(&record.task));
    places.check(&archived)?;
    let replayed = launch::runtime()?.block_on(async {
        let mut replayed = Vec::new();
        for (from, found) in [(Source::Sites, served), (Source::Archive, archived)] {
            if found.is_empty() {
                continue;
            }
            let stages = places.stages(from).await?;
            let acting = found.into_iter().map(|found| act(stages.clone(), from, found, args));
            replayed.extend(futures::stream::iter(acting).buffered(at_once).collect::<Vec<_>>().await);
            stages.close().await;
        }
        Ok::<_, Failure>(replayed)
    })?;
    tell(&replayed, args.json)
}

/// Plays the tokens again, one trajectory after another: a model is loaded once and has its threads.
fn play_tokens(args: &ReplayArgs, found: &[Found]) -> Result<(), Failure> {
    if !(0.0..=1.0).contains(&args.prefill_share) {
        return Err(Failure::Input(vec![format!("--prefill-share: {}; use 0 to 1", args.prefill_share)]));
    }
    let mut settings = args.set.clone();
    if let Some(checkpoint) = &args.checkpoint {
        let wrong = |why| Failure::Input(vec![format!("--checkpoint: {}: {why}", checkpoint.display())]);
        let checkpoint = checkpoint.canonicalize().map_err(wrong)?;
        settings.push(format!("policy.checkpoint={}", checkpoint.display()));
    }
    // What is scored is scored here, and on nobody's behalf but this.
    settings.push("policy.audit.share=0.0".to_owned());
    let path = args.job.clone().unwrap_or_else(|| args.run.join("job.toml"));
    let policy = Job::read(&path, &settings).map_err(Failure::Input)?.policy;
    let Some(model) = policy.model.clone() else {
        let kind = policy.choice.kind().as_str();
        let told = format!(
            "policy.kind: {kind:?}; only trajectories of a model policy have tokens to be played again"
        );
        return Err(Failure::Input(vec![told]));
    };
    let played = launch::runtime()?.block_on(async {
        let loading = tokio::task::spawn_blocking(move || Model::open(&model, &policy.session));
        let model = Arc::new(loading.await??);
        let mut played = Vec::new();
        for one in found {
            played.push(play(&model, one, args.prefill_share, PREFILL_SEED).await?);
        }
        model.stop().await;
        Ok::<_, Failure>(played)
    })?;
    tell_tokens(&played, args.json)
}

fn tell_tokens(played: &[Played], as_json: bool) -> Result<(), Failure> {
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

fn print_tokens(one: &Played) {
    let Played { trajectory_id, steps, tokens, identical_steps, .. } = one;
    let verdict = if one.first_difference.is_none() { "identical" } else { "DIFFERS  " };
    output::line(format!("{verdict} {trajectory_id}: {identical_steps} of {steps} steps, {tokens} tokens"));
    if let Some(Parting { step, token, what, recorded, replayed }) = &one.first_difference {
        let place = token.map_or_else(String::new, |token| format!(", token {token}"));
        output::line(format!("  first at step {step}{place}: {what}: {recorded} then, {replayed} now"));
    }
    for (path, gap) in [("decode", one.decoded), ("prefill", one.prefilled)] {
        let Some(Gap { tokens, mean_abs, p50, p99, max }) = gap else { continue };
        output::line(format!(
            "  log-probs by the {path} path, {tokens} tokens: mean gap {mean_abs:.2e}, p50 {p50:.2e}, p99 {p99:.2e}, max {max:.2e}"
        ));
    }
    if !one.same_weights {
        output::line("  the checkpoint's weights are not those it began on");
    }
    if let Some((oldest, newest)) = one.policy_versions.filter(|(oldest, newest)| oldest != newest) {
        output::line(format!(
            "  its tokens are of versions {oldest} to {newest}: one checkpoint cannot be all of them"
        ));
    }
}

/// Where the pages of a replay come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The job's own sites.
    Sites,
    /// What was recorded of the network.
    Archive,
}

/// Both places, as far as they are there.
struct Places {
    job: Job,
    /// Absent where archives alone are asked for: the sites may be gone.
    sets: Option<(TaskSet, Option<TaskSet>)>,
    archive: PathBuf,
}

impl Places {
    fn read(args: &ReplayArgs) -> Result<Self, Failure> {
        let path = args.job.clone().unwrap_or_else(|| args.run.join("job.toml"));
        let job = Job::read(&path, &args.set).map_err(Failure::Input)?;
        let sets = match args.archive {
            true => None,
            false => Some(launch::load(&job)?),
        };
        Ok(Self { job, sets, archive: launch::archive(&args.run) })
    }

    /// A task of a site that is served here needs no archive.
    fn takes_archive(&self, task: &Task) -> bool {
        let host = Place::of_url(&task.start_url).map(|place| place.host.to_string()).unwrap_or_default();
        let sets = self.sets.iter().flat_map(|(set, eval)| [Some(set), eval.as_ref()]).flatten();
        !sets.flat_map(TaskSet::sites).any(|site| site.host == host)
    }

    /// Every archive must be there: a replay from the live web would be another visit.
    fn check(&self, archived: &[&Found]) -> Result<(), Failure> {
        let ids = archived.iter().map(|(record, _)| &record.ancestry.trajectory_id);
        let missing: Vec<String> = ids
            .filter(|id| !Archive::is_there(&self.archive, id))
            .map(|id| {
                let folder = self.archive.display();
                format!("{id}: {folder} holds no archive of it; record the next run with env.archive = true")
            })
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(Failure::Input(missing)) }
    }

    async fn stages(&self, from: Source) -> Result<Arc<dyn Stages>, Failure> {
        let env = &self.job.env;
        match (from, &self.sets) {
            (Source::Sites, Some((set, eval))) => {
                launch::browsers(env, launch::sites(set, eval.as_ref(), env)?, None).await
            }
            _ => {
                let archives = Archives::Replay { folder: self.archive.clone() };
                launch::browsers(env, Sites::open(&[], env.sites)?, Some(archives)).await
            }
        }
    }
}

impl Source {
    fn as_str(self) -> &'static str {
        match self {
            Source::Sites => "sites",
            Source::Archive => "archive",
        }
    }
}

fn find(set: &DataSet, args: &ReplayArgs) -> Result<Vec<Found>, Failure> {
    let names = if args.all { set.trajectory_ids()? } else { args.trajectory.clone() };
    let ids: Vec<Id<Trajectory>> = names
        .iter()
        .map(Id::new)
        .collect::<Result<_, _>>()
        .map_err(|bad| Failure::Input(vec![bad.to_string()]))?;
    let found = set.find(&ids)?;
    let is_there = |id: &Id<Trajectory>| found.iter().any(|(record, _)| record.ancestry.trajectory_id == *id);
    let missing: Vec<String> = ids
        .iter()
        .filter(|id| !is_there(id))
        .map(|id| format!("{id}: {} holds no trajectory of this name", args.run.display()))
        .collect();
    if missing.is_empty() { Ok(found) } else { Err(Failure::Input(missing)) }
}

async fn act(stages: Arc<dyn Stages>, from: Source, (record, steps): &Found, args: &ReplayArgs) -> Replayed {
    let assignment = Assignment {
        ancestry: record.ancestry.clone(),
        token: record.token,
        lease_millis: 60_000,
        task: record.task.clone(),
        session: record.session.clone(),
        policy_address: String::new(),
    };
    let recorded = |step: &StepRecord| Recorded {
        reply: step.reply.clone(),
        pause: match args.pace {
            true => Duration::from_micros(step.timing.of(Cause::Policy)),
            false => Duration::ZERO,
        },
    };
    let recorded: Vec<Recorded> = steps.iter().map(recorded).collect();
    let build = match record.ending.environment.browser == stages.environment(None).browser {
        true => SAME_BUILD,
        false => OTHER_BUILD,
    };
    let tolerance =
        Tolerance { levels: args.levels.unwrap_or(build.levels), share: args.share.unwrap_or(build.share) };
    let looks = Looks::of(record, steps, tolerance);
    let patience = Duration::from_millis(args.patience_millis);
    let again = act_again(stages.as_ref(), &assignment, &recorded, &looks, patience).await;
    compare(record, steps, &again, from.as_str(), tolerance)
}

fn tell(replayed: &[Replayed], as_json: bool) -> Result<(), Failure> {
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

fn print(one: &Replayed) {
    let verdict = if one.differences.is_empty() { "equal  " } else { "DIFFERS" };
    let Replayed { trajectory_id, task, steps, identical_pictures, from, .. } = one;
    let build = if one.same_browser { "" } else { ", another browser build" };
    output::line(format!(
        "{verdict} {trajectory_id} {task}: {steps} steps from its {from}, {identical_pictures} pictures identical{build}"
    ));
    for Difference { step, what, recorded, replayed } in &one.differences {
        let place = step.map_or("at the end".to_owned(), |step| format!("step {step}"));
        output::line(format!("  {place}: {what}: {recorded:?} then, {replayed:?} now"));
    }
}
