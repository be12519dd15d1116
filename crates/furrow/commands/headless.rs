//! A headless Chromium that shows pages of our own: found, and started in a folder.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use furrow_env::LOOKED_FOR;
use tokio::process::Command;

/// The program: what is named, or the first that is there.
pub fn find(named: Option<&Path>) -> Option<PathBuf> {
    let found = || LOOKED_FOR.iter().map(PathBuf::from).find(|path| path.is_file());
    named.map(Path::to_owned).or_else(found)
}

/// Starts it with its profile in this folder. What it shows and how large is added to it.
pub fn command(program: &Path, folder: &Path) -> std::io::Result<Command> {
    let mut command = Command::new(program);
    command.args(["--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
    // Whose folder it is tells who we are: as root Chromium starts without its sandbox only.
    if std::fs::metadata(folder)?.uid() == 0 {
        command.arg("--no-sandbox");
    }
    command.arg(format!("--user-data-dir={}", profile(folder).display())).stdin(Stdio::null());
    Ok(command)
}

/// Where it keeps what it writes.
pub fn profile(folder: &Path) -> PathBuf {
    folder.join("profile")
}
