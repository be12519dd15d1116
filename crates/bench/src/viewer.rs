//! A viewer of the dashboard: a browser with one page open, which can be stopped as a sleeping
//! machine stops it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use furrow::headless;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::time::{Instant, sleep, timeout};

/// A browser that shows a page.
pub(crate) struct PageViewer {
    child: Child,
    /// Process id, which is also the id of its process group.
    pid: u32,
}

/// Longest time for a browser to start and render its page.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);

impl PageViewer {
    /// Opens a page and waits until it has this title.
    pub(crate) async fn open(program: &Path, folder: &Path, url: &str, title: &str) -> anyhow::Result<Self> {
        let mut command = headless::command(program, folder)?;
        command.args(["--remote-debugging-port=0", "--window-size=1280,860", url]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
        let pid = child.id().context("the browser has ended")?;
        let viewer = Self { child, pid };
        let deadline = Instant::now() + STARTUP_TIMEOUT;
        while !has_tab_titled(&headless::profile(folder), title).await.unwrap_or(false) {
            if Instant::now() > deadline {
                bail!("the browser did not show {title:?} at {url} in time");
            }
            sleep(Duration::from_millis(200)).await;
        }
        Ok(viewer)
    }

    /// Stops all its processes: connections stay open and nothing reads them.
    pub(crate) fn stall(&self) -> anyhow::Result<()> {
        signal("STOP", self.pid)
    }

    pub(crate) async fn close(mut self) -> anyhow::Result<()> {
        signal("KILL", self.pid)?;
        self.child.wait().await?;
        Ok(())
    }
}

impl Drop for PageViewer {
    /// Ends the browser after an error; a closed one has no process any more.
    fn drop(&mut self) {
        if self.child.id().is_some() {
            signal("KILL", self.pid).ok();
        }
    }
}

/// Whether one of the browser's tabs has this title, by its list of tabs.
async fn has_tab_titled(profile: &Path, title: &str) -> anyhow::Result<bool> {
    let port = std::fs::read_to_string(profile.join("DevToolsActivePort"))?;
    let port: u16 = port.lines().next().context("no port")?.parse()?;
    let request = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"GET /json/list HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
        let mut answer = Vec::new();
        let mut part = [0; 4096];
        // The browser leaves the connection open after its answer, so reading ends at the title.
        while !String::from_utf8_lossy(&answer).contains(title) {
            match stream.read(&mut part).await? {
                0 => return anyhow::Ok(false),
                read => answer.extend_from_slice(&part[..read]),
            }
        }
        Ok(true)
    };
    timeout(Duration::from_secs(1), request).await.unwrap_or(Ok(false))
}

fn signal(name: &str, group: u32) -> anyhow::Result<()> {
    let status =
        std::process::Command::new("kill").args([&format!("-{name}"), "--", &format!("-{group}")]).status();
    if status.context("kill")?.success() { Ok(()) } else { bail!("kill -{name} of a browser failed") }
}
