//! Every control: which ones each page has, and that each works, by pointer.

use std::collections::BTreeSet;

use chromiumoxide::Page;
use serde_json::Value;

use crate::harness::{TestBrowser, TestDashboard, attempt, commit, keep_picture, script, wait_for};
use crate::keys::{press, write};
use crate::pages::{assert_no_errors, click, open};

/// Everything that can be operated, one entry per kind: rows and cards of a list are one.
const CONTROLS: &str = r"(() => {
    const able = 'a[href], button, input, select, textarea, summary, [tabindex], dialog, form, progress';
    const within = (node) => ['#nav', '.siblings', '.crumbs', '.strip', '#went-wrong', '.step', '#facts', '#tasks', '.grid-head', 'dialog'].find((selector) => node.parentElement.closest(selector));
    const word = (node) => {
        const tag = node.tagName.toLowerCase();
        const place = within(node);
        if (place) return `${place} ${tag}`;
        if (node.name) return `${tag} ${node.name}`;
        return `${tag} ${node.matches('article, .reply, details > pre:not([id])') ? node.className : node.id || node.className || node.textContent}`.trim();
    };
    return [...new Set([...document.querySelectorAll(able)].filter((node) => !node.hidden).map(word))];
})()";

/// On every page; tested in `keyboard.rs` (skip link, pages, theme).
const FRAME: [&str; 5] = ["a skip", "a brand", "#nav a", "button theme", "main main"];

/// Each page and its own controls. A new one must be added here and get a test.
const KNOWN: [(&str, &[&str]); 6] = [
    // `what_was_unfolded_stays_so_and_links_lead_where_they_say`.
    (
        "/",
        &[
            "div table-tokens",
            "summary numbers-time-trajectories-per-gpu-hour-fold",
            "summary numbers-time-success-rate-95-interval-fold",
            // `journeys.rs`.
            "a name",
            "a to-rows",
        ],
    ),
    // Tiles: `live.rs`; the last pictures: `journeys.rs`.
    ("/sessions", &["a session ended"]),
    // `every_filter_asks_what_the_api_answers`,
    // `the_table_is_filtered_sorted_and_walked_through`.
    (
        "/trajectories",
        &[
            "form filters",
            "input text",
            "select suite",
            "select split",
            "select status",
            "select end",
            "select success",
            "input reward_min",
            "input reward_max",
            "input version_min",
            "input version_max",
            "input steps_min",
            "input steps_max",
            "button Clear",
            "div grid",
            ".grid-head button",
            "div grid-scroll",
        ],
    ),
    // `keyboard.rs`, `what_was_unfolded_stays_so_and_links_lead_where_they_say`.
    (
        "/trajectory/test-g000001-s2-a0",
        &[
            ".crumbs a",
            "summary all-steps-fold",
            "button Raw row",
            ".siblings a",
            ".strip button",
            "article card step",
            ".step button",
            ".step pre",
            ".step summary",
            "#facts summary",
            "#facts a",
            "summary Probe data reported by the page",
            "pre",
            "dialog raw",
        ],
    ),
    // `what_was_unfolded_stays_so_and_links_lead_where_they_say`.
    (
        "/learning",
        &[
            "#tasks a",
            "#tasks div",
            "div table-by-policy-version",
            "div table-by-suite",
            "div table-kept-and-left-out",
            "summary numbers-version-success-rate-by-policy-version-95-interval-fold",
            "summary numbers-version-tokens-a-response-by-policy-version-fold",
            "summary numbers-version-entropy-by-policy-version-nats-a-sampled-token-fold",
            "summary numbers-version-log-prob-of-a-sampled-token-by-policy-version-fold",
            "summary numbers-staleness-count-fold",
            "summary numbers-steps-count-fold",
        ],
    ),
    // `keyboard.rs`, `what_was_unfolded_stays_so_and_links_lead_where_they_say`; draining and
    // stopping: `live.rs`.
    (
        "/job",
        &[
            "div table-devices",
            "div table-plan-against-measurement",
            "div table-slots-of-environment-workers",
            "div table-sessions",
            "div table-tables-of-the-data-set",
            "summary resolved-fold",
            "pre resolved-text",
            "dialog ask",
        ],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_control_is_known() {
    let dashboard = TestDashboard::night_run().await;
    let chrome = TestBrowser::start().await;
    for (path, known) in KNOWN {
        let page = open(&chrome, &dashboard, path).await;
        if path == "/sessions" {
            wait_for(&page, "document.querySelector('a.session')").await;
        }
        let found: BTreeSet<String> = script::<Vec<String>>(&page, CONTROLS).await.into_iter().collect();
        let known: BTreeSet<String> =
            known.iter().chain(&FRAME).map(|control| (*control).to_owned()).collect();
        assert_eq!(found, known, "{path}");
        page.close().await.unwrap();
    }
    chrome.close().await;
    dashboard.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_filter_asks_what_the_api_answers() {
    let dashboard = TestDashboard::night_run().await;
    let chrome = TestBrowser::start().await;
    let page = open(&chrome, &dashboard, "/trajectories").await;
    let status = "document.querySelector('main [role=status]').textContent";
    let total = format!("{status} === '244 trajectories'");
    wait_for(&page, &total).await;
    let ranges = [
        ("reward_min", "0.9"),
        ("reward_max", "0.3"),
        ("version_min", "3"),
        ("version_max", "0"),
        ("steps_min", "6"),
        ("steps_max", "2"),
    ];
    let choices =
        [("suite", "mini"), ("split", "eval"), ("status", "failed"), ("end", "max_steps"), ("success", "no")];
    let queries = [("text", "INVOICE"), ("text", "g000017")];
    for (name, value) in ranges.into_iter().chain(choices).chain(queries) {
        let query = format!("{name}={value}");
        let answer = dashboard.get(&format!("/api/trajectories?{query}&limit=1")).await;
        let matched = answer["matched"].as_u64().unwrap();
        assert!((1..244).contains(&matched), "{query}: {matched}");
        if choices.contains(&(name, value)) {
            let choose = format!(
                "(() => {{ const choice = document.querySelector('select[name={name}]'); choice.value = {value:?}; choice.dispatchEvent(new Event('change')); return choice.value; }})()"
            );
            assert_eq!(script::<String>(&page, &choose).await, value, "the option exists");
        } else {
            click(&page, &format!("input[name={name}]")).await;
            write(&page, value).await;
        }
        wait_for(&page, &format!("{status} === '{matched} of 244 trajectories'")).await;
        wait_for(&page, &format!("location.search === '?{query}'")).await;
        // The URL, opened in another tab, has the same filter.
        if name == "version_min" || name == "end" {
            let other = open(&chrome, &dashboard, &format!("/trajectories?{query}")).await;
            wait_for(&other, &format!("{status} === '{matched} of 244 trajectories' && document.querySelector('[name={name}]').value === {value:?}")).await;
            other.close().await.unwrap();
        }
        click(&page, ".filters > button").await;
        wait_for(&page, &total).await;
        wait_for(
            &page,
            &format!("document.querySelector('[name={name}]').value === '' && location.search === ''"),
        )
        .await;
    }
    // Two filters and a selected row: after going back, both filters are set and the row is
    // selected.
    click(&page, "input[name=steps_min]").await;
    write(&page, "3").await;
    wait_for(&page, "location.search === '?steps_min=3'").await;
    click(&page, "#sort-reward").await;
    wait_for(&page, "location.search === '?steps_min=3&sort=reward&order=desc'").await;
    let sorted = dashboard.get("/api/trajectories?steps_min=3&sort=reward&order=desc&offset=7&limit=1").await;
    let seventh = sorted["rows"][0]["trajectory_id"].as_str().unwrap();
    wait_for(&page, &format!("document.querySelector('#row-7')?.textContent.includes({seventh:?})")).await;
    click(&page, "#row-7").await;
    wait_for(&page, &format!("document.querySelector('main h1').textContent === {seventh:?}")).await;
    script::<bool>(&page, "history.back() ?? true").await;
    wait_for(&page, &format!("document.querySelector('#row-7.at')?.textContent.includes({seventh:?})")).await;
    wait_for(&page, "document.querySelector('input[name=steps_min]').value === '3' && document.querySelector('#sort-reward').textContent === 'Reward ↓'").await;
    script::<bool>(&page, "history.forward() ?? true").await;
    wait_for(&page, &format!("document.querySelector('main h1').textContent === {seventh:?}")).await;
    // A click into the table focuses it, as `Tab` does.
    script::<bool>(&page, "history.back() ?? true").await;
    wait_for(&page, "document.querySelector('#row-7.at')").await;
    press(&page, &["ArrowDown"]).await;
    wait_for(&page, "document.querySelector('#row-8.at')").await;
    assert_no_errors(&page).await;
    chrome.close().await;
    dashboard.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_unfolded_stays_so_and_links_lead_where_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let group = |group: u64| (0..4).map(|sample| attempt(group, sample)).collect::<Vec<_>>();
    // Two versions: groups of 16 have one version each.
    commit(&data, "s0", &[group(2), group(20)].concat(), &[]);
    let dashboard = TestDashboard::serve(dir, None).await;
    let chrome = TestBrowser::start().await;
    dashboard.wait_until(|head| head["trajectories"] == 8 && head["step_files_left"] == 0).await;

    // Each chart's numbers equal those of the API, and stay unfolded while data is added.
    let page = open(&chrome, &dashboard, "/learning").await;
    keep_picture(&page, "learning-two-versions").await;
    check_unfolded_numbers(&page, &dashboard).await;
    let job = open(&chrome, &dashboard, "/job").await;
    click(&job, "#resolved-fold").await;
    wait_for(&job, "document.querySelector('#resolved').open && document.querySelector('#resolved-text').textContent.includes('night-run')").await;
    let overview = open(&chrome, &dashboard, "/").await;
    commit(&data, "s1", &group(5), &[]);
    wait_for(&job, "document.querySelector('#table-tables-of-the-data-set').textContent.includes('12')")
        .await;
    assert!(script::<bool>(&job, "document.querySelector('#resolved').open").await);
    wait_for(&overview, "document.querySelector('main').textContent.includes('of 12 attempts')").await;
    for page in [&job, &overview] {
        assert_no_errors(page).await;
    }

    follow_links(&page).await;
    assert_no_errors(&page).await;
    chrome.close().await;
    dashboard.close().await;
}

/// Unfolds the numbers of every chart of `/learning` and compares those by version with the API's.
async fn check_unfolded_numbers(page: &Page, dashboard: &TestDashboard) {
    let folds: Vec<String> =
        script(page, "[...document.querySelectorAll('details.numbers')].map((fold) => fold.id)").await;
    assert_eq!(folds.len(), 6, "{folds:?}");
    for fold in &folds {
        click(page, &format!("#{fold}-fold")).await;
        wait_for(
            page,
            &format!("document.querySelector('#{fold}').open && document.querySelector('#{fold} tbody tr')"),
        )
        .await;
    }
    let learning = dashboard.get("/api/learning").await;
    let rows: Vec<Vec<String>> = script(page, &format!("[...document.querySelectorAll('#{} tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))", folds[0])).await;
    let state = |line: &Value| {
        let percents = |value: &Value| (value.as_f64().unwrap() * 1000.0).round() / 10.0;
        let interval = &line["success_interval"];
        (
            line["version"].to_string(),
            [&line["success_rate"], &interval["low"], &interval["high"]].map(percents),
        )
    };
    let matches = |row: &Vec<String>| {
        let percents = |text: &str| text.trim().trim_end_matches("\u{202f}%").parse::<f64>().unwrap();
        let (low, high) = row[2].split_once(" to ").unwrap();
        (row[0].replace("version ", ""), [percents(&row[1]), percents(low), percents(high)])
    };
    let want: Vec<_> = learning["by_version"].as_array().unwrap().iter().rev().map(state).collect();
    assert_eq!(rows.iter().map(matches).collect::<Vec<_>>(), want);
    assert_eq!(want.len(), 2);
}

/// From `/learning`: a task links to its trajectories, those to one trajectory, that one to its
/// page text; and back.
async fn follow_links(page: &Page) {
    click(page, "#tasks a[href$='find-the-invoice']").await;
    wait_for(
        page,
        "location.pathname === '/trajectories' && location.search === '?task_id=find-the-invoice'",
    )
    .await;
    wait_for(page, "document.querySelector('#row-0')?.textContent.includes('find-the-invoice')").await;
    click(page, "#row-0").await;
    wait_for(page, "document.querySelector('article')").await;
    let expected = "[...document.querySelectorAll('summary')].find((fold) => fold.textContent === 'Probe data reported by the page')";
    if script::<bool>(page, &format!("Boolean({expected})")).await {
        script::<bool>(page, &format!("{expected}.click() ?? true")).await;
        wait_for(page, &format!("{expected}.parentElement.open && {expected}.parentElement.querySelector('pre').textContent.includes('done')")).await;
    }
    click(page, ".siblings a:not([aria-current])").await;
    wait_for(page, "document.querySelector('.siblings li.at a').getAttribute('href') === location.pathname")
        .await;
    click(page, "h1 + button").await;
    wait_for(page, "document.querySelector('dialog[open] pre')?.textContent.includes('trajectory_id')").await;
    keep_picture(page, "raw-row").await;
    click(page, "dialog button").await;
    wait_for(page, "!document.querySelector('dialog[open]')").await;
    click(page, ".crumbs a").await;
    wait_for(page, "location.pathname === '/trajectories' && location.search === ''").await;
    click(page, "a.brand").await;
    wait_for(
        page,
        "location.pathname === '/' && document.querySelector('main h1').textContent === 'Overview'",
    )
    .await;
    script::<bool>(page, "history.go(-2) ?? true").await;
    wait_for(page, "location.pathname.startsWith('/trajectory/') && document.querySelector('article')").await;
}
