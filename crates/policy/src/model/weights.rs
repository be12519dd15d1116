//! Verifies and loads published weights beside the running engine.

use std::path::{Path, PathBuf};

use furrow_cuda::backend::StagingMode;
use furrow_model::backend::IncomingWeights;
use furrow_model::checkpoint::{Checkpoint, CheckpointError, UpdateError, WeightHashes};
use furrow_model::cpu::PreparedWeights;
use furrow_model::kernels::ThreadPool;
use furrow_model::tokenizer::{Tokenizer, TokenizerError};
use furrow_model::weights::ModelWeights;
use furrow_rollout::{WeightRoots, WeightsForm, WeightsLink, WeightsOrder};

use crate::config::{BackendChoice, ModelConfig};
use crate::device_faults::delay;

/// Loads the weights that an order names.
pub(super) struct WeightUpdateLoader {
    checkpoint: PathBuf,
    roots: WeightRoots,
    /// The device that the engine runs on.
    target: LoadTarget,
    threads: usize,
}

enum LoadTarget {
    Cpu,
    /// A GPU, and where it stages a second set.
    Gpu {
        stage: StagingMode,
    },
}

/// Weights whose shapes, types and values were checked.
pub(super) struct LoadedWeights {
    pub hashes: WeightHashes,
    pub incoming: IncomingWeights,
}

/// Why the weights of an order cannot be used. The texts name file, tensor and value.
#[derive(Debug, thiserror::Error)]
pub(super) enum WeightLoadError {
    /// A checkpoint is invalid, or a value is not finite.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A delta or an adapter does not fit the weights that it applies to.
    #[error(transparent)]
    Update(#[from] UpdateError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error("the tokenizer of {} differs from the job's; start another job for these weights", dir.display())]
    OtherTokenizer { dir: PathBuf },
    #[error("{why}")]
    Outside { why: String },
    #[error("{} cannot be opened", dir.display())]
    NotFound { dir: PathBuf, source: std::io::Error },
    #[error(
        "the weights of version {version} hash to {found}, not to {expected}: their files changed after \
         publication; publish them again"
    )]
    OtherHash { version: i32, found: String, expected: String },
    #[error(
        "the GPU has no memory reserved for a second set of weights; start it with policy.weights.stage = \
         \"device\" or \"host\""
    )]
    NoStage,
}

/// While weights load, one in this many CPU threads of the backend loads them.
const THREADS_SHARE: usize = 4;

impl WeightUpdateLoader {
    pub(super) fn of(config: &ModelConfig) -> Self {
        let target = match &config.backend {
            BackendChoice::Cpu => LoadTarget::Cpu,
            BackendChoice::Cuda(_, options) => LoadTarget::Gpu { stage: options.stage },
        };
        let threads = (config.threads / THREADS_SHARE).max(1);
        Self { checkpoint: config.checkpoint.clone(), roots: config.weight_roots.clone(), target, threads }
    }

    /// Opens the weights that the order names, merges them and checks every value. Blocks until
    /// everything is read.
    pub(super) fn load(&self, order: &WeightsOrder) -> Result<LoadedWeights, WeightLoadError> {
        delay("weights.load");
        let team = ThreadPool::new(self.threads);
        let checkpoint = self.open(&order.links, &team)?;
        let hashes = checkpoint.hashes(&team);
        checkpoint.check_uncut()?;
        if let Some(expected) = &order.weights_sha256
            && !expected.eq_ignore_ascii_case(&hashes.weights)
        {
            return Err(WeightLoadError::OtherHash {
                version: order.version.0,
                found: hashes.weights,
                expected: expected.clone(),
            });
        }
        let incoming: IncomingWeights = match self.target {
            LoadTarget::Cpu => {
                let weights = ModelWeights::of(&checkpoint, &team, &mut |_, _| ())?;
                Box::new(PreparedWeights::new(weights))
            }
            LoadTarget::Gpu { stage: StagingMode::Device | StagingMode::Host } => Box::new(checkpoint),
            LoadTarget::Gpu { stage: StagingMode::None } => return Err(WeightLoadError::NoStage),
        };
        Ok(LoadedWeights { hashes, incoming })
    }

    fn open(&self, links: &[WeightsLink], team: &ThreadPool) -> Result<Checkpoint, WeightLoadError> {
        links.iter().try_for_each(|link| self.check_root(Path::new(&link.directory)))?;
        // The last full set overwrites everything before it.
        let first = links.iter().rposition(|link| link.form == WeightsForm::Full);
        let (base, rest) = match first {
            Some(first) => (Path::new(&links[first].directory), &links[first + 1..]),
            None => (self.checkpoint.as_path(), links),
        };
        self.check_tokenizer(base)?;
        let mut checkpoint = Checkpoint::open(base)?;
        for WeightsLink { form, directory } in rest {
            let directory = Path::new(directory);
            checkpoint = match form {
                WeightsForm::Adapter => checkpoint.with_adapter(directory, team)?,
                _ => checkpoint.with_delta(directory, team)?,
            };
        }
        Ok(checkpoint)
    }

    /// A publication may name a link that leads elsewhere.
    fn check_root(&self, dir: &Path) -> Result<(), WeightLoadError> {
        if self.roots == WeightRoots::default() {
            return Ok(());
        }
        let resolved = dir.canonicalize();
        let resolved =
            resolved.map_err(|source| WeightLoadError::NotFound { dir: dir.to_owned(), source })?;
        self.roots.refusal(&resolved).map_or(Ok(()), |why| Err(WeightLoadError::Outside { why }))
    }

    /// A checkpoint may lack a tokenizer. With a different one it is a different model.
    fn check_tokenizer(&self, dir: &Path) -> Result<(), WeightLoadError> {
        if dir == self.checkpoint || !dir.join("tokenizer.json").exists() {
            return Ok(());
        }
        let [own, new] = [self.checkpoint.as_path(), dir].map(Tokenizer::open);
        if own?.sha256() == new?.sha256() {
            return Ok(());
        }
        Err(WeightLoadError::OtherTokenizer { dir: dir.to_owned() })
    }
}

/// An error with its causes on one line.
pub(super) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
