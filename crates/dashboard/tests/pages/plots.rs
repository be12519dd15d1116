//! Plots under a pointer: the value at the cursor, a range that is zoomed into, and its way back.

use chromiumoxide::Page;
use chromiumoxide::cdp::browser_protocol::input::{
    DispatchMouseEventParams, DispatchMouseEventType, MouseButton,
};

use crate::harness::{TestBrowser, TestDashboard, keep_picture, night_run, script, wait_for};
use crate::pages::{assert_no_errors, open};

/// Moves the pointer, presses or lets go of the button, at a share of a plot's width.
async fn pointer(page: &Page, kind: DispatchMouseEventType, share: f64, clicks: i64) {
    let at = format!(
        "(() => {{ const box = document.querySelector('.plot svg').getBoundingClientRect(); return [box.left + {share} * box.width, box.top + box.height / 2]; }})()"
    );
    let [x, y]: [f64; 2] = script(page, &at).await;
    let is_press = kind != DispatchMouseEventType::MouseMoved;
    let mut event = DispatchMouseEventParams::new(kind, x, y);
    event.button = is_press.then_some(MouseButton::Left);
    event.click_count = is_press.then_some(clicks);
    page.execute(event).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plot_names_the_value_under_the_cursor_and_zooms_with_its_neighbour() {
    use DispatchMouseEventType::{MouseMoved, MousePressed, MouseReleased};

    // The hours of this run at the time of its trajectories.
    let dir = night_run();
    let hours = std::fs::read_to_string(dir.path().join("metrics.jsonl")).unwrap();
    std::fs::write(dir.path().join("metrics.jsonl"), hours.replace("2026-11-22T08", "2026-09-21T14"))
        .unwrap();
    let dashboard = TestDashboard::serve(dir, None).await;
    dashboard.wait_until(|head| head["trajectories"] == 244 && head["step_files_left"] == 0).await;
    let chrome = TestBrowser::start().await;
    let page = open(&chrome, &dashboard, "/").await;
    wait_for(&page, "document.querySelectorAll('.plot').length === 2").await;
    script::<bool>(&page, "(document.querySelector('.plot').scrollIntoView({ block: 'center' }), true)")
        .await;
    let labels = "[...document.querySelectorAll('.plot')].map((plot) => [...plot.querySelectorAll('.tick.middle, .tick.end')].map((tick) => tick.textContent).filter((text) => /^\\d\\d:\\d\\d/.test(text)))";
    let whole: Vec<Vec<String>> = script(&page, labels).await;
    assert!(whole[0].len() >= 3, "{whole:?}");
    assert_eq!(whole[0], whole[1], "neighbours share their range");
    for text in &whole[0] {
        assert_eq!(whole[0].iter().filter(|other| *other == text).count(), 1, "{whole:?}");
    }

    // The point nearest to the cursor, with its time on a clock of 24 hours.
    pointer(&page, MouseMoved, 0.5, 0).await;
    wait_for(&page, "!document.querySelector('.plot-tip').hidden").await;
    let tip: String = script(&page, "document.querySelector('.plot-tip').innerText").await;
    let (time, value) = tip.split_once('\n').unwrap();
    assert!(time.len() == 19 && time.starts_with("2026-"), "{tip:?}");
    let answer = dashboard.get("/api/overview").await;
    let near = |point: &serde_json::Value| {
        let rate = point["trajectories_per_device_hour"].as_f64();
        rate.is_some_and(|rate| (value.replace('\u{202f}', "").parse::<f64>().unwrap() - rate).abs() < 1.0)
    };
    assert!(answer["hours_over_time"].as_array().unwrap().iter().any(near), "{tip:?}");
    keep_picture(&page, "plot-hover").await;

    // A drag zooms both; a double click and the button show all again.
    for reset in ["double click", "button"] {
        pointer(&page, MouseMoved, 0.4, 0).await;
        pointer(&page, MousePressed, 0.4, 1).await;
        pointer(&page, MouseMoved, 0.6, 0).await;
        pointer(&page, MouseReleased, 0.6, 1).await;
        wait_for(&page, "[...document.querySelectorAll('.plot-reset')].every((button) => !button.hidden)")
            .await;
        let zoomed: Vec<Vec<String>> = script(&page, labels).await;
        assert_ne!(zoomed, whole);
        assert_eq!(zoomed[0], zoomed[1]);
        keep_picture(&page, "plot-zoom").await;
        if reset == "button" {
            script::<bool>(&page, "document.querySelector('.plot-reset').click() ?? true").await;
        } else {
            for clicks in [1, 2] {
                pointer(&page, MousePressed, 0.5, clicks).await;
                pointer(&page, MouseReleased, 0.5, clicks).await;
            }
        }
        wait_for(&page, "[...document.querySelectorAll('.plot-reset')].every((button) => button.hidden)")
            .await;
        assert_eq!(script::<Vec<Vec<String>>>(&page, labels).await, whole);
    }
    assert_no_errors(&page).await;
    chrome.close().await;
    dashboard.close().await;
}
