//! Opening a checkpoint: everything that can be wrong with it is said before the first session.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use furrow_cuda::backend::{self as cuda, OpenError as CudaError};
use furrow_cuda::gpu::{Gpu, GpuError};
use furrow_model::backend::{Backend, PAGE_TOKENS, Room};
use furrow_model::checkpoint::{Checkpoint, CheckpointError};
use furrow_model::config::{Config, VisionConfig};
use furrow_model::cpu::{Bytes, Cpu, OpenError};
use furrow_model::kernels::{Compute, Team};
use furrow_model::sample::Allowed;
use furrow_model::template::{Template, TemplateError, TemplateFile};
use furrow_model::tokenizer::{Tokenizer, TokenizerError};
use furrow_model::weights::Weights;
use furrow_rollout::{Hashes, PolicyVersion, SessionSpec};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, watch};

use super::audit::Audit;
use super::weights::Loader;
use super::{Ended, InUse, Model, Shared};
use crate::config::{BackendChoice, ModelConfig};
use crate::constrain::ConstraintError;
use crate::conversation::Replay;
use crate::engine::{Engine, Misfit, Settings, Swaps};
use crate::prompt;

/// Events on their way to the engine: an open, a step or a close of each session at once is as many as there can be of use.
const EVENTS_MAX: usize = 1024;

/// Weights on their way to be taken apart: one set is usual, more only when versions come faster than memory is given back.
const RETIRED_MAX: usize = 4;

/// Why a checkpoint is not run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The checkpoint was refused.
    #[error("policy.checkpoint: {} cannot be loaded", dir.display())]
    Checkpoint {
        /// Where it is.
        dir: PathBuf,
        /// Why.
        source: Box<CheckpointError>,
    },
    /// The tokenizer was refused.
    #[error("policy.checkpoint: the tokenizer of {} cannot be used", dir.display())]
    Tokenizer {
        /// Where it is.
        dir: PathBuf,
        /// Why.
        source: Box<TokenizerError>,
    },
    /// The template was refused.
    #[error("policy.checkpoint: the template of {} cannot be used", dir.display())]
    Template {
        /// Where it is.
        dir: PathBuf,
        /// Why.
        source: Box<TemplateError>,
    },
    /// Parts of the checkpoint do not fit each other.
    #[error("policy.checkpoint: {} does not fit together: {}", dir.display(), problems.join("; "))]
    Unfit {
        /// Where it is.
        dir: PathBuf,
        /// Everything that is wrong.
        problems: Vec<String>,
    },
    /// The checkpoint reads text only.
    #[error("policy.checkpoint: {} has no vision encoder, and a session shows screenshots; use one that has", dir.display())]
    NoVision {
        /// Where it is.
        dir: PathBuf,
    },
    /// The backend did not open.
    #[error("policy.engine: the backend did not open")]
    Backend(#[source] OpenError),
    /// There is no GPU to be used.
    #[error("policy.engine.backend: cuda cannot be used here")]
    Gpu(#[source] Box<GpuError>),
    /// The model does not run on the GPU.
    #[error("policy.engine: the model does not run on this GPU")]
    Cuda(#[source] Box<CudaError>),
    /// Sizes that do not fit each other.
    #[error("policy.engine: {0}")]
    Misfit(#[from] Misfit),
    /// An audit would take the only place there is, and so none would ever be made.
    #[error(
        "policy.audit.share: {share}; an audit needs a place beside a session's and there is one place in all: \
         raise policy.engine.state_slots or policy.engine.parked_bytes, or set it to 0"
    )]
    NoPlaceToAudit {
        /// The share that was asked for.
        share: f64,
    },
    /// Chats would take every place there is.
    #[error(
        "policy.serve.sessions_max: {wanted}; the engine has {places} places for sessions in all and one at least is for trajectories: \
         set aside fewer, or raise policy.engine.state_slots or policy.engine.parked_bytes"
    )]
    NoPlaceToServe {
        /// Places that chats should have.
        wanted: u32,
        /// Places in all.
        places: u32,
    },
    /// The template has no form for a chat.
    #[error(
        "policy.template.first_turn: {{instructions}} must stand first for policy.serve, with {{task}} and {{image}} behind it"
    )]
    NoChat,
    /// The grammar cannot be enforced.
    #[error("policy.constrain: {0}")]
    Constraint(#[from] ConstraintError),
    /// No thread was to be had.
    #[error("the engine's thread could not be started")]
    Thread(#[source] std::io::Error),
}

impl ModelError {
    /// Whether the machine lacks what the configuration asks of it: a GPU, its driver, its memory, kernels for this model. Other hardware or
    /// another configuration helps, another try does not.
    pub fn is_of_the_machine(&self) -> bool {
        match self {
            Self::Gpu(_) => true,
            Self::Cuda(why) => matches!(
                **why,
                CudaError::Unsupported { .. }
                    | CudaError::Full { .. }
                    | CudaError::HostFull { .. }
                    | CudaError::ParkingFull { .. }
                    | CudaError::TooLarge { .. }
            ),
            _ => false,
        }
    }
}

impl Model {
    /// Loads a checkpoint and starts its engine. Minutes for a large one: not for a thread that serves others.
    pub fn open(config: &ModelConfig, spec: &SessionSpec) -> Result<Self, ModelError> {
        let dir = || config.checkpoint.clone();
        let team = Team::new(config.threads);
        let refused = |why| ModelError::Checkpoint { dir: dir(), source: Box::new(why) };
        let checkpoint = Checkpoint::open(&config.checkpoint).map_err(refused)?;
        let vision = checkpoint.config().vision.clone().ok_or_else(|| ModelError::NoVision { dir: dir() })?;
        let (template, marks) = layout(config, checkpoint.config())?;
        let gpu = gpu(&config.backend)?;
        let named = checkpoint.hashes(&team);
        let embeddings = checkpoint.tensor("backbone.embeddings.weight").map_err(refused)?;
        let embedding_rows = embeddings.shape().first().copied().unwrap_or(0);
        let model = checkpoint.config().clone();
        let unfit = |problems| ModelError::Unfit { dir: dir(), problems };
        template.tokenizer().fits(&model, embedding_rows).map_err(unfit)?;
        let hashes = Hashes {
            weights: None,
            tokenizer: Some(hex(template.tokenizer().sha256())),
            template: Some(hex(template.sha256())),
            grammar: None,
            processor: Some(processor_sha256(&vision, config)),
        };
        let (vocabulary, version) = (model.text.vocabulary, PolicyVersion(0));
        let settings = settings(config, &model, (version, named.vision));
        let room = room(config, &settings, &vision, model.text.hidden);
        let backend = match (&config.backend, gpu) {
            (BackendChoice::Cuda(_, options), Some(gpu)) => on_a_gpu(&checkpoint, room, *options, gpu)?,
            _ => {
                let weights = Weights::of(&checkpoint, &team, &mut progress()).map_err(refused)?;
                let cpu = Cpu::open(weights, room, config.threads, config.compute);
                Box::new(cpu.map_err(ModelError::Backend)?)
            }
        };
        drop((checkpoint, team));
        let (bin, mut retired) = mpsc::channel(RETIRED_MAX);
        let engine = Engine::new(backend, settings)?.retiring_to(bin);
        let audit = Audit::of(config.audit_share);
        // An audit is a session, too, and must not take the place of one that was promised.
        let places = engine.places_max() - u32::from(audit.is_some());
        if places == 0 {
            return Err(ModelError::NoPlaceToAudit { share: config.audit_share });
        }
        let all = places;
        let Some(places) = all.checked_sub(config.chat_sessions).filter(|places| *places > 0) else {
            return Err(ModelError::NoPlaceToServe { wanted: config.chat_sessions, places: all });
        };
        if config.chat_sessions > 0 && !template.has_chat() {
            return Err(ModelError::NoChat);
        }
        let (events, mut receiver) = mpsc::channel(EVENTS_MAX);
        let (ending, ended) = watch::channel(None);
        let running = std::thread::Builder::new().name("furrow-engine".into());
        let running = running.spawn(move || {
            let engine = engine.run(&mut receiver);
            // Before the last event is refused: who asks then is told why.
            ending.send_replace(Some(Ended::of(engine.lost())));
            drop(receiver);
        });
        let engine = running.map_err(ModelError::Thread)?;
        let retiring = std::thread::Builder::new().name("furrow-retired".into());
        // Ends with the engine, which holds the other end.
        let retiring = retiring.spawn(move || while retired.blocking_recv().is_some() {});
        let retiring = retiring.map_err(ModelError::Thread)?;
        let shared = Shared {
            events,
            ended,
            sessions: AtomicU64::new(0),
            marks,
            among: without_placeholder(vocabulary, vision.image_token),
            vision,
            resample: config.resample,
            rules: config.constrain.clone(),
            constraints: Mutex::default(),
            schemas: Default::default(),
            vocabulary,
            embedding_rows,
            context_tokens_max: settings.context_tokens_max,
            replay: match &config.backend {
                BackendChoice::Cpu => Replay::AtOnce,
                // A row's last bits depend on what it ran with: what was drawn token by token is laid so again where that must not show.
                BackendChoice::Cuda(_, options) if options.deterministic => Replay::AsLived,
                BackendChoice::Cuda(..) => Replay::AtOnce,
            },
            on_swap: config.swaps.on_swap,
            audit,
            in_use: Mutex::new(InUse { version, weights_sha256: named.weights }),
            template,
        };
        let opened = Self {
            shared: Arc::new(shared),
            hashes,
            places,
            loader: Arc::new(Loader::of(config)),
            taking: tokio::sync::Mutex::default(),
            threads: Mutex::new(vec![engine, retiring]),
        };
        // A grammar that cannot be enforced is told now, not to the first session.
        opened.shared.constraint(&spec.grammar, spec.sampling.max_tokens)?;
        tracing::info!(checkpoint = %config.checkpoint.display(), places, "model loaded");
        Ok(opened)
    }
}

/// What a job's model takes of a GPU's memory and pins of this machine's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arena {
    /// By part.
    pub needs: furrow_cuda::needs::Needs,
    /// How large the backend's room is for sessions.
    pub room: Room,
    /// Sessions that are admitted at most: those that fit at `context_tokens_max`, on the device and parked.
    pub sessions_max: u32,
    /// Longest sequence of a session: the job's limit, or the model's where that is less.
    pub context_tokens_max: u32,
    /// Whether the weight files were at hand, and not only the configuration: then this is what will be asked for, to the byte.
    pub is_exact: bool,
}

impl Arena {
    /// Plans it; nothing is loaded, and no GPU is needed. `None` for a job that computes on the processor.
    ///
    /// # Errors
    /// When the checkpoint is refused or there are no kernels for it.
    pub fn of(config: &ModelConfig) -> Result<Option<Self>, ModelError> {
        let BackendChoice::Cuda(_, options) = &config.backend else { return Ok(None) };
        let dir = || config.checkpoint.clone();
        let refused = |why: CheckpointError| ModelError::Checkpoint { dir: dir(), source: Box::new(why) };
        let model = Config::read(&config.checkpoint).map_err(|why| refused(why.into()))?;
        let vision = model.vision.as_ref().ok_or_else(|| ModelError::NoVision { dir: dir() })?;
        let settings = settings(config, &model, (PolicyVersion(0), [0; 32]));
        let room = room(config, &settings, vision, model.text.hidden);
        let checkpoint = Checkpoint::open(&config.checkpoint).ok();
        let needs = match &checkpoint {
            Some(checkpoint) => cuda::needs_of(checkpoint, &room, options),
            None => cuda::needs(&model, &room, options),
        };
        let needs = needs.map_err(|why| ModelError::Cuda(Box::new(why)))?;
        let sessions_max = settings.sessions_max(room, |pages| needs.parked_bytes(pages))?;
        let context_tokens_max = settings.context_tokens_max;
        Ok(Some(Self { needs, room, sessions_max, context_tokens_max, is_exact: checkpoint.is_some() }))
    }
}

/// What a job's model takes of this machine's memory where it computes on the processor, by part; `None` where a GPU does.
///
/// # Errors
/// When the checkpoint's configuration is refused.
pub fn bytes_on_the_processor(config: &ModelConfig) -> Result<Option<Bytes>, ModelError> {
    if !matches!(config.backend, BackendChoice::Cpu) {
        return Ok(None);
    }
    let dir = || config.checkpoint.clone();
    let refused = |why: CheckpointError| ModelError::Checkpoint { dir: dir(), source: Box::new(why) };
    let model = Config::read(&config.checkpoint).map_err(|why| refused(why.into()))?;
    let vision = model.vision.as_ref().ok_or_else(|| ModelError::NoVision { dir: dir() })?;
    let settings = settings(config, &model, (PolicyVersion(0), [0; 32]));
    let value_bytes = match config.compute {
        Compute::Float32 => size_of::<f32>() as u64,
        Compute::Bfloat16 => 2,
    };
    let room = room(config, &settings, vision, model.text.hidden);
    Ok(Some(room.bytes(&model, model.parameters() * value_bytes)))
}

/// Tokenizer and template, with what the job puts over them.
fn layout(config: &ModelConfig, model: &Config) -> Result<(Template, crate::context::Marks), ModelError> {
    let dir = || config.checkpoint.clone();
    let tokenizer = Tokenizer::open(&config.checkpoint)
        .map_err(|why| ModelError::Tokenizer { dir: dir(), source: Box::new(why) })?;
    let file = TemplateFile::open(&config.checkpoint)
        .map_err(|why| ModelError::Template { dir: dir(), source: Box::new(why) })?;
    let unfit = |problems| ModelError::Unfit { dir: dir(), problems };
    let template =
        Template::check(&config.template.over(file), &Arc::new(tokenizer), model).map_err(unfit)?;
    let marks = prompt::marks(&template).ok_or_else(|| ModelError::NoVision { dir: dir() })?;
    Ok((template, marks))
}

fn settings(config: &ModelConfig, model: &Config, (version, vision): (PolicyVersion, [u8; 32])) -> Settings {
    let engine = &config.engine;
    let positions_max = u32::try_from(model.text.positions_max).unwrap_or(u32::MAX);
    Settings {
        state_slots: engine.state_slots,
        snapshot_slots: engine.snapshot_slots,
        chunk: engine.prefill_chunk,
        prefill_tokens: engine.prefill_tokens,
        context_tokens_max: engine.context_tokens_max.min(positions_max),
        version,
        swaps: Swaps { vision, ..config.swaps },
    }
}

/// Opens the GPU, where one is to compute, before anything large is read.
fn gpu(backend: &BackendChoice) -> Result<Option<Gpu>, ModelError> {
    match backend {
        BackendChoice::Cpu => Ok(None),
        BackendChoice::Cuda(places, _) => {
            Gpu::open(places).map(Some).map_err(|why| ModelError::Gpu(Box::new(why)))
        }
    }
}

fn on_a_gpu(
    checkpoint: &Checkpoint,
    room: Room,
    options: cuda::Options,
    gpu: Gpu,
) -> Result<Box<dyn Backend>, ModelError> {
    tracing::info!(gpu = gpu.device().name(), "opened");
    let device = cuda::open(checkpoint, room, options, Box::new(gpu), &mut progress());
    let device = device.map_err(|why| ModelError::Cuda(Box::new(why)))?;
    tracing::info!(plan = %device.plan(), "the model is on the GPU");
    Ok(device)
}

fn room(config: &ModelConfig, settings: &Settings, vision: &VisionConfig, hidden: usize) -> Room {
    let rows_per_tile = vision.rows_per_tile();
    let value_bytes = match config.backend {
        BackendChoice::Cpu => size_of::<f32>(),
        // Vision runs in bfloat16 there.
        BackendChoice::Cuda(..) => 2,
    };
    let tile_bytes = (rows_per_tile * hidden * value_bytes) as u64;
    // A span may begin and end inside tiles: those it covers and one more must be there at once.
    let span_tiles = settings.chunk.div_ceil(rows_per_tile as u32) + 1;
    let tiles = (config.engine.feature_bytes / tile_bytes.max(1)).min(u64::from(u32::MAX)) as u32;
    Room {
        slots: settings.state_slots + settings.snapshot_slots,
        pages: config.engine.kv_tokens.div_ceil(PAGE_TOKENS as u32),
        // Beside the prefill: a drawn token and a few forced ones of every session; a longer forced run waits its turn.
        rows_max: settings.prefill_tokens + 8 * settings.state_slots,
        logits_max: settings.state_slots,
        features: tiles.max(span_tiles),
        parked_bytes: config.engine.parked_bytes,
    }
}

/// All ids but the placeholder of images, where the model could draw it.
fn without_placeholder(vocabulary: usize, placeholder: u32) -> Option<Arc<Allowed>> {
    let drawable = (placeholder as usize) < vocabulary;
    drawable.then(|| {
        let mut allowed = Allowed::new(vocabulary);
        allowed.extend((0..vocabulary as u32).filter(|id| *id != placeholder));
        Arc::new(allowed)
    })
}

/// What decides which pixels the model sees of a screenshot.
fn processor_sha256(vision: &VisionConfig, config: &ModelConfig) -> String {
    let VisionConfig { tile, tiles_max, thumbnail, mean, std, .. } = vision;
    let said = json!({
        "tile": tile, "tiles_max": tiles_max, "thumbnail": thumbnail, "mean": mean, "std": std,
        "resample": config.engine.resample,
    });
    hex(&Sha256::digest(said.to_string()).into())
}

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Says every five seconds how far the loading is.
fn progress() -> impl FnMut(u64, u64) {
    let mut told = Instant::now();
    move |done, total| {
        if told.elapsed().as_secs() >= 5 {
            told = Instant::now();
            tracing::info!(done, total, "loading weights");
        }
    }
}
