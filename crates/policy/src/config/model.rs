//! The keys of `[policy]` that only the `model` policy reads: its checkpoint, its engine, its grammar, its layout.

use std::path::{Path, PathBuf};

use furrow_cuda::backend::{Options, Precision, Stage};
use furrow_cuda::gpu::Places;
use furrow_model::kernels::Compute;
use furrow_model::template::TemplateFile;
use furrow_model::vision::Resample;
use serde::{Deserialize, Serialize};

use crate::constrain::{Caps, Rules};
use crate::engine::{OnSwap, Swaps};

/// `[policy.engine]` as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineFile {
    /// What computes: `cpu`, or `cuda`, an NVIDIA GPU.
    pub backend: String,
    /// Which GPU, as the driver numbers them.
    pub gpu: u32,
    /// Folders with NVIDIA's libraries (libnvrtc, libcublasLt), beside those the system knows.
    pub cuda_libraries: Vec<PathBuf>,
    /// Where kernels compiled for a GPU are kept; empty: `furrow/kernels` in the user's cache folder.
    pub kernel_cache: PathBuf,
    /// What a bfloat16 checkpoint is computed in on a GPU: `usual` (bfloat16, states of the recurrence in float32), `wide_residual` (the residual
    /// stream in float32, too), `narrow_state` (states in bfloat16, too).
    pub precision: String,
    /// Whether a session's tokens on a GPU must not depend on its neighbours: decode batches are filled up to the largest, chunks run alone.
    pub deterministic: bool,
    /// Threads of the `cpu` backend; 0: one a processor.
    pub threads: u32,
    /// What products are computed in: `float32`, or `bfloat16` for weights that are stored so.
    pub compute: String,
    /// How screenshots are resized: `u8` as training and serving code does, `float` as the checkpoint's own processor does.
    pub resample: String,
    /// Sessions whose state is on the device at once, a session that works counting twice unless it keeps everything. A state of the
    /// 12B is 149 MB; of `tiny` 0.3 MB.
    pub state_slots: u32,
    /// States kept beside those for siblings to start from; 0: none.
    pub snapshot_slots: u32,
    /// Longest sequence of a session, its longest reply included; the model's own limit where that is less. Longer ends the
    /// trajectory as `context_full`.
    pub context_tokens_max: u32,
    /// Tokens whose keys and values fit on the device, all sessions together.
    pub kv_tokens: u32,
    /// Tokens of a prefill chunk. It decides where a session is cut into spans, so it belongs to what makes a result.
    pub prefill_chunk: u32,
    /// Tokens prefilled beside the decode rows of one batch: more fill the device better and make decoding sessions wait longer.
    pub prefill_tokens: u32,
    /// Bytes of tile features kept, so that a tile that was seen is not encoded again.
    pub feature_bytes: u64,
    /// Host memory for the states of idle sessions. With a GPU it is pinned, all of it, when the engine starts.
    pub parked_bytes: u64,
}

/// `[policy.audit]` as written.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditFile {
    /// Share of the tokens that `model` draws which are scored again by the prefill path, one step at a time; 0: none. Each costs the
    /// prefill of its session, and holds up the reply it belongs to.
    pub share: f64,
}

/// `[policy.weights]` as written: how published weights take over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WeightsFile {
    /// What becomes of sessions whose state older weights wrote: `keep` it, `rebuild` it from their past before their next step, or
    /// `finish_on_old`: each trajectory ends on the weights it began with.
    pub on_swap: String,
    /// With `finish_on_old`: versions held beside the newest; newer weights wait until the trajectories of one have ended.
    pub old_versions_max: u32,
    /// Where a GPU keeps room for a second set of weights: on the `device`, in pinned memory of the `host`, or `none`; new ones are refused there
    /// then.
    pub stage: String,
    /// Bytes brought to a GPU between two batches.
    pub bring_bytes: u64,
}

/// `[policy.constrain]` as written: whether replies are held to the grammar, and the most tokens of each free text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConstrainFile {
    /// Whether every reply is led to JSON that the grammar's parser reads.
    pub enabled: bool,
    /// Most tokens of `note`.
    pub note: u32,
    /// Most tokens of `thought`.
    pub thought: u32,
    /// Most tokens of `content`.
    pub content: u32,
    /// Most tokens of `element`.
    pub element: u32,
    /// Most tokens of `url`, behind http:// or https://.
    pub url: u32,
    /// Most tokens of `key`.
    pub key: u32,
    /// Tokens of every reply, its end included, for measurements: `thought` and white space take what the action leaves. 0: as many as come.
    pub exact_tokens: u32,
    /// Whether `answer`, which ends a trajectory, and `goto`, which does so where its address is off the task's list, are possible. Without them
    /// each goes on to its last step, for measurements.
    pub endings: bool,
}

/// `[policy.template]` as written: what stands in place of the checkpoint's own layout; empty: the checkpoint's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LayoutFile {
    /// The first prompt, with `{instructions}`, `{task}` and `{image}` once each.
    pub first_turn: String,
    /// What each later turn adds, with `{outcome}` and `{image}` once each.
    pub later_turn: String,
    /// The mark that ends a reply.
    pub stop: String,
}

/// What runs a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendChoice {
    /// Plain Rust.
    Cpu,
    /// A GPU.
    Cuda(Places, Options),
}

/// The checked keys of the `model` policy.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Checkpoint directory.
    pub checkpoint: PathBuf,
    /// What computes.
    pub backend: BackendChoice,
    /// Threads.
    pub threads: usize,
    /// What products are computed in.
    pub compute: Compute,
    /// How screenshots are resized.
    pub resample: Resample,
    /// Sizes, as written.
    pub engine: EngineFile,
    /// How published weights take over.
    pub swaps: Swaps,
    /// How replies are held to the grammar, where they are.
    pub constrain: Option<Rules>,
    /// What stands in place of the checkpoint's layout.
    pub template: LayoutFile,
    /// Share of drawn tokens that are scored again by the prefill path, 0 to 1.
    pub audit_share: f64,
    /// Places for sessions that chats have and trajectories have not.
    pub chat_sessions: u32,
}

impl Default for EngineFile {
    fn default() -> Self {
        Self {
            backend: "cpu".into(),
            gpu: 0,
            cuda_libraries: Vec::new(),
            kernel_cache: PathBuf::new(),
            precision: "usual".into(),
            deterministic: false,
            threads: 0,
            compute: "float32".into(),
            resample: "u8".into(),
            state_slots: 16,
            snapshot_slots: 8,
            context_tokens_max: 32_768,
            kv_tokens: 131_072,
            prefill_chunk: 512,
            prefill_tokens: 1024,
            feature_bytes: 256 << 20,
            parked_bytes: 4 << 30,
        }
    }
}

impl Default for WeightsFile {
    fn default() -> Self {
        let Swaps { old_versions_max, bring_bytes, .. } = Swaps::default();
        Self { on_swap: "keep".into(), old_versions_max, stage: "none".into(), bring_bytes }
    }
}

impl Default for ConstrainFile {
    fn default() -> Self {
        let Caps { note, thought, content, element, url, key } = Caps::default();
        Self { enabled: false, note, thought, content, element, url, key, exact_tokens: 0, endings: true }
    }
}

impl WeightsFile {
    fn stage(&self, wrong: &mut Vec<String>) -> Stage {
        match self.stage.as_str() {
            "none" => Stage::None,
            "device" => Stage::Device,
            "host" => Stage::Host,
            other => {
                wrong.push(format!("policy.weights.stage: {other:?}; use \"none\", \"device\" or \"host\""));
                Stage::None
            }
        }
    }

    fn check(&self, backend: &str) -> Result<Swaps, Vec<String>> {
        let mut wrong = Vec::new();
        let on_swap = match self.on_swap.as_str() {
            "keep" => OnSwap::Keep,
            "rebuild" => OnSwap::Rebuild,
            "finish_on_old" => OnSwap::FinishOnOld,
            other => {
                wrong.push(format!(
                    "policy.weights.on_swap: {other:?}; use \"keep\", \"rebuild\" or \"finish_on_old\""
                ));
                OnSwap::Keep
            }
        };
        if on_swap == OnSwap::FinishOnOld && backend == "cuda" {
            wrong.push(
                "policy.weights.on_swap: \"finish_on_old\"; a GPU holds one set of weights to run, use \"keep\" or \"rebuild\" there".into(),
            );
        }
        if self.old_versions_max > 64 {
            wrong.push(format!("policy.weights.old_versions_max: {}; use 0 to 64", self.old_versions_max));
        }
        if self.bring_bytes == 0 {
            wrong.push("policy.weights.bring_bytes: 0; use 1 or more".into());
        }
        let Self { old_versions_max, bring_bytes, .. } = *self;
        let swaps = Swaps { on_swap, old_versions_max, bring_bytes, ..Swaps::default() };
        if wrong.is_empty() { Ok(swaps) } else { Err(wrong) }
    }
}

impl EngineFile {
    fn on_a_gpu(&self, precision: Precision, stage: Stage) -> BackendChoice {
        let cache = match self.kernel_cache.as_os_str().is_empty() {
            true => user_cache().join("furrow/kernels"),
            false => self.kernel_cache.clone(),
        };
        let libraries = self.cuda_libraries.clone();
        let options = Options { precision, deterministic: self.deterministic, stage, ..Options::default() };
        BackendChoice::Cuda(Places { ordinal: self.gpu as usize, libraries, cache }, options)
    }

    fn check(&self) -> Vec<String> {
        let sizes = [
            ("threads", self.threads, 0, 1024, "0 takes one a processor"),
            ("state_slots", self.state_slots, 2, 65_536, "a session and its fork need 2"),
            ("snapshot_slots", self.snapshot_slots, 0, 65_536, "0 keeps none"),
            (
                "context_tokens_max",
                self.context_tokens_max,
                64,
                1 << 24,
                "the model's own limit holds as well",
            ),
            ("kv_tokens", self.kv_tokens, 64, 1 << 30, "all sessions together"),
            ("prefill_chunk", self.prefill_chunk, 1, 65_536, "512 is usual"),
            ("prefill_tokens", self.prefill_tokens, 1, 65_536, "at least prefill_chunk"),
        ];
        let outside = sizes.into_iter().filter(|(_, value, low, high, _)| !(low..=high).contains(&value));
        let mut wrong: Vec<String> = outside
            .map(|(key, value, low, high, why)| {
                format!("policy.engine.{key}: {value}; use {low} to {high} ({why})")
            })
            .collect();
        if self.prefill_tokens < self.prefill_chunk {
            wrong.push(format!(
                "policy.engine.prefill_tokens: {}; a chunk of {} must fit, use that or more",
                self.prefill_tokens, self.prefill_chunk
            ));
        }
        // A page for each fork and snapshot that a session can part from; 4 of 64 tokens.
        let least = self.context_tokens_max.saturating_add(5 * 64);
        if self.kv_tokens < least {
            wrong.push(format!(
                "policy.engine.kv_tokens: {}; one session of context_tokens_max {} takes {least}, use that or more",
                self.kv_tokens, self.context_tokens_max
            ));
        }
        wrong
    }
}

impl ConstrainFile {
    fn rules(&self) -> Option<Rules> {
        let Self { enabled, note, thought, content, element, url, key, exact_tokens, endings } = *self;
        let caps = Caps { note, thought, content, element, url, key };
        enabled.then_some(Rules { caps, exact_tokens: (exact_tokens > 0).then_some(exact_tokens), endings })
    }

    /// What only replies that are held to a grammar can be held to.
    pub(super) fn check(&self, max_tokens: u32) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut refuse = |key: &str, value: &dyn std::fmt::Display, why: &str| {
            wrong.push(format!("policy.constrain.{key}: {value}; {why}"));
        };
        let free = "only replies that are held to the grammar can be; set policy.constrain.enabled = true or leave it out";
        if self.exact_tokens > 0 && !self.enabled {
            refuse("exact_tokens", &self.exact_tokens, free);
        }
        if !self.endings && !self.enabled {
            refuse("endings", &self.endings, free);
        }
        if self.exact_tokens > max_tokens {
            let why =
                format!("a reply has at most policy.sampling.max_tokens = {max_tokens}; use that or less");
            refuse("exact_tokens", &self.exact_tokens, &why);
        }
        wrong
    }
}

impl LayoutFile {
    /// Puts what is written here over a checkpoint's layout.
    pub fn over(&self, mut file: TemplateFile) -> TemplateFile {
        let Self { first_turn, later_turn, stop } = self;
        for (own, other) in
            [(&mut file.first_turn, first_turn), (&mut file.later_turn, later_turn), (&mut file.stop, stop)]
        {
            if !other.is_empty() {
                other.clone_into(own);
            }
        }
        file
    }
}

/// Where programs keep what they can make again: the user's cache folder, or the system's for temporary files.
fn user_cache() -> PathBuf {
    let folder = |key| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || folder("HOME").map(|home| home.join(".cache"));
    folder("XDG_CACHE_HOME").or_else(home).unwrap_or_else(std::env::temp_dir)
}

/// Checks the keys of the `model` policy.
pub(super) fn check(
    checkpoint: &Path,
    engine: &EngineFile,
    constrain: &ConstrainFile,
    template: &LayoutFile,
    weights: &WeightsFile,
    audit: &AuditFile,
) -> Result<ModelConfig, Vec<String>> {
    let mut wrong = engine.check();
    let swaps = weights.check(&engine.backend).unwrap_or_else(|problems| {
        wrong.extend(problems);
        Swaps::default()
    });
    if checkpoint.as_os_str().is_empty() {
        wrong.push("policy.checkpoint: empty; name the directory of a checkpoint".into());
    } else if !checkpoint.join("config.json").is_file() {
        wrong.push(format!(
            "policy.checkpoint: {} holds no config.json; name the directory of a checkpoint (`furrow checkpoint init` writes a random one)",
            checkpoint.display()
        ));
    }
    if !(0.0..=1.0).contains(&audit.share) {
        wrong.push(format!("policy.audit.share: {}; use 0 to 1 (0 scores nothing again)", audit.share));
    }
    let stage = weights.stage(&mut wrong);
    let mut word = |key: &str, value: &str, right: &str| {
        wrong.push(format!("policy.engine.{key}: {value:?}; use {right}"));
    };
    let precision = match engine.precision.as_str() {
        "usual" => Precision::Usual,
        "wide_residual" => Precision::WideResidual,
        "narrow_state" => Precision::NarrowState,
        other => {
            word("precision", other, "\"usual\", \"wide_residual\" or \"narrow_state\"");
            Precision::Usual
        }
    };
    let backend = match engine.backend.as_str() {
        "cpu" => BackendChoice::Cpu,
        "cuda" => engine.on_a_gpu(precision, stage),
        other => {
            word("backend", other, "\"cpu\" or \"cuda\"");
            BackendChoice::Cpu
        }
    };
    let compute = match engine.compute.as_str() {
        "float32" => Compute::Float32,
        "bfloat16" => Compute::Bfloat16,
        other => {
            word("compute", other, "\"float32\" or \"bfloat16\"");
            Compute::Float32
        }
    };
    let resample = match engine.resample.as_str() {
        "u8" => Resample::U8,
        "float" => Resample::Float,
        other => {
            word("resample", other, "\"u8\" or \"float\"");
            Resample::U8
        }
    };
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    Ok(ModelConfig {
        checkpoint: checkpoint.to_owned(),
        backend,
        threads: if engine.threads == 0 { processors() } else { engine.threads as usize },
        compute,
        resample,
        engine: engine.clone(),
        swaps,
        constrain: constrain.rules(),
        template: template.clone(),
        audit_share: audit.share,
        chat_sessions: 0,
    })
}
