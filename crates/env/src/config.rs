//! The job's `[env]` section: the browsers, the deadlines of all page operations, and the retries
//! of calls to other services.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use furrow_rollout::{Task, WallsLevel};
use furrow_wire::LEASE_WAIT_MILLIS_MAX;
use serde::{Deserialize, Serialize};

use crate::archive::ArchiveLimits;
use crate::egress::{EgressLimits, LiveLimits};
use crate::hooks::HookCommand;
use crate::live::HostPins;
use crate::retry::RetryPolicy;
use crate::secrets::{self, DeclaredSecret, SecretFile, WorkerSecrets};
use crate::sites::SiteLimits;
use crate::worker::WorkerConfig;

/// Most folders: the loader searches each of them for some fifty libraries.
const LIBRARY_FOLDERS_MAX: usize = 16;

/// The value of `env.walls` that accepts every level.
const REPORT: &str = "report";

/// The values of `env.isolation`.
const CONTEXT: &str = "context";
const PROCESS: &str = "process";

/// `[env]` as written in the job file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EnvFile {
    /// Trajectories at once. A core runs 15 to 25 sessions of light pages, fewer of heavy ones.
    pub sessions_max: u32,
    /// Path of the Chromium headless shell, the program itself; absent: the paths where Debian
    /// installs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub browser: Option<PathBuf>,
    /// Folders that only the browser's process searches for shared libraries, before the system's;
    /// they must not contain a C library. Empty: the system's libraries.
    pub browser_libraries: Vec<PathBuf>,
    /// A fontconfig file for the browser's process; absent: the system's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub browser_fonts: Option<PathBuf>,
    /// Ordinary user that browsers run as when the worker is root. It must be able to read the
    /// browser, its libraries and fonts.
    pub browser_user: String,
    /// Chromium's own sandbox. Disable it only inside a container that serves as the sandbox.
    pub sandbox: bool,
    /// How far browsers must be shut off from their machine: `report` (any level; records name it),
    /// `namespaces` or `full` ([levels](SECURITY.md#walls-around-a-browser)). A worker that cannot
    /// build as much does not start.
    pub walls: String,
    /// What a trajectory on live sites has for itself: `context` (of a browser that it shares with
    /// others) or `process` (a browser;
    /// [what that costs](SECURITY.md#a-browser-for-each-live-session)).
    pub isolation: String,
    /// Browser contexts per process. More contexts are cheaper; fewer are lost together.
    pub contexts_per_browser: u32,
    /// Contexts created before a trajectory needs them; each uses 20 MB. Raise it if many
    /// trajectories begin at once.
    pub contexts_ready: u32,
    /// Trajectories that one browser serves before another browser replaces it, so that what leaks
    /// in it ends.
    pub trajectories_per_browser: u32,
    /// Tabs that a context may have open; further ones are closed.
    pub tabs_max: u32,
    /// Memory that all processes of one browser may use together; above it the page that uses most
    /// is killed.
    pub browser_memory_bytes_max: u64,
    /// Threads that all processes of one browser may have together; above it the page that has most
    /// is killed.
    pub browser_threads_max: u32,
    /// Memory that stays free: while the machine or the worker's container has less, no new
    /// trajectory starts. 0 disables the check.
    pub memory_reserve_bytes: u64,
    /// Language of every page, as browsers name it: `en-US`, `de-DE`.
    pub locale: String,
    /// Time zone of every page, by its name in the tz database: `UTC`, `Europe/Berlin`.
    pub timezone: String,
    /// Record the page's accessibility text with each observation, for a trainer that reads text.
    pub axtree: bool,
    /// Draw numbered boxes over actionable elements into each screenshot, and record what the
    /// numbers stand for.
    pub marks: bool,
    /// Deadline of a click, a key or a probe. A page that hangs longer ends the trajectory.
    pub input_millis: u64,
    /// Deadline of a screenshot. Raise it for heavy pages on a busy machine.
    pub screenshot_millis: u64,
    /// Deadline of a navigation or a new tab. Raise it for slow servers.
    pub navigation_millis: u64,
    /// Time without a change after which a page counts as quiet and is photographed.
    pub settle_quiet_millis: u64,
    /// Longest wait for a quiet page after an action. A page that never rests, such as one with a
    /// clock, takes this long at every step.
    pub settle_cap_millis: u64,
    /// Pages that are inspected for a site's refusal, which ends a trajectory as `blocked`: `live`
    /// (all but the farm's own sites), `all` or `never`.
    pub blocked_pages: String,
    /// Time within which a refusal may disappear without counting as one.
    pub blocked_timeout_millis: u64,
    /// Consecutive replies without an action that end a trajectory as `unparsable`.
    pub unparsable_max: u32,
    /// Deadline of one reply of the policy. Keep it above `policy.remote.deadline_millis`.
    pub policy_millis: u64,
    /// Time for which an unreachable policy worker is retried; after it the trajectory ends as
    /// `policy_fault`.
    pub policy_retry_timeout_millis: u64,
    /// Deadline of one answer of the coordinator, which writes to disk before it answers.
    pub coordinator_millis: u64,
    /// Time for which an unreachable coordinator is retried; after it the worker gives up.
    pub coordinator_retry_timeout_millis: u64,
    /// Time for which the coordinator may keep a request for work open while it has none.
    pub lease_wait_millis: u64,
    /// Time for trajectories to end by themselves after the worker is asked to stop.
    pub drain_grace_millis: u64,
    /// Connections that the pages of one context may have open at once.
    pub connections_max: u32,
    /// Whether pages may reach live hosts that are on their task's list. Private, loopback,
    /// link-local and metadata addresses are always refused.
    pub live: bool,
    /// Most bytes that one trajectory may receive from live hosts.
    pub live_bytes_max: u64,
    /// Hosts with a fixed address instead of a resolved one, such as
    /// `shop.example.org=10.0.0.5:8080`: the only way to a private address, for tasks that list the
    /// host ([a server of your own](SITES.md#your-own-server)).
    pub pins: Vec<String>,
    /// Largest file of a site that is served; a larger one is answered with an error.
    pub site_file_bytes_max: u64,
    /// Bytes of site files kept in memory, for all sites together.
    pub site_cache_bytes_max: u64,
    /// Store the responses that the pages of each trajectory received in `archive/` of the run
    /// directory, to replay the trajectory without the network. Each trajectory then has its own
    /// browser process.
    pub archive: bool,
    /// Largest response that `archive` stores; a replay lacks a larger one.
    pub archive_response_bytes_max: u64,
    /// Most bytes that `archive` stores for one trajectory; a replay lacks what came later.
    pub archive_trajectory_bytes_max: u64,
    /// Most bytes of all archives of the run. While there are more, the archives that were finished
    /// first are removed; those that are being recorded or replayed stay. Absent: all are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive_bytes_max: Option<u64>,
    /// Values by name that only the environment worker knows and types into pages, such as
    /// passwords ([secrets](TASKS.md#secrets)). Tasks say which of them a policy may use.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretFile>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EnvConfig {
    pub sessions_max: u32,
    /// Settings of the browsers.
    pub browser: BrowserConfig,
    /// Settings of the worker's loops and connections.
    pub worker: WorkerConfig,
    /// Limits of each context's egress filter.
    pub egress: EgressLimits,
    /// Limits of the site server.
    pub sites: SiteLimits,
    /// Limits of each trajectory's archive; `None` records nothing.
    pub archive: Option<ArchiveLimits>,
    /// Secrets of the job, without their values.
    pub secrets: Vec<DeclaredSecret>,
}

/// How browsers are started, and the deadlines of their operations.
#[derive(Debug, Clone, PartialEq)]
pub struct BrowserConfig {
    /// Path of the program; `None`: search for it.
    pub path: Option<PathBuf>,
    /// Folders that it searches for shared libraries before the system's.
    pub libraries: Vec<PathBuf>,
    /// Its fontconfig file; `None`: the system's.
    pub fonts: Option<PathBuf>,
    /// User that it runs as when the worker is root.
    pub user: String,
    pub sandbox: bool,
    /// The least to which it must be shut off from the machine.
    pub walls_min: WallsLevel,
    /// Whether each browser may have a network namespace. No key of a job: a benchmark compares
    /// both.
    pub may_have_network: bool,
    /// Whether a trajectory on live sites has a process of its own.
    pub live_processes: bool,
    /// Contexts in one process.
    pub contexts_per_browser: u32,
    /// Contexts created in advance.
    pub contexts_ready: u32,
    /// Trajectories that one process serves.
    pub trajectories_per_browser: u32,
    /// Tabs in one context.
    pub tabs_max: u32,
    /// Resource limits of one browser.
    pub limits: BrowserLimits,
    /// Memory that new contexts leave free.
    pub memory_reserve_bytes: u64,
    /// Language of every page.
    pub locale: String,
    /// Time zone of every page.
    pub timezone: String,
    /// Whether observations contain accessibility text.
    pub axtree: bool,
    /// Whether screenshots have marks.
    pub marks: bool,
    /// Whether errors of pages are collected. No key of a job: it slows the browser, and a command
    /// sets it that shows them to the author of a site.
    pub page_errors: bool,
    /// Commands that tasks may name: `[tasks.hooks]` of the job of this worker.
    pub hooks: Vec<HookCommand>,
    /// Secrets with their values. No key of a job: the process that starts browsers reads them.
    pub secrets: Arc<WorkerSecrets>,
    pub deadlines: PageDeadlines,
    /// When a page counts as quiet.
    pub settle: SettleRules,
    /// When a page counts as a site's refusal.
    pub refusals: RefusalRules,
}

/// When a page counts as a site's refusal to serve it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusalRules {
    /// The pages that are inspected.
    pub pages: BlockedPages,
    /// How long a refusal must last.
    pub timeout: Duration,
}

/// The pages that are inspected for refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockedPages {
    /// Pages of live sites.
    Live,
    /// All pages; for trying the detection out.
    All,
    Never,
}

impl BlockedPages {
    /// Parses the name in job files.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "live" => Some(Self::Live),
            "all" => Some(Self::All),
            "never" => Some(Self::Never),
            _ => None,
        }
    }

    /// Whether a task can meet a refusal at all: most tasks never leave the farm's own sites and
    /// are not inspected.
    pub(crate) fn applies_to(self, task: &Task) -> bool {
        let start = task.start_url.parse::<http::Uri>().ok();
        let start = start.as_ref().and_then(http::Uri::host).unwrap_or_default();
        let own = task.allow_hosts.iter().map(String::as_str).chain([start]);
        match self {
            Self::Never => false,
            Self::All => true,
            Self::Live => own.into_iter().any(|host| self.includes_host(host)),
        }
    }

    pub(crate) fn includes_host(self, host: &str) -> bool {
        match self {
            Self::Live => !host.is_empty() && !host.ends_with(".test"),
            Self::All => true,
            Self::Never => false,
        }
    }
}

/// Resource limits of one browser, for all its processes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BrowserLimits {
    /// Memory that its processes have written, without pages of mapped files.
    pub memory_bytes: u64,
    /// Number of its threads.
    pub threads: u32,
}

/// Deadlines of commands to a page. Chromium's protocol library waits 30 s for every command; these
/// are shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageDeadlines {
    /// Input, probes and small queries.
    pub input: Duration,
    pub screenshot: Duration,
    /// Navigations, new tabs, the start of a task.
    pub navigation: Duration,
}

/// When a page counts as quiet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettleRules {
    /// Time without a change.
    pub quiet: Duration,
    pub cap: Duration,
}

impl Default for EnvFile {
    fn default() -> Self {
        Self {
            sessions_max: 8,
            browser: None,
            browser_libraries: Vec::new(),
            browser_fonts: None,
            browser_user: "nobody".into(),
            sandbox: true,
            walls: REPORT.into(),
            isolation: CONTEXT.into(),
            contexts_per_browser: 25,
            // Assigning a context takes 1 ms, creating one 100: if one trajectory ends at a time,
            // one would suffice, but trajectories of a group end together.
            contexts_ready: 2,
            // Starting a browser takes 0.2 s: a hundredth of a percent of the time of 1,000
            // trajectories of a minute each.
            trajectories_per_browser: 1_000,
            tabs_max: 8,
            // 25 contexts x 35 MB of a light page = 0.9 GB, and 3 GB for heavier pages: 160 MB per
            // context.
            browser_memory_bytes_max: 4 << 30,
            // A light page has 10 threads, a browser without any 50: 25 contexts x 8 tabs x 10 =
            // 2,000, and as many for pages with workers.
            browser_threads_max: 4_096,
            // A browser near its limit fills 8 GiB/s x 20 ms = 160 MiB more before the next poll;
            // the rest is for other processes.
            memory_reserve_bytes: 1 << 30,
            locale: "en-US".into(),
            timezone: "UTC".into(),
            axtree: false,
            marks: false,
            input_millis: 5_000,
            screenshot_millis: 10_000,
            navigation_millis: 30_000,
            settle_quiet_millis: 50,
            settle_cap_millis: 3_000,
            blocked_pages: "live".into(),
            // Pages that check the browser announce waits of five seconds; a slow one gets three
            // more.
            blocked_timeout_millis: 8_000,
            unparsable_max: 3,
            policy_millis: 120_000,
            policy_retry_timeout_millis: 60_000,
            coordinator_millis: 10_000,
            coordinator_retry_timeout_millis: 120_000,
            lease_wait_millis: 10_000,
            drain_grace_millis: 30_000,
            connections_max: 64,
            live: true,
            // Twice thirty steps on heavy pages of 20 MB.
            live_bytes_max: 1 << 30,
            pins: Vec::new(),
            site_file_bytes_max: 32 << 20,
            site_cache_bytes_max: 64 << 20,
            archive: false,
            archive_response_bytes_max: 16 << 20,
            // A heavy page of the live web is 5 to 20 MB; thirty steps share most of it.
            archive_trajectory_bytes_max: 256 << 20,
            archive_bytes_max: None,
            secrets: BTreeMap::new(),
        }
    }
}

impl EnvFile {
    /// Validates every key and reports all invalid ones. Relative paths begin at `base`, the job
    /// file's folder. Whether the files exist is checked where browsers are started, which may be
    /// another machine.
    pub fn check(self, base: &Path) -> Result<EnvConfig, Vec<String>> {
        let mut wrong = self.problems();
        wrong.extend(self.unusable_folders(base));
        let declared = secrets::check_all(self.secrets.clone());
        match (HostPins::new(&self.pins), declared) {
            (Ok(pins), Ok(declared)) if wrong.is_empty() => return Ok(self.config(base, pins, declared)),
            (pins, declared) => {
                let pins = pins.err().unwrap_or_default();
                wrong.extend(pins.into_iter().map(|bad| format!("env.pins: {bad}")));
                wrong.extend(declared.err().unwrap_or_default());
            }
        }
        Err(wrong)
    }

    /// The same with absolute paths.
    pub fn resolved(mut self, base: &Path) -> Self {
        self.browser = self.browser.map(|path| base.join(path));
        self.browser_libraries = joined(base, &self.browser_libraries);
        self.browser_fonts = self.browser_fonts.map(|path| base.join(path));
        self
    }

    /// Folders of libraries that the dynamic loader would misread: it splits its list at `:` and
    /// `;`, and expands `$ORIGIN`.
    fn unusable_folders(&self, base: &Path) -> Vec<String> {
        let mut wrong = Vec::new();
        let count = self.browser_libraries.len();
        if count > LIBRARY_FOLDERS_MAX {
            wrong.push(format!("env.browser_libraries: {count} folders; use at most {LIBRARY_FOLDERS_MAX}"));
        }
        for (index, folder) in self.browser_libraries.iter().enumerate() {
            let key = format!("env.browser_libraries[{index}]");
            let path = base.join(folder);
            if folder.as_os_str().is_empty() {
                wrong.push(format!("{key}: empty; name a folder"));
            } else if path.to_string_lossy().contains([':', ';', '$', '\n']) {
                wrong
                    .push(format!("{key}: {path:?}; use a path without \":\", \";\", \"$\" and line breaks"));
            }
        }
        if self.browser_fonts.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            wrong.push("env.browser_fonts: empty; name a fontconfig file, or leave the key out".into());
        }
        wrong
    }

    fn problems(&self) -> Vec<String> {
        let hour = 3_600_000;
        let whole = [
            ("sessions_max", u64::from(self.sessions_max), 1, 1_000),
            ("contexts_per_browser", u64::from(self.contexts_per_browser), 1, 200),
            ("contexts_ready", u64::from(self.contexts_ready), 0, 100),
            ("trajectories_per_browser", u64::from(self.trajectories_per_browser), 1, 1_000_000),
            ("tabs_max", u64::from(self.tabs_max), 1, 64),
            // An idle browser with one empty page uses 110 MB and has 60 threads.
            ("browser_memory_bytes_max", self.browser_memory_bytes_max, 256 << 20, 1 << 40),
            ("browser_threads_max", u64::from(self.browser_threads_max), 256, 1 << 20),
            ("memory_reserve_bytes", self.memory_reserve_bytes, 0, 1 << 40),
            ("input_millis", self.input_millis, 100, 60_000),
            ("screenshot_millis", self.screenshot_millis, 100, 60_000),
            // The protocol library itself gives up after 30 s.
            ("navigation_millis", self.navigation_millis, 100, 30_000),
            ("settle_quiet_millis", self.settle_quiet_millis, 1, 10_000),
            ("settle_cap_millis", self.settle_cap_millis, 1, 20_000),
            ("blocked_timeout_millis", self.blocked_timeout_millis, 0, 60_000),
            ("unparsable_max", u64::from(self.unparsable_max), 1, 1_000),
            ("policy_millis", self.policy_millis, 100, hour),
            ("policy_retry_timeout_millis", self.policy_retry_timeout_millis, 0, hour),
            ("coordinator_millis", self.coordinator_millis, 100, hour),
            ("coordinator_retry_timeout_millis", self.coordinator_retry_timeout_millis, 0, 24 * hour),
            ("lease_wait_millis", self.lease_wait_millis, 0, LEASE_WAIT_MILLIS_MAX),
            ("drain_grace_millis", self.drain_grace_millis, 0, 24 * hour),
            ("connections_max", u64::from(self.connections_max), 6, 1_000),
            ("live_bytes_max", self.live_bytes_max, 1 << 20, 1 << 40),
            ("site_file_bytes_max", self.site_file_bytes_max, 1, 1 << 32),
            ("site_cache_bytes_max", self.site_cache_bytes_max, 0, 1 << 36),
            // A body arrives through the browser's protocol in one message, half as large again.
            ("archive_response_bytes_max", self.archive_response_bytes_max, 1, 256 << 20),
            ("archive_trajectory_bytes_max", self.archive_trajectory_bytes_max, 1, 1 << 40),
            ("archive_bytes_max", self.archive_bytes_max.unwrap_or(1 << 40), 1, 1 << 50),
        ];
        let out = |&(_, value, least, most): &(&str, u64, u64, u64)| !(least..=most).contains(&value);
        let mut wrong: Vec<String> = whole
            .iter()
            .filter(|row| out(row))
            .map(|(key, value, least, most)| format!("env.{key}: {value}; use {least} to {most}"))
            .collect();
        let least = self.archive_trajectory_bytes_max;
        if let Some(most) = self.archive_bytes_max.filter(|most| (1..least).contains(most)) {
            wrong.push(format!(
                "env.archive_bytes_max: {most} is less than one trajectory may store; use at least \
                 env.archive_trajectory_bytes_max ({least})"
            ));
        }
        if BlockedPages::parse(&self.blocked_pages).is_none() {
            wrong.push(format!("env.blocked_pages: {:?}; use live, all or never", self.blocked_pages));
        }
        if walls_min(&self.walls).is_none() {
            wrong.push(format!("env.walls: {:?}; use report, namespaces or full", self.walls));
        }
        if ![CONTEXT, PROCESS].contains(&self.isolation.as_str()) {
            wrong.push(format!("env.isolation: {:?}; use context or process", self.isolation));
        }
        for (key, text) in
            [("browser_user", &self.browser_user), ("locale", &self.locale), ("timezone", &self.timezone)]
        {
            if text.is_empty() || text.len() > 64 || text.contains(char::is_whitespace) {
                wrong.push(format!(
                    "env.{key}: {text:?}; use a name such as \"nobody\", \"en-US\" or \"UTC\""
                ));
            }
        }
        wrong
    }

    fn config(self, base: &Path, pins: HostPins, secrets: Vec<DeclaredSecret>) -> EnvConfig {
        let millis = Duration::from_millis;
        let egress = EgressLimits {
            connections_max: self.connections_max as usize,
            header_bytes_max: 64 << 10,
            deadline: millis(self.navigation_millis),
            live: self.live.then(|| LiveLimits { bytes_max: self.live_bytes_max, pins: Arc::new(pins) }),
        };
        let archive = self.archive_limits();
        EnvConfig {
            sessions_max: self.sessions_max,
            browser: BrowserConfig {
                path: self.browser.map(|path| base.join(path)),
                libraries: joined(base, &self.browser_libraries),
                fonts: self.browser_fonts.map(|path| base.join(path)),
                user: self.browser_user,
                sandbox: self.sandbox,
                walls_min: walls_min(&self.walls).unwrap_or(WallsLevel::Basic),
                may_have_network: true,
                live_processes: self.isolation == PROCESS,
                contexts_per_browser: self.contexts_per_browser,
                contexts_ready: self.contexts_ready,
                trajectories_per_browser: self.trajectories_per_browser,
                tabs_max: self.tabs_max,
                limits: BrowserLimits {
                    memory_bytes: self.browser_memory_bytes_max,
                    threads: self.browser_threads_max,
                },
                memory_reserve_bytes: self.memory_reserve_bytes,
                locale: self.locale,
                timezone: self.timezone,
                axtree: self.axtree,
                marks: self.marks,
                page_errors: false,
                hooks: Vec::new(),
                secrets: Arc::default(),
                deadlines: PageDeadlines {
                    input: millis(self.input_millis),
                    screenshot: millis(self.screenshot_millis),
                    navigation: millis(self.navigation_millis),
                },
                settle: SettleRules {
                    quiet: millis(self.settle_quiet_millis),
                    cap: millis(self.settle_cap_millis),
                },
                refusals: RefusalRules {
                    pages: BlockedPages::parse(&self.blocked_pages).unwrap_or(BlockedPages::Live),
                    timeout: millis(self.blocked_timeout_millis),
                },
            },
            worker: WorkerConfig {
                sessions_max: self.sessions_max,
                lease_wait: millis(self.lease_wait_millis),
                call_deadline: millis(self.coordinator_millis),
                coordinator_retry: retry(self.coordinator_retry_timeout_millis),
                policy_deadline: millis(self.policy_millis),
                policy_retry: retry(self.policy_retry_timeout_millis),
                unparsable_max: self.unparsable_max,
                drain_grace: millis(self.drain_grace_millis),
            },
            egress,
            sites: SiteLimits {
                file_bytes_max: self.site_file_bytes_max,
                cache_bytes_max: self.site_cache_bytes_max,
            },
            archive,
            secrets,
        }
    }

    fn archive_limits(&self) -> Option<ArchiveLimits> {
        self.archive.then_some(ArchiveLimits {
            response_bytes_max: self.archive_response_bytes_max,
            trajectory_bytes_max: self.archive_trajectory_bytes_max,
            bytes_max: self.archive_bytes_max,
        })
    }
}

fn retry(timeout_millis: u64) -> RetryPolicy {
    RetryPolicy {
        first: Duration::from_millis(50),
        longest: Duration::from_secs(2),
        timeout: Duration::from_millis(timeout_millis),
    }
}

/// The least level that this value of `env.walls` accepts.
fn walls_min(text: &str) -> Option<WallsLevel> {
    let named = WallsLevel::parse(text).filter(|level| *level != WallsLevel::Basic);
    named.or_else(|| (text == REPORT).then_some(WallsLevel::Basic))
}

fn joined(base: &Path, folders: &[PathBuf]) -> Vec<PathBuf> {
    folders.iter().map(|folder| base.join(folder)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: impl FnOnce(&mut EnvFile), want: &[&str]) {
        let mut file = EnvFile::default();
        change(&mut file);
        let got = file.check(Path::new("/")).err().unwrap_or_default();
        assert_eq!(got, want);
    }

    #[test]
    fn every_wrong_key_is_named_at_once() {
        check(|_| {}, &[]);
        check(|file| file.sessions_max = 0, &["env.sessions_max: 0; use 1 to 1000"]);
        check(
            |file| (file.browser_memory_bytes_max, file.browser_threads_max) = (1 << 20, 100),
            &[
                "env.browser_memory_bytes_max: 1048576; use 268435456 to 1099511627776",
                "env.browser_threads_max: 100; use 256 to 1048576",
            ],
        );
        check(
            |file| file.archive_bytes_max = Some(1 << 20),
            &["env.archive_bytes_max: 1048576 is less than one trajectory may store; use at least \
               env.archive_trajectory_bytes_max (268435456)"],
        );
        check(
            |file| file.memory_reserve_bytes = u64::MAX,
            &["env.memory_reserve_bytes: 18446744073709551615; use 0 to 1099511627776"],
        );
        check(|file| file.isolation = "tab".into(), &["env.isolation: \"tab\"; use context or process"]);
        check(|file| file.walls = "basic".into(), &["env.walls: \"basic\"; use report, namespaces or full"]);
        check(
            |file| (file.tabs_max, file.navigation_millis, file.locale) = (65, 40_000, String::new()),
            &[
                "env.tabs_max: 65; use 1 to 64",
                "env.navigation_millis: 40000; use 100 to 30000",
                "env.locale: \"\"; use a name such as \"nobody\", \"en-US\" or \"UTC\"",
            ],
        );
    }

    #[test]
    fn folders_that_the_loader_would_misread_are_refused() {
        let libraries = |folders: &[&str]| {
            let folders: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
            move |file: &mut EnvFile| file.browser_libraries = folders
        };
        check(libraries(&["lib", "/opt/browser/lib", "../a b"]), &[]);
        check(libraries(&["lib", ""]), &["env.browser_libraries[1]: empty; name a folder"]);
        for (folder, path) in
            [("a:b", "/a:b"), ("/x;y", "/x;y"), ("$ORIGIN/lib", "/$ORIGIN/lib"), ("a\nb", "/a\nb")]
        {
            let want = format!(
                "env.browser_libraries[0]: {path:?}; use a path without \":\", \";\", \"$\" and line breaks"
            );
            check(libraries(&[folder]), &[&want]);
        }
        check(libraries(&["x"; 17]), &["env.browser_libraries: 17 folders; use at most 16"]);
        let fonts = |path: &str| {
            let path = PathBuf::from(path);
            move |file: &mut EnvFile| file.browser_fonts = Some(path)
        };
        check(fonts("fonts.conf"), &[]);
        check(fonts(""), &["env.browser_fonts: empty; name a fontconfig file, or leave the key out"]);
    }

    #[test]
    fn paths_begin_at_the_folder_of_the_job() {
        let file = EnvFile {
            browser: Some("b/shell".into()),
            browser_libraries: vec!["b/lib".into(), "/usr/local/lib".into()],
            browser_fonts: Some("b/fonts.conf".into()),
            ..EnvFile::default()
        };
        let libraries = [PathBuf::from("/jobs/b/lib"), "/usr/local/lib".into()];
        let resolved = file.clone().resolved(Path::new("/jobs"));
        assert_eq!(resolved.browser_libraries, libraries);
        assert_eq!(resolved.browser_fonts, Some("/jobs/b/fonts.conf".into()));
        let config = file.check(Path::new("/jobs")).unwrap().browser;
        assert_eq!(
            (&config.libraries[..], config.fonts),
            (&libraries[..], Some("/jobs/b/fonts.conf".into()))
        );
        assert_eq!(config.path, Some("/jobs/b/shell".into()));
    }

    #[test]
    fn our_own_sites_are_not_looked_at() {
        for (host, live) in [("a.example", true), ("shop.web.test", false), ("", false), ("attest", true)] {
            assert_eq!(BlockedPages::Live.includes_host(host), live, "{host}");
            assert!(BlockedPages::All.includes_host(host) && !BlockedPages::Never.includes_host(host));
        }
    }
}
