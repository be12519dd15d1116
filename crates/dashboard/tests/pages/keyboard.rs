//! Every page by keyboard only: no click, no script that moves the focus, and the focus is always
//! visible.

use std::collections::BTreeSet;

use crate::harness::{TestBrowser, TestDashboard, script, wait_for};
use crate::keys::{press, tab_to, visible_focus, wait_for_focus, write};
use crate::pages::{assert_no_errors, open};

/// Numbers every element that `Tab` must reach, and returns their count.
const STOPS: &str = r"(() => {
    const able = 'a[href], button, input, select, textarea, summary, [tabindex=\'0\']';
    const stops = [...document.querySelectorAll(able)].filter((node) => node.checkVisibility() && node.tabIndex >= 0 && !node.disabled);
    stops.forEach((node, at) => (node.dataset.stop = at));
    return stops.length;
})()";

#[tokio::test(flavor = "multi_thread")]
async fn the_focus_reaches_every_control_and_is_visible() {
    let dashboard = TestDashboard::night_run().await;
    let chrome = TestBrowser::start().await;
    for path in [
        "/",
        "/sessions",
        "/trajectories?text=invoice",
        "/trajectory/test-g000001-s2-a0",
        "/learning",
        "/job",
    ] {
        let page = open(&chrome, &dashboard, path).await;
        if path.starts_with("/trajectories") {
            // This page starts with the focus in its table; start at the beginning of the document
            // instead.
            wait_for(&page, "document.activeElement.role === 'grid'").await;
            script::<bool>(&page, "document.activeElement.blur() ?? true").await;
            tab_to(&page, "Shift+Tab", ".skip").await;
            press(&page, &["Shift+Tab"]).await;
        }
        let stops: usize = script(&page, STOPS).await;
        for key in ["Tab", "Shift+Tab"] {
            let mut passed = BTreeSet::new();
            for _ in 0..2 * stops + 10 {
                press(&page, &[key]).await;
                if visible_focus(&page).await.is_none() {
                    if passed.is_empty() { continue } else { break }
                }
                let at: String = script(&page, "document.activeElement.dataset.stop ?? ''").await;
                if !passed.insert(at) && passed.len() > 1 {
                    break;
                }
            }
            let known = (0..stops).map(|at| at.to_string()).collect::<BTreeSet<_>>();
            let missed: Vec<_> = known.difference(&passed).collect();
            let missed = format!(
                "{missed:?}.map((at) => document.querySelector(`[data-stop='${{at}}']`).outerHTML.slice(0, 100))"
            );
            let missed: Vec<String> = script(&page, &missed).await;
            assert!(missed.is_empty(), "{path}: {key} does not reach {missed:?}");
        }
        assert_no_errors(&page).await;
        page.close().await.unwrap();
    }
    chrome.close().await;
    dashboard.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keyboard_alone_reaches_and_operates_everything() {
    let dashboard = TestDashboard::night_run().await;
    let chrome = TestBrowser::start().await;
    let page = open(&chrome, &dashboard, "/").await;
    // Skips the bar at the top, and continues from there.
    press(&page, &["Tab"]).await;
    wait_for_focus(&page, ".skip").await;
    assert!(script::<bool>(&page, "document.activeElement.getBoundingClientRect().left >= 0").await);
    press(&page, &["Enter"]).await;
    wait_for_focus(&page, "#main").await;
    press(&page, &["Tab"]).await;
    assert!(script::<bool>(&page, "document.querySelector('main').contains(document.activeElement)").await);
    // Every page by its key and by its link.
    for (key, heading) in
        [("2", "Sessions"), ("4", "Learning"), ("5", "Job"), ("1", "Overview"), ("3", "Trajectories")]
    {
        press(&page, &[key]).await;
        wait_for(&page, &format!("document.querySelector('main h1')?.textContent === {heading:?}")).await;
        wait_for(&page, "document.querySelector('main').contains(document.activeElement)").await;
    }
    wait_for_focus(&page, "[role=grid]").await;
    tab_to(&page, "Shift+Tab", "#nav a[href='/learning']").await;
    press(&page, &["Enter"]).await;
    wait_for(&page, "location.pathname === '/learning' && document.querySelector('main h1')").await;

    // The theme, by both keys that press a button; the choice is stored.
    tab_to(&page, "Shift+Tab", "#theme").await;
    for (key, theme) in [("Enter", "light"), (" ", "dark")] {
        press(&page, &[key]).await;
        wait_for(&page, &format!("document.documentElement.dataset.theme === {theme:?}")).await;
        wait_for_focus(&page, "#theme").await;
    }
    page.reload().await.unwrap();
    wait_for(&page, "document.querySelector('main h1')").await;
    wait_for(&page, "document.documentElement.dataset.theme === 'dark' && document.querySelector('#theme').textContent === 'Theme: dark'").await;
    tab_to(&page, "Tab", "#theme").await;
    press(&page, &["Enter"]).await;
    wait_for(&page, "document.documentElement.dataset.theme === undefined").await;

    filters_and_table(&page).await;
    trajectory(&page).await;

    // Unfolds the resolved job and reads it.
    press(&page, &["5"]).await;
    wait_for(&page, "document.querySelector('#resolved-fold')").await;
    tab_to(&page, "Tab", "#resolved-fold").await;
    press(&page, &["Enter"]).await;
    wait_for(&page, "document.querySelector('#resolved').open").await;
    tab_to(&page, "Tab", "#resolved-text").await;
    assert_no_errors(&page).await;
    chrome.close().await;
    dashboard.close().await;
}

/// Fills and clears fields by typing, changes lists by arrows, sorts by headings, walks through
/// rows and opens one.
async fn filters_and_table(page: &chromiumoxide::Page) {
    let matched = |count: &str| {
        format!("document.querySelector('main [role=status]').textContent.startsWith({count:?})")
    };
    press(page, &["3"]).await;
    wait_for_focus(page, "[role=grid]").await;
    press(page, &["/"]).await;
    wait_for_focus(page, "#find").await;
    write(page, "invoice").await;
    wait_for(page, &matched("80 of 244")).await;
    press(page, &["Backspace"; 7]).await;
    wait_for(page, &matched("244 ")).await;
    tab_to(page, "Tab", "select[name=suite]").await;
    press(page, &["ArrowDown"]).await;
    wait_for(page, "location.search === '?suite=mini'").await;
    wait_for(page, &matched("84 of 244")).await;
    wait_for_focus(page, "select[name=suite]").await;
    press(page, &["ArrowUp"]).await;
    wait_for(page, &matched("244 ")).await;
    tab_to(page, "Tab", "input[name=reward_min]").await;
    write(page, "0.9").await;
    wait_for(page, "location.search === '?reward_min=0.9'").await;
    wait_for_focus(page, "input[name=reward_min]").await;
    tab_to(page, "Tab", ".filters > button").await;
    press(page, &["Enter"]).await;
    wait_for(page, &matched("244 ")).await;
    wait_for(page, "document.querySelector('input[name=reward_min]').value === ''").await;

    // On to the table; its headings sort, and the focus stays.
    press(page, &["Tab"]).await;
    wait_for_focus(page, "[role=grid]").await;
    tab_to(page, "Tab", "#sort-reward").await;
    for (key, arrow) in [("Enter", "↓"), (" ", "↑"), ("Enter", "↓")] {
        press(page, &[key]).await;
        wait_for(page, &format!("document.querySelector('#sort-reward').textContent === 'Reward {arrow}'"))
            .await;
        wait_for_focus(page, "#sort-reward").await;
    }
    assert!(visible_focus(page).await.is_some());
    tab_to(page, "Shift+Tab", "[role=grid]").await;
    let chosen = |row: u32| format!("document.querySelector('#row-{row}.at')?.textContent.includes('-s')");
    press(page, &["End"]).await;
    wait_for(page, &chosen(243)).await;
    press(page, &["Home", "ArrowDown", "j", "j", "k", "ArrowUp"]).await;
    wait_for(page, &chosen(1)).await;
    press(page, &["PageDown", "PageUp"]).await;
    wait_for(page, &chosen(1)).await;
    // The focus can leave the table.
    press(page, &["Shift+Tab"]).await;
    wait_for_focus(page, ".filters > button").await;
    press(page, &["Tab", "Enter"]).await;
    wait_for(page, "location.pathname.startsWith('/trajectory/') && document.querySelector('article')").await;
}

/// Raw rows, steps, tokens, siblings, and the way back.
async fn trajectory(page: &chromiumoxide::Page) {
    let dialog = |open: bool| match open {
        true => "document.querySelector('dialog[open] pre')?.textContent.includes('trajectory_id')",
        false => "!document.querySelector('dialog[open]')",
    };
    wait_for(page, "document.querySelectorAll('.siblings a').length > 1").await;
    tab_to(page, "Tab", "h1 + button").await;
    press(page, &[" "]).await;
    wait_for(page, dialog(true)).await;
    wait_for_focus(page, "dialog button").await;
    tab_to(page, "Tab", "dialog pre").await;
    press(page, &["Escape"]).await;
    wait_for(page, dialog(false)).await;
    wait_for_focus(page, "h1 + button").await;
    assert!(visible_focus(page).await.is_some(), "the focus is back and visible");

    tab_to(page, "Tab", ".siblings a:not([aria-current])").await;
    let before: String = script(page, "location.pathname").await;
    press(page, &["Enter"]).await;
    wait_for(page, &format!("location.pathname !== {before:?} && document.querySelector('article')")).await;
    let first: String = script(page, "location.pathname").await;
    // Adjacent trajectories by keys: there is at least one.
    press(page, &["["]).await;
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let is_first = script::<String>(page, "location.pathname").await == first;
    press(page, &["]"]).await;
    let condition =
        format!("(location.pathname === {first:?}) !== {is_first} && document.querySelector('article')");
    wait_for(page, &condition).await;

    // The strip is one stop; arrows go through it, and the focus with them.
    tab_to(page, "Tab", ".thumb[aria-selected=true]").await;
    press(page, &["End", "Home"]).await;
    wait_for_focus(page, ".thumb:first-child[aria-selected=true]").await;
    wait_for(page, "location.hash === '#step=1'").await;
    assert!(visible_focus(page).await.is_some());
    press(page, &["ArrowRight"]).await;
    wait_for_focus(page, ".thumb:nth-child(2)[aria-selected=true]").await;
    press(page, &["k"]).await;
    wait_for_focus(page, ".thumb:first-child[aria-selected=true]").await;
    press(page, &["r"]).await;
    wait_for(page, dialog(true)).await;
    // Keys of the page have no effect while it is open.
    press(page, &["3", "j", "]"]).await;
    assert!(script::<bool>(page, dialog(true)).await);
    press(page, &["Escape"]).await;
    wait_for(page, dialog(false)).await;
    wait_for_focus(page, ".thumb:first-child").await;
    // The buttons beside the picture: the focus stays on the one that was pressed.
    tab_to(page, "Tab", "#step-after").await;
    press(page, &["Enter"]).await;
    wait_for(page, "location.hash !== '#step=1'").await;
    tab_to(page, "Shift+Tab", "#step-before").await;
    press(page, &[" "]).await;
    wait_for(page, "location.hash === '#step=1'").await;
    if script::<bool>(page, "document.querySelector('#step details.tokens') !== null").await {
        tab_to(page, "Tab", "#step details.tokens summary").await;
        press(page, &["Enter"]).await;
        wait_for(page, "document.querySelector('#step details.tokens').open").await;
        press(page, &[" "]).await;
        wait_for(page, "!document.querySelector('#step details.tokens').open").await;
    }
    tab_to(page, "Shift+Tab", ".crumbs a[href^='/trajectories?task_id=']").await;
    press(page, &["Enter"]).await;
    wait_for(
        page,
        "location.search.startsWith('?task_id=') && document.querySelector('.grid-rows .grid-row')",
    )
    .await;
}

/// A redraw of the focused element keeps the focus, also on a link without an id.
#[tokio::test(flavor = "multi_thread")]
async fn a_redraw_keeps_the_focus() {
    let dashboard = TestDashboard::night_run().await;
    let chrome = TestBrowser::start().await;
    let page = open(&chrome, &dashboard, "/learning").await;
    tab_to(&page, "Tab", "#tasks a[href$='find-the-invoice']").await;
    let redrawn: Vec<bool> = script(
        &page,
        "import('/assets/dom.js').then(async ({ el, put, redraw }) => { \
           const parts = () => [el('a', { href: '/job' }, 'job'), el('a', { href: '/learning' }, 'learning'), el('button', { id: 'one' }, 'one')]; \
           const node = el('div', {}, parts()); put(document.querySelector('main'), node); \
           const held = []; \
           for (const selector of ['[href=\"/learning\"]', '#one']) { const before = node.querySelector(selector); before.focus(); await redraw(node, parts()); \
             held.push(document.activeElement === node.querySelector(selector) && document.activeElement !== before); } \
           return held; })",
    )
    .await;
    assert_eq!(redrawn, [true, true]);
    assert_no_errors(&page).await;
    chrome.close().await;
    dashboard.close().await;
}
