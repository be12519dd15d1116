//! Certificates and keys in memory: made with one set of parameters, and verified as a handshake
//! verifies them.

use std::path::Path;
use std::time::{Duration, SystemTime};

use furrow_rollout::{Id, Run};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyUsagePurpose, SanType,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::IdentityError;
use crate::peer::{Peer, authority_uri};

/// The subject of every authority. Authorities differ by their keys; the run is in the URI.
const AUTHORITY_NAME: &str = "furrow run authority";

/// Clocks of machines differ; a certificate is valid this long before it is made.
const BACKDATED: Duration = Duration::from_secs(48 * 3600);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// From when until when a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    pub from: SystemTime,
    pub until: SystemTime,
}

impl Validity {
    /// From two days ago for this many days.
    pub fn days(days: u64) -> Self {
        let now = SystemTime::now();
        Self { from: now - BACKDATED, until: now + DAY * u32::try_from(days).unwrap_or(u32::MAX) }
    }
}

/// The parameters of an authority's own certificate. Those that its issued certificates depend on
/// are the same for every authority, so that a key alone can go on issuing.
pub(crate) fn authority_params(
    run: &Id<Run>,
    validity: Validity,
) -> Result<CertificateParams, IdentityError> {
    let mut params = base_params(AUTHORITY_NAME, &authority_uri(run), validity)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    Ok(params)
}

/// The parameters of a certificate for one process.
pub(crate) fn peer_params(peer: &Peer, validity: Validity) -> Result<CertificateParams, IdentityError> {
    let mut params = base_params(&peer.name, &peer.to_string(), validity)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    if peer.role.serves() {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        params.subject_alt_names.push(SanType::DnsName(peer.role.server_name().try_into()?));
    }
    Ok(params)
}

fn base_params(subject: &str, uri: &str, validity: Validity) -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, subject);
    params.subject_alt_names = vec![SanType::URI(uri.try_into()?)];
    params.not_before = validity.from.into();
    params.not_after = validity.until.into();
    Ok(params)
}

/// A certificate as PEM, decoded; errors name the file.
pub(crate) fn decode(
    path: &Path,
    pem: &str,
    remedy: &'static str,
) -> Result<CertificateDer<'static>, IdentityError> {
    let damaged = |why: rustls_pki_types::pem::Error| IdentityError::Damaged {
        path: path.to_owned(),
        why: why.to_string(),
        remedy,
    };
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(damaged)
}

/// Whether a certificate is for the key with this public half.
pub(crate) fn has_key(certificate: &CertificateDer<'_>, public_key: &[u8]) -> bool {
    EndEntityCert::try_from(certificate)
        .is_ok_and(|parsed| parsed.subject_public_key_info().as_ref() == public_key)
}

/// Why a certificate does not verify.
pub(crate) enum Unverified {
    /// It has expired or begins later.
    NotValidNow(String),
    /// Another authority issued it, or it is no certificate for a client.
    Other(String),
}

/// Verifies a certificate as the server of a connection does.
pub(crate) fn verify(
    certificate: &CertificateDer<'_>,
    authority: &CertificateDer<'_>,
    now: SystemTime,
) -> Result<(), Unverified> {
    verify_chain((certificate, &[]), std::slice::from_ref(authority), KeyUsage::client_auth(), now)
}

/// Verifies a certificate and those between it and one of these authorities for a usage.
pub(crate) fn verify_chain(
    (certificate, between): (&CertificateDer<'_>, &[CertificateDer<'_>]),
    authorities: &[CertificateDer<'_>],
    usage: KeyUsage,
    now: SystemTime,
) -> Result<(), Unverified> {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let anchors: Result<Vec<_>, _> = authorities.iter().map(anchor_from_trusted_cert).collect();
    let checked = anchors.and_then(|anchors| {
        EndEntityCert::try_from(certificate)?
            .verify_for_usage(
                webpki::ALL_VERIFICATION_ALGS,
                &anchors,
                between,
                UnixTime::since_unix_epoch(since),
                usage,
                None,
                None,
            )
            .map(drop)
    });
    checked.map_err(|why| match why {
        webpki::Error::CertExpired { .. } | webpki::Error::CertNotValidYet { .. } => {
            Unverified::NotValidNow(why.to_string())
        }
        other => Unverified::Other(other.to_string()),
    })
}
