//! Sets up logging: every event as one JSON line in the run's log file, and a readable line on the
//! terminal.
//!
//! The file is opened for appending and each line is one unbuffered write. So lines of several
//! processes do not mix, and what a process logged before it was killed is kept: the kernel has it.
//! `log_writer.rs` writes them, and `rotation.rs` sets a full file aside.

use std::io::{self, IsTerminal};
use std::panic;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tracing_subscriber::filter::{EnvFilter, LevelFilter, ParseError};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry};

use crate::config::{Level, TelemetryConfig};
use crate::labels::{Label, Role};
use crate::log_writer::LogWriter;
use crate::names::{event, process_metrics};
use crate::rotation::{RotatingFile, RotationConfig};

/// Where this process logs to.
#[derive(Debug)]
pub struct LogTargets {
    file: Option<(PathBuf, Level, RotationConfig)>,
    stderr_level: Level,
}

/// Why logging could not be set up.
#[derive(Debug, Error)]
pub enum LogError {
    /// The log file cannot be written.
    #[error("cannot open the log file {path:?}: its folder must exist or be creatable, and be writable")]
    Open { path: PathBuf, source: io::Error },
    /// The variable is not a valid filter.
    #[error(
        "{FILTER_VARIABLE}={text:?} is not a filter; use a level, or a list such as info,furrow_env=debug"
    )]
    Filter {
        /// Value of the variable.
        text: String,
        source: ParseError,
    },
    /// Logging was set up before.
    #[error("logging is already set up in this process")]
    AlreadyStarted,
}

/// Environment variable that replaces both levels.
const FILTER_VARIABLE: &str = "FURROW_LOG";

/// Crates that log too much. chromiumoxide warns once per network request (a message of newer
/// browsers that it cannot read), so a busy page would flood the log, and reports an error when a
/// closed browser disconnects; `furrow_env` logs what happens to browsers. The HTTP stack logs
/// every frame.
const QUIET: &str = "chromiumoxide=off,h2=warn,hyper=warn,hyper_util=warn,tonic=warn,tower=warn";

/// Log file of a process in a run directory: `<run>/logs/<role>.jsonl`.
pub fn log_path(run_dir: &Path, role: Role) -> PathBuf {
    run_dir.join("logs").join(role.value()).with_extension("jsonl")
}

impl LogTargets {
    /// Logs to the terminal only.
    pub fn to_stderr(level: Level) -> Self {
        Self { file: None, stderr_level: level }
    }

    /// Logs to a file and to the terminal.
    pub fn to_file(path: PathBuf, config: &TelemetryConfig) -> Self {
        Self { file: Some((path, config.log_level, config.rotation)), stderr_level: config.stderr_level }
    }

    /// Starts logging for the rest of the process. Panics are logged, too, before they are printed
    /// as usual.
    pub fn start(self) -> Result<(), LogError> {
        self.start_with(io::stderr, io::stderr().is_terminal())
    }

    /// The same with another writer for the terminal, such as one that moves a progress bar aside.
    pub fn start_with<W>(self, terminal: W, colours: bool) -> Result<(), LogError>
    where
        W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
    {
        let chosen = std::env::var(FILTER_VARIABLE).ok();
        let file = match &self.file {
            Some((path, level, rotation)) => {
                Some(json_layer(open(path, *rotation)?).with_filter(filter(*level, chosen.as_deref())?))
            }
            None => None,
        };
        let terminal = fmt::layer().compact().with_ansi(colours).with_target(false).with_writer(terminal);
        // Errors of a closed terminal are ignored: reporting them there would panic.
        let terminal =
            terminal.log_internal_errors(false).with_filter(filter(self.stderr_level, chosen.as_deref())?);
        Registry::default().with(file).with(terminal).try_init().map_err(|_| LogError::AlreadyStarted)?;
        log_panics();
        Ok(())
    }
}

/// Opens the file for appending; creates its directory if missing.
fn open(path: &Path, rotation: RotationConfig) -> Result<LogWriter, LogError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let opened = RotatingFile::open(path, folder, rotation).and_then(LogWriter::start);
    opened.map_err(|source| LogError::Open { path: path.to_owned(), source })
}

/// One flat JSON object per line: `timestamp`, `level`, `target`, `message`, and the event's own
/// fields beside them.
fn json_layer<S>(writer: LogWriter) -> impl Layer<S>
where
    S: tracing::Subscriber + for<'s> LookupSpan<'s>,
{
    let format = fmt::layer().json().flatten_event(true).with_current_span(false).with_span_list(false);
    format.with_writer(writer)
}

/// The level, the quiet list, then the chosen filter: later parts win, so a choice can enable even
/// the quiet crates.
fn filter(level: Level, chosen: Option<&str>) -> Result<EnvFilter, LogError> {
    let chosen = chosen.unwrap_or_default().trim();
    let level = LevelFilter::from(level);
    EnvFilter::builder()
        .parse(format!("{level},{QUIET},{chosen}"))
        .map_err(|source| LogError::Filter { text: chosen.to_owned(), source })
}

/// Also logs a panic of a task, which otherwise only the terminal shows.
fn log_panics() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let location = info.location().map(|at| format!("{}:{}", at.file(), at.line()));
        tracing::error!(event = event::PANICKED, location, reason = info.payload_as_str(), "panicked");
        process_metrics().panics.add(1);
        print(info);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(level: Level, chosen: Option<&str>, want: &[&str]) {
        let text = filter(level, chosen).unwrap().to_string();
        let is_quiet = |part: &&str| QUIET.split(',').any(|quiet| quiet == *part);
        let (kept, loud): (Vec<_>, Vec<_>) = text.split(',').partition(is_quiet);
        assert_eq!(loud, want, "{text}");
        let overruled = want.iter().filter(|part| part.starts_with("chromiumoxide")).count();
        assert_eq!(kept.len(), QUIET.split(',').count() - overruled, "{text}");
    }

    #[test]
    fn the_variable_replaces_the_level_and_keeps_the_quiet_list() {
        check(Level::Info, None, &["info"]);
        check(Level::Trace, Some(" "), &["trace"]);
        check(Level::Info, Some("debug"), &["debug"]);
        check(Level::Warn, Some("furrow_env=trace"), &["furrow_env=trace", "warn"]);
        check(Level::Warn, Some("info,furrow_env=trace"), &["furrow_env=trace", "info"]);
        check(Level::Info, Some("chromiumoxide=debug"), &["chromiumoxide=debug", "info"]);
    }

    #[test]
    fn a_variable_that_is_no_filter_is_refused_with_the_remedy() {
        let error = filter(Level::Info, Some("furrow=loud")).unwrap_err().to_string();
        assert_eq!(
            error,
            "FURROW_LOG=\"furrow=loud\" is not a filter; use a level, or a list such as info,furrow_env=debug"
        );
    }

    #[test]
    fn a_role_names_its_file() {
        assert_eq!(log_path(Path::new("r"), Role::Env), Path::new("r/logs/env.jsonl"));
    }
}
