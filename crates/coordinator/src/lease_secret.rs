//! Secrets of leases: where they come from, and what the ledger keeps of them.

use furrow_rollout::{LEASE_SECRET_BYTES, LeaseSecret};
use rand::rngs::ChaCha12Rng;
use rand::{Rng as _, SeedableRng as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// The digest of a secret is that of no other text.
const DOMAIN: &[u8] = b"furrow lease secret 1\0";

/// SHA-256 of a lease's secret. Who reads it learns nothing that a call could present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecretDigest([u8; 32]);

/// Draws the secrets of leases.
pub enum SecretSource {
    /// Seeded by the operating system.
    System,
    /// The same ones each time, so that a simulation can be repeated.
    Seeded(Box<ChaCha12Rng>),
}

impl SecretDigest {
    pub fn of(secret: &LeaseSecret) -> Self {
        let hashed = Sha256::new().chain_update(DOMAIN).chain_update(secret.reveal());
        Self(hashed.finalize().into())
    }

    pub(crate) fn stored(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes that the ledger stores.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Whether this is the digest of a secret, compared in constant time.
    pub(crate) fn is_of(&self, secret: &LeaseSecret) -> bool {
        self.0.ct_eq(&Self::of(secret).0).into()
    }
}

impl SecretSource {
    pub fn seeded(seed: u64) -> Self {
        Self::Seeded(Box::new(ChaCha12Rng::seed_from_u64(seed)))
    }

    /// The secret of the next lease.
    pub fn draw(&mut self) -> LeaseSecret {
        let mut bytes = [0; LEASE_SECRET_BYTES];
        match self {
            Self::System => rand::rng().fill_bytes(&mut bytes),
            Self::Seeded(random) => random.fill_bytes(&mut bytes),
        }
        LeaseSecret::new(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_the_system_differ_and_seeded_ones_repeat() {
        let draw = |mut source: SecretSource| [source.draw(), source.draw()];
        let [first, second] = draw(SecretSource::System);
        assert!(first != second && draw(SecretSource::System)[0] != first);
        let [first, second] = draw(SecretSource::seeded(1));
        assert_eq!(draw(SecretSource::seeded(1)), [first.clone(), second.clone()]);
        assert!(first != second && draw(SecretSource::seeded(2))[0] != first);
    }

    #[test]
    fn a_digest_is_of_its_secret_alone() {
        let [one, other] = [1, 2].map(|byte| LeaseSecret::new([byte; LEASE_SECRET_BYTES]));
        let digest = SecretDigest::of(&one);
        assert!(digest.is_of(&one) && !digest.is_of(&other));
        let plain: [u8; 32] = Sha256::digest(one.reveal()).into();
        assert_ne!(*digest.bytes(), plain, "a digest of the bare bytes means something else");
        assert!(!format!("{digest:?}").contains(&format!("{:?}", &one.reveal()[..4])[1..]));
    }
}
