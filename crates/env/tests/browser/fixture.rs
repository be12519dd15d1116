//! A browser pool and pages for tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use furrow_env::{
    ChromiumPool, EnvConfig, EnvFile, Environment, EnvironmentFactory, FileRoot, SiteServer, StaticSite,
};
use furrow_rollout::*;

use crate::walls::HELPER;

/// Pages of a test, served as `page.test`, and the pool of browsers that load them.
pub(crate) struct BrowserFixture {
    pub pool: ChromiumPool,
    pub folder: tempfile::TempDir,
}

pub(crate) fn config(change: impl FnOnce(&mut EnvFile)) -> EnvConfig {
    furrow_env::use_namespace_helper(HELPER);
    let mut file =
        EnvFile { browser: std::env::var_os("FURROW_BROWSER").map(PathBuf::from), ..EnvFile::default() };
    (file.input_millis, file.screenshot_millis, file.navigation_millis, file.settle_cap_millis) =
        (3_000, 5_000, 10_000, 1_500);
    change(&mut file);
    file.check(Path::new("/")).unwrap()
}

pub(crate) async fn fixture() -> BrowserFixture {
    fixture_with(|_| {}, vec![]).await
}

pub(crate) async fn fixture_with(change: impl FnOnce(&mut EnvFile), more: Vec<StaticSite>) -> BrowserFixture {
    let folder = tempfile::tempdir().unwrap();
    let config = config(change);
    let mut sites =
        vec![StaticSite { host: "page.test".into(), root: FileRoot::Folder(folder.path().to_owned()) }];
    sites.extend(more);
    let sites = Arc::new(SiteServer::open(&sites, config.sites).unwrap());
    let pool = ChromiumPool::start(config.browser, sites, config.egress)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    BrowserFixture { pool, folder }
}

impl BrowserFixture {
    /// A loaded page with this body.
    pub(crate) async fn page(&self, body: &str) -> Box<dyn Environment> {
        self.page_with(body, |_| {}).await
    }

    pub(crate) async fn page_with(&self, body: &str, change: impl FnOnce(&mut Task)) -> Box<dyn Environment> {
        let html =
            format!("<!doctype html><meta charset=utf-8><title>test</title><body style='margin:0'>{body}");
        let name = format!(
            "{:x}.html",
            html.bytes().fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)))
        );
        std::fs::write(self.folder.path().join(&name), html).unwrap();
        let mut task = task(&format!("http://page.test/{name}"));
        change(&mut task);
        let mut environment = self.pool.open(&assignment(task)).await.unwrap();
        environment.begin().await.unwrap();
        environment
    }

    pub(crate) async fn close(self) {
        self.pool.close().await;
    }
}

pub(crate) fn task(url: &str) -> Task {
    Task {
        task_id: "t".into(),
        suite: "test".into(),
        split: Split::Train,
        goal: None,
        start_url: url.into(),
        seed: 1,
        max_steps: 9,
        time_limit_millis: 60_000,
        viewport: Size::new(512, 512),
        observation: ObservationSpec { format: ImageFormat::Png, clip: None, square: false },
        allow_hosts: vec![],
        hooks: PageHooks { probe: Some("window.state ?? {}".into()), ..PageHooks::default() },
        clock: PageClock::Real,
    }
}

pub(crate) fn assignment(task: Task) -> Assignment {
    let run_id = Id::new("r").unwrap();
    let group_id = Id::nth(&run_id, 0);
    let trajectory_id = Id::attempt(&group_id, 0, 0);
    Assignment {
        ancestry: TrajectoryAncestry { run_id, group_id, sample_index: 0, attempt: 0, trajectory_id },
        token: 1,
        secret: LeaseSecret::new([0; LEASE_SECRET_BYTES]),
        lease_millis: 1_000,
        task,
        files: TaskFiles::default(),
        checks: TaskChecks::default(),
        secrets: Vec::new(),
        session: SessionSpec {
            grammar: Grammar { name: "holo_navigation".into(), extra: vec![] },
            sampling: SamplingParams::default(),
            context: ContextPolicy::Append,
            instructions: String::new(),
        },
        policy_address: String::new(),
    }
}

/// Executes an action and waits for the page to be quiet.
pub(crate) async fn act(environment: &mut Box<dyn Environment>, action: Action) -> Outcome {
    let outcome = environment.act(&action).await.unwrap();
    environment.settle(outcome).await.unwrap()
}

/// Returns the page's `window.state`.
pub(crate) async fn state(environment: &mut Box<dyn Environment>) -> serde_json::Value {
    serde_json::from_str(&environment.probe().await.unwrap().unwrap()).unwrap()
}

pub(crate) fn at(x: f32, y: f32) -> PagePoint {
    PagePoint { x, y }
}

pub(crate) fn click(x: f32, y: f32) -> Action {
    Action::click(at(x, y))
}
