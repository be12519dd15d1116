//! Who a certificate names: `furrow://RUN/ROLE/NAME`, one such URI in each certificate.

use std::fmt;

use furrow_rollout::{Id, Run};
use rustls_pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::PeerRole;

/// Certificates of a run have some 600 bytes.
const CERTIFICATE_BYTES_MAX: usize = 8 << 10;

/// Characters of a certificate's text in errors.
const EXCERPT_CHARS: usize = 60;

const SCHEME: &str = "furrow://";

/// Who is at the other end of a connection. Its certificate was verified before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The run that issued the certificate.
    pub run: Id<Run>,
    /// What the process may do.
    pub role: PeerRole,
    /// Its name; for workers the name, or the first part of the names, that they register under.
    pub name: String,
}

/// Why a certificate identifies no peer.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PeerError {
    /// It is larger than any certificate of a run.
    #[error("the certificate has {bytes} bytes, at most {CERTIFICATE_BYTES_MAX} are allowed")]
    TooLarge { bytes: usize },
    /// It is not an X.509 certificate.
    #[error("the certificate cannot be parsed: {why}")]
    Malformed { why: String },
    /// It has no URI of a run.
    #[error("the certificate names no role of a run, which is furrow://RUN/ROLE/NAME")]
    NoRole,
    /// It has several URIs.
    #[error("the certificate has {count} URIs; one names its role")]
    SeveralRoles { count: usize },
    /// Its URI is of another form.
    #[error("the certificate names {uri:?}; expected furrow://RUN/ROLE/NAME with a known role")]
    UnknownRole { uri: String },
}

impl Peer {
    /// Reads whom a certificate names. Whether it is valid and of the right authority, the
    /// handshake has found out.
    pub fn of_certificate(der: &[u8]) -> Result<Self, PeerError> {
        Self::of_uri(&only_uri(der)?)
    }

    fn of_uri(uri: &str) -> Result<Self, PeerError> {
        let unknown = || PeerError::UnknownRole { uri: uri.chars().take(EXCERPT_CHARS).collect() };
        let parts: Vec<&str> = uri.strip_prefix(SCHEME).ok_or(PeerError::NoRole)?.split('/').collect();
        let [run, role, name] = parts[..] else { return Err(unknown()) };
        let run = Id::new(run).map_err(|_| unknown())?;
        let role = PeerRole::parse(role).ok_or_else(unknown)?;
        if !is_name(name) {
            return Err(unknown());
        }
        Ok(Self { run, role, name: name.to_owned() })
    }

    /// Whether a worker of this name may use the certificate: the name itself, or one that
    /// continues it after a dot. A worker on another machine keeps its certificate and takes
    /// another name at each start.
    pub fn covers(&self, worker: &str) -> bool {
        let rest = worker.strip_prefix(self.name.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}/{}", self.run, self.role, self.name)
    }
}

/// Whether a name can stand in a certificate; names of workers all can.
pub(crate) fn is_name(name: &str) -> bool {
    Id::<furrow_rollout::EnvWorker>::new(name).is_ok()
}

/// The URI that an authority's own certificate has.
pub(crate) fn authority_uri(run: &Id<Run>) -> String {
    format!("{SCHEME}{run}")
}

/// The run whose authority a certificate is of.
pub(crate) fn run_of_authority(der: &[u8]) -> Result<Id<Run>, PeerError> {
    let uri = only_uri(der)?;
    let run = uri.strip_prefix(SCHEME).and_then(|run| Id::new(run).ok());
    run.ok_or_else(|| PeerError::UnknownRole { uri: uri.chars().take(EXCERPT_CHARS).collect() })
}

fn only_uri(der: &[u8]) -> Result<String, PeerError> {
    if der.len() > CERTIFICATE_BYTES_MAX {
        return Err(PeerError::TooLarge { bytes: der.len() });
    }
    let der = CertificateDer::from(der);
    let parsed = EndEntityCert::try_from(&der);
    let certificate = parsed.map_err(|why| PeerError::Malformed { why: why.to_string() })?;
    let uris: Vec<&str> = certificate.valid_uri_names().collect();
    match uris[..] {
        [] => Err(PeerError::NoRole),
        [uri] => Ok(uri.to_owned()),
        _ => Err(PeerError::SeveralRoles { count: uris.len() }),
    }
}
