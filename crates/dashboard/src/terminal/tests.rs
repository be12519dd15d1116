//! The screen beside a dashboard that is served, over HTTP as from another machine, and over a run directory.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use furrow_records::fixtures::{self, Plot};
use furrow_records::{Draft, Manifest, ShardWriter};
use futures::executor::block_on;
use ratatui::backend::TestBackend;
use ratatui::layout::Size;

use super::*;
use crate::follow::{State, follow};
use crate::{Dashboard, DashboardFile, Device, Subject};

const TOKEN: &str = "a-token-of-twenty-six-letters";

fn subject(dir: &Path) -> Subject {
    Subject {
        name: "night".into(),
        dir: Some(dir.to_owned()),
        coordinator: None,
        job: None,
        device: Device::Cpu,
        usd_per_device_hour: None,
        planned: None,
        floor: None,
    }
}

/// One more trajectory, and a line of hours.
fn publish(dir: &Path, group: u64) {
    let data = dir.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let plan = fixtures::plan(&data, &format!("s{group}"));
    let mut writer = ShardWriter::create(plan.clone());
    let (record, steps) = Plot { group, ..Plot::default() }.trajectory();
    writer.add_trajectory(&record, &steps).unwrap();
    let files = writer.finish(|_, _| {}).unwrap();
    let draft = Draft::append(files, plan.run_id, 1, plan.shard_id, fixtures::STARTED);
    let mut manifest = block_on(Manifest::open(Manifest::local_store(&data).unwrap())).unwrap();
    block_on(manifest.commit(&draft)).unwrap();
}

struct Served {
    address: SocketAddr,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

async fn serve(dir: &Path, address: SocketAddr) -> Served {
    let config = DashboardFile::default().check().unwrap();
    let dashboard = Dashboard::bind(address, &config, Some(TOKEN), subject(dir)).await.unwrap();
    let (address, stop) = (dashboard.address(), CancellationToken::new());
    Served { address, serving: tokio::spawn(dashboard.serve(stop.clone())), stop }
}

impl Served {
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
struct Watching {
    terminal: Terminal<TestBackend>,
    screen: Screen,
    seen: mpsc::Receiver<Result<Seen, WatchError>>,
    looking: tokio::task::JoinHandle<()>,
}

impl Watching {
    fn start(source: WatchSource) -> Self {
        let (looks, seen) = mpsc::channel(1);
        let terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
        Self { terminal, screen: Screen::default(), seen, looking: tokio::spawn(look_on(source, looks)) }
    }

    /// Looks until something is on the screen.
    async fn until(&mut self, words: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            self.terminal.draw(|frame| self.screen.draw(frame)).unwrap();
            let text = self.terminal.backend().to_string();
            if text.contains(words) {
                return;
            }
            assert!(Instant::now() < deadline, "{words:?} never came:\n{text}");
            if let Ok(Some(look)) = tokio::time::timeout(Duration::from_secs(5), self.seen.recv()).await {
                self.screen.see(look);
            }
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_served_dashboard_is_followed_and_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), "127.0.0.1:0".parse().unwrap()).await;
    let mut watching = Watching::start(served.source(TOKEN));
    watching.until("nothing runs   0 trajectories").await;
    publish(dir.path(), 0);
    watching.until("nothing runs   1 trajectories").await;
    // It goes, and what was seen stays; it comes again under its address, and is followed.
    let address = served.address;
    served.close().await;
    watching.until("does not answer").await;
    watching.until("1 trajectories").await;
    let served = serve(dir.path(), address).await;
    publish(dir.path(), 1);
    watching.until("nothing runs   2 trajectories").await;
    served.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_directory_is_read_without_a_server() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0);
    let source = WatchSource::Run(subject(dir.path()));
    let once = look(&source).await.unwrap();
    assert_eq!(once.told()["overview"]["counts"]["trajectories"], 1);
    assert!(once.lines(90)[0].contains("night   nothing runs   1 trajectories"), "{:?}", once.lines(90));
    let mut watching = Watching::start(source);
    watching.until("1 trajectories").await;
    publish(dir.path(), 1);
    watching.until("2 trajectories").await;
}

#[tokio::test]
async fn whoever_begins_to_listen_wakes_the_reader() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0);
    let (state, stop) = (Arc::new(State::new(subject(dir.path()))), CancellationToken::new());
    let reading = tokio::spawn(follow(state.clone(), stop.clone()));
    // It finds nobody and rests.
    tokio::task::yield_now().await;
    let mut changes = state.changes();
    let read = changes.wait_for(|change| change.trajectories == 1);
    let read = tokio::time::timeout(Duration::from_secs(10), read).await;
    assert!(read.is_ok(), "nobody read");
    drop(read);
    stop.cancel();
    reading.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_cannot_be_read_is_told_on_every_page() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0);
    let served = serve(dir.path(), "127.0.0.1:0".parse().unwrap()).await;
    let torn = dir.path().join("data/manifest").join(format!("{:020}.json", 2));
    for source in [served.source(TOKEN), WatchSource::Run(subject(dir.path()))] {
        let mut watching = Watching::start(source.clone());
        watching.until("1 trajectories").await;
        watching.until("q quit").await;
        std::fs::write(&torn, "{\"no\u{1b}[2J commit").unwrap();
        for page in 0..5 {
            watching.screen.take(Wish::Page(page));
            watching.until("cannot read: ").await;
        }
        let once = look(&source).await;
        let told = match once {
            Ok(seen) => seen.lines(200).join("\n"),
            Err(why) => why.to_string(),
        };
        assert!(told.contains("manifest commit 2: is no commit") && !told.contains('\u{1b}'), "{told}");
        // What was read stays, and the word goes with the damage.
        watching.until("1 trajectories").await;
        std::fs::remove_file(&torn).unwrap();
        watching.until("q quit").await;
    }
    served.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_refuses_or_is_none_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), "127.0.0.1:0".parse().unwrap()).await;
    let refused = look(&served.source("another-token-of-letters")).await.unwrap_err().to_string();
    assert!(refused.contains("--token-file"), "{refused}");
    let same = look(&served.source(TOKEN)).await.unwrap();
    assert_eq!(same.told()["overview"]["head"]["name"], "night");
    let address = served.address;
    served.close().await;
    let absent = WatchSource::Dashboard(DashboardAddress::new(&format!("http://{address}/"), None).unwrap());
    let silent = look(&absent).await.unwrap_err().to_string();
    assert!(silent.contains("does not answer"), "{silent}");
    // Another program answers there.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = WatchSource::Dashboard(
        DashboardAddress::new(&format!("http://{}/", listener.local_addr().unwrap()), None).unwrap(),
    );
    let answering = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        // Read first: a connection that is closed over unread bytes is reset.
        let mut asked = [0; 1024];
        assert!(tokio::io::AsyncReadExt::read(&mut stream, &mut asked).await.unwrap() > 0);
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
        tokio::io::AsyncWriteExt::write_all(&mut stream, answer.as_bytes()).await.unwrap();
    });
    let strange = look(&other).await.unwrap_err().to_string();
    assert!(strange.contains("no JSON"), "{strange}");
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
            true => keys.try_send(Wish::Quit).unwrap(),
            false => stop.cancel(),
        }
        let watched = watch_on(&mut terminal, &source, pressed, &stop);
        tokio::time::timeout(Duration::from_secs(20), watched).await.unwrap().unwrap();
        assert_eq!(terminal.size().unwrap(), Size::new(80, 20));
        assert!(terminal.backend().to_string().contains("1 Overview"));
    }
}
