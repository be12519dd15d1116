//! Certificates from outside: a folder with `tls.crt`, `tls.key` and `ca.crt`, as cert-manager and
//! SPIFFE's helper write them, and renew them.
//!
//! Such an authority also serves others than this run, so a certificate counts by the whole of its
//! URI: trust domain, run, role and name.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use furrow_rollout::{Id, Run};
use rustls::crypto::ring::sign::any_supported_type;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use webpki::KeyUsage;

use crate::certificate::{Unverified, has_key, verify_chain};
use crate::error::RENEW;
use crate::files::{CERTIFICATES_BYTES_MAX, TRUST_DOMAIN};
use crate::{Authority, Identity, IdentityError, Peer, PeerRole, TrustDomain};

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const BUNDLE: &str = "ca.crt";

impl Identity {
    /// The files of an identity from outside.
    pub fn outside_files(dir: &Path) -> [PathBuf; 3] {
        [CERTIFICATE, KEY, BUNDLE].map(|name| dir.join(name))
    }

    /// Whether a folder holds an identity from outside.
    pub(crate) fn is_outside_in(dir: &Path) -> bool {
        dir.join(CERTIFICATE).symlink_metadata().is_ok()
    }

    /// Reads an identity from outside, and checks all that can be checked without a connection. Its
    /// files may be links, as those of a mounted secret are.
    pub fn read_outside(dir: &Path) -> Result<Self, IdentityError> {
        let [certificate_path, key_path, bundle_path] = Self::outside_files(dir);
        let certificate_pem = read_text(&certificate_path, false)?;
        let key_pem = read_text(&key_path, true)?;
        let bundle_pem = read_text(&bundle_path, false)?;
        let chain = certificates(&certificate_path, &certificate_pem)?;
        let roots = certificates(&bundle_path, &bundle_pem)?;
        let Some((certificate, between)) = chain.split_first() else {
            return Err(damaged(&certificate_path, "it has no certificate".into()));
        };
        let public_key = public_key(&key_pem).map_err(|why| damaged(&key_path, why))?;
        if !has_key(certificate, &public_key) {
            return Err(damaged(&key_path, format!("it is not the key of {CERTIFICATE}")));
        }
        let named = Peer::of_certificate(certificate).and_then(Peer::check_outside);
        let peer = named.map_err(|why| IdentityError::Peer {
            path: certificate_path.clone(),
            why,
            remedy: RENEW,
        })?;
        let usages = [(KeyUsage::client_auth(), "client"), (KeyUsage::server_auth(), "server")];
        for (usage, name) in usages.into_iter().take(if peer.role.serves() { 2 } else { 1 }) {
            let verified = verify_chain((certificate, between), &roots, usage, SystemTime::now());
            verified.map_err(|why| match why {
                Unverified::NotValidNow(why) => {
                    IdentityError::NotValidNow { path: certificate_path.clone(), why, remedy: RENEW }
                }
                Unverified::Other(why) => {
                    damaged(&certificate_path, format!("{BUNDLE} does not verify it as a {name}'s ({why})"))
                }
            })?;
        }
        Ok(Self::new(peer, bundle_pem, certificate_pem, key_pem).kept_in(dir))
    }

    /// The identity of a coordinator whose run takes certificates from outside.
    pub fn of_outside_coordinator(dir: &Path, run: &Id<Run>) -> Result<Self, IdentityError> {
        if !Self::is_outside_in(dir) {
            return Err(IdentityError::NotOutside { dir: dir.to_owned() });
        }
        let found = Self::read_outside(dir)?;
        let peer = found.peer().to_string();
        if found.peer().role != PeerRole::Coordinator {
            return Err(IdentityError::OtherRole { dir: dir.to_owned(), peer, role: PeerRole::Coordinator });
        }
        if found.peer().run != *run {
            return Err(IdentityError::OtherRun { dir: dir.to_owned(), peer, run: run.to_string() });
        }
        Ok(found)
    }
}

impl Authority {
    /// Whose certificates a run takes instead of issuing its own, by its folder.
    pub fn trust_domain(dir: &Path) -> Result<Option<TrustDomain>, IdentityError> {
        let path = dir.join(TRUST_DOMAIN);
        let bytes = match furrow_storage::read_private(&path, CERTIFICATES_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(IdentityError::file("read", &path))?,
        };
        let parsed = std::str::from_utf8(&bytes).ok().and_then(|text| TrustDomain::parse(text.trim()));
        parsed.map(Some).ok_or_else(|| IdentityError::Damaged {
            path,
            why: "it names no trust domain".into(),
            remedy: "write the domain into it, such as example.org, or remove it",
        })
    }

    /// From now on the run takes certificates of this trust domain, and issues none.
    pub fn take_outside(dir: &Path, domain: &TrustDomain) -> Result<(), IdentityError> {
        furrow_storage::create_private_dir(dir).map_err(IdentityError::file("create", dir))?;
        let _lock = Self::lock(dir)?;
        let path = dir.join(TRUST_DOMAIN);
        furrow_storage::replace_private(&path, format!("{domain}\n").as_bytes())
            .map_err(IdentityError::file("write", &path))
    }
}

fn damaged(path: &Path, why: String) -> IdentityError {
    IdentityError::Damaged { path: path.to_owned(), why, remedy: RENEW }
}

fn read_text(path: &Path, is_secret: bool) -> Result<String, IdentityError> {
    let read = furrow_storage::read_mounted(path, CERTIFICATES_BYTES_MAX, is_secret);
    let text = read.and_then(|bytes| {
        String::from_utf8(bytes).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
    });
    text.map_err(IdentityError::file("read", path))
}

/// The certificates of a file.
fn certificates(path: &Path, pem: &str) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let all = all.map_err(|why| damaged(path, why.to_string()))?;
    if all.is_empty() { Err(damaged(path, "it has no certificate".into())) } else { Ok(all) }
}

/// The public half of a key in PEM, of any form that a handshake can use.
fn public_key(pem: &str) -> Result<Vec<u8>, String> {
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|why| why.to_string())?;
    let signing = any_supported_type(&key).map_err(|why| why.to_string())?;
    let public = signing.public_key().ok_or("it has no public half")?;
    Ok(public.as_ref().to_vec())
}

#[cfg(test)]
mod tests;
