//! Verifies and loads published weights beside the running engine.

use std::path::{Path, PathBuf};

use furrow_cuda::backend::StagingMode;
use furrow_model::backend::IncomingWeights;
use furrow_model::checkpoint::{Checkpoint, WeightHashes};
use furrow_model::cpu::PreparedWeights;
use furrow_model::kernels::ThreadPool;
use furrow_model::tokenizer::Tokenizer;
use furrow_model::weights::ModelWeights;
use furrow_rollout::{WeightsForm, WeightsLink, WeightsOrder};

use crate::config::{BackendChoice, ModelConfig};

/// Loads the weights that an order names.
pub(super) struct WeightUpdateLoader {
    checkpoint: PathBuf,
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

/// While weights load, one in this many CPU threads of the backend loads them.
const THREADS_SHARE: usize = 4;

impl WeightUpdateLoader {
    pub fn of(config: &ModelConfig) -> Self {
        let target = match &config.backend {
            BackendChoice::Cpu => LoadTarget::Cpu,
            BackendChoice::Cuda(_, options) => LoadTarget::Gpu { stage: options.stage },
        };
        let threads = (config.threads / THREADS_SHARE).max(1);
        Self { checkpoint: config.checkpoint.clone(), target, threads }
    }

    /// Opens the weights that the order names, merges them and checks every value. Blocks until
    /// everything is read.
    ///
    /// # Errors
    /// A sentence that names file, tensor and value.
    pub fn load(&self, order: &WeightsOrder) -> Result<LoadedWeights, String> {
        let team = ThreadPool::new(self.threads);
        let checkpoint = self.open(&order.links, &team)?;
        let hashes = checkpoint.hashes(&team);
        if let Some(want) = &order.weights_sha256
            && !want.eq_ignore_ascii_case(&hashes.weights)
        {
            return Err(format!(
                "the weights of version {} hash to {}, not to {want}: their files changed after publication; publish them again",
                order.version.0, hashes.weights
            ));
        }
        let incoming: IncomingWeights = match self.target {
            LoadTarget::Cpu => {
                let weights = ModelWeights::of(&checkpoint, &team, &mut |_, _| ()).map_err(error_chain)?;
                Box::new(PreparedWeights::new(weights))
            }
            LoadTarget::Gpu { stage: StagingMode::Device | StagingMode::Host } => Box::new(checkpoint),
            LoadTarget::Gpu { stage: StagingMode::None } => {
                return Err("the GPU has no memory reserved for a second set of weights; start it with policy.weights.stage = \"device\" or \"host\"".into());
            }
        };
        Ok(LoadedWeights { hashes, incoming })
    }

    fn open(&self, links: &[WeightsLink], team: &ThreadPool) -> Result<Checkpoint, String> {
        // The last full set overwrites everything before it.
        let first = links.iter().rposition(|link| link.form == WeightsForm::Full);
        let (base, rest) = match first {
            Some(first) => (Path::new(&links[first].directory), &links[first + 1..]),
            None => (self.checkpoint.as_path(), links),
        };
        self.check_tokenizer(base)?;
        let mut checkpoint = Checkpoint::open(base).map_err(error_chain)?;
        for WeightsLink { form, directory } in rest {
            let directory = Path::new(directory);
            checkpoint = match form {
                WeightsForm::Adapter => checkpoint.with_adapter(directory, team).map_err(error_chain)?,
                _ => checkpoint.with_delta(directory, team).map_err(error_chain)?,
            };
        }
        Ok(checkpoint)
    }

    /// A checkpoint may lack a tokenizer. With a different one it is a different model.
    fn check_tokenizer(&self, dir: &Path) -> Result<(), String> {
        if dir == self.checkpoint || !dir.join("tokenizer.json").exists() {
            return Ok(());
        }
        let [own, new] =
            [self.checkpoint.as_path(), dir].map(|dir| Tokenizer::open(dir).map_err(error_chain));
        if own?.sha256() == new?.sha256() {
            return Ok(());
        }
        Err(format!(
            "the tokenizer of {} differs from the job's; start another job for these weights",
            dir.display()
        ))
    }
}

/// An error with its causes on one line.
fn error_chain(error: impl std::error::Error) -> String {
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
