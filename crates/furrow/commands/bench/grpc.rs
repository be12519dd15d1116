//! `furrow bench grpc`: policy sessions over loopback at full speed, with screenshots of a browser's size.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use furrow_env::Stages;
use furrow_env::sim::{Air, SimConfig};
use furrow_policy::{PolicyConfig, PolicyFile};
use furrow_rollout::{Assignment, Id, Trajectory};
use furrow_telemetry::{Memory, process_usage};
use furrow_wire::v1::policy_service_client::PolicyServiceClient;
use furrow_wire::v1::{Close, Observe, SessionRequest, SessionResponse, session_request, session_response};
use furrow_wire::{Connect, MESSAGE_BYTES_MAX, Opening, Tcp, observation_into, reply_from};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use super::BenchArgs;
use super::pace::{self, Page};
use super::report::Report;
use crate::{Failure, launch};

/// How much and how long.
#[derive(Debug, Args)]
pub struct GrpcArgs {
    /// Sessions at once, on one connection
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    sessions: u32,
    /// Seconds to measure; memory is compared between its second minute and its last
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(6..=86_400))]
    seconds: u64,
    /// Size of each screenshot
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1_000..=4_000_000))]
    screenshot_bytes: u32,
    #[command(flatten)]
    bench: BenchArgs,
}

/// What all sessions did, and the memory meanwhile, one sample a second.
struct Measured {
    messages: u64,
    time: Duration,
    cpu_micros: u64,
    rss: Vec<u64>,
}

/// What sessions share.
struct Ground {
    client: PolicyServiceClient<Channel>,
    air: Air,
    messages: AtomicU64,
    stop: CancellationToken,
}

/// A trajectory of the usual length; its session is closed and another one opened.
const STEPS: u32 = 30;

/// For one answer.
const DEADLINE: Duration = Duration::from_secs(30);

/// Runs the command.
pub fn run(args: &GrpcArgs) -> Result<(), Failure> {
    let mut report = Report::begin(&args.bench)?;
    let measured = launch::runtime()?.block_on(measure(args))?;
    tell(&measured, args, &mut report);
    report.print(&args.bench)
}

fn tell(measured: &Measured, args: &GrpcArgs, report: &mut Report) {
    let rate = measured.messages as f64 / measured.time.as_secs_f64();
    report.add("messages", "1/s", rate);
    report.add("rate / one message a session and second", "x", rate / f64::from(args.sessions));
    report.add("CPU a message", "us", measured.cpu_micros as f64 / measured.messages.max(1) as f64);
    let minute = minute(measured.rss.len());
    let (second, last) = (&measured.rss[minute..2 * minute], &measured.rss[measured.rss.len() - minute..]);
    report.add("RSS of the second minute", "MB", mean(second) / 1e6);
    report.add("RSS of the last minute", "MB", mean(last) / 1e6);
    report.add("RSS, last / second", "x", mean(last) / mean(second));
    report.note(
        "half of the messages carry a screenshot, the others are replies; client and server are one process",
    );
    if minute < 60 {
        report.note(format!("shorter than three minutes: a minute stands for {minute} s"));
    }
}

/// Samples that stand for a minute: fewer where there are not three minutes.
fn minute(samples: usize) -> usize {
    (samples / 3).clamp(1, 60)
}

fn mean(samples: &[u64]) -> f64 {
    samples.iter().sum::<u64>() as f64 / samples.len() as f64
}

async fn measure(args: &GrpcArgs) -> Result<Measured, Failure> {
    let policy =
        PolicyFile { kind: "random".into(), sessions_max: args.sessions * 2, ..PolicyFile::default() };
    let policy = policy.check().map_err(Failure::Input)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(furrow_policy::run(
        policy.clone(),
        Id::new("policy-0")?,
        listener,
        Arc::new(Tcp::default()),
        None,
        DEADLINE,
        stop.clone(),
    ));
    let ground = Arc::new(Ground::open(args, &address)?);
    let measured = act(args, &policy, &ground).await;
    stop.cancel();
    timeout(DEADLINE, serving).await???;
    measured
}

async fn act(args: &GrpcArgs, policy: &PolicyConfig, ground: &Arc<Ground>) -> Result<Measured, Failure> {
    let began = Instant::now();
    let before = process_usage(std::process::id(), Memory::Rss)?;
    let mut sessions = JoinSet::new();
    for index in 0..args.sessions {
        sessions.spawn(ground.clone().trajectories(pace::assignment(index, Page::Shop, &policy.session)?));
    }
    let mut rss = Vec::new();
    for second in 1..=args.seconds {
        tokio::select! {
            () = sleep(Duration::from_secs(second).saturating_sub(began.elapsed())) => {}
            // None ends before it is told to, unless something is wrong.
            Some(ended) = sessions.join_next() => ended??,
        }
        rss.push(process_usage(std::process::id(), Memory::Rss)?.rss_bytes);
    }
    let after = process_usage(std::process::id(), Memory::Rss)?;
    let (messages, time) = (ground.messages.load(Ordering::Relaxed), began.elapsed());
    ground.stop.cancel();
    sessions.join_all().await.into_iter().collect::<anyhow::Result<()>>()?;
    Ok(Measured { messages, time, cpu_micros: after.cpu_micros - before.cpu_micros, rss })
}

impl Ground {
    fn open(args: &GrpcArgs, address: &str) -> Result<Self, Failure> {
        let screenshot_bytes = args.screenshot_bytes as usize;
        Ok(Self {
            client: PolicyServiceClient::new(Tcp::default().channel(address)?)
                .max_decoding_message_size(MESSAGE_BYTES_MAX),
            air: Air::new(SimConfig { screenshot_bytes, ..SimConfig::default() }),
            messages: AtomicU64::new(0),
            stop: CancellationToken::new(),
        })
    }

    /// One trajectory after another in the same slot, until it is told to stop.
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
        let mut stage = self.air.open(assignment).await?;
        let (requests, sent) = mpsc::channel(2);
        send(&requests, session_request::Event::Open((&opening(assignment)).into())).await?;
        let replies = timeout(DEADLINE, self.client.clone().session(ReceiverStream::new(sent))).await??;
        let mut replies = replies.into_inner();
        opened(timeout(DEADLINE, replies.message()).await??)?;
        for step in 0..STEPS {
            let observation = Some(observation_into(&stage.observe().await?));
            let observe = Observe { step, observation, ..Observe::default() };
            send(&requests, session_request::Event::Observe(observe)).await?;
            acted(timeout(DEADLINE, replies.message()).await??)?;
            self.messages.fetch_add(2, Ordering::Relaxed);
        }
        send(&requests, session_request::Event::Close(Close {})).await?;
        // The server ends the stream; nothing of the session is left when the next one opens.
        anyhow::ensure!(timeout(DEADLINE, replies.message()).await??.is_none(), "a reply after the end");
        Ok(())
    }
}

fn opening(assignment: &Assignment) -> Opening {
    Opening {
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

fn opened(message: Option<SessionResponse>) -> anyhow::Result<()> {
    match message.and_then(|message| message.event) {
        Some(session_response::Event::Opened(_)) => Ok(()),
        other => Err(anyhow::anyhow!("the session did not open: {other:?}")),
    }
}

/// Reads the reply as an environment worker does.
fn acted(message: Option<SessionResponse>) -> anyhow::Result<()> {
    match message.and_then(|message| message.event) {
        Some(session_response::Event::Acted(acted)) => {
            reply_from(acted.reply.context("no reply")?)?;
            Ok(())
        }
        other => Err(anyhow::anyhow!("no reply: {other:?}")),
    }
}
