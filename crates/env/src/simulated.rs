//! The simulated browser: environments without a browser for the same worker, the same attempt and
//! the same gRPC.
//!
//! A scripted page with one button: each click on it counts, and after enough clicks the page
//! reports that the task is done. Its screenshots are valid PNGs of noise, so that nothing can
//! compress them; its failures are sampled from a seed. Scorers of the final page and of back ends
//! find nothing, so that their tasks end with a reward of 0 and not for want of a verdict.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use furrow_rollout::{
    Action, ActionHint, Assignment, EnvironmentFingerprint, Evidence, FinalQuery, Finding, ImageFormat,
    Observation, Outcome, OutcomeName, PagePoint, Screenshot, Size, TabInfo, Task,
};
use image::{ExtendedColorType, ImageEncoder, codecs::png};
use rand::rngs::ChaCha12Rng;
use rand::{Rng, RngExt, SeedableRng};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::environment::{Environment, EnvironmentError, EnvironmentFactory};

/// Settings of the simulated browser.
#[derive(Debug, Clone, PartialEq)]
pub struct SimConfig {
    /// Seed of everything random, together with the trajectory's group and slot.
    pub seed: u64,
    /// Approximate size of each screenshot, in bytes.
    pub screenshot_bytes: usize,
    /// Time to open an environment.
    pub boot: Duration,
    /// Time a screenshot takes.
    pub observe: Duration,
    /// Time from an action to a quiet page.
    pub settle: Duration,
    /// Clicks on the button until the page reports that the task is done; sampled for each
    /// trajectory.
    pub clicks: RangeInclusive<u32>,
    /// Probability of each failure per action.
    pub faults: FaultRates,
}

/// Probabilities from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FaultRates {
    /// The page's renderer process dies.
    pub crash: f64,
    /// The page stops answering.
    pub hang: f64,
    pub death: f64,
}

/// A factory of simulated environments.
#[derive(Debug)]
pub struct SimulatedBrowser {
    config: SimConfig,
    screenshot: Screenshot,
    open: Arc<AtomicU64>,
}

impl Default for SimConfig {
    /// A page without delays, with screenshots of the size of a 1280x720 JPEG (166 kB measured; 200
    /// kB to be safe), and no failures.
    fn default() -> Self {
        Self {
            seed: 0,
            screenshot_bytes: 200_000,
            boot: Duration::ZERO,
            observe: Duration::ZERO,
            settle: Duration::ZERO,
            clicks: 3..=10,
            faults: FaultRates::default(),
        }
    }
}

impl SimulatedBrowser {
    /// Creates a simulated browser with these settings.
    pub fn new(config: SimConfig) -> Self {
        let screenshot = noise_png(config.seed, config.screenshot_bytes);
        Self { config, screenshot, open: Arc::default() }
    }

    /// Number of open environments.
    pub fn open_environments(&self) -> u64 {
        self.open.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl EnvironmentFactory for SimulatedBrowser {
    fn fingerprint(&self, _task: Option<&Task>) -> EnvironmentFingerprint {
        EnvironmentFingerprint {
            // Data sets store it.
            browser: "air/1".into(),
            viewport: Some(self.screenshot.size),
            ..EnvironmentFingerprint::default()
        }
    }

    async fn open(&self, assignment: &Assignment) -> Result<Box<dyn Environment>, EnvironmentError> {
        tokio::time::sleep(self.config.boot).await;
        let mut rng = attempt_rng(self.config.seed, assignment);
        let clicks = rng.random_range(self.config.clicks.clone());
        self.open.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(SimulatedPage {
            config: self.config.clone(),
            screenshot: self.screenshot.clone(),
            url: assignment.task.start_url.clone(),
            queries: assignment.checks.queries.clone(),
            rng,
            clicks_left: clicks,
            failed: None,
            open: self.open.clone(),
        }))
    }

    async fn close(&self) {}
}

struct SimulatedPage {
    config: SimConfig,
    screenshot: Screenshot,
    url: String,
    queries: Vec<FinalQuery>,
    rng: ChaCha12Rng,
    clicks_left: u32,
    failed: Option<EnvironmentError>,
    open: Arc<AtomicU64>,
}

#[async_trait]
impl Environment for SimulatedPage {
    fn browser(&self) -> &str {
        "simulated"
    }

    async fn begin(&mut self) -> Result<Option<String>, EnvironmentError> {
        Ok(Some(format!("Click the button {} times.", self.clicks_left)))
    }

    async fn observe(&mut self) -> Result<Observation, EnvironmentError> {
        self.check_alive()?;
        tokio::time::sleep(self.config.observe).await;
        let title = self.title();
        let tab = TabInfo { title: title.clone(), url: self.url.clone(), active: true };
        Ok(Observation {
            screenshot: self.screenshot(),
            url: self.url.clone(),
            title,
            tabs: vec![tab],
            scroll_y: 0.0,
            page_height: self.screenshot.size.height as f32,
            axtree: None,
            marks: None,
        })
    }

    async fn hint(&mut self, _goal: &str, _step: u32) -> Result<Option<ActionHint>, EnvironmentError> {
        self.check_alive()?;
        let PagePoint { x, y } = self.button();
        let json = format!(r#"{{"action":"click_element","element":"the button","x":{x},"y":{y}}}"#);
        Ok(Some(ActionHint { json }))
    }

    async fn act(&mut self, action: &Action) -> Result<Outcome, EnvironmentError> {
        self.check_alive()?;
        self.sample_failure();
        if let Action::Click { at: Some(at), .. } = action
            && self.is_on_button(*at)
        {
            self.clicks_left = self.clicks_left.saturating_sub(1);
        }
        Ok(Outcome::named(OutcomeName::Ok))
    }

    async fn settle(&mut self, outcome: Outcome) -> Result<Outcome, EnvironmentError> {
        self.check_alive()?;
        tokio::time::sleep(self.config.settle).await;
        Ok(outcome)
    }

    async fn probe(&mut self) -> Result<Option<String>, EnvironmentError> {
        self.check_alive()?;
        Ok(Some(self.probe_json()))
    }

    async fn evidence(&mut self) -> Option<Evidence> {
        // A hung page is stopped and can be observed; a dead one cannot.
        match self.failed {
            None | Some(EnvironmentError::PageHang { .. }) => Some(Evidence {
                screenshot: Some(self.screenshot().bytes),
                url: Some(self.url.clone()),
                title: Some(self.title()),
                answer: None,
                probe_json: Some(self.probe_json()),
                findings_json: self.findings_json(),
            }),
            Some(_) => None,
        }
    }

    async fn close(self: Box<Self>) {}
}

impl SimulatedPage {
    fn check_alive(&self) -> Result<(), EnvironmentError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn sample_failure(&mut self) {
        let FaultRates { crash, hang, death } = self.config.faults;
        let sampled: f64 = self.rng.random();
        self.failed = match sampled {
            sampled if sampled < crash => Some(EnvironmentError::PageCrash),
            sampled if sampled < crash + hang => Some(EnvironmentError::PageHang { waited_for: "input" }),
            sampled if sampled < crash + hang + death => Some(EnvironmentError::BrowserDead),
            _ => None,
        };
    }

    /// A separate buffer per screenshot, as from a browser: a stored screenshot keeps its memory.
    fn screenshot(&self) -> Screenshot {
        Screenshot { bytes: Bytes::copy_from_slice(&self.screenshot.bytes), ..self.screenshot.clone() }
    }

    /// The button is the middle half of the page.
    fn button(&self) -> PagePoint {
        let Size { width, height } = self.screenshot.size;
        PagePoint { x: width as f32 / 2.0, y: height as f32 / 2.0 }
    }

    fn is_on_button(&self, at: PagePoint) -> bool {
        let PagePoint { x, y } = self.button();
        (at.x - x).abs() <= x / 2.0 && (at.y - y).abs() <= y / 2.0
    }

    fn title(&self) -> String {
        format!("{} clicks to go", self.clicks_left)
    }

    /// Nothing of what the scorer looks up is there, in the form that a real page or back end would
    /// give; `None` without queries.
    fn findings_json(&self) -> Option<String> {
        let result = |query: &FinalQuery| match query {
            FinalQuery::Page { .. } => Value::Null,
            FinalQuery::Http(_) => json!({ "status": 404 }),
            FinalQuery::Command { .. } => json!({ "exit": 1 }),
        };
        let found = |query: &FinalQuery| Finding { query: query.clone(), result: Ok(result(query)) };
        let found: Vec<Finding> = self.queries.iter().map(found).collect();
        (!found.is_empty()).then(|| Finding::list_to_json(&found))
    }

    fn probe_json(&self) -> String {
        let done = self.clicks_left == 0;
        format!(r#"{{"done":{done},"reward":{}}}"#, u8::from(done))
    }
}

impl Drop for SimulatedPage {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A separate random stream for each attempt, independent of what else runs.
fn attempt_rng(seed: u64, assignment: &Assignment) -> ChaCha12Rng {
    let of = &assignment.ancestry;
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(assignment.task.seed.to_le_bytes());
    hash.update(of.trajectory_id.as_str());
    ChaCha12Rng::from_seed(hash.finalize().into())
}

/// A PNG of noise: three incompressible bytes per pixel, plus 0.1 % of framing.
fn noise_png(seed: u64, bytes: usize) -> Screenshot {
    let side = (bytes as f64 / 3.0).sqrt().floor().max(1.0) as u32;
    let mut pixels = vec![0; (side * side * 3) as usize];
    ChaCha12Rng::seed_from_u64(seed).fill_bytes(&mut pixels);
    let mut encoded = Vec::with_capacity(bytes + 4096);
    let encoder = png::PngEncoder::new_with_quality(
        &mut encoded,
        png::CompressionType::Fast,
        png::FilterType::NoFilter,
    );
    let written = encoder.write_image(&pixels, side, side, ExtendedColorType::Rgb8);
    // Writing to memory cannot fail, and the sizes fit by construction.
    debug_assert!(written.is_ok(), "{written:?}");
    Screenshot { bytes: encoded.into(), format: ImageFormat::Png, size: Size::new(side, side) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_browser_that_data_sets_store_stays() {
        let browser = SimulatedBrowser::new(SimConfig::default());
        assert_eq!(browser.fingerprint(None).browser, "air/1");
    }

    #[test]
    fn noise_is_a_valid_image_of_the_requested_size() {
        for bytes in [1_000, 50_000, 200_000] {
            let screenshot = noise_png(7, bytes);
            let decoded = image::load_from_memory(&screenshot.bytes).unwrap();
            assert_eq!(Size::new(decoded.width(), decoded.height()), screenshot.size);
            let size = screenshot.bytes.len() as f64;
            assert!((size / bytes as f64 - 1.0).abs() < 0.2, "{size} for {bytes}");
        }
        assert_eq!(noise_png(7, 1000), noise_png(7, 1000));
        assert_ne!(noise_png(7, 1000), noise_png(8, 1000));
    }
}
