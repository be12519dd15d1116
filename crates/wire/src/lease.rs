//! The secret of a lease, and the lease that a call is made under.

use std::fmt;

use bytes::Bytes;
use furrow_rollout::{Id, LEASE_SECRET_BYTES, LeaseProof, LeaseSecret};

use crate::error::{WireError, need, unknown};
use crate::v1;

impl fmt::Debug for v1::LeaseSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseSecret")
    }
}

/// Validates a secret: it is present and has 16 bytes.
pub fn lease_secret_from(
    message: Option<v1::LeaseSecret>,
    key: &'static str,
) -> Result<LeaseSecret, WireError> {
    let v1::LeaseSecret { value } = need(message, key)?;
    let bytes: [u8; LEASE_SECRET_BYTES] = value
        .as_ref()
        .try_into()
        .map_err(|_| unknown(key, &format!("{} bytes", value.len()), "the 16 bytes of its assignment"))?;
    Ok(LeaseSecret::new(bytes))
}

/// Converts a secret to its message.
pub fn lease_secret_into(value: &LeaseSecret) -> v1::LeaseSecret {
    v1::LeaseSecret { value: Bytes::copy_from_slice(value.reveal()) }
}

/// Validates one lease of a renewal.
pub fn lease_ref_from(message: v1::LeaseRef) -> Result<LeaseProof, WireError> {
    let bad_id = |_| unknown("leases.trajectory_id", &message.trajectory_id, "the id of a trajectory");
    Ok(LeaseProof {
        trajectory_id: Id::new(&message.trajectory_id).map_err(bad_id)?,
        token: message.token,
        secret: lease_secret_from(message.secret, "leases.secret")?,
    })
}

/// Converts one lease of a renewal to its message.
pub fn lease_ref_into(value: &LeaseProof) -> v1::LeaseRef {
    v1::LeaseRef {
        trajectory_id: value.trajectory_id.to_string(),
        token: value.token,
        secret: Some(lease_secret_into(&value.secret)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_16_bytes_and_no_message_prints_them() {
        let secret = LeaseSecret::new([0xa7; LEASE_SECRET_BYTES]);
        let trajectory_id = Id::new("t").unwrap();
        let proof = LeaseProof { trajectory_id, token: 3, secret };
        let message = lease_ref_into(&proof);
        assert_eq!(lease_ref_from(message.clone()).unwrap(), proof);
        let printed = format!("{:?}", v1::RenewRequest { worker_id: "w".into(), leases: vec![message] });
        assert!(printed.contains("secret: Some(LeaseSecret)"), "{printed}");
        assert!(!printed.contains("167") && !printed.contains("a7"), "{printed}");

        assert_eq!(lease_secret_from(None, "secret").unwrap_err().to_string(), "secret is missing");
        for size in [0, 15, 17, 1 << 20] {
            let value = Bytes::from(vec![0xa7; size]);
            let refused = lease_secret_from(Some(v1::LeaseSecret { value }), "secret").unwrap_err();
            let want = format!("secret is \"{size} bytes\"; expected the 16 bytes of its assignment");
            assert_eq!(refused.to_string(), want);
        }
    }
}
