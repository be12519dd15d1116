//! The same metrics in a terminal, for use over ssh: [`watch`] keeps a screen up to date,
//! [`RunSnapshot`] is one snapshot, as lines or as JSON.
//!
//! A snapshot is the answers of `/api/overview`, `/api/job` and `/api/sessions`, from a served
//! dashboard or from a run directory (`source.rs`). What is rendered depends on the snapshot and on
//! the user's keys (`view.rs`).

mod keys;
mod snapshot;
mod source;
#[cfg(test)]
mod tests;
mod view;

use ratatui::backend::Backend;
use ratatui::{Frame, Terminal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use keys::{UserCommand, read_keys};
pub use snapshot::RunSnapshot;
use source::SnapshotFollower;
pub use source::{DashboardAddress, WatchError, WatchSource};
use view::TerminalScreen;

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
