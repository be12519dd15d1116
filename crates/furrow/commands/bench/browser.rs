//! `furrow bench browser`: what driving browsers costs, beside the same loop in Playwright.

use std::path::PathBuf;

use clap::Args;

use super::BenchArgs;
use super::pace::{self, Acts, PaceArgs};
use super::peer::Peer;
use super::report::Report;
use crate::{Failure, launch, output};

/// The loop and its peer.
#[derive(Debug, Args)]
pub struct BrowserArgs {
    #[command(flatten)]
    pace: PaceArgs,
    /// Folder of the Playwright loop, with its node_modules
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

/// Runs the command.
pub fn run(args: &BrowserArgs) -> Result<(), Failure> {
    args.pace.check()?;
    let mut report = Report::begin(&args.bench)?;
    let peer = Peer::find(&args.peer, &args.pace).map_err(|missing| {
        output::complain(&missing);
        report.note(missing);
    });
    launch::runtime()?.block_on(rounds(&args.pace, peer.ok().as_ref(), &mut report))?;
    report.print(&args.bench)
}

async fn rounds(args: &PaceArgs, peer: Option<&Peer>, report: &mut Report) -> Result<(), Failure> {
    for _ in 0..args.rounds {
        pace::start(args).await?.tell(report, OUR_STARTS);
        let ours = pace::run(args, Acts::InTurn).await?;
        ours.tell(report, args, OURS);
        if let Some(peer) = peer {
            let (starts, theirs) = peer.run(args).await?;
            starts.tell(report, PEER_STARTS);
            theirs.tell(report, args, PEERS);
            report.add("CPU a step, furrow / playwright", "x", ours.cpu_a_step() / theirs.cpu_a_step());
        }
    }
    Ok(())
}
