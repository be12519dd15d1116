//! Somebody who looks: a browser of its own with one page open, which can be stopped as a machine that sleeps stops one.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::time::{Instant, sleep, timeout};

use crate::commands::headless;

/// A browser that shows a page.
pub struct Viewer {
    child: Child,
    /// Its id, which is that of the group of all its processes.
    pid: u32,
}

/// For a browser to start and its page to be drawn.
const PATIENCE: Duration = Duration::from_secs(60);

impl Viewer {
    /// Opens a page and waits until its title is this.
    pub async fn open(program: &Path, folder: &Path, url: &str, title: &str) -> anyhow::Result<Self> {
        let mut command = headless::command(program, folder)?;
        command.args(["--remote-debugging-port=0", "--window-size=1280,860", url]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
        let pid = child.id().context("the browser is gone")?;
        let viewer = Self { child, pid };
        let deadline = Instant::now() + PATIENCE;
        while !is_shown(&headless::profile(folder), title).await.unwrap_or(false) {
            if Instant::now() > deadline {
                bail!("the browser never showed {title:?} at {url}");
            }
            sleep(Duration::from_millis(200)).await;
        }
        Ok(viewer)
    }

    /// Stops all its processes where they stand: connections stay open and nobody reads them.
    pub fn stall(&self) -> anyhow::Result<()> {
        signal("STOP", self.pid)
    }

    /// Ends it.
    pub async fn close(mut self) -> anyhow::Result<()> {
        signal("KILL", self.pid)?;
        self.child.wait().await?;
        Ok(())
    }
}

impl Drop for Viewer {
    /// After an error it ends here; one that was closed has no process any more.
    fn drop(&mut self) {
        if self.child.id().is_some() {
            signal("KILL", self.pid).ok();
        }
    }
}

/// Whether one of the browser's tabs has this title: its list of tabs says so.
async fn is_shown(profile: &Path, title: &str) -> anyhow::Result<bool> {
    let port = std::fs::read_to_string(profile.join("DevToolsActivePort"))?;
    let port: u16 = port.lines().next().context("no port")?.parse()?;
    let asked = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"GET /json/list HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
        let (mut answer, mut part) = (Vec::new(), [0; 4096]);
        // The browser leaves the connection open after its answer, so what is looked for ends it.
        while !String::from_utf8_lossy(&answer).contains(title) {
            match stream.read(&mut part).await? {
                0 => return anyhow::Ok(false),
                read => answer.extend_from_slice(&part[..read]),
            }
        }
        Ok(true)
    };
    timeout(Duration::from_secs(1), asked).await.unwrap_or(Ok(false))
}

fn signal(name: &str, group: u32) -> anyhow::Result<()> {
    let status =
        std::process::Command::new("kill").args([&format!("-{name}"), "--", &format!("-{group}")]).status();
    if status.context("kill")?.success() { Ok(()) } else { bail!("kill -{name} of a browser failed") }
}
