//! `furrow-bench browser`: measures the cost of driving browsers, beside the same loop in
//! Playwright.

use std::path::PathBuf;

use clap::Args;
use furrow::{CommandFailure, output, runtime};

use crate::BenchArgs;
use crate::pace::{self, ActionSource, PaceArgs};
use crate::peer::PlaywrightPeer;
use crate::report::BenchReport;

#[derive(Debug, Args)]
pub(crate) struct BrowserArgs {
    #[command(flatten)]
    pace: PaceArgs,
    /// Directory of the Playwright loop, with its node_modules
    #[arg(long, default_value = "tests/peers")]
    peer: PathBuf,
    #[command(flatten)]
    bench: BenchArgs,
}

const OURS: [&str; 5] = ["furrow rate", "furrow p50", "furrow p99", "furrow CPU a step", "furrow PSS"];
const PEERS: [&str; 5] =
    ["playwright rate", "playwright p50", "playwright p99", "playwright CPU a step", "playwright PSS"];
const OUR_STARTS: [&str; 3] =
    ["furrow fresh context", "furrow reset of a site", "furrow reset, start page shown"];
const PEER_STARTS: [&str; 3] =
    ["playwright fresh context", "playwright reset of a site", "playwright reset, start page shown"];

pub(crate) fn run(args: &BrowserArgs) -> Result<(), CommandFailure> {
    args.pace.check()?;
    let mut report = BenchReport::begin(&args.bench)?;
    let peer = PlaywrightPeer::find(&args.peer, &args.pace).map_err(|missing| {
        output::error_line(&missing);
        report.note(missing);
    });
    runtime()?.block_on(rounds(&args.pace, peer.ok().as_ref(), &mut report))?;
    report.print(&args.bench)
}

async fn rounds(
    args: &PaceArgs,
    peer: Option<&PlaywrightPeer>,
    report: &mut BenchReport,
) -> Result<(), CommandFailure> {
    for _ in 0..args.rounds {
        pace::start(args).await?.add_to(report, OUR_STARTS);
        let ours = pace::run(args, ActionSource::InTurn).await?;
        ours.add_to(report, args, OURS);
        if let Some(peer) = peer {
            let (starts, theirs) = peer.run(args).await?;
            starts.add_to(report, PEER_STARTS);
            theirs.add_to(report, args, PEERS);
            report.add("CPU a step, furrow / playwright", "x", ours.cpu_a_step() / theirs.cpu_a_step());
        }
    }
    Ok(())
}
