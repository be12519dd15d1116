//! `furrow discarded`: reports how many trajectories a trainer discarded, so that paced admission does not wait for a version of them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use furrow_wire::v1::{ReportDiscardedRequest, ReportDiscardedResponse};
use furrow_wire::within;
use serde_json::json;

use super::publish::{CALL, Farm};
use crate::{Failure, launch, output};

/// How many, and to whom.
#[derive(Debug, Args)]
pub struct DiscardedArgs {
    /// Scored trajectories outside of evaluations that the trainer discarded since the run began; the largest number reported holds
    trajectories: u64,
    /// Run directory of the job; its coordinator is asked
    #[arg(long, required_unless_present = "coordinator")]
    run: Option<PathBuf>,
    /// Coordinator's address, host:port, instead of --run
    #[arg(long, conflicts_with = "run")]
    coordinator: Option<String>,
    /// This reader's number, where several readers share the run; their counts are added up
    #[arg(long, default_value_t = 0)]
    rank: u32,
    /// Readers that share the run
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    world: u32,
    /// Seconds to go on asking a coordinator that does not answer; 0: ask once
    #[arg(long, default_value_t = 10)]
    deadline: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &DiscardedArgs) -> Result<(), Failure> {
    let DiscardedArgs { trajectories, rank, world, .. } = *args;
    let request = ReportDiscardedRequest { trajectories, rank, world };
    let farm = Farm { run: args.run.clone(), coordinator: args.coordinator.clone() };
    let deadline = Instant::now() + Duration::from_secs(args.deadline);
    let asked = farm.ask(deadline, async |mut client| {
        Ok(within(CALL, client.report_discarded(request)).await?.into_inner())
    });
    let ReportDiscardedResponse { discarded, accepted } = launch::runtime()?.block_on(asked)?;
    if args.json {
        return Ok(output::json(&json!({"discarded": discarded, "accepted": accepted}))?);
    }
    output::line(format!("{discarded} of {accepted} accepted trajectories are discarded"));
    Ok(())
}
