//! Listens, and gives each connection its limits: how many, how long a head and a write may take, how long one may last.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use furrow_wire::Patient;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::access::{Access, AccessError};
use crate::config::DashboardConfig;
use crate::follow::{State, Subject, follow};
use crate::live::poll;
use crate::routes::{BUSY_MAX, Routes};

/// A dashboard that listens and does not answer yet.
pub struct Dashboard {
    listener: TcpListener,
    address: SocketAddr,
    access: Access,
    state: Arc<State>,
    connections_max: usize,
    deadlines: Deadlines,
}

/// How long a connection may take.
#[derive(Debug, Clone, Copy)]
struct Deadlines {
    /// Until a head is there, or a form.
    head: Duration,
    /// Until part of what is written goes out; after that nobody reads there.
    write: Duration,
    /// In all: a page connects again by itself.
    whole: Duration,
}

/// Why there is no dashboard.
#[derive(Debug, thiserror::Error)]
pub enum DashboardError {
    /// Nobody can be let in.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The address cannot be listened on.
    #[error("dashboard.listen: {address} cannot be listened on; take another port, or 0 for a free one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
}

const DEADLINES: Deadlines = Deadlines {
    head: Duration::from_secs(15),
    write: Duration::from_secs(30),
    whole: Duration::from_secs(15 * 60),
};
/// What a connection may hold of what comes in.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// After a stop, what is being answered may take so long.
const GRACE: Duration = Duration::from_secs(2);
/// After an error of the listener (no file descriptors), it rests.
const REST: Duration = Duration::from_millis(100);

impl Dashboard {
    /// Listens where the settings say. `token`: what callers must bring; none is needed on loopback.
    pub async fn bind(
        address: SocketAddr,
        config: &DashboardConfig,
        token: Option<&str>,
        subject: Subject,
    ) -> Result<Self, DashboardError> {
        let access = Access::new(address, token)?;
        let listening = TcpListener::bind(address).await;
        let listener = listening.map_err(|source| DashboardError::Listen { address, source })?;
        let address = listener.local_addr().map_err(|source| DashboardError::Listen { address, source })?;
        let state = Arc::new(State::new(subject));
        Ok(Self {
            listener,
            address,
            access,
            state,
            connections_max: config.connections_max,
            deadlines: DEADLINES,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop`; what is being answered then has two seconds.
    pub async fn serve(self, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        tasks.spawn(follow(self.state.clone(), stop.clone()));
        tasks.spawn(poll(self.state.clone(), stop.clone()));
        let routes = Routes {
            access: Arc::new(self.access),
            state: self.state,
            busy: Arc::new(Semaphore::new(BUSY_MAX)),
            form_timeout: self.deadlines.head,
            stop: stop.clone(),
        };
        let places = Arc::new(Semaphore::new(self.connections_max));
        loop {
            // A connection waits in the system's queue until there is a place for it.
            let next = async {
                let place = places.clone().acquire_owned().await;
                (place, self.listener.accept().await)
            };
            let Some((place, accepted)) = stop.run_until_cancelled(next).await else { break };
            match accepted {
                Ok((stream, _)) => {
                    let (routes, deadlines, stop) = (routes.clone(), self.deadlines, stop.clone());
                    tasks.spawn(async move {
                        serve_connection(stream, routes, deadlines, stop).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    debug!(%error, "no connection was taken");
                    tokio::time::sleep(REST).await;
                }
            }
        }
        tasks.close();
        // What is left after the grace ends with the runtime.
        drop(tokio::time::timeout(GRACE, tasks.wait()).await);
    }
}

async fn serve_connection(stream: TcpStream, routes: Routes, deadlines: Deadlines, stop: CancellationToken) {
    let service = service_fn(move |request| {
        let routes = routes.clone();
        async move { Ok::<_, Infallible>(routes.answer(request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(deadlines.head).max_buf_size(BUFFER_BYTES_MAX);
    let stream = TokioIo::new(Patient::new(stream, deadlines.write));
    let mut connection = std::pin::pin!(http.serve_connection(stream, service));
    let ended = tokio::select! {
        ended = tokio::time::timeout(deadlines.whole, connection.as_mut()) => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(GRACE, connection).await
        }
    };
    if let Ok(Err(error)) = ended {
        debug!(%error, "a connection of the dashboard broke");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpSocket;

    use super::*;
    use crate::config::DashboardFile;
    use crate::figures::Device;

    /// The least that the settings allow.
    const PLACES: usize = 4;
    const SHORT: Duration = Duration::from_millis(250);
    /// Longer than a test lasts.
    const LONG: Duration = Duration::from_secs(600);

    struct Served {
        address: SocketAddr,
        stop: CancellationToken,
        serving: tokio::task::JoinHandle<()>,
    }

    impl Served {
        async fn with(deadlines: Deadlines) -> Self {
            let file = DashboardFile { connections_max: PLACES as u32, ..DashboardFile::default() };
            let subject = Subject {
                name: "quiet".into(),
                dir: None,
                coordinator: None,
                job: None,
                device: Device::None,
                usd_per_device_hour: None,
                planned: None,
                floor: None,
            };
            let any = "127.0.0.1:0".parse().unwrap();
            let mut dashboard = Dashboard::bind(any, &file.check().unwrap(), None, subject).await.unwrap();
            dashboard.deadlines = deadlines;
            let (address, stop) = (dashboard.address(), CancellationToken::new());
            let serving = tokio::spawn(dashboard.serve(stop.clone()));
            Self { address, stop, serving }
        }

        /// A connection that says this, and takes little of what comes.
        async fn say(&self, words: &str) -> TcpStream {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(4096).unwrap();
            let mut stream = socket.connect(self.address).await.unwrap();
            stream.write_all(words.as_bytes()).await.unwrap();
            stream
        }

        /// Whether somebody else is answered meanwhile.
        async fn answers_within(&self, patience: Duration) -> bool {
            let mut stream = self.say(&get("/assets/icon.svg", "close")).await;
            let mut answer = String::new();
            let read = tokio::time::timeout(patience, stream.read_to_string(&mut answer)).await;
            read.is_ok() && answer.starts_with("HTTP/1.1 200")
        }

        async fn close(self) {
            self.stop.cancel();
            self.serving.await.unwrap();
        }
    }

    fn get(path: &str, connection: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: {connection}\r\n\r\n")
    }

    #[tokio::test]
    async fn whoever_takes_too_long_gives_its_place_to_others() {
        // More than the buffers of two ends hold, asked for at once and never read.
        let deaf = get("/assets/style.css", "keep-alive").repeat(1200);
        let form = "POST /token HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\ntoken=";
        for (who, words) in [
            ("says nothing", ""),
            ("never finishes its head", "GET / HTTP/1.1\r\nhost: 127"),
            ("never finishes its form", form),
            ("asks once and stays", &*get("/assets/icon.svg", "keep-alive")),
            ("never reads", &*deaf),
        ] {
            let served = Served::with(Deadlines { head: SHORT, write: SHORT, whole: LONG }).await;
            let mut slow = Vec::new();
            for _ in 0..PLACES {
                slow.push(served.say(words).await);
            }
            assert!(served.answers_within(Duration::from_secs(20)).await, "{who}");
            drop(slow);
            served.close().await;
        }
    }

    #[tokio::test]
    async fn no_more_are_served_at_once_than_there_are_places() {
        let served = Served::with(Deadlines { head: LONG, write: LONG, whole: LONG }).await;
        let mut held = Vec::new();
        for _ in 0..PLACES {
            held.push(served.say(&get("/api/events", "keep-alive")).await);
        }
        assert!(!served.answers_within(SHORT).await, "a fifth was served");
        held.pop();
        assert!(served.answers_within(Duration::from_secs(20)).await, "a place that is free is taken");
        served.close().await;
    }

    #[tokio::test]
    async fn no_connection_lasts_for_ever() {
        let served = Served::with(Deadlines { head: LONG, write: LONG, whole: SHORT }).await;
        let mut stream = served.say(&get("/api/events", "keep-alive")).await;
        let mut heard = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut heard)).await;
        assert!(read.is_ok() && heard.starts_with(b"HTTP/1.1 200"), "it is closed");
        served.close().await;
    }
}
