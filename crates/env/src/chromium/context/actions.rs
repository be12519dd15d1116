//! Executes the actions of a policy in the tabs of its context.

use std::time::Duration;

use furrow_rollout::{Action, EMPTY_PAGE, Outcome, OutcomeName, PagePoint, PointerButton, Size, Task};
use furrow_telemetry::BlockReason;

use super::page_time::PageTime;
use super::tabs::ContextTabs;
use crate::chromium::select::{self, OpenList, PickResult};
use crate::chromium::tab::BrowserTab;
use crate::chromium::{act, navigate};
use crate::config::BrowserConfig;
use crate::environment::EnvironmentError;
use crate::hosts::{AllowList, HostPort};

pub(super) struct ActionExecutor {
    /// The hosts of the task, for navigations that the policy itself requests.
    allow: AllowList,
    start_url: String,
    viewport: Size,
    /// Size of the part of a page that the policy sees.
    visible: Size,
    tabs_max: u32,
    /// Longest wait for a page that has content.
    settle_timeout: Duration,
    /// Mouse position, for actions without a point.
    mouse: PagePoint,
}

impl ActionExecutor {
    pub fn new(task: &Task, allow: AllowList, config: &BrowserConfig) -> Self {
        Self {
            allow,
            start_url: task.start_url.clone(),
            viewport: task.viewport,
            visible: task.observation.clip.unwrap_or(task.viewport),
            tabs_max: config.tabs_max,
            settle_timeout: config.settle.cap,
            mouse: PagePoint { x: 0.0, y: 0.0 },
        }
    }

    /// Whether a point of the action lies outside the page.
    pub fn is_outside(&self, action: &Action) -> bool {
        let Size { width, height } = self.visible;
        let outside =
            |at: &PagePoint| !(0.0..=width as f32).contains(&at.x) || !(0.0..=height as f32).contains(&at.y);
        action.parts().iter().any(|part| match part {
            Action::Drag { from, to } => from.as_ref().is_some_and(outside) || outside(to),
            other => other.point().is_some_and(|at| outside(&at)),
        })
    }

    /// Executes one action and remembers the mouse position.
    pub async fn execute(
        &mut self,
        action: &Action,
        tabs: &mut ContextTabs,
        time: &mut PageTime,
    ) -> Result<Outcome, EnvironmentError> {
        let outcome = self.execute_one(action, tabs, time).await?;
        self.mouse = action.point().unwrap_or(self.mouse);
        Ok(outcome)
    }

    async fn execute_one(
        &mut self,
        action: &Action,
        tabs: &mut ContextTabs,
        time: &mut PageTime,
    ) -> Result<Outcome, EnvironmentError> {
        let done = Outcome::named(OutcomeName::Ok);
        match action {
            Action::Click { at, button: PointerButton::Left, count: 1 } => {
                return self.click(at.unwrap_or(self.mouse), tabs).await;
            }
            Action::Click { at, button, count } => {
                act::click(tabs.active()?, at.unwrap_or(self.mouse), *button, *count).await?;
            }
            Action::Move { at } => act::hover(tabs.active()?, *at).await?,
            Action::Write { into, content, press_enter } => {
                act::write(tabs.active()?, *into, content, *press_enter).await?;
            }
            Action::Scroll { at, direction, pixels } => {
                let shown = self.visible;
                time.grant_during(tabs, async |tab| act::scroll(tab, *at, *direction, *pixels, shown).await)
                    .await?;
            }
            Action::GoBack => return go_in_history(-1, tabs, time).await,
            Action::GoForward => return go_in_history(1, tabs, time).await,
            Action::Refresh => {
                return time.load(tabs, async |tabs| navigate::reload(tabs.active()?).await).await;
            }
            Action::Restart => return self.load(&self.start_url, tabs, time).await,
            Action::Goto { url } => return self.goto(url, tabs, time).await,
            Action::Wait { seconds } => time.wait(tabs, *seconds).await?,
            Action::Drag { from, to } => {
                let from = from.unwrap_or(self.mouse);
                time.grant_during(tabs, async |tab| act::drag(tab, from, *to).await).await?;
            }
            Action::SelectTab { index } => return Ok(tabs.select(*index)),
            Action::OpenTab { url } => return self.open_tab(url, tabs, time).await,
            Action::PressKey { key, times } => match act::key_named(key) {
                Some((modifiers, key)) => {
                    act::press_times(tabs.active()?, key, modifiers, u64::from(*times)).await?;
                }
                None => {
                    let why = format!(
                        "there is no key {key:?}; use names such as Enter, Tab, ArrowDown or Control+a"
                    );
                    return Ok(Outcome::with_detail(OutcomeName::InvalidAction, why));
                }
            },
            Action::Several(actions) => return self.execute_several(actions, tabs, time).await,
            Action::Answer { .. } => return Ok(Outcome::named(OutcomeName::Answered)),
        }
        Ok(done)
    }

    /// Executes several actions until one has another outcome than `ok`; the actions after it were
    /// meant for a page in another state.
    async fn execute_several(
        &mut self,
        actions: &[Action],
        tabs: &mut ContextTabs,
        time: &mut PageTime,
    ) -> Result<Outcome, EnvironmentError> {
        for (number, action) in (1..).zip(actions) {
            let outcome = Box::pin(self.execute(action, tabs, time)).await?;
            time.continue_step(tabs).await?;
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

    async fn click(&self, at: PagePoint, tabs: &ContextTabs) -> Result<Outcome, EnvironmentError> {
        // Queried at the moment of the click: a page may have closed its list since the last
        // observation.
        if let Some(list) = select::find_open_list(tabs.active()?).await? {
            match list.pick(at, self.viewport) {
                PickResult::Steps(steps) => return choose_option(tabs.active()?, &list, steps).await,
                PickResult::Nothing => {
                    return Ok(Outcome::with_detail(OutcomeName::Ok, "that row cannot be chosen"));
                }
                PickResult::Outside => act::press(tabs.active()?, "Escape").await?,
            }
        }
        act::click(tabs.active()?, at, PointerButton::Left, 1).await?;
        Ok(Outcome::named(OutcomeName::Ok))
    }

    /// The policy may only request addresses that the task allows; other requests are not executed.
    async fn goto(
        &self,
        url: &str,
        tabs: &ContextTabs,
        time: &mut PageTime,
    ) -> Result<Outcome, EnvironmentError> {
        match self.allow.check_url(url) {
            Ok(HostPort { .. }) => self.load(url, tabs, time).await,
            Err(off) => {
                Ok(Outcome::with_detail(OutcomeName::OffList, off_list_message(off.reason, &off.host)))
            }
        }
    }

    async fn open_tab(
        &self,
        url: &str,
        tabs: &mut ContextTabs,
        time: &mut PageTime,
    ) -> Result<Outcome, EnvironmentError> {
        let is_empty = url == EMPTY_PAGE;
        if let (false, Err(off)) = (is_empty, self.allow.check_url(url)) {
            return Ok(Outcome::with_detail(OutcomeName::OffList, off_list_message(off.reason, &off.host)));
        }
        let most = self.tabs_max;
        if tabs.count() >= most as usize {
            return Ok(Outcome::with_detail(
                OutcomeName::PopupClosed,
                format!("at most {most} tabs stay open"),
            ));
        }
        tabs.add().await?;
        match is_empty {
            true => Ok(Outcome::named(OutcomeName::Ok)),
            false => self.load(url, tabs, time).await,
        }
    }

    async fn load(
        &self,
        url: &str,
        tabs: &ContextTabs,
        time: &mut PageTime,
    ) -> Result<Outcome, EnvironmentError> {
        let settle_timeout = self.settle_timeout;
        time.load(tabs, async |tabs| navigate::navigate_to(tabs.active()?, url, settle_timeout).await).await
    }
}

async fn go_in_history(
    offset: i64,
    tabs: &ContextTabs,
    time: &mut PageTime,
) -> Result<Outcome, EnvironmentError> {
    match navigate::history_entry(tabs.active()?, offset).await? {
        Ok(entry) => {
            time.load(tabs, async |tabs| navigate::navigate_to_entry(tabs.active()?, entry).await).await
        }
        Err(no_history) => Ok(no_history),
    }
}

/// Chooses a row of the open list by keyboard and verifies the choice.
async fn choose_option(tab: &BrowserTab, list: &OpenList, steps: i64) -> Result<Outcome, EnvironmentError> {
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

fn off_list_message(reason: BlockReason, host: &str) -> String {
    match reason {
        BlockReason::Scheme => "only http and https addresses can be loaded".to_owned(),
        _ => format!("{host} is not among the hosts of this task"),
    }
}
