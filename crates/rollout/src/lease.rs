//! What a worker presents with each call about a trajectory that it leased.

use std::fmt;

use subtle::ConstantTimeEq as _;

use crate::{Id, Trajectory};

/// Bytes of a lease's secret: 128 bits cannot be guessed.
pub const LEASE_SECRET_BYTES: usize = 16;

/// Random bytes that the coordinator gives to the worker of one lease, and to no other. They are
/// not printed, and are compared in constant time.
#[derive(Clone, Eq)]
pub struct LeaseSecret([u8; LEASE_SECRET_BYTES]);

impl LeaseSecret {
    /// A secret of these bytes, which the coordinator draws at random.
    pub fn new(bytes: [u8; LEASE_SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes, for a message to the lease's worker or its coordinator, or for a digest.
    pub fn reveal(&self) -> &[u8; LEASE_SECRET_BYTES] {
        &self.0
    }
}

impl PartialEq for LeaseSecret {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for LeaseSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseSecret")
    }
}

/// The lease that a call is made under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseProof {
    /// The trajectory that was leased and that the call is about.
    pub trajectory_id: Id<Trajectory>,
    /// Fencing token. It is a number in logs and records, and proves nothing.
    pub token: u64,
    /// Proves that the caller is the worker that the lease was given to.
    pub secret: LeaseSecret,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_compared_whole_and_never_printed() {
        let secret = LeaseSecret::new([0xab; LEASE_SECRET_BYTES]);
        assert_eq!(secret, secret.clone());
        for byte in 0..LEASE_SECRET_BYTES {
            let mut other = *secret.reveal();
            other[byte] ^= 1;
            assert_ne!(secret, LeaseSecret::new(other), "byte {byte}");
        }
        let proof = LeaseProof { trajectory_id: Id::new("t").unwrap(), token: 7, secret };
        assert!(format!("{proof:?}").ends_with("token: 7, secret: LeaseSecret }"), "{proof:?}");
    }
}
