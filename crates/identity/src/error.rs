//! Why an identity cannot be used, with its file and what to do.

use std::io;
use std::path::{Path, PathBuf};

use crate::{PeerError, PeerRole, TrustDomain};

/// Why an identity cannot be created, read or used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file or folder of the identity cannot be opened or written.
    #[error("cannot {action} {path}")]
    File { action: &'static str, path: PathBuf, source: io::Error },
    /// The folder has no identity.
    #[error(
        "{dir} holds no identity of a run; name the run's identity folder, what `furrow identity issue` wrote, or a \
         folder with tls.crt, tls.key and ca.crt"
    )]
    Absent { dir: PathBuf },
    /// A file is there and cannot be what it should be.
    #[error("{path} is damaged: {why}; {remedy}")]
    Damaged { path: PathBuf, why: String, remedy: &'static str },
    /// The certificate is not valid at this time.
    #[error("{path} is not valid now: {why}; correct this machine's clock, or {remedy}")]
    NotValidNow {
        path: PathBuf,
        /// Whether it has expired or begins later.
        why: String,
        remedy: &'static str,
    },
    /// The certificate is for another role.
    #[error(
        "{dir} holds the identity of {peer}, and this process is a {role}; name a folder with one of its own, which \
         `furrow identity issue {role} NAME --out DIR` writes"
    )]
    OtherRole {
        dir: PathBuf,
        /// Whom the certificate names.
        peer: String,
        /// The role of this process.
        role: PeerRole,
    },
    /// The certificate is for another run.
    #[error(
        "{dir} holds the identity of {peer}, and this run is {run}; its URI ends with furrow/{run}/ROLE/NAME"
    )]
    OtherRun {
        dir: PathBuf,
        /// Whom the certificate names.
        peer: String,
        /// The run of this process.
        run: String,
    },
    /// The run has no authority of its own.
    #[error(
        "the run takes certificates of spiffe://{domain} alone, as {dir}/trust-domain says; name a folder with tls.crt, \
         tls.key and ca.crt with --identity, or remove that file, for certificates that the run issues"
    )]
    Outside { dir: PathBuf, domain: TrustDomain },
    /// A coordinator was given an identity that is not from outside.
    #[error(
        "{dir} holds no tls.crt; a coordinator takes a folder with tls.crt, tls.key and ca.crt, or leave --identity and \
         FURROW_IDENTITY out: then the run issues certificates of its own"
    )]
    NotOutside { dir: PathBuf },
    /// A name cannot stand in a certificate.
    #[error(
        "{name:?} is no name for a certificate; use 1 to 128 letters, digits, dots, dashes and underscores, and no dot first"
    )]
    Name { name: String },
    /// A certificate identifies no peer.
    #[error("{path}: {why}; {remedy}")]
    Peer {
        path: PathBuf,
        /// What is wrong with it.
        why: PeerError,
        remedy: &'static str,
    },
    /// A key or certificate cannot be made.
    #[error("a certificate could not be made: {why}")]
    Make { why: String },
}

/// What to do about a damaged authority.
pub(crate) const REPLACE_AUTHORITY: &str = "remove the folder and start again: the next start makes another one, and identities that \
     were issued from this one are refused from then on";

/// What to do about a damaged identity that was issued.
pub(crate) const ISSUE_AGAIN: &str = "issue it again with `furrow identity issue`";

/// What to do about a certificate from outside.
pub(crate) const RENEW: &str = "have its issuer (cert-manager, SPIRE) write another";

impl IdentityError {
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { action, path: path.to_owned(), source }
    }
}

impl From<rcgen::Error> for IdentityError {
    fn from(error: rcgen::Error) -> Self {
        Self::Make { why: error.to_string() }
    }
}
