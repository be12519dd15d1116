//! Draws plots as PNG in a headless Chromium: the program that collecting needs anyway, with the fonts of its screenshots, so that no
//! second way of drawing and no font is part of the binary.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use furrow_dashboard::Picture;
use tokio::process::Command;

use crate::Failure;
use crate::commands::headless;
use crate::commands::scratch::Scratch;

/// A picture takes half a second, on a busy machine some.
const DEADLINE: Duration = Duration::from_secs(60);
/// Pixels of the picture to each of the page, so that it can be printed.
const SCALE: u32 = 2;

/// The program: what is named, or the first that is there.
pub fn browser(named: Option<&Path>) -> Result<PathBuf, Failure> {
    headless::find(named).filter(|path| path.is_file()).ok_or_else(|| {
        let told = match named {
            Some(path) => format!("--browser: {} is not there", path.display()),
            None => "--png: no Chromium headless shell was found; install it (apt-get install chromium-headless-shell) or name it with --browser"
                .to_owned(),
        };
        Failure::Input(vec![told])
    })
}

/// A PNG of a page that fills a window of its size.
pub async fn draw(browser: &Path, picture: &Picture) -> Result<Vec<u8>, Failure> {
    let scratch = Scratch::make(&std::env::temp_dir())?;
    let folder = scratch.fresh(picture.name)?;
    let (page, drawn) = (folder.join("plot.html"), folder.join("plot.png"));
    std::fs::write(&page, &picture.html)?;
    let mut command = headless::command(browser, &folder)?;
    command
        .arg("--hide-scrollbars")
        .arg(format!("--window-size={},{}", picture.width, picture.height))
        .arg(format!("--force-device-scale-factor={SCALE}"))
        .arg(format!("--screenshot={}", drawn.display()))
        .arg(format!("file://{}", page.display()))
        .kill_on_drop(true);
    Ok(shot(command, &drawn)
        .await
        .with_context(|| format!("{} drew no picture of {}", browser.display(), picture.name))?)
}

async fn shot(mut command: Command, drawn: &Path) -> anyhow::Result<Vec<u8>> {
    let Ok(ended) = tokio::time::timeout(DEADLINE, command.output()).await else {
        bail!("it took longer than {} s", DEADLINE.as_secs());
    };
    let said = ended?.stderr;
    std::fs::read(drawn).with_context(|| {
        let said = String::from_utf8_lossy(&said);
        said.lines().last().unwrap_or("it said nothing").chars().take(300).collect::<String>()
    })
}
