//! The stage of one trajectory: a browser context of its own behind a filter of its own, and the pages in it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chromiumoxide::cdp::browser_protocol::browser::BrowserContextId;
use chromiumoxide::cdp::browser_protocol::target::TargetId;
use furrow_rollout::{
    Action, Ancestry, Button, Clock, EMPTY_PAGE, ErrorPage, Evidence, Fault, Hint, Observation, Outcome,
    OutcomeName, PagePoint, Size, Task,
};
use furrow_telemetry::{BlockReason, DialogDismissed, DownloadDenied, PopupClosed};
use futures::FutureExt;
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::blank::{Blank, empty_tab, throw_away};
use super::clock::StepTime;
use super::navigate::{Arrival, Left};
use super::network::Network;
use super::observe::{self, Look, current_entry};
use super::pool::Seat;
use super::select::{self, OpenList, Pick};
use super::tab::Tab;
use super::{act, blocked, clock, navigate, picture, script, settle};
use crate::config::BrowserConfig;
use crate::egress::Egress;
use crate::hosts::{AllowList, Place};
use crate::stage::{Stage, StageError};

/// Tabs that came or went and are not yet taken notice of; of a page gone mad, that opens and closes more than this in one step, the rest is
/// not told. Whatever it opens is counted against its tabs all the same.
pub(super) const CHANGES_MAX: usize = 64;

/// An address that goes into evidence is cut to this.
const URL_CHARS_MAX: usize = 2048;

/// Documents that lead on to another, each before its time is over; a page that leads on in a circle is kept where it is.
const DOCUMENTS_MAX: usize = 4;

/// A start page that takes longer waits for somebody else.
const TURN: Duration = Duration::from_secs(5);

/// A tab that came or went in a context.
#[derive(Debug)]
pub(super) enum Change {
    /// A page was opened by another.
    Opened(TargetId),
    /// A page was opened where there were enough, and is being closed.
    Refused,
    /// A page is gone.
    Closed(TargetId),
}

/// What came of a page that may have left by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Followed {
    /// It is there.
    Stays,
    /// It is there, because the address that it was left for did not answer.
    Late,
    /// Another document is there and had its time.
    Lived,
    /// Another document is there as far as it came.
    Unfinished,
}

/// How far a context reaches.
pub(super) struct Reach {
    /// The hosts of the task, for navigations the policy itself asks for.
    pub allow: AllowList,
    /// The way out.
    pub egress: Egress,
    /// What stands before it, where an archive is made or used.
    pub network: Option<Network>,
}

/// A browser context and its pages.
pub(super) struct Context {
    running: Seat,
    config: Arc<BrowserConfig>,
    /// Turns to load a start page.
    beginning: Arc<Semaphore>,
    of: Ancestry,
    id: BrowserContextId,
    task: Task,
    reach: Reach,
    /// Oldest first.
    tabs: Vec<Tab>,
    active: usize,
    /// The policy has acted: where its page leads from now on is its own doing.
    acted: bool,
    /// Where the mouse is, for actions that do not say where.
    mouse: PagePoint,
    changes: mpsc::Receiver<Change>,
    /// The page's clock is in our hand.
    clock_stopped: bool,
    /// Page time of the step under way.
    step_time: StepTime,
    /// Where the page goes by itself in that step, while its clock is in our hand.
    arrival: Option<Arrival>,
    /// Dialogs that were told of.
    dialogs_told: u32,
    /// Downloads that were told of.
    downloads_told: u32,
    popups_closed: u32,
}

impl Context {
    /// A blank context whose task has come.
    pub fn of(
        blank: Blank,
        config: Arc<BrowserConfig>,
        beginning: Arc<Semaphore>,
        of: Ancestry,
        task: Task,
        allow: AllowList,
        network: Option<Network>,
    ) -> Self {
        let Blank { running, id, egress, changes, tab, .. } = blank;
        let reach = Reach { allow, egress, network };
        Self {
            running,
            config,
            beginning,
            of,
            id,
            task,
            reach,
            tabs: vec![tab],
            active: 0,
            acted: false,
            mouse: PagePoint { x: 0.0, y: 0.0 },
            changes,
            clock_stopped: false,
            step_time: StepTime::new(0, 1),
            arrival: None,
            dialogs_told: 0,
            downloads_told: 0,
            popups_closed: 0,
        }
    }

    fn tab(&self) -> Result<&Tab, StageError> {
        let tab =
            self.tabs.get(self.active).ok_or_else(|| StageError::Failed("the context has no page".into()))?;
        tab.check().map(|()| tab)
    }

    /// Opens an empty tab and shows it.
    async fn add_tab(&mut self) -> Result<(), StageError> {
        let tab = empty_tab(&self.running, &self.id, &self.config, self.task.viewport).await?;
        self.tabs.push(tab);
        self.active = self.tabs.len() - 1;
        Ok(())
    }

    /// Takes notice of tabs that came or went: a new one comes to the front, as a person would see it.
    async fn notice(&mut self) -> Result<(), StageError> {
        while let Ok(change) = self.changes.try_recv() {
            match change {
                Change::Opened(target) if self.tabs.iter().any(|tab| *tab.target() == target) => {}
                Change::Opened(target) => self.welcome(target).await?,
                Change::Refused => {
                    self.popups_closed += 1;
                    PopupClosed { of: &self.of }.emit();
                }
                Change::Closed(target) => self.forget(&target),
            }
        }
        if self.tabs.is_empty() {
            self.add_tab().await?;
        }
        Ok(())
    }

    async fn welcome(&mut self, target: TargetId) -> Result<(), StageError> {
        let link = &self.running.link;
        // The protocol library attaches to new pages by itself, a moment after they are told of.
        for _ in 0..40 {
            if let Ok(page) = link.browser.get_page(target.clone()).await {
                let tab = Tab::adopt(page, link, self.task.viewport, &self.config).await?;
                self.tabs.push(tab);
                self.active = self.tabs.len() - 1;
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    fn forget(&mut self, target: &TargetId) {
        let Some(gone) = self.tabs.iter().position(|tab| tab.target() == target) else { return };
        self.tabs.remove(gone);
        if self.active >= gone && self.active > 0 {
            self.active -= 1;
        }
    }

    async fn navigate(&self, url: &str) -> Result<Outcome, StageError> {
        navigate::to(self.tab()?, url, self.config.settle.cap).await
    }

    /// Loads the start page in its turn. One that takes long is not what the others wait for: it takes little of this machine meanwhile.
    async fn navigate_in_turn(&self) -> Result<Outcome, StageError> {
        let turn = self.beginning.acquire().await.map_err(|closed| StageError::Failed(closed.to_string()))?;
        let mut loading = pin!(self.navigate(&self.task.start_url));
        if let Ok(outcome) = timeout(TURN, &mut loading).await {
            return outcome;
        }
        drop(turn);
        loading.await
    }

    /// A start page that is missing or refused is the suite's mistake: a policy must not earn a reward for what it could not do.
    async fn start_page_is_there(&self) -> Result<(), StageError> {
        let status = "performance.getEntriesByType('navigation')[0]?.responseStatus ?? 0";
        let deadline = self.config.deadlines.screenshot;
        let status = script::apart(self.tab()?, status, deadline, "the start page's status").await?;
        match status.as_u64() {
            Some(200..=299) => Ok(()),
            _ => {
                let blocked = self.reach.egress.blocked();
                Err(StageError::Failed(format!(
                    "the start page did not load: HTTP status {status}; {blocked}"
                )))
            }
        }
    }

    /// A site that refuses us ends the trajectory: nothing the policy could do would be its own doing.
    async fn is_served(&self) -> Result<(), StageError> {
        if !self.config.refusals.pages.concerns(&self.task) {
            return Ok(());
        }
        match blocked::refused(self.tab()?, self.config.refusals).await? {
            Some(why) => Err(StageError::Blocked(why)),
            None => Ok(()),
        }
    }

    /// The policy may only ask for what the task allows; what it asks for else is not done.
    async fn goto(&mut self, url: &str) -> Result<Outcome, StageError> {
        match self.reach.allow.judge(url) {
            Ok(Place { .. }) => self.while_it_loads(async |context| context.navigate(url).await).await,
            Err(off) => Ok(Outcome::told(OutcomeName::OffList, off_list(off.reason, &off.host))),
        }
    }

    async fn go_in_history(&mut self, places: i64) -> Result<Outcome, StageError> {
        match navigate::history_entry(self.tab()?, places).await? {
            Ok(entry) => {
                self.while_it_loads(async |context| navigate::to_entry(context.tab()?, entry).await).await
            }
            Err(no_history) => Ok(no_history),
        }
    }

    async fn open_tab(&mut self, url: &str) -> Result<Outcome, StageError> {
        let is_empty = url == EMPTY_PAGE;
        if let (false, Err(off)) = (is_empty, self.reach.allow.judge(url)) {
            return Ok(Outcome::told(OutcomeName::OffList, off_list(off.reason, &off.host)));
        }
        let most = self.config.tabs_max;
        if self.tabs.len() >= most as usize {
            return Ok(Outcome::told(OutcomeName::PopupClosed, format!("at most {most} tabs stay open")));
        }
        self.add_tab().await?;
        match is_empty {
            true => Ok(Outcome::named(OutcomeName::Ok)),
            false => self.while_it_loads(async |context| context.navigate(url).await).await,
        }
    }

    async fn click(&self, at: PagePoint) -> Result<Outcome, StageError> {
        // Asked at the moment of the click: a page may have closed since what it had open when it was last looked at.
        if let Some(list) = select::opened(self.tab()?).await? {
            match list.pick(at, self.task.viewport) {
                Pick::Steps(steps) => return self.choose(&list, steps).await,
                Pick::Nothing => return Ok(Outcome::told(OutcomeName::Ok, "that row cannot be chosen")),
                Pick::Outside => act::press(self.tab()?, "Escape").await?,
            }
        }
        act::click(self.tab()?, at, Button::Left, 1).await?;
        Ok(Outcome::named(OutcomeName::Ok))
    }

    /// Several actions, until one ends otherwise than well; what comes behind it was meant for a page that is not there.
    async fn do_several(&mut self, actions: &[Action]) -> Result<Outcome, StageError> {
        for (number, action) in (1..).zip(actions) {
            let outcome = Box::pin(self.do_it(action)).await?;
            if self.clock_stopped {
                self.follow().await?;
            }
            if outcome.name != OutcomeName::Ok {
                let Outcome { name, detail } = outcome;
                let left = actions.len() - number;
                return Ok(match left {
                    0 => Outcome::told(name, detail),
                    left => Outcome::told(
                        name,
                        format!("action {number}: {detail}; {left} after it were left out"),
                    ),
                });
            }
        }
        Ok(Outcome::named(OutcomeName::Ok))
    }

    /// Chooses a row of the open list by keyboard, and looks whether it was.
    async fn choose(&self, list: &OpenList, steps: i64) -> Result<Outcome, StageError> {
        let tab = self.tab()?;
        let key = if steps < 0 { "ArrowUp" } else { "ArrowDown" };
        if let Some((modifiers, key)) = act::key_named(key) {
            act::press_times(tab, key, modifiers, steps.unsigned_abs()).await?;
        }
        act::press(tab, "Enter").await?;
        let chosen = select::chosen(tab).await?;
        if chosen.is_some() && chosen == list.index_after(steps) {
            Ok(Outcome::named(OutcomeName::OptionChosen))
        } else {
            Ok(Outcome::told(
                OutcomeName::Ok,
                "the list closed, and another option than the one clicked is chosen",
            ))
        }
    }

    /// Loads a page. One that loads needs its clock: while it stands, no frame of the new document is ever drawn. So a document that comes gets the
    /// action's share of page time; the one that is left gets none of it, because it stays if no other comes: with an address within it, a
    /// download, a server that does not answer.
    async fn while_it_loads(
        &mut self,
        load: impl AsyncFnOnce(&Self) -> Result<Outcome, StageError>,
    ) -> Result<Outcome, StageError> {
        if !self.clock_stopped {
            return load(self).await;
        }
        let mut time = self.step_time;
        let patience = self.config.settle.cap;
        let mut arrival = Arrival::listen(self.tab()?).await?;
        let (over, asked) = oneshot::channel();
        let loading = async {
            let outcome = load(self).await;
            // Whoever listened no longer has to.
            over.send(()).ok();
            outcome
        };
        let living = async {
            let came = arrival.is_another_document(asked.map(drop), patience).await;
            // It may lead on by itself, but not before it is there.
            let next = Arrival::listen(self.tab()?).await?;
            let lived = !came || self.live(time.take_share()).await?;
            Ok::<_, StageError>((lived, next))
        };
        let (outcome, living) = tokio::join!(loading, living);
        self.step_time = time;
        let lived = living.map(|(lived, next)| {
            self.arrival = Some(next);
            lived
        });
        // Also what failed leaves a clock that stands, unless the page cannot be asked any more.
        if !self.tab()?.has_hung() {
            clock::stop(self.tab()?).await?;
        }
        match (outcome?, lived?) {
            (outcome, false) if outcome.name == OutcomeName::Ok => {
                Ok(Outcome::told(OutcomeName::NotSettled, "the page was still loading"))
            }
            (outcome, _) => Ok(outcome),
        }
    }

    /// So much page time for a document that came. Whether it had all of it: one whose requests are never answered is shown as far as it came.
    async fn live(&self, millis: u32) -> Result<bool, StageError> {
        let tab = self.tab()?;
        let lived = clock::advance_loading(tab, millis, self.config.settle.cap).await?;
        navigate::until_it_shows(tab).await?;
        Ok(lived)
    }

    /// Goes with a page that leaves by itself, by a link, a form or a script: while time stands still no document loads, and none that is not loaded is
    /// drawn. So one that comes gets the time of a step, as if it had been asked for.
    async fn follow(&mut self) -> Result<Followed, StageError> {
        let Clock::Virtual { step_millis } = self.task.clock else { return Ok(Followed::Stays) };
        let mut arrival = match self.arrival.take() {
            Some(arrival) if arrival.is_of(self.tab()?) => arrival,
            // Another tab came to the front: nothing has begun in it since.
            _ => Arrival::listen(self.tab()?).await?,
        };
        let mut followed = Followed::Stays;
        for _ in 0..DOCUMENTS_MAX {
            let left = arrival.outcome(self.tab()?).await?;
            match left {
                Left::No | Left::Stays | Left::Late => {
                    self.arrival = Some(arrival);
                    return Ok(if left == Left::Late { Followed::Late } else { followed });
                }
                Left::Came => {
                    arrival = Arrival::listen(self.tab()?).await?;
                    followed = match self.live(step_millis).await? {
                        true => Followed::Lived,
                        false => Followed::Unfinished,
                    };
                    clock::stop(self.tab()?).await?;
                }
            }
        }
        navigate::stop_loading(self.tab()?).await?;
        Ok(Followed::Unfinished)
    }

    /// Does one action and remembers where it left the mouse.
    async fn do_it(&mut self, action: &Action) -> Result<Outcome, StageError> {
        let outcome = self.do_one(action).await?;
        self.mouse = action.point().unwrap_or(self.mouse);
        Ok(outcome)
    }

    async fn do_one(&mut self, action: &Action) -> Result<Outcome, StageError> {
        let done = Outcome::named(OutcomeName::Ok);
        match action {
            Action::Click { at, button: Button::Left, count: 1 } => {
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
                let shown = self.shown();
                self.in_page_time(async |tab| act::scroll(tab, *at, *direction, *pixels, shown).await)
                    .await?;
            }
            Action::GoBack => return self.go_in_history(-1).await,
            Action::GoForward => return self.go_in_history(1).await,
            Action::Refresh => {
                return self.while_it_loads(async |context| navigate::again(context.tab()?).await).await;
            }
            Action::Restart => {
                let start = self.task.start_url.clone();
                return self.while_it_loads(async |context| context.navigate(&start).await).await;
            }
            Action::Goto { url } => return self.goto(url).await,
            Action::Wait { seconds } => self.wait(*seconds).await?,
            Action::Drag { from, to } => {
                let from = from.unwrap_or(self.mouse);
                self.in_page_time(async |tab| act::drag(tab, from, *to).await).await?;
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
                    return Ok(Outcome::told(OutcomeName::InvalidAction, why));
                }
            },
            Action::Several(actions) => return self.do_several(actions).await,
            Action::Answer { .. } => return Ok(Outcome::named(OutcomeName::Answered)),
        }
        Ok(done)
    }

    /// So many seconds instead of the action's share of the step's time. Without any the page is only looked at again, after the time of a step.
    async fn wait(&mut self, seconds: u8) -> Result<(), StageError> {
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

    /// While page time stands still a turned wheel and a move with a button held are never answered: they get their time while they happen.
    async fn in_page_time(
        &mut self,
        input: impl AsyncFnOnce(&Tab) -> Result<(), StageError>,
    ) -> Result<(), StageError> {
        if !self.clock_stopped {
            return input(self.tab()?).await;
        }
        let share = self.step_time.take_share();
        let tab = self.tab()?;
        let (passed, done) = tokio::join!(clock::advance(tab, share), input(tab));
        passed.and(done)
    }

    fn select_tab(&mut self, index: u32) -> Result<Outcome, StageError> {
        let place = index as usize;
        if place >= self.tabs.len() {
            let why = format!("there is no tab {index}; there are {}", self.tabs.len());
            return Ok(Outcome::told(OutcomeName::NoSuchTab, why));
        }
        self.active = place;
        Ok(Outcome::named(OutcomeName::Ok))
    }

    /// The part of the page that the policy is shown.
    fn shown(&self) -> Size {
        self.task.observation.clip.unwrap_or(self.task.viewport)
    }

    fn is_outside(&self, action: &Action) -> bool {
        let Size { width, height } = self.shown();
        let outside =
            |at: &PagePoint| !(0.0..=width as f32).contains(&at.x) || !(0.0..=height as f32).contains(&at.y);
        action.parts().iter().any(|part| match part {
            Action::Drag { from, to } => from.as_ref().is_some_and(outside) || outside(to),
            other => other.point().is_some_and(|at| outside(&at)),
        })
    }

    /// What happened beside the action is worth more to the policy than that it was carried out. Each dialog, download and window is counted;
    /// one of them is told.
    fn beside(&mut self, outcome: Outcome) -> Outcome {
        let (dialogs, text) = self.all_tabs(Tab::dialogs);
        let (downloads, name) = self.all_tabs(Tab::downloads);
        let new_dialogs = dialogs.saturating_sub(std::mem::replace(&mut self.dialogs_told, dialogs));
        let new_downloads = downloads.saturating_sub(std::mem::replace(&mut self.downloads_told, downloads));
        let popups = std::mem::take(&mut self.popups_closed);
        (0..new_dialogs).for_each(|_| DialogDismissed { of: &self.of }.emit());
        (0..new_downloads).for_each(|_| DownloadDenied { of: &self.of }.emit());
        match (new_dialogs, new_downloads, popups) {
            _ if outcome.name != OutcomeName::Ok => outcome,
            (0, 0, 0) => outcome,
            (0, 0, popups) => {
                let most = self.config.tabs_max;
                let detail = format!("{popups} tabs were closed; at most {most} stay open");
                Outcome::told(OutcomeName::PopupClosed, detail)
            }
            (0, _, _) => Outcome::told(
                OutcomeName::DownloadDenied,
                format!("the page offered the file {name:?}; no file is kept here"),
            ),
            _ => Outcome::told(OutcomeName::DialogDismissed, format!("a dialog was dismissed: {text}")),
        }
    }

    /// How often something happened in any tab, and the words of one of the last times.
    fn all_tabs(&self, so_far: impl Fn(&Tab) -> (u32, String)) -> (u32, String) {
        self.tabs.iter().map(so_far).fold((0, String::new()), |all, one| {
            (all.0 + one.0, if one.1.is_empty() { all.1 } else { one.1 })
        })
    }

    /// Waits until the page is quiet, or has had its time and has something to show.
    async fn quiet(&self) -> Result<bool, StageError> {
        let settled =
            settle::settle(self.tab()?, &mut self.reach.egress.in_flight(), self.config.settle).await?;
        if !settled {
            navigate::until_it_shows(self.tab()?).await?;
        }
        Ok(settled)
    }

    /// The browser's error page, where it is in front, and whose doing that is.
    async fn error_page(&self) -> Option<ErrorPage> {
        let url = navigate::unreached(self.tab().ok()?).await.ok().flatten()?;
        let fault = match self.acted && self.reach.egress.answers(&url).await {
            true => Fault::Policy,
            false => Fault::Farm,
        };
        Some(ErrorPage { fault, url: url.chars().take(URL_CHARS_MAX).collect() })
    }

    /// Page time of a step with so many actions.
    fn time_of_step(&self, actions: usize) -> StepTime {
        match self.task.clock {
            Clock::Virtual { step_millis } => StepTime::new(step_millis, actions),
            Clock::Real => StepTime::new(0, actions),
        }
    }

    async fn settle_page(&mut self) -> Result<bool, StageError> {
        if !self.clock_stopped {
            let settled = self.quiet().await?;
            self.notice().await?;
            return Ok(settled);
        }
        let rest = self.step_time.take_rest();
        // The next step's, which may be one without an action.
        self.step_time = self.time_of_step(1);
        // Followed before, because a page that is being left answers nothing, and after, for where it went meanwhile.
        let before = self.follow().await?;
        if matches!(before, Followed::Lived | Followed::Unfinished) {
            return Ok(before == Followed::Lived);
        }
        clock::advance(self.tab()?, rest).await?;
        let after = self.follow().await?;
        Ok(![before, after].iter().any(|left| matches!(left, Followed::Late | Followed::Unfinished)))
    }
}

#[async_trait]
impl Stage for Context {
    fn browser(&self) -> &str {
        &self.running.name
    }

    async fn begin(&mut self) -> Result<Option<String>, StageError> {
        let outcome = self.navigate_in_turn().await?;
        if outcome.name == OutcomeName::NavigationFailed {
            return Err(StageError::Failed(format!("the start page did not load: {}", outcome.detail)));
        }
        self.quiet().await?;
        self.is_served().await?;
        self.start_page_is_there().await?;
        let goal = match self.task.hooks.start_with(self.task.seed) {
            None => None,
            Some(start) => {
                let told = script::in_page(
                    self.tab()?,
                    &start,
                    self.config.deadlines.navigation,
                    "the task to start",
                )
                .await?;
                told.as_str().map(str::to_owned)
            }
        };
        if let Clock::Virtual { .. } = self.task.clock {
            clock::stop(self.tab()?).await?;
            self.clock_stopped = true;
            self.step_time = self.time_of_step(1);
        }
        Ok(goal)
    }

    async fn observe(&mut self) -> Result<Observation, StageError> {
        self.notice().await?;
        let tab = self.tab()?;
        let others: Vec<(usize, &Tab)> = self
            .tabs
            .iter()
            .enumerate()
            .filter(|(place, tab)| *place != self.active && !tab.has_crashed())
            .collect();
        let look = Look {
            tab,
            place: self.active,
            others: &others,
            spec: &self.task.observation,
            viewport: self.task.viewport,
            with_axtree: self.config.axtree,
            with_marks: self.config.marks,
        };
        observe::observe(&look).await
    }

    async fn hint(&mut self, goal: &str, step: u32) -> Result<Option<Hint>, StageError> {
        let Some(solve) = &self.task.hooks.solve else { return Ok(None) };
        let (goal, seed) = (Value::String(goal.to_owned()), self.task.seed);
        let call = format!("(async (goal, seed, step) => {{ {solve}\n }})({goal}, {seed}, {step})");
        let hint =
            script::apart(self.tab()?, &call, self.config.deadlines.screenshot, "the demonstration").await?;
        Ok(Some(Hint { json: hint.to_string() }))
    }

    async fn act(&mut self, action: &Action) -> Result<Outcome, StageError> {
        if self.is_outside(action) {
            return Ok(Outcome::told(OutcomeName::OutsidePage, "the point lies outside the page"));
        }
        self.acted = true;
        self.step_time = self.time_of_step(action.parts().len());
        self.arrival = match self.clock_stopped {
            true => Some(Arrival::listen(self.tab()?).await?),
            false => None,
        };
        self.do_it(action).await
    }

    async fn settle(&mut self, outcome: Outcome) -> Result<Outcome, StageError> {
        let settled = self.settle_page().await?;
        self.is_served().await?;
        let outcome = self.beside(outcome);
        if !settled && outcome.name == OutcomeName::Ok {
            return Ok(Outcome::told(OutcomeName::NotSettled, "the page was still changing"));
        }
        Ok(outcome)
    }

    async fn probe(&mut self) -> Result<Option<String>, StageError> {
        let Some(probe) = self.task.hooks.probe.clone() else { return Ok(None) };
        let told = script::in_page(self.tab()?, &probe, self.config.deadlines.input, "the probe").await?;
        Ok(Some(told.to_string()))
    }

    async fn evidence(&mut self) -> Option<Evidence> {
        let tab = self.tab().ok()?;
        if tab.has_hung() {
            // Whether or not it still hangs: nobody is to wait for another deadline to learn that.
            tab.stop_script().await.ok()?;
        }
        // What cut the step off may have left some of its time, which must not pass under the evidence.
        if self.clock_stopped && clock::stop(tab).await.is_err() {
            // One that is being left answers when it no longer is, one that loops when it is stopped.
            navigate::stop_loading(tab).await.ok()?;
            tab.stop_script().await.ok()?;
            clock::stop(tab).await.ok()?;
        }
        let mut seen = picture::screenshot(tab, &self.task.observation, self.task.viewport).await;
        if matches!(seen, Err(StageError::PageHang { .. })) {
            tab.stop_script().await.ok()?;
            navigate::show_something(tab).await.ok()?;
            seen = picture::screenshot(tab, &self.task.observation, self.task.viewport).await;
        }
        let entry = current_entry(tab).await.ok()?;
        let screenshot = seen.ok()?.bytes;
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
        self.reach.network.as_ref().map_or_else(Vec::new, Network::unrecorded)
    }

    fn cause_of_death(&self) -> Option<String> {
        self.running.overrun().map(|overrun| overrun.to_string())
    }

    async fn close(self: Box<Self>) {
        let Context { running, id, reach: Reach { egress, network, .. }, tabs, .. } = *self;
        drop(tabs);
        throw_away(&running, id).await;
        if let Some(network) = network {
            network.close().await;
        }
        egress.close().await;
    }
}

/// Whether a probe says that it ran in an error page. Only the browser knows whether that is true.
fn reports_error_page(json: &str) -> bool {
    serde_json::from_str(json).is_ok_and(|report| ErrorPage::is_reported(&report))
}

fn off_list(reason: BlockReason, host: &str) -> String {
    match reason {
        BlockReason::Scheme => "only http and https addresses can be loaded".to_owned(),
        _ => format!("{host} is not among the hosts of this task"),
    }
}
