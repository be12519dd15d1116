//! Peers that a run refuses although their certificates are valid: the file `revoked` beside the
//! authority, one `ROLE/NAME` a line.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::peer::is_name;
use crate::{Authority, IdentityError, Peer, PeerRole};

/// Most peers that a run may revoke; each is named in heartbeats.
pub const REVOKED_MAX: usize = 10_000;

/// A name has at most 128 characters and a role less than 16.
const LINE_BYTES_MAX: usize = 160;

const FILE: &str = "revoked";

/// Whom a run refuses: every certificate of this role and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RevokedPeer {
    pub role: PeerRole,
    pub name: String,
}

impl RevokedPeer {
    /// Reads `ROLE/NAME`, as the file and heartbeats have it.
    pub fn parse(text: &str) -> Option<Self> {
        let (role, name) = text.split_once('/')?;
        let role = PeerRole::parse(role)?;
        (text.len() <= LINE_BYTES_MAX && is_name(name)).then(|| Self { role, name: name.to_owned() })
    }

    /// Whether a worker of this name and role uses a revoked certificate: workers continue the
    /// name of theirs after a dot.
    pub fn covers(&self, role: PeerRole, worker: &str) -> bool {
        let rest = worker.strip_prefix(self.name.as_str());
        self.role == role && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

impl From<&Peer> for RevokedPeer {
    fn from(peer: &Peer) -> Self {
        Self { role: peer.role, name: peer.name.clone() }
    }
}

impl fmt::Display for RevokedPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.role, self.name)
    }
}

impl Authority {
    /// The file with the revoked peers of a folder.
    pub fn revoked_file(dir: &Path) -> PathBuf {
        dir.join(FILE)
    }

    /// The peers that a folder's authority has revoked; none if it has no such file.
    pub fn revoked(dir: &Path) -> Result<BTreeSet<RevokedPeer>, IdentityError> {
        let path = Self::revoked_file(dir);
        let bytes = match furrow_storage::read_private(&path, (REVOKED_MAX * LINE_BYTES_MAX) as u64) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            read => read.map_err(IdentityError::file("read", &path))?,
        };
        let damaged = |why: String| IdentityError::Damaged {
            path: path.clone(),
            why,
            remedy: "write one ROLE/NAME on each line",
        };
        let text = String::from_utf8(bytes).map_err(|_| damaged("it is not UTF-8".into()))?;
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let peers = lines.map(|line| {
            let excerpt = || line.chars().take(60).collect::<String>();
            RevokedPeer::parse(line).ok_or_else(|| damaged(format!("{:?} names no peer", excerpt())))
        });
        let peers: BTreeSet<RevokedPeer> = peers.collect::<Result<_, _>>()?;
        if peers.len() > REVOKED_MAX {
            return Err(damaged(format!("it names more than {REVOKED_MAX} peers")));
        }
        Ok(peers)
    }

    /// Revokes a peer for the rest of the run. Returns whether it was not revoked before.
    pub fn revoke(dir: &Path, peer: RevokedPeer) -> Result<bool, IdentityError> {
        let _lock = Self::lock(dir)?;
        let mut peers = Self::revoked(dir)?;
        let path = Self::revoked_file(dir);
        if peers.len() == REVOKED_MAX && !peers.contains(&peer) {
            let why = format!("{REVOKED_MAX} peers are revoked already, and no more may be");
            let remedy = "remove the identity folder and issue identities again";
            return Err(IdentityError::Damaged { path, why, remedy });
        }
        let is_new = peers.insert(peer);
        let text: String = peers.iter().map(|peer| format!("{peer}\n")).collect();
        furrow_storage::replace_private(&path, text.as_bytes())
            .map_err(IdentityError::file("write", &path))?;
        Ok(is_new)
    }
}

#[cfg(test)]
mod tests {
    use furrow_rollout::Id;

    use super::*;

    #[test]
    fn revoked_peers_are_kept_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("identity");
        Authority::open_or_create(&dir, &Id::new("run").unwrap()).unwrap();
        assert_eq!(Authority::revoked(&dir).unwrap(), BTreeSet::new());
        let gpu = RevokedPeer::parse("env/gpu1").unwrap();
        assert!(Authority::revoke(&dir, gpu.clone()).unwrap());
        assert!(!Authority::revoke(&dir, gpu.clone()).unwrap(), "a second time changes nothing");
        assert!(Authority::revoke(&dir, RevokedPeer::parse("policy/gpu1").unwrap()).unwrap());
        let read = Authority::revoked(&dir).unwrap();
        assert_eq!(read.iter().map(ToString::to_string).collect::<Vec<_>>(), ["policy/gpu1", "env/gpu1"]);
        std::fs::write(Authority::revoked_file(&dir), "env/gpu1\nnonsense\n").unwrap();
        let error = Authority::revoked(&dir).unwrap_err().to_string();
        assert!(error.contains("\"nonsense\" names no peer; write one ROLE/NAME"), "{error}");
    }

    #[test]
    fn a_revoked_name_covers_its_continuations_alone() {
        let gpu = RevokedPeer::parse("env/gpu1").unwrap();
        for (role, name, covered) in [
            (PeerRole::Env, "gpu1", true),
            (PeerRole::Env, "gpu1.a1b2", true),
            (PeerRole::Env, "gpu10", false),
            (PeerRole::Policy, "gpu1", false),
            (PeerRole::Env, "gpu", false),
        ] {
            assert_eq!(gpu.covers(role, name), covered, "{role} {name}");
        }
        for bad in ["", "env", "env/", "env/../x", "root/gpu1", "env/a b"] {
            assert_eq!(RevokedPeer::parse(bad), None, "{bad:?}");
        }
    }
}
