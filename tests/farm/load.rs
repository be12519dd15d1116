//! A worker of the run that was taken over opens more than it can use, and strangers open
//! connections and say nothing: the coordinator keeps its memory and its leases.

use std::fs;
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use furrow_identity::{Authority, PeerRole};
use furrow_wire::{Channel, Connector as _, TlsConnector};
use http_body::{Body as HttpBody, Frame};
use tonic::body::Body;
use tonic::codegen::{Service as _, http};

use crate::farm::{FarmBrowser, FarmHarness, FarmRole, simulated_tasks};

/// Streams without `FURROW_LOAD_STREAMS`, which are kept open for a while. `tests/long.sh load`
/// opens 100,000 and waits until each is answered.
const STREAMS: usize = 4_000;
const KEPT_OPEN: Duration = Duration::from_secs(5);
/// For those beyond the granted ones, on a busy machine.
const REFUSED_DEADLINE: Duration = Duration::from_secs(60);

/// Calls that a server grants one identity; it refuses the others at once.
const CALLS_MAX: usize = 1_024;
const STREAMS_PER_CONNECTION: usize = 1_000;

/// The most memory that the coordinator may ever have taken.
const BYTES_MAX: u64 = 512 << 20;

/// What each stream sends of a message of 15 MB: so much that frames fill the coordinator's
/// budgets, or a little where the number of streams is what counts (100,000 of the first are 26
/// GB).
const SENT_BYTES: usize = 256 << 10;
const SENT_BYTES_OF_MANY: usize = 4 << 10;

/// The beginning of a message of 15 MB, and then nothing.
struct UnfinishedBody(Option<Bytes>);

impl HttpBody for UnfinishedBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        self.0.take().map_or(Poll::Pending, |data| Poll::Ready(Some(Ok(Frame::data(data)))))
    }
}

fn beginning(sent_bytes: usize) -> Bytes {
    let mut bytes = vec![0];
    bytes.extend(15_000_000_u32.to_be_bytes());
    bytes.resize(sent_bytes, 7);
    bytes.into()
}

fn request(address: &str, beginning: &Bytes) -> http::Request<Body> {
    http::Request::post(format!("https://{address}/furrow.v1.CoordinatorService/RecordStep"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(UnfinishedBody(Some(beginning.clone()))))
        .unwrap()
}

/// Opens streams and keeps them until they are answered. Counts the answers.
async fn open_streams(
    channel: Channel,
    address: String,
    count: usize,
    beginning: Bytes,
    answered: Arc<AtomicUsize>,
) {
    let mut streams = tokio::task::JoinSet::new();
    for _ in 0..count {
        let mut channel = channel.clone();
        let request = request(&address, &beginning);
        let answered = answered.clone();
        streams.spawn(async move {
            if std::future::poll_fn(|context| channel.poll_ready(context)).await.is_ok() {
                channel.call(request).await.ok();
                answered.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    streams.join_all().await;
}

/// Largest resident memory that a process has had.
fn peak_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn farm_under_way(job: &str) -> FarmHarness {
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(2_000), job);
    farm.limit_descriptors(1024);
    farm.start_all();
    farm.wait_until("under way", Duration::from_secs(60), |now| now.steps > 0);
    farm
}

fn check_unharmed(farm: &mut FarmHarness, groups: u32) {
    farm.finish(Duration::from_secs(240));
    let found = farm.check(groups, 2).unwrap();
    println!("{found}");
    // Attempts that failed would be trajectories of their own.
    let slots = 2 * groups;
    assert!(found.starts_with(&format!("{slots} trajectories ({slots} scored)")), "{found}");
}

#[test]
fn unfinished_streams_take_neither_memory_nor_leases() {
    let requested = std::env::var("FURROW_LOAD_STREAMS").ok().map(|text| text.parse::<usize>().unwrap());
    let streams = requested.unwrap_or(STREAMS);
    let folder = tempfile::tempdir().unwrap();
    // The farm must outlast the streams: those that are granted end after 30 s.
    let groups = if requested.is_some() { 80 } else { 12 };
    let job = simulated_tasks(folder.path(), groups, 2) + "[policy]\nkind = \"random\"\nthink_millis = 300\n";
    let mut farm = farm_under_way(&job);
    let before = peak_bytes(farm.pid(FarmRole::Coordinator));
    let authority = Authority::open(&farm.run_dir().join("identity")).unwrap();
    let connector = TlsConnector::new(authority.issue(PeerRole::Env, "rogue").unwrap());
    let address = farm.coordinator_address();
    let answered = Arc::new(AtomicUsize::new(0));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let began = Instant::now();
    let beginning = beginning(if requested.is_some() { SENT_BYTES_OF_MANY } else { SENT_BYTES });
    runtime.block_on(async {
        let mut connections = tokio::task::JoinSet::new();
        for first in (0..streams).step_by(STREAMS_PER_CONNECTION) {
            let channel = connector.channel(PeerRole::Coordinator, &address).unwrap();
            let count = STREAMS_PER_CONNECTION.min(streams - first);
            let streams = open_streams(channel, address.clone(), count, beginning.clone(), answered.clone());
            connections.spawn(streams);
        }
        if requested.is_some() {
            tokio::time::timeout(Duration::from_secs(600), connections.join_all()).await.unwrap();
        } else {
            tokio::time::sleep(KEPT_OPEN).await;
            let refused = async {
                while answered.load(Ordering::SeqCst) < streams.saturating_sub(CALLS_MAX) {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            tokio::time::timeout(REFUSED_DEADLINE, refused).await.unwrap();
        }
    });
    let peak = peak_bytes(farm.pid(FarmRole::Coordinator));
    println!(
        "{streams} unfinished streams, {} answered in {:.1} s: {} MB before, {} MB at most",
        answered.load(Ordering::SeqCst),
        began.elapsed().as_secs_f64(),
        before >> 20,
        peak >> 20,
    );
    let granted = if requested.is_some() { 0 } else { CALLS_MAX };
    assert!(answered.load(Ordering::SeqCst) >= streams.saturating_sub(granted));
    drop(runtime);
    assert!(peak <= BYTES_MAX, "{peak} bytes");
    check_unharmed(&mut farm, groups);
}

#[test]
fn two_thousand_idle_sockets_at_a_thousand_descriptors_take_no_lease() {
    let folder = tempfile::tempdir().unwrap();
    let groups = 6;
    let job = simulated_tasks(folder.path(), groups, 2) + "[policy]\nkind = \"random\"\nthink_millis = 300\n";
    let mut farm = farm_under_way(&job);
    furrow_wire::raise_descriptor_limit();
    let address = farm.coordinator_address();
    // Those that the coordinator drops keep their end here.
    let sockets: Vec<TcpStream> = (0..2_000).filter_map(|_| TcpStream::connect(&address).ok()).collect();
    println!("{} sockets, {} MB", sockets.len(), peak_bytes(farm.pid(FarmRole::Coordinator)) >> 20);
    assert!(sockets.len() > 1_024, "{}: fewer than the descriptors", sockets.len());
    assert!(peak_bytes(farm.pid(FarmRole::Coordinator)) <= BYTES_MAX);
    check_unharmed(&mut farm, groups);
}
