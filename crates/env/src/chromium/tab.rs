//! One page of a context: commands under deadlines, and a watcher that answers what would otherwise block it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::emulation::{
    SetDeviceMetricsOverrideParams, SetFocusEmulationEnabledParams, SetLocaleOverrideParams,
    SetTimezoneOverrideParams,
};
use chromiumoxide::cdp::browser_protocol::inspector::EventTargetCrashed;
use chromiumoxide::cdp::browser_protocol::page::{
    AddScriptToEvaluateOnNewDocumentParams, DialogType, EventJavascriptDialogOpening,
    HandleJavaScriptDialogParams,
};
use chromiumoxide::cdp::browser_protocol::target::{CloseTargetParams, TargetId};
use chromiumoxide::cdp::browser_protocol::{log, network, performance};
use chromiumoxide::cdp::js_protocol::runtime::{self, TerminateExecutionParams};
use chromiumoxide::cdp::{CustomEvent, IntoEventKind};
use chromiumoxide::error::CdpError;
use chromiumoxide::listeners::EventStream;
use chromiumoxide::types::{MethodId, MethodType};
use chromiumoxide::{Command, Page};
use furrow_rollout::Size;
use futures::StreamExt;
use serde::Deserialize;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::link::{Link, failed, within};
use super::script::WORLD;
use crate::config::{BrowserConfig, Deadlines};
use crate::stage::StageError;

/// A rule that every element inherits and any page may overrule. A browser that does not know the property blinks on.
const STILL: &str = "{ const still = new CSSStyleSheet(); still.replaceSync(':root { caret-animation: manual }'); document.adoptedStyleSheets.push(still); }";

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
    /// It kept somebody waiting in vain.
    hung: AtomicBool,
    /// It was taken as it is, while it loads.
    unfinished: AtomicBool,
    /// Its time stands still but for grants.
    clock_stopped: AtomicBool,
    dialogs: Happened,
    downloads: Happened,
}

/// What a page did beside what it shows: how often, and the words of the last time.
#[derive(Debug, Default)]
struct Happened {
    times: AtomicU32,
    last: Mutex<String>,
}

/// Words that a page chose are cut to so many characters.
const WORDS_CHARS_MAX: usize = 200;

impl Happened {
    fn again(&self, words: &str) {
        let words = words.chars().take(WORDS_CHARS_MAX).collect();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = words;
        self.times.fetch_add(1, Ordering::Relaxed);
    }

    fn so_far(&self) -> (u32, String) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (self.times.load(Ordering::Relaxed), last)
    }
}

/// The events of a page that somebody must answer at once, wherever its trajectory is.
struct Events {
    dialogs: EventStream<EventJavascriptDialogOpening>,
    downloads: EventStream<DownloadWillBegin>,
    crashes: EventStream<EventTargetCrashed>,
}

/// The page is about to start a download. The library knows only the browser's event of this kind, which does not say whose page it was.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DownloadWillBegin {
    /// What the page, or its server, calls the file.
    suggested_filename: String,
}

impl MethodType for DownloadWillBegin {
    fn method_id() -> MethodId {
        "Page.downloadWillBegin".into()
    }
}

impl CustomEvent for DownloadWillBegin {}

/// What the browser says of a page in the moment between two documents. One that goes from document to document without end is a page that does
/// not answer.
const BETWEEN_DOCUMENTS: &str = "Not attached to an active page";

/// A document is replaced by the next in a few milliseconds.
const NEXT_DOCUMENT: Duration = Duration::from_millis(10);

impl Tab {
    /// Takes a page in hand: its dialogs are dismissed, its size, language and time zone set, and it can no longer fill the link with words.
    pub async fn adopt(
        page: Page,
        link: &Link,
        viewport: Size,
        config: &BrowserConfig,
    ) -> Result<Self, StageError> {
        let events = Events {
            dialogs: listen(&page).await?,
            downloads: listen(&page).await?,
            crashes: listen(&page).await?,
        };
        let seen = Arc::new(Seen {
            crashed: CancellationToken::new(),
            hung: AtomicBool::new(false),
            unfinished: AtomicBool::new(false),
            clock_stopped: AtomicBool::new(false),
            dialogs: Happened::default(),
            downloads: Happened::default(),
        });
        let watcher = tokio::spawn(watch(page.clone(), events, seen.clone(), config.deadlines.input));
        let tab = Self { page, deadlines: config.deadlines, dead: link.dead.clone(), seen, watcher };
        tab.dress(viewport, config).await?;
        Ok(tab)
    }

    /// A command to this page, answered within the deadline or not at all.
    pub async fn call<T: Command + Clone>(
        &self,
        command: T,
        deadline: Duration,
        waited_for: &'static str,
    ) -> Result<T::Response, StageError> {
        let answered = async {
            loop {
                match self.page.execute(command.clone()).await.map(|response| response.result) {
                    Err(CdpError::Chrome(answer)) if answer.message.contains(BETWEEN_DOCUMENTS) => {
                        tokio::time::sleep(NEXT_DOCUMENT).await;
                    }
                    done => return done,
                }
            }
        };
        let outcome = tokio::select! {
            biased;
            lost = self.lost() => Err(lost),
            outcome = within(deadline, waited_for, &self.dead, answered) => outcome,
        };
        if matches!(outcome, Err(StageError::PageHang { .. })) {
            self.seen.hung.store(true, Ordering::Relaxed);
        }
        outcome
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

    /// Whether a question to the page was not answered in time.
    pub fn has_hung(&self) -> bool {
        self.seen.hung.load(Ordering::Relaxed)
    }

    /// What was not answered was no fault of the page.
    pub fn excuse(&self) {
        self.seen.hung.store(false, Ordering::Relaxed);
    }

    /// The page is not loaded, and nobody waits for that any more.
    pub fn leave_unfinished(&self) {
        self.seen.unfinished.store(true, Ordering::Relaxed);
    }

    /// Whether a page was left unfinished since this was asked last.
    pub fn take_unfinished(&self) -> bool {
        self.seen.unfinished.swap(false, Ordering::Relaxed)
    }

    /// Its time stands still from now on but for grants.
    pub fn leave_clock_stopped(&self) {
        self.seen.clock_stopped.store(true, Ordering::Relaxed);
    }

    /// Whether nothing waits for page time to pass by itself.
    pub fn has_stopped_clock(&self) -> bool {
        self.seen.clock_stopped.load(Ordering::Relaxed)
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
        self.seen.dialogs.so_far()
    }

    /// Downloads denied so far, and the file name of the last.
    pub fn downloads(&self) -> (u32, String) {
        self.seen.downloads.so_far()
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
        // Sent together: each round trip would cost a new page 3 ms more.
        let (size, locale, zone, focus, still, quiet) = tokio::join!(
            self.call(size, deadline, "setting the viewport"),
            self.call(locale, deadline, "setting the language"),
            self.call(zone, deadline, "setting the time zone"),
            self.call(SetFocusEmulationEnabledParams::new(true), deadline, "setting the focus"),
            self.still(deadline),
            self.hush(deadline),
        );
        quiet?;
        size.and(zone).and(focus)?;
        still?;
        // A renderer takes one language; a second tab in it says that it has one already.
        if let Err(error @ (StageError::PageCrash | StageError::BrowserDead)) = locale {
            return Err(error);
        }
        Ok(())
    }

    /// Lets carets stand still in every document to come. One that blinks paints twice a second: on a full page that took 16 ms of CPU a second, so
    /// 32 of the 107 ms of a step every 2 s; and of two screenshots of one page one lacked it.
    async fn still(&self, deadline: Duration) -> Result<(), StageError> {
        let mut still = AddScriptToEvaluateOnNewDocumentParams::new(STILL);
        still.world_name = Some(WORLD.into());
        self.call(still, deadline, "the carets' rest").await.map(drop)
    }

    /// Switches off what the protocol library switched on in the page: its console, its log, its requests. All pages of a browser share one
    /// link, and one page that writes half a million lines would keep the others' answers waiting behind them; a `data:` address travels whole,
    /// however many megabytes it has.
    async fn hush(&self, deadline: Duration) -> Result<(), StageError> {
        let (console, log, requests, counters) = tokio::join!(
            self.call(runtime::DisableParams {}, deadline, "the console's silence"),
            self.call(log::DisableParams {}, deadline, "the log's silence"),
            self.call(network::DisableParams {}, deadline, "the requests' silence"),
            self.call(performance::DisableParams {}, deadline, "the counters' silence"),
        );
        console.and(log).and(requests)?;
        counters.map(drop)
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
    loop {
        tokio::select! {
            dialog = events.dialogs.next() => {
                let Some(dialog) = dialog else { return };
                dismiss(&page, &dialog, &seen, deadline).await;
            }
            download = events.downloads.next() => {
                let Some(download) = download else { return };
                seen.downloads.again(&download.suggested_filename);
            }
            crash = events.crashes.next() => {
                // The stream ends with the page, too: nothing can be asked of it any more.
                seen.crashed.cancel();
                if crash.is_none() { return }
            }
        }
    }
}

/// Says no, as a person in a hurry would; but lets a page be left.
async fn dismiss(page: &Page, dialog: &EventJavascriptDialogOpening, seen: &Seen, deadline: Duration) {
    seen.dialogs.again(&dialog.message);
    let answer = HandleJavaScriptDialogParams::new(dialog.r#type == DialogType::Beforeunload);
    // A dialog that closed by itself cannot be answered; a browser that died is told elsewhere.
    tokio::time::timeout(deadline, page.execute(answer)).await.ok();
}
