//! `furrow publish`: publishes a directory of weights as the job's next policy version and waits
//! until its policy workers run it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use clap::Args;
use furrow_model::checkpoint::{DeltaManifest, UpdateForm};
use furrow_wire::v1::coordinator_service_client::CoordinatorServiceClient;
use furrow_wire::v1::{
    Directory, PublishRequest, PublishResponse, WeightsLink, WeightsRequest, WeightsResponse, publish_request,
};
use furrow_wire::{Connector, PeerRole, RefusalKind, describe_status, refusal, with_deadline};
use serde_json::json;
use sha2::{Digest, Sha256};
use tonic::transport::Channel;

use crate::peers::{self, IdentityArgs};
use crate::run_dir;
use crate::{CommandFailure, output};
use furrow_model::checkpoint::chain;

/// What to publish, and to which job.
#[derive(Debug, Args)]
pub(crate) struct PublishArgs {
    /// Directory of a checkpoint, a delta (with delta.json) or a LoRA adapter as PEFT saves it;
    /// policy workers read it under the same path
    #[arg(required_unless_present = "rollback_to")]
    dir: Option<PathBuf>,
    /// Run directory of the job, to find its coordinator
    #[arg(long, required_unless_present = "coordinator")]
    run: Option<PathBuf>,
    /// Address of the coordinator, host:port, instead of --run
    #[arg(long, conflicts_with = "run")]
    coordinator: Option<String>,
    #[command(flatten)]
    identity: IdentityArgs,
    /// Policy version that an adapter is added to; a delta names its own; 0: the checkpoint that
    /// the job names [default: 0]
    #[arg(long, value_name = "VERSION")]
    base_version: Option<i32>,
    /// Publish the weights of this earlier policy version under a new number; 0: the checkpoint
    /// that the job names
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["dir", "base_version", "sha256"])]
    rollback_to: Option<i32>,
    /// SHA-256 that all weights must have after loading, as docs/WEIGHTS.md defines it [default:
    /// not checked]
    #[arg(long, value_name = "HASH")]
    sha256: Option<String>,
    /// Name of this publication; a repeated call with the same name publishes once [default: made
    /// of the directory's path and its files' names, sizes and times]
    #[arg(long)]
    id: Option<String>,
    /// Seconds to wait until every policy worker of the job runs the version; 0: do not wait
    #[arg(long, default_value_t = 300)]
    deadline: u64,
    /// Print the version, what each policy worker runs and why one lags as JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Time between two polls of the workers' progress.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A coordinator that restarts does not answer for a second or two.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &PublishArgs) -> Result<(), CommandFailure> {
    let request = request(args)?;
    crate::launch::runtime()?.block_on(publish(args, request))
}

async fn publish(args: &PublishArgs, request: PublishRequest) -> Result<(), CommandFailure> {
    let began = Instant::now();
    let deadline = began + Duration::from_secs(args.deadline.max(10));
    let farm = CoordinatorCaller::new(args.run.clone(), args.coordinator.clone(), &args.identity)?;
    let PublishResponse { version, repeated } = farm
        .call(deadline, async |mut client| {
            Ok(with_deadline(CALL_TIMEOUT, client.publish(request.clone())).await?.into_inner())
        })
        .await?;
    let standing = loop {
        let version_request = WeightsRequest { version };
        let standing = farm
            .call(deadline, async |mut client| {
                Ok(with_deadline(CALL_TIMEOUT, client.weights(version_request)).await?.into_inner())
            })
            .await?;
        let moved = !standing.workers.is_empty() && standing.workers.iter().all(|worker| worker.moved);
        if moved || is_over(&standing) || began.elapsed().as_secs() >= args.deadline {
            break standing;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    print_result(args, &standing, repeated, began.elapsed())?;
    conclude(args, &standing)
}

/// Whether no policy worker will run the version any more.
fn is_over(standing: &WeightsResponse) -> bool {
    matches!(standing.state.as_str(), "refused" | "withdrawn")
}

/// How to find the coordinator. The address is read before each call, because a restarted
/// coordinator may listen elsewhere.
pub(super) struct CoordinatorCaller {
    run: Option<PathBuf>,
    coordinator: Option<String>,
    connect: Arc<dyn Connector>,
}

impl CoordinatorCaller {
    pub(super) fn new(
        run: Option<PathBuf>,
        coordinator: Option<String>,
        identity: &IdentityArgs,
    ) -> Result<Self, CommandFailure> {
        if let Some(run) = &run {
            // A directory without a run is named as such, not as one without an identity.
            run_dir::address(run)?;
        }
        let identity = identity.client(run.as_deref())?;
        Ok(Self { run, coordinator, connect: peers::connector(identity) })
    }

    fn address(&self) -> Result<String, CommandFailure> {
        match (&self.coordinator, &self.run) {
            (Some(address), _) => Ok(address.clone()),
            (None, Some(run)) => run_dir::address(run),
            (None, None) => Err(CommandFailure::Input(vec![
                "--run: not given; use a run directory, or --coordinator with host:port".into(),
            ])),
        }
    }

    /// Repeats a call until it is answered or refused or the deadline passes: the coordinator may
    /// be restarting.
    pub(super) async fn call<T>(
        &self,
        deadline: Instant,
        call: impl AsyncFn(CoordinatorServiceClient<Channel>) -> Result<T, tonic::Status>,
    ) -> Result<T, CommandFailure> {
        loop {
            let address = self.address()?;
            let channel = self.connect.channel(PeerRole::Coordinator, &address).map_err(|_| {
                CommandFailure::Input(vec![format!(
                    "--coordinator: {address:?} is not an address; use host:port"
                )])
            })?;
            let status = match call(CoordinatorServiceClient::new(channel)).await {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            match refusal(&status) {
                RefusalKind::Retry if Instant::now() < deadline => tokio::time::sleep(POLL_INTERVAL).await,
                RefusalKind::Retry => {
                    let message = describe_status(&status);
                    return Err(
                        anyhow::anyhow!("the coordinator at {address} does not answer: {message}").into()
                    );
                }
                _ => return Err(CommandFailure::Input(vec![status.message().to_owned()])),
            }
        }
    }
}

fn request(args: &PublishArgs) -> Result<PublishRequest, CommandFailure> {
    if let Some(version) = args.rollback_to {
        let id = || format!("rollback-{}", uuid::Uuid::now_v7().simple());
        let weights = publish_request::Weights::RollbackTo(version);
        let publication_id = args.id.clone().unwrap_or_else(id);
        return Ok(PublishRequest { publication_id, weights: Some(weights) });
    }
    let dir = args.dir.clone().unwrap_or_default();
    let wrong = |why: String| CommandFailure::Input(vec![why]);
    let dir = dir.canonicalize().map_err(|why| wrong(format!("{}: {why}", dir.display())))?;
    let text = dir.to_str().ok_or_else(|| wrong(format!("{}: the path is not UTF-8 text", dir.display())))?;
    let form = UpdateForm::of(&dir).map_err(|why| wrong(chain(&why)))?;
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

fn base_version(args: &PublishArgs, dir: &Path, form: UpdateForm) -> Result<i32, CommandFailure> {
    let own = match form {
        UpdateForm::Full => Some(0),
        UpdateForm::Delta => {
            let delta = DeltaManifest::read(dir).map_err(|why| CommandFailure::Input(vec![chain(&why)]))?;
            Some(i32::try_from(delta.base_version).unwrap_or(i32::MAX))
        }
        UpdateForm::Adapter => None,
    };
    match (own, args.base_version) {
        (Some(own), Some(requested)) if own != requested => {
            let why = if form == UpdateForm::Full {
                "a full checkpoint has no base; leave the option out".to_owned()
            } else {
                format!("delta.json names {own}; use that or leave the option out")
            };
            Err(CommandFailure::Input(vec![format!("--base-version: {requested}; {why}")]))
        }
        (own, requested) => Ok(own.or(requested).unwrap_or(0)),
    }
}

/// Identifies the state of a directory by path, files, sizes and times: weights that are written
/// again under the same path are another publication.
fn fingerprint(dir: &Path) -> Result<String, CommandFailure> {
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

fn print_result(
    args: &PublishArgs,
    standing: &WeightsResponse,
    repeated: bool,
    took: Duration,
) -> Result<(), CommandFailure> {
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
    let note = if repeated { " (it was published earlier)" } else { "" };
    output::line(format!(
        "version {} is {}{note}: {moved} of {} policy workers run it after {:.1} s",
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

/// Fails unless every worker runs the version or the caller did not wait.
fn conclude(args: &PublishArgs, standing: &WeightsResponse) -> Result<(), CommandFailure> {
    let version = standing.version;
    if is_over(standing) {
        let WeightsResponse { state, reason, .. } = standing;
        return Err(anyhow::anyhow!("version {version} was {state}: {reason}").into());
    }
    if args.deadline == 0 {
        return Ok(());
    }
    if standing.workers.is_empty() {
        return Err(anyhow::anyhow!(
            "no policy worker is registered, so none runs version {version} yet; the next one that registers will"
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
    Err(anyhow::anyhow!(
        "{} did not load version {version} within {} s; see their logs, or wait longer with --deadline",
        lagging.join(", "),
        args.deadline
    )
    .into())
}
