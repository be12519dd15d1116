//! Servers and clients with certificates from outside: of one trust domain and run, of any other,
//! and renewed while they run.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use furrow_testkit::outside::{OutsideAuthority, OutsideRequest};
use furrow_wire::{
    Channel, Code, Connector, Identity, LinkTimeouts, PeerRole, Revocations, Status, TlsConnector, accept,
    authorized_server, describe_status, serve, with_health_and_reflection,
};
use tokio::net::TcpListener;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthService;

use crate::identities::call;

const LEASE: &str = "/furrow.v1.CoordinatorService/Lease";
const COORDINATOR: &str = "spiffe://example.org/furrow/night/coordinator/head";
const ENV: &str = "spiffe://example.org/furrow/night/env/gpu1";

struct Fixture {
    temp: tempfile::TempDir,
    authority: OutsideAuthority,
}

impl Fixture {
    fn new() -> Self {
        Self { temp: tempfile::tempdir().unwrap(), authority: OutsideAuthority::new("cluster") }
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// The identity in a folder that gets one for this URI.
    fn identity(&self, name: &str, uri: &str) -> Identity {
        self.authority.write(&self.dir(name), uri);
        read(&self.dir(name))
    }

    fn connect(&self, name: &str, uri: &str, address: &str) -> Channel {
        channel(self.identity(name, uri), address)
    }
}

fn read(dir: &Path) -> Identity {
    Identity::read_outside(dir).unwrap()
}

fn channel(identity: Identity, address: &str) -> Channel {
    TlsConnector::new(identity).channel(PeerRole::Coordinator, address).unwrap()
}

/// A server without methods of its own: a call that passes is answered with `Unimplemented`.
async fn served(identity: Identity) -> String {
    let server = authorized_server(LinkTimeouts::default(), Some(&identity), &Revocations::default());
    let router = with_health_and_reflection::<HealthServer<HealthService>>(server).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(serve(router, accept(listener), Some(identity), std::future::pending()));
    address
}

#[track_caller]
fn check(what: &str, status: &Status, code: Code, part: &str) {
    let text = describe_status(status);
    assert!(status.code() == code && text.contains(part), "{what}: {text}, want {code:?} with {part:?}");
}

/// One authority serves everybody in the cluster: its word is not enough.
#[tokio::test]
async fn a_server_takes_callers_of_its_trust_domain_and_run_alone() {
    let fixture = Fixture::new();
    let address = served(fixture.identity("head", COORDINATOR)).await;
    let other = |name: &str, authority: &OutsideAuthority, uri: &str| {
        authority.write(&fixture.dir(name), uri);
        channel(read(&fixture.dir(name)), &address)
    };
    let own = fixture.connect("own", ENV, &address);
    check("its own", &call(&own, LEASE).await, Code::Unimplemented, "");
    let role = fixture.connect("role", "spiffe://example.org/furrow/night/observer/eye", &address);
    check("another role", &call(&role, LEASE).await, Code::PermissionDenied, "allowed roles: env");
    // A client finds out first that the server is of another run than itself.
    for uri in [
        "spiffe://example.com/furrow/night/env/gpu1",
        "spiffe://example.org/ns/rl/furrow/night/env/gpu1",
        "spiffe://example.org/furrow/day/env/gpu1",
    ] {
        let status = call(&fixture.connect("elsewhere", uri, &address), LEASE).await;
        check(uri, &status, Code::Unavailable, "calls a coordinator of its own run");
    }
    let foreign = other("foreign", &OutsideAuthority::new("other"), ENV);
    check("another issuer", &call(&foreign, LEASE).await, Code::Unavailable, "invalid peer certificate");
    let run = furrow_rollout::Id::new("night").unwrap();
    let authority = furrow_identity::Authority::open_or_create(&fixture.dir("identity"), &run).unwrap();
    let issued = channel(authority.issue(PeerRole::Env, "gpu1").unwrap(), &address);
    check("the run's own", &call(&issued, LEASE).await, Code::Unavailable, "invalid peer certificate");
}

/// What a caller gets that does not look at the server: it has the right issuer, and the server
/// decides by the URI alone.
#[tokio::test]
async fn a_server_decides_by_the_uri() {
    let fixture = Fixture::new();
    let address = served(fixture.identity("head", COORDINATOR)).await;
    let table: [(&[&str], Code, &str); 6] = [
        (&[ENV], Code::Unimplemented, ""),
        (&[], Code::Unauthenticated, "names no role of a run"),
        (&[ENV, "spiffe://example.org/x"], Code::Unauthenticated, "has 2 URIs"),
        (&["furrow://night/env/gpu1"], Code::Unauthenticated, "it takes calls of its own run alone"),
        (&["spiffe://example.com/furrow/night/env/gpu1"], Code::Unauthenticated, "of its own run alone"),
        (&["spiffe://example.org/furrow/day/env/gpu1"], Code::Unauthenticated, "of its own run alone"),
    ];
    for (uris, code, part) in table {
        let files = fixture.authority.issue(&OutsideRequest::now(uris));
        let channel = blind::channel(&address, &files);
        check(&format!("{uris:?}"), &call(&channel, LEASE).await, code, part);
    }
    let now = SystemTime::now();
    let hour = Duration::from_secs(3600);
    let over = OutsideRequest { from: now - 3 * hour, until: now - hour, ..OutsideRequest::now(&[ENV]) };
    let expired = blind::channel(&address, &fixture.authority.issue(&over));
    check_cut_off("expired", &call(&expired, LEASE).await);
    let foreign = OutsideAuthority::new("other").issue(&OutsideRequest::now(&[ENV]));
    check_cut_off("another issuer", &call(&blind::channel(&address, &foreign), LEASE).await);
}

/// A client of TLS 1.3 has sent its call by the time the server refuses its certificate, so the
/// call fails with the connection, before or after it was sent.
#[track_caller]
fn check_cut_off(what: &str, status: &Status) {
    let codes = [Code::Unavailable, Code::Unknown];
    assert!(codes.contains(&status.code()), "{what}: {}", describe_status(status));
}

/// Clients that take any server.
mod blind {
    use std::sync::Arc;

    use furrow_testkit::outside::OutsideFiles;
    use furrow_wire::Channel;
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::{CryptoProvider, ring};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};
    use tonic::transport::{ClientTlsConfig, Endpoint, Identity};

    #[derive(Debug)]
    struct TakesAny(CryptoProvider);

    impl ServerCertVerifier for TakesAny {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.signature_verification_algorithms.supported_schemes()
        }
    }

    pub(super) fn channel(address: &str, files: &OutsideFiles) -> Channel {
        let own = Identity::from_pem(&files.certificate_pem, &files.key_pem);
        let tls = ClientTlsConfig::new().identity(own).domain_name("coordinator.furrow.internal");
        let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
        let verifier = Arc::new(TakesAny(ring::default_provider()));
        endpoint.tls_config_with_verifier(tls, verifier).unwrap().connect_lazy()
    }
}

#[tokio::test]
async fn a_client_takes_a_server_of_its_trust_domain_run_and_role_alone() {
    let fixture = Fixture::new();
    let own = || fixture.identity("own", ENV);
    for (uri, passes) in [
        (COORDINATOR, true),
        ("spiffe://example.org/furrow/night/coordinator/other", true),
        ("spiffe://example.org/furrow/night/policy/head", false),
        ("spiffe://example.org/furrow/night/env/head", false),
        ("spiffe://example.org/furrow/day/coordinator/head", false),
        ("spiffe://example.com/furrow/night/coordinator/head", false),
        ("spiffe://example.org/ns/x/furrow/night/coordinator/head", false),
    ] {
        let address = served(fixture.identity("server", uri)).await;
        let status = call(&channel(own(), &address), LEASE).await;
        match passes {
            true => check(uri, &status, Code::Unimplemented, ""),
            false => check(uri, &status, Code::Unavailable, &format!("the server is {uri}")),
        }
    }
}

/// Calls over new connections until one is answered so.
async fn until(what: &str, connector: &TlsConnector, address: &str, code: Code) {
    let began = Instant::now();
    loop {
        let channel = connector.channel(PeerRole::Coordinator, address).unwrap();
        let status = call(&channel, LEASE).await;
        if status.code() == code {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{what}: {}", describe_status(&status));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The issuer itself is replaced, so that nothing that was read before is of use afterwards.
#[tokio::test]
async fn renewed_files_are_used_for_new_connections() {
    let fixture = Fixture::new();
    let head = fixture.dir("head");
    let own = fixture.dir("own");
    let address = served(fixture.identity("head", COORDINATOR)).await;
    let connector = TlsConnector::new(fixture.identity("own", ENV));
    let open = connector.channel(PeerRole::Coordinator, &address).unwrap();
    check("before", &call(&open, LEASE).await, Code::Unimplemented, "");

    let renewed = OutsideAuthority::new("renewed");
    renewed.write(&head, COORDINATOR);
    renewed.write(&own, ENV);
    // One that still has a certificate of the old issuer is refused once the server has looked.
    let old = TlsConnector::new(fixture.identity("old", ENV));
    until("the old issuer", &old, &address, Code::Unavailable).await;
    until("both are renewed", &connector, &address, Code::Unimplemented).await;
    check("an open connection", &call(&open, LEASE).await, Code::Unimplemented, "");
}

/// Files that are half written, or of another peer, change nothing until they can be used.
#[tokio::test]
async fn files_that_cannot_be_used_are_passed_over() {
    let fixture = Fixture::new();
    let address = served(fixture.identity("head", COORDINATOR)).await;
    let own = fixture.dir("own");
    let connector = TlsConnector::new(fixture.identity("own", ENV));
    let pause = || tokio::time::sleep(Duration::from_millis(1_100));
    let mut half = fixture.authority.issue(&OutsideRequest::now(&[ENV]));
    half.key_pem = fixture.authority.issue(&OutsideRequest::now(&[ENV])).key_pem;
    half.write(&own);
    pause().await;
    until("a key of another certificate", &connector, &address, Code::Unimplemented).await;
    fixture.authority.write(&own, "spiffe://example.org/furrow/night/observer/eye");
    pause().await;
    until("another peer", &connector, &address, Code::Unimplemented).await;
    std::fs::remove_file(own.join("tls.crt")).unwrap();
    pause().await;
    until("no file", &connector, &address, Code::Unimplemented).await;
    fixture.authority.write(&own, ENV);
    pause().await;
    until("renewed", &connector, &address, Code::Unimplemented).await;
}
