//! The same model in transformers, in a separate process that reads one task per line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, anyhow};
use serde_json::Value;

/// The peer with a loaded model. Dropping it ends the process.
pub(crate) struct ModelPeer {
    child: Child,
    tasks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

const SCRIPT: &str = "transformers_cpu.py";

/// The newest instructions that oneDNN may use besides the tiles of AMX. If a virtual machine hides
/// what CPUID reports of tiles (leaf 0x1D), oneDNN configures none and dies of an illegal
/// instruction.
const WITHOUT_TILES: (&str, &str) = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16");

/// Makes the peer write the checkpoints for both sides, in a shape that it knows: `float32` and
/// `bfloat16` in the directory.
pub(crate) fn save_checkpoints(python: &Path, scripts: &Path, dir: &Path, shape: &str) -> anyhow::Result<()> {
    capture_output(Command::new(python).arg(scripts.join(SCRIPT)).arg("save").arg(dir).arg(shape)).map(drop)
}

/// Runs a program and returns its output; fails with the last line of its error output.
pub(crate) fn capture_output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("starting {}", command.get_program().display()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let last =
        String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("it printed nothing").to_owned();
    Err(anyhow!("{} ended with {}: {last}", command.get_program().display(), output.status))
}

impl ModelPeer {
    /// Starts the peer and waits until the model has computed something; `notes` gets the
    /// restrictions that this needed.
    pub(crate) fn open(
        python: &Path,
        scripts: &Path,
        checkpoint: &Path,
        dtype: &str,
        threads: usize,
        notes: &mut Vec<String>,
    ) -> anyhow::Result<Self> {
        let start = |environment: Option<(&str, &str)>| {
            let mut peer = Self::start(python, scripts, checkpoint, dtype, threads, environment)?;
            peer.seconds("prefill 64")?;
            anyhow::Ok(peer)
        };
        start(None).or_else(|error| {
            let peer = start(Some(WITHOUT_TILES)).map_err(|_| error)?;
            let (name, value) = WITHOUT_TILES;
            notes.push(format!("the peer dies in {dtype} without {name}={value}; it ran with that"));
            Ok(peer)
        })
    }

    fn start(
        python: &Path,
        scripts: &Path,
        checkpoint: &Path,
        dtype: &str,
        threads: usize,
        environment: Option<(&str, &str)>,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(python);
        command.envs(environment);
        command.arg(scripts.join(SCRIPT)).arg("serve").arg(checkpoint).arg(dtype).arg(threads.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("starting {}", python.display()))?;
        let tasks = child.stdin.take().context("the peer has no input")?;
        let answers = BufReader::new(child.stdout.take().context("the peer has no output")?);
        let mut peer = Self { child, tasks, answers };
        peer.answer().context("loading the peer's model")?;
        Ok(peer)
    }

    /// Runs a task; returns the seconds that the peer measured.
    pub(crate) fn seconds(&mut self, task: &str) -> anyhow::Result<f64> {
        writeln!(self.tasks, "{task}").context("writing to the peer")?;
        self.answer()?["seconds"].as_f64().context("the peer reported no seconds")
    }

    fn answer(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line).context("reading from the peer")?;
        serde_json::from_str(&line).with_context(|| format!("the peer ended or printed {line:?}"))
    }
}

impl Drop for ModelPeer {
    fn drop(&mut self) {
        // The process may have ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
