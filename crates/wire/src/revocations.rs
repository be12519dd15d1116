//! The peers that a server refuses at once, on connections that are open as well.

use std::collections::BTreeSet;
use std::sync::Arc;

use furrow_identity::{Peer, REVOKED_MAX, RevokedPeer};
use tokio::sync::watch;
use tonic::Status;

use crate::access::Caller;
use crate::error::WireError;

/// Revoked peers, shared by a server's layer, its streams, and the task that learns of more.
#[derive(Debug, Clone, Default)]
pub struct Revocations(Arc<watch::Sender<BTreeSet<RevokedPeer>>>);

impl Revocations {
    /// Replaces the set. Returns the peers that were not in it.
    pub fn replace(&self, peers: BTreeSet<RevokedPeer>) -> Vec<RevokedPeer> {
        let added = peers.difference(&self.0.borrow()).cloned().collect::<Vec<_>>();
        self.0.send_if_modified(|kept| {
            let differs = *kept != peers;
            *kept = peers;
            differs
        });
        added
    }

    /// The names for a heartbeat's answer, each `ROLE/NAME`.
    pub fn to_wire(&self) -> Vec<String> {
        self.0.borrow().iter().map(ToString::to_string).collect()
    }

    /// Takes over what a heartbeat's answer names.
    pub fn update_from_wire(&self, names: &[String]) -> Result<(), WireError> {
        let key = "revoked";
        if names.len() > REVOKED_MAX {
            return Err(WireError::TooLarge { key, size: names.len(), max: REVOKED_MAX });
        }
        let parse = |name: &String| {
            let value = name.chars().take(60).collect();
            RevokedPeer::parse(name).ok_or(WireError::Unknown { key, value, expected: "ROLE/NAME" })
        };
        self.replace(names.iter().map(parse).collect::<Result<_, _>>()?);
        Ok(())
    }

    /// Refuses a peer that was revoked.
    pub(crate) fn check(&self, peer: &Peer) -> Result<(), Status> {
        if self.0.borrow().contains(&RevokedPeer::from(peer)) { Err(refusal(peer)) } else { Ok(()) }
    }

    /// Resolves with the refusal when a caller is revoked, for streams that outlive their first
    /// check. Never, for a caller without identity.
    pub async fn revoked(&self, caller: &Caller) -> Status {
        let Some(peer) = caller.peer() else { return std::future::pending().await };
        let revoked = RevokedPeer::from(peer);
        let mut changes = self.0.subscribe();
        let is_revoked = changes.wait_for(|peers| peers.contains(&revoked)).await.is_ok();
        if !is_revoked {
            // The sender lives as long as this value.
            std::future::pending::<()>().await;
        }
        refusal(peer)
    }
}

fn refusal(peer: &Peer) -> Status {
    Status::unauthenticated(format!(
        "the identity of {peer} was revoked; issue one with another name by `furrow identity issue`"
    ))
}

#[cfg(test)]
mod tests {
    use furrow_identity::PeerRole;
    use furrow_rollout::Id;

    use super::*;

    fn peer(role: PeerRole, name: &str) -> Peer {
        Peer::of_run(Id::new("r").unwrap(), role, name)
    }

    #[tokio::test]
    async fn a_peer_is_refused_from_the_moment_on_that_it_is_revoked() {
        let revocations = Revocations::default();
        let gpu = peer(PeerRole::Env, "gpu1");
        assert!(revocations.check(&gpu).is_ok());
        let caller = Caller::identified(gpu.clone());
        let elsewhere = revocations.clone();
        let stream = tokio::spawn(async move { elsewhere.revoked(&caller).await });
        revocations.update_from_wire(&["env/gpu1".into(), "policy/a".into()]).unwrap();
        let status = stream.await.unwrap();
        assert_eq!(status.code(), tonic::Code::Unauthenticated);
        assert!(status.message().contains("furrow://r/env/gpu1 was revoked"), "{status}");
        assert!(revocations.check(&gpu).is_err());
        assert!(revocations.check(&peer(PeerRole::Policy, "gpu1")).is_ok(), "another role");
        assert_eq!(revocations.to_wire(), ["policy/a", "env/gpu1"]);
        assert_eq!(revocations.replace(BTreeSet::new()), []);
        assert!(revocations.check(&gpu).is_ok());
    }

    #[test]
    fn names_from_a_peer_are_validated() {
        let revocations = Revocations::default();
        for names in [vec!["nonsense".to_owned()], vec!["env/a".to_owned(); REVOKED_MAX + 1]] {
            assert!(revocations.update_from_wire(&names).is_err());
        }
        assert_eq!(revocations.to_wire(), [""; 0]);
    }
}
