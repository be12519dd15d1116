//! Opens a checkpoint and reports everything that is wrong with it before the first session.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use furrow_cuda::backend::{self as cuda, CudaOpenError};
use furrow_cuda::gpu::{GpuError, GpuExecutor};
use furrow_model::backend::{Backend, BackendCapacity, PAGE_TOKENS};
use furrow_model::checkpoint::{Checkpoint, CheckpointError};
use furrow_model::config::{Config, VisionConfig};
use furrow_model::cpu::{CpuBackend, CpuOpenError, MemoryUse};
use furrow_model::kernels::{ProductPrecision, ThreadPool};
use furrow_model::sample::AllowedTokens;
use furrow_model::template::{ChatTemplate, TemplateError, TemplateFile};
use furrow_model::tokenizer::{Tokenizer, TokenizerError};
use furrow_model::weights::ModelWeights;
use furrow_rollout::{PolicyHashes, PolicyVersion, SessionSpec};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, watch};

use super::ModelPolicy;
use super::audit::DriftAudit;
use super::shared::{CurrentWeights, EngineEnd, ModelShared};
use super::watchdog::WatchedEngine;
use super::weights::WeightUpdateLoader;
use crate::config::{BackendChoice, ModelConfig};
use crate::constrain::ConstraintError;
use crate::conversation::RebuildMode;
use crate::device_faults::delay;
use crate::engine::{Engine, EngineEvent, EngineSettings, SettingsMismatch, SwapSettings};
use crate::progress::DeviceProgress;
use crate::prompt;

/// Capacity of the channel to the engine. A session has an open, a step and a close in it at most.
const EVENTS_MAX: usize = 1024;

/// Capacity of the channel of retired weights. One set is usual; more are queued only when versions
/// arrive faster than memory is freed.
const RETIRED_MAX: usize = 4;

/// Why a checkpoint cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The checkpoint is invalid.
    #[error("policy.checkpoint: {} cannot be loaded", dir.display())]
    Checkpoint { dir: PathBuf, source: Box<CheckpointError> },
    /// The tokenizer is invalid.
    #[error("policy.checkpoint: the tokenizer of {} cannot be used", dir.display())]
    Tokenizer { dir: PathBuf, source: Box<TokenizerError> },
    /// The template is invalid.
    #[error("policy.checkpoint: the template of {} cannot be used", dir.display())]
    Template { dir: PathBuf, source: Box<TemplateError> },
    /// Parts of the checkpoint do not fit each other.
    #[error("policy.checkpoint: the parts of {} do not match: {}", dir.display(), problems.join("; "))]
    Unfit {
        dir: PathBuf,
        /// Every mismatch that was found.
        problems: Vec<String>,
    },
    /// The checkpoint reads text only.
    #[error("policy.checkpoint: {} has no vision encoder, but sessions show screenshots; use a checkpoint with one", dir.display())]
    NoVision { dir: PathBuf },
    /// The backend did not open.
    #[error("policy.engine: the backend could not be opened")]
    Backend(#[source] CpuOpenError),
    /// No GPU can be used.
    #[error("policy.engine.backend: \"cuda\" cannot be used on this machine")]
    Gpu(#[source] Box<GpuError>),
    /// The model does not run on the GPU.
    #[error("policy.engine: the model does not run on this GPU")]
    Cuda(#[source] Box<CudaOpenError>),
    /// Sizes that do not match.
    #[error("policy.engine: {0}")]
    Mismatch(#[from] SettingsMismatch),
    /// An audit needs a session of its own, and the engine holds only one.
    #[error(
        "policy.audit.share: {share}; an audit needs a session of its own and the engine holds one session: \
         raise policy.engine.state_slots or policy.engine.offload_bytes, or set policy.audit.share = 0"
    )]
    NoSessionForAudit { share: f64 },
    /// Chats would use every session that the engine holds.
    #[error(
        "policy.serve.sessions_max: {chat_sessions}; the engine holds {sessions_max} sessions and at least one is for trajectories: \
         lower it, or raise policy.engine.state_slots or policy.engine.offload_bytes"
    )]
    NoSessionsForChats {
        /// Sessions configured for chats.
        chat_sessions: u32,
        /// Sessions that the engine holds.
        sessions_max: u32,
    },
    /// The template cannot be used for a chat.
    #[error(
        "policy.template.first_turn: {{instructions}} must come first, before {{task}} and {{image}}, if policy.serve is on"
    )]
    NoChat,
    /// The grammar cannot be enforced.
    #[error("policy.constrain: {0}")]
    Constraint(#[from] ConstraintError),
    /// The operating system refused a thread.
    #[error("the engine's thread could not be started")]
    Thread(#[source] std::io::Error),
}

impl ModelError {
    /// Whether the machine lacks what the configuration needs: a GPU, its driver, its memory or
    /// kernels for this model. A retry does not help then; other hardware or another configuration
    /// does.
    pub fn is_lack_of_hardware(&self) -> bool {
        match self {
            Self::Gpu(_) => true,
            Self::Cuda(why) => matches!(
                **why,
                CudaOpenError::Unsupported { .. }
                    | CudaOpenError::Full { .. }
                    | CudaOpenError::HostFull { .. }
                    | CudaOpenError::OffloadFull { .. }
                    | CudaOpenError::TooLarge { .. }
            ),
            _ => false,
        }
    }
}

impl ModelPolicy {
    /// Loads a checkpoint and starts its engine. This blocks the thread for minutes if the
    /// checkpoint is large.
    pub fn open(config: &ModelConfig, spec: &SessionSpec) -> Result<Self, ModelError> {
        let dir = || config.checkpoint.clone();
        let team = ThreadPool::new(config.threads);
        let refused = |why| ModelError::Checkpoint { dir: dir(), source: Box::new(why) };
        let checkpoint = Checkpoint::open(&config.checkpoint).map_err(refused)?;
        let vision = checkpoint.config().vision.clone().ok_or_else(|| ModelError::NoVision { dir: dir() })?;
        let (template, marks) = layout(config, checkpoint.config())?;
        let gpu = gpu(&config.backend)?;
        delay("model.load");
        let named = checkpoint.hashes(&team);
        let embeddings = checkpoint.tensor("backbone.embeddings.weight").map_err(refused)?;
        let embedding_rows = embeddings.shape().first().copied().unwrap_or(0);
        let model = checkpoint.config().clone();
        let unfit = |problems| ModelError::Unfit { dir: dir(), problems };
        template.tokenizer().fits(&model, embedding_rows).map_err(unfit)?;
        let version = PolicyVersion(0);
        let settings = settings(config, &model, (version, named.vision));
        let capacity = capacity(config, &settings, &vision, model.text.hidden);
        let backend = match gpu {
            Some((gpu, options)) => open_on_gpu(&checkpoint, capacity, options, gpu)?,
            None => open_on_cpu(config, &checkpoint, capacity, &team)?,
        };
        drop((checkpoint, team));
        let engine = Engine::new(backend, settings)?;
        let audit = DriftAudit::of(config.audit_share);
        let sessions_max = sessions_for_trajectories(config, engine.sessions_max(), audit.is_some())?;
        if config.chat_sessions > 0 && !template.has_chat() {
            return Err(ModelError::NoChat);
        }
        let broken = engine.broken_version();
        let EngineThreads { events, ended, threads, progress } =
            EngineThreads::start(engine, config.device_timeout())?;
        let vocabulary = model.text.vocabulary;
        let hashes = part_hashes(config, &template, &vision);
        let shared = ModelShared {
            events,
            ended,
            broken,
            sessions: AtomicU64::new(0),
            delimiters: marks,
            allowed_ids: without_placeholder(vocabulary, vision.image_token),
            vision,
            resample: config.resample,
            rules: config.constrain.clone(),
            constraints: Mutex::default(),
            schemas: Default::default(),
            vocabulary,
            embedding_rows,
            context_tokens_max: settings.context_tokens_max,
            rebuild_mode: rebuild_mode(&config.backend),
            on_swap: config.swaps.on_swap,
            audit,
            current_weights: Mutex::new(CurrentWeights { version, weights_sha256: named.weights }),
            template,
        };
        let opened = Self {
            shared: Arc::new(shared),
            hashes,
            sessions_max,
            loader: Arc::new(WeightUpdateLoader::of(config)),
            swap_lock: tokio::sync::Mutex::default(),
            threads: Mutex::new(threads),
            progress,
        };
        // Reports a grammar that cannot be enforced before the first session.
        opened.shared.constraint(&spec.grammar, spec.sampling.max_tokens)?;
        tracing::info!(checkpoint = %config.checkpoint.display(), sessions_max, "model loaded");
        Ok(opened)
    }
}

/// An engine that runs on a thread of its own.
struct EngineThreads {
    events: mpsc::Sender<EngineEvent>,
    /// Why the engine ended; `None` while it runs.
    ended: watch::Receiver<Option<EngineEnd>>,
    threads: Vec<JoinHandle<()>>,
    progress: Arc<DeviceProgress>,
}

impl EngineThreads {
    /// Starts the engine, a thread that frees the weights it retires, and a watchdog if its device
    /// has a time limit.
    fn start(engine: Engine, device_timeout: Option<Duration>) -> Result<Self, ModelError> {
        let (drop_queue, mut retired) = mpsc::channel(RETIRED_MAX);
        let engine = engine.retire_weights_to(drop_queue);
        let (events, mut receiver) = mpsc::channel(EVENTS_MAX);
        let (ending, ended) = watch::channel(None);
        let ending = Arc::new(ending);
        let progress = engine.progress();
        let (is_running, running) = std::sync::mpsc::sync_channel(0);
        let watched = WatchedEngine { progress: progress.clone(), running, ending: ending.clone() };
        let watchdog =
            device_timeout.map(|limit| watched.start(limit)).transpose().map_err(ModelError::Thread)?;
        let running = std::thread::Builder::new().name("furrow-engine".into());
        let running = running.spawn(move || {
            let engine = engine.run(&mut receiver);
            // Set before the channel closes, so that every caller whose event is refused finds the
            // reason.
            let end = EngineEnd::of(engine.lost());
            ending.send_if_modified(|ended| ended.replace(end).is_none());
            drop((receiver, is_running));
        });
        let engine = running.map_err(ModelError::Thread)?;
        let retiring = std::thread::Builder::new().name("furrow-retired".into());
        // Ends with the engine, which holds the sender.
        let retiring = retiring.spawn(move || while retired.blocking_recv().is_some() {});
        let retiring = retiring.map_err(ModelError::Thread)?;
        let threads = [engine, retiring].into_iter().chain(watchdog).collect();
        Ok(Self { events, ended, threads, progress })
    }
}

/// Sessions that trajectories may use: those of the engine without the audit's and those of chats.
fn sessions_for_trajectories(
    config: &ModelConfig,
    engine_sessions: u32,
    has_audit: bool,
) -> Result<u32, ModelError> {
    // An audit needs a session too, and must not use one that was promised to a trajectory.
    let sessions_max = engine_sessions - u32::from(has_audit);
    if sessions_max == 0 {
        return Err(ModelError::NoSessionForAudit { share: config.audit_share });
    }
    let chat_sessions = config.chat_sessions;
    match sessions_max.checked_sub(chat_sessions) {
        Some(left) if left > 0 => Ok(left),
        _ => Err(ModelError::NoSessionsForChats { chat_sessions, sessions_max }),
    }
}

fn rebuild_mode(backend: &BackendChoice) -> RebuildMode {
    match backend {
        BackendChoice::Cpu => RebuildMode::AtOnce,
        // The last bits of a row depend on the span it ran in, so decoded tokens run one by one
        // again.
        BackendChoice::Cuda(_, options) if options.deterministic => RebuildMode::AsDecoded,
        BackendChoice::Cuda(..) => RebuildMode::AtOnce,
    }
}

/// Hashes of the parts that stay the same while the policy runs. The weights' hash is that of the
/// current version, and the grammar's that of the session.
fn part_hashes(config: &ModelConfig, template: &ChatTemplate, vision: &VisionConfig) -> PolicyHashes {
    PolicyHashes {
        weights: None,
        tokenizer: Some(hex(template.tokenizer().sha256())),
        template: Some(hex(template.sha256())),
        grammar: None,
        processor: Some(processor_sha256(vision, config)),
    }
}

/// The GPU memory and the pinned host memory that a job's model needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineMemoryPlan {
    pub needs: furrow_cuda::needs::MemoryNeeds,
    /// Capacity of the backend for sessions.
    pub capacity: BackendCapacity,
    /// Most sessions that are admitted: those that fit at `context_tokens_max`, on the device and
    /// offloaded.
    pub sessions_max: u32,
    /// Most tokens of a session: the smaller of the job's limit and the model's.
    pub context_tokens_max: u32,
    /// Whether the weight files were read and not only the configuration. The sizes are then exact
    /// to the byte.
    pub is_exact: bool,
}

impl EngineMemoryPlan {
    /// Computes the plan without a GPU and without loading weights. `None` for a job that computes
    /// on the CPU.
    ///
    /// # Errors
    /// When the checkpoint is invalid or no kernels support it.
    pub fn of(config: &ModelConfig) -> Result<Option<Self>, ModelError> {
        let BackendChoice::Cuda(_, options) = &config.backend else { return Ok(None) };
        let dir = || config.checkpoint.clone();
        let refused = |why: CheckpointError| ModelError::Checkpoint { dir: dir(), source: Box::new(why) };
        let model = Config::read(&config.checkpoint).map_err(|why| refused(why.into()))?;
        let vision = model.vision.as_ref().ok_or_else(|| ModelError::NoVision { dir: dir() })?;
        let settings = settings(config, &model, (PolicyVersion(0), [0; 32]));
        let capacity = capacity(config, &settings, vision, model.text.hidden);
        let checkpoint = Checkpoint::open(&config.checkpoint).ok();
        let needs = match &checkpoint {
            Some(checkpoint) => cuda::checkpoint_needs(checkpoint, &capacity, options),
            None => cuda::needs(&model, &capacity, options),
        };
        let needs = needs.map_err(|why| ModelError::Cuda(Box::new(why)))?;
        let sessions_max = settings.sessions_max(capacity, |pages| needs.offloaded_bytes(pages))?;
        let context_tokens_max = settings.context_tokens_max;
        Ok(Some(Self { needs, capacity, sessions_max, context_tokens_max, is_exact: checkpoint.is_some() }))
    }
}

/// Host memory that a job's model needs if it computes on the CPU, by part; `None` if a GPU
/// computes.
///
/// # Errors
/// When the checkpoint's configuration is invalid.
pub fn cpu_memory_bytes(config: &ModelConfig) -> Result<Option<MemoryUse>, ModelError> {
    if !matches!(config.backend, BackendChoice::Cpu) {
        return Ok(None);
    }
    let dir = || config.checkpoint.clone();
    let refused = |why: CheckpointError| ModelError::Checkpoint { dir: dir(), source: Box::new(why) };
    let model = Config::read(&config.checkpoint).map_err(|why| refused(why.into()))?;
    let vision = model.vision.as_ref().ok_or_else(|| ModelError::NoVision { dir: dir() })?;
    let settings = settings(config, &model, (PolicyVersion(0), [0; 32]));
    let value_bytes = match config.compute {
        ProductPrecision::Float32 => size_of::<f32>() as u64,
        ProductPrecision::Bfloat16 => 2,
    };
    let capacity = capacity(config, &settings, vision, model.text.hidden);
    Ok(Some(capacity.bytes(&model, model.parameters() * value_bytes)))
}

/// Loads tokenizer and template and applies the job's overrides.
pub(super) fn layout(
    config: &ModelConfig,
    model: &Config,
) -> Result<(ChatTemplate, crate::context::ImageDelimiters), ModelError> {
    let dir = || config.checkpoint.clone();
    let tokenizer = Tokenizer::open(&config.checkpoint)
        .map_err(|why| ModelError::Tokenizer { dir: dir(), source: Box::new(why) })?;
    let file = TemplateFile::open(&config.checkpoint)
        .map_err(|why| ModelError::Template { dir: dir(), source: Box::new(why) })?;
    let unfit = |problems| ModelError::Unfit { dir: dir(), problems };
    let template =
        ChatTemplate::check(&config.template.over(file), &Arc::new(tokenizer), model).map_err(unfit)?;
    let marks = prompt::image_delimiters(&template).ok_or_else(|| ModelError::NoVision { dir: dir() })?;
    Ok((template, marks))
}

fn settings(
    config: &ModelConfig,
    model: &Config,
    (version, vision): (PolicyVersion, [u8; 32]),
) -> EngineSettings {
    let engine = &config.engine;
    let positions_max = u32::try_from(model.text.positions_max).unwrap_or(u32::MAX);
    EngineSettings {
        state_slots: engine.state_slots,
        snapshot_slots: engine.snapshot_slots,
        chunk: engine.prefill_chunk,
        prefill_tokens: engine.prefill_tokens,
        context_tokens_max: engine.context_tokens_max.min(positions_max),
        version,
        swaps: SwapSettings { vision, ..config.swaps },
    }
}

/// Opens the GPU, if one is configured, before anything large is read.
fn gpu(backend: &BackendChoice) -> Result<Option<(GpuExecutor, cuda::BackendOptions)>, ModelError> {
    match backend {
        BackendChoice::Cpu => Ok(None),
        BackendChoice::Cuda(gpu_options, options) => {
            let gpu = GpuExecutor::open(gpu_options).map_err(|why| ModelError::Gpu(Box::new(why)))?;
            Ok(Some((gpu, *options)))
        }
    }
}

fn open_on_gpu(
    checkpoint: &Checkpoint,
    capacity: BackendCapacity,
    options: cuda::BackendOptions,
    gpu: GpuExecutor,
) -> Result<Box<dyn Backend>, ModelError> {
    tracing::info!(gpu = gpu.device().name(), "opened");
    let device = cuda::open(checkpoint, capacity, options, Box::new(gpu), &mut progress());
    let device = device.map_err(|why| ModelError::Cuda(Box::new(why)))?;
    tracing::info!(plan = %device.plan(), "the model is on the GPU");
    Ok(device)
}

fn open_on_cpu(
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    capacity: BackendCapacity,
    team: &ThreadPool,
) -> Result<Box<dyn Backend>, ModelError> {
    let weights = ModelWeights::of(checkpoint, team, &mut progress())
        .map_err(|why| ModelError::Checkpoint { dir: config.checkpoint.clone(), source: Box::new(why) })?;
    let cpu = CpuBackend::open(weights, capacity, config.threads, config.compute);
    Ok(Box::new(cpu.map_err(ModelError::Backend)?))
}

fn capacity(
    config: &ModelConfig,
    settings: &EngineSettings,
    vision: &VisionConfig,
    hidden: usize,
) -> BackendCapacity {
    let rows_per_tile = vision.rows_per_tile();
    let value_bytes = match config.backend {
        BackendChoice::Cpu => size_of::<f32>(),
        // The vision encoder runs in bfloat16 on a GPU.
        BackendChoice::Cuda(..) => 2,
    };
    let tile_bytes = (rows_per_tile * hidden * value_bytes) as u64;
    // A span may begin and end inside tiles, so it needs the tiles it covers and one more at the
    // same time.
    let span_tiles = settings.chunk.div_ceil(rows_per_tile as u32) + 1;
    let tiles = (config.engine.feature_bytes / tile_bytes.max(1)).min(u64::from(u32::MAX)) as u32;
    BackendCapacity {
        slots: settings.state_slots + settings.snapshot_slots,
        pages: config.engine.kv_tokens.div_ceil(PAGE_TOKENS as u32),
        // Beside the prefill: for each session a sampled token and a few forced ones. A longer
        // forced run waits for a later batch.
        rows_max: settings.prefill_tokens + 8 * settings.state_slots,
        logits_max: settings.state_slots,
        features: tiles.max(span_tiles),
        offload_bytes: config.engine.offload_bytes,
    }
}

/// All ids except the image placeholder, if the model could sample it.
fn without_placeholder(vocabulary: usize, placeholder: u32) -> Option<Arc<AllowedTokens>> {
    let can_be_sampled = (placeholder as usize) < vocabulary;
    can_be_sampled.then(|| {
        let mut allowed = AllowedTokens::new(vocabulary);
        allowed.extend((0..vocabulary as u32).filter(|id| *id != placeholder));
        Arc::new(allowed)
    })
}

/// Hash of the settings that determine which pixels of a screenshot the model sees.
fn processor_sha256(vision: &VisionConfig, config: &ModelConfig) -> String {
    let VisionConfig { tile, tiles_max, thumbnail, mean, std, .. } = vision;
    let processor = json!({
        "tile": tile, "tiles_max": tiles_max, "thumbnail": thumbnail, "mean": mean, "std": std,
        "resample": config.engine.resample,
    });
    hex(&Sha256::digest(processor.to_string()).into())
}

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Logs the progress of loading every five seconds.
fn progress() -> impl FnMut(u64, u64) {
    let mut reported_at = Instant::now();
    move |done, total| {
        if reported_at.elapsed().as_secs() >= 5 {
            reported_at = Instant::now();
            tracing::info!(done, total, "loading weights");
        }
    }
}
