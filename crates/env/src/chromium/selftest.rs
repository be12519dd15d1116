//! The self-test that a browser must pass before its worker joins the farm: version, a page, a
//! dialog, a crash, a screenshot. It detects a browser that was upgraded in the meantime.

use chromiumoxide::Page;
use chromiumoxide::cdp::browser_protocol::page::{CrashParams, NavigateParams};
use furrow_rollout::{ImageFormat, ObservationSpec, Size, WallsLevel};
use furrow_telemetry::ChromiumSelfTest;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::browser::RunningBrowser;
use super::error::BrowserError;
use super::tab::BrowserTab;
use super::{glyphs, picture, script};
use crate::config::BrowserConfig;
use crate::environment::EnvironmentError;

/// Oldest Chromium that was tested.
const VERSION_MIN: u32 = 150;

const VIEWPORT: Size = Size::new(320, 200);

/// Tests the browser. Returns the scripts that its fonts lack, which is no failure.
pub(super) async fn run(
    running: &RunningBrowser,
    config: &BrowserConfig,
    walls: WallsLevel,
) -> Result<Vec<&'static str>, BrowserError> {
    let began = Instant::now();
    let outcome = try_all(running, config).await;
    let problem = outcome.as_ref().err().map(ToString::to_string);
    ChromiumSelfTest {
        product: &running.product,
        sandbox: config.sandbox,
        walls: walls.as_str(),
        micros: began.elapsed().as_micros() as u64,
        problem: problem.as_deref(),
    }
    .emit();
    outcome
}

async fn try_all(
    running: &RunningBrowser,
    config: &BrowserConfig,
) -> Result<Vec<&'static str>, BrowserError> {
    check_version(&running.product)?;
    let page = open(running, config).await.map_err(|error| failed("opening a page", &error))?;
    let tab = BrowserTab::adopt(page, &running.link, VIEWPORT, config)
        .await
        .map_err(|error| failed("preparing a page", &error))?;
    let deadline = config.deadlines.navigation;
    let page = NavigateParams::new("data:text/html,<title>hello</title><body style='background:red'>");
    tab.call(page, deadline, "loading a page").await.map_err(|error| failed("loading a page", &error))?;
    let result = script::evaluate_in_page(&tab, "alert('no'), 6 * 7", deadline, "a dialog").await;
    if result.as_ref().ok() != Some(&Value::from(42)) || tab.dialogs().0 != 1 {
        return Err(BrowserError::SelfTest { what: format!("a dialog was not dismissed: {result:?}") });
    }
    let spec = ObservationSpec { format: ImageFormat::Png, clip: None, square: false };
    let shot =
        picture::screenshot(&tab, &spec, VIEWPORT).await.map_err(|error| failed("a screenshot", &error))?;
    check_picture(&shot.bytes)?;
    // Only `furrow doctor` asks for it: no reason to refuse a browser.
    let missing = glyphs::missing(&tab).await.unwrap_or_else(|error| {
        tracing::debug!(error = &error as &dyn std::error::Error, "no characters were drawn");
        Vec::new()
    });
    crash(&tab, config).await?;
    tab.close(&running.link).await.map_err(|error| failed("closing a crashed page", &error))?;
    Ok(missing)
}

async fn open(running: &RunningBrowser, config: &BrowserConfig) -> Result<Page, EnvironmentError> {
    let link = &running.link;
    super::link::within(
        config.deadlines.navigation,
        "a new page",
        &link.dead,
        link.browser.new_page("about:blank"),
    )
    .await
}

pub(super) fn check_version(product: &str) -> Result<(), BrowserError> {
    let major = product.split('/').nth(1).and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    match major {
        Some(major) if major >= VERSION_MIN => Ok(()),
        _ => Err(BrowserError::Version { found: product.to_owned(), wanted: VERSION_MIN }),
    }
}

fn check_picture(bytes: &[u8]) -> Result<(), BrowserError> {
    let wrong = |what: String| BrowserError::SelfTest { what: format!("the screenshot is {what}") };
    let picture = image::load_from_memory(bytes).map_err(|why| wrong(why.to_string()))?.into_rgb8();
    match (picture.dimensions(), picture.get_pixel(5, 5).0) {
        ((320, 200), [255, 0, 0]) => Ok(()),
        (size, colour) => Err(wrong(format!("{size:?} and {colour:?}, not 320x200 and red"))),
    }
}

/// Crashes the page and waits for the event.
async fn crash(tab: &BrowserTab, config: &BrowserConfig) -> Result<(), BrowserError> {
    let crashing = tab.call(CrashParams {}, config.deadlines.input, "a crash");
    match timeout(config.deadlines.input, crashing).await {
        Ok(Err(EnvironmentError::PageCrash)) => Ok(()),
        _ if tab.has_crashed() => Ok(()),
        other => Err(BrowserError::SelfTest { what: format!("a crash was not noticed: {other:?}") }),
    }
}

fn failed(what: &str, error: &EnvironmentError) -> BrowserError {
    BrowserError::SelfTest { what: format!("{what}: {error}") }
}
