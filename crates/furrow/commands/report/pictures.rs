//! Renders plots as PNG in a headless Chromium: the program that collecting needs anyway, with the
//! fonts of its screenshots, so that the binary holds neither a renderer nor a font.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use furrow_dashboard::PlotPicture;
use tokio::process::Command;

use crate::{CommandFailure, ScratchDir, headless};

/// A picture takes half a second, and several on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);
/// Pixels of the picture per pixel of the page, so that the picture can be printed.
const SCALE: u32 = 2;

/// The named program, or the first one installed.
pub(super) fn browser(named: Option<&Path>) -> Result<PathBuf, CommandFailure> {
    headless::find(named).filter(|path| path.is_file()).ok_or_else(|| {
        let program = match named {
            Some(path) => format!("--browser: {} does not exist; use the path of a Chromium", path.display()),
            None => "--png: no Chromium headless shell found; install it (apt-get install chromium-headless-shell) or use --browser FILE"
                .to_owned(),
        };
        CommandFailure::Input(vec![program])
    })
}

/// Returns a PNG of a page that fills a window of its size.
pub(super) async fn draw(browser: &Path, picture: &PlotPicture) -> Result<Vec<u8>, CommandFailure> {
    let scratch = ScratchDir::make(&std::env::temp_dir())?;
    let folder = scratch.fresh(picture.name)?;
    let page = folder.join("plot.html");
    let drawn = folder.join("plot.png");
    std::fs::write(&page, &picture.html)?;
    let mut command = headless::command(browser, &folder)?;
    command
        .arg("--hide-scrollbars")
        .arg(format!("--window-size={},{}", picture.width, picture.height))
        .arg(format!("--force-device-scale-factor={SCALE}"))
        .arg(format!("--screenshot={}", drawn.display()))
        .arg(format!("file://{}", page.display()))
        .kill_on_drop(true);
    Ok(capture(command, &drawn)
        .await
        .with_context(|| format!("{} rendered no picture of {}", browser.display(), picture.name))?)
}

async fn capture(mut command: Command, drawn: &Path) -> anyhow::Result<Vec<u8>> {
    let Ok(ended) = tokio::time::timeout(DEADLINE, command.output()).await else {
        bail!("it took longer than {} s", DEADLINE.as_secs());
    };
    let stderr = ended?.stderr;
    std::fs::read(drawn).with_context(|| {
        let stderr = String::from_utf8_lossy(&stderr);
        stderr.lines().last().unwrap_or("it printed nothing").chars().take(300).collect::<String>()
    })
}
