//! One page of a context: commands with deadlines, and a watcher that answers events that would
//! otherwise block the page.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chromiumoxide::cdp::CustomEvent;
use chromiumoxide::cdp::browser_protocol::emulation::{
    SetDeviceMetricsOverrideParams, SetFocusEmulationEnabledParams, SetLocaleOverrideParams,
    SetTimezoneOverrideParams,
};
use chromiumoxide::cdp::browser_protocol::inspector::EventTargetCrashed;
use chromiumoxide::cdp::browser_protocol::page::{
    AddScriptToEvaluateOnNewDocumentParams, DialogType, EventFileChooserOpened, EventFrameNavigated,
    EventJavascriptDialogOpening, HandleJavaScriptDialogParams, SetInterceptFileChooserDialogParams,
};
use chromiumoxide::cdp::browser_protocol::target::{CloseTargetParams, TargetId};
use chromiumoxide::cdp::browser_protocol::{log, network, performance};
use chromiumoxide::cdp::js_protocol::runtime::{self, EvaluateParams, TerminateExecutionParams};
use chromiumoxide::error::CdpError;
use chromiumoxide::listeners::EventStream;
use chromiumoxide::types::{MethodId, MethodType};
use chromiumoxide::{Command, Page};
use furrow_rollout::Size;
use futures::StreamExt;
use serde::Deserialize;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::chooser::{ChooserState, FileChooser};
use super::link::{BrowserLink, listen, within};
use super::page_errors::PageErrorLog;
use crate::config::{BrowserConfig, PageDeadlines};
use crate::environment::EnvironmentError;
use crate::secrets::WorkerSecrets;

/// Name of the isolated world in each document; the browser identifies it by this name and creates
/// it once.
pub(super) const WORLD: &str = "furrow";

/// A rule that every element inherits and any page may override. A browser that does not know the
/// property keeps blinking.
const NO_CARET_BLINK_SCRIPT: &str = "{ const still = new CSSStyleSheet(); still.replaceSync(':root { caret-animation: manual }'); document.adoptedStyleSheets.push(still); }";

#[derive(Debug)]
pub(super) struct BrowserTab {
    pub page: Page,
    pub deadlines: PageDeadlines,
    dead: CancellationToken,
    state: Arc<TabState>,
    watcher: JoinHandle<()>,
    errors: Option<PageErrorLog>,
}

/// State that the watcher records.
#[derive(Debug)]
struct TabState {
    crashed: CancellationToken,
    /// A command was not answered in time.
    hung: AtomicBool,
    /// The page was used before it was loaded.
    unfinished: AtomicBool,
    /// The page's time stands still except for grants.
    clock_stopped: AtomicBool,
    dialogs: EventCounter,
    downloads: EventCounter,
    choosers: ChooserState,
}

/// How often an event happened, and the text of the last one.
#[derive(Debug, Default)]
struct EventCounter {
    times: AtomicU32,
    last: Mutex<String>,
}

/// Texts chosen by a page are cut to this many characters.
const EVENT_TEXT_CHARS_MAX: usize = 200;

impl EventCounter {
    fn record(&self, text: &str) {
        let text = text.chars().take(EVENT_TEXT_CHARS_MAX).collect();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = text;
        self.times.fetch_add(1, Ordering::Relaxed);
    }

    fn snapshot(&self) -> (u32, String) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (self.times.load(Ordering::Relaxed), last)
    }
}

/// The events of a page that need an immediate answer, whatever its trajectory does.
struct TabEvents {
    dialogs: EventStream<EventJavascriptDialogOpening>,
    downloads: EventStream<DownloadWillBegin>,
    choosers: EventStream<EventFileChooserOpened>,
    navigations: EventStream<EventFrameNavigated>,
    crashes: EventStream<EventTargetCrashed>,
}

/// The page is about to start a download. The library only supports the browser's event of this
/// kind, which does not name the page.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DownloadWillBegin {
    /// The file's name according to the page or its server.
    suggested_filename: String,
}

impl MethodType for DownloadWillBegin {
    fn method_id() -> MethodId {
        "Page.downloadWillBegin".into()
    }
}

impl CustomEvent for DownloadWillBegin {}

/// The browser's error between two documents. A page that navigates from document to document
/// without end counts as a page that does not answer.
const BETWEEN_DOCUMENTS: &str = "Not attached to an active page";

/// The next document replaces one within a few milliseconds.
const NEXT_DOCUMENT: Duration = Duration::from_millis(10);

impl BrowserTab {
    /// Adopts a page: dismisses its dialogs, sets its size, language and time zone, and disables
    /// the events with which it could flood the link.
    pub(super) async fn adopt(
        page: Page,
        link: &BrowserLink,
        viewport: Size,
        config: &BrowserConfig,
    ) -> Result<Self, EnvironmentError> {
        let events = TabEvents {
            dialogs: listen(&page).await?,
            downloads: listen(&page).await?,
            choosers: listen(&page).await?,
            navigations: listen(&page).await?,
            crashes: listen(&page).await?,
        };
        let state = Arc::new(TabState {
            crashed: CancellationToken::new(),
            hung: AtomicBool::new(false),
            unfinished: AtomicBool::new(false),
            clock_stopped: AtomicBool::new(false),
            dialogs: EventCounter::default(),
            downloads: EventCounter::default(),
            choosers: ChooserState::default(),
        });
        let watching = TabWatch { page: page.clone(), state: state.clone(), secrets: config.secrets.clone() };
        let watcher = tokio::spawn(watching.watch(events, config.deadlines.input));
        let errors = if config.page_errors {
            Some(PageErrorLog::watch(&page, config.secrets.clone()).await?)
        } else {
            None
        };
        let tab = Self { page, deadlines: config.deadlines, dead: link.dead.clone(), state, watcher, errors };
        tab.configure(viewport, config).await?;
        Ok(tab)
    }

    /// Sends a command to this page and waits for the answer until the deadline.
    pub(super) async fn call<T: Command + Clone>(
        &self,
        command: T,
        deadline: Duration,
        waited_for: &'static str,
    ) -> Result<T::Response, EnvironmentError> {
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
            lost = self.wait_lost() => Err(lost),
            outcome = within(deadline, waited_for, &self.dead, answered) => outcome,
        };
        if matches!(outcome, Err(EnvironmentError::PageHang { .. })) {
            self.state.hung.store(true, Ordering::Relaxed);
        }
        outcome
    }

    /// Waits for the page's next event until the deadline.
    pub(super) async fn wait_event<T>(
        &self,
        event: impl Future<Output = Option<T>>,
        deadline: Duration,
        waited_for: &'static str,
    ) -> Result<T, EnvironmentError> {
        tokio::select! {
            biased;
            lost = self.wait_lost() => Err(lost),
            outcome = tokio::time::timeout(deadline, event) => match outcome {
                Ok(Some(event)) => Ok(event),
                // Event streams end with their link.
                Ok(None) => Err(EnvironmentError::BrowserDead),
                Err(_) => Err(EnvironmentError::PageHang { waited_for }),
            },
        }
    }

    /// Waits until the page is lost and returns the reason. The death of the browser takes
    /// precedence, because it ends its pages.
    async fn wait_lost(&self) -> EnvironmentError {
        tokio::select! {
            biased;
            () = self.dead.cancelled() => EnvironmentError::BrowserDead,
            () = self.state.crashed.cancelled() => EnvironmentError::PageCrash,
        }
    }

    pub(super) fn target(&self) -> &TargetId {
        self.page.target_id()
    }

    pub(super) fn has_crashed(&self) -> bool {
        self.state.crashed.is_cancelled()
    }

    /// Whether the page failed to answer a command in time.
    pub(super) fn has_hung(&self) -> bool {
        self.state.hung.load(Ordering::Relaxed)
    }

    /// The missing answer was not the page's fault.
    pub(super) fn clear_hung(&self) {
        self.state.hung.store(false, Ordering::Relaxed);
    }

    /// Marks the page as not loaded, and loading as no longer awaited.
    pub(super) fn mark_unfinished(&self) {
        self.state.unfinished.store(true, Ordering::Relaxed);
    }

    /// Whether the page was marked as unfinished since the last call.
    pub(super) fn take_unfinished(&self) -> bool {
        self.state.unfinished.swap(false, Ordering::Relaxed)
    }

    /// Marks the page's time as stopped except for grants.
    pub(super) fn mark_clock_stopped(&self) {
        self.state.clock_stopped.store(true, Ordering::Relaxed);
    }

    /// Whether page time passes only in grants.
    pub(super) fn has_stopped_clock(&self) -> bool {
        self.state.clock_stopped.load(Ordering::Relaxed)
    }

    /// An error if the page or its browser died.
    pub(super) fn check(&self) -> Result<(), EnvironmentError> {
        if self.dead.is_cancelled() {
            Err(EnvironmentError::BrowserDead)
        } else if self.has_crashed() {
            Err(EnvironmentError::PageCrash)
        } else {
            Ok(())
        }
    }

    /// Number of dismissed dialogs and the text of the last one.
    pub(super) fn dialogs(&self) -> (u32, String) {
        self.state.dialogs.snapshot()
    }

    /// Number of file choosers that the page opened.
    pub(super) fn choosers_opened(&self) -> u32 {
        self.state.choosers.opened()
    }

    /// The file chooser that waits for files.
    pub(super) fn file_chooser(&self) -> Option<FileChooser> {
        self.state.choosers.waiting()
    }

    /// The chooser got its files, or will get none.
    pub(super) fn close_file_chooser(&self) {
        self.state.choosers.close();
    }

    /// Number of downloads that began and the file name of the last one.
    pub(super) fn downloads(&self) -> (u32, String) {
        self.state.downloads.snapshot()
    }

    /// The page's errors, if they are collected.
    pub(super) fn errors(&self) -> Option<&PageErrorLog> {
        self.errors.as_ref()
    }

    /// The first recovery measure: stops the running script. A looping page reacts only to this and
    /// to being closed.
    pub(super) async fn stop_script(&self) -> Result<(), EnvironmentError> {
        self.call(TerminateExecutionParams {}, self.deadlines.input, "stopping the page's script")
            .await
            .map(drop)
    }

    /// Whether the page's scripts get to run.
    pub(super) async fn answers(&self) -> bool {
        let nothing = EvaluateParams::new("0");
        self.call(nothing, self.deadlines.input, "asking whether the page answers").await.is_ok()
    }

    pub(super) async fn close(&self, link: &BrowserLink) -> Result<(), EnvironmentError> {
        let close = CloseTargetParams::new(self.target().clone());
        link.call(close, self.deadlines.input, "closing the page").await.map(drop)
    }

    async fn configure(&self, viewport: Size, config: &BrowserConfig) -> Result<(), EnvironmentError> {
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
        let choosers = SetInterceptFileChooserDialogParams::new(true);
        let (size, locale, zone, focus, choosers, still, quiet) = tokio::join!(
            self.call(size, deadline, "setting the viewport"),
            self.call(locale, deadline, "setting the language"),
            self.call(zone, deadline, "setting the time zone"),
            self.call(SetFocusEmulationEnabledParams::new(true), deadline, "setting the focus"),
            self.call(choosers, deadline, "intercepting file choosers"),
            self.stop_caret_blinking(deadline),
            async { if self.errors.is_some() { Ok(()) } else { self.disable_event_domains(deadline).await } },
        );
        quiet?;
        size.and(zone).and(focus).and(choosers)?;
        still?;
        // A renderer takes one language; a second tab in it returns an error because one is already
        // set.
        if let Err(error @ (EnvironmentError::PageCrash | EnvironmentError::BrowserDead)) = locale {
            return Err(error);
        }
        Ok(())
    }

    /// Stops carets from blinking in every later document. A blinking caret paints twice a second:
    /// on a full page that took 16 ms of CPU per second, so 32 of the 107 ms of a step every 2 s;
    /// and of two screenshots of one page, one lacked the caret.
    async fn stop_caret_blinking(&self, deadline: Duration) -> Result<(), EnvironmentError> {
        let mut still = AddScriptToEvaluateOnNewDocumentParams::new(NO_CARET_BLINK_SCRIPT);
        still.world_name = Some(WORLD.into());
        self.call(still, deadline, "the carets to stop blinking").await.map(drop)
    }

    /// Disables what the protocol library enabled in the page: its console, its log, its requests.
    /// All pages of a browser share one link, and a page that writes half a million lines would
    /// delay the answers of the others; a `data:` address is sent in full, however many megabytes
    /// it has.
    async fn disable_event_domains(&self, deadline: Duration) -> Result<(), EnvironmentError> {
        let (console, log, requests, counters) = tokio::join!(
            self.call(runtime::DisableParams {}, deadline, "the console's events to stop"),
            self.call(log::DisableParams {}, deadline, "the log's events to stop"),
            self.call(network::DisableParams {}, deadline, "the requests' events to stop"),
            self.call(performance::DisableParams {}, deadline, "the counters' events to stop"),
        );
        console.and(log).and(requests)?;
        counters.map(drop)
    }
}

impl Drop for BrowserTab {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

/// Answers a page's events.
struct TabWatch {
    page: Page,
    state: Arc<TabState>,
    /// A text is searched for values before it is cut.
    secrets: Arc<WorkerSecrets>,
}

impl TabWatch {
    async fn watch(self, mut events: TabEvents, deadline: Duration) {
        let Self { state, .. } = &self;
        loop {
            tokio::select! {
                // A chooser is noted before the navigation that closes it.
                biased;
                crash = events.crashes.next() => {
                    // The stream also ends with the page, which answers nothing from then on.
                    state.crashed.cancel();
                    if crash.is_none() { return }
                }
                dialog = events.dialogs.next() => {
                    let Some(dialog) = dialog else { return };
                    self.dismiss(&dialog, deadline).await;
                }
                download = events.downloads.next() => {
                    let Some(download) = download else { return };
                    state.downloads.record(&self.secrets.scrubber().text(&download.suggested_filename));
                }
                chooser = events.choosers.next() => {
                    let Some(chooser) = chooser else { return };
                    state.choosers.open(&chooser);
                }
                navigation = events.navigations.next() => {
                    let Some(navigation) = navigation else { return };
                    state.choosers.leave(&navigation);
                }
            }
        }
    }

    /// Dismisses a dialog, as a person in a hurry would, but allows the page to be left.
    async fn dismiss(&self, dialog: &EventJavascriptDialogOpening, deadline: Duration) {
        self.state.dialogs.record(&self.secrets.scrubber().text(&dialog.message));
        let answer = HandleJavaScriptDialogParams::new(dialog.r#type == DialogType::Beforeunload);
        // A dialog that closed by itself cannot be answered; the death of a browser is reported
        // elsewhere.
        tokio::time::timeout(deadline, self.page.execute(answer)).await.ok();
    }
}
