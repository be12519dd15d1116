//! `furrow-bench swap`: loads new weights while sessions decode without pause; measures how long
//! nothing runs, and what it costs the sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use furrow::{CommandFailure, ScratchDir, runtime};
use furrow_env::EnvironmentFactory;
use furrow_env::simulated::{SimConfig, SimulatedBrowser};
use furrow_model::init::{InitSpec, ModelSize, SHARD_BYTES_MAX, StoredType, init};
use furrow_policy::{ModelPolicy, Policy, PolicyConfig, PolicyFile, PolicyInput, PolicyOutput};
use furrow_rollout::{Assignment, Id, PolicyVersion, Trajectory, WeightsForm, WeightsLink, WeightsOrder};
use furrow_wire::SessionOpening;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::BenchArgs;
use crate::pace::{self, BenchPage};
use crate::report::BenchReport;

#[derive(Debug, Args)]
pub(crate) struct SwapArgs {
    /// Number of sessions that act without pause
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    sessions: u32,
    /// Number of versions to publish, one after another
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    versions: u16,
    /// What to do with sessions at a swap: keep, rebuild or finish_on_old
    #[arg(long, default_value = "keep")]
    on_swap: String,
    #[command(flatten)]
    bench: BenchArgs,
}

/// What the sessions share.
struct SwapHarness {
    model: ModelPolicy,
    simulated_browser: SimulatedBrowser,
    replies: AtomicU64,
    /// The longest reply since the last reset.
    longest_micros: AtomicU64,
    stop: CancellationToken,
}

const STEPS: u32 = 8;

/// Duration of the measurement without swaps, for comparison.
const QUIET: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &SwapArgs) -> Result<(), CommandFailure> {
    let mut report = BenchReport::begin(&args.bench)?;
    let scratch = ScratchDir::make(&std::env::temp_dir())?;
    runtime()?.block_on(measure(args, &scratch, &mut report))?;
    report.print(&args.bench)
}

async fn measure(
    args: &SwapArgs,
    scratch: &ScratchDir,
    report: &mut BenchReport,
) -> Result<(), CommandFailure> {
    let folder = scratch.fresh("checkpoints")?;
    let checkpoints = [1, 2].map(|seed| (seed, folder.join(format!("tiny-{seed}"))));
    for (seed, path) in &checkpoints {
        let what = InitSpec {
            size: ModelSize::Tiny,
            seed: *seed,
            dtype: StoredType::Float32,
            shard_bytes_max: SHARD_BYTES_MAX,
        };
        init(path, &what)?;
    }
    let mut file =
        PolicyFile { kind: "model".into(), checkpoint: checkpoints[0].1.clone(), ..PolicyFile::default() };
    file.sampling.max_tokens = 32;
    file.weights.on_swap.clone_from(&args.on_swap);
    file.engine.state_slots = 2 * args.sessions + 2;
    let config = file.check().map_err(CommandFailure::Input)?;
    let settings = config.model.clone().context("a model policy has a model")?;
    let harness = Arc::new(SwapHarness {
        model: ModelPolicy::open(&settings, &config.session)?,
        simulated_browser: SimulatedBrowser::new(SimConfig {
            screenshot_bytes: 4000,
            ..SimConfig::default()
        }),
        replies: AtomicU64::new(0),
        longest_micros: AtomicU64::new(0),
        stop: CancellationToken::new(),
    });
    let mut sessions = start(args, &config, &harness)?;
    // Measure only after every session has replied.
    while harness.replies.load(Ordering::Relaxed) < u64::from(args.sessions) {
        sleep(Duration::from_millis(50)).await;
    }
    let (quiet, quiet_longest) = harness.measure_during(sleep(QUIET)).await;
    let (busy, busy_longest) =
        harness.measure_during(exchange(args, &checkpoints.map(|(_, path)| path), &harness, report)).await;
    harness.stop.cancel();
    let mut lost = 0.0;
    while let Some(ended) = sessions.join_next().await {
        lost += f64::from(u8::from(ended?.is_err()));
    }
    harness.model.stop().await.map_err(anyhow::Error::msg)?;
    report.add("sessions lost", "", lost);
    report.add("replies a second, no exchange", "1/s", quiet);
    report.add("replies a second, one exchange after another", "1/s", busy);
    report.add("longest reply, no exchange", "ms", quiet_longest);
    report.add("longest reply, one exchange after another", "ms", busy_longest);
    report.note("the pause is the time in which the engine's thread only exchanges weights; loading runs on another thread");
    Ok(())
}

fn start(
    args: &SwapArgs,
    config: &PolicyConfig,
    harness: &Arc<SwapHarness>,
) -> Result<JoinSet<anyhow::Result<()>>, CommandFailure> {
    let mut sessions = JoinSet::new();
    for index in 0..args.sessions {
        sessions.spawn(harness.clone().trajectories(pace::assignment(
            index,
            BenchPage::Shop,
            &config.session,
        )?));
    }
    Ok(sessions)
}

/// Publishes version after version, each as soon as the previous one is in use.
async fn exchange(
    args: &SwapArgs,
    checkpoints: &[std::path::PathBuf; 2],
    harness: &SwapHarness,
    report: &mut BenchReport,
) {
    for version in 1..=args.versions {
        let directory = checkpoints[usize::from(version) % 2].display().to_string();
        let links = vec![WeightsLink { form: WeightsForm::Full, directory }];
        let order = WeightsOrder {
            version: PolicyVersion(version.into()),
            links,
            weights_sha256: None,
            taken: false,
        };
        match harness.model.take_weights(&order).await {
            Ok(taken) => {
                report.add("pause", "ms", taken.pause_micros as f64 / 1e3);
                report.add("read, verify and pack beside decode", "ms", taken.load_micros as f64 / 1e3);
            }
            Err(why) => report.note(format!("version {version} was refused: {why}")),
        }
    }
}

impl SwapHarness {
    /// Replies per second and the longest reply in milliseconds, while `something` runs.
    async fn measure_during(&self, something: impl Future<Output = ()>) -> (f64, f64) {
        let began = Instant::now();
        let before = self.replies.load(Ordering::Relaxed);
        self.longest_micros.store(0, Ordering::Relaxed);
        something.await;
        let replies = self.replies.load(Ordering::Relaxed) - before;
        let longest = self.longest_micros.load(Ordering::Relaxed);
        (replies as f64 / began.elapsed().as_secs_f64(), longest as f64 / 1e3)
    }

    /// Runs one trajectory after another until the stop.
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
        let opening = SessionOpening {
            ancestry: assignment.ancestry.clone(),
            token: assignment.token,
            session: assignment.session.clone(),
            goal: "Look around.".into(),
            past_steps: 0,
        };
        let mut session = self.model.open(&opening).await?;
        for step in 0..STEPS {
            let observation = stage.observe().await?;
            let turn = PolicyInput {
                ancestry: &opening.ancestry,
                session: &opening.session,
                goal: &opening.goal,
                step,
                observation: &observation,
                last_outcome: None,
                hint_json: None,
            };
            let began = Instant::now();
            if let PolicyOutput::ContextFull = session.act(turn).await? {
                break;
            }
            self.longest_micros.fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
            self.replies.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
