//! Questions of a reader, each answered at most two clicks from the first page.

use crate::harness::{TestBrowser, TestDashboard, keep_picture, script, wait_for};
use crate::pages::{assert_no_errors, click, open};

#[tokio::test(flavor = "multi_thread")]
async fn the_failed_step_and_its_reason_are_two_clicks_away() {
    let dashboard = TestDashboard::night_run().await;
    let chrome = TestBrowser::start().await;
    let page = open(&chrome, &dashboard, "/").await;
    // Click 1: the kind of failure. Click 2: a trajectory of it.
    click(&page, "a.name[href*='status=failed&end=browser_dead']").await;
    wait_for(&page, "document.querySelector('#row-0 .tag')?.textContent === '! failed'").await;
    click(&page, "#row-0").await;
    // It opens at its last step, and says why above it, without a scroll.
    wait_for(&page, "document.querySelector('.goal-bar .tag')?.textContent === '! failed'").await;
    let step: Vec<String> = script(
        &page,
        "/Step (\\d+) of (\\d+)/.exec(document.querySelector('#step h2').textContent).slice(1)",
    )
    .await;
    assert_eq!(step[0], step[1], "the step that failed is the last");
    assert!(script::<bool>(&page, "document.querySelector('.goal-bar').getBoundingClientRect().bottom < 300 && document.querySelector('#step .shot').getBoundingClientRect().top < innerHeight / 2").await);
    let why: String = script(&page, "document.querySelector('.goal-bar .why').textContent").await;
    assert!(why.len() > 2, "{why}");
    keep_picture(&page, "journey-failed").await;

    // An unsolved one, by its own link.
    let page = open(&chrome, &dashboard, "/").await;
    click(&page, "a.to-rows[href*='success=no']").await;
    wait_for(&page, "document.querySelector('#row-0 .tag')?.textContent === '✗ not solved'").await;
    click(&page, "#row-0").await;
    wait_for(&page, "document.querySelector('#went-wrong') && document.querySelector('.goal-bar .tag').textContent === '✗ not solved'").await;
    assert_no_errors(&page).await;
    chrome.close().await;
    dashboard.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_policy_saw_and_clicked_is_two_clicks_away() {
    let dashboard = TestDashboard::night_run().await;
    let chrome = TestBrowser::start().await;
    let page = open(&chrome, &dashboard, "/").await;
    click(&page, "#nav a[href='/trajectories']").await;
    wait_for(&page, "document.querySelector('#row-0 .middle')").await;
    click(&page, "#row-0").await;
    // The step is open: its picture, the target in it, and the action beside it, all in sight.
    wait_for(&page, "document.querySelector('#step .shot img')?.naturalWidth > 0").await;
    assert!(
        script::<bool>(
            &page,
            "['#step .shot img', '#step .action'].every((part) => { const box = document.querySelector(part).getBoundingClientRect(); return box.top > 0 && box.bottom <= innerHeight; })"
        )
        .await
    );
    let action: String = script(&page, "document.querySelector('#step .action').textContent").await;
    assert!(action.len() > 2, "{action}");
    assert_no_errors(&page).await;

    let page = open(&chrome, &dashboard, "/trajectory/test-g000001-s2-a0").await;
    wait_for(&page, "document.querySelector('#all-steps-fold')").await;
    // What the action did: the page after it is the next step's, in the same spot.
    let picture = "document.querySelector('#step .shot img').getAttribute('src').split('/').pop()";
    crate::keys::press(&page, &["Home"]).await;
    wait_for(&page, &format!("{picture} === '0'")).await;
    crate::keys::press(&page, &["a"]).await;
    wait_for(&page, &format!("{picture} === '1' && !document.querySelector('#step .mark')")).await;
    crate::keys::press(&page, &["a"]).await;
    wait_for(&page, &format!("{picture} === '0'")).await;
    // All steps can be read as a list, whose lines lead to them.
    assert_eq!(script::<usize>(&page, "document.querySelectorAll('#all-steps tr').length").await, 0);
    click(&page, "#all-steps-fold").await;
    wait_for(&page, "document.querySelectorAll('#all-steps tbody tr').length === 4").await;
    click(&page, "#all-steps tbody tr:nth-child(3) a").await;
    wait_for(&page, "document.querySelector('#step h2').textContent === 'Step 3 of 4' && document.querySelector('#step h2').getBoundingClientRect().top > 0").await;
    keep_picture(&page, "journey-steps").await;
    assert_no_errors(&page).await;
    chrome.close().await;
    dashboard.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn staleness_and_what_a_trainer_gets_are_one_click_away() {
    let dashboard = TestDashboard::night_run().await;
    let chrome = TestBrowser::start().await;
    let page = open(&chrome, &dashboard, "/").await;
    let tile = |name: &str| {
        format!(
            "[...document.querySelectorAll('.tile')].find((tile) => tile.querySelector('.name').textContent === {name:?})?.textContent"
        )
    };
    let version: String = script(&page, &tile("Policy version")).await;
    assert!(version.contains("staleness"), "{version}");
    click(&page, "#nav a[href='/learning']").await;
    wait_for(&page, &tile("Kept by a trainer")).await;
    let learning = dashboard.get("/api/learning").await;
    let whole = &learning["kept"]["lines"][0];
    let kept: String = script(&page, &tile("Kept by a trainer")).await;
    assert!(kept.contains(&format!("{} of {}", whole["kept"], whole["trajectories"])), "{kept}");
    assert!(script::<String>(&page, &tile("Staleness")).await.contains("at most 2"));
    assert_no_errors(&page).await;
    chrome.close().await;
    dashboard.close().await;
}

/// The end of an id tells the rows of one run apart: it stays whole where the column is narrow.
#[tokio::test(flavor = "multi_thread")]
async fn ids_lose_their_middle_and_keep_their_end() {
    let dashboard = TestDashboard::night_run().await;
    let chrome = TestBrowser::start().await;
    let page = open(&chrome, &dashboard, "/trajectories").await;
    wait_for(&page, "document.querySelector('#row-0 .middle')").await;
    script::<bool>(
        &page,
        "(document.querySelector('#row-0 .middle').style.setProperty('width', '120px'), true)",
    )
    .await;
    let is_whole: Vec<bool> = script(
        &page,
        "['.start', '.tail'].map((part) => { const node = document.querySelector(`#row-0 .middle ${part}`); return node.scrollWidth <= node.clientWidth + 1 && node.getBoundingClientRect().right <= document.querySelector('#row-0 .middle').getBoundingClientRect().right + 1; })",
    )
    .await;
    assert!(is_whole[1], "the end is cut");
    let text: String = script(&page, "document.querySelector('#row-0 .middle .tail').textContent").await;
    assert!(text.starts_with("-g0") && text.ends_with("-a0"), "{text}");
    // Seconds in times, and no 0 of a device that a policy does not have.
    let row: String = script(&page, "document.querySelector('#row-0').textContent").await;
    assert!(!row.contains("0\u{202f}µs"), "{row}");
    // Its picture comes once the table rests.
    wait_for(&page, "document.querySelector('#row-0 img')?.naturalWidth > 0").await;
    assert_no_errors(&page).await;
    chrome.close().await;
    dashboard.close().await;
}

/// The page of a run that is over is not empty, and leads to what it shows.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_a_finished_run_shows_its_last_pictures() {
    let dashboard = TestDashboard::night_run().await;
    let chrome = TestBrowser::start().await;
    let page = open(&chrome, &dashboard, "/sessions").await;
    wait_for(&page, "document.querySelectorAll('a.session').length === 12").await;
    wait_for(&page, "document.querySelector('a.session img').naturalWidth === 96").await;
    keep_picture(&page, "sessions-finished").await;
    click(&page, "a.session").await;
    wait_for(&page, "location.pathname.startsWith('/trajectory/') && document.querySelector('.goal-bar')")
        .await;
    assert_no_errors(&page).await;
    chrome.close().await;
    dashboard.close().await;
}
