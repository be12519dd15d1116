//! `furrow run`: every role in one process over loopback gRPC, the same code path as a cluster.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use furrow_coordinator::{RunLock, Summary};
use furrow_env::Stages;
use furrow_policy::{Endpoint, Listening};
use furrow_telemetry::Role;
use furrow_wire::v1::coordinator_service_client::CoordinatorServiceClient;
use furrow_wire::v1::{ProgressRequest, ProgressResponse};
use furrow_wire::{Connect, Tcp, within};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::budget::{self, Roles};
use crate::commands::view;
use crate::job::Job;
use crate::launch::{self, AirArgs, Launch};
use crate::progress::{self, Progress};
use crate::run_dir::{self, Begin};
use crate::{Failure, JobArgs, output};

/// Which job and how it begins.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    begin: BeginArgs,
    #[command(flatten)]
    air: AirArgs,
    /// Print JSON: one object a change, the last one the result
    #[arg(long)]
    json: bool,
}

/// How a run begins in its directory.
#[derive(Debug, Args)]
pub struct BeginArgs {
    /// Go on exactly where an earlier start of this job stopped, however it stopped
    #[arg(long, conflicts_with = "clean")]
    resume: bool,
    /// Remove what an earlier run left in the run directory and start over
    #[arg(long)]
    clean: bool,
}

/// How often the figures are asked for.
const LOOK: Duration = Duration::from_millis(500);

impl BeginArgs {
    /// As the run directory wants it.
    pub fn begin(&self) -> Begin {
        match (self.resume, self.clean) {
            (true, _) => Begin::Resume,
            (_, true) => Begin::Clean,
            _ => Begin::Fresh,
        }
    }
}

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let launch = Launch::read(&args.job)?.with_key()?.with_policy_key()?;
    budget::check(&launch, Roles::All)?;
    let begin = args.begin.begin();
    let dir = launch.job.run_dir.clone();
    launch::runtime()?.block_on(async {
        // The browser comes first, and the address of chats: without them there is no run, and no half-made run directory.
        let stages = launch.stages(&args.air).await?;
        if begin == Begin::Resume {
            launch.check_same_job()?;
        }
        let chats = launch::chats(&launch.job.policy).await?;
        let prepared = run_dir::prepare(&dir, begin, &launch.job.resolved).and_then(|lock| {
            launch::logs(&dir, Role::Run, &launch.job.telemetry)?;
            Ok(lock)
        });
        let outcome = match prepared {
            Ok(lock) => farm(launch, stages.clone(), chats, begin, lock, args.json).await,
            Err(failure) => Err(failure),
        };
        stages.close().await;
        let (summary, last) = outcome?;
        conclude(&summary, &last, &dir, args.json)
    })
}

async fn farm(
    launch: Launch,
    stages: Arc<dyn Stages>,
    chats: Option<Endpoint>,
    begin: Begin,
    lock: RunLock,
    as_json: bool,
) -> Result<(Summary, ProgressResponse), Failure> {
    let stop = launch::stop_on_signal()?;
    let over = CancellationToken::new();
    let (coordinator, policy) =
        (TcpListener::bind("127.0.0.1:0").await?, TcpListener::bind("127.0.0.1:0").await?);
    let address = coordinator.local_addr()?.to_string();
    run_dir::write_address(&launch.job.run_dir, &address)?;
    // Figures and spans go on until everybody has said their last word.
    let silent = CancellationToken::new();
    let metrics = launch::metrics(&launch.job, Role::Run, &launch::process_name("run"), silent.clone())?;
    let looking = look_on(&launch.job, over.clone()).await?;
    let connect: Arc<dyn Connect> = Arc::new(Tcp::default());
    let (env_config, policy_config) = (launch.job.env.worker.clone(), launch.job.policy.clone());
    let grace = env_config.drain_grace;
    let job = launch.coordinator(begin == Begin::Resume, lock)?;

    let policy_stop = CancellationToken::new();
    let coordinating = furrow_coordinator::run(job, furrow_wire::accept(coordinator), stop.clone());
    let listening = Listening { sessions: policy, chats };
    let policing = furrow_policy::run(
        policy_config,
        launch::worker_name(Some("policy-0"), "policy")?,
        listening,
        connect.clone(),
        Some(address.clone()),
        grace,
        policy_stop.clone(),
    );
    let policing = async {
        let policed = policing.await;
        if policed.is_err() {
            // No other policy worker will come: without one the coordinator would wait for ever.
            stop.cancel();
        }
        policed
    };
    let name = launch::worker_name(Some("env-0"), "env")?;
    let acting = async {
        let acted = furrow_env::run(env_config, name, stages, connect, &address, stop.clone()).await;
        // Sessions end before the policy they speak with does; without browsers there is nothing left to coordinate.
        policy_stop.cancel();
        stop.cancel();
        acted
    };
    let coordinated = async {
        let summary = coordinating.await;
        over.cancel();
        stop.cancel();
        summary
    };
    let (summary, acted, policed, last) =
        tokio::join!(coordinated, acting, policing, watch(&address, over.clone(), as_json));
    silent.cancel();
    metrics.await?;
    if let Some(looking) = looking {
        looking.await?;
    }
    let summary = summary?;
    acted?;
    policed?;
    Ok((summary, last?))
}

/// Serves the dashboard until the run is over, where the job wants one.
async fn look_on(job: &Job, over: CancellationToken) -> Result<Option<JoinHandle<()>>, Failure> {
    if job.dashboard.listen.is_none() {
        return Ok(None);
    }
    let subject = view::subject(&job.run_dir, job.dashboard.usd_per_device_hour);
    // Several runs of one machine share the port of the first: the others take free ones.
    let dashboard = view::open(&job.dashboard, true, subject).await?;
    Ok(Some(tokio::spawn(dashboard.serve(over))))
}

/// Shows progress until the run is over; returns the last figures that were seen.
async fn watch(address: &str, over: CancellationToken, as_json: bool) -> Result<ProgressResponse, Failure> {
    let mut client = CoordinatorServiceClient::new(Tcp::default().channel(address)?);
    let mut shown = Progress::new(as_json);
    let mut last = ProgressResponse::default();
    while over.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
        // A coordinator that is opening or closing does not answer: the next look will tell.
        if let Ok(now) = within(LOOK, client.progress(ProgressRequest {})).await {
            last = now.into_inner();
            shown.update(&last)?;
        }
    }
    shown.finish();
    Ok(last)
}

fn conclude(summary: &Summary, last: &ProgressResponse, dir: &Path, as_json: bool) -> Result<(), Failure> {
    use furrow_coordinator::core::Over;
    let now = &summary.progress;
    let failed: u64 = now.failed.values().sum();
    if as_json {
        let mut figures = progress::figures(last);
        figures["scored"] = now.scored.into();
        figures["failed"] = failed.into();
        figures["published"] = now.published.into();
        figures["groups_closed"] = now.groups_closed.into();
        figures["run_over"] = now.run_over.into();
        figures["run_dir"] = dir.display().to_string().into();
        output::json(&figures)?;
    } else {
        let mean = match now.scored {
            0 => "–".to_owned(),
            scored => format!("{:.2}", now.reward_sum / scored as f64),
        };
        output::line(format!(
            "{} trajectories scored, mean reward {mean}, {} solved their task; {failed} attempts failed by the farm's fault",
            now.scored, now.successes
        ));
        output::line(format!("data set: {}", dir.join("data").display()));
    }
    match &summary.over {
        Over::Complete => scored_something(summary, dir),
        Over::Drained { .. } => {
            output::complain(&format!(
                "stopped before the end: go on with `furrow run … --resume` ({})",
                dir.display()
            ));
            Ok(())
        }
        Over::TooManyFailures { detail } => Err(anyhow::anyhow!(
            "the farm failed too often and stopped: {detail}; see {}",
            dir.join("logs").display()
        )
        .into()),
    }
}

/// A run that came to its end without a reward is no success, whatever the shell goes on with: every attempt at every task failed.
pub fn scored_something(summary: &Summary, dir: &Path) -> Result<(), Failure> {
    let now = &summary.progress;
    let failed: u64 = now.failed.values().sum();
    if now.scored > 0 || failed == 0 {
        return Ok(());
    }
    let mut ends: Vec<String> =
        now.failed.iter().map(|(end, count)| format!("{count} {}", end.as_str())).collect();
    ends.sort();
    Err(anyhow::anyhow!(
        "nothing was scored: all {failed} attempts failed ({}); the reasons are in {}",
        ends.join(", "),
        dir.join("logs").display()
    )
    .into())
}
