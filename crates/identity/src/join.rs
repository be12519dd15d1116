//! How another machine gets its identity without a folder being copied: a join token, valid once
//! and for a while, stands for a role and a name until the machine shows its public key.
//!
//! A token has the authority's certificate, so that the machine knows whom it speaks to, and a
//! secret of 128 bits, of which the run keeps the SHA-256 alone. The private key never leaves the
//! machine.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::Rng as _;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use sha2::{Digest as _, Sha256};

use crate::certificate::has_key;
use crate::peer::{is_name, run_of_authority};
use crate::{Authority, Identity, IdentityError, Peer, PeerRole, RevokedPeer};

const TOKENS: &str = "tokens";
const PREFIX: &str = "furrow-join-1.";
const SECRET_BYTES: usize = 16;

/// An authority's certificate has some 600 bytes in PEM, so a token some 850 characters.
const TOKEN_CHARS_MAX: usize = 8 << 10;

/// One line: role and name, when it expires, and the key that has used it.
const FILE_BYTES_MAX: u64 = 1 << 10;

/// An uncompressed point of the curve P-256: 4, x and y.
const PUBLIC_KEY_BYTES: usize = 65;

/// What a machine needs to get an identity.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    secret: [u8; SECRET_BYTES],
    /// In PEM, as in an identity's folder.
    authority_pem: String,
}

/// A key whose certificate was asked for.
pub struct JoiningKey(KeyPair);

/// Why no certificate is issued for a token.
#[derive(Debug, thiserror::Error)]
pub enum JoinRefusal {
    /// No token has this secret, or it has expired, or another machine used it. A stranger does
    /// not learn which.
    #[error("the join token is unknown, expired or was used; make another with `furrow identity token`")]
    Token,
    /// The key is no point of the curve P-256.
    #[error(
        "the public key has {bytes} bytes; expected an uncompressed point of P-256, which has {PUBLIC_KEY_BYTES}"
    )]
    Key { bytes: usize },
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

struct PublicKey<'a>(&'a [u8]);

impl PublicKeyData for PublicKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl JoinToken {
    /// Reads the text that `furrow identity token` printed.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.len() > TOKEN_CHARS_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix(PREFIX)?).ok()?;
        let (secret, authority_pem) = bytes.split_first_chunk::<SECRET_BYTES>()?;
        let der = CertificateDer::from_pem_slice(authority_pem).ok()?;
        run_of_authority(&der).ok()?;
        Some(Self { secret: *secret, authority_pem: String::from_utf8(authority_pem.to_vec()).ok()? })
    }

    /// What only the joining machine and the run may know.
    pub fn secret(&self) -> &[u8] {
        &self.secret
    }

    /// The certificate of the authority that made it, in PEM.
    pub fn authority_pem(&self) -> &str {
        &self.authority_pem
    }

    /// The text for a person to copy.
    pub fn reveal(&self) -> String {
        let bytes = [self.secret.as_slice(), self.authority_pem.as_bytes()].concat();
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinToken")
    }
}

impl JoiningKey {
    /// Makes a key, which stays on this machine.
    pub fn generate() -> Result<Self, IdentityError> {
        Ok(Self(KeyPair::generate()?))
    }

    /// What the authority sees of it.
    pub fn public_key(&self) -> &[u8] {
        self.0.der_bytes()
    }

    /// The identity of a certificate that was issued for this key by the token's authority.
    pub fn into_identity(
        self,
        token: &JoinToken,
        certificate_pem: String,
    ) -> Result<Identity, IdentityError> {
        let unusable = |why: &str| IdentityError::Make { why: format!("the answer {why}") };
        let der = CertificateDer::from_pem_slice(certificate_pem.as_bytes());
        let der = der.map_err(|_| unusable("has no certificate"))?;
        if !has_key(&der, &self.0.subject_public_key_info()) {
            return Err(unusable("is a certificate for another key"));
        }
        let peer = Peer::of_certificate(&der).map_err(|why| unusable(&format!("is no identity: {why}")))?;
        let authority_pem = token.authority_pem.clone();
        Ok(Identity::new(peer, authority_pem, certificate_pem, self.0.serialize_pem()))
    }
}

impl Authority {
    /// Makes a token for one process of this role and name.
    pub fn make_token(
        &self,
        dir: &Path,
        role: PeerRole,
        name: &str,
        valid: Duration,
    ) -> Result<JoinToken, IdentityError> {
        if !is_name(name) {
            return Err(IdentityError::Name { name: name.chars().take(60).collect() });
        }
        let _lock = Self::lock(dir)?;
        let folder = dir.join(TOKENS);
        furrow_storage::create_private_dir(&folder).map_err(IdentityError::file("create", &folder))?;
        remove_expired(&folder)?;
        let mut secret = [0; SECRET_BYTES];
        rand::rng().fill_bytes(&mut secret);
        let expires = unix_seconds(SystemTime::now() + valid);
        write_token(&token_path(dir, &secret), &format!("{role}/{name} {expires}\n"))?;
        Ok(JoinToken { secret, authority_pem: self.certificate_pem().to_owned() })
    }

    /// Issues the certificate that a token stands for, for this public key. The same key may ask
    /// again, since an answer can be lost; any other finds the token used.
    pub fn enrol(&self, dir: &Path, secret: &[u8], public_key: &[u8]) -> Result<String, JoinRefusal> {
        if public_key.len() != PUBLIC_KEY_BYTES || public_key.first() != Some(&4) {
            return Err(JoinRefusal::Key { bytes: public_key.len() });
        }
        let _lock = Self::lock(dir)?;
        let path = token_path(dir, secret);
        let bytes = match furrow_storage::read_private(&path, FILE_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(JoinRefusal::Token),
            read => read.map_err(IdentityError::file("read", &path))?,
        };
        let text = String::from_utf8_lossy(&bytes);
        let token = StoredToken::parse(&text).ok_or(JoinRefusal::Token)?;
        let key = hex(&Sha256::digest(public_key));
        let is_free = token.used_by.is_none_or(|used_by| used_by == key);
        if !is_free || token.expires <= unix_seconds(SystemTime::now()) {
            return Err(JoinRefusal::Token);
        }
        let StoredToken { peer, expires, .. } = token;
        if Self::revoked(dir)?.contains(&peer) {
            return Err(JoinRefusal::Token);
        }
        write_token(&path, &format!("{peer} {expires} {key}\n"))?;
        Ok(self.certify(peer.role, &peer.name, &PublicKey(public_key))?)
    }
}

struct StoredToken<'a> {
    peer: RevokedPeer,
    expires: u64,
    used_by: Option<&'a str>,
}

impl<'a> StoredToken<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split_whitespace();
        let peer = RevokedPeer::parse(parts.next()?)?;
        let expires = parts.next()?.parse().ok()?;
        Some(Self { peer, expires, used_by: parts.next() })
    }
}

fn token_path(dir: &Path, secret: &[u8]) -> PathBuf {
    dir.join(TOKENS).join(hex(&Sha256::digest(secret)))
}

fn write_token(path: &Path, text: &str) -> Result<(), IdentityError> {
    furrow_storage::replace_private(path, text.as_bytes()).map_err(IdentityError::file("write", path))
}

/// Removes the files of tokens that have expired.
fn remove_expired(folder: &Path) -> Result<(), IdentityError> {
    let now = unix_seconds(SystemTime::now());
    let entries = fs::read_dir(folder).map_err(IdentityError::file("read", folder))?;
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        let Ok(bytes) = furrow_storage::read_private(&path, FILE_BYTES_MAX) else { continue };
        let text = String::from_utf8_lossy(&bytes);
        if StoredToken::parse(&text).is_some_and(|token| token.expires <= now) {
            fs::remove_file(&path).map_err(IdentityError::file("remove", &path))?;
        }
    }
    Ok(())
}

fn unix_seconds(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use furrow_rollout::Id;

    use super::*;
    use crate::certificate::verify;

    const HOUR: Duration = Duration::from_secs(3600);

    fn authority(dir: &Path) -> Authority {
        Authority::open_or_create(dir, &Id::new("run").unwrap()).unwrap()
    }

    #[test]
    fn a_token_is_one_identity_for_one_key() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("identity");
        let authority = authority(&dir);
        let made = authority.make_token(&dir, PeerRole::Env, "gpu1", HOUR).unwrap();
        let token = JoinToken::parse(&format!(" {}\n", made.reveal())).unwrap();
        assert_eq!(token, made);
        let key = JoiningKey::generate().unwrap();
        let first = authority.enrol(&dir, token.secret(), key.public_key()).unwrap();
        let again = authority.enrol(&dir, token.secret(), key.public_key()).unwrap();
        let other = JoiningKey::generate().unwrap();
        let used = authority.enrol(&dir, token.secret(), other.public_key());
        assert!(matches!(used, Err(JoinRefusal::Token)), "{used:?}");
        assert!(other.into_identity(&token, first.clone()).is_err(), "a certificate for another key");
        let identity = key.into_identity(&token, again).unwrap();
        assert_eq!(identity.peer().to_string(), "furrow://run/env/gpu1");
        let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let root = der(identity.authority_pem());
        assert!(verify(&der(identity.certificate_pem()), &root, SystemTime::now()).is_ok());
        identity.write(&temp.path().join("there")).unwrap();
        Identity::read(&temp.path().join("there")).unwrap();
    }

    #[test]
    fn no_other_secret_or_key_gets_a_certificate() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("identity");
        let authority = authority(&dir);
        let expired = authority.make_token(&dir, PeerRole::Env, "late", Duration::ZERO).unwrap();
        let token = authority.make_token(&dir, PeerRole::Env, "gpu1", HOUR).unwrap();
        let revoked = authority.make_token(&dir, PeerRole::Env, "gone", HOUR).unwrap();
        Authority::revoke(&dir, RevokedPeer::parse("env/gone").unwrap()).unwrap();
        let key = JoiningKey::generate().unwrap();
        for secret in [expired.secret(), revoked.secret(), b"", b"../../authority.key", &[0; 16]] {
            let refused = authority.enrol(&dir, secret, key.public_key());
            assert!(matches!(refused, Err(JoinRefusal::Token)), "{secret:?}: {refused:?}");
        }
        for bad in [&b""[..], &[4; 64], &[2; 65], &[4; 66]] {
            let refused = authority.enrol(&dir, token.secret(), bad);
            assert!(matches!(refused, Err(JoinRefusal::Key { .. })), "{refused:?}");
        }
        authority.make_token(&dir, PeerRole::Env, "next", HOUR).unwrap();
        assert_eq!(fs::read_dir(dir.join(TOKENS)).unwrap().count(), 3, "the expired one is removed");
        for text in ["", "furrow-join-1.", "furrow-join-1.AAAA", "furrow-join-2.AAAA", &"x".repeat(9000)] {
            assert!(JoinToken::parse(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn the_run_keeps_no_secret_and_no_text_shows_one() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("identity");
        let token = authority(&dir).make_token(&dir, PeerRole::Env, "gpu1", HOUR).unwrap();
        let secret = hex(token.secret());
        for entry in fs::read_dir(dir.join(TOKENS)).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            assert!(!text.contains(&secret) && !path.to_string_lossy().contains(&secret));
        }
        assert_eq!(format!("{token:?}"), "JoinToken");
    }
}
