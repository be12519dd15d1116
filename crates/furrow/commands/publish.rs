//! `furrow publish`: makes a directory of weights the job's next policy version and waits until its policy workers run it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use clap::Args;
use furrow_model::checkpoint::{Delta, Form};
use furrow_wire::v1::coordinator_service_client::CoordinatorServiceClient;
use furrow_wire::v1::{
    Directory, PublishRequest, PublishResponse, WeightsLink, WeightsRequest, WeightsResponse, publish_request,
};
use furrow_wire::{Connect, Refusal, Tcp, refusal, within};
use serde_json::json;
use sha2::{Digest, Sha256};
use tonic::transport::Channel;

use crate::run_dir;
use crate::{Failure, output};
use furrow_model::checkpoint::chain;

/// What to publish, and to whom.
#[derive(Debug, Args)]
pub struct PublishArgs {
    /// A checkpoint, a delta (delta.json) or a LoRA adapter as PEFT saves it; policy workers read it under the same path
    #[arg(required_unless_present = "rollback_to")]
    dir: Option<PathBuf>,
    /// Run directory of the job; its coordinator is asked
    #[arg(long, required_unless_present = "coordinator")]
    run: Option<PathBuf>,
    /// Coordinator's address, host:port, instead of --run
    #[arg(long, conflicts_with = "run")]
    coordinator: Option<String>,
    /// The version that an adapter goes over; a delta says its own. 0: the checkpoint that the job names
    #[arg(long, value_name = "VERSION")]
    base_version: Option<i32>,
    /// Publish the weights of an earlier version again, under a new number; 0: the checkpoint that the job names
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["dir", "base_version", "sha256"])]
    rollback_to: Option<i32>,
    /// What all weights must hash to afterwards (docs/WEIGHTS.md says how)
    #[arg(long, value_name = "HASH")]
    sha256: Option<String>,
    /// Names this publication, so that asking again is safe; else it is made of the directory's files, their sizes and times
    #[arg(long)]
    id: Option<String>,
    /// Seconds to wait until every policy worker of the job runs it; 0: do not wait
    #[arg(long, default_value_t = 300)]
    deadline: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Between two looks at how far the workers are.
const LOOK: Duration = Duration::from_millis(100);

/// A coordinator that restarts is away for a second or two.
pub(super) const CALL: Duration = Duration::from_secs(10);

/// Runs the command.
pub fn run(args: &PublishArgs) -> Result<(), Failure> {
    let request = request(args)?;
    crate::launch::runtime()?.block_on(publish(args, request))
}

async fn publish(args: &PublishArgs, request: PublishRequest) -> Result<(), Failure> {
    let began = Instant::now();
    let deadline = began + Duration::from_secs(args.deadline.max(10));
    let farm = Farm { run: args.run.clone(), coordinator: args.coordinator.clone() };
    let PublishResponse { version, repeated } = farm
        .ask(deadline, async |mut client| {
            Ok(within(CALL, client.publish(request.clone())).await?.into_inner())
        })
        .await?;
    let standing = loop {
        let asked = WeightsRequest { version };
        let standing = farm
            .ask(deadline, async |mut client| Ok(within(CALL, client.weights(asked)).await?.into_inner()))
            .await?;
        let moved = !standing.workers.is_empty() && standing.workers.iter().all(|worker| worker.moved);
        if moved || standing.state == "refused" || began.elapsed().as_secs() >= args.deadline {
            break standing;
        }
        tokio::time::sleep(LOOK).await;
    };
    tell(args, &standing, repeated, began.elapsed())?;
    conclude(args, &standing)
}

/// Where the coordinator is: asked anew each time, for a restarted one may listen elsewhere.
pub(super) struct Farm {
    pub(super) run: Option<PathBuf>,
    pub(super) coordinator: Option<String>,
}

impl Farm {
    fn address(&self) -> Result<String, Failure> {
        match (&self.coordinator, &self.run) {
            (Some(address), _) => Ok(address.clone()),
            (None, Some(run)) => run_dir::address(run),
            (None, None) => Err(Failure::Input(vec!["--run: name a run directory".into()])),
        }
    }

    /// Asks until there is an answer, a refusal, or the deadline: a coordinator that is away may be on its way back.
    pub(super) async fn ask<T>(
        &self,
        deadline: Instant,
        call: impl AsyncFn(CoordinatorServiceClient<Channel>) -> Result<T, tonic::Status>,
    ) -> Result<T, Failure> {
        loop {
            let address = self.address()?;
            let channel = Tcp::default().channel(&address).map_err(|_| {
                Failure::Input(vec![format!("--coordinator: {address:?} is no address; use host:port")])
            })?;
            let status = match call(CoordinatorServiceClient::new(channel)).await {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            match refusal(&status) {
                Refusal::TryAgain if Instant::now() < deadline => tokio::time::sleep(LOOK).await,
                Refusal::TryAgain => {
                    let told = status.message();
                    return Err(
                        anyhow::anyhow!("the coordinator at {address} does not answer: {told}").into()
                    );
                }
                _ => return Err(Failure::Input(vec![status.message().to_owned()])),
            }
        }
    }
}

fn request(args: &PublishArgs) -> Result<PublishRequest, Failure> {
    if let Some(version) = args.rollback_to {
        let id = || format!("rollback-{}", uuid::Uuid::now_v7().simple());
        let weights = publish_request::Weights::RollbackTo(version);
        let publication_id = args.id.clone().unwrap_or_else(id);
        return Ok(PublishRequest { publication_id, weights: Some(weights) });
    }
    let dir = args.dir.clone().unwrap_or_default();
    let wrong = |why: String| Failure::Input(vec![why]);
    let dir = dir.canonicalize().map_err(|why| wrong(format!("{}: {why}", dir.display())))?;
    let text = dir.to_str().ok_or_else(|| wrong(format!("{} is not written in UTF-8", dir.display())))?;
    let form = Form::of(&dir).map_err(|why| wrong(chain(&why)))?;
    let link = WeightsLink { form: form.as_str().to_owned(), directory: text.to_owned() };
    let directory = Directory {
        link: Some(link),
        base_version: base_version(args, &dir, form)?,
        weights_sha256: args.sha256.clone(),
    };
    Ok(PublishRequest {
        publication_id: args.id.clone().map_or_else(|| fingerprint(&dir), Ok)?,
        weights: Some(publish_request::Weights::Directory(directory)),
    })
}

fn base_version(args: &PublishArgs, dir: &Path, form: Form) -> Result<i32, Failure> {
    let own = match form {
        Form::Full => Some(0),
        Form::Delta => {
            let delta = Delta::read(dir).map_err(|why| Failure::Input(vec![chain(&why)]))?;
            Some(i32::try_from(delta.base_version).unwrap_or(i32::MAX))
        }
        Form::Adapter => None,
    };
    match (own, args.base_version) {
        (Some(own), Some(asked)) if own != asked => {
            let why = if form == Form::Full {
                "a whole checkpoint goes over nothing".to_owned()
            } else {
                format!("delta.json says {own}")
            };
            Err(Failure::Input(vec![format!("--base-version: {asked}; {why}")]))
        }
        (own, asked) => Ok(own.or(asked).unwrap_or(0)),
    }
}

/// Names a directory as it is now: path, files, sizes and times. Weights written again under the same path are another publication.
fn fingerprint(dir: &Path) -> Result<String, Failure> {
    let mut files = Vec::new();
    for file in std::fs::read_dir(dir)? {
        let file = file?;
        let facts = file.metadata()?;
        let nanos = facts.modified()?.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        files.push((file.file_name(), facts.len(), nanos));
    }
    files.sort();
    let mut hash = Sha256::new();
    hash.update(dir.as_os_str().as_encoded_bytes());
    for (name, bytes, nanos) in files {
        hash.update(name.as_encoded_bytes());
        hash.update(b"\0");
        hash.update(bytes.to_le_bytes());
        hash.update(nanos.to_le_bytes());
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn tell(
    args: &PublishArgs,
    standing: &WeightsResponse,
    repeated: bool,
    took: Duration,
) -> Result<(), Failure> {
    if args.json {
        let workers = standing.workers.iter().map(|worker| {
            let lags = (!worker.moved).then_some(&worker.lags);
            json!({"worker": worker.worker_id, "version": worker.version, "moved": worker.moved, "lags": lags})
        });
        let reason = (!standing.reason.is_empty()).then_some(&standing.reason);
        return Ok(output::json(&json!({
            "version": standing.version,
            "state": standing.state,
            "reason": reason,
            "repeated": repeated,
            "current": standing.current,
            "weights_sha256": standing.weights_sha256,
            "workers": workers.collect::<Vec<_>>(),
            "needed": standing.needed,
            "seconds": took.as_secs_f64(),
        }))?);
    }
    let moved = standing.workers.iter().filter(|worker| worker.moved).count();
    let again = if repeated { " (it was published before)" } else { "" };
    output::line(format!(
        "version {} is {}{again}: {moved} of {} policy workers run it after {:.1} s",
        standing.version,
        standing.state,
        standing.workers.len(),
        took.as_secs_f64()
    ));
    for worker in standing.workers.iter().filter(|worker| !worker.moved) {
        output::line(format!("  {} runs version {}: {}", worker.worker_id, worker.version, worker.lags));
    }
    Ok(())
}

/// Success says that every worker moved, or that nobody wanted to wait.
fn conclude(args: &PublishArgs, standing: &WeightsResponse) -> Result<(), Failure> {
    let version = standing.version;
    if standing.state == "refused" {
        return Err(anyhow::anyhow!("version {version} is refused: {}", standing.reason).into());
    }
    if args.deadline == 0 {
        return Ok(());
    }
    if standing.workers.is_empty() {
        return Err(anyhow::anyhow!(
            "no policy worker was there to run version {version}; one that comes will"
        )
        .into());
    }
    let lagging: Vec<&str> = standing
        .workers
        .iter()
        .filter(|worker| !worker.moved)
        .map(|worker| worker.worker_id.as_str())
        .collect();
    if lagging.is_empty() {
        return Ok(());
    }
    Err(anyhow::anyhow!("{} did not move to version {version} in {} s", lagging.join(", "), args.deadline)
        .into())
}
