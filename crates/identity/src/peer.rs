//! Who a certificate names, in its one URI: `furrow://RUN/ROLE/NAME` where the run's own authority
//! issued it, `spiffe://DOMAIN/furrow/RUN/ROLE/NAME` where it is from outside.

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

const SPIFFE: &str = "spiffe://";

/// Bytes of a SPIFFE ID, by its standard.
const SPIFFE_BYTES_MAX: usize = 2048;

/// Whose certificates from outside a run takes: a trust domain of SPIFFE, and the path before
/// `furrow` where there is one, such as `example.org` or `example.org/ns/rl`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustDomain(String);

/// Who is at the other end of a connection. Its certificate was verified before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Where the certificate is from, if not from the run's own authority.
    pub domain: Option<TrustDomain>,
    /// The run that the process belongs to.
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
    #[error(
        "the certificate names no role of a run, which is furrow://RUN/ROLE/NAME or \
         spiffe://DOMAIN/furrow/RUN/ROLE/NAME"
    )]
    NoRole,
    /// It is from outside, and its URI is of the form of a run's own.
    #[error("the certificate names {uri:?}; one from outside names spiffe://DOMAIN/furrow/RUN/ROLE/NAME")]
    NoDomain { uri: String },
    /// It has several URIs.
    #[error("the certificate has {count} URIs; one names its role")]
    SeveralRoles { count: usize },
    /// Its URI is of another form.
    #[error(
        "the certificate names {uri:?}; expected furrow://RUN/ROLE/NAME or spiffe://DOMAIN/furrow/RUN/ROLE/NAME with a \
         known role"
    )]
    UnknownRole { uri: String },
}

impl TrustDomain {
    /// Reads a domain in lower case, and a path if there is one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (domain, path) = text.split_once('/').map_or((text, None), |(domain, path)| (domain, Some(path)));
        let of_domain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
        let of_path = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let is_segment = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(of_path);
        let is_domain = (1..=255).contains(&domain.len()) && domain.bytes().all(of_domain);
        let is_path = path.is_none_or(|path| path.split('/').all(is_segment));
        (text.len() <= SPIFFE_BYTES_MAX && is_domain && is_path).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Peer {
    /// A process whose certificate the run's own authority issued.
    pub fn of_run(run: Id<Run>, role: PeerRole, name: &str) -> Self {
        Self { domain: None, run, role, name: name.to_owned() }
    }

    /// Refuses a certificate that is from no trust domain: any authority could write such a URI.
    pub(crate) fn check_outside(self) -> Result<Self, PeerError> {
        match self.domain {
            Some(_) => Ok(self),
            None => Err(PeerError::NoDomain { uri: self.to_string() }),
        }
    }

    /// Whether a certificate names the run that this one names, and is from the same place. The
    /// authority of a run issues for that run alone; one from outside may serve many.
    pub fn is_of_same_run(&self, other: &Self) -> bool {
        self.run == other.run && self.domain == other.domain
    }

    /// Reads whom a certificate names. Whether it is valid and of the right authority, the
    /// handshake has found out.
    pub fn of_certificate(der: &[u8]) -> Result<Self, PeerError> {
        Self::of_uri(&only_uri(der)?)
    }

    fn of_uri(uri: &str) -> Result<Self, PeerError> {
        let unknown = || PeerError::UnknownRole { uri: uri.chars().take(EXCERPT_CHARS).collect() };
        let (domain, path) = match uri.strip_prefix(SPIFFE) {
            Some(id) => split_spiffe(id).map(|(domain, path)| (Some(domain), path)).ok_or_else(unknown)?,
            None => (None, uri.strip_prefix(SCHEME).ok_or(PeerError::NoRole)?),
        };
        let parts: Vec<&str> = path.split('/').collect();
        let [run, role, name] = parts[..] else { return Err(unknown()) };
        let run = Id::new(run).map_err(|_| unknown())?;
        let role = PeerRole::parse(role).ok_or_else(unknown)?;
        if !is_name(name) {
            return Err(unknown());
        }
        Ok(Self { domain, run, role, name: name.to_owned() })
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
        match &self.domain {
            Some(domain) => write!(f, "{SPIFFE}{domain}/furrow/")?,
            None => f.write_str(SCHEME)?,
        }
        write!(f, "{}/{}/{}", self.run, self.role, self.name)
    }
}

/// The trust domain of a SPIFFE ID, and what follows `furrow`. The last `furrow` counts that three
/// parts can follow, so that a path before it may contain another one.
fn split_spiffe(id: &str) -> Option<(TrustDomain, &str)> {
    let start = id.rmatch_indices('/').map(|(at, _)| at).nth(2)?;
    let domain = id[..start].strip_suffix("/furrow")?;
    Some((TrustDomain::parse(domain)?, &id[start + 1..]))
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
