//! `furrow bench farm`: what policy stream, ledger and data set add to the bare browser loop.
//!
//! The loop beside it does the very same without them: the random policy's draws, contexts thrown away and opened where an answer ends a
//! trajectory. Beside the loop that only clicks, scrolls and types, the ratio would measure what random policies like to do.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::BenchArgs;
use super::child::{Farm, Plan};
use super::pace::{self, Acts, PaceArgs};
use super::report::Report;
use crate::commands::scratch::Scratch;
use crate::{Failure, launch};

/// The loop and the farm around it.
#[derive(Debug, Args)]
pub struct FarmArgs {
    #[command(flatten)]
    pace: PaceArgs,
    /// Folder whose disk the farm writes to; what it writes is removed
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    #[command(flatten)]
    bench: BenchArgs,
}

/// What a farm came to while all its sessions acted.
struct Measured {
    steps: f64,
    seconds: f64,
    cpu_micros: f64,
}

const BARE: [&str; 5] = ["bare rate", "bare p50", "bare p99", "bare CPU a step", "bare PSS"];

/// Runs the command.
pub fn run(args: &FarmArgs) -> Result<(), Failure> {
    args.pace.check()?;
    let mut report = Report::begin(&args.bench)?;
    report.note(
        "the bare loop draws the random policy's actions in hand and opens contexts where the farm does",
    );
    let scratch = Scratch::make(&args.dir)?;
    launch::runtime()?.block_on(async {
        for _ in 0..args.pace.rounds {
            round(args, &scratch, &mut report).await?;
        }
        Ok::<_, Failure>(())
    })?;
    report.print(&args.bench)
}

async fn round(args: &FarmArgs, scratch: &Scratch, report: &mut Report) -> Result<(), Failure> {
    let bare = pace::run(&args.pace, Acts::AtRandom).await?;
    bare.tell(report, &args.pace, BARE);
    let farm = measure(args, bare.mean_latency(), scratch).await?;
    let cpu_a_step = farm.cpu_micros / 1e3 / farm.steps.max(1.0);
    let ideal = farm.seconds * f64::from(args.pace.sessions) / args.pace.period().as_secs_f64();
    report.add("farm rate", "of ideal", farm.steps / ideal);
    report.add("farm CPU a step", "ms CPU", cpu_a_step);
    report.add("CPU a step, farm / bare", "x", cpu_a_step / bare.cpu_a_step());
    Ok(())
}

/// The policy thinks for what a step on the page leaves of the period, so that both loops go at one pace: a page that idles costs as well.
async fn measure(args: &FarmArgs, step: Duration, scratch: &Scratch) -> Result<Measured, Failure> {
    let plan = Plan {
        env: args.pace.env_file(),
        think: args.pace.period().saturating_sub(step),
        max_delay: Duration::from_secs(60),
        air: None,
        steps_max: None,
    };
    let mut farm = Farm::start(scratch.fresh("farm")?, &args.pace.pages, args.pace.page, &plan)?;
    let sessions = f64::from(args.pace.sessions);
    // Two steps each on average: all contexts have come up.
    let first = farm.until(|now| now.of("env/steps") >= 2.0 * sessions, args.pace.period() * 2).await?;
    let enough = first.of("uptime_seconds") + args.pace.time().as_secs_f64();
    let last = farm.until(|now| now.of("uptime_seconds") >= enough, args.pace.time()).await?;
    farm.stop().await?;
    let between = |name| last.of(name) - first.of(name);
    Ok(Measured {
        steps: between("env/steps"),
        seconds: between("uptime_seconds"),
        cpu_micros: between("tree/cpu_micros"),
    })
}
