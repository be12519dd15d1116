//! A keyboard: keys as they are pressed, where the focus stands, and whether somebody sees it.

use chromiumoxide::Page;
use chromiumoxide::cdp::browser_protocol::input::{DispatchKeyEventParams, DispatchKeyEventType};
use chromiumoxide::keys::get_key_definition;
use serde::Deserialize;

use crate::ground::{script, wait_for};

/// Where the focus stands.
#[derive(Debug, Deserialize, PartialEq)]
pub struct Focus {
    /// Its tag, id and beginning of its text.
    pub name: String,
    /// It has an outline of two pixels.
    is_outlined: bool,
    /// Sides of that outline that nothing cuts off.
    sides: u32,
    /// It is on the screen, below the bar at the top.
    is_in_sight: bool,
}

/// Empty where nothing has the focus.
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

/// Presses keys one after another; `Shift+` holds that key down meanwhile.
pub async fn press(page: &Page, keys: &[&str]) {
    for key in keys {
        let (name, modifiers) = key.strip_prefix("Shift+").map_or((*key, 0), |name| (name, 8));
        let key = get_key_definition(name).unwrap_or_else(|| panic!("{name} is no key"));
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

/// Types into whatever has the focus.
pub async fn write(page: &Page, text: &str) {
    let letters: Vec<String> = text.chars().map(String::from).collect();
    press(page, &letters.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

/// Where the focus stands; somebody sees it.
#[track_caller]
pub fn focus<'a>(page: &'a Page) -> impl Future<Output = Option<Focus>> + 'a {
    let place = std::panic::Location::caller();
    async move {
        let focus: Option<Focus> = script::<Vec<Focus>>(page, FOCUS).await.pop();
        if let Some(focus) = &focus {
            let is_seen = focus.is_outlined && focus.sides >= 3 && focus.is_in_sight;
            assert!(is_seen, "{place}: nobody sees where the focus stands: {focus:?}");
        }
        focus
    }
}

/// Goes on by `Tab` (or `Shift+Tab`) until a selector fits what has the focus.
#[track_caller]
pub fn tab_to<'a>(page: &'a Page, key: &'a str, selector: &'a str) -> impl Future<Output = ()> + 'a {
    let place = std::panic::Location::caller();
    async move {
        let mut passed = Vec::new();
        for _ in 0..80 {
            press(page, &[key]).await;
            passed.push(focus(page).await.map_or_else(|| "the page".to_owned(), |focus| focus.name));
            if script::<bool>(page, &format!("document.activeElement.matches({selector:?})")).await {
                return;
            }
        }
        panic!("{place}: {key} never came to {selector}, but to {passed:?}");
    }
}

/// Waits until a selector fits what has the focus.
pub async fn stands_at(page: &Page, selector: &str) {
    wait_for(page, &format!("document.activeElement.matches({selector:?})")).await;
}
