//! Hooks: commands that the job names, run without a shell to reset or to check a back end.
//!
//! A task can only choose a name. The command, its folder and the variables that it inherits come
//! from the job of this worker, whoever sent the task.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::secrets::WorkerSecrets;

/// Output of a hook that is kept: enough for the end of a message.
const OUTPUT_BYTES_MAX: usize = 4 << 10;

/// The folders that a hook's program is searched in.
const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Times its own deadline that a run may wait for its turn: a queue as long as a worker's sessions.
const TURN_DEADLINES_MAX: u32 = 100;

/// Time for the rest of the output after the end of a hook and of its group. Only a process that
/// left the group can still have the pipe open.
const REST_OF_OUTPUT: Duration = Duration::from_millis(200);

/// A command that a job names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookCommand {
    pub name: String,
    /// The program, then its arguments.
    pub argv: Vec<String>,
    /// The directory that it runs in.
    pub folder: PathBuf,
    pub deadline: Duration,
    /// Names of variables of this worker's environment that it inherits.
    pub env: Vec<String>,
    /// Runs at the same time.
    pub concurrent: u32,
}

/// How a hook ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HookEnd {
    /// Exit status; `None` if a signal ended it.
    pub exit: Option<i32>,
    /// The beginning of what it printed.
    pub output: String,
}

/// Why a hook did not run to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    #[error("hook {name:?} is not in the job of this worker; its hooks: {known}")]
    Unknown { name: String, known: String },
    #[error("hook {name}: {program:?} did not start: {source}")]
    NotStarted { name: String, program: String, source: std::io::Error },
    #[error("hook {name}: it was killed after {} ms: {output}", after.as_millis())]
    TimedOut { name: String, after: Duration, output: String },
    #[error("hook {name}: no turn within {} ms; raise its `concurrent` or lower env.sessions_max", after.as_millis())]
    NoTurn { name: String, after: Duration },
    #[error("hook {name}: its end is not known: {source}")]
    Lost { name: String, source: std::io::Error },
}

/// The hooks of a job.
#[derive(Debug, Default)]
pub(crate) struct Hooks {
    by_name: HashMap<String, (HookCommand, Semaphore)>,
    /// Values that a hook may know and print.
    secrets: Arc<WorkerSecrets>,
}

/// Kills a hook with all processes of its group, also when its run is given up.
struct HookGroup(Option<Pid>);

impl Drop for HookGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // An error means that the group is already gone.
            kill_process_group(group, Signal::KILL).ok();
        }
    }
}

impl Hooks {
    pub(crate) fn new(commands: &[HookCommand], secrets: Arc<WorkerSecrets>) -> Self {
        let entry = |command: &HookCommand| {
            let turns = Semaphore::new(command.concurrent.max(1) as usize);
            (command.name.clone(), (command.clone(), turns))
        };
        Self { by_name: commands.iter().map(entry).collect(), secrets }
    }

    /// Runs a hook with these variables in addition, when it is its turn.
    pub(crate) async fn run(&self, name: &str, variables: &[(&str, String)]) -> Result<HookEnd, HookError> {
        let Some((command, turns)) = self.by_name.get(name) else {
            let mut known: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
            known.sort_unstable();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(HookError::Unknown { name: name.to_owned(), known });
        };
        let after = command.deadline * TURN_DEADLINES_MAX;
        let Ok(Ok(_turn)) = timeout(after, turns.acquire()).await else {
            return Err(HookError::NoTurn { name: name.to_owned(), after });
        };
        let ended = self.scrubbed(command.run(variables).await);
        match &ended {
            Ok(HookEnd { exit, output }) => tracing::debug!(hook = name, exit, output, "a hook ended"),
            Err(error) => tracing::warn!(hook = name, %error, "a hook failed"),
        }
        ended
    }
}

impl Hooks {
    fn scrubbed(&self, ended: Result<HookEnd, HookError>) -> Result<HookEnd, HookError> {
        let scrubber = self.secrets.scrubber();
        match ended {
            Ok(HookEnd { exit, output }) => Ok(HookEnd { exit, output: scrubber.owned(output) }),
            Err(HookError::TimedOut { name, after, output }) => {
                Err(HookError::TimedOut { name, after, output: scrubber.owned(output) })
            }
            Err(error) => Err(error),
        }
    }
}

impl HookCommand {
    async fn run(&self, variables: &[(&str, String)]) -> Result<HookEnd, HookError> {
        let program = self.argv.first().cloned().unwrap_or_default();
        let mut command = Command::new(&program);
        command.args(self.argv.get(1..).unwrap_or_default()).current_dir(&self.folder);
        command.env_clear().env("PATH", SEARCH_PATH);
        for name in &self.env {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        let name = self.name.clone();
        let mut child = command.spawn().map_err(|source| HookError::NotStarted {
            name: name.clone(),
            program,
            source,
        })?;
        let group = HookGroup(child.id().and_then(|id| Pid::from_raw(id as i32)));
        let mut output = HookOutput::default();
        let mut pipes = (child.stdout.take(), child.stderr.take());
        let mut ended = None;
        let ran = timeout(self.deadline, async {
            let reading = output.read(&mut pipes);
            let mut reading = std::pin::pin!(reading);
            let mut is_read = false;
            loop {
                tokio::select! {
                    status = child.wait() => break status,
                    () = &mut reading, if !is_read => is_read = true,
                }
            }
        })
        .await;
        if let Ok(status) = ran {
            ended = Some(status);
        }
        // What it left running ends with it.
        drop(group);
        if ended.is_some() {
            timeout(REST_OF_OUTPUT, output.read(&mut pipes)).await.ok();
        }
        let output = output.text();
        match ended {
            Some(Ok(status)) => Ok(HookEnd { exit: ExitStatus::code(&status), output }),
            Some(Err(source)) => Err(HookError::Lost { name, source }),
            None => Err(HookError::TimedOut { name, after: self.deadline, output }),
        }
    }
}

/// The beginning of what a hook prints. The rest is read and dropped, so that it does not block.
#[derive(Debug, Default)]
struct HookOutput(Vec<u8>);

impl HookOutput {
    async fn read<A, B>(&mut self, (out, err): &mut (Option<A>, Option<B>))
    where
        A: AsyncRead + Unpin,
        B: AsyncRead + Unpin,
    {
        let mut from_out = [0; 4096];
        let mut from_err = [0; 4096];
        while out.is_some() || err.is_some() {
            tokio::select! {
                read = read_some(out, &mut from_out), if out.is_some() => self.keep(&from_out[..read]),
                read = read_some(err, &mut from_err), if err.is_some() => self.keep(&from_err[..read]),
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let left = OUTPUT_BYTES_MAX.saturating_sub(self.0.len());
        self.0.extend_from_slice(&bytes[..bytes.len().min(left)]);
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).trim().to_owned()
    }
}

/// Reads some bytes; at the end or an error, the pipe is done.
async fn read_some<A: AsyncRead + Unpin>(pipe: &mut Option<A>, buffer: &mut [u8]) -> usize {
    let Some(open) = pipe else { return 0 };
    let read = open.read(buffer).await.unwrap_or(0);
    if read == 0 {
        *pipe = None;
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn hook(argv: &[&str], deadline_millis: u64) -> Hooks {
        hook_with(argv, deadline_millis, |_| {})
    }

    fn hook_with(argv: &[&str], deadline_millis: u64, change: impl FnOnce(&mut HookCommand)) -> Hooks {
        let mut command = HookCommand {
            name: "h".into(),
            argv: argv.iter().map(|text| (*text).to_owned()).collect(),
            folder: "/".into(),
            deadline: Duration::from_millis(deadline_millis),
            env: vec![],
            concurrent: 1,
        };
        change(&mut command);
        Hooks::new(&[command], Arc::default())
    }

    /// Whether a process with this argument runs.
    fn runs(argument: &str) -> bool {
        let is_it = |entry: std::io::Result<fs::DirEntry>| {
            let path = entry.unwrap().path();
            let stat = fs::read_to_string(path.join("stat")).unwrap_or_default();
            let line = fs::read(path.join("cmdline")).unwrap_or_default();
            !stat.contains(") Z ") && line.split(|byte| *byte == 0).any(|text| text == argument.as_bytes())
        };
        fs::read_dir("/proc").unwrap().any(is_it)
    }

    /// A killed process is gone a moment later.
    async fn ends(argument: &str) -> bool {
        for _ in 0..100 {
            if !runs(argument) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    }

    #[tokio::test]
    async fn a_hook_is_run_without_a_shell_and_inherits_only_what_the_job_names() {
        let end = hook(&["echo", "$HOME; exit 3"], 5_000).run("h", &[]).await.unwrap();
        assert_eq!(end, HookEnd { exit: Some(0), output: "$HOME; exit 3".into() });
        let end = hook(&["env"], 5_000).run("h", &[("FURROW_SEED", "7".into())]).await.unwrap();
        let mut lines: Vec<&str> = end.output.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["FURROW_SEED=7", &format!("PATH={SEARCH_PATH}")]);
        let inherits =
            |command: &mut HookCommand| command.env = vec!["CARGO_PKG_NAME".into(), "NO_SUCH".into()];
        let end = hook_with(&["env"], 5_000, inherits).run("h", &[]).await.unwrap();
        assert!(
            end.output.contains("CARGO_PKG_NAME=furrow-env") && !end.output.contains("NO_SUCH"),
            "{end:?}"
        );
        let end = hook(&["cat"], 5_000).run("h", &[]).await.unwrap();
        assert_eq!(end, HookEnd { exit: Some(0), output: String::new() }, "stdin is empty");
    }

    #[tokio::test]
    async fn how_a_hook_ends_is_named() {
        let end = hook(&["sh", "-c", "echo out; echo err >&2; exit 3"], 5_000).run("h", &[]).await.unwrap();
        assert_eq!(end.exit, Some(3));
        assert!(end.output.contains("out") && end.output.contains("err"), "{end:?}");
        let end = hook(&["sh", "-c", "kill -9 $$"], 5_000).run("h", &[]).await.unwrap();
        assert_eq!(end.exit, None);
        let error = hook(&["/no/such/program"], 5_000).run("h", &[]).await.unwrap_err().to_string();
        assert!(error.starts_with("hook h: \"/no/such/program\" did not start: "), "{error}");
        for name in ["other", "../h", "", "h/../h"] {
            let error = hook(&["true"], 5_000).run(name, &[]).await.unwrap_err().to_string();
            assert_eq!(error, format!("hook {name:?} is not in the job of this worker; its hooks: h"));
        }
    }

    #[tokio::test]
    async fn a_hook_that_hangs_is_killed_with_its_children() {
        let script =
            "(sleep 61230.5; true) & sleep 61230.5 & echo begun; trap '' TERM INT; wait; sleep 61230.5";
        let error = hook(&["sh", "-c", script], 300).run("h", &[]).await.unwrap_err().to_string();
        assert_eq!(error, "hook h: it was killed after 300 ms: begun");
        assert!(ends("61230.5").await, "a child is left");
    }

    #[tokio::test]
    async fn what_a_hook_leaves_running_ends_with_it() {
        let began = std::time::Instant::now();
        let end = hook(&["sh", "-c", "sleep 61231.5 & echo done"], 20_000).run("h", &[]).await.unwrap();
        assert_eq!(end, HookEnd { exit: Some(0), output: "done".into() });
        assert!(began.elapsed() < Duration::from_secs(10), "it waited for the child");
        assert!(ends("61231.5").await, "a child is left");
    }

    #[tokio::test]
    async fn a_run_that_is_given_up_leaves_nothing() {
        let hooks = hook(&["sh", "-c", "sleep 61232.5 & sleep 61232.5"], 60_000);
        assert!(timeout(Duration::from_millis(300), hooks.run("h", &[])).await.is_err());
        assert!(ends("61232.5").await, "a child is left");
        let after = timeout(Duration::from_millis(100), hooks.run("h", &[])).await;
        assert!(after.is_err(), "its turn is free again, so that the next run began and hangs");
        assert!(ends("61232.5").await, "a child is left");
    }

    #[tokio::test]
    async fn output_is_cut_and_does_not_block() {
        let end = hook(&["sh", "-c", "yes | head -c 20000000"], 30_000).run("h", &[]).await.unwrap();
        assert_eq!((end.exit, end.output.len() <= OUTPUT_BYTES_MAX), (Some(0), true));
    }

    #[tokio::test]
    async fn runs_wait_for_their_turn() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().to_owned();
        // The folder is there only while a run is.
        let script = "mkdir one && sleep 0.1 && rmdir one";
        let hooks = hook_with(&["sh", "-c", script], 5_000, |command| command.folder = at);
        let runs = futures::future::join_all((0..4).map(|_| hooks.run("h", &[]))).await;
        for end in runs {
            assert_eq!(end.unwrap().exit, Some(0));
        }
    }
}
