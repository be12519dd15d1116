//! Pictures that are not stored: what a program gets, and what the pages show where they would be.

use crate::harness::{TestBrowser, TestDashboard, attempt, commit, script, wait_for};
use crate::http::get;
use crate::pages::{click, open};

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_that_is_not_stored_leaves_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let (lost, _) = attempt(1, 3);
    let steps = lost.ending.steps;
    assert!(steps > 0);
    let id = lost.ancestry.trajectory_id.to_string();
    commit(&dir.path().join("data"), "s0", &[attempt(1, 2), (lost, Vec::new())], &[]);
    let dashboard = TestDashboard::serve(dir, None).await;
    dashboard.wait_until(|head| head["trajectories"] == 2).await;

    for (trajectory, which, status) in [
        ("test-g000001-s2-a0", "0".to_owned(), 200),
        (&*id, "0".to_owned(), 204),
        (&*id, (steps - 1).to_string(), 204),
        (&*id, steps.to_string(), 404),
        (&*id, "-1".to_owned(), 404),
        ("test-g000009-s0-a0", "0".to_owned(), 404),
    ] {
        let path = format!("/api/trajectory/{trajectory}/screenshot/{which}");
        assert_eq!(get(dashboard.address, &path, &[]).await.0, status, "{path}");
    }

    let chrome = TestBrowser::start().await;
    let page = open(&chrome, &dashboard, "/trajectories?sort=num_steps&order=asc").await;
    wait_for(&page, "document.querySelector('#row-1 img')?.naturalWidth > 0").await;
    wait_for(&page, "document.querySelector('#row-0 span.row-picture.no-picture')").await;
    // It is not asked for again when the rows are drawn anew.
    crate::keys::press(&page, &["ArrowDown", "ArrowUp"]).await;
    wait_for(&page, "document.querySelector('#row-0.at span.row-picture.no-picture')").await;
    click(&page, "#row-0").await;
    wait_for(&page, "document.querySelector('main').textContent.includes('none of which is stored')").await;
    let page = open(&chrome, &dashboard, "/sessions").await;
    wait_for(&page, "document.querySelectorAll('a.session').length === 2").await;
    wait_for(&page, "document.querySelectorAll('a.session .no-picture').length === 1").await;
    // Nothing else went wrong: that a picture is missing is no error of a page.
    let wrong: Vec<String> = script(&page, "window.wrong").await;
    assert!(wrong.iter().all(|what| what.contains("/screenshot/")), "{wrong:?}");
    chrome.close().await;
    dashboard.close().await;
}
