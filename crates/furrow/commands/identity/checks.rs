//! What the commands ask of a role, a name, a folder and a run before they issue an identity.

use std::path::Path;

use furrow_identity::{Authority, PeerRole, RevokedPeer};
use furrow_rollout::Id;

use crate::{CommandFailure, peers};

/// Refuses to write over what is in a folder.
pub(super) fn check_is_new(out: &Path) -> Result<(), CommandFailure> {
    match out.symlink_metadata() {
        Ok(_) => {
            Err(CommandFailure::Input(vec![format!("--out: {} exists; name a new folder", out.display())]))
        }
        Err(_) => Ok(()),
    }
}

/// Refuses a name that no worker could use.
pub(super) fn check_name(run: &Path, role: PeerRole, name: &str) -> Result<(), CommandFailure> {
    if name.contains('.') {
        let why = "use a name without dots: a worker continues it after a dot";
        return Err(CommandFailure::Input(vec![format!("{name:?}: {why}")]));
    }
    let revoked = Authority::revoked(&Authority::dir_of_run(run)).map_err(peers::input)?;
    if revoked.contains(&RevokedPeer { role, name: name.to_owned() }) {
        let why = "was revoked in this run, so its identities are refused; use another name";
        return Err(CommandFailure::Input(vec![format!("{role}/{name} {why}")]));
    }
    Ok(())
}

pub(super) fn role(name: &str) -> Result<PeerRole, CommandFailure> {
    let issued = |role: &PeerRole| *role != PeerRole::Coordinator;
    PeerRole::parse(name).filter(issued).ok_or_else(|| {
        let roles: Vec<&str> =
            PeerRole::ALL.iter().filter(|role| issued(role)).map(|role| role.as_str()).collect();
        CommandFailure::Input(vec![format!(
            "{name:?} is no role of another machine; use {}",
            roles.join(", ")
        )])
    })
}

/// The authority of a run directory, which gets one if the run has not begun.
pub(super) fn authority(run: &Path) -> Result<Authority, CommandFailure> {
    let dir = Authority::dir_of_run(run);
    if Authority::is_in(&dir) {
        return Authority::open(&dir).map_err(peers::input);
    }
    let absolute = std::path::absolute(run)?;
    let name = absolute.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let run_id = Id::new(&name).map_err(|bad| CommandFailure::Input(vec![format!("--run: {bad}")]))?;
    peers::authority(&absolute, &run_id)
}
