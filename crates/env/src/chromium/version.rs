//! Asks a browser program for its version, without starting a browser: finds in a tenth of a second
//! what a start would find later.

use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use furrow_rollout::WallsLevel;
use rustix::process::{Pid, Signal, kill_process};

use super::error::BrowserError;
use super::selftest::check_version;
use super::user::{OwnerIds, as_user, owner};
use super::walls::BrowserWalls;
use super::{libraries, process};
use crate::config::BrowserConfig;

/// It takes 80 ms; a cold disk takes a second.
const VERSION_DEADLINE: Duration = Duration::from_secs(10);

/// Becomes the program `$1`, with the search path `$0` for its libraries if that is not empty.
const ASK: &str = "[ -z \"$0\" ] || export LD_LIBRARY_PATH=\"$0\"; exec \"$1\" --version";

/// Characters of the answer of a program that is not a browser.
const ANSWER_CHARS_MAX: usize = 120;

/// Finds the browser of a job on this machine, the user it runs as and what it needs, and returns
/// its name and version. Blocks for at most ten seconds; nothing it starts stays.
pub fn browser_version(config: &BrowserConfig) -> Result<String, BrowserError> {
    let owner = owner(config)?;
    let program = process::find_program(config.path.as_deref())?;
    if config.walls_min > WallsLevel::Basic {
        BrowserWalls::survey(config)?.check(config)?;
    }
    libraries::check(config, owner)?;
    let output = ask(&program, config, owner)?;
    let answer = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let messages = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if !output.status.success() && answer.is_empty() {
        return Err(libraries::explain_start_failure(&program, messages, config, owner));
    }
    let Some(version) = chromium_version(&answer) else {
        let answer = answer.lines().next().unwrap_or_default().chars().take(ANSWER_CHARS_MAX).collect();
        return Err(BrowserError::NotChromium { path: program, answer });
    };
    check_version(&format!("Chromium/{version}"))?;
    Ok(format!("Chromium {version}"))
}

/// The version in an answer such as `Chromium 156.0.8078.79` or `Google Chrome for Testing 150.0`.
fn chromium_version(answer: &str) -> Option<&str> {
    let names_it = ["Chromium", "Chrome"].iter().any(|name| answer.contains(name));
    let is_version = |part: &&str| part.contains('.') && part.starts_with(|c: char| c.is_ascii_digit());
    answer.split(|c: char| c.is_whitespace() || c == '/').find(is_version).filter(|_| names_it)
}

fn ask(program: &Path, config: &BrowserConfig, owner: OwnerIds) -> Result<Output, BrowserError> {
    let mut command = as_user(owner, config);
    command.args(["/bin/sh", "-c", ASK]).arg(libraries::search_path(config)).arg(program);
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = |source| BrowserError::Io {
        what: "ask the browser for its version (is setpriv of util-linux there?)",
        source,
    };
    let (answers, answered) = sync_channel(1);
    let (started, pid) = sync_channel(1);
    // The program dies with the thread that starts it, so this thread waits for its end, too.
    let asking = std::thread::Builder::new().name("browser-version".into());
    asking
        .spawn(move || {
            let output = command.spawn().and_then(|child| {
                // The receiver is gone if the caller has stopped waiting; the program then ends by
                // itself or with this process.
                started.send(child.id()).ok();
                child.wait_with_output()
            });
            answers.send(output).ok();
        })
        .map_err(failed)?;
    match answered.recv_timeout(VERSION_DEADLINE) {
        Ok(output) => output.map_err(failed),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            if let Some(pid) = pid.try_recv().ok().and_then(|pid| Pid::from_raw(pid as i32)) {
                // An error means that it has just ended.
                kill_process(pid, Signal::KILL).ok();
            }
            let answer = format!("nothing within {} s", VERSION_DEADLINE.as_secs());
            Err(BrowserError::NotChromium { path: program.to_owned(), answer })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EnvFile;

    #[test]
    fn versions_are_found_in_what_browsers_print() {
        for (answer, want) in [
            ("Chromium 156.0.8078.79", Some("156.0.8078.79")),
            ("Google Chrome for Testing 150.0.1.2 unknown", Some("150.0.1.2")),
            ("HeadlessChrome/151.0.1.2", Some("151.0.1.2")),
            ("true (GNU coreutils) 9.4", None),
            ("Chromium", None),
            ("", None),
        ] {
            assert_eq!(chromium_version(answer), want, "{answer}");
        }
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut EnvFile), parts: &[&str]) {
        let mut file = EnvFile::default();
        change(&mut file);
        let config = file.check(Path::new("/")).unwrap().browser;
        let text = browser_version(&config).unwrap_err().to_string();
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    }

    #[test]
    fn what_is_no_browser_is_refused_with_its_answer() {
        refused(|file| file.browser = Some("/nope".into()), &["env.browser", "/nope", "absent"]);
        refused(|file| file.browser = Some("/bin/true".into()), &["env.browser", "/bin/true", "--version"]);
        refused(|file| file.browser = Some("/etc/passwd".into()), &["env.browser", "not an executable"]);
    }

    /// Only root looks the user up.
    #[test]
    fn a_missing_user_is_named_and_another_one_is_suggested() {
        if rustix::process::geteuid().is_root() {
            refused(
                |file| file.browser_user = "no-such-user".into(),
                &["env.browser_user", "\"no-such-user\""],
            );
        }
    }
}
