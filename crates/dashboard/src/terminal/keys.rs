//! Keys become commands of the user.

use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

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

/// Sends the commands of the keys until `stop`, or until the receiver is gone. Blocks.
pub(super) fn read_keys(keys: &mpsc::Sender<UserCommand>, stop: &CancellationToken) {
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
