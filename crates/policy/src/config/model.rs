//! The keys of `[policy]` that only the `model` policy reads: checkpoint, engine, grammar
//! constraint and template.

use std::path::{Path, PathBuf};
use std::time::Duration;

use furrow_cuda::backend::{BackendOptions, ModelPrecision, StagingMode};
use furrow_cuda::gpu::GpuPaths;
use furrow_model::kernels::ProductPrecision;
use furrow_model::template::TemplateFile;
use furrow_model::vision::ResampleMode;
use furrow_rollout::WeightRoots;
use serde::{Deserialize, Serialize};

use crate::constrain::{ConstraintRules, TextCaps};
use crate::engine::{OnSwap, SwapSettings};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineFile {
    /// What computes: `cpu`, or `cuda` for an NVIDIA GPU.
    pub backend: String,
    /// Index of the GPU, as the driver numbers them from 0.
    pub gpu: u32,
    /// Directories with NVIDIA's libraries (libnvrtc, libcublasLt), searched in addition to the
    /// system's.
    pub cuda_libraries: Vec<PathBuf>,
    /// Directory for compiled GPU kernels; empty: `furrow/kernels` in the user's cache directory.
    pub kernel_cache: PathBuf,
    /// Precision of a bfloat16 checkpoint on a GPU: `usual` (bfloat16, recurrent states in
    /// float32), `wide_residual` (the residual stream in float32, too) or `narrow_state` (states in
    /// bfloat16, too).
    pub precision: String,
    /// Whether a session's tokens on a GPU must not depend on other sessions: decode batches are
    /// padded to the largest size and chunks run alone.
    pub deterministic: bool,
    /// Threads of the `cpu` backend; 0: one for each CPU.
    pub threads: u32,
    /// Element type of matrix products: `float32`, or `bfloat16` for weights that are stored in it.
    pub compute: String,
    /// How screenshots are resized: `u8` as training and serving code does, `float` as the
    /// checkpoint's own processor does.
    pub resample: String,
    /// Sessions whose state is on the device at once. A session that runs a step counts twice
    /// unless it keeps everything. A state of the 12B takes 149 MB, of `tiny` 0.3 MB.
    pub state_slots: u32,
    /// Slots for snapshots from which sibling sessions fork, in addition to `state_slots`; 0: none.
    pub snapshot_slots: u32,
    /// Most tokens of a session, its longest reply included; the model's own limit if that is less.
    /// A longer session ends the trajectory as `context_full`.
    pub context_tokens_max: u32,
    /// Tokens of all sessions together whose keys and values fit on the device.
    pub kv_tokens: u32,
    /// Tokens of a prefill chunk. It decides where a session is cut into spans, so results depend
    /// on it.
    pub prefill_chunk: u32,
    /// Tokens prefilled beside the decode rows of one batch. More use the device better and delay
    /// decoding sessions.
    pub prefill_tokens: u32,
    /// Bytes of cached tile features, so that a repeated tile is not encoded again.
    pub feature_bytes: u64,
    /// Bytes of host memory for the states of idle sessions. With a GPU, all of it is pinned when
    /// the engine starts.
    pub offload_bytes: u64,
    /// Milliseconds after which a device that does not answer is given up: its sessions continue on
    /// another policy worker, and this one ends. 0: 30000 on a GPU, no limit on the CPU.
    pub device_timeout_millis: u64,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditFile {
    /// Share of the tokens sampled by `model` that the prefill path scores again, one step at a
    /// time; 0: none. Each one costs the prefill of its session and delays the reply it belongs to.
    pub share: f64,
}

/// `[policy.weights]` as written: how published weights take effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WeightsFile {
    /// Policy for sessions whose state older weights wrote: `keep` it, `rebuild` it from their past
    /// before their next step, or `finish_on_old`: each trajectory ends on the weights it began
    /// with.
    pub on_swap: String,
    /// With `finish_on_old`: versions kept beside the newest. Newer weights wait until the
    /// trajectories of one have ended.
    pub old_versions_max: u32,
    /// Where a GPU reserves memory for a second set of weights: on the `device`, in pinned memory
    /// of the `host`, or `none`, which refuses new weights.
    pub stage: String,
    /// Bytes copied to a GPU between two batches.
    pub bring_bytes: u64,
    /// Directories below which published weights must lie; empty: anywhere. The coordinator
    /// compares the path of a publication, a policy worker that path without links.
    pub roots: Vec<PathBuf>,
}

/// `[policy.constrain]` as written: whether replies are constrained to the grammar, and the most
/// tokens of each free text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConstrainFile {
    /// Whether every reply is constrained to JSON that the grammar's parser accepts.
    pub enabled: bool,
    /// Most tokens of the reply's text `note`, what the policy writes down for later steps.
    pub note: u32,
    /// Most tokens of the reply's text `thought`, its reasoning before the action.
    pub thought: u32,
    /// Most tokens of the action's text `content`: what is typed, or the answer.
    pub content: u32,
    /// Most tokens of the action's text `element`, which describes what is clicked.
    pub element: u32,
    /// Most tokens of the action's text `url`, after http:// or https://.
    pub url: u32,
    /// Most tokens of the action's text `key`, such as `Enter`.
    pub key: u32,
    /// Tokens of every reply, its end included, for measurements: `thought` and white space fill
    /// what the action leaves. 0: no fixed number.
    pub exact_tokens: u32,
    /// Whether `answer`, which ends a trajectory, and `goto`, which ends it if its address is off
    /// the task's list, are allowed. Without them each trajectory runs to its last step, for
    /// measurements.
    pub endings: bool,
}

/// `[policy.template]` as written: replaces the checkpoint's own template; an empty text keeps the
/// checkpoint's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LayoutFile {
    /// The first prompt, with `{instructions}`, `{task}` and `{image}` once each.
    pub first_turn: String,
    /// What each later turn adds, with `{outcome}` and `{image}` once each.
    pub later_turn: String,
    /// The token that ends a reply.
    pub stop: String,
}

/// What computes a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendChoice {
    Cpu,
    Cuda(GpuPaths, BackendOptions),
}

/// The checked keys of the `model` policy.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub checkpoint: PathBuf,
    pub backend: BackendChoice,
    pub threads: usize,
    /// Element type of matrix products.
    pub compute: ProductPrecision,
    /// How screenshots are resized.
    pub resample: ResampleMode,
    pub engine: EngineFile,
    /// How published weights take effect.
    pub swaps: SwapSettings,
    /// Where they may lie.
    pub weight_roots: WeightRoots,
    /// How replies are constrained to the grammar; `None`: not at all.
    pub constrain: Option<ConstraintRules>,
    /// What replaces the checkpoint's template.
    pub template: LayoutFile,
    /// Share of sampled tokens that the prefill path scores again, 0 to 1.
    pub audit_share: f64,
    /// Sessions reserved for chats, which trajectories cannot use.
    pub chat_sessions: u32,
}

/// Time that a GPU gets for one iteration of the engine, which takes tens of milliseconds.
const GPU_TIMEOUT: Duration = Duration::from_secs(30);

impl ModelConfig {
    /// Time after which a device that does not answer is given up, if there is a limit.
    pub(crate) fn device_timeout(&self) -> Option<Duration> {
        match (self.engine.device_timeout_millis, &self.backend) {
            (0, BackendChoice::Cpu) => None,
            (0, BackendChoice::Cuda(..)) => Some(GPU_TIMEOUT),
            (millis, _) => Some(Duration::from_millis(millis)),
        }
    }
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
            offload_bytes: 4 << 30,
            device_timeout_millis: 0,
        }
    }
}

impl Default for WeightsFile {
    fn default() -> Self {
        let SwapSettings { old_versions_max, bring_bytes, .. } = SwapSettings::default();
        Self {
            on_swap: "keep".into(),
            old_versions_max,
            stage: "none".into(),
            bring_bytes,
            roots: Vec::new(),
        }
    }
}

impl Default for ConstrainFile {
    fn default() -> Self {
        let TextCaps { note, thought, content, element, url, key } = TextCaps::default();
        Self { enabled: false, note, thought, content, element, url, key, exact_tokens: 0, endings: true }
    }
}

impl WeightsFile {
    /// The directories without links, as far as they exist on this machine.
    pub(super) fn roots(&self) -> WeightRoots {
        let resolved = |root: &PathBuf| root.canonicalize().unwrap_or_else(|_| root.clone());
        WeightRoots::new(self.roots.iter().map(resolved).collect())
    }

    fn stage(&self, wrong: &mut Vec<String>) -> StagingMode {
        match self.stage.as_str() {
            "none" => StagingMode::None,
            "device" => StagingMode::Device,
            "host" => StagingMode::Host,
            other => {
                wrong.push(format!("policy.weights.stage: {other:?}; use \"none\", \"device\" or \"host\""));
                StagingMode::None
            }
        }
    }

    fn check(&self, backend: &str) -> Result<SwapSettings, Vec<String>> {
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
                "policy.weights.on_swap: \"finish_on_old\"; a GPU runs one set of weights; use \"keep\" or \"rebuild\"".into(),
            );
        }
        if self.old_versions_max > 64 {
            wrong.push(format!("policy.weights.old_versions_max: {}; use 0 to 64", self.old_versions_max));
        }
        if self.bring_bytes == 0 {
            wrong.push("policy.weights.bring_bytes: 0; use 1 or more".into());
        }
        let Self { old_versions_max, bring_bytes, .. } = *self;
        let swaps = SwapSettings { on_swap, old_versions_max, bring_bytes, ..SwapSettings::default() };
        if wrong.is_empty() { Ok(swaps) } else { Err(wrong) }
    }
}

impl EngineFile {
    fn cuda_backend(&self, precision: ModelPrecision, stage: StagingMode) -> BackendChoice {
        let cache = match self.kernel_cache.as_os_str().is_empty() {
            true => user_cache().join("furrow/kernels"),
            false => self.kernel_cache.clone(),
        };
        let libraries = self.cuda_libraries.clone();
        let options = BackendOptions {
            precision,
            deterministic: self.deterministic,
            stage,
            ..BackendOptions::default()
        };
        BackendChoice::Cuda(GpuPaths { ordinal: self.gpu as usize, libraries, cache }, options)
    }

    fn check(&self) -> Vec<String> {
        let sizes = [
            ("threads", self.threads, 0, 1024, "0 takes one for each CPU"),
            ("state_slots", self.state_slots, 2, 65_536, "a session and its fork need 2"),
            ("snapshot_slots", self.snapshot_slots, 0, 65_536, "0 keeps none"),
            (
                "context_tokens_max",
                self.context_tokens_max,
                64,
                1 << 24,
                "the model's own limit applies as well",
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
                "policy.engine.prefill_tokens: {}; a chunk of {} tokens must fit; use that or more",
                self.prefill_tokens, self.prefill_chunk
            ));
        }
        if !matches!(self.device_timeout_millis, 0 | 1_000..=86_400_000) {
            wrong.push(format!(
                "policy.engine.device_timeout_millis: {}; use 1000 to 86400000, or 0 for the default",
                self.device_timeout_millis
            ));
        }
        // A session may need 4 spare pages of 64 tokens, and one more where the context is
        // rounded up to whole pages.
        let least = self.context_tokens_max.saturating_add(5 * 64);
        if self.kv_tokens < least {
            wrong.push(format!(
                "policy.engine.kv_tokens: {}; one session of context_tokens_max {} takes {least}; use that or more",
                self.kv_tokens, self.context_tokens_max
            ));
        }
        wrong
    }
}

impl ConstrainFile {
    fn rules(&self) -> Option<ConstraintRules> {
        let Self { enabled, note, thought, content, element, url, key, exact_tokens, endings } = *self;
        let caps = TextCaps { note, thought, content, element, url, key };
        enabled.then_some(ConstraintRules {
            caps,
            exact_tokens: (exact_tokens > 0).then_some(exact_tokens),
            endings,
        })
    }

    /// Checks the keys that need `enabled`.
    pub(super) fn check(&self, max_tokens: u32) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut refuse = |key: &str, value: &dyn std::fmt::Display, why: &str| {
            wrong.push(format!("policy.constrain.{key}: {value}; {why}"));
        };
        let free =
            "it applies only to constrained replies; set policy.constrain.enabled = true or remove this key";
        if self.exact_tokens > 0 && !self.enabled {
            refuse("exact_tokens", &self.exact_tokens, free);
        }
        if !self.endings && !self.enabled {
            refuse("endings", &self.endings, free);
        }
        if self.exact_tokens > max_tokens {
            let why = format!("policy.sampling.max_tokens is {max_tokens}; use that or less");
            refuse("exact_tokens", &self.exact_tokens, &why);
        }
        wrong
    }
}

impl LayoutFile {
    /// Replaces the parts of a checkpoint's template that this section sets.
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

/// The user's cache directory, or the system's directory for temporary files.
fn user_cache() -> PathBuf {
    let folder = |key| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || folder("HOME").map(|home| home.join(".cache"));
    folder("XDG_CACHE_HOME").or_else(home).unwrap_or_else(std::env::temp_dir)
}

/// What is wrong with the directory of a checkpoint, as far as its name and `config.json` tell.
fn check_checkpoint(checkpoint: &Path) -> Option<String> {
    if checkpoint.as_os_str().is_empty() {
        return Some("policy.checkpoint: empty; name the directory of a checkpoint".into());
    }
    let is_found = checkpoint.join("config.json").is_file();
    (!is_found).then(|| {
        format!(
            "policy.checkpoint: {} has no config.json; name the directory of a checkpoint (docs/GPU.md says which can be fetched, `furrow checkpoint init` writes a random one)",
            checkpoint.display()
        )
    })
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
        SwapSettings::default()
    });
    wrong.extend(check_checkpoint(checkpoint));
    if !(0.0..=1.0).contains(&audit.share) {
        wrong.push(format!("policy.audit.share: {}; use 0 to 1 (0 scores no token again)", audit.share));
    }
    let stage = weights.stage(&mut wrong);
    let mut refuse = |key: &str, value: &str, right: &str| {
        wrong.push(format!("policy.engine.{key}: {value:?}; use {right}"));
    };
    let precision = match engine.precision.as_str() {
        "usual" => ModelPrecision::Usual,
        "wide_residual" => ModelPrecision::WideResidual,
        "narrow_state" => ModelPrecision::NarrowState,
        other => {
            refuse("precision", other, "\"usual\", \"wide_residual\" or \"narrow_state\"");
            ModelPrecision::Usual
        }
    };
    let backend = match engine.backend.as_str() {
        "cpu" => BackendChoice::Cpu,
        "cuda" => engine.cuda_backend(precision, stage),
        other => {
            refuse("backend", other, "\"cpu\" or \"cuda\"");
            BackendChoice::Cpu
        }
    };
    let compute = match engine.compute.as_str() {
        "float32" => ProductPrecision::Float32,
        "bfloat16" => ProductPrecision::Bfloat16,
        other => {
            refuse("compute", other, "\"float32\" or \"bfloat16\"");
            ProductPrecision::Float32
        }
    };
    let resample = match engine.resample.as_str() {
        "u8" => ResampleMode::U8,
        "float" => ResampleMode::Float,
        other => {
            refuse("resample", other, "\"u8\" or \"float\"");
            ResampleMode::U8
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
        weight_roots: weights.roots(),
        constrain: constrain.rules(),
        template: template.clone(),
        audit_share: audit.share,
        chat_sessions: 0,
    })
}
