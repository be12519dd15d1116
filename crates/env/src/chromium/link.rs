//! The link to one browser: commands with their own deadlines, and a notification of the browser's
//! death.

use std::future::Future;
use std::time::Duration;

use chromiumoxide::cdp::IntoEventKind;
use chromiumoxide::cdp::browser_protocol::target::{EventTargetCreated, EventTargetDestroyed};
use chromiumoxide::error::CdpError;
use chromiumoxide::handler::HandlerConfig;
use chromiumoxide::listeners::EventStream;
use chromiumoxide::{Browser, Command, Page};
use futures::StreamExt;
use tokio_util::sync::CancellationToken;

use super::devtools_relay::{DevToolsPipe, DevToolsRelay};
use super::error::BrowserError;
use crate::environment::EnvironmentError;

#[derive(Debug)]
pub(super) struct BrowserLink {
    pub browser: Browser,
    /// Cancelled when the browser is gone.
    pub dead: CancellationToken,
    _relay: DevToolsRelay,
}

impl BrowserLink {
    /// Connects; the handler runs in its own task, whose end means that the browser is dead.
    pub(super) async fn connect(pipe: DevToolsPipe) -> Result<Self, BrowserError> {
        let relay = DevToolsRelay::open(pipe).await.map_err(link_error)?;
        let config = HandlerConfig {
            ignore_https_errors: false,
            ignore_invalid_messages: true,
            // The default would enable touch; each tab sets its own size.
            viewport: None,
            ..HandlerConfig::default()
        };
        let (browser, mut handler) =
            Browser::connect_with_config(relay.address(), config).await.map_err(link_error)?;
        let dead = CancellationToken::new();
        let death = dead.clone().drop_guard();
        tokio::spawn(async move {
            let _death = death;
            while let Some(event) = handler.next().await {
                match event {
                    // One message per network request cannot be parsed with this protocol version;
                    // it is not needed.
                    Ok(()) | Err(CdpError::InvalidMessage(..)) => {}
                    Err(_) => break,
                }
            }
        });
        Ok(Self { browser, dead, _relay: relay })
    }

    /// Sends a command to the browser itself.
    pub(super) async fn call<T: Command>(
        &self,
        command: T,
        deadline: Duration,
        waited_for: &'static str,
    ) -> Result<T::Response, EnvironmentError> {
        let call = async { self.browser.execute(command).await.map(|response| response.result) };
        within(deadline, waited_for, &self.dead, call).await
    }

    /// Events of targets that appear and disappear.
    pub(super) async fn targets(
        &self,
    ) -> Result<(EventStream<EventTargetCreated>, EventStream<EventTargetDestroyed>), BrowserError> {
        let created = self.browser.event_listener::<EventTargetCreated>().await.map_err(link_error)?;
        let destroyed = self.browser.event_listener::<EventTargetDestroyed>().await.map_err(link_error)?;
        Ok((created, destroyed))
    }
}

/// Waits for a call until its deadline or the browser's death.
pub(super) async fn within<T>(
    deadline: Duration,
    waited_for: &'static str,
    dead: &CancellationToken,
    call: impl Future<Output = Result<T, CdpError>>,
) -> Result<T, EnvironmentError> {
    tokio::select! {
        biased;
        () = dead.cancelled() => Err(EnvironmentError::BrowserDead),
        outcome = tokio::time::timeout(deadline, call) => match outcome {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(protocol_error(waited_for, &error)),
            Err(_) => Err(EnvironmentError::PageHang { waited_for }),
        },
    }
}

/// Subscribes to the page's events of one kind.
pub(super) async fn listen<T: IntoEventKind>(page: &Page) -> Result<EventStream<T>, EnvironmentError> {
    page.event_listener().await.map_err(|error| protocol_error("listening to the page", &error))
}

/// Converts a protocol error into an error about the page or the browser.
pub(super) fn protocol_error(waited_for: &'static str, error: &CdpError) -> EnvironmentError {
    match error {
        CdpError::Timeout => EnvironmentError::PageHang { waited_for },
        CdpError::Ws(_) | CdpError::ChannelSendError(_) | CdpError::NoResponse => {
            EnvironmentError::BrowserDead
        }
        CdpError::Chrome(answer) if answer.message.contains("crashed") => EnvironmentError::PageCrash,
        other => EnvironmentError::Failed(format!("{waited_for}: {other}")),
    }
}

pub(super) fn link_error(error: impl std::fmt::Display) -> BrowserError {
    BrowserError::Link { what: error.to_string() }
}
