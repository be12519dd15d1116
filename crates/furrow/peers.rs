//! The identity with which a process of this machine speaks to others of its run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use furrow_identity::{Authority, Identity, IdentityError, PeerRole};
use furrow_rollout::{Id, IdKind};
use furrow_wire::{Connector, TlsConnector};
use tokio_util::sync::CancellationToken;

use crate::{CommandFailure, launch, output};

/// Which identity a command uses.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct IdentityArgs {
    /// Folder that `furrow identity issue` wrote, on a machine without the run directory, or one
    /// with tls.crt, tls.key and ca.crt, where the run takes certificates from outside [default:
    /// the folder `identity` of the run directory]
    #[arg(long, value_name = "DIR", env = "FURROW_IDENTITY")]
    identity: Option<PathBuf>,
}

/// Whose certificates a coordinator takes.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct OutsideArgs {
    /// Folder with tls.crt, tls.key and ca.crt from outside, as cert-manager or SPIFFE's helper
    /// writes them. The certificate names spiffe://DOMAIN/furrow/RUN/coordinator/NAME, and the run
    /// takes certificates of that domain and run alone [default: the run issues its own]
    #[arg(long, value_name = "DIR", env = "FURROW_IDENTITY")]
    identity: Option<PathBuf>,
}

/// How often a worker looks whether its coordinator has created the run's authority.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// When a worker that waits for it says so, the first time and from then on.
const FIRST_NOTE: Duration = Duration::from_secs(2);
const NOTE_INTERVAL: Duration = Duration::from_secs(60);

/// A worker's name, and the identity that covers it.
pub(crate) struct WorkerIdentity<K> {
    pub name: Id<K>,
    pub identity: Identity,
}

/// The authority of a run that begins or goes on here.
pub(crate) fn authority(run_dir: &Path, run: &Id<furrow_rollout::Run>) -> Result<Authority, CommandFailure> {
    Authority::open_or_create(&Authority::dir_of_run(run_dir), run).map_err(input)
}

/// The identity of a process of the run itself.
pub(crate) fn issue(authority: &Authority, role: PeerRole, name: &str) -> Result<Identity, CommandFailure> {
    authority.issue(role, name).map_err(input)
}

pub(crate) fn input(error: IdentityError) -> CommandFailure {
    CommandFailure::Input(vec![crate::chain(&error.into())])
}

pub(crate) fn connector(identity: Identity) -> Arc<dyn Connector> {
    Arc::new(TlsConnector::new(identity))
}

impl OutsideArgs {
    /// The identity of a run's coordinator: from outside where a folder is named, or issued by the
    /// run's own authority.
    pub(crate) fn coordinator(
        &self,
        run_dir: &Path,
        run: &Id<furrow_rollout::Run>,
    ) -> Result<Identity, CommandFailure> {
        let Some(dir) = &self.identity else {
            return issue(&authority(run_dir, run)?, PeerRole::Coordinator, "coordinator");
        };
        let identity = Identity::of_outside_coordinator(dir, run).map_err(input)?;
        if let Some(domain) = &identity.peer().domain {
            Authority::take_outside(&Authority::dir_of_run(run_dir), domain).map_err(input)?;
        }
        Ok(identity)
    }
}

impl IdentityArgs {
    /// The folder of the identity: the named one, or that of a run directory.
    pub(crate) fn dir(&self, run_dir: Option<&Path>) -> Result<PathBuf, CommandFailure> {
        let of_run = || run_dir.map(Authority::dir_of_run);
        self.identity.clone().or_else(of_run).ok_or_else(|| {
            CommandFailure::Input(vec![
                "--identity: not given; name the run with --run, or a folder that `furrow identity issue` wrote"
                    .into(),
            ])
        })
    }

    /// The folder, if it was named.
    pub(crate) fn named(&self) -> Option<&Path> {
        self.identity.as_deref()
    }

    /// The identity of a command. It may only read where the folder holds an observer's.
    pub(crate) fn client(&self, run_dir: Option<&Path>) -> Result<Identity, CommandFailure> {
        Identity::find(&self.dir(run_dir)?, PeerRole::Client, &launch::process_name("client")).map_err(input)
    }

    /// The identity of a worker. The coordinator creates a run's authority at its start, so a
    /// worker that is started first waits for it; `None` if it was stopped before.
    pub(crate) async fn worker<K: IdKind>(
        &self,
        run_dir: &Path,
        role: PeerRole,
        given: Option<&str>,
        stop: &CancellationToken,
    ) -> Result<Option<WorkerIdentity<K>>, CommandFailure> {
        let dir = self.dir(Some(run_dir))?;
        if self.identity.is_none() {
            let waiting = stop.run_until_cancelled(authority_in(&dir));
            if waiting.await.is_none() {
                return Ok(None);
            }
        }
        let own_name = given.map_or_else(|| launch::process_name(role.as_str()), ToOwned::to_owned);
        let identity = Identity::find(&dir, role, &own_name).map_err(input)?;
        let name = match given {
            Some(given) => given.to_owned(),
            None if identity.peer().covers(&own_name) => own_name,
            None => format!("{}.{}", identity.peer().name, launch::random_tail()),
        };
        if !identity.peer().covers(&name) {
            let certified = &identity.peer().name;
            return Err(CommandFailure::Input(vec![format!(
                "--id: {name:?} is not the name of the identity in {}, which is {certified}; leave the option out, or \
                 use {certified}.SUFFIX, another one at each start",
                dir.display()
            )]));
        }
        Ok(Some(WorkerIdentity { name: launch::worker_name(Some(&name), role.as_str())?, identity }))
    }
}

/// Waits until a folder holds an authority.
async fn authority_in(dir: &Path) {
    let began = Instant::now();
    let mut noted_at: Option<Instant> = None;
    while !Authority::is_in(dir) {
        let due = noted_at.map_or(began.elapsed() >= FIRST_NOTE, |at| at.elapsed() >= NOTE_INTERVAL);
        if due {
            noted_at = Some(Instant::now());
            output::error_line(&format!(
                "waiting for the coordinator to create {}; on another machine, name a folder of `furrow identity \
                 issue` with --identity",
                dir.display()
            ));
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}
