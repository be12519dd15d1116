//! The screen over a served dashboard, over HTTP as from another machine, and over a run directory.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use furrow_records::fixtures::{self, TrajectoryFixture};
use furrow_records::{CommitDraft, Manifest, ShardWriter};
use futures::executor::block_on;
use ratatui::backend::TestBackend;
use ratatui::layout::Size;

use super::*;
use crate::follow::{DashboardState, follow};
use crate::{DashboardFile, DashboardServer, DashboardSubject, DeviceKind};

const TOKEN: &str = "a-token-of-twenty-six-letters";

fn subject(dir: &Path) -> DashboardSubject {
    DashboardSubject {
        name: "night".into(),
        dir: Some(dir.to_owned()),
        coordinator: None,
        identity: None,
        job: None,
        device: DeviceKind::Cpu,
        usd_per_device_hour: None,
        planned: None,
        floor: None,
    }
}

/// Commits one more trajectory, and adds a line of metrics.
fn commit(dir: &Path, group: u64) {
    let data = dir.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let plan = fixtures::plan(&data, &format!("s{group}"));
    let mut writer = ShardWriter::create(plan.clone());
    let (record, steps) = TrajectoryFixture { group, ..TrajectoryFixture::default() }.trajectory();
    writer.add_trajectory(&record, &steps).unwrap();
    let files = writer.finish(|_, _| {}).unwrap();
    let draft = CommitDraft::append(files, plan.run_id, 1, plan.shard_id, fixtures::STARTED);
    let mut manifest = block_on(Manifest::open(Manifest::local_store(&data).unwrap())).unwrap();
    block_on(manifest.commit(&draft)).unwrap();
}

struct ServedDashboard {
    address: SocketAddr,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

async fn serve(dir: &Path, address: SocketAddr) -> ServedDashboard {
    let config = DashboardFile::default().check().unwrap();
    let dashboard = DashboardServer::bind(address, &config, Some(TOKEN), subject(dir)).await.unwrap();
    let address = dashboard.address();
    let stop = CancellationToken::new();
    ServedDashboard { address, serving: tokio::spawn(dashboard.serve(stop.clone())), stop }
}

impl ServedDashboard {
    fn source(&self, token: &str) -> WatchSource {
        WatchSource::Dashboard(
            DashboardAddress::new(&format!("http://{}/?token={token}", self.address), None).unwrap(),
        )
    }

    async fn close(self) {
        self.stop.cancel();
        self.serving.await.unwrap();
    }
}

/// A watched screen, without a terminal.
struct WatchedScreen {
    terminal: Terminal<TestBackend>,
    screen: TerminalScreen,
    snapshots: mpsc::Receiver<Result<RunSnapshot, WatchError>>,
    looking: tokio::task::JoinHandle<()>,
}

impl WatchedScreen {
    fn start(source: WatchSource) -> Self {
        let (looks, snapshots) = mpsc::channel(1);
        let terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
        Self {
            terminal,
            screen: TerminalScreen::default(),
            snapshots,
            looking: tokio::spawn(poll_snapshots(source, looks)),
        }
    }

    /// Reads snapshots until the screen contains this text.
    async fn until(&mut self, expected: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            self.terminal.draw(|frame| self.screen.draw(frame)).unwrap();
            let text = self.terminal.backend().to_string();
            if text.contains(expected) {
                return;
            }
            assert!(Instant::now() < deadline, "{expected:?} is missing:\n{text}");
            if let Ok(Some(look)) = tokio::time::timeout(Duration::from_secs(5), self.snapshots.recv()).await
            {
                self.screen.update(look);
            }
        }
    }
}

impl Drop for WatchedScreen {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_served_dashboard_is_followed_and_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), "127.0.0.1:0".parse().unwrap()).await;
    let mut watching = WatchedScreen::start(served.source(TOKEN));
    watching.until("not running   0 trajectories").await;
    commit(dir.path(), 0);
    watching.until("not running   1 trajectories").await;
    // The dashboard ends, and the last snapshot stays; it starts again at its address, and is
    // followed.
    let address = served.address;
    served.close().await;
    watching.until("does not answer").await;
    watching.until("1 trajectories").await;
    let served = serve(dir.path(), address).await;
    commit(dir.path(), 1);
    watching.until("not running   2 trajectories").await;
    served.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_directory_is_read_without_a_server() {
    let dir = tempfile::tempdir().unwrap();
    commit(dir.path(), 0);
    let source = WatchSource::Run(subject(dir.path()));
    let once = read_snapshot(&source).await.unwrap();
    assert_eq!(once.overview.metrics.counts.trajectories, 1);
    assert!(once.lines(90)[0].contains("night   not running   1 trajectories"), "{:?}", once.lines(90));
    let mut watching = WatchedScreen::start(source);
    watching.until("1 trajectories").await;
    commit(dir.path(), 1);
    watching.until("2 trajectories").await;
}

#[tokio::test]
async fn a_new_listener_wakes_the_reader() {
    let dir = tempfile::tempdir().unwrap();
    commit(dir.path(), 0);
    let state = Arc::new(DashboardState::new(subject(dir.path())));
    let stop = CancellationToken::new();
    let reading = tokio::spawn(follow(state.clone(), stop.clone()));
    // It finds no request and waits.
    tokio::task::yield_now().await;
    let mut changes = state.changes();
    let read = changes.wait_for(|change| change.trajectories == 1);
    let read = tokio::time::timeout(Duration::from_secs(60), read).await;
    assert!(read.is_ok(), "nothing was read");
    drop(read);
    stop.cancel();
    reading.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_directory_is_reported_on_every_page() {
    let dir = tempfile::tempdir().unwrap();
    commit(dir.path(), 0);
    let served = serve(dir.path(), "127.0.0.1:0".parse().unwrap()).await;
    let torn = dir.path().join("data/manifest").join(format!("{:020}.json", 2));
    for source in [served.source(TOKEN), WatchSource::Run(subject(dir.path()))] {
        let mut watching = WatchedScreen::start(source.clone());
        watching.until("1 trajectories").await;
        watching.until("q quit").await;
        std::fs::write(&torn, "{\"no\u{1b}[2J commit").unwrap();
        for page in 0..5 {
            watching.screen.apply(UserCommand::Page(page));
            watching.until("cannot read: ").await;
        }
        let once = read_snapshot(&source).await;
        let printed = match once {
            Ok(snapshot) => snapshot.lines(200).join("\n"),
            Err(why) => why.to_string(),
        };
        assert!(
            printed.contains("manifest commit 2: is not a valid commit") && !printed.contains('\u{1b}'),
            "{printed}"
        );
        // The data stays, and the message disappears with the damage.
        watching.until("1 trajectories").await;
        std::fs::remove_file(&torn).unwrap();
        watching.until("q quit").await;
    }
    served.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_or_missing_dashboard_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), "127.0.0.1:0".parse().unwrap()).await;
    let refused = read_snapshot(&served.source("another-token-of-letters")).await.unwrap_err().to_string();
    assert!(refused.contains("--token-file"), "{refused}");
    let same = read_snapshot(&served.source(TOKEN)).await.unwrap();
    assert_eq!(same.overview.head.name, "night");
    let address = served.address;
    served.close().await;
    let absent = WatchSource::Dashboard(DashboardAddress::new(&format!("http://{address}/"), None).unwrap());
    let silent = read_snapshot(&absent).await.unwrap_err().to_string();
    assert!(silent.contains("does not answer"), "{silent}");
    // Another program answers at this address.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = WatchSource::Dashboard(
        DashboardAddress::new(&format!("http://{}/", listener.local_addr().unwrap()), None).unwrap(),
    );
    let answering = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        // Read first: closing a connection with unread bytes resets it.
        let mut request = [0; 1024];
        assert!(tokio::io::AsyncReadExt::read(&mut stream, &mut request).await.unwrap() > 0);
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
        tokio::io::AsyncWriteExt::write_all(&mut stream, answer.as_bytes()).await.unwrap();
    });
    let strange = read_snapshot(&other).await.unwrap_err().to_string();
    assert!(strange.contains("not JSON"), "{strange}");
    answering.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_a_stop_end_it() {
    let dir = tempfile::tempdir().unwrap();
    let source = WatchSource::Run(subject(dir.path()));
    for by_key in [true, false] {
        let mut terminal = Terminal::new(TestBackend::new(80, 20)).unwrap();
        let (keys, pressed) = mpsc::channel(4);
        let stop = CancellationToken::new();
        match by_key {
            true => keys.try_send(UserCommand::Quit).unwrap(),
            false => stop.cancel(),
        }
        let watched = watch_loop(&mut terminal, &source, pressed, &stop);
        tokio::time::timeout(Duration::from_secs(60), watched).await.unwrap().unwrap();
        assert_eq!(terminal.size().unwrap(), Size::new(80, 20));
        assert!(terminal.backend().to_string().contains("1 Overview"));
    }
}
