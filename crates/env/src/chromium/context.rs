//! The environment of one trajectory: its own browser context behind its own filter, and the pages
//! in it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chromiumoxide::cdp::browser_protocol::browser::BrowserContextId;
use chromiumoxide::cdp::browser_protocol::target::TargetId;
use furrow_rollout::{
    Action, ActionHint, EMPTY_PAGE, ErrorPage, Evidence, FaultOwner, Observation, Outcome, OutcomeName,
    PageClock, PagePoint, PointerButton, Size, Task, TrajectoryAncestry,
};
use furrow_telemetry::{BlockReason, DialogDismissed, DownloadDenied, PopupClosed};
use futures::FutureExt;
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::browser::{BrowserLease, TabChange};
use super::clock::StepTime;
use super::navigate::{NavigationOutcome, NavigationWatch};
use super::network::NetworkInterceptor;
use super::observe::{self, ObservationRequest, current_entry};
use super::prewarm::{PrewarmedContext, dispose_context, open_empty_tab};
use super::select::{self, OpenList, PickResult};
use super::tab::BrowserTab;
use super::{act, blocked, clock, navigate, picture, script, settle};
use crate::config::BrowserConfig;
use crate::egress::EgressFilter;
use crate::environment::{Environment, EnvironmentError};
use crate::hosts::{AllowList, HostPort};

/// An address in evidence is cut to this length.
const URL_CHARS_MAX: usize = 2048;

/// Most documents in a row that navigate away before their time is over; a page that redirects in a
/// circle is stopped where it is.
const DOCUMENTS_MAX: usize = 4;

/// A start page that takes longer gives up its turn.
const START_PAGE_TURN: Duration = Duration::from_secs(5);

/// What happened to a page that may have navigated by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FollowResult {
    /// The document is still there.
    SameDocument,
    /// The document is still there, because the address it was left for did not answer.
    TimedOut,
    /// Another document replaced it and got its time.
    Completed,
    /// Another document replaced it, but is not completely loaded.
    Unfinished,
}

/// The network access of a context.
pub(super) struct NetworkScope {
    /// The hosts of the task, for navigations that the policy itself requests.
    pub allow: AllowList,
    pub egress: EgressFilter,
    /// The interceptor in front of it, if an archive is recorded or replayed.
    pub network: Option<NetworkInterceptor>,
}

pub(super) struct BrowserContext {
    browser: BrowserLease,
    config: Arc<BrowserConfig>,
    /// Limits how many start pages load at once.
    beginning: Arc<Semaphore>,
    of: TrajectoryAncestry,
    id: BrowserContextId,
    task: Task,
    network_scope: NetworkScope,
    tabs: Vec<BrowserTab>,
    active: usize,
    /// The policy has acted: from now on it is responsible for where its page goes.
    acted: bool,
    /// Mouse position, for actions without a point.
    mouse: PagePoint,
    changes: mpsc::Receiver<TabChange>,
    /// Whether the page's clock is under control.
    clock_stopped: bool,
    /// Page time of the current step.
    step_time: StepTime,
    /// Watches for navigations of the page itself in that step, while its clock is under control.
    arrival: Option<NavigationWatch>,
    dialogs_reported: u32,
    downloads_reported: u32,
    popups_closed: u32,
}

impl BrowserContext {
    /// Turns a prewarmed context into the environment of a task.
    pub fn new(
        prewarmed: PrewarmedContext,
        config: Arc<BrowserConfig>,
        beginning: Arc<Semaphore>,
        of: TrajectoryAncestry,
        task: Task,
        allow: AllowList,
        network: Option<NetworkInterceptor>,
    ) -> Self {
        let PrewarmedContext { browser: running, id, egress, changes, tab, .. } = prewarmed;
        let reach = NetworkScope { allow, egress, network };
        Self {
            browser: running,
            config,
            beginning,
            of,
            id,
            task,
            network_scope: reach,
            tabs: vec![tab],
            active: 0,
            acted: false,
            mouse: PagePoint { x: 0.0, y: 0.0 },
            changes,
            clock_stopped: false,
            step_time: StepTime::new(0, 1),
            arrival: None,
            dialogs_reported: 0,
            downloads_reported: 0,
            popups_closed: 0,
        }
    }

    fn tab(&self) -> Result<&BrowserTab, EnvironmentError> {
        let tab = self
            .tabs
            .get(self.active)
            .ok_or_else(|| EnvironmentError::Failed("the context has no page".into()))?;
        tab.check().map(|()| tab)
    }

    /// Opens an empty tab and brings it to the front.
    async fn add_tab(&mut self) -> Result<(), EnvironmentError> {
        let tab = open_empty_tab(&self.browser, &self.id, &self.config, self.task.viewport).await?;
        self.tabs.push(tab);
        self.active = self.tabs.len() - 1;
        Ok(())
    }

    /// Processes tab changes: a new tab comes to the front, as for a person.
    async fn apply_tab_changes(&mut self) -> Result<(), EnvironmentError> {
        while let Ok(change) = self.changes.try_recv() {
            match change {
                TabChange::Opened(target) if self.tabs.iter().any(|tab| *tab.target() == target) => {}
                TabChange::Opened(target) => self.adopt_tab(target).await?,
                TabChange::Refused => {
                    self.popups_closed += 1;
                    PopupClosed { of: &self.of }.emit();
                }
                TabChange::Closed(target) => self.remove_tab(&target),
            }
        }
        if self.tabs.is_empty() {
            self.add_tab().await?;
        }
        Ok(())
    }

    async fn adopt_tab(&mut self, target: TargetId) -> Result<(), EnvironmentError> {
        let link = &self.browser.link;
        // The protocol library attaches to a new page by itself, shortly after the page is
        // announced.
        for _ in 0..40 {
            if let Ok(page) = link.browser.get_page(target.clone()).await {
                let tab = BrowserTab::adopt(page, link, self.task.viewport, &self.config).await?;
                self.tabs.push(tab);
                self.active = self.tabs.len() - 1;
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    fn remove_tab(&mut self, target: &TargetId) {
        let Some(gone) = self.tabs.iter().position(|tab| tab.target() == target) else { return };
        self.tabs.remove(gone);
        if self.active >= gone && self.active > 0 {
            self.active -= 1;
        }
    }

    async fn navigate(&self, url: &str) -> Result<Outcome, EnvironmentError> {
        navigate::navigate_to(self.tab()?, url, self.config.settle.cap).await
    }

    /// Loads the start page when its turn comes. A slow one gives up its turn: it uses little of
    /// this machine while it waits.
    async fn navigate_in_turn(&self) -> Result<Outcome, EnvironmentError> {
        let turn =
            self.beginning.acquire().await.map_err(|closed| EnvironmentError::Failed(closed.to_string()))?;
        let mut loading = pin!(self.navigate(&self.task.start_url));
        if let Ok(outcome) = timeout(START_PAGE_TURN, &mut loading).await {
            return outcome;
        }
        drop(turn);
        loading.await
    }

    /// A missing or refused start page is an error of the suite: a policy must not earn a reward
    /// for what it could not do.
    async fn check_start_page(&self) -> Result<(), EnvironmentError> {
        let status = "performance.getEntriesByType('navigation')[0]?.responseStatus ?? 0";
        let deadline = self.config.deadlines.screenshot;
        let status =
            script::evaluate_isolated(self.tab()?, status, deadline, "the start page's status").await?;
        match status.as_u64() {
            Some(200..=299) => Ok(()),
            _ => {
                let blocked = self.network_scope.egress.blocked();
                Err(EnvironmentError::Failed(format!(
                    "the start page did not load: HTTP status {status}; {blocked}"
                )))
            }
        }
    }

    /// A site that refuses the browser ends the trajectory: the policy could not influence what
    /// follows.
    async fn check_not_blocked(&self) -> Result<(), EnvironmentError> {
        if !self.config.refusals.pages.applies_to(&self.task) {
            return Ok(());
        }
        match blocked::detect_refusal(self.tab()?, self.config.refusals).await? {
            Some(why) => Err(EnvironmentError::Blocked(why)),
            None => Ok(()),
        }
    }

    /// The policy may only request addresses that the task allows; other requests are not executed.
    async fn goto(&mut self, url: &str) -> Result<Outcome, EnvironmentError> {
        match self.network_scope.allow.check_url(url) {
            Ok(HostPort { .. }) => self.load_in_page_time(async |context| context.navigate(url).await).await,
            Err(off) => {
                Ok(Outcome::with_detail(OutcomeName::OffList, off_list_message(off.reason, &off.host)))
            }
        }
    }

    async fn go_in_history(&mut self, offset: i64) -> Result<Outcome, EnvironmentError> {
        match navigate::history_entry(self.tab()?, offset).await? {
            Ok(entry) => {
                self.load_in_page_time(async |context| {
                    navigate::navigate_to_entry(context.tab()?, entry).await
                })
                .await
            }
            Err(no_history) => Ok(no_history),
        }
    }

    async fn open_tab(&mut self, url: &str) -> Result<Outcome, EnvironmentError> {
        let is_empty = url == EMPTY_PAGE;
        if let (false, Err(off)) = (is_empty, self.network_scope.allow.check_url(url)) {
            return Ok(Outcome::with_detail(OutcomeName::OffList, off_list_message(off.reason, &off.host)));
        }
        let most = self.config.tabs_max;
        if self.tabs.len() >= most as usize {
            return Ok(Outcome::with_detail(
                OutcomeName::PopupClosed,
                format!("at most {most} tabs stay open"),
            ));
        }
        self.add_tab().await?;
        match is_empty {
            true => Ok(Outcome::named(OutcomeName::Ok)),
            false => self.load_in_page_time(async |context| context.navigate(url).await).await,
        }
    }

    async fn click(&self, at: PagePoint) -> Result<Outcome, EnvironmentError> {
        // Queried at the moment of the click: a page may have closed its list since the last
        // observation.
        if let Some(list) = select::find_open_list(self.tab()?).await? {
            match list.pick(at, self.task.viewport) {
                PickResult::Steps(steps) => return self.choose_option(&list, steps).await,
                PickResult::Nothing => {
                    return Ok(Outcome::with_detail(OutcomeName::Ok, "that row cannot be chosen"));
                }
                PickResult::Outside => act::press(self.tab()?, "Escape").await?,
            }
        }
        act::click(self.tab()?, at, PointerButton::Left, 1).await?;
        Ok(Outcome::named(OutcomeName::Ok))
    }

    /// Executes several actions until one has another outcome than `ok`; the actions after it were
    /// meant for a page in another state.
    async fn execute_several(&mut self, actions: &[Action]) -> Result<Outcome, EnvironmentError> {
        for (number, action) in (1..).zip(actions) {
            let outcome = Box::pin(self.execute(action)).await?;
            if self.clock_stopped {
                self.follow_navigation().await?;
            }
            if outcome.name != OutcomeName::Ok {
                let Outcome { name, detail } = outcome;
                let left = actions.len() - number;
                return Ok(match left {
                    0 => Outcome::with_detail(name, detail),
                    left => Outcome::with_detail(
                        name,
                        format!("action {number}: {detail}; {left} after it were skipped"),
                    ),
                });
            }
        }
        Ok(Outcome::named(OutcomeName::Ok))
    }

    /// Chooses a row of the open list by keyboard and verifies the choice.
    async fn choose_option(&self, list: &OpenList, steps: i64) -> Result<Outcome, EnvironmentError> {
        let tab = self.tab()?;
        let key = if steps < 0 { "ArrowUp" } else { "ArrowDown" };
        if let Some((modifiers, key)) = act::key_named(key) {
            act::press_times(tab, key, modifiers, steps.unsigned_abs()).await?;
        }
        act::press(tab, "Enter").await?;
        let chosen = select::chosen_index(tab).await?;
        if chosen.is_some() && chosen == list.index_after(steps) {
            Ok(Outcome::named(OutcomeName::OptionChosen))
        } else {
            Ok(Outcome::with_detail(
                OutcomeName::Ok,
                "the list closed, and another option than the one clicked is chosen",
            ))
        }
    }

    /// Loads a page. A loading page needs its clock: while the clock stands, no frame of the new
    /// document is ever drawn. Therefore a new document gets the action's share of page time. The
    /// old document gets none of it, because it stays if no new one comes: for an address within
    /// it, a download, or a server that does not answer.
    async fn load_in_page_time(
        &mut self,
        load: impl AsyncFnOnce(&Self) -> Result<Outcome, EnvironmentError>,
    ) -> Result<Outcome, EnvironmentError> {
        if !self.clock_stopped {
            return load(self).await;
        }
        let mut time = self.step_time;
        let load_timeout = self.config.settle.cap;
        let mut arrival = NavigationWatch::listen(self.tab()?).await?;
        let (over, load_done) = oneshot::channel();
        let loading = async {
            let outcome = load(self).await;
            // The listener no longer has to wait.
            over.send(()).ok();
            outcome
        };
        let living = async {
            let came = arrival.wait_new_document(load_done.map(drop), load_timeout).await;
            // The new document may navigate by itself, but not before it is loaded.
            let next = NavigationWatch::listen(self.tab()?).await?;
            let completed = !came || self.grant_document_time(time.take_share()).await?;
            Ok::<_, EnvironmentError>((completed, next))
        };
        let (outcome, living) = tokio::join!(loading, living);
        self.step_time = time;
        let completed = living.map(|(completed, next)| {
            self.arrival = Some(next);
            completed
        });
        // A failed load also leaves a running clock, which must be stopped unless the page no
        // longer answers.
        if !self.tab()?.has_hung() {
            clock::stop(self.tab()?).await?;
        }
        match (outcome?, completed?) {
            (outcome, false) if outcome.name == OutcomeName::Ok => {
                Ok(Outcome::with_detail(OutcomeName::NotSettled, "the page was still loading"))
            }
            (outcome, _) => Ok(outcome),
        }
    }

    /// Grants page time to a new document. Returns whether the document used all of it: one whose
    /// requests are never answered is shown as far as it loaded.
    async fn grant_document_time(&self, millis: u32) -> Result<bool, EnvironmentError> {
        let tab = self.tab()?;
        let completed = clock::advance_loading(tab, millis, self.config.settle.cap).await?;
        navigate::wait_for_content(tab).await?;
        Ok(completed)
    }

    /// Follows a navigation that the page itself started, by a link, a form or a script: while time
    /// stands still no document loads, and none is drawn before it is loaded. Therefore a new
    /// document gets the time of a step, as if the policy had requested it.
    async fn follow_navigation(&mut self) -> Result<FollowResult, EnvironmentError> {
        let PageClock::Virtual { step_millis } = self.task.clock else {
            return Ok(FollowResult::SameDocument);
        };
        let mut arrival = match self.arrival.take() {
            Some(arrival) if arrival.watches_tab(self.tab()?) => arrival,
            // Another tab came to the front: nothing has begun in it since.
            _ => NavigationWatch::listen(self.tab()?).await?,
        };
        let mut followed = FollowResult::SameDocument;
        for _ in 0..DOCUMENTS_MAX {
            let left = arrival.wait_outcome(self.tab()?).await?;
            match left {
                NavigationOutcome::NotStarted
                | NavigationOutcome::SameDocument
                | NavigationOutcome::TimedOut => {
                    self.arrival = Some(arrival);
                    return Ok(if left == NavigationOutcome::TimedOut {
                        FollowResult::TimedOut
                    } else {
                        followed
                    });
                }
                NavigationOutcome::NewDocument => {
                    arrival = NavigationWatch::listen(self.tab()?).await?;
                    followed = match self.grant_document_time(step_millis).await? {
                        true => FollowResult::Completed,
                        false => FollowResult::Unfinished,
                    };
                    clock::stop(self.tab()?).await?;
                }
            }
        }
        navigate::stop_loading(self.tab()?).await?;
        Ok(FollowResult::Unfinished)
    }

    /// Executes one action and remembers the mouse position.
    async fn execute(&mut self, action: &Action) -> Result<Outcome, EnvironmentError> {
        let outcome = self.execute_one(action).await?;
        self.mouse = action.point().unwrap_or(self.mouse);
        Ok(outcome)
    }

    async fn execute_one(&mut self, action: &Action) -> Result<Outcome, EnvironmentError> {
        let done = Outcome::named(OutcomeName::Ok);
        match action {
            Action::Click { at, button: PointerButton::Left, count: 1 } => {
                return self.click(at.unwrap_or(self.mouse)).await;
            }
            Action::Click { at, button, count } => {
                act::click(self.tab()?, at.unwrap_or(self.mouse), *button, *count).await?;
            }
            Action::Move { at } => act::hover(self.tab()?, *at).await?,
            Action::Write { into, content, press_enter } => {
                act::write(self.tab()?, *into, content, *press_enter).await?;
            }
            Action::Scroll { at, direction, pixels } => {
                let shown = self.visible_size();
                self.with_page_time(async |tab| act::scroll(tab, *at, *direction, *pixels, shown).await)
                    .await?;
            }
            Action::GoBack => return self.go_in_history(-1).await,
            Action::GoForward => return self.go_in_history(1).await,
            Action::Refresh => {
                return self.load_in_page_time(async |context| navigate::reload(context.tab()?).await).await;
            }
            Action::Restart => {
                let start = self.task.start_url.clone();
                return self.load_in_page_time(async |context| context.navigate(&start).await).await;
            }
            Action::Goto { url } => return self.goto(url).await,
            Action::Wait { seconds } => self.wait(*seconds).await?,
            Action::Drag { from, to } => {
                let from = from.unwrap_or(self.mouse);
                self.with_page_time(async |tab| act::drag(tab, from, *to).await).await?;
            }
            Action::SelectTab { index } => return self.select_tab(*index),
            Action::OpenTab { url } => return self.open_tab(url).await,
            Action::PressKey { key, times } => match act::key_named(key) {
                Some((modifiers, key)) => {
                    act::press_times(self.tab()?, key, modifiers, u64::from(*times)).await?;
                }
                None => {
                    let why = format!(
                        "there is no key {key:?}; use names such as Enter, Tab, ArrowDown or Control+a"
                    );
                    return Ok(Outcome::with_detail(OutcomeName::InvalidAction, why));
                }
            },
            Action::Several(actions) => return self.execute_several(actions).await,
            Action::Answer { .. } => return Ok(Outcome::named(OutcomeName::Answered)),
        }
        Ok(done)
    }

    /// Waits a number of seconds in place of the action's share of the step's time. With 0 the page
    /// is only observed again, after the time of a step.
    async fn wait(&mut self, seconds: u8) -> Result<(), EnvironmentError> {
        match self.clock_stopped {
            true if seconds == 0 => Ok(()),
            true => {
                self.step_time.take_share();
                clock::advance(self.tab()?, u32::from(seconds) * 1000).await
            }
            false => {
                tokio::time::sleep(Duration::from_secs(u64::from(seconds))).await;
                Ok(())
            }
        }
    }

    /// While page time stands still, wheel events and moves with a pressed button are never
    /// answered: page time is granted while they run.
    async fn with_page_time(
        &mut self,
        input: impl AsyncFnOnce(&BrowserTab) -> Result<(), EnvironmentError>,
    ) -> Result<(), EnvironmentError> {
        if !self.clock_stopped {
            return input(self.tab()?).await;
        }
        let share = self.step_time.take_share();
        let tab = self.tab()?;
        let (passed, done) = tokio::join!(clock::advance(tab, share), input(tab));
        passed.and(done)
    }

    fn select_tab(&mut self, index: u32) -> Result<Outcome, EnvironmentError> {
        let position = index as usize;
        if position >= self.tabs.len() {
            let why = format!("there is no tab {index}; there are {}", self.tabs.len());
            return Ok(Outcome::with_detail(OutcomeName::NoSuchTab, why));
        }
        self.active = position;
        Ok(Outcome::named(OutcomeName::Ok))
    }

    fn visible_size(&self) -> Size {
        self.task.observation.clip.unwrap_or(self.task.viewport)
    }

    fn is_outside(&self, action: &Action) -> bool {
        let Size { width, height } = self.visible_size();
        let outside =
            |at: &PagePoint| !(0.0..=width as f32).contains(&at.x) || !(0.0..=height as f32).contains(&at.y);
        action.parts().iter().any(|part| match part {
            Action::Drag { from, to } => from.as_ref().is_some_and(outside) || outside(to),
            other => other.point().is_some_and(|at| outside(&at)),
        })
    }

    /// Reports side effects of an action, which tell the policy more than that the action was
    /// executed. Each dialog, download and window is counted; one of them is reported.
    fn report_side_effects(&mut self, outcome: Outcome) -> Outcome {
        let (dialogs, text) = self.sum_over_tabs(BrowserTab::dialogs);
        let (downloads, name) = self.sum_over_tabs(BrowserTab::downloads);
        let new_dialogs = dialogs.saturating_sub(std::mem::replace(&mut self.dialogs_reported, dialogs));
        let new_downloads =
            downloads.saturating_sub(std::mem::replace(&mut self.downloads_reported, downloads));
        let popups = std::mem::take(&mut self.popups_closed);
        (0..new_dialogs).for_each(|_| DialogDismissed { of: &self.of }.emit());
        (0..new_downloads).for_each(|_| DownloadDenied { of: &self.of }.emit());
        match (new_dialogs, new_downloads, popups) {
            _ if outcome.name != OutcomeName::Ok => outcome,
            (0, 0, 0) => outcome,
            (0, 0, popups) => {
                let most = self.config.tabs_max;
                let detail = format!("{popups} tabs were closed; at most {most} stay open");
                Outcome::with_detail(OutcomeName::PopupClosed, detail)
            }
            (0, _, _) => Outcome::with_detail(
                OutcomeName::DownloadDenied,
                format!("the page offered the file {name:?}; no file is kept here"),
            ),
            _ => {
                Outcome::with_detail(OutcomeName::DialogDismissed, format!("a dialog was dismissed: {text}"))
            }
        }
    }

    /// How often an event happened in any tab, and the text of one of the last times.
    fn sum_over_tabs(&self, so_far: impl Fn(&BrowserTab) -> (u32, String)) -> (u32, String) {
        self.tabs.iter().map(so_far).fold((0, String::new()), |all, one| {
            (all.0 + one.0, if one.1.is_empty() { all.1 } else { one.1 })
        })
    }

    /// Waits until the page is quiet, or until its time is over and it has something to show.
    async fn wait_until_quiet(&self) -> Result<bool, EnvironmentError> {
        let settled =
            settle::settle(self.tab()?, &mut self.network_scope.egress.in_flight(), self.config.settle)
                .await?;
        if !settled {
            navigate::wait_for_content(self.tab()?).await?;
        }
        Ok(settled)
    }

    /// The browser's error page, if it is in front, and who caused it.
    async fn error_page(&self) -> Option<ErrorPage> {
        let url = navigate::unreachable_url(self.tab().ok()?).await.ok().flatten()?;
        let fault = match self.acted && self.network_scope.egress.is_answering(&url).await {
            true => FaultOwner::Policy,
            false => FaultOwner::Farm,
        };
        Some(ErrorPage { fault, url: url.chars().take(URL_CHARS_MAX).collect() })
    }

    /// Page time of a step with this many actions.
    fn step_time_for(&self, actions: usize) -> StepTime {
        match self.task.clock {
            PageClock::Virtual { step_millis } => StepTime::new(step_millis, actions),
            PageClock::Real => StepTime::new(0, actions),
        }
    }

    async fn settle_page(&mut self) -> Result<bool, EnvironmentError> {
        if !self.clock_stopped {
            let settled = self.wait_until_quiet().await?;
            self.apply_tab_changes().await?;
            return Ok(settled);
        }
        let rest = self.step_time.take_rest();
        // The time of the next step, which may be one without an action.
        self.step_time = self.step_time_for(1);
        // Navigations are followed before, because a page that is being left answers nothing, and
        // after, because the page may have navigated meanwhile.
        let before = self.follow_navigation().await?;
        if matches!(before, FollowResult::Completed | FollowResult::Unfinished) {
            return Ok(before == FollowResult::Completed);
        }
        clock::advance(self.tab()?, rest).await?;
        let after = self.follow_navigation().await?;
        Ok(![before, after]
            .iter()
            .any(|left| matches!(left, FollowResult::TimedOut | FollowResult::Unfinished)))
    }
}

#[async_trait]
impl Environment for BrowserContext {
    fn browser(&self) -> &str {
        &self.browser.name
    }

    async fn begin(&mut self) -> Result<Option<String>, EnvironmentError> {
        let outcome = self.navigate_in_turn().await?;
        if outcome.name == OutcomeName::NavigationFailed {
            return Err(EnvironmentError::Failed(format!("the start page did not load: {}", outcome.detail)));
        }
        self.wait_until_quiet().await?;
        self.check_not_blocked().await?;
        self.check_start_page().await?;
        let goal = match self.task.hooks.start_with(self.task.seed) {
            None => None,
            Some(start) => {
                let returned = script::evaluate_in_page(
                    self.tab()?,
                    &start,
                    self.config.deadlines.navigation,
                    "the task to start",
                )
                .await?;
                returned.as_str().map(str::to_owned)
            }
        };
        if let PageClock::Virtual { .. } = self.task.clock {
            clock::stop(self.tab()?).await?;
            self.clock_stopped = true;
            self.step_time = self.step_time_for(1);
        }
        Ok(goal)
    }

    async fn observe(&mut self) -> Result<Observation, EnvironmentError> {
        self.apply_tab_changes().await?;
        let tab = self.tab()?;
        let others: Vec<(usize, &BrowserTab)> = self
            .tabs
            .iter()
            .enumerate()
            .filter(|(index, tab)| *index != self.active && !tab.has_crashed())
            .collect();
        let look = ObservationRequest {
            tab,
            index: self.active,
            others: &others,
            spec: &self.task.observation,
            viewport: self.task.viewport,
            with_axtree: self.config.axtree,
            with_marks: self.config.marks,
        };
        observe::observe(&look).await
    }

    async fn hint(&mut self, goal: &str, step: u32) -> Result<Option<ActionHint>, EnvironmentError> {
        let Some(solve) = &self.task.hooks.solve else { return Ok(None) };
        let goal = Value::String(goal.to_owned());
        let seed = self.task.seed;
        let call = format!("(async (goal, seed, step) => {{ {solve}\n }})({goal}, {seed}, {step})");
        let hint = script::evaluate_isolated(
            self.tab()?,
            &call,
            self.config.deadlines.screenshot,
            "the demonstration",
        )
        .await?;
        Ok(Some(ActionHint { json: hint.to_string() }))
    }

    async fn act(&mut self, action: &Action) -> Result<Outcome, EnvironmentError> {
        if self.is_outside(action) {
            return Ok(Outcome::with_detail(OutcomeName::OutsidePage, "the point lies outside the page"));
        }
        self.acted = true;
        self.step_time = self.step_time_for(action.parts().len());
        self.arrival = match self.clock_stopped {
            true => Some(NavigationWatch::listen(self.tab()?).await?),
            false => None,
        };
        self.execute(action).await
    }

    async fn settle(&mut self, outcome: Outcome) -> Result<Outcome, EnvironmentError> {
        let settled = self.settle_page().await?;
        self.check_not_blocked().await?;
        let outcome = self.report_side_effects(outcome);
        if !settled && outcome.name == OutcomeName::Ok {
            return Ok(Outcome::with_detail(OutcomeName::NotSettled, "the page was still changing"));
        }
        Ok(outcome)
    }

    async fn probe(&mut self) -> Result<Option<String>, EnvironmentError> {
        let Some(probe) = self.task.hooks.probe.clone() else { return Ok(None) };
        let report =
            script::evaluate_in_page(self.tab()?, &probe, self.config.deadlines.input, "the probe").await?;
        Ok(Some(report.to_string()))
    }

    async fn evidence(&mut self) -> Option<Evidence> {
        let tab = self.tab().ok()?;
        if tab.has_hung() {
            // Even if it still hangs: no caller should wait for another deadline to learn that.
            tab.stop_script().await.ok()?;
        }
        // The interruption of the step may have left some of its time, which must not pass while
        // evidence is gathered.
        if self.clock_stopped && clock::stop(tab).await.is_err() {
            // A page that is being left answers when the navigation is stopped; one that loops
            // answers when its script is stopped.
            navigate::stop_loading(tab).await.ok()?;
            tab.stop_script().await.ok()?;
            clock::stop(tab).await.ok()?;
        }
        let mut captured = picture::screenshot(tab, &self.task.observation, self.task.viewport).await;
        if matches!(captured, Err(EnvironmentError::PageHang { .. })) {
            tab.stop_script().await.ok()?;
            navigate::ensure_content(tab).await.ok()?;
            captured = picture::screenshot(tab, &self.task.observation, self.task.viewport).await;
        }
        let entry = current_entry(tab).await.ok()?;
        let screenshot = captured.ok()?.bytes;
        let mut probe_json = self.probe().await.ok().flatten();
        if probe_json.as_deref().is_none_or(reports_error_page)
            && let Some(page) = self.error_page().await
        {
            probe_json = Some(page.report());
        }
        Some(Evidence {
            screenshot: Some(screenshot),
            url: Some(entry.url),
            title: Some(entry.title),
            answer: None,
            probe_json,
        })
    }

    fn unrecorded(&mut self) -> Vec<String> {
        self.network_scope.network.as_ref().map_or_else(Vec::new, NetworkInterceptor::unrecorded)
    }

    fn death_cause(&self) -> Option<String> {
        self.browser.overrun().map(|overrun| overrun.to_string())
    }

    async fn close(self: Box<Self>) {
        let BrowserContext { browser, id, network_scope: NetworkScope { egress, network, .. }, tabs, .. } =
            *self;
        drop(tabs);
        dispose_context(&browser, id).await;
        if let Some(network) = network {
            network.close().await;
        }
        egress.close().await;
    }
}

/// Whether a probe reports that it ran in an error page. Only the browser knows whether that is
/// true.
fn reports_error_page(json: &str) -> bool {
    serde_json::from_str(json).is_ok_and(|report| ErrorPage::is_reported(&report))
}

fn off_list_message(reason: BlockReason, host: &str) -> String {
    match reason {
        BlockReason::Scheme => "only http and https addresses can be loaded".to_owned(),
        _ => format!("{host} is not among the hosts of this task"),
    }
}
