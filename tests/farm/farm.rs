//! A farm of real processes in a temporary directory: started, killed, started again, and checked
//! at the end.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use furrow_wire::v1::coordinator_service_client::CoordinatorServiceClient;
use furrow_wire::v1::{ProgressRequest, ProgressResponse};
use furrow_wire::{Connector, Identity, PeerRole, TlsConnector, with_deadline};

pub(crate) const FURROW: &str = env!("CARGO_BIN_EXE_furrow");

/// The roles that run as separate processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FarmRole {
    Coordinator,
    Policy,
    /// A second policy worker of the same job.
    OtherPolicy,
    Env,
}

/// What a farm acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FarmBrowser {
    /// Simulated pages, with screenshots of this many bytes.
    Simulated(usize),
    /// Real Chromium on the starter pages.
    Chromium,
}

/// A farm and everything it left on disk; its remaining processes are killed when it is dropped.
pub(crate) struct FarmHarness {
    root: tempfile::TempDir,
    browser: FarmBrowser,
    address: SocketAddr,
    settings: Vec<String>,
    running: BTreeMap<FarmRole, Child>,
    woken: Vec<Child>,
    started: BTreeMap<FarmRole, u32>,
    environment: Vec<(String, String)>,
    descriptors: Option<u32>,
    runtime: tokio::runtime::Runtime,
}

/// A restarted worker gets another id: it never continues with what a dead one left.
fn worker_id(role: FarmRole, starts: u32) -> String {
    format!("{}-{starts}", format!("{role:?}").to_lowercase())
}

impl FarmHarness {
    /// A farm that will run `job`, a TOML text without `[run]`. Nothing is started yet.
    pub(crate) fn new(browser: FarmBrowser, job: &str) -> Self {
        let root = tempfile::Builder::new().prefix("furrow-farm-").tempdir().unwrap();
        let text = format!("[run]\nname = \"run\"\noutput_dir = \".\"\n{job}");
        fs::write(root.path().join("job.toml"), text).unwrap();
        // Browsers drop to an ordinary user, who must have access.
        fs::set_permissions(root.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self {
            root,
            browser,
            address: free_port(),
            settings: browser_setting(),
            running: BTreeMap::new(),
            woken: Vec::new(),
            started: BTreeMap::new(),
            environment: Vec::new(),
            descriptors: None,
            runtime,
        }
    }

    /// Sets an environment variable for later processes; an empty value removes it.
    pub(crate) fn environment(&mut self, name: &str, value: &str) {
        self.environment.retain(|(known, _)| known != name);
        if !value.is_empty() {
            self.environment.push((name.to_owned(), value.to_owned()));
        }
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.root.path().join("run")
    }

    /// The id under which a role's newest worker registers.
    pub(crate) fn worker_id(&self, role: FarmRole) -> String {
        worker_id(role, self.started.get(&role).copied().unwrap_or_default())
    }

    /// Starts a role, for the first time or after its death.
    pub(crate) fn start(&mut self, role: FarmRole) {
        let count = self.started.entry(role).or_default();
        *count += 1;
        let is_restart = *count > 1;
        let job = self.root.path().join("job.toml");
        let mut command = match self.descriptors {
            // It replaces itself by the program, so the process id is the role's.
            Some(descriptors) if role == FarmRole::Coordinator => {
                let mut limited = Command::new("prlimit");
                limited.arg(format!("--nofile={descriptors}")).arg(FURROW);
                limited
            }
            _ => Command::new(FURROW),
        };
        let name = format!("{role:?}").to_lowercase();
        command.arg(if role == FarmRole::OtherPolicy { "policy" } else { &name }).arg(job);
        match role {
            FarmRole::Coordinator => {
                command.args(["--listen", &self.address.to_string()]);
                if is_restart {
                    command.arg("--resume");
                }
            }
            FarmRole::Policy | FarmRole::OtherPolicy | FarmRole::Env => {
                command.args(["--coordinator", &self.address.to_string(), "--id", &worker_id(role, *count)]);
            }
        }
        if let (FarmRole::Env, FarmBrowser::Simulated(bytes)) = (role, self.browser) {
            command.args(["--simulate-browser", &bytes.to_string()]);
        }
        for setting in &self.settings {
            command.args(["--set", setting]);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.root.path().join(format!("{name}.out")))
            .unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.running.insert(role, command.spawn().unwrap());
    }

    /// Sets a key of the job for later processes, such as `env.sessions_max=2`.
    pub(crate) fn set(&mut self, setting: &str) {
        let key = setting.split_once('=').map_or(setting, |(key, _)| key);
        self.settings.retain(|known| known.split_once('=').is_none_or(|(known, _)| known != key));
        self.settings.push(setting.to_owned());
    }

    /// Starts the coordinator with this many file descriptors at most.
    pub(crate) fn limit_descriptors(&mut self, descriptors: u32) {
        self.descriptors = Some(descriptors);
    }

    /// Starts the three roles.
    pub(crate) fn start_all(&mut self) {
        for role in [FarmRole::Coordinator, FarmRole::Policy, FarmRole::Env] {
            self.start(role);
        }
    }

    /// Process id of a role.
    pub(crate) fn pid(&self, role: FarmRole) -> u32 {
        self.running[&role].id()
    }

    /// Sends SIGKILL and waits for the end.
    pub(crate) fn kill(&mut self, role: FarmRole) {
        let mut child = self.running.remove(&role).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn signal(&self, role: FarmRole, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.pid(role).to_string()]).status().unwrap().success());
    }

    /// Stops the environment worker's process and removes it from the farm; `wake` continues it.
    pub(crate) fn stall_env(&mut self) -> Child {
        self.signal(FarmRole::Env, "-STOP");
        self.running.remove(&FarmRole::Env).unwrap()
    }

    /// Continues a stopped process. The farm waits for its end.
    pub(crate) fn wake(&mut self, stalled: Child) {
        assert!(Command::new("kill").args(["-CONT", &stalled.id().to_string()]).status().unwrap().success());
        self.woken.push(stalled);
    }

    /// Waits until a role's process ends by itself; returns its exit status, `None` for a signal.
    pub(crate) fn wait_for_end(&mut self, role: FarmRole, deadline: Duration) -> Option<i32> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.running.get_mut(&role).unwrap().try_wait().unwrap() {
                self.running.remove(&role);
                return status.code();
            }
            assert!(began.elapsed() < deadline, "{role:?} did not end in {deadline:?}\n{}", self.outputs());
            pause();
        }
    }

    /// Whether a role's process is running.
    pub(crate) fn is_alive(&mut self, role: FarmRole) -> bool {
        self.running.get_mut(&role).is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// Where the coordinator listens.
    pub(crate) fn coordinator_address(&self) -> String {
        self.address.to_string()
    }

    /// Starts a worker as on another machine: with an issued identity, and a job whose run
    /// directory is another one.
    pub(crate) fn start_elsewhere(&mut self, role: FarmRole, identity: &Path) {
        let name = format!("{role:?}").to_lowercase();
        let mut command = Command::new(FURROW);
        let run_dir = format!("run.output_dir={:?}", self.root.path().join(format!("elsewhere-{name}")));
        command.arg(&name).arg(self.root.path().join("job.toml")).args(["--set", &run_dir]);
        command.args(["--coordinator", &self.address.to_string()]).env("FURROW_IDENTITY", identity);
        if let (FarmRole::Env, FarmBrowser::Simulated(bytes)) = (role, self.browser) {
            command.args(["--simulate-browser", &bytes.to_string()]);
        }
        let log = fs::File::create(self.root.path().join(format!("{name}.out"))).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.running.insert(role, command.spawn().unwrap());
    }

    /// An identity of the run, once its coordinator has created the authority.
    pub(crate) fn identity(&self, role: PeerRole, name: &str) -> Option<Identity> {
        Identity::find(&self.run_dir().join("identity"), role, name).ok()
    }

    /// The coordinator's progress, if it answers.
    pub(crate) fn progress(&self) -> Option<ProgressResponse> {
        self.runtime.block_on(async {
            let identity = self.identity(PeerRole::Observer, "test")?;
            let connect = TlsConnector::new(identity);
            let channel = connect.channel(PeerRole::Coordinator, &self.address.to_string()).ok()?;
            let mut client = CoordinatorServiceClient::new(channel);
            let answer =
                with_deadline(Duration::from_secs(2), client.progress(ProgressRequest {})).await.ok()?;
            Some(answer.into_inner())
        })
    }

    /// Waits for a state of the run.
    pub(crate) fn wait_until(
        &mut self,
        what: &str,
        deadline: Duration,
        reached: impl Fn(&ProgressResponse) -> bool,
    ) -> ProgressResponse {
        let began = Instant::now();
        loop {
            if let Some(now) = self.progress()
                && reached(&now)
            {
                return now;
            }
            assert!(
                began.elapsed() < deadline,
                "not {what} in {deadline:?}: {:?}\n{}",
                self.progress(),
                self.outputs()
            );
            assert!(
                self.is_alive(FarmRole::Coordinator),
                "the coordinator ended before {what}\n{}",
                self.outputs()
            );
            pause();
        }
    }

    /// Restarts a role whose process ended by itself without success, as a supervisor of workers
    /// does. Returns whether it did.
    pub(crate) fn restart_failed(&mut self, role: FarmRole) -> bool {
        let ended = self.running.get_mut(&role).and_then(|child| child.try_wait().unwrap());
        let failed = ended.is_some_and(|status| !status.success());
        if failed {
            self.start(role);
        }
        failed
    }

    /// The output of all processes of a role.
    pub(crate) fn output(&self, role: FarmRole) -> String {
        let name = format!("{role:?}").to_lowercase();
        fs::read_to_string(self.root.path().join(format!("{name}.out"))).unwrap_or_default()
    }

    /// The output of all processes.
    pub(crate) fn outputs(&self) -> String {
        let mut all = String::new();
        for name in ["coordinator", "policy", "env"] {
            let text = fs::read_to_string(self.root.path().join(format!("{name}.out"))).unwrap_or_default();
            let tail: Vec<&str> = text.lines().rev().take(25).collect();
            all.push_str(&format!("--- {name}\n{}\n", tail.into_iter().rev().collect::<Vec<_>>().join("\n")));
        }
        all
    }

    /// Waits until the run is over and every role has ended by itself with status 0.
    pub(crate) fn finish(&mut self, deadline: Duration) {
        self.finish_roles(&[FarmRole::Coordinator, FarmRole::Env, FarmRole::Policy], deadline);
    }

    /// The same after the coordinator has ended.
    pub(crate) fn finish_workers(&mut self, deadline: Duration) {
        self.finish_roles(&[FarmRole::Env, FarmRole::Policy], deadline);
    }

    fn finish_roles(&mut self, roles: &[FarmRole], deadline: Duration) {
        for role in roles {
            let status = self.wait_for_end(*role, deadline);
            assert_eq!(status, Some(0), "{role:?} ended with {status:?}\n{}", self.outputs());
        }
    }

    /// Runs the independent checker over the run directory.
    pub(crate) fn check(&self, groups: u32, group_size: u32) -> Result<String, String> {
        let python = std::env::var("FURROW_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
        let output = Command::new(python)
            .arg("tests/check.py")
            .arg(self.run_dir())
            .args(["--groups", &groups.to_string(), "--group-size", &group_size.to_string()])
            .output()
            .unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(text) } else { Err(text) }
    }

    /// Asserts that no process and no temporary directory of this farm remains.
    pub(crate) fn assert_nothing_left(&self, pids: &[u32]) {
        let began = Instant::now();
        loop {
            let left: Vec<String> = processes()
                .into_iter()
                .filter(|process| process.belongs_to(pids))
                .map(|process| process.command)
                .collect();
            let scratch = scratch_of(pids);
            if left.is_empty() && scratch.is_empty() {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "left behind: {left:?} {scratch:?}");
            pause();
        }
    }
}

impl Drop for FarmHarness {
    fn drop(&mut self) {
        for child in self.running.values_mut().chain(&mut self.woken) {
            // The process may have ended already.
            child.kill().ok();
            child.wait().ok();
        }
        if std::thread::panicking() {
            let kept = self.run_dir();
            eprintln!("{}\nthe farm was in {}", self.outputs(), kept.display());
        }
    }
}

/// Runs the binary to its end.
pub(crate) fn furrow(arguments: &[&str], folder: &Path) -> Output {
    Command::new(FURROW).args(arguments).current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

/// `[policy]` of a tiny checkpoint whose replies are short.
pub(crate) fn tiny_policy(checkpoint: &Path) -> String {
    format!(
        "[policy]\nkind = \"model\"\ncheckpoint = {checkpoint:?}\n\
         [policy.engine]\ncontext_tokens_max = 8192\n\
         [policy.constrain]\nenabled = true\nnote = 2\nthought = 2\ncontent = 2\nelement = 2\n"
    )
}

/// A job's task section with simulated tasks: `count` tasks, each planned once.
pub(crate) fn simulated_tasks(folder: &Path, count: u32, group_size: u32) -> String {
    let lines: Vec<String> = (0..count)
        .map(|index| {
            format!(
                r#"{{"task_id":"simulated-{index}","start_url":"http://simulated.test/page.html","max_steps":12,"time_limit_ms":60000,"score":{{"kind":"probe","pointer":"/reward"}}}}"#
            )
        })
        .collect();
    let suite = folder.join("simulated");
    fs::create_dir_all(&suite).unwrap();
    fs::write(suite.join("page.html"), "<title>simulated</title><script>window.furrow = {}</script>")
        .unwrap();
    fs::write(suite.join("tasks.jsonl"), lines.join("\n") + "\n").unwrap();
    format!(
        "[tasks]\nsampler = \"sequential\"\ngroup_size = {group_size}\n[[tasks.source]]\nsuite = \"simulated\"\npath = {suite:?}\n"
    )
}

/// One process of the machine.
pub(crate) struct ProcessEntry {
    pub pid: u32,
    pub parent: u32,
    pub command: String,
}

impl ProcessEntry {
    /// Whether it descends from one of these, or is a browser started by one: the profile's
    /// directory has the worker's pid in its name.
    fn belongs_to(&self, pids: &[u32]) -> bool {
        pids.contains(&self.parent)
            || pids.iter().any(|pid| self.command.contains(&format!("furrow-env-{pid}-")))
    }

    /// Whether it is the main process of a browser.
    pub(crate) fn is_browser(&self) -> bool {
        self.command.contains("--user-data-dir") && !self.command.contains("--type=")
    }
}

/// All processes of the machine.
pub(crate) fn processes() -> Vec<ProcessEntry> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let mut command = Vec::new();
            fs::File::open(entry.path().join("cmdline")).ok()?.read_to_end(&mut command).ok()?;
            let status = fs::read_to_string(entry.path().join("stat")).ok()?;
            // After the name in parentheses: state, then parent.
            let parent = status.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()?;
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            Some(ProcessEntry { pid, parent, command })
        })
        .collect()
}

fn scratch_of(pids: &[u32]) -> Vec<String> {
    let names = fs::read_dir(std::env::temp_dir())
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| pids.iter().any(|pid| name.starts_with(&format!("furrow-env-{pid}-")))).collect()
}

pub(crate) fn browser_setting() -> Vec<String> {
    std::env::var("FURROW_BROWSER").map(|path| vec![format!("env.browser={path}")]).unwrap_or_default()
}

pub(crate) fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Pause between two polls.
#[expect(
    clippy::disallowed_methods,
    reason = "a test polls processes from outside; each wait has a deadline"
)]
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

/// Directory of the suites.
pub(crate) fn envs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("envs")
}

/// Copies a folder with all that is in it.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, to) = entry.map(|entry| (entry.path(), to.join(entry.file_name()))).unwrap();
        if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(&path, to).unwrap();
        }
    }
}
