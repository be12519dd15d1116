//! The link to one browser: commands under deadlines of our own, and a death that everybody hears.

use std::future::Future;
use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::target::{EventTargetCreated, EventTargetDestroyed};
use chromiumoxide::error::CdpError;
use chromiumoxide::handler::HandlerConfig;
use chromiumoxide::listeners::EventStream;
use chromiumoxide::{Browser, Command};
use futures::StreamExt;
use tokio_util::sync::CancellationToken;

use super::process::BrowserError;
use crate::stage::StageError;

/// A connected browser.
#[derive(Debug)]
pub(super) struct Link {
    pub browser: Browser,
    /// Cancelled when the browser is gone.
    pub dead: CancellationToken,
}

impl Link {
    /// Connects; the handler runs in a task of its own, whose end, however it comes, is the browser's death.
    pub async fn connect(address: &str) -> Result<Self, BrowserError> {
        let config = HandlerConfig {
            ignore_https_errors: false,
            ignore_invalid_messages: true,
            // Its default would switch touch on; each tab sets its own size.
            viewport: None,
            ..HandlerConfig::default()
        };
        let (browser, mut handler) = Browser::connect_with_config(address, config).await.map_err(broken)?;
        let dead = CancellationToken::new();
        let death = dead.clone().drop_guard();
        tokio::spawn(async move {
            let _death = death;
            while let Some(event) = handler.next().await {
                match event {
                    // One message of each network request cannot be read with this protocol version: no harm.
                    Ok(()) | Err(CdpError::InvalidMessage(..)) => {}
                    Err(_) => break,
                }
            }
        });
        Ok(Self { browser, dead })
    }

    /// A command to the browser itself.
    pub async fn call<T: Command>(
        &self,
        command: T,
        deadline: Duration,
        waited_for: &'static str,
    ) -> Result<T::Response, StageError> {
        let call = async { self.browser.execute(command).await.map(|response| response.result) };
        within(deadline, waited_for, &self.dead, call).await
    }

    /// Targets as they come and go.
    pub async fn targets(
        &self,
    ) -> Result<(EventStream<EventTargetCreated>, EventStream<EventTargetDestroyed>), BrowserError> {
        let created = self.browser.event_listener::<EventTargetCreated>().await.map_err(broken)?;
        let destroyed = self.browser.event_listener::<EventTargetDestroyed>().await.map_err(broken)?;
        Ok((created, destroyed))
    }
}

/// Waits for a call no longer than its deadline or the browser's life.
pub(super) async fn within<T>(
    deadline: Duration,
    waited_for: &'static str,
    dead: &CancellationToken,
    call: impl Future<Output = Result<T, CdpError>>,
) -> Result<T, StageError> {
    tokio::select! {
        biased;
        () = dead.cancelled() => Err(StageError::BrowserDead),
        outcome = tokio::time::timeout(deadline, call) => match outcome {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(failed(waited_for, &error)),
            Err(_) => Err(StageError::PageHang { waited_for }),
        },
    }
}

/// What an error of the protocol says of page and browser.
pub(super) fn failed(waited_for: &'static str, error: &CdpError) -> StageError {
    match error {
        CdpError::Timeout => StageError::PageHang { waited_for },
        CdpError::Ws(_) | CdpError::ChannelSendError(_) | CdpError::NoResponse => StageError::BrowserDead,
        CdpError::Chrome(answer) if answer.message.contains("crashed") => StageError::PageCrash,
        other => StageError::Failed(format!("{waited_for}: {other}")),
    }
}

pub(super) fn broken(error: impl std::fmt::Display) -> BrowserError {
    BrowserError::Link { what: error.to_string() }
}
