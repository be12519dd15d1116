//! TLS of a connection: which certificates both ends show and take. Built for each connection from
//! the identity as it is then.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use furrow_identity::{Identity, Peer, PeerError, PeerRole};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, ServerConfig,
    SignatureScheme,
};

/// HTTP/2, the one protocol of gRPC.
const ALPN: &[u8] = b"h2";

/// How a process of this identity connects to a server of a role.
///
/// No connection resumes an earlier one: each verifies the other end.
pub(crate) fn client_config(identity: &Identity, to: PeerRole) -> io::Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(PeerVerifier {
        own: identity.peer().clone(),
        to,
        roots: roots(identity)?,
        algorithms: provider.signature_verification_algorithms,
    });
    let (chain, key) = own_certificate(identity)?;
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(io::Error::other)?.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = builder.with_client_auth_cert(chain, key).map_err(io::Error::other)?;
    config.alpn_protocols.push(ALPN.to_vec());
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// How a server of this identity accepts connections: with certificates that its authorities
/// issued. Whom they name is compared with each call.
pub(crate) fn server_config(identity: &Identity) -> io::Result<ServerConfig> {
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let roots = Arc::new(roots(identity)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build();
    let (chain, key) = own_certificate(identity)?;
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder =
        builder.map_err(io::Error::other)?.with_client_cert_verifier(verifier.map_err(io::Error::other)?);
    let mut config = builder.with_single_cert(chain, key).map_err(io::Error::other)?;
    config.alpn_protocols.push(ALPN.to_vec());
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn roots(identity: &Identity) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for root in certificates(identity.authority_pem())? {
        roots.add(root).map_err(io::Error::other)?;
    }
    Ok(roots)
}

fn own_certificate(
    identity: &Identity,
) -> io::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem().as_bytes()).map_err(io::Error::other)?;
    Ok((certificates(identity.certificate_pem())?, key))
}

fn certificates(pem: &str) -> io::Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(io::Error::other)
}

/// Takes a server whose certificate is of the run of this process, and of the role that is called.
/// Its address plays no part: it changes with each start.
#[derive(Debug)]
struct PeerVerifier {
    own: Peer,
    to: PeerRole,
    roots: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Why a server with a valid certificate is not the one that is called.
enum OtherServer {
    Unnamed(PeerError),
    Named(Box<NamedServer>),
}

/// A server that names another run or role.
struct NamedServer {
    found: Peer,
    own: Peer,
    to: PeerRole,
}

impl fmt::Display for OtherServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unnamed(why) => why.fmt(f),
            Self::Named(named) => {
                let NamedServer { found, own, to } = &**named;
                write!(f, "the server is {found}, and {own} calls a {to} of its own run")
            }
        }
    }
}

/// rustls shows this form in its own error.
impl fmt::Debug for OtherServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for OtherServer {}

impl PeerVerifier {
    fn check_peer(&self, certificate: &CertificateDer<'_>) -> Result<(), OtherServer> {
        let found = Peer::of_certificate(certificate).map_err(OtherServer::Unnamed)?;
        match found.is_of_same_run(&self.own) && found.role == self.to {
            true => Ok(()),
            false => {
                let named = NamedServer { found, own: self.own.clone(), to: self.to };
                Err(OtherServer::Named(Box::new(named)))
            }
        }
    }
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        self.check_peer(end_entity).map_err(|why| {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why))))
        })?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
