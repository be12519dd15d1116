//! Executes the actions of a policy in the tabs of its context.

use std::time::Duration;

use furrow_rollout::{
    Action, EMPTY_PAGE, Modifiers, Outcome, OutcomeName, PagePoint, PointerButton, Size, Task,
};
use furrow_telemetry::BlockReason;

use super::files::ContextFiles;
use super::page_time::PageTime;
use super::pressed::PressedInput;
use super::tabs::ContextTabs;
use crate::chromium::input::{InputState, KEYS_DOWN_MAX};
use crate::chromium::keyboard::{KeyChord, KeyboardKey};
use crate::chromium::select::{self, OpenList, PickResult};
use crate::chromium::tab::BrowserTab;
use crate::chromium::{act, fill, navigate, observe};
use crate::config::BrowserConfig;
use crate::environment::EnvironmentError;
use crate::hosts::{AllowList, HostPort};
use crate::secrets::{SecretText, TrajectorySecrets};

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
    pub files: ContextFiles,
    /// Keys and buttons that are down, and the mouse position for actions without a point.
    pressed: PressedInput,
    /// The values that its task may type.
    secrets: TrajectorySecrets,
}

/// A key that stays down repeats after this time, then at this interval, as on a desktop.
const REPEAT_DELAY_MILLIS: u32 = 500;
const REPEAT_INTERVAL_MILLIS: u32 = 50;

impl ActionExecutor {
    pub(super) fn new(
        task: &Task,
        allow: AllowList,
        config: &BrowserConfig,
        files: ContextFiles,
        secrets: TrajectorySecrets,
    ) -> Self {
        Self {
            allow,
            start_url: task.start_url.clone(),
            viewport: task.viewport,
            visible: task.observation.clip.unwrap_or(task.viewport),
            tabs_max: config.tabs_max,
            settle_timeout: config.settle.cap,
            files,
            pressed: PressedInput::new(),
            secrets,
        }
    }

    /// Whether a point of the action lies outside the page.
    pub(super) fn is_outside(&self, action: &Action) -> bool {
        let Size { width, height } = self.visible;
        let outside =
            |at: &PagePoint| !(0.0..=width as f32).contains(&at.x) || !(0.0..=height as f32).contains(&at.y);
        action.parts().iter().any(|part| match part {
            Action::Drag { from, to, .. } => from.as_ref().is_some_and(outside) || outside(to),
            other => other.point().is_some_and(|at| outside(&at)),
        })
    }

    /// Executes one action and remembers the mouse position.
    pub(super) async fn execute(
        &mut self,
        action: &Action,
        tabs: &mut ContextTabs,
        time: &mut PageTime,
    ) -> Result<Outcome, EnvironmentError> {
        let released = self.pressed.release_if_left(tabs).await?;
        let outcome = self.execute_one(action, tabs, time).await?;
        let mouse = action.point().unwrap_or(self.pressed.state.mouse());
        self.pressed.state.set_mouse(mouse);
        Ok(with_released(outcome, released))
    }

    /// Releases what is down if its page is no longer in front, and says so in the outcome.
    pub(super) async fn release_if_left(
        &mut self,
        tabs: &ContextTabs,
        outcome: Outcome,
    ) -> Result<Outcome, EnvironmentError> {
        let released = self.pressed.release_if_left(tabs).await?;
        Ok(with_released(outcome, released))
    }

    async fn execute_one(
        &mut self,
        action: &Action,
        tabs: &mut ContextTabs,
        time: &mut PageTime,
    ) -> Result<Outcome, EnvironmentError> {
        match action {
            Action::Click { .. }
            | Action::Move { .. }
            | Action::Scroll { .. }
            | Action::Drag { .. }
            | Action::MouseDown { .. }
            | Action::MouseUp { .. } => self.use_mouse(action, tabs, time).await,
            Action::PressKey { .. }
            | Action::HoldKey { .. }
            | Action::KeyDown { .. }
            | Action::KeyUp { .. }
            | Action::Write { .. } => self.use_keyboard(action, tabs, time).await,
            Action::GoBack => go_in_history(-1, tabs, time).await,
            Action::GoForward => go_in_history(1, tabs, time).await,
            Action::Refresh => time.load(tabs, async |tabs| navigate::reload(tabs.active()?).await).await,
            Action::Restart => self.load(&self.start_url, tabs, time).await,
            Action::Goto { url } => self.goto(url, tabs, time).await,
            Action::Wait { seconds } => {
                time.wait(tabs, *seconds).await?;
                Ok(Outcome::named(OutcomeName::Ok))
            }
            Action::SelectTab { index } => Ok(tabs.select(*index)),
            Action::OpenTab { url } => self.open_tab(url, tabs, time).await,
            Action::Upload { names } => self.files.upload(names, tabs.active()?).await,
            Action::Several(actions) => self.execute_several(actions, tabs, time).await,
            Action::Answer { .. } => Ok(Outcome::named(OutcomeName::Answered)),
        }
    }

    async fn use_mouse(
        &mut self,
        action: &Action,
        tabs: &ContextTabs,
        time: &mut PageTime,
    ) -> Result<Outcome, EnvironmentError> {
        let input = &mut self.pressed.state;
        // A move with a button down needs page time.
        let drags = input.has_button_down();
        match action {
            Action::Click { at, button: PointerButton::Left, count: 1, modifiers } => {
                let at = at.unwrap_or(input.mouse());
                return self.click(at, *modifiers, tabs, time).await;
            }
            Action::Click { at, button, count, modifiers } => {
                let at = at.unwrap_or(input.mouse());
                time.grant_if(drags, tabs, async |tab| {
                    act::click(tab, input, at, *button, *count, *modifiers).await
                })
                .await?;
            }
            Action::Move { at, modifiers } => {
                time.grant_if(drags, tabs, async |tab| act::hover(tab, input, *at, *modifiers).await).await?;
            }
            Action::Scroll { at, direction, pixels, modifiers } => {
                let shown = self.visible;
                time.grant_during(tabs, async |tab| {
                    act::scroll(tab, input, *at, (*direction, *pixels), shown, *modifiers).await
                })
                .await?;
            }
            Action::Drag { from, to, modifiers } => {
                let from = from.unwrap_or(input.mouse());
                time.grant_during(tabs, async |tab| act::drag(tab, input, from, *to, *modifiers).await)
                    .await?;
            }
            Action::MouseDown { at, button } => return self.mouse_down(*at, *button, tabs, time).await,
            Action::MouseUp { at, button } => return self.mouse_up(*at, *button, tabs, time).await,
            other => return Err(EnvironmentError::Failed(format!("{} is not of the mouse", other.kind()))),
        }
        Ok(Outcome::named(OutcomeName::Ok))
    }

    async fn use_keyboard(
        &mut self,
        action: &Action,
        tabs: &ContextTabs,
        time: &mut PageTime,
    ) -> Result<Outcome, EnvironmentError> {
        if let Action::Write { into, content, press_enter } = action
            && let Some(text) = self.secrets.clone().fill(content)
        {
            return self.fill(*into, &text, *press_enter, tabs, time).await;
        }
        let input = &mut self.pressed.state;
        let key = match action {
            Action::Write { into, content, press_enter } => {
                let is_slow = into.is_some() && input.has_button_down();
                let modifiers = input.modifier_names();
                time.grant_if(is_slow, tabs, async |tab| {
                    act::write(tab, input, *into, content, *press_enter).await
                })
                .await?;
                let detail = modifiers.map(|names| format!("it was typed while {names} was down"));
                return Ok(Outcome::with_detail(OutcomeName::Ok, detail.unwrap_or_default()));
            }
            Action::PressKey { key, .. }
            | Action::HoldKey { key, .. }
            | Action::KeyDown { key }
            | Action::KeyUp { key } => key,
            other => return Err(EnvironmentError::Failed(format!("{} is not of a key", other.kind()))),
        };
        let Some(chord) = KeyChord::named(key) else {
            let why =
                format!("there is no key {key:?}; use names such as Enter, Tab, ArrowDown or Control+a");
            return Ok(Outcome::with_detail(OutcomeName::InvalidAction, why));
        };
        match action {
            Action::PressKey { times, .. } => {
                act::press_chord(tabs.active()?, input, &chord, u64::from(*times)).await?;
            }
            Action::HoldKey { millis, .. } => self.hold_key(&chord, *millis, tabs, time).await?,
            Action::KeyDown { .. } => return self.key_down(&chord, tabs.active()?).await,
            _ => return self.key_up(&chord, tabs.active()?).await,
        }
        Ok(Outcome::named(OutcomeName::Ok))
    }

    /// Types a text with secrets in it, if the page in front may have them.
    async fn fill(
        &mut self,
        into: Option<PagePoint>,
        text: &SecretText<'_>,
        press_enter: bool,
        tabs: &ContextTabs,
        time: &mut PageTime,
    ) -> Result<Outcome, EnvironmentError> {
        let refused = |why: String| Ok(Outcome::with_detail(OutcomeName::InvalidAction, why));
        let address = observe::current_entry(tabs.active()?).await?.url;
        let host = HostPort::parse_url(&address).map(|page| page.host.to_string()).unwrap_or_default();
        if let Some(why) = text.refusal(&host) {
            return refused(why);
        }
        let input = &mut self.pressed.state;
        if let Some(at) = into {
            let is_slow = input.has_button_down();
            time.grant_if(is_slow, tabs, async |tab| act::select_field(tab, input, at).await).await?;
        }
        if let Err(why) = fill::fill(tabs.active()?, text).await? {
            return refused(why);
        }
        if press_enter {
            act::press(tabs.active()?, input, "Enter").await?;
        }
        Ok(Outcome::named(OutcomeName::Ok))
    }

    /// Executes several actions until one has another outcome than `ok`; the actions after it were
    /// meant for a page in another state. Only keys and buttons that they release are released.
    async fn execute_several(
        &mut self,
        actions: &[Action],
        tabs: &mut ContextTabs,
        time: &mut PageTime,
    ) -> Result<Outcome, EnvironmentError> {
        let mut details = Vec::new();
        for (number, action) in (1..).zip(actions) {
            let outcome = Box::pin(self.execute(action, tabs, time)).await?;
            time.continue_step(tabs).await?;
            let Outcome { name, detail } = outcome;
            if name != OutcomeName::Ok {
                let left = &actions[number..];
                if left.is_empty() {
                    return Ok(Outcome::with_detail(name, detail));
                }
                let released = self.release_skipped(left, tabs.active()?).await?;
                let released = released.map(|names| format!(", and {names} released")).unwrap_or_default();
                let skipped = left.len();
                return Ok(Outcome::with_detail(
                    name,
                    format!("action {number}: {detail}; {skipped} after it were skipped{released}"),
                ));
            }
            details.extend((!detail.is_empty()).then(|| format!("action {number}: {detail}")));
        }
        Ok(Outcome::with_detail(OutcomeName::Ok, details.join("; ")))
    }

    /// Releases what skipped actions would have released, where the mouse is now: a step that stops
    /// half-way leaves nothing down that it meant to release.
    async fn release_skipped(
        &mut self,
        skipped: &[Action],
        tab: &BrowserTab,
    ) -> Result<Option<String>, EnvironmentError> {
        let mut names = Vec::new();
        let input = &mut self.pressed.state;
        for action in skipped {
            match action {
                Action::KeyUp { key } => {
                    let mut events = Vec::new();
                    let chord = KeyChord::named(key);
                    input.release_all(chord.as_ref().map_or(&[], KeyChord::keys), &mut events);
                    names.extend((!events.is_empty()).then(|| key.clone()));
                    act::send(tab, events, "a key").await?;
                }
                Action::MouseUp { button, .. } if input.is_button_down(*button) => {
                    act::release_button(tab, input, *button).await?;
                    names.push(format!("the {} button", button.as_str()));
                }
                _ => {}
            }
        }
        Ok((!names.is_empty()).then(|| names.join(", ")))
    }

    async fn click(
        &mut self,
        at: PagePoint,
        modifiers: Modifiers,
        tabs: &ContextTabs,
        time: &mut PageTime,
    ) -> Result<Outcome, EnvironmentError> {
        let input = &mut self.pressed.state;
        // Queried at the moment of the click: a page may have closed its list since the last
        // observation.
        if let Some(list) = select::find_open_list(tabs.active()?).await? {
            match list.pick(at, self.viewport) {
                PickResult::Steps(steps) => return choose_option(tabs.active()?, input, &list, steps).await,
                PickResult::Nothing => {
                    return Ok(Outcome::with_detail(OutcomeName::Ok, "that row cannot be chosen"));
                }
                PickResult::Outside => act::press(tabs.active()?, input, "Escape").await?,
            }
        }
        time.grant_if(input.has_button_down(), tabs, async |tab| {
            act::click(tab, input, at, PointerButton::Left, 1, modifiers).await
        })
        .await?;
        Ok(Outcome::named(OutcomeName::Ok))
    }

    /// Keeps a combination of keys down for a while; the last one repeats.
    async fn hold_key(
        &mut self,
        chord: &KeyChord,
        millis: u32,
        tabs: &ContextTabs,
        time: &mut PageTime,
    ) -> Result<(), EnvironmentError> {
        let input = &mut self.pressed.state;
        let tab = tabs.active()?;
        let mut events = Vec::new();
        let pressed = input.press_missing(chord.keys(), &mut events);
        act::send(tab, events, "a key").await?;
        time.replace_share();
        let repeated = chord.last().filter(|key| key.modifier().is_none());
        let mut left = millis;
        let mut pause = if repeated.is_some() { REPEAT_DELAY_MILLIS } else { millis };
        while left > 0 {
            time.pass(tabs, pause.min(left)).await?;
            left = left.saturating_sub(pause);
            pause = REPEAT_INTERVAL_MILLIS;
            if let Some(key) = repeated.filter(|_| left > 0) {
                act::send(tab, vec![input.press_key(key)], "a key").await?;
            }
        }
        let mut events = Vec::new();
        input.release_all(&pressed, &mut events);
        act::send(tab, events, "a key").await
    }

    async fn key_down(&mut self, chord: &KeyChord, tab: &BrowserTab) -> Result<Outcome, EnvironmentError> {
        let up = |input: &InputState| chord.keys().iter().filter(|key| !input.is_key_down(key)).count();
        let missing = up(&self.pressed.state);
        if self.pressed.state.keys_down() + missing > KEYS_DOWN_MAX {
            let down = self.pressed.state.names();
            let why = format!("at most {KEYS_DOWN_MAX} keys stay down; release one of {down} first");
            return Ok(Outcome::with_detail(OutcomeName::InvalidAction, why));
        }
        if missing == 0 {
            return Ok(unchanged(&names(chord.keys()), "already down"));
        }
        self.pressed.note_origin(tab).await?;
        let mut events = Vec::new();
        self.pressed.state.press_missing(chord.keys(), &mut events);
        act::send(tab, events, "a key").await?;
        Ok(Outcome::named(OutcomeName::Ok))
    }

    async fn key_up(&mut self, chord: &KeyChord, tab: &BrowserTab) -> Result<Outcome, EnvironmentError> {
        let mut events = Vec::new();
        self.pressed.state.release_all(chord.keys(), &mut events);
        if events.is_empty() {
            return Ok(unchanged(&names(chord.keys()), "not down"));
        }
        act::send(tab, events, "a key").await?;
        Ok(Outcome::named(OutcomeName::Ok))
    }

    async fn mouse_down(
        &mut self,
        at: Option<PagePoint>,
        button: PointerButton,
        tabs: &ContextTabs,
        time: &mut PageTime,
    ) -> Result<Outcome, EnvironmentError> {
        self.pressed.note_origin(tabs.active()?).await?;
        let input = &mut self.pressed.state;
        let was_down = input.is_button_down(button);
        time.grant_if(input.has_button_down(), tabs, async |tab| match (was_down, at) {
            (true, None) => Ok(()),
            (true, Some(at)) => act::move_mouse(tab, input, at).await,
            (false, at) => act::press_button(tab, input, at, button).await,
        })
        .await?;
        Ok(match was_down {
            true => unchanged(&format!("the {} button", button.as_str()), "already down"),
            false => Outcome::named(OutcomeName::Ok),
        })
    }

    async fn mouse_up(
        &mut self,
        at: Option<PagePoint>,
        button: PointerButton,
        tabs: &ContextTabs,
        time: &mut PageTime,
    ) -> Result<Outcome, EnvironmentError> {
        let input = &mut self.pressed.state;
        let is_down = input.is_button_down(button);
        time.grant_if(input.has_button_down(), tabs, async |tab| {
            if let Some(at) = at {
                act::move_mouse(tab, input, at).await?;
            }
            if is_down { act::release_button(tab, input, button).await } else { Ok(()) }
        })
        .await?;
        Ok(match is_down {
            true => Outcome::named(OutcomeName::Ok),
            false => unchanged(&format!("the {} button", button.as_str()), "not down"),
        })
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
async fn choose_option(
    tab: &BrowserTab,
    input: &mut InputState,
    list: &OpenList,
    steps: i64,
) -> Result<Outcome, EnvironmentError> {
    let key = if steps < 0 { "ArrowUp" } else { "ArrowDown" };
    if let Some(key) = KeyChord::named(key) {
        act::press_chord(tab, input, &key, steps.unsigned_abs()).await?;
    }
    act::press(tab, input, "Enter").await?;
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

/// The outcome of an action that found keys or a button as it would have left them.
fn unchanged(what: &str, state: &str) -> Outcome {
    Outcome::with_detail(OutcomeName::Ok, format!("{what} was {state}"))
}

fn names(keys: &[KeyboardKey]) -> String {
    keys.iter().map(|key| key.key(false)).collect::<Vec<_>>().join("+")
}

/// The outcome with what had to be released, because its page is no longer in front.
fn with_released(outcome: Outcome, released: Option<String>) -> Outcome {
    let Some(released) = released else { return outcome };
    let Outcome { name, detail } = outcome;
    let gap = if detail.is_empty() { "" } else { "; " };
    Outcome::with_detail(name, format!("{detail}{gap}{released} released, because the page changed"))
}
