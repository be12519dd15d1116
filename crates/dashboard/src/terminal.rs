//! The same figures in a terminal, for people on ssh: [`watch`] keeps a screen up to date, [`Seen`] is one look, as lines or as JSON.
//!
//! A look is the answers of `/api/overview`, `/api/job` and `/api/sessions`, from a dashboard that is served somewhere or made here over a
//! run directory (`source.rs`). What is drawn of it is a function of the look and of what somebody chose by keys (`view.rs`).

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

use source::Follower;
pub use source::{DashboardAddress, WatchError, WatchSource};
use view::Screen;

/// One look at a run: the answers, and when they came.
#[derive(Debug, Clone)]
pub struct Seen {
    overview: Value,
    sessions: Value,
    job: Value,
    /// Microseconds since the Unix epoch, by the clock of whoever looks.
    at_micros: i64,
}

impl Seen {
    pub(crate) fn new(overview: Value, sessions: Value, job: Value) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { overview, sessions, job, at_micros: now.as_micros() as i64 }
    }

    /// For programs: the answers as they came.
    pub fn told(&self) -> Value {
        json!({ "overview": self.overview, "sessions": self.sessions, "job": self.job })
    }

    /// For people without a terminal: all pages, one below the other. `width` in columns.
    pub fn lines(&self, width: u16) -> Vec<String> {
        view::all_pages(self, width).iter().map(|line| line.to_string().trim_end().to_owned()).collect()
    }
}

/// What there is to see now, read to its end.
pub async fn look(source: &WatchSource) -> Result<Seen, WatchError> {
    source::once(source).await
}

/// Keeps the terminal up to date until `q` or `stop`, and leaves it as it was.
pub async fn watch(source: &WatchSource, stop: CancellationToken) -> Result<(), WatchError> {
    let (keys, pressed) = mpsc::channel(KEYS_MAX);
    let reading = stop.child_token();
    let told = reading.clone();
    let mut terminal = ratatui::try_init()?;
    let reader = std::thread::Builder::new().name("keys".into()).spawn(move || read_keys(&keys, &told));
    let watched = match &reader {
        Ok(_) => watch_on(&mut terminal, source, pressed, &stop).await,
        Err(_) => Ok(()),
    };
    reading.cancel();
    ratatui::try_restore()?;
    // It looks up ten times a second; a terminal that is gone has ended it.
    let reader = reader?;
    drop(tokio::task::spawn_blocking(move || reader.join()).await);
    watched
}

/// Keys that were pressed and not looked at yet: somebody leans on the keyboard.
const KEYS_MAX: usize = 32;
/// How often the reader of keys looks whether it shall end.
const GLANCE: Duration = Duration::from_millis(100);

/// What somebody wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// To see it again: the window has another size.
    Redraw,
    /// Another page: its number, or the next ones.
    Page(usize),
    /// So many pages further.
    Turn(isize),
    /// So many lines further.
    Scroll(isize),
    /// To the first line, or the last.
    Edge(bool),
    /// The end.
    Quit,
}

/// The loop: a look, a wish, or the clock, and then a frame.
async fn watch_on<B: Backend>(
    terminal: &mut Terminal<B>,
    source: &WatchSource,
    mut pressed: mpsc::Receiver<Wish>,
    stop: &CancellationToken,
) -> Result<(), WatchError>
where
    B::Error: Send + Sync + 'static,
{
    let (looks, mut seen) = mpsc::channel(1);
    let looking = tokio::spawn(look_on(source.clone(), looks));
    let mut screen = Screen::default();
    let watched = loop {
        let drawn = terminal.draw(|frame: &mut Frame<'_>| screen.draw(frame));
        if let Err(why) = drawn {
            break Err(std::io::Error::other(why).into());
        }
        tokio::select! {
            () = stop.cancelled() => break Ok(()),
            wish = pressed.recv() => match wish {
                // A terminal that is gone presses no more keys.
                None | Some(Wish::Quit) => break Ok(()),
                Some(wish) => screen.take(wish),
            },
            Some(look) = seen.recv() => screen.see(look),
            // What is told as a time since goes on.
            () = Follower::rest() => {}
        }
    };
    looking.abort();
    watched
}

/// Looks again and again. Where whoever draws is slow, nothing is read meanwhile.
async fn look_on(source: WatchSource, looks: mpsc::Sender<Result<Seen, WatchError>>) {
    let mut follower = Follower::new(&source);
    while looks.send(follower.next().await).await.is_ok() {
        Follower::rest().await;
    }
}

fn read_keys(keys: &mpsc::Sender<Wish>, stop: &CancellationToken) {
    while !stop.is_cancelled() {
        let wish = match event::poll(GLANCE) {
            Ok(true) => event::read().ok().and_then(|event| wish(&event)),
            Ok(false) => None,
            Err(_) => return,
        };
        if wish.is_some_and(|wish| keys.blocking_send(wish).is_err()) {
            return;
        }
    }
}

/// What a key means.
fn wish(event: &Event) -> Option<Wish> {
    let key = match event {
        Event::Resize(..) => return Some(Wish::Redraw),
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        _ => return None,
    };
    Some(match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Wish::Quit,
        KeyCode::Char('q') | KeyCode::Esc => Wish::Quit,
        KeyCode::Char(digit @ '1'..='9') => Wish::Page(digit as usize - '1' as usize),
        KeyCode::Right | KeyCode::Tab | KeyCode::Char('l') => Wish::Turn(1),
        KeyCode::Left | KeyCode::BackTab | KeyCode::Char('h') => Wish::Turn(-1),
        KeyCode::Down | KeyCode::Char('j') => Wish::Scroll(1),
        KeyCode::Up | KeyCode::Char('k') => Wish::Scroll(-1),
        KeyCode::PageDown | KeyCode::Char(' ') => Wish::Scroll(10),
        KeyCode::PageUp => Wish::Scroll(-10),
        KeyCode::Home | KeyCode::Char('g') => Wish::Edge(false),
        KeyCode::End | KeyCode::Char('G') => Wish::Edge(true),
        _ => return None,
    })
}
