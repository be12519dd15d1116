//! Finds a headless Chromium and starts it in a folder, to render the project's own pages.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use furrow_env::LOOKED_FOR;
use tokio::process::Command;

/// The named program, or the first one installed.
pub fn find(named: Option<&Path>) -> Option<PathBuf> {
    let found = || LOOKED_FOR.iter().map(PathBuf::from).find(|path| path.is_file());
    named.map(Path::to_owned).or_else(found)
}

/// A command that starts the program with its profile in this folder; callers add the page and the
/// window's size.
pub fn command(program: &Path, folder: &Path) -> std::io::Result<Command> {
    let mut command = Command::new(program);
    command.args(["--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
    // The owner of a new folder is this process' user: Chromium starts as root only without its
    // sandbox.
    if std::fs::metadata(folder)?.uid() == 0 {
        command.arg("--no-sandbox");
    }
    command.arg(format!("--user-data-dir={}", profile(folder).display())).stdin(Stdio::null());
    Ok(command)
}

pub fn profile(folder: &Path) -> PathBuf {
    folder.join("profile")
}
