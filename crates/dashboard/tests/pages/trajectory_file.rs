//! A trajectory in a file, in a real Chromium: hostile texts, keys, light and dark, without
//! scripts, and that it loads nothing.

use chromiumoxide::cdp::browser_protocol::emulation::{MediaFeature, SetScriptExecutionDisabledParams};
use furrow_dashboard::trajectory_html;
use furrow_rollout::{Action, PagePoint};

use crate::harness::{HOSTILE, TestBrowser, attempt, keep_picture, script};
use crate::pages::{CONTRAST, LABELS};
use crate::report::{open, write};

#[tokio::test(flavor = "multi_thread")]
async fn a_trajectory_in_a_file_shows_a_step_at_a_time_and_asks_for_nothing() {
    // The poisoned one; its steps aim at points.
    let (record, mut steps) = attempt(0, 1);
    assert!(steps.len() > 3, "{}", steps.len());
    steps[0].reply.action = Ok(Action::click(PagePoint { x: 40.0, y: 20.0 }));
    steps[1].reply.action = Ok(Action::drag(PagePoint { x: 5.0, y: 5.0 }, PagePoint { x: 60.0, y: 50.0 }));
    let folder = tempfile::tempdir().unwrap();
    let file = write(&folder, "trajectory.html", &trajectory_html(&record, &steps));
    let chrome = TestBrowser::start().await;
    let (page, requests) = open(&chrome, &file).await;
    let elsewhere: Vec<_> = requests.iter().filter(|url| !url.starts_with("data:image/png")).collect();
    assert_eq!(elsewhere, [&format!("file://{}", file.display())], "it loads only itself");

    let count = steps.len() + 1;
    let at = "document.querySelector('article.step:not([hidden])').id";
    assert_eq!(script::<usize>(&page, "document.querySelectorAll('#strip button img').length").await, count);
    assert_eq!(
        script::<usize>(&page, "document.querySelectorAll('article.step:not([hidden])').length").await,
        1
    );
    for (key, want) in [
        ("ArrowLeft", "step-1".to_owned()),
        ("ArrowRight", "step-2".to_owned()),
        ("End", "end".to_owned()),
        ("ArrowRight", "end".to_owned()),
        ("ArrowLeft", format!("step-{}", steps.len())),
        ("Home", "step-1".to_owned()),
    ] {
        let press = format!(
            "(document.body.dispatchEvent(new KeyboardEvent('keydown', {{ key: '{key}', bubbles: true }})), {at})"
        );
        assert_eq!(script::<String>(&page, &press).await, want, "{key}");
        assert_eq!(script::<String>(&page, "location.hash").await, format!("#{want}"));
    }
    let clicked = format!("(document.querySelectorAll('#strip button')[1].click(), {at})");
    assert_eq!(script::<String>(&page, &clicked).await, "step-2");
    // The mark lies over the point of the picture that the action aims at, at any size.
    let away: f64 = script(&page, "(() => { const image = document.querySelector('#step-2 .shot img').getBoundingClientRect(); const mark = document.querySelector('#step-2 .dot').getBoundingClientRect(); return Math.hypot(mark.x + mark.width / 2 - image.x - 60 / 96 * image.width, mark.y + mark.height / 2 - image.y - 50 / 64 * image.height); })()").await;
    assert!(away < 2.0, "the mark is {away} pixels off");
    assert_eq!(script::<usize>(&page, "document.querySelectorAll('#step-2 line').length").await, 1);

    for dark in [false, true] {
        let scheme = MediaFeature::new("prefers-color-scheme", if dark { "dark" } else { "light" });
        page.emulate_media_features(vec![scheme]).await.unwrap();
        let paper: String = script(&page, "getComputedStyle(document.body).backgroundColor").await;
        assert_eq!(paper == "rgb(19, 23, 21)", dark, "{paper}");
        assert!(script::<bool>(&page, CONTRAST).await, "{}", script::<String>(&page, "window.faint").await);
        keep_picture(&page, &format!("trajectory-file-{}", if dark { "dark" } else { "light" })).await;
    }
    assert!(script::<bool>(&page, LABELS).await, "{}", script::<String>(&page, "window.nameless").await);
    let overflow: i64 = script(&page, "document.documentElement.scrollWidth - innerWidth").await;
    assert!(overflow <= 0, "{overflow} pixels too wide");

    let text: String = script(&page, "document.body.textContent").await;
    for part in &HOSTILE[..4] {
        assert!(text.contains(part), "{part} is missing");
    }
    let made: usize = script(&page, "document.querySelectorAll('iframe, object, link, a, [onerror], [onload], [href], script[src], img:not([src^=\"data:image/\"]), main svg svg').length").await;
    assert_eq!(made, 0);
    assert_eq!(script::<usize>(&page, "document.querySelectorAll('script').length").await, 1);
    assert_eq!(script::<Vec<String>>(&page, "window.wrong").await, Vec::<String>::new());
    assert!(script::<bool>(&page, "window.pwned === undefined").await);

    // Without scripts, every step is there.
    page.execute(SetScriptExecutionDisabledParams::new(true)).await.unwrap();
    page.reload().await.unwrap();
    page.execute(SetScriptExecutionDisabledParams::new(false)).await.unwrap();
    let all =
        "[...document.querySelectorAll('article.step')].filter((step) => step.checkVisibility()).length";
    assert_eq!(script::<usize>(&page, all).await, count);
    chrome.close().await;
}
