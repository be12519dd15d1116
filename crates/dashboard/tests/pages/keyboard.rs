//! Every page by the keyboard alone: no click, no script that moves the focus, and the focus is always seen.

use std::collections::BTreeSet;

use crate::ground::{Chrome, Ground, script, wait_for};
use crate::keys::{focus, press, stands_at, tab_to, write};
use crate::pages::{nothing_is_wrong, open};

/// Numbers everything that `Tab` should come to, and says how many there are.
const STOPS: &str = r"(() => {
    const able = 'a[href], button, input, select, textarea, summary, [tabindex=\'0\']';
    const stops = [...document.querySelectorAll(able)].filter((node) => node.checkVisibility() && node.tabIndex >= 0 && !node.disabled);
    stops.forEach((node, at) => (node.dataset.stop = at));
    return stops.length;
})()";

#[tokio::test(flavor = "multi_thread")]
async fn the_focus_comes_to_everything_is_seen_everywhere_and_goes_on() {
    let (ground, chrome) = (Ground::night_run().await, Chrome::start().await);
    for path in [
        "/",
        "/sessions",
        "/trajectories?text=invoice",
        "/trajectory/test-g000001-s2-a0",
        "/learning",
        "/job",
    ] {
        let page = open(&chrome, &ground, path).await;
        if path.starts_with("/trajectories") {
            // This page begins at its table; from the beginning of the document instead.
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
                if focus(&page).await.is_none() {
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
            assert!(missed.is_empty(), "{path}: {key} never comes to {missed:?}");
        }
        nothing_is_wrong(&page).await;
        page.close().await.unwrap();
    }
    chrome.close().await;
    ground.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_a_keyboard_alone_sees_and_does_everything() {
    let (ground, chrome) = (Ground::night_run().await, Chrome::start().await);
    let page = open(&chrome, &ground, "/").await;
    // Past the bar at the top, and on from there.
    press(&page, &["Tab"]).await;
    stands_at(&page, ".skip").await;
    assert!(script::<bool>(&page, "document.activeElement.getBoundingClientRect().left >= 0").await);
    press(&page, &["Enter"]).await;
    stands_at(&page, "#main").await;
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
    stands_at(&page, "[role=grid]").await;
    tab_to(&page, "Shift+Tab", "#nav a[href='/learning']").await;
    press(&page, &["Enter"]).await;
    wait_for(&page, "location.pathname === '/learning' && document.querySelector('main h1')").await;

    // The theme, by both keys that press a button; it is remembered.
    tab_to(&page, "Shift+Tab", "#theme").await;
    for (key, theme) in [("Enter", "light"), (" ", "dark")] {
        press(&page, &[key]).await;
        wait_for(&page, &format!("document.documentElement.dataset.theme === {theme:?}")).await;
        stands_at(&page, "#theme").await;
    }
    page.reload().await.unwrap();
    wait_for(&page, "document.querySelector('main h1')").await;
    wait_for(&page, "document.documentElement.dataset.theme === 'dark' && document.querySelector('#theme').textContent === 'Theme: dark'").await;
    tab_to(&page, "Tab", "#theme").await;
    press(&page, &["Enter"]).await;
    wait_for(&page, "document.documentElement.dataset.theme === undefined").await;

    filters_and_table(&page).await;
    trajectory(&page).await;

    // The resolved job is unfolded, and read.
    press(&page, &["5"]).await;
    wait_for(&page, "document.querySelector('#resolved-fold')").await;
    tab_to(&page, "Tab", "#resolved-fold").await;
    press(&page, &["Enter"]).await;
    wait_for(&page, "document.querySelector('#resolved').open").await;
    tab_to(&page, "Tab", "#resolved-text").await;
    nothing_is_wrong(&page).await;
    chrome.close().await;
    ground.close().await;
}

/// Fields are filled and emptied by typing, lists by arrows, headings sort, rows are walked through and opened.
async fn filters_and_table(page: &chromiumoxide::Page) {
    let matched = |count: &str| {
        format!("document.querySelector('main [role=status]').textContent.startsWith({count:?})")
    };
    press(page, &["3"]).await;
    stands_at(page, "[role=grid]").await;
    press(page, &["/"]).await;
    stands_at(page, "#find").await;
    write(page, "invoice").await;
    wait_for(page, &matched("80 of 244")).await;
    press(page, &["Backspace"; 7]).await;
    wait_for(page, &matched("244 ")).await;
    tab_to(page, "Tab", "select[name=suite]").await;
    press(page, &["ArrowDown"]).await;
    wait_for(page, "location.search === '?suite=mini'").await;
    wait_for(page, &matched("84 of 244")).await;
    stands_at(page, "select[name=suite]").await;
    press(page, &["ArrowUp"]).await;
    wait_for(page, &matched("244 ")).await;
    tab_to(page, "Tab", "input[name=reward_min]").await;
    write(page, "0.9").await;
    wait_for(page, "location.search === '?reward_min=0.9'").await;
    stands_at(page, "input[name=reward_min]").await;
    tab_to(page, "Tab", ".filters > button").await;
    press(page, &["Enter"]).await;
    wait_for(page, &matched("244 ")).await;
    wait_for(page, "document.querySelector('input[name=reward_min]').value === ''").await;

    // On to the table; its headings sort, and whoever sorts stays where they are.
    press(page, &["Tab"]).await;
    stands_at(page, "[role=grid]").await;
    tab_to(page, "Tab", "#sort-reward").await;
    for (key, arrow) in [("Enter", "↓"), (" ", "↑"), ("Enter", "↓")] {
        press(page, &[key]).await;
        wait_for(page, &format!("document.querySelector('#sort-reward').textContent === 'Reward {arrow}'"))
            .await;
        stands_at(page, "#sort-reward").await;
    }
    assert!(focus(page).await.is_some());
    tab_to(page, "Shift+Tab", "[role=grid]").await;
    let chosen = |row: u32| format!("document.querySelector('#row-{row}.at')?.textContent.includes('-s')");
    press(page, &["End"]).await;
    wait_for(page, &chosen(243)).await;
    press(page, &["Home", "ArrowDown", "j", "j", "k", "ArrowUp"]).await;
    wait_for(page, &chosen(1)).await;
    press(page, &["PageDown", "PageUp"]).await;
    wait_for(page, &chosen(1)).await;
    // Out of the table again: it holds nobody.
    press(page, &["Shift+Tab"]).await;
    stands_at(page, ".filters > button").await;
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
    stands_at(page, "dialog button").await;
    tab_to(page, "Tab", "dialog pre").await;
    press(page, &["Escape"]).await;
    wait_for(page, dialog(false)).await;
    stands_at(page, "h1 + button").await;
    assert!(focus(page).await.is_some(), "back where it was, and seen");

    tab_to(page, "Tab", ".siblings a:not([aria-current])").await;
    let before: String = script(page, "location.pathname").await;
    press(page, &["Enter"]).await;
    wait_for(page, &format!("location.pathname !== {before:?} && document.querySelector('article')")).await;
    let first: String = script(page, "location.pathname").await;
    // Its neighbours by keys: there is at least one.
    press(page, &["["]).await;
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let is_first = script::<String>(page, "location.pathname").await == first;
    press(page, &["]"]).await;
    let condition =
        format!("(location.pathname === {first:?}) !== {is_first} && document.querySelector('article')");
    wait_for(page, &condition).await;

    press(page, &["j"]).await;
    stands_at(page, "#step-0").await;
    assert!(focus(page).await.is_some());
    press(page, &["r"]).await;
    wait_for(page, dialog(true)).await;
    // Keys of the page mean nothing while it is open.
    press(page, &["3", "j", "]"]).await;
    assert!(script::<bool>(page, dialog(true)).await);
    press(page, &["Escape"]).await;
    wait_for(page, dialog(false)).await;
    stands_at(page, "#step-0").await;
    tab_to(page, "Tab", "#step-0 h3 a").await;
    press(page, &["Enter"]).await;
    wait_for(page, "location.hash === '#step-0'").await;
    if script::<bool>(page, "document.querySelector('#step-0 details.tokens') !== null").await {
        tab_to(page, "Tab", "#step-0 details.tokens summary").await;
        press(page, &["Enter"]).await;
        wait_for(page, "document.querySelector('#step-0 details.tokens').open").await;
        press(page, &[" "]).await;
        wait_for(page, "!document.querySelector('#step-0 details.tokens').open").await;
    }
    tab_to(page, "Shift+Tab", ".crumbs a[href^='/trajectories?task_id=']").await;
    press(page, &["Enter"]).await;
    wait_for(
        page,
        "location.search.startsWith('?task_id=') && document.querySelector('.grid-rows .grid-row')",
    )
    .await;
}

/// What is drawn again while somebody stands at it leaves them there, also at a link, which has no id.
#[tokio::test(flavor = "multi_thread")]
async fn a_redraw_leaves_the_focus_where_it_stands() {
    let (ground, chrome) = (Ground::night_run().await, Chrome::start().await);
    let page = open(&chrome, &ground, "/learning").await;
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
    nothing_is_wrong(&page).await;
    chrome.close().await;
    ground.close().await;
}
