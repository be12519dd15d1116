//! The same model in llama.cpp: its file, its logits and what its own `llama-batched-bench` measures.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, anyhow, ensure};
use serde::Deserialize;

use super::model_peer::said;

/// A built llama.cpp and a model it reads.
pub struct LlamaPeer {
    programs: PathBuf,
    file: PathBuf,
    threads: usize,
}

/// Where things are.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// Python with torch and transformers.
    pub python: &'a Path,
    /// Folder of the peers' scripts.
    pub scripts: &'a Path,
    /// Folder that `llama_cpp.sh` made.
    pub llama: &'a Path,
}

/// What is measured: every sequence is prefilled, then all are decoded together.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// Tokens of a prompt.
    pub prompt: u32,
    /// Tokens decoded of each sequence.
    pub steps: u32,
    /// Numbers of sequences, one after the other.
    pub runs: &'a [u32],
}

/// Tokens a second of one run.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Speeds {
    /// How many.
    #[serde(rename = "pl")]
    pub sequences: u32,
    /// Of all prompts.
    #[serde(rename = "speed_pp")]
    pub prefill: f64,
    /// Of all sequences together.
    #[serde(rename = "speed_tg")]
    pub decode: f64,
}

/// What it prints of a prompt.
#[derive(Deserialize)]
struct Logits {
    logits: Vec<f32>,
}

/// It gives every sequence a multiple of so many tokens.
const CONTEXT_STEP: u32 = 256;

impl LlamaPeer {
    /// Converts a checkpoint; `dtype` is `f32` or `bf16`.
    pub fn open(places: Places<'_>, checkpoint: &Path, dtype: &str, threads: usize) -> anyhow::Result<Self> {
        let programs = places.llama.join("build/bin");
        ensure!(
            programs.join("llama-logits").is_file(),
            "llama.cpp is not built in {}; run {}",
            places.llama.display(),
            places.scripts.join("llama_cpp.sh").display()
        );
        let file = checkpoint.with_extension("gguf");
        let mut command = Command::new(places.python);
        command.arg(places.scripts.join("llama_gguf.py")).arg(places.llama.join("source"));
        said(command.arg(checkpoint).arg(dtype).arg(&file)).context("converting the checkpoint")?;
        Ok(Self { programs, file, threads })
    }

    /// What comes out behind a prompt.
    pub fn logits(&self, prompt: &[u32]) -> anyhow::Result<Vec<f32>> {
        let mut command = Command::new(self.programs.join("llama-logits"));
        command.arg(&self.file).arg(self.threads.to_string()).args(prompt.iter().map(u32::to_string));
        let told: Logits = serde_json::from_str(&said(&mut command)?).context("reading the peer's logits")?;
        Ok(told.logits)
    }

    /// Runs a case in a process of its own; loading the model is not counted.
    pub fn measure(&self, case: &Case<'_>) -> anyhow::Result<Vec<Speeds>> {
        let mut command = Command::new(self.programs.join("llama-batched-bench"));
        command.arg("--model").arg(&self.file).args(case.options());
        for option in ["--threads", "--threads-batch"] {
            command.arg(option).arg(self.threads.to_string());
        }
        case.speeds(&said(&mut command)?)
    }
}

impl Case<'_> {
    /// Sequences of the largest run.
    pub fn sequences_max(&self) -> u32 {
        self.runs.iter().copied().max().unwrap_or(0)
    }

    /// It ends without waiting for its log, so the last line may be lost: one more run is there to lose it.
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

    /// Reads a line a run among whatever else it says.
    fn speeds(&self, said: &str) -> anyhow::Result<Vec<Speeds>> {
        let lines = said.lines().filter(|line| line.starts_with('{')).take(self.runs.len());
        let speeds = lines
            .map(|line| serde_json::from_str(line).with_context(|| format!("the peer said {line:?}")))
            .collect::<anyhow::Result<Vec<Speeds>>>()?;
        let told: Vec<u32> = speeds.iter().map(|speeds| speeds.sequences).collect();
        match told == self.runs && speeds.iter().all(|speeds| speeds.prefill > 0.0 && speeds.decode > 0.0) {
            true => Ok(speeds),
            false => Err(anyhow!("the peer was to run {:?} sequences and told {speeds:?}", self.runs)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As it told them on one core that had other work.
    const ONE: &str = r#"{"n_kv_max": 24576, "n_batch": 2048, "n_ubatch": 512, "flash_attn": -1, "is_pp_shared": 0, "n_gpu_layers": -1, "n_threads": 1, "n_threads_batch": 1, "pp": 512, "tg": 32, "pl": 1, "n_kv": 544, "t_pp": 0.633228, "speed_pp": 808.555542, "t_tg": 0.292575, "speed_tg": 109.373665, "t": 0.925803, "speed": 587.598022}"#;
    const EIGHT: &str = r#"{"n_kv_max": 24576, "n_batch": 2048, "n_ubatch": 512, "flash_attn": -1, "is_pp_shared": 0, "n_gpu_layers": -1, "n_threads": 1, "n_threads_batch": 1, "pp": 512, "tg": 32, "pl": 8, "n_kv": 4352, "t_pp": 5.410221, "speed_pp": 757.085510, "t_tg": 1.119102, "speed_tg": 228.754837, "t": 6.529323, "speed": 666.531555}"#;

    #[track_caller]
    fn check(runs: &[u32], lines: &[&str], want: Option<&[(u32, f64, f64)]>) {
        let case = Case { prompt: 512, steps: 32, runs };
        let told = case.speeds(&lines.join("\n")).ok();
        let told: Option<Vec<_>> = told.map(|told| {
            told.iter().map(|speeds| (speeds.sequences, speeds.prefill, speeds.decode)).collect()
        });
        assert_eq!(told.as_deref(), want, "{runs:?} of {lines:?}");
    }

    #[test]
    fn a_line_a_run_is_read() {
        let (one, eight) = ((1, 808.555542, 109.373665), (8, 757.085510, 228.754837));
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
    fn a_run_that_is_not_told_is_refused() {
        check(&[1, 8], &[ONE], None);
        check(&[1, 8], &[EIGHT, ONE], None);
        check(&[1, 8], &[ONE, &EIGHT[..EIGHT.len() / 2]], None);
        check(&[8], &[&EIGHT.replace("757.085510", "inf")], None);
        check(&[8], &[&EIGHT.replace("228.754837", "0.000000")], None);
        check(&[8], &[&EIGHT.replace("speed_tg", "speed_of_decoding")], None);
        check(&[8], &[], None);
    }

    #[test]
    fn there_is_room_for_the_largest_run() {
        let options = Case { prompt: 512, steps: 32, runs: &[1, 1, 8, 32] }.options().join(" ");
        // 544 tokens round up to 768, of 32 sequences.
        assert_eq!(options, "--output-format jsonl --ctx-size 24576 -npp 512 -ntg 32 -npl 1,1,8,32,1");
    }
}
