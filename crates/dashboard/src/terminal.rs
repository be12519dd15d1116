//! The same metrics in a terminal, for use over ssh: [`watch`] keeps a screen up to date,
//! [`RunSnapshot`] is one snapshot, as lines or as JSON.
//!
//! A snapshot is the answers of `/api/overview`, `/api/job` and `/api/sessions`, from a served
//! dashboard or from a run directory (`source.rs`). What is rendered depends on the snapshot and on
//! the user's keys (`view.rs`).

mod source;
#[cfg(test)]
mod tests;
mod view;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ratatui::backend::Backend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::{Frame, Terminal};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use source::SnapshotFollower;
pub use source::{DashboardAddress, WatchError, WatchSource};
use view::TerminalScreen;

/// One snapshot of a run: the answers, and their time.
#[derive(Debug, Clone)]
pub struct RunSnapshot {
    overview: Value,
    sessions: Value,
    job: Value,
    /// Microseconds since the Unix epoch, by the local clock.
    at_micros: i64,
}

impl RunSnapshot {
    pub(crate) fn new(overview: Value, sessions: Value, job: Value) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { overview, sessions, job, at_micros: now.as_micros() as i64 }
    }

    /// The answers as JSON, for programs.
    pub fn to_json(&self) -> Value {
        json!({ "overview": self.overview, "sessions": self.sessions, "job": self.job })
    }

    /// All pages, one below the other, for output without a terminal. `width` in columns.
    pub fn lines(&self, width: u16) -> Vec<String> {
        view::all_pages(self, width).iter().map(|line| line.to_string().trim_end().to_owned()).collect()
    }
}

/// Reads one snapshot, complete.
pub async fn read_snapshot(source: &WatchSource) -> Result<RunSnapshot, WatchError> {
    source::once(source).await
}

/// Updates the terminal until `q` or `stop`, then restores it.
pub async fn watch(source: &WatchSource, stop: CancellationToken) -> Result<(), WatchError> {
    let (keys, pressed) = mpsc::channel(KEYS_MAX);
    let reading = stop.child_token();
    let cancelled = reading.clone();
    let mut terminal = ratatui::try_init()?;
    let reader = std::thread::Builder::new().name("keys".into()).spawn(move || read_keys(&keys, &cancelled));
    let watched = match &reader {
        Ok(_) => watch_loop(&mut terminal, source, pressed, &stop).await,
        Err(_) => Ok(()),
    };
    reading.cancel();
    ratatui::try_restore()?;
    // It polls ten times a second; a terminal that is gone has ended it.
    let reader = reader?;
    drop(tokio::task::spawn_blocking(move || reader.join()).await);
    watched
}

/// Most queued keys: a key may be held down.
const KEYS_MAX: usize = 32;
/// Time between two checks of the key reader for the end.
const KEY_POLL: Duration = Duration::from_millis(100);

/// A command of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UserCommand {
    /// Redraw: the window has another size.
    Redraw,
    /// Show the page with this number, or the pages after it.
    Page(usize),
    /// Go this many pages forward.
    Turn(isize),
    /// Scroll by this many lines.
    Scroll(isize),
    /// Go to the first line, or to the last.
    Edge(bool),
    Quit,
}

/// The main loop: waits for a snapshot, a command or the clock, then renders a frame.
async fn watch_loop<B: Backend>(
    terminal: &mut Terminal<B>,
    source: &WatchSource,
    mut pressed: mpsc::Receiver<UserCommand>,
    stop: &CancellationToken,
) -> Result<(), WatchError>
where
    B::Error: Send + Sync + 'static,
{
    let (looks, mut snapshots) = mpsc::channel(1);
    let looking = tokio::spawn(poll_snapshots(source.clone(), looks));
    let mut screen = TerminalScreen::default();
    let watched = loop {
        let drawn = terminal.draw(|frame: &mut Frame<'_>| screen.draw(frame));
        if let Err(why) = drawn {
            break Err(std::io::Error::other(why).into());
        }
        tokio::select! {
            () = stop.cancelled() => break Ok(()),
            wish = pressed.recv() => match wish {
                // A closed terminal sends no more keys.
                None | Some(UserCommand::Quit) => break Ok(()),
                Some(wish) => screen.apply(wish),
            },
            Some(look) = snapshots.recv() => screen.update(look),
            // Redraws, because elapsed times change.
            () = SnapshotFollower::rest() => {}
        }
    };
    looking.abort();
    watched
}

/// Reads snapshots continuously; waits while the renderer is slow.
async fn poll_snapshots(source: WatchSource, looks: mpsc::Sender<Result<RunSnapshot, WatchError>>) {
    let mut follower = SnapshotFollower::new(&source);
    while looks.send(follower.next().await).await.is_ok() {
        SnapshotFollower::rest().await;
    }
}

fn read_keys(keys: &mpsc::Sender<UserCommand>, stop: &CancellationToken) {
    while !stop.is_cancelled() {
        let wish = match event::poll(KEY_POLL) {
            Ok(true) => event::read().ok().and_then(|event| command_for(&event)),
            Ok(false) => None,
            Err(_) => return,
        };
        if wish.is_some_and(|wish| keys.blocking_send(wish).is_err()) {
            return;
        }
    }
}

/// The command of a key.
fn command_for(event: &Event) -> Option<UserCommand> {
    let key = match event {
        Event::Resize(..) => return Some(UserCommand::Redraw),
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        _ => return None,
    };
    Some(match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => UserCommand::Quit,
        KeyCode::Char('q') | KeyCode::Esc => UserCommand::Quit,
        KeyCode::Char(digit @ '1'..='9') => UserCommand::Page(digit as usize - '1' as usize),
        KeyCode::Right | KeyCode::Tab | KeyCode::Char('l') => UserCommand::Turn(1),
        KeyCode::Left | KeyCode::BackTab | KeyCode::Char('h') => UserCommand::Turn(-1),
        KeyCode::Down | KeyCode::Char('j') => UserCommand::Scroll(1),
        KeyCode::Up | KeyCode::Char('k') => UserCommand::Scroll(-1),
        KeyCode::PageDown | KeyCode::Char(' ') => UserCommand::Scroll(10),
        KeyCode::PageUp => UserCommand::Scroll(-10),
        KeyCode::Home | KeyCode::Char('g') => UserCommand::Edge(false),
        KeyCode::End | KeyCode::Char('G') => UserCommand::Edge(true),
        _ => return None,
    })
}
