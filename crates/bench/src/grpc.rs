//! `furrow-bench grpc`: measures policy sessions over loopback at full speed, with screenshots of a
//! browser's size.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use furrow::{CommandFailure, ScratchDir, runtime};
use furrow_env::EnvironmentFactory;
use furrow_env::simulated::{SimConfig, SimulatedBrowser};
use furrow_identity::Authority;
use furrow_policy::{PolicyConfig, PolicyFile, WorkerListeners};
use furrow_rollout::{Assignment, Id, Trajectory};
use furrow_telemetry::{MemoryMeasure, process_usage};
use furrow_wire::v1::policy_service_client::PolicyServiceClient;
use furrow_wire::v1::{Close, Observe, SessionRequest, SessionResponse, session_request, session_response};
use furrow_wire::{
    Connector, Identity, MESSAGE_BYTES_MAX, PeerRole, SessionOpening, TcpConnector, TlsConnector,
    observation_into, reply_from,
};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::BenchArgs;
use crate::pace::{self, BenchPage};
use crate::report::BenchReport;

#[derive(Debug, Args)]
pub(crate) struct GrpcArgs {
    /// Number of concurrent sessions, on one connection
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    sessions: u32,
    /// Seconds to measure; the report compares the memory of the second minute and of the last one
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(6..=86_400))]
    seconds: u64,
    /// Size of each screenshot in bytes
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1_000..=4_000_000))]
    screenshot_bytes: u32,
    /// Connect without TLS, which a farm never does, to see what TLS costs
    #[arg(long)]
    plain: bool,
    #[command(flatten)]
    bench: BenchArgs,
}

/// Totals of all sessions, and the memory, one sample per second.
struct GrpcMeasurement {
    messages: u64,
    time: Duration,
    cpu_micros: u64,
    rss: Vec<u64>,
}

/// What the sessions share.
struct SessionHarness {
    client: PolicyServiceClient<Channel>,
    simulated_browser: SimulatedBrowser,
    messages: AtomicU64,
    stop: CancellationToken,
}

/// A trajectory of typical length; then its session is closed and another one opened.
const STEPS: u32 = 30;

/// Deadline of one answer.
const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) fn run(args: &GrpcArgs) -> Result<(), CommandFailure> {
    let mut report = BenchReport::begin(&args.bench)?;
    let measured = runtime()?.block_on(measure(args))?;
    report_measurement(&measured, args, &mut report);
    report.print(&args.bench)
}

fn report_measurement(measured: &GrpcMeasurement, args: &GrpcArgs, report: &mut BenchReport) {
    let rate = measured.messages as f64 / measured.time.as_secs_f64();
    report.add("messages", "1/s", rate);
    report.add("rate / one message a session and second", "x", rate / f64::from(args.sessions));
    report.add("CPU a message", "us", measured.cpu_micros as f64 / measured.messages.max(1) as f64);
    let minute = minute(measured.rss.len());
    let second = &measured.rss[minute..2 * minute];
    let last = &measured.rss[measured.rss.len() - minute..];
    report.add("RSS of the second minute", "MB", mean(second) / 1e6);
    report.add("RSS of the last minute", "MB", mean(last) / 1e6);
    report.add("RSS, last / second", "x", mean(last) / mean(second));
    report.note(
        "half of the messages carry a screenshot, the others are replies; client and server share one process",
    );
    if minute < 60 {
        report.note(format!("shorter than three minutes: {minute} s replace a minute"));
    }
}

/// Number of samples that count as a minute: fewer in runs shorter than three minutes.
fn minute(samples: usize) -> usize {
    (samples / 3).clamp(1, 60)
}

fn mean(samples: &[u64]) -> f64 {
    samples.iter().sum::<u64>() as f64 / samples.len() as f64
}

async fn measure(args: &GrpcArgs) -> Result<GrpcMeasurement, CommandFailure> {
    let policy =
        PolicyFile { kind: "random".into(), sessions_max: args.sessions * 2, ..PolicyFile::default() };
    let policy = policy.check().map_err(CommandFailure::Input)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let stop = CancellationToken::new();
    let (link, connect) = link(args)?;
    let serving = tokio::spawn(furrow_policy::run(
        policy.clone(),
        Id::new("policy-0")?,
        WorkerListeners { sessions: listener, chats: None, link },
        connect.clone(),
        None,
        DEADLINE,
        stop.clone(),
    ));
    let harness = Arc::new(SessionHarness::open(args, &*connect, &address)?);
    let measured = act(args, &policy, &harness).await;
    stop.cancel();
    timeout(DEADLINE, serving).await???;
    measured
}

/// The identity that the worker serves with, and how the sessions connect.
fn link(args: &GrpcArgs) -> Result<(Option<Identity>, Arc<dyn Connector>), CommandFailure> {
    if args.plain {
        return Ok((None, Arc::new(TcpConnector::default())));
    }
    let scratch = ScratchDir::make(&std::env::temp_dir())?;
    let authority = Authority::open_or_create(&scratch.fresh("run")?.join("identity"), &Id::new("bench")?)?;
    let env = authority.issue(PeerRole::Env, "env-0")?;
    Ok((Some(authority.issue(PeerRole::Policy, "policy-0")?), Arc::new(TlsConnector::new(env))))
}

async fn act(
    args: &GrpcArgs,
    policy: &PolicyConfig,
    harness: &Arc<SessionHarness>,
) -> Result<GrpcMeasurement, CommandFailure> {
    let began = Instant::now();
    let before = process_usage(std::process::id(), MemoryMeasure::Rss)?;
    let mut sessions = JoinSet::new();
    for index in 0..args.sessions {
        sessions.spawn(harness.clone().trajectories(pace::assignment(
            index,
            BenchPage::Shop,
            &policy.session,
        )?));
    }
    let mut rss = Vec::new();
    for second in 1..=args.seconds {
        tokio::select! {
            () = sleep(Duration::from_secs(second).saturating_sub(began.elapsed())) => {}
            // No session ends before the stop, unless something failed.
            Some(ended) = sessions.join_next() => ended??,
        }
        rss.push(process_usage(std::process::id(), MemoryMeasure::Rss)?.rss_bytes);
    }
    let after = process_usage(std::process::id(), MemoryMeasure::Rss)?;
    let messages = harness.messages.load(Ordering::Relaxed);
    let time = began.elapsed();
    harness.stop.cancel();
    sessions.join_all().await.into_iter().collect::<anyhow::Result<()>>()?;
    Ok(GrpcMeasurement { messages, time, cpu_micros: after.cpu_micros - before.cpu_micros, rss })
}

impl SessionHarness {
    fn open(args: &GrpcArgs, connect: &dyn Connector, address: &str) -> Result<Self, CommandFailure> {
        let screenshot_bytes = args.screenshot_bytes as usize;
        Ok(Self {
            client: PolicyServiceClient::new(connect.channel(PeerRole::Policy, address)?)
                .max_decoding_message_size(MESSAGE_BYTES_MAX),
            simulated_browser: SimulatedBrowser::new(SimConfig { screenshot_bytes, ..SimConfig::default() }),
            messages: AtomicU64::new(0),
            stop: CancellationToken::new(),
        })
    }

    /// Runs one trajectory after another in the same slot until the stop.
    async fn trajectories(self: Arc<Self>, mut assignment: Assignment) -> anyhow::Result<()> {
        for attempt in 0.. {
            let of = &mut assignment.ancestry;
            of.attempt = attempt;
            of.trajectory_id = Id::<Trajectory>::attempt(&of.group_id, 0, attempt);
            let Some(acted) = self.stop.run_until_cancelled(self.trajectory(&assignment)).await else {
                break;
            };
            acted?;
        }
        Ok(())
    }

    async fn trajectory(&self, assignment: &Assignment) -> anyhow::Result<()> {
        let mut stage = self.simulated_browser.open(assignment).await?;
        let (requests, sent) = mpsc::channel(2);
        send(&requests, session_request::Event::Open((&session_opening(assignment)).into())).await?;
        let replies = timeout(DEADLINE, self.client.clone().session(ReceiverStream::new(sent))).await??;
        let mut replies = replies.into_inner();
        expect_opened(timeout(DEADLINE, replies.message()).await??)?;
        for step in 0..STEPS {
            let observation = Some(observation_into(&stage.observe().await?));
            let observe = Observe { step, observation, ..Observe::default() };
            send(&requests, session_request::Event::Observe(observe)).await?;
            expect_action(timeout(DEADLINE, replies.message()).await??)?;
            self.messages.fetch_add(2, Ordering::Relaxed);
        }
        send(&requests, session_request::Event::Close(Close {})).await?;
        // The server ends the stream, so that nothing of the session remains when the next one
        // opens.
        anyhow::ensure!(timeout(DEADLINE, replies.message()).await??.is_none(), "a reply after the end");
        Ok(())
    }
}

fn session_opening(assignment: &Assignment) -> SessionOpening {
    SessionOpening {
        ancestry: assignment.ancestry.clone(),
        token: assignment.token,
        session: assignment.session.clone(),
        goal: "Look around.".into(),
        past_steps: 0,
    }
}

async fn send(requests: &mpsc::Sender<SessionRequest>, event: session_request::Event) -> anyhow::Result<()> {
    requests.send(SessionRequest { event: Some(event) }).await.context("the policy closed the session")
}

fn expect_opened(message: Option<SessionResponse>) -> anyhow::Result<()> {
    match message.and_then(|message| message.event) {
        Some(session_response::Event::Opened(_)) => Ok(()),
        other => Err(anyhow::anyhow!("the session did not open: {other:?}")),
    }
}

/// Reads the reply as an environment worker does.
fn expect_action(message: Option<SessionResponse>) -> anyhow::Result<()> {
    match message.and_then(|message| message.event) {
        Some(session_response::Event::Acted(acted)) => {
            reply_from(acted.reply.context("no reply")?)?;
            Ok(())
        }
        other => Err(anyhow::anyhow!("no reply: {other:?}")),
    }
}
