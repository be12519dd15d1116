//! `furrow discarded`: reports how many trajectories a trainer discarded, so that paced admission
//! does not wait for a version that those trajectories would have made.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use furrow_wire::v1::{ReportDiscardedRequest, ReportDiscardedResponse};
use furrow_wire::with_deadline;
use serde_json::json;

use super::publish::{CALL_TIMEOUT, CoordinatorCaller};
use crate::peers::IdentityArgs;
use crate::{CommandFailure, launch, output};

#[derive(Debug, Args)]
pub(crate) struct DiscardedArgs {
    /// Number of scored trajectories, evaluations aside, that the trainer discarded since the run
    /// began; the coordinator keeps the largest number reported
    trajectories: u64,
    /// Run directory of the job, to find its coordinator
    #[arg(long, required_unless_present = "coordinator")]
    run: Option<PathBuf>,
    /// Address of the coordinator, host:port, instead of --run
    #[arg(long, conflicts_with = "run")]
    coordinator: Option<String>,
    #[command(flatten)]
    identity: IdentityArgs,
    /// Number of this reader, from 0, if several readers share the run; the coordinator adds up
    /// their counts
    #[arg(long, default_value_t = 0)]
    rank: u32,
    /// Number of readers that share the run
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    world: u32,
    /// Seconds to keep calling a coordinator that does not answer; 0: call once
    #[arg(long, default_value_t = 10)]
    deadline: u64,
    /// Print the totals of discarded and accepted trajectories as JSON instead of a line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &DiscardedArgs) -> Result<(), CommandFailure> {
    let DiscardedArgs { trajectories, rank, world, .. } = *args;
    let request = ReportDiscardedRequest { trajectories, rank, world };
    let farm = CoordinatorCaller::new(args.run.clone(), args.coordinator.clone(), &args.identity)?;
    let deadline = Instant::now() + Duration::from_secs(args.deadline);
    let response = farm.call(deadline, async |mut client| {
        Ok(with_deadline(CALL_TIMEOUT, client.report_discarded(request)).await?.into_inner())
    });
    let ReportDiscardedResponse { discarded, accepted } = launch::runtime()?.block_on(response)?;
    if args.json {
        return Ok(output::json(&json!({"discarded": discarded, "accepted": accepted}))?);
    }
    output::line(format!("{discarded} of {accepted} accepted trajectories were discarded"));
    Ok(())
}
