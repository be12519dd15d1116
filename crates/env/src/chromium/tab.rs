//! One page of a context: commands under deadlines, and a watcher that answers what would otherwise block it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chromiumoxide::cdp::IntoEventKind;
use chromiumoxide::cdp::browser_protocol::emulation::{
    SetDeviceMetricsOverrideParams, SetFocusEmulationEnabledParams, SetLocaleOverrideParams,
    SetTimezoneOverrideParams,
};
use chromiumoxide::cdp::browser_protocol::inspector::EventTargetCrashed;
use chromiumoxide::cdp::browser_protocol::network::{
    EventLoadingFailed, EventLoadingFinished, EventRequestWillBeSent, ResourceType,
};
use chromiumoxide::cdp::browser_protocol::page::{
    DialogType, EventJavascriptDialogOpening, HandleJavaScriptDialogParams,
};
use chromiumoxide::cdp::browser_protocol::target::{CloseTargetParams, TargetId};
use chromiumoxide::cdp::js_protocol::runtime::TerminateExecutionParams;
use chromiumoxide::listeners::EventStream;
use chromiumoxide::{Command, Page};
use furrow_rollout::Size;
use futures::StreamExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::link::{Link, failed, within};
use crate::config::{BrowserConfig, Deadlines};
use crate::stage::StageError;

/// Requests in flight that are remembered; a page with more is not quiet anyway.
const IN_FLIGHT_MAX: usize = 1000;

/// An open page.
#[derive(Debug)]
pub(super) struct Tab {
    pub page: Page,
    pub deadlines: Deadlines,
    dead: CancellationToken,
    seen: Arc<Seen>,
    watcher: JoinHandle<()>,
}

/// What the watcher saw.
#[derive(Debug)]
struct Seen {
    crashed: CancellationToken,
    dialogs: AtomicU32,
    last_dialog: Mutex<String>,
    in_flight: watch::Sender<usize>,
}

/// The events of a page that somebody must answer at once, wherever its trajectory is.
struct Events {
    dialogs: EventStream<EventJavascriptDialogOpening>,
    crashes: EventStream<EventTargetCrashed>,
    begun: EventStream<EventRequestWillBeSent>,
    finished: EventStream<EventLoadingFinished>,
    failed: EventStream<EventLoadingFailed>,
}

impl Tab {
    /// Takes a page in hand: its dialogs are dismissed, its requests counted, its size, language and time zone set.
    pub async fn adopt(
        page: Page,
        link: &Link,
        viewport: Size,
        config: &BrowserConfig,
    ) -> Result<Self, StageError> {
        let events = Events {
            dialogs: listen(&page).await?,
            crashes: listen(&page).await?,
            begun: listen(&page).await?,
            finished: listen(&page).await?,
            failed: listen(&page).await?,
        };
        let seen = Arc::new(Seen {
            crashed: CancellationToken::new(),
            dialogs: AtomicU32::new(0),
            last_dialog: Mutex::default(),
            in_flight: watch::channel(0).0,
        });
        let watcher = tokio::spawn(watch(page.clone(), events, seen.clone(), config.deadlines.input));
        let tab = Self { page, deadlines: config.deadlines, dead: link.dead.clone(), seen, watcher };
        tab.dress(viewport, config).await?;
        Ok(tab)
    }

    /// A command to this page, answered within the deadline or not at all.
    pub async fn call<T: Command>(
        &self,
        command: T,
        deadline: Duration,
        waited_for: &'static str,
    ) -> Result<T::Response, StageError> {
        let call = async { self.page.execute(command).await.map(|response| response.result) };
        tokio::select! {
            biased;
            lost = self.lost() => Err(lost),
            outcome = within(deadline, waited_for, &self.dead, call) => outcome,
        }
    }

    /// What this page is to tell next, told within the deadline or not at all.
    pub async fn hear<T>(
        &self,
        event: impl Future<Output = Option<T>>,
        deadline: Duration,
        waited_for: &'static str,
    ) -> Result<T, StageError> {
        tokio::select! {
            biased;
            lost = self.lost() => Err(lost),
            outcome = tokio::time::timeout(deadline, event) => match outcome {
                Ok(Some(event)) => Ok(event),
                // Streams of events end with the link they come by.
                Ok(None) => Err(StageError::BrowserDead),
                Err(_) => Err(StageError::PageHang { waited_for }),
            },
        }
    }

    /// Waits until the page cannot be used any more, and says why. A browser that dies takes its pages along: that is told first.
    async fn lost(&self) -> StageError {
        tokio::select! {
            biased;
            () = self.dead.cancelled() => StageError::BrowserDead,
            () = self.seen.crashed.cancelled() => StageError::PageCrash,
        }
    }

    /// The page's target.
    pub fn target(&self) -> &TargetId {
        self.page.target_id()
    }

    /// Whether the page's process died.
    pub fn has_crashed(&self) -> bool {
        self.seen.crashed.is_cancelled()
    }

    /// An error if the page or its browser died.
    pub fn check(&self) -> Result<(), StageError> {
        if self.dead.is_cancelled() {
            Err(StageError::BrowserDead)
        } else if self.has_crashed() {
            Err(StageError::PageCrash)
        } else {
            Ok(())
        }
    }

    /// Dialogs dismissed so far, and the text of the last.
    pub fn dialogs(&self) -> (u32, String) {
        let last = self.seen.last_dialog.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (self.seen.dialogs.load(Ordering::Relaxed), last)
    }

    /// Requests in flight, as they change.
    pub fn in_flight(&self) -> watch::Receiver<usize> {
        self.seen.in_flight.subscribe()
    }

    /// First rung: stops whatever script runs. A looping page answers to this and to being closed, to nothing else.
    pub async fn stop_script(&self) -> Result<(), StageError> {
        self.call(TerminateExecutionParams {}, self.deadlines.input, "stopping the page's script")
            .await
            .map(drop)
    }

    /// Closes the page.
    pub async fn close(&self, link: &Link) -> Result<(), StageError> {
        let close = CloseTargetParams::new(self.target().clone());
        link.call(close, self.deadlines.input, "closing the page").await.map(drop)
    }

    async fn dress(&self, viewport: Size, config: &BrowserConfig) -> Result<(), StageError> {
        let deadline = self.deadlines.navigation;
        let size = SetDeviceMetricsOverrideParams::new(
            i64::from(viewport.width),
            i64::from(viewport.height),
            1.0,
            false,
        );
        let locale = SetLocaleOverrideParams { locale: Some(config.locale.replace('-', "_")) };
        let zone = SetTimezoneOverrideParams::new(config.timezone.clone());
        // Sent together: four round trips would cost a new page 10 ms more.
        let (size, locale, zone, focus) = tokio::join!(
            self.call(size, deadline, "setting the viewport"),
            self.call(locale, deadline, "setting the language"),
            self.call(zone, deadline, "setting the time zone"),
            self.call(SetFocusEmulationEnabledParams::new(true), deadline, "setting the focus"),
        );
        size.and(zone).and(focus)?;
        // A renderer takes one language; a second tab in it says that it has one already.
        if let Err(error @ (StageError::PageCrash | StageError::BrowserDead)) = locale {
            return Err(error);
        }
        Ok(())
    }
}

impl Drop for Tab {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

/// Events of one kind, as the page tells them.
pub(super) async fn listen<T: IntoEventKind>(page: &Page) -> Result<EventStream<T>, StageError> {
    page.event_listener().await.map_err(|error| failed("listening to the page", &error))
}

async fn watch(page: Page, mut events: Events, seen: Arc<Seen>, deadline: Duration) {
    let mut in_flight = HashSet::new();
    loop {
        tokio::select! {
            dialog = events.dialogs.next() => {
                let Some(dialog) = dialog else { return };
                dismiss(&page, &dialog, &seen, deadline).await;
            }
            crash = events.crashes.next() => {
                // The stream ends with the page, too: nothing can be asked of it any more.
                seen.crashed.cancel();
                if crash.is_none() { return }
            }
            begun = events.begun.next() => {
                let Some(begun) = begun else { return };
                if counts(&begun) && in_flight.len() < IN_FLIGHT_MAX {
                    in_flight.insert(begun.request_id.inner().clone());
                }
                seen.in_flight.send_replace(in_flight.len());
            }
            finished = events.finished.next() => {
                let Some(finished) = finished else { return };
                in_flight.remove(finished.request_id.inner());
                seen.in_flight.send_replace(in_flight.len());
            }
            failed = events.failed.next() => {
                let Some(failed) = failed else { return };
                in_flight.remove(failed.request_id.inner());
                seen.in_flight.send_replace(in_flight.len());
            }
        }
    }
}

/// A stream that never ends is no reason to wait.
fn counts(begun: &EventRequestWillBeSent) -> bool {
    !matches!(
        begun.r#type,
        Some(ResourceType::EventSource | ResourceType::WebSocket | ResourceType::Media | ResourceType::Ping)
    )
}

/// Says no, as a person in a hurry would; but lets a page be left.
async fn dismiss(page: &Page, dialog: &EventJavascriptDialogOpening, seen: &Seen, deadline: Duration) {
    let text = dialog.message.chars().take(200).collect();
    *seen.last_dialog.lock().unwrap_or_else(PoisonError::into_inner) = text;
    seen.dialogs.fetch_add(1, Ordering::Relaxed);
    let answer = HandleJavaScriptDialogParams::new(dialog.r#type == DialogType::Beforeunload);
    // A dialog that closed by itself cannot be answered; a browser that died is told elsewhere.
    tokio::time::timeout(deadline, page.execute(answer)).await.ok();
}
