//! Certificates of a run: who a process is, for the processes it speaks with.
//!
//! A run has one [`Authority`], which lies in `<run>/identity` and stays there over every start. It
//! issues an [`Identity`] to each process: a key, and a certificate that names run, role and
//! worker. The other end of a connection reads them as a [`Peer`]. A run may take certificates from
//! outside instead, of a [`TrustDomain`].

mod authority;
mod certificate;
mod error;
mod files;
mod find;
mod identity;
mod join;
mod outside;
mod peer;
mod revoked;
mod role;

pub use authority::Authority;
pub use certificate::Validity;
pub use error::IdentityError;
pub use identity::Identity;
pub use join::{JoinRefusal, JoinToken, JoiningKey};
pub use peer::{Peer, PeerError, TrustDomain};
pub use revoked::{REVOKED_MAX, RevokedPeer};
pub use role::PeerRole;

#[cfg(test)]
mod tests;
