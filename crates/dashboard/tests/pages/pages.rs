//! Every page and control in a real Chromium: its content, by pointer and by keyboard only; and no
//! text of a page is executed.

use chromiumoxide::Page;
use chromiumoxide::cdp::browser_protocol::emulation::MediaFeature;
use chromiumoxide::cdp::browser_protocol::network::CookieParam;
use furrow_records::fixtures::{self, TrajectoryFixture};

use crate::harness::{TestBrowser, TestDashboard, attempt, commit, keep_picture, script, wait_for};
use crate::keys::{press, write};

const POISONED: &str = "/trajectory/test-g000000-s1-a0";

pub(crate) async fn click(page: &Page, selector: &str) {
    page.find_element(selector).await.unwrap().click().await.unwrap();
}

/// Errors on the page: exceptions, refused scripts, hostile text that ran.
pub(crate) const WATCH: &str = r"
    window.wrong = [];
    addEventListener('error', (event) => wrong.push(String(event.message ?? event.target?.src)), true);
    addEventListener('unhandledrejection', (event) => wrong.push(String(event.reason)));
    addEventListener('securitypolicyviolation', (event) => wrong.push(`${event.violatedDirective} ${event.blockedURI}`));
";

pub(crate) async fn open(chrome: &TestBrowser, dashboard: &TestDashboard, path: &str) -> Page {
    let page = chrome.open("about:blank").await;
    page.evaluate_on_new_document(WATCH).await.unwrap();
    page.goto(dashboard.url(path)).await.unwrap();
    wait_for(&page, "document.querySelector('main h1')").await;
    page
}

pub(crate) async fn assert_no_errors(page: &Page) {
    let wrong: Vec<String> = script(page, "window.wrong").await;
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(script::<bool>(page, "window.pwned === undefined").await, "hostile text ran");
}

/// Each page, the name of its pictures, and what it says.
const EXPECTED: [(&str, &str, &[&str]); 5] = [
    (
        "/",
        "overview",
        &[
            "Trajectories per GPU-hour",
            "session-bound",
            "Failures by kind",
            "browser dead",
            "Cost per trajectory",
        ],
    ),
    ("/trajectories", "trajectories", &["244 trajectories", "find-the-invoice"]),
    (
        "/trajectory/test-g000001-s2-a0",
        "trajectory",
        &["Same task, same seed", "not solved", "tokens, mean log-prob"],
    ),
    ("/learning", "learning", &["By policy version", "Kept and left out by a trainer", "book-a-table"]),
    (
        "/job",
        "job",
        &[
            "The ledger of GPU-hours",
            "no work",
            "Tables",
            "Plan against measurement",
            "had the policy answered at once",
        ],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_page_shows_its_figures_in_light_and_in_dark() {
    let dashboard = TestDashboard::night_run().await;
    let chrome = TestBrowser::start().await;
    for (path, name, expected) in EXPECTED {
        let page = open(&chrome, &dashboard, path).await;
        for dark in [false, true] {
            let scheme = MediaFeature::new("prefers-color-scheme", if dark { "dark" } else { "light" });
            page.emulate_media_features(vec![scheme]).await.unwrap();
            // Expected texts are those of the page's source: headings become small capitals by
            // style.
            for phrase in expected {
                let phrase = phrase.replace("click_element", "click element");
                wait_for(&page, &format!("document.body.textContent.includes({phrase:?})")).await;
            }
            let paper: String = script(&page, "getComputedStyle(document.body).backgroundColor").await;
            assert_eq!(paper == "rgb(19, 23, 21)", dark, "{path}: {paper}");
            keep_picture(&page, &format!("{name}-{}", if dark { "dark" } else { "light" })).await;
        }
        check_widths(&page, path).await;
        keep_picture(&page, &format!("{name}-1024")).await;
        assert!(
            script::<bool>(&page, CONTRAST).await,
            "{path}: {}",
            script::<String>(&page, "window.faint").await
        );
        assert!(
            script::<bool>(&page, LABELS).await,
            "{path}: {}",
            script::<String>(&page, "window.nameless").await
        );
        assert_no_errors(&page).await;
        page.close().await.unwrap();
    }
    chrome.close().await;
    dashboard.close().await;
}

/// Nothing is cut off, down to 1,024 pixels, the smallest supported width, which the page keeps.
async fn check_widths(page: &Page, path: &str) {
    let overflow: i64 = script(page, "document.documentElement.scrollWidth - innerWidth").await;
    assert!(overflow <= 0, "{path}: {overflow} pixels too wide at 1280");
    let width = chromiumoxide::cdp::browser_protocol::emulation::SetDeviceMetricsOverrideParams::new(
        1024, 800, 1.0, false,
    );
    page.execute(width).await.unwrap();
    let overflow: i64 = script(page, "document.documentElement.scrollWidth - innerWidth").await;
    assert!(overflow <= 0, "{path}: {overflow} pixels too wide at 1024");
    let cut: Vec<String> = script(page, "[...document.querySelectorAll('.chart text')].filter((text) => { const box = text.getBBox(); return box.x < 0 || box.x + box.width > 640; }).map((text) => text.textContent)").await;
    assert!(cut.is_empty(), "{path}: cut off at the edge of a chart: {cut:?}");
}

/// WCAG 2.1: contrast of text and background, 4.5:1, or 3:1 for large text. Gradients and pictures
/// carry no text of the dashboard.
pub(crate) const CONTRAST: &str = r"(() => {
    const parse = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
    const linear = (value) => ((value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const behind = (node) => { for (; node; node = node.parentElement) { const colour = parse(getComputedStyle(node).backgroundColor); if (colour.length === 3 || colour[3] === 1) return colour; } return [255, 255, 255]; };
    const faint = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode.parentElement;
        if (!walker.currentNode.textContent.trim() || !node.checkVisibility() || node.closest('svg, script, noscript, .hidden')) continue;
        const style = getComputedStyle(node);
        const [a, b] = [light(parse(style.color)), light(behind(node))].sort((a, b) => b - a);
        const ratio = (a + 0.05) / (b + 0.05);
        const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
        if (ratio < (large ? 3 : 4.5)) faint.push(`${walker.currentNode.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
    }
    window.faint = [...new Set(faint)].join('; ');
    return faint.length === 0;
})()";

/// Every operable element has a name, and every picture a description.
pub(crate) const LABELS: &str = r"(() => {
    const named = (node) => (node.getAttribute('aria-label') ?? node.labels?.[0]?.textContent ?? node.textContent ?? '').trim() !== '';
    const acted = [...document.querySelectorAll('a, button, input, select, [tabindex=\'0\'], [role=img]')].filter((node) => node.checkVisibility());
    const nameless = acted.filter((node) => !named(node)).concat([...document.querySelectorAll('img:not([alt])')]);
    window.nameless = nameless.map((node) => node.outerHTML.slice(0, 120)).join('; ');
    return nameless.length === 0;
})()";

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_page_or_a_model_says_executes() {
    let dashboard = TestDashboard::night_run().await;
    let chrome = TestBrowser::start().await;
    for path in [POISONED, "/trajectories?text=img", "/learning", "/job", "/"] {
        let page = open(&chrome, &dashboard, path).await;
        if path == POISONED {
            // All of it is there, as text: folded or not.
            let text: String = script(&page, "document.querySelector('main').textContent").await;
            for part in crate::harness::HOSTILE {
                let part_text = part.trim_end_matches('\0');
                assert!(text.contains(part_text) || part.contains('$'), "{part_text} is missing");
            }
            click(&page, "h1 + button").await;
            wait_for(&page, "document.querySelector('dialog[open] pre')").await;
            press(&page, &["Escape"]).await;
            wait_for(&page, "!document.querySelector('dialog[open]')").await;
            let addresses: Vec<String> = script(&page, "[...document.querySelectorAll('main [href], main [src]')].map((node) => node.getAttribute('href') ?? node.getAttribute('src'))").await;
            assert!(!addresses.is_empty());
            let foreign: Vec<_> = addresses.iter().filter(|text| !text.starts_with(['/', '#'])).collect();
            assert!(foreign.is_empty(), "{foreign:?}");
        }
        // No scripts or markup were made of text.
        assert_eq!(script::<i64>(&page, "document.querySelectorAll('main script, main iframe, main object, main [onerror], main [onload]').length").await, 0);
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        assert_no_errors(&page).await;
        page.close().await.unwrap();
    }
    // Even if a page tried, the browser would refuse.
    let page = open(&chrome, &dashboard, "/").await;
    let refused: bool = script(&page, "(() => { try { document.createElement('p').innerHTML = '<b>x</b>'; return false; } catch { return true; } })()").await;
    assert!(refused, "trusted types are enforced");
    chrome.close().await;
    dashboard.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_is_filtered_sorted_and_walked_through() {
    let dashboard = TestDashboard::night_run().await;
    let chrome = TestBrowser::start().await;
    let page = open(&chrome, &dashboard, "/trajectories").await;
    let matched = "document.querySelector('main [role=status]').textContent";
    wait_for(&page, &format!("{matched} === '244 trajectories'")).await;

    // By pointer.
    page.find_element("#find").await.unwrap().click().await.unwrap().type_str("invoice").await.unwrap();
    wait_for(&page, &format!("{matched}.startsWith('80 of 244')")).await;
    wait_for(&page, "location.search === '?text=invoice'").await;
    script::<bool>(&page, "(() => { const end = document.querySelector('select[name=end]'); end.value = 'browser_dead'; return end.dispatchEvent(new Event('change')); })()").await;
    wait_for(&page, "[...document.querySelectorAll('.grid-rows .grid-row')].every((row) => row.textContent.includes('browser dead'))").await;
    keep_picture(&page, "trajectories-filtered").await;
    click(&page, ".filters > button").await;
    wait_for(&page, &format!("{matched} === '244 trajectories'")).await;
    for (heading, arrow) in [("Reward", "↓"), ("Reward", "↑"), ("Steps", "↓")] {
        script::<bool>(&page, &format!("[...document.querySelectorAll('.grid-head button')].find((button) => button.textContent.startsWith({heading:?})).click() ?? true")).await;
        wait_for(
            &page,
            &format!("document.querySelector('.grid-head').textContent.includes('{heading} {arrow}')"),
        )
        .await;
    }
    wait_for(&page, "document.querySelector('.grid-rows .grid-row').children[7].textContent === '7'").await;
    // A meaningless number gets an error message.
    script::<bool>(&page, "(() => { const least = document.querySelector('input[name=steps_min]'); least.value = '-3'; return least.dispatchEvent(new Event('input')); })()").await;
    wait_for(&page, "document.querySelector('[role=alert]').textContent.includes('steps_min')").await;
    click(&page, ".filters > button").await;
    wait_for(&page, "document.querySelector('[role=alert]').textContent === ''").await;

    // By keyboard only: to the page, to the filter, through the rows, into one, on to its sibling,
    // back.
    let page = open(&chrome, &dashboard, "/").await;
    press(&page, &["3"]).await;
    wait_for(&page, "document.querySelector('.grid-rows .grid-row.at')").await;
    press(&page, &["/"]).await;
    wait_for(&page, "document.activeElement.id === 'find'").await;
    press(&page, &["Tab", "Tab", "Tab"]).await;
    wait_for(&page, "document.activeElement.tagName === 'SELECT'").await;
    script::<bool>(&page, "document.querySelector('[role=grid]').focus() ?? true").await;
    press(&page, &["End"]).await;
    wait_for(
        &page,
        "document.querySelector('[role=grid]').getAttribute('aria-activedescendant') === 'row-243'",
    )
    .await;
    wait_for(&page, "document.querySelector('#row-243')?.textContent.includes('test-g')").await;
    press(&page, &["Home", "ArrowDown", "ArrowDown", "ArrowUp"]).await;
    wait_for(&page, "document.querySelector('#row-1.at')?.textContent.includes('test-g')").await;
    press(&page, &["Enter"]).await;
    wait_for(&page, "location.pathname.startsWith('/trajectory/') && document.querySelector('article')")
        .await;
    let first: String = script(&page, "location.pathname").await;
    press(&page, &["End", "Home"]).await;
    wait_for(&page, "location.hash === '#step=1' && document.querySelector('#step h2').textContent.startsWith('Step 1 of')").await;
    press(&page, &["r"]).await;
    wait_for(&page, "document.querySelector('dialog[open] pre')?.textContent.includes('prompt_token_ids')")
        .await;
    press(&page, &["Escape"]).await;
    wait_for(&page, "!document.querySelector('dialog[open]')").await;
    press(&page, &["["]).await;
    wait_for(&page, &format!("location.pathname !== {first:?}")).await;
    script::<bool>(&page, "history.back() ?? true").await;
    wait_for(&page, &format!("location.pathname === {first:?}")).await;
    assert_no_errors(&page).await;
    chrome.close().await;
    dashboard.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trajectory_shows_where_it_aimed_and_stays_at_its_address() {
    let dashboard = TestDashboard::night_run().await;
    let chrome = TestBrowser::start().await;
    let page = open(&chrome, &dashboard, "/trajectory/test-g000001-s2-a0#step=2").await;
    wait_for(&page, "document.querySelector('#step h2').textContent.startsWith('Step 2 of')").await;
    wait_for(&page, "document.querySelector('#step .shot img').complete && document.querySelector('#step .shot img').naturalWidth === 96").await;
    // The fixture clicks at 12.5, 40 of a picture of 96 by 64.
    let at: Vec<f64> = script(
        &page,
        "(() => { const [image, dot] = ['img', 'circle.dot'].map((part) => document.querySelector(`#step .shot ${part}`).getBoundingClientRect()); \
         return [(dot.x + dot.width / 2 - image.x) / image.width * 96, (dot.y + dot.height / 2 - image.y) / image.height * 64]; })()",
    )
    .await;
    assert!((at[0] - 12.5).abs() < 1.0 && (at[1] - 40.0).abs() < 1.0, "{at:?}");
    click(&page, "#step details.tokens summary").await;
    wait_for(&page, "document.querySelectorAll('#step .token').length === 6").await;
    let title: String = script(&page, "document.querySelectorAll('#step .token')[1].title").await;
    assert!(title.contains("log-prob -0.750 (47.2"), "{title}");
    keep_picture(&page, "trajectory-step").await;
    // What was unfolded stays so on the next step; links within the page work, and so do addresses
    // of earlier versions.
    press(&page, &["ArrowRight"]).await;
    wait_for(&page, "location.hash === '#step=3' && document.querySelector('#step details.tokens').open")
        .await;
    script::<bool>(&page, "(location.hash = '#step-0', true)").await;
    wait_for(&page, "document.querySelector('#step h2').textContent.startsWith('Step 1 of')").await;
    script::<bool>(&page, "(location.hash = '#end', true)").await;
    wait_for(&page, "document.querySelector('#step h2').textContent === 'Last page'").await;
    wait_for(&page, "document.querySelector('#step .shot img').naturalWidth > 0").await;
    assert_no_errors(&page).await;
    chrome.close().await;
    dashboard.close().await;
}

/// All bars of a group begin at the same 0; a reward of -1 is no full bar of a success.
#[tokio::test(flavor = "multi_thread")]
async fn a_reward_below_zero_is_drawn_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let made: Vec<_> = [-1.0, 0.0, 0.5, 1.0]
        .into_iter()
        .zip(0..)
        .map(|(reward, sample)| {
            TrajectoryFixture { group: 1, sample, steps: 1, reward, ..TrajectoryFixture::default() }
                .trajectory()
        })
        .collect();
    let records: Vec<_> = made.iter().map(|(record, _)| record.clone()).collect();
    commit(&dir.path().join("data"), "shard-0", &made, &[fixtures::group(&records)]);
    let dashboard = TestDashboard::serve(dir, None).await;
    dashboard.wait_until(|head| head["trajectories"] == 4 && head["step_files_left"] == 0).await;
    let chrome = TestBrowser::start().await;
    let page = open(&chrome, &dashboard, "/trajectory/test-g000001-s0-a0").await;
    wait_for(&page, "document.querySelectorAll('.siblings .fill').length === 4").await;
    // Where each bar begins and ends on its track, and whether it is hatched.
    let bars: Vec<(f64, f64, bool)> = script(
        &page,
        "[...document.querySelectorAll('.siblings .fill')].map((fill) => { \
         const [bar, track] = [fill, fill.parentElement].map((part) => part.getBoundingClientRect()); \
         const at = (x) => Math.round((100 * (x - track.left)) / track.width) / 100; \
         return [at(bar.left), at(bar.right), getComputedStyle(fill).backgroundImage !== 'none']; })",
    )
    .await;
    assert_eq!(bars, [(0.0, 0.5, true), (0.5, 0.5, false), (0.5, 0.75, false), (0.5, 1.0, false)]);
    keep_picture(&page, "negative-reward").await;
    assert_no_errors(&page).await;
    chrome.close().await;
    dashboard.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_was_opened_too_early_becomes_right_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let dashboard = TestDashboard::serve(dir, None).await;
    let chrome = TestBrowser::start().await;
    let mut pages = Vec::new();
    for (path, becomes) in [
        ("/", "document.querySelector('main').textContent.includes('Failures by kind')"),
        ("/learning", "document.querySelector('main').textContent.includes('find-the-invoice')"),
        (
            "/trajectories",
            "document.querySelector('select[name=suite] option[value=web]') && document.querySelector('.grid-rows .grid-row')",
        ),
        // Does not exist at first, which is an error.
        ("/trajectory/test-g000002-s0-a0", "document.querySelector('article')"),
    ] {
        let page = open(&chrome, &dashboard, path).await;
        assert!(!script::<bool>(&page, &format!("Boolean({becomes})")).await, "{path}");
        pages.push((page, becomes));
    }
    commit(&data, "s0", &[attempt(2, 0), attempt(2, 1)], &[]);
    for (page, becomes) in &pages {
        wait_for(page, becomes).await;
    }
    // Unfolded details and the selected row stay while data is added.
    let overview = &pages[0].0;
    commit(&data, "s1", &[attempt(5, 0)], &[]);
    wait_for(overview, "document.querySelector('details.numbers')").await;
    script::<bool>(overview, "(document.querySelector('details.numbers').open = true)").await;
    let table = &pages[2].0;
    script::<bool>(table, "document.querySelector('[role=grid]').focus() ?? true").await;
    wait_for(table, "document.querySelectorAll('.grid-rows .grid-row').length === 3").await;
    press(table, &["Home"]).await;
    let chosen = "document.querySelector('.grid-row.at').children[3].textContent";
    let before: String = script(table, "document.querySelector('.grid-row.at').textContent").await;
    commit(&data, "s2", &[attempt(8, 0)], &[]);
    wait_for(table, "document.querySelectorAll('.grid-rows .grid-row').length === 4").await;
    let after: String = script(table, "document.querySelector('.grid-row.at').textContent").await;
    assert_eq!(before, after, "{}", script::<String>(table, chosen).await);
    wait_for(overview, "document.querySelector('main').textContent.includes('4 scored') || document.querySelector('main').textContent.includes('of 4 attempts')").await;
    wait_for(
        overview,
        "document.querySelector('details.numbers').open && document.querySelector('details.numbers table')",
    )
    .await;
    chrome.close().await;
    dashboard.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_lets_a_browser_in_and_leaves_its_address() {
    let token = "a-token-of-twenty-six-letters";
    let dashboard = TestDashboard::serve(tempfile::tempdir().unwrap(), Some(token)).await;
    let chrome = TestBrowser::start().await;
    let page = chrome.open(&dashboard.url("/learning")).await;
    // The page focuses its field once it is rendered: letters typed earlier are lost.
    let ready = "document.readyState === 'complete' && document.activeElement.id === 'token'";
    wait_for(&page, ready).await;
    keep_picture(&page, "sign-in").await;
    write(&page, "a-token-of-twenty-six-letterz").await;
    press(&page, &["Enter"]).await;
    wait_for(
        &page,
        &format!(
            "location.pathname === '/token' && {ready} && document.querySelector('#token').value === ''"
        ),
    )
    .await;
    wait_for(&page, "document.querySelector('[role=alert]').textContent === 'That is not the token.'").await;
    write(&page, token).await;
    press(&page, &["Enter"]).await;
    wait_for(&page, "document.querySelector('main h1')?.textContent === 'Overview'").await;
    // Without a commit the page shows a message, not an error.
    wait_for(&page, "document.querySelector('main').textContent.includes('No trajectory is committed yet')")
        .await;

    // The cookie does not contain the token, no script reads it, and no other site can make the
    // browser send it.
    let cookies = page.get_cookies().await.unwrap();
    let [cookie] = &cookies[..] else { panic!("{cookies:?}") };
    assert!(cookie.name.starts_with("furrow_dashboard_") && cookie.value != token, "{cookie:?}");
    assert!(cookie.http_only && cookie.session && cookie.path == "/", "{cookie:?}");
    assert_eq!(cookie.same_site.as_ref().map(AsRef::as_ref), Some("Strict"));
    assert_eq!(script::<String>(&page, "document.cookie").await, "");
    // An invalid cookie, as after a restart with another token: an open page asks for the token
    // again.
    let value = format!("{:0>64}", 1);
    let name = cookie.name.clone();
    page.set_cookie(CookieParam::builder().name(name).value(value).url(dashboard.url("/")).build().unwrap())
        .await
        .unwrap();
    press(&page, &["5"]).await;
    wait_for(&page, &format!("location.pathname === '/job' && {ready}")).await;
    write(&page, token).await;
    click(&page, "form button").await;
    wait_for(&page, "document.querySelector('main h1')?.textContent === 'Overview'").await;

    let other = TestBrowser::start().await;
    let page = other.open(&dashboard.url(&format!("/job?token={token}"))).await;
    wait_for(&page, "document.querySelector('main h1')?.textContent === 'Job'").await;
    let address: String = script(&page, "location.href").await;
    assert_eq!(address, dashboard.url("/job"));
    for chrome in [chrome, other] {
        chrome.close().await;
    }
    dashboard.close().await;
}
