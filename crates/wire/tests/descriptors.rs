//! Silent connections neither stop a server nor keep its callers out, and a lack of descriptors
//! ends no accept loop.
//!
//! A binary of its own, because it lowers the process's limit of open files.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::time::Duration;

use furrow_wire::{
    BoundedIncoming, Channel, ConnectionLimits, Connector as _, LinkTimeouts, PeerRole, TcpConnector,
    raise_descriptor_limit, server,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const TIMEOUT: Duration = Duration::from_secs(60);

async fn serve(limits: Option<ConnectionLimits>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    let router = server(LinkTimeouts::default()).add_service(health);
    match limits {
        Some(limits) => {
            tokio::spawn(router.serve_with_incoming(BoundedIncoming::new(listener, limits)));
        }
        None => {
            tokio::spawn(router.serve_with_incoming(furrow_wire::accept(listener)));
        }
    }
    address
}

fn channel(address: SocketAddr) -> Channel {
    TcpConnector::default().channel(PeerRole::Coordinator, &address.to_string()).unwrap()
}

async fn is_answered(channel: &Channel) -> bool {
    let mut client = HealthClient::new(channel.clone());
    let call = client.check(HealthCheckRequest { service: String::new() });
    tokio::time::timeout(TIMEOUT, call).await.is_ok_and(|answer| answer.is_ok())
}

/// Whether the server still has the connection.
async fn is_open(stream: &mut TcpStream) -> bool {
    let mut byte = [0; 1];
    // A server of HTTP/2 speaks first.
    while let Ok(read) = tokio::time::timeout(Duration::from_millis(20), stream.read(&mut byte)).await {
        if !matches!(read, Ok(1)) {
            return false;
        }
    }
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_harm_no_server() {
    silent_connections_make_way().await;
    no_descriptor_ends_no_accept_loop().await;
    limits_follow_descriptors();
}

async fn silent_connections_make_way() {
    let limits = ConnectionLimits { connections_max: 20, address_max: 10 };
    let address = serve(Some(limits)).await;
    let early = channel(address);
    assert!(is_answered(&early).await);
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    assert!(is_answered(&channel(address)).await, "a caller that comes later");
    assert!(is_answered(&early).await, "a caller that was there");
    let mut open = 0;
    for stream in &mut silent {
        open += usize::from(is_open(stream).await);
    }
    assert!(open < limits.address_max, "{open} silent connections are open");
}

/// Both ends of each connection take a descriptor of this process, so fewer than 256 use up all.
async fn no_descriptor_ends_no_accept_loop() {
    let before = getrlimit(Resource::Nofile);
    let address = serve(Some(ConnectionLimits { connections_max: 10_000, address_max: 10_000 })).await;
    let early = channel(address);
    assert!(is_answered(&early).await);
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), ..before }).unwrap();
    // These have their descriptor before the last one is taken; the server has none for them.
    let spare: Vec<TcpSocket> = (0..8).map(|_| TcpSocket::new_v4().unwrap()).collect();
    let mut silent = Vec::new();
    while let Ok(stream) = TcpStream::connect(address).await {
        silent.push(stream);
        assert!(silent.len() < 256, "the limit counts");
    }
    for socket in spare {
        silent.push(socket.connect(address).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(is_answered(&early).await, "a caller that was there");
    silent.clear();
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(is_answered(&channel(address)).await, "a caller that comes later");
}

fn limits_follow_descriptors() {
    let before = getrlimit(Resource::Nofile);
    let set = |current| setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..before }).unwrap();
    set(1024);
    let limits = ConnectionLimits::of_process();
    assert_eq!(limits, ConnectionLimits { connections_max: 512, address_max: 256 });
    set(200);
    assert_eq!(ConnectionLimits::of_process().connections_max, 50);
    raise_descriptor_limit();
    assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
}
