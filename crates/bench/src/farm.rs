//! `furrow-bench farm`: measures what policy stream, ledger and data set add to the bare browser
//! loop.
//!
//! The bare loop beside it does the same work without them: the random policy's actions, contexts
//! closed and opened where an answer ends a trajectory. A loop that only clicks, scrolls and types
//! would instead measure which actions random policies choose.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use furrow::{CommandFailure, ScratchDir, runtime};

use crate::BenchArgs;
use crate::child::{FarmPlan, FarmProcess};
use crate::pace::{self, ActionSource, PaceArgs};
use crate::program::ProgramArgs;
use crate::report::BenchReport;

#[derive(Debug, Args)]
pub(crate) struct FarmArgs {
    #[command(flatten)]
    pace: PaceArgs,
    /// Directory on the disk that the farm writes to; everything written is removed at the end
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    #[command(flatten)]
    program: ProgramArgs,
    #[command(flatten)]
    bench: BenchArgs,
}

/// The rates of a farm while all its sessions act.
struct FarmMeasurement {
    steps: f64,
    seconds: f64,
    cpu_micros: f64,
}

const BARE: [&str; 5] = ["bare rate", "bare p50", "bare p99", "bare CPU a step", "bare PSS"];

pub(crate) fn run(args: &FarmArgs) -> Result<(), CommandFailure> {
    args.pace.check()?;
    let program = args.program.find()?;
    let mut report = BenchReport::begin(&args.bench)?;
    report.note(
        "the bare loop samples the random policy's actions itself and opens contexts where the farm does",
    );
    let scratch = ScratchDir::make(&args.dir)?;
    runtime()?.block_on(async {
        for _ in 0..args.pace.rounds {
            round(args, &program, &scratch, &mut report).await?;
        }
        Ok::<_, CommandFailure>(())
    })?;
    report.print(&args.bench)
}

async fn round(
    args: &FarmArgs,
    program: &Path,
    scratch: &ScratchDir,
    report: &mut BenchReport,
) -> Result<(), CommandFailure> {
    let bare = pace::run(&args.pace, ActionSource::AtRandom).await?;
    bare.add_to(report, &args.pace, BARE);
    let farm = measure(args, program, bare.mean_latency(), scratch).await?;
    let cpu_a_step = farm.cpu_micros / 1e3 / farm.steps.max(1.0);
    let ideal = farm.seconds * f64::from(args.pace.sessions) / args.pace.period().as_secs_f64();
    report.add("farm rate", "of ideal", farm.steps / ideal);
    report.add("farm CPU a step", "ms CPU", cpu_a_step);
    report.add("CPU a step, farm / bare", "x", cpu_a_step / bare.cpu_a_step());
    Ok(())
}

/// The policy waits for what a step on the page leaves of the period, so that both loops have the
/// same pace: an idle page costs CPU, too.
async fn measure(
    args: &FarmArgs,
    program: &Path,
    step: Duration,
    scratch: &ScratchDir,
) -> Result<FarmMeasurement, CommandFailure> {
    let plan = FarmPlan {
        env: args.pace.env_file(),
        think: args.pace.period().saturating_sub(step),
        max_delay: Duration::from_secs(60),
        simulated_screenshot_bytes: None,
        steps_max: None,
    };
    let folder = scratch.fresh("farm")?;
    let mut farm = FarmProcess::start(program, folder, &args.pace.pages, args.pace.page, &plan)?;
    let sessions = f64::from(args.pace.sessions);
    // After two steps each on average, all contexts are open.
    let first = farm.until(|now| now.number("env/steps") >= 2.0 * sessions, args.pace.period() * 2).await?;
    let enough = first.number("uptime_seconds") + args.pace.time().as_secs_f64();
    let last = farm.until(|now| now.number("uptime_seconds") >= enough, args.pace.time()).await?;
    farm.stop().await?;
    let between = |name| last.number(name) - first.number(name);
    Ok(FarmMeasurement {
        steps: between("env/steps"),
        seconds: between("uptime_seconds"),
        cpu_micros: between("tree/cpu_micros"),
    })
}
