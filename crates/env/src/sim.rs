//! The twin of air: stages without a browser, behind the same worker, the same attempt and the same gRPC.
//!
//! A scripted page with one button: each click on it counts, and after enough of them the page says that the task is done. Its
//! screenshots are valid PNGs of noise, so that nothing on their way can compress them; its failures are drawn from a seed.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use furrow_rollout::{
    Action, Assignment, EnvironmentFingerprint, Evidence, Hint, ImageFormat, Observation, Outcome,
    OutcomeName, PagePoint, Screenshot, Size, Tab, Task,
};
use image::{ExtendedColorType, ImageEncoder, codecs::png};
use rand::rngs::ChaCha12Rng;
use rand::{Rng, RngExt, SeedableRng};
use sha2::{Digest, Sha256};

use crate::stage::{Stage, StageError, Stages};

/// What the air is like.
#[derive(Debug, Clone, PartialEq)]
pub struct SimConfig {
    /// Everything drawn descends from it and from the trajectory's place.
    pub seed: u64,
    /// Size of each screenshot, near enough.
    pub screenshot_bytes: usize,
    /// Time a stage takes to come up.
    pub boot: Duration,
    /// Time a screenshot takes.
    pub observe: Duration,
    /// Time from an action to a quiet page.
    pub settle: Duration,
    /// Clicks on the button until the page says that the task is done; drawn for each trajectory.
    pub clicks: RangeInclusive<u32>,
    /// Chance of each failure at each action.
    pub faults: Faults,
}

/// Chances from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Faults {
    /// The page's process dies.
    pub crash: f64,
    /// The page stops answering.
    pub hang: f64,
    /// The browser dies.
    pub death: f64,
}

/// Stages of air.
#[derive(Debug)]
pub struct Air {
    config: SimConfig,
    screenshot: Screenshot,
    open: Arc<AtomicU64>,
}

impl Default for SimConfig {
    /// A page as quick as air, with screenshots of the size a 1280x720 JPEG has (166 kB measured; 200 kB to be safe), and no failures.
    fn default() -> Self {
        Self {
            seed: 0,
            screenshot_bytes: 200_000,
            boot: Duration::ZERO,
            observe: Duration::ZERO,
            settle: Duration::ZERO,
            clicks: 3..=10,
            faults: Faults::default(),
        }
    }
}

impl Air {
    /// Air of this kind.
    pub fn new(config: SimConfig) -> Self {
        let screenshot = noise(config.seed, config.screenshot_bytes);
        Self { config, screenshot, open: Arc::default() }
    }

    /// Stages open now.
    pub fn open_stages(&self) -> u64 {
        self.open.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Stages for Air {
    fn environment(&self, _task: Option<&Task>) -> EnvironmentFingerprint {
        EnvironmentFingerprint {
            browser: "air/1".into(),
            viewport: Some(self.screenshot.size),
            ..EnvironmentFingerprint::default()
        }
    }

    async fn open(&self, assignment: &Assignment) -> Result<Box<dyn Stage>, StageError> {
        tokio::time::sleep(self.config.boot).await;
        let mut rng = rng_of(self.config.seed, assignment);
        let clicks = rng.random_range(self.config.clicks.clone());
        self.open.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(AirStage {
            config: self.config.clone(),
            screenshot: self.screenshot.clone(),
            url: assignment.task.start_url.clone(),
            rng,
            clicks_left: clicks,
            failed: None,
            open: self.open.clone(),
        }))
    }

    async fn close(&self) {}
}

/// One page of air.
struct AirStage {
    config: SimConfig,
    screenshot: Screenshot,
    url: String,
    rng: ChaCha12Rng,
    clicks_left: u32,
    failed: Option<StageError>,
    open: Arc<AtomicU64>,
}

#[async_trait]
impl Stage for AirStage {
    fn browser(&self) -> &str {
        "air"
    }

    async fn begin(&mut self) -> Result<Option<String>, StageError> {
        Ok(Some(format!("Click the button {} times.", self.clicks_left)))
    }

    async fn observe(&mut self) -> Result<Observation, StageError> {
        self.alive()?;
        tokio::time::sleep(self.config.observe).await;
        let title = self.title();
        let tab = Tab { title: title.clone(), url: self.url.clone(), active: true };
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

    async fn hint(&mut self, _goal: &str, _step: u32) -> Result<Option<Hint>, StageError> {
        self.alive()?;
        let PagePoint { x, y } = self.button();
        let json = format!(r#"{{"action":"click_element","element":"the button","x":{x},"y":{y}}}"#);
        Ok(Some(Hint { json }))
    }

    async fn act(&mut self, action: &Action) -> Result<Outcome, StageError> {
        self.alive()?;
        self.draw_a_failure();
        if let Action::Click { at: Some(at), .. } = action
            && self.is_on_the_button(*at)
        {
            self.clicks_left = self.clicks_left.saturating_sub(1);
        }
        Ok(Outcome::named(OutcomeName::Ok))
    }

    async fn settle(&mut self, outcome: Outcome) -> Result<Outcome, StageError> {
        self.alive()?;
        tokio::time::sleep(self.config.settle).await;
        Ok(outcome)
    }

    async fn probe(&mut self) -> Result<Option<String>, StageError> {
        self.alive()?;
        Ok(Some(self.probe_json()))
    }

    async fn evidence(&mut self) -> Option<Evidence> {
        // A page that hangs is stopped and can be looked at; one that died cannot.
        match self.failed {
            None | Some(StageError::PageHang { .. }) => Some(Evidence {
                screenshot: Some(self.screenshot().bytes),
                url: Some(self.url.clone()),
                title: Some(self.title()),
                answer: None,
                probe_json: Some(self.probe_json()),
            }),
            Some(_) => None,
        }
    }

    async fn close(self: Box<Self>) {}
}

impl AirStage {
    fn alive(&self) -> Result<(), StageError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn draw_a_failure(&mut self) {
        let Faults { crash, hang, death } = self.config.faults;
        let drawn: f64 = self.rng.random();
        self.failed = match drawn {
            drawn if drawn < crash => Some(StageError::PageCrash),
            drawn if drawn < crash + hang => Some(StageError::PageHang { waited_for: "input" }),
            drawn if drawn < crash + hang + death => Some(StageError::BrowserDead),
            _ => None,
        };
    }

    /// Bytes of its own, as a browser's would be: what keeps screenshots keeps memory.
    fn screenshot(&self) -> Screenshot {
        Screenshot { bytes: Bytes::copy_from_slice(&self.screenshot.bytes), ..self.screenshot.clone() }
    }

    /// The button is the middle half of the page.
    fn button(&self) -> PagePoint {
        let Size { width, height } = self.screenshot.size;
        PagePoint { x: width as f32 / 2.0, y: height as f32 / 2.0 }
    }

    fn is_on_the_button(&self, at: PagePoint) -> bool {
        let PagePoint { x, y } = self.button();
        (at.x - x).abs() <= x / 2.0 && (at.y - y).abs() <= y / 2.0
    }

    fn title(&self) -> String {
        format!("{} clicks to go", self.clicks_left)
    }

    fn probe_json(&self) -> String {
        let done = self.clicks_left == 0;
        format!(r#"{{"done":{done},"reward":{}}}"#, u8::from(done))
    }
}

impl Drop for AirStage {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A stream of its own for each attempt, the same whatever else runs beside it.
fn rng_of(seed: u64, assignment: &Assignment) -> ChaCha12Rng {
    let of = &assignment.ancestry;
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(assignment.task.seed.to_le_bytes());
    hash.update(of.trajectory_id.as_str());
    ChaCha12Rng::from_seed(hash.finalize().into())
}

/// A PNG of noise: three bytes a pixel that nothing can shorten, 0.1 % of framing on top.
fn noise(seed: u64, bytes: usize) -> Screenshot {
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
    // Memory takes any number of bytes, and the sizes fit by construction.
    debug_assert!(written.is_ok(), "{written:?}");
    Screenshot { bytes: encoded.into(), format: ImageFormat::Png, size: Size::new(side, side) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_a_valid_image_of_the_size_asked_for() {
        for bytes in [1_000, 50_000, 200_000] {
            let screenshot = noise(7, bytes);
            let decoded = image::load_from_memory(&screenshot.bytes).unwrap();
            assert_eq!(Size::new(decoded.width(), decoded.height()), screenshot.size);
            let size = screenshot.bytes.len() as f64;
            assert!((size / bytes as f64 - 1.0).abs() < 0.2, "{size} for {bytes}");
        }
        assert_eq!(noise(7, 1000), noise(7, 1000));
        assert_ne!(noise(7, 1000), noise(8, 1000));
    }
}
