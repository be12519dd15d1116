//! What a process shows of itself: a key and a certificate, with the authority that its peers must
//! have theirs from.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rcgen::{KeyPair, PublicKeyData as _};

use crate::IdentityError;
use crate::certificate::{Unverified, decode, has_key, verify};
use crate::error::ISSUE_AGAIN;
use crate::files::{AUTHORITY_CERTIFICATE, read_text};
use crate::peer::Peer;

const CERTIFICATE: &str = "identity.pem";
const KEY: &str = "identity.key";

/// A process's certificate and key.
#[derive(Clone)]
pub struct Identity {
    peer: Peer,
    authority_pem: String,
    certificate_pem: String,
    key_pem: String,
    /// The folder of one from outside, whose files are renewed there.
    outside_dir: Option<PathBuf>,
}

impl Identity {
    pub(crate) fn new(peer: Peer, authority_pem: String, certificate_pem: String, key_pem: String) -> Self {
        Self { peer, authority_pem, certificate_pem, key_pem, outside_dir: None }
    }

    /// One whose files are renewed in a folder.
    pub(crate) fn kept_in(self, dir: &Path) -> Self {
        Self { outside_dir: Some(dir.to_owned()), ..self }
    }

    /// Whether a folder holds the identity of one process.
    pub(crate) fn is_in(dir: &Path) -> bool {
        dir.join(CERTIFICATE).symlink_metadata().is_ok()
    }

    /// Reads an identity that [`Identity::write`] wrote, and checks all that can be checked without
    /// a connection.
    pub fn read(dir: &Path) -> Result<Self, IdentityError> {
        let certificate_path = dir.join(CERTIFICATE);
        let authority_path = dir.join(AUTHORITY_CERTIFICATE);
        let key_path = dir.join(KEY);
        let certificate_pem = read_text(&certificate_path)?;
        let authority_pem = read_text(&authority_path)?;
        let key_pem = read_text(&key_path)?;
        let certificate = decode(&certificate_path, &certificate_pem, ISSUE_AGAIN)?;
        let authority = decode(&authority_path, &authority_pem, ISSUE_AGAIN)?;
        let damaged = |path: &Path, why: String| IdentityError::Damaged {
            path: path.to_owned(),
            why,
            remedy: ISSUE_AGAIN,
        };
        let key = KeyPair::from_pem(&key_pem).map_err(|why| damaged(&key_path, why.to_string()))?;
        if !has_key(&certificate, &key.subject_public_key_info()) {
            return Err(damaged(&key_path, format!("it is not the key of {CERTIFICATE}")));
        }
        verify(&certificate, &authority, SystemTime::now()).map_err(|why| match why {
            Unverified::NotValidNow(why) => {
                IdentityError::NotValidNow { path: certificate_path.clone(), why, remedy: ISSUE_AGAIN }
            }
            Unverified::Other(why) => {
                damaged(&certificate_path, format!("it does not come from {AUTHORITY_CERTIFICATE} ({why})"))
            }
        })?;
        let named = Peer::of_certificate(&certificate);
        let peer =
            named.map_err(|why| IdentityError::Peer { path: certificate_path, why, remedy: ISSUE_AGAIN })?;
        Ok(Self::new(peer, authority_pem, certificate_pem, key_pem))
    }

    /// Writes what another machine needs into a folder that only this user may read.
    pub fn write(&self, dir: &Path) -> Result<(), IdentityError> {
        furrow_storage::create_private_dir(dir).map_err(IdentityError::file("create", dir))?;
        let files = [
            (AUTHORITY_CERTIFICATE, &self.authority_pem),
            (KEY, &self.key_pem),
            (CERTIFICATE, &self.certificate_pem),
        ];
        for (name, text) in files {
            let path = dir.join(name);
            furrow_storage::replace_private(&path, text.as_bytes())
                .map_err(IdentityError::file("write", &path))?;
        }
        Ok(())
    }

    /// Whom the certificate names.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The folder in which its files are renewed, if they are.
    pub fn outside_dir(&self) -> Option<&Path> {
        self.outside_dir.as_deref()
    }

    /// The certificates of the authorities that its peers have theirs from, in PEM: one of the run,
    /// or those from outside.
    pub fn authority_pem(&self) -> &str {
        &self.authority_pem
    }

    /// The certificate, in PEM, and those between it and the authority.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The secret key, in PEM.
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("peer", &self.peer).finish_non_exhaustive()
    }
}
