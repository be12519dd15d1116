//! A keyboard: presses keys, and checks where the focus is and whether it is visible.

use chromiumoxide::Page;
use chromiumoxide::cdp::browser_protocol::input::{DispatchKeyEventParams, DispatchKeyEventType};
use chromiumoxide::keys::get_key_definition;
use serde::Deserialize;

use crate::harness::{script, wait_for};

#[derive(Debug, Deserialize, PartialEq)]
pub(crate) struct FocusState {
    /// Its tag, id and the start of its text.
    pub name: String,
    /// Whether it has an outline of two pixels.
    is_outlined: bool,
    /// Number of sides of the outline that nothing cuts off.
    sides: u32,
    /// Whether it is on the screen, below the bar at the top.
    is_in_sight: bool,
}

/// Empty if nothing has the focus.
const FOCUS: &str = r"(() => {
    const node = document.activeElement;
    if (!node || node === document.body) return [];
    const style = getComputedStyle(node);
    const wide = parseFloat(style.outlineWidth);
    const reach = parseFloat(style.outlineOffset) + wide;
    const box = node.getBoundingClientRect();
    const sides = { left: box.left - reach, top: box.top - reach, right: -(box.right + reach), bottom: -(box.bottom + reach) };
    const cut = new Set();
    for (let above = node.parentElement; above && above !== document.documentElement; above = above.parentElement) {
        if (getComputedStyle(above).overflow === 'visible') continue;
        const edge = above.getBoundingClientRect();
        const edges = { left: edge.left, top: edge.top, right: -edge.right, bottom: -edge.bottom };
        for (const side of Object.keys(sides)) if (sides[side] < edges[side] - 0.5) cut.add(side);
    }
    const bar = document.querySelector('header.top');
    const top = bar && !bar.contains(node) && !node.matches('.skip') && !node.closest('dialog') ? bar.getBoundingClientRect().bottom : 0;
    const name = `${node.tagName.toLowerCase()}${node.id && `#${node.id}`} ${node.textContent.trim().slice(0, 24)}`;
    const is_outlined = node.matches(':focus-visible') && style.outlineStyle !== 'none' && wide >= 2;
    return [{ name, is_outlined, sides: 4 - cut.size, is_in_sight: box.bottom > top && box.top < innerHeight && (box.top >= top - 1 || box.height > innerHeight / 2) }];
})()";

/// Presses keys one after another; `Shift+` holds that key down.
pub(crate) async fn press(page: &Page, keys: &[&str]) {
    for key in keys {
        let (name, modifiers) = key.strip_prefix("Shift+").map_or((*key, 0), |name| (name, 8));
        let key = get_key_definition(name).unwrap_or_else(|| panic!("{name} is not a key"));
        let text = key.text.or((key.key.len() == 1).then_some(key.key));
        let event = |kind| {
            let event = DispatchKeyEventParams::builder().r#type(kind).modifiers(modifiers).key(key.key);
            event.code(key.code).windows_virtual_key_code(key.key_code).native_virtual_key_code(key.key_code)
        };
        let down = match text {
            Some(text) => event(DispatchKeyEventType::KeyDown).text(text),
            None => event(DispatchKeyEventType::RawKeyDown),
        };
        page.execute(down.build().unwrap()).await.unwrap();
        page.execute(event(DispatchKeyEventType::KeyUp).build().unwrap()).await.unwrap();
    }
}

/// Types into the focused element.
pub(crate) async fn write(page: &Page, text: &str) {
    let letters: Vec<String> = text.chars().map(String::from).collect();
    press(page, &letters.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

/// The focused element, which must be visible.
#[track_caller]
pub(crate) fn visible_focus<'a>(page: &'a Page) -> impl Future<Output = Option<FocusState>> + 'a {
    let caller = std::panic::Location::caller();
    async move {
        let focus: Option<FocusState> = script::<Vec<FocusState>>(page, FOCUS).await.pop();
        if let Some(focus) = &focus {
            let is_visible = focus.is_outlined && focus.sides >= 3 && focus.is_in_sight;
            assert!(is_visible, "{caller}: the focus is not visible: {focus:?}");
        }
        focus
    }
}

/// Presses `Tab` (or `Shift+Tab`) until the focused element matches a selector.
#[track_caller]
pub(crate) fn tab_to<'a>(page: &'a Page, key: &'a str, selector: &'a str) -> impl Future<Output = ()> + 'a {
    let caller = std::panic::Location::caller();
    async move {
        let mut passed = Vec::new();
        for _ in 0..80 {
            press(page, &[key]).await;
            passed.push(visible_focus(page).await.map_or_else(|| "the page".to_owned(), |focus| focus.name));
            if script::<bool>(page, &format!("document.activeElement.matches({selector:?})")).await {
                return;
            }
        }
        panic!("{caller}: {key} did not reach {selector}, but {passed:?}");
    }
}

/// Waits until the focused element matches a selector.
pub(crate) async fn wait_for_focus(page: &Page, selector: &str) {
    wait_for(page, &format!("document.activeElement.matches({selector:?})")).await;
}
