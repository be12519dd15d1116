//! Servers with identities: who is let in, and which calls of whom pass.

use std::time::{Duration, SystemTime};

use furrow_identity::{Authority, Validity};
use furrow_wire::v1::coordinator_service_client::CoordinatorServiceClient;
use furrow_wire::{
    Channel, Code, Connector, Identity, LinkTimeouts, PeerRole, Revocations, Status, TcpConnector,
    TlsConnector, accept, authorized_server, serve, v1, with_health_and_reflection,
};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tokio::net::TcpListener;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthService;

struct Fixture {
    temp: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self { temp: tempfile::tempdir().unwrap() }
    }

    fn authority(&self, name: &str) -> Authority {
        Authority::open_or_create(&self.temp.path().join(name), &furrow_rollout::Id::new("r").unwrap())
            .unwrap()
    }

    /// A server that has no method but those of health and reflection: a call that passes is
    /// answered with `Unimplemented`.
    async fn serve(&self, role: PeerRole) -> String {
        let identity = self.authority("run").issue(role, "server").unwrap();
        let server = authorized_server(LinkTimeouts::default(), Some(&identity), &Revocations::default());
        let router = with_health_and_reflection::<HealthServer<HealthService>>(server).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(serve(router, accept(listener), Some(identity), std::future::pending()));
        address
    }
}

fn channel(identity: Identity, to: PeerRole, address: &str) -> Channel {
    TlsConnector::new(identity).channel(to, address).unwrap()
}

/// Every method of the protocol but that of enrolment, which is served alone.
fn methods() -> Vec<String> {
    let set = FileDescriptorSet::decode(v1::DESCRIPTORS).unwrap();
    let mut methods = Vec::new();
    for file in &set.file {
        for service in &file.service {
            let paths = service.method.iter().map(prost_types::MethodDescriptorProto::name);
            methods.extend(paths.map(|name| format!("/{}.{}/{name}", file.package(), service.name())));
        }
    }
    methods.retain(|path| !path.contains("EnrolmentService"));
    methods
}

pub(crate) async fn call(channel: &Channel, path: &str) -> Status {
    let mut client = tonic::client::Grpc::new(channel.clone());
    if let Err(error) = client.ready().await {
        return Status::from_error(error.into());
    }
    let path: PathAndQuery = path.parse().unwrap();
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    client.unary(tonic::Request::new(()), path, codec).await.expect_err("no method is served")
}

#[tokio::test]
async fn each_role_gets_through_to_its_own_methods_alone() {
    let fixture = Fixture::new();
    let address = fixture.serve(PeerRole::Coordinator).await;
    let authority = fixture.authority("run");
    let mut passed = Vec::new();
    for role in PeerRole::ALL {
        let channel = channel(authority.issue(role, "w").unwrap(), PeerRole::Coordinator, &address);
        for path in methods() {
            let status = call(&channel, &path).await;
            match status.code() {
                Code::Unimplemented => passed.push(format!("{role} {path}")),
                Code::PermissionDenied => {
                    let message = status.message();
                    assert!(message.contains(&format!("whose role is {role}")), "{message}");
                    assert!(message.contains(&path) && message.contains("allowed roles: "), "{message}");
                }
                _ => panic!("{role} {path}: {status:?}"),
            }
        }
    }
    let of = |role: &str| passed.iter().filter(|passed| passed.starts_with(role)).count();
    let counts = ["coordinator ", "policy ", "env ", "client ", "observer "].map(of);
    assert_eq!(counts, [0, 3, 9, 7, 4], "{passed:#?}");
}

#[tokio::test]
async fn no_method_is_reached_without_a_valid_certificate_of_the_run() {
    let fixture = Fixture::new();
    let address = fixture.serve(PeerRole::Coordinator).await;
    let ours = fixture.authority("run");
    let now = SystemTime::now();
    let hour = Duration::from_secs(3600);
    let valid = |from, until| ours.issue_for(PeerRole::Client, "c", Validity { from, until }).unwrap();
    let to = PeerRole::Coordinator;
    let root = Certificate::from_pem(ours.issue(to, "x").unwrap().authority_pem());
    let tls = ClientTlsConfig::new().ca_certificate(root).domain_name(to.server_name());
    let without = Endpoint::from_shared(format!("https://{address}")).unwrap().tls_config(tls).unwrap();
    let strangers = [
        ("no TLS", TcpConnector::default().channel(to, &address).unwrap()),
        ("no certificate", without.connect_lazy()),
        ("wrong CA", channel(fixture.authority("other").issue(PeerRole::Client, "c").unwrap(), to, &address)),
        ("expired", channel(valid(now - 3 * hour, now - hour), to, &address)),
        ("not valid yet", channel(valid(now + hour, now + 3 * hour), to, &address)),
    ];
    let health =
        ["/grpc.health.v1.Health/Check", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"];
    let paths: Vec<String> = methods().into_iter().chain(health.map(str::to_owned)).collect();
    assert_eq!(paths.len(), 18);
    for (name, channel) in strangers {
        for path in &paths {
            let status = call(&channel, path).await;
            let refused = matches!(status.code(), Code::Unavailable | Code::Unknown);
            assert!(refused, "{name} {path}: {status:?}");
        }
    }
    let known = channel(valid(now - hour, now + hour), to, &address);
    assert_eq!(call(&known, &paths[0]).await.code(), Code::PermissionDenied);
}

/// An environment worker that others are sent to instead of the policy worker reads nothing.
#[tokio::test]
async fn a_client_speaks_with_the_role_it_called() {
    let fixture = Fixture::new();
    let address = fixture.serve(PeerRole::Env).await;
    let own = || fixture.authority("run").issue(PeerRole::Env, "e").unwrap();
    for to in [PeerRole::Coordinator, PeerRole::Policy, PeerRole::Env] {
        let status = call(&channel(own(), to, &address), "/furrow.v1.PolicyService/Session").await;
        assert_eq!(status.code(), Code::Unavailable, "{to}: {status:?}");
    }
    let address = fixture.serve(PeerRole::Policy).await;
    let status =
        call(&channel(own(), PeerRole::Coordinator, &address), "/furrow.v1.CoordinatorService/Lease").await;
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let status = call(&channel(own(), PeerRole::Policy, &address), "/furrow.v1.PolicyService/Session").await;
    assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
}

#[tokio::test]
async fn health_and_reflection_answer_known_peers() {
    let fixture = Fixture::new();
    let address = fixture.serve(PeerRole::Coordinator).await;
    for role in PeerRole::ALL {
        let channel =
            channel(fixture.authority("run").issue(role, "w").unwrap(), PeerRole::Coordinator, &address);
        let mut client = tonic_health::pb::health_client::HealthClient::new(channel);
        let service = "grpc.health.v1.Health".to_owned();
        client.check(tonic_health::pb::HealthCheckRequest { service }).await.unwrap();
    }
}

/// A test's server has no identity and lets everyone in, so that tests can speak for any worker.
#[tokio::test]
async fn a_server_without_identity_lets_every_call_through() {
    let server = authorized_server(LinkTimeouts::default(), None, &Revocations::default());
    let router = with_health_and_reflection::<HealthServer<HealthService>>(server).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(router.serve_with_incoming(accept(listener)));
    let channel = TcpConnector::default().channel(PeerRole::Coordinator, &address).unwrap();
    let answer = CoordinatorServiceClient::new(channel).drain(v1::DrainRequest { at_once: true }).await;
    assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
}
