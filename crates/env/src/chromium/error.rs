//! Why a browser is not available.

use std::path::PathBuf;

use furrow_rollout::WallsLevel;

/// Paths where the program is searched if the job does not name it.
pub const LOOKED_FOR: &[&str] = &[
    "/usr/lib/chromium/chromium-headless-shell",
    "/usr/lib/chromium-browser/headless_shell",
    "/usr/lib/chromium/headless_shell",
    "/opt/chromium/chrome-headless-shell",
];

/// Why a browser is not available.
#[derive(Debug, thiserror::Error)]
pub enum BrowserError {
    /// No program was found.
    #[error(
        "env.browser: no Chromium headless shell found (looked for {LOOKED_FOR:?}); on Debian `apt-get install chromium-headless-shell`, elsewhere set env.browser to the program"
    )]
    NotFound,
    /// The configured program cannot be started.
    #[error("env.browser: {path} is {what}; name the program itself, such as {}", LOOKED_FOR[0])]
    NoProgram {
        path: PathBuf,
        /// What the path is instead of a program.
        what: &'static str,
    },
    /// The configured program is another one.
    #[error(
        "env.browser: {path} is not Chromium: asked for its --version, it answered {answer:?}; name Chromium's \
         headless shell, such as {}",
        LOOKED_FOR[0]
    )]
    NotChromium {
        path: PathBuf,
        /// The first line of its answer.
        answer: String,
    },
    /// Libraries or fonts of the job cannot be used.
    #[error("{key}: {path} {what}")]
    Given {
        key: &'static str,
        /// The folder or file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        what: String,
    },
    /// Shared libraries of the program are missing.
    #[error(
        "the browser {path} needs shared libraries that are not found: {missing}; install them, or name the folder that holds them in env.browser_libraries ({message})"
    )]
    MissingLibraries {
        path: PathBuf,
        /// Names of the missing libraries.
        missing: String,
        message: String,
    },
    /// The machine refuses user namespaces, which the sandbox needs.
    #[error(
        "the browser {path} cannot make its sandbox: user namespaces are refused here; allow them, or set env.sandbox = false where the container is the sandbox ({messages})"
    )]
    Sandbox { path: PathBuf, messages: String },
    /// The job asks for more walls than the machine has.
    #[error(
        "env.walls = {:?}: browsers of this worker are shut off to the level {:?} alone; they lack {missing}. \
         Or accept this with env.walls = \"report\"",
        wanted.as_str(),
        level.as_str()
    )]
    Walls {
        /// The least that the job accepts.
        wanted: WallsLevel,
        /// What the worker can build.
        level: WallsLevel,
        /// What is missing, why, and what to do.
        missing: String,
    },
    /// The user to run as does not exist.
    #[error(
        "env.browser_user: there is no ordinary user {user:?} on this machine; {}",
        suggested.as_ref().map_or_else(
            || "create one, as with `useradd --system furrow`, and name it".to_owned(),
            |name| format!("name another one, such as {name:?}")
        )
    )]
    NoUser {
        /// Name of the user.
        user: String,
        /// An ordinary user of this machine.
        suggested: Option<String>,
    },
    /// A directory or process could not be created.
    #[error("cannot {what}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        source: std::io::Error,
    },
    /// The network namespace of a browser could not be made, although others could.
    #[error("the network namespace of a browser could not be made: {why}")]
    Network { why: String },
    /// The browser ended or did not answer in time.
    #[error("the browser {path} did not start: {}", described(messages))]
    Start { path: PathBuf, messages: String },
    /// The browser's version is not supported.
    #[error("env.browser: {found} is too old; Furrow needs Chromium {wanted} or newer")]
    Version {
        /// The version that it reports.
        found: String,
        /// Oldest supported major version.
        wanted: u32,
    },
    /// The browser failed the self-test.
    #[error("the browser failed its self-test: {what}")]
    SelfTest {
        /// The part of the test that failed.
        what: String,
    },
    /// The protocol link broke.
    #[error("the link to the browser broke: {what}")]
    Link {
        /// How the link broke.
        what: String,
    },
}

/// The messages of a browser, or that there are none.
fn described(messages: &str) -> &str {
    match messages.trim() {
        "" => "it ended without a message; see whether `--version` of this program names Chromium",
        messages => messages,
    }
}

impl BrowserError {
    /// Whether another attempt may succeed: all other errors need a person.
    pub(super) fn is_transient(&self) -> bool {
        // Browsers that are just ending may use up the namespaces.
        matches!(
            self,
            Self::Io { .. }
                | Self::Network { .. }
                | Self::Start { .. }
                | Self::Sandbox { .. }
                | Self::SelfTest { .. }
                | Self::Link { .. }
        )
    }
}
