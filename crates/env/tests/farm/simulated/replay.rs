//! A replay outlives a browser.

use furrow_env::{ReplayExpectation, replay_trajectory};

use super::*;

/// A browser that dies at its first starts.
struct MortalBrowser {
    deaths_left: AtomicU32,
    opened: AtomicU32,
    then: SimulatedBrowser,
}

#[async_trait]
impl EnvironmentFactory for MortalBrowser {
    fn fingerprint(&self, task: Option<&Task>) -> EnvironmentFingerprint {
        self.then.fingerprint(task)
    }

    async fn open(&self, assignment: &Assignment) -> Result<Box<dyn Environment>, EnvironmentError> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        let left = self.deaths_left.load(Ordering::SeqCst);
        if left > 0 {
            self.deaths_left.store(left - 1, Ordering::SeqCst);
            return Err(EnvironmentError::BrowserDead);
        }
        self.then.open(assignment).await
    }

    async fn close(&self) {}
}

struct AnyPage;

impl ReplayExpectation for AnyPage {
    fn matches_before_step(&self, _step: usize, _observation: &Observation) -> bool {
        true
    }

    fn matches_at_end(&self, _evidence: &Evidence) -> bool {
        true
    }
}

#[tokio::test]
async fn a_trajectory_whose_browser_died_is_replayed_in_another_one() {
    let stopped_by_death = Some("no page: the browser died".to_owned());
    for (deaths, opened, stopped) in [(0, 1, None), (2, 3, None), (3, 3, stopped_by_death)] {
        let browser = MortalBrowser {
            deaths_left: AtomicU32::new(deaths),
            opened: AtomicU32::new(0),
            then: SimulatedBrowser::new(SimConfig::default()),
        };
        let assignment = assignment(0, "127.0.0.1:1".parse().unwrap());
        let replay = replay_trajectory(&browser, &assignment, &[], &AnyPage, Duration::ZERO).await;
        assert_eq!(replay.stopped, stopped, "{deaths} deaths");
        assert_eq!(browser.opened.load(Ordering::SeqCst), opened, "{deaths} deaths");
    }
}
