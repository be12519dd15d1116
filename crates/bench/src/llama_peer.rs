//! The same model in llama.cpp: its file, its logits, and the rates that its own
//! `llama-batched-bench` measures.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, anyhow, ensure};
use serde::Deserialize;

use crate::model_peer::capture_output;

/// A built llama.cpp and a model file for it.
pub(crate) struct LlamaPeer {
    programs: PathBuf,
    file: PathBuf,
    threads: usize,
}

/// Paths of the peer's programs and scripts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerPaths<'a> {
    pub python: &'a Path,
    pub scripts: &'a Path,
    /// Directory that `llama_cpp.sh` created.
    pub llama: &'a Path,
}

/// A measurement: every sequence is prefilled, then all are decoded together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LlamaCase<'a> {
    pub prompt: u32,
    /// Number of tokens decoded per sequence.
    pub steps: u32,
    /// Numbers of sequences, one run each.
    pub runs: &'a [u32],
}

/// Tokens per second of one run.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(crate) struct TokenRates {
    #[serde(rename = "pl")]
    pub sequences: u32,
    #[serde(rename = "speed_pp")]
    pub prefill: f64,
    /// Over all sequences together.
    #[serde(rename = "speed_tg")]
    pub decode: f64,
}

/// What the peer prints for a prompt.
#[derive(Deserialize)]
struct PeerLogits {
    logits: Vec<f32>,
}

/// The program allocates a multiple of this many tokens per sequence.
const CONTEXT_STEP: u32 = 256;

impl LlamaPeer {
    /// Converts a checkpoint; `dtype` is `f32` or `bf16`.
    pub(crate) fn open(
        paths: PeerPaths<'_>,
        checkpoint: &Path,
        dtype: &str,
        threads: usize,
    ) -> anyhow::Result<Self> {
        let programs = paths.llama.join("build/bin");
        ensure!(
            programs.join("llama-logits").is_file(),
            "llama.cpp is not built in {}; run {}",
            paths.llama.display(),
            paths.scripts.join("llama_cpp.sh").display()
        );
        let file = checkpoint.with_extension("gguf");
        let mut command = Command::new(paths.python);
        command.arg(paths.scripts.join("llama_gguf.py")).arg(paths.llama.join("source"));
        capture_output(command.arg(checkpoint).arg(dtype).arg(&file)).context("converting the checkpoint")?;
        Ok(Self { programs, file, threads })
    }

    /// The logits after a prompt.
    pub(crate) fn logits(&self, prompt: &[u32]) -> anyhow::Result<Vec<f32>> {
        let mut command = Command::new(self.programs.join("llama-logits"));
        command.arg(&self.file).arg(self.threads.to_string()).args(prompt.iter().map(u32::to_string));
        let parsed: PeerLogits =
            serde_json::from_str(&capture_output(&mut command)?).context("reading the peer's logits")?;
        Ok(parsed.logits)
    }

    /// Runs a case in a separate process; loading the model is not counted.
    pub(crate) fn measure(&self, case: &LlamaCase<'_>) -> anyhow::Result<Vec<TokenRates>> {
        let mut command = Command::new(self.programs.join("llama-batched-bench"));
        command.arg("--model").arg(&self.file).args(case.options());
        for option in ["--threads", "--threads-batch"] {
            command.arg(option).arg(self.threads.to_string());
        }
        case.speeds(&capture_output(&mut command)?)
    }
}

impl LlamaCase<'_> {
    /// Number of sequences of the largest run.
    pub(crate) fn sequences_max(&self) -> u32 {
        self.runs.iter().copied().max().unwrap_or(0)
    }

    /// The program ends without flushing its log, so the last line may be lost: one more run at the
    /// end makes that harmless.
    fn options(&self) -> Vec<String> {
        let context = self.sequences_max() * (self.prompt + self.steps).next_multiple_of(CONTEXT_STEP);
        let runs: Vec<String> = self.runs.iter().chain(&[1]).map(u32::to_string).collect();
        [
            ("--output-format", "jsonl".to_owned()),
            ("--ctx-size", context.to_string()),
            ("-npp", self.prompt.to_string()),
            ("-ntg", self.steps.to_string()),
            ("-npl", runs.join(",")),
        ]
        .map(|(name, value)| [name.to_owned(), value])
        .concat()
    }

    /// Reads one line per run from the output.
    fn speeds(&self, output: &str) -> anyhow::Result<Vec<TokenRates>> {
        let lines = output.lines().filter(|line| line.starts_with('{')).take(self.runs.len());
        let speeds = lines
            .map(|line| serde_json::from_str(line).with_context(|| format!("the peer printed {line:?}")))
            .collect::<anyhow::Result<Vec<TokenRates>>>()?;
        let sequences: Vec<u32> = speeds.iter().map(|speeds| speeds.sequences).collect();
        match sequences == self.runs
            && speeds.iter().all(|speeds| speeds.prefill > 0.0 && speeds.decode > 0.0)
        {
            true => Ok(speeds),
            false => Err(anyhow!("expected runs of {:?} sequences, the peer printed {speeds:?}", self.runs)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line printed on one core with other work.
    const ONE: &str = r#"{"n_kv_max": 24576, "n_batch": 2048, "n_ubatch": 512, "flash_attn": -1, "is_pp_shared": 0, "n_gpu_layers": -1, "n_threads": 1, "n_threads_batch": 1, "pp": 512, "tg": 32, "pl": 1, "n_kv": 544, "t_pp": 0.633228, "speed_pp": 808.555542, "t_tg": 0.292575, "speed_tg": 109.373665, "t": 0.925803, "speed": 587.598022}"#;
    const EIGHT: &str = r#"{"n_kv_max": 24576, "n_batch": 2048, "n_ubatch": 512, "flash_attn": -1, "is_pp_shared": 0, "n_gpu_layers": -1, "n_threads": 1, "n_threads_batch": 1, "pp": 512, "tg": 32, "pl": 8, "n_kv": 4352, "t_pp": 5.410221, "speed_pp": 757.085510, "t_tg": 1.119102, "speed_tg": 228.754837, "t": 6.529323, "speed": 666.531555}"#;

    #[track_caller]
    fn check(runs: &[u32], lines: &[&str], want: Option<&[(u32, f64, f64)]>) {
        let case = LlamaCase { prompt: 512, steps: 32, runs };
        let parsed = case.speeds(&lines.join("\n")).ok();
        let parsed: Option<Vec<_>> = parsed.map(|rates| {
            rates.iter().map(|speeds| (speeds.sequences, speeds.prefill, speeds.decode)).collect()
        });
        assert_eq!(parsed.as_deref(), want, "{runs:?} of {lines:?}");
    }

    #[test]
    fn a_line_a_run_is_read() {
        let one = (1, 808.555542, 109.373665);
        let eight = (8, 757.085510, 228.754837);
        check(&[1], &[ONE], Some(&[one]));
        check(&[1, 8], &[ONE, EIGHT], Some(&[one, eight]));
        check(
            &[1, 8],
            &["", ONE, "warming up", EIGHT, "", "llama_perf_context_print: total"],
            Some(&[one, eight]),
        );
        check(&[1, 8], &[ONE, EIGHT, ONE], Some(&[one, eight]));
        check(&[1, 8], &[ONE, EIGHT, "{\"n_kv_max\": 24"], Some(&[one, eight]));
    }

    #[test]
    fn a_missing_run_in_the_output_is_refused() {
        check(&[1, 8], &[ONE], None);
        check(&[1, 8], &[EIGHT, ONE], None);
        check(&[1, 8], &[ONE, &EIGHT[..EIGHT.len() / 2]], None);
        check(&[8], &[&EIGHT.replace("757.085510", "inf")], None);
        check(&[8], &[&EIGHT.replace("228.754837", "0.000000")], None);
        check(&[8], &[&EIGHT.replace("speed_tg", "speed_of_decoding")], None);
        check(&[8], &[], None);
    }

    #[test]
    fn the_context_fits_the_largest_run() {
        let options = LlamaCase { prompt: 512, steps: 32, runs: &[1, 1, 8, 32] }.options().join(" ");
        // 544 tokens round up to 768, times 32 sequences.
        assert_eq!(options, "--output-format jsonl --ctx-size 24576 -npp 512 -ntg 32 -npl 1,1,8,32,1");
    }
}
