//! Published weights are verified and loaded beside the running engine.

use std::path::{Path, PathBuf};

use furrow_cuda::backend::Stage;
use furrow_model::backend::Incoming;
use furrow_model::checkpoint::{Checkpoint, WeightHashes};
use furrow_model::cpu::Ready;
use furrow_model::kernels::Team;
use furrow_model::tokenizer::Tokenizer;
use furrow_model::weights::Weights;
use furrow_rollout::{WeightsForm, WeightsLink, WeightsOrder};

use crate::config::{BackendChoice, ModelConfig};

/// Makes what an order asks for.
pub(super) struct Loader {
    checkpoint: PathBuf,
    /// What the engine runs on.
    target: Target,
    threads: usize,
}

enum Target {
    Cpu,
    /// A GPU, and where it has room for a second set.
    Gpu {
        stage: Stage,
    },
}

/// Weights, verified: every shape, type and value fits.
pub(super) struct Loaded {
    pub hashes: WeightHashes,
    pub incoming: Incoming,
}

/// Of the processors that decode, one in so many loads weights meanwhile.
const THREADS_SHARE: usize = 4;

impl Loader {
    pub fn of(config: &ModelConfig) -> Self {
        let target = match &config.backend {
            BackendChoice::Cpu => Target::Cpu,
            BackendChoice::Cuda(_, options) => Target::Gpu { stage: options.stage },
        };
        let threads = (config.threads / THREADS_SHARE).max(1);
        Self { checkpoint: config.checkpoint.clone(), target, threads }
    }

    /// Opens and lays over each other what the order names, and looks at every value. Takes as long as it takes to read it all.
    ///
    /// # Errors
    /// A sentence that names file, tensor and value, whatever is wrong.
    pub fn load(&self, order: &WeightsOrder) -> Result<Loaded, String> {
        let team = Team::new(self.threads);
        let checkpoint = self.open(&order.links, &team)?;
        let hashes = checkpoint.hashes(&team);
        if let Some(want) = &order.weights_sha256
            && !want.eq_ignore_ascii_case(&hashes.weights)
        {
            return Err(format!(
                "the weights of version {} hash to {}, not to {want}: their files were changed after they were published",
                order.version.0, hashes.weights
            ));
        }
        let incoming: Incoming = match self.target {
            Target::Cpu => {
                let weights = Weights::of(&checkpoint, &team, &mut |_, _| ()).map_err(told)?;
                Box::new(Ready::new(weights))
            }
            Target::Gpu { stage: Stage::Device | Stage::Host } => Box::new(checkpoint),
            Target::Gpu { stage: Stage::None } => {
                return Err("the GPU keeps no room for a second set of weights; start it with policy.weights.stage = \"device\" or \"host\"".into());
            }
        };
        Ok(Loaded { hashes, incoming })
    }

    fn open(&self, links: &[WeightsLink], team: &Team) -> Result<Checkpoint, String> {
        // What comes before the last whole one is written over by it.
        let first = links.iter().rposition(|link| link.form == WeightsForm::Full);
        let (base, rest) = match first {
            Some(first) => (Path::new(&links[first].directory), &links[first + 1..]),
            None => (self.checkpoint.as_path(), links),
        };
        self.check_tokenizer(base)?;
        let mut checkpoint = Checkpoint::open(base).map_err(told)?;
        for WeightsLink { form, directory } in rest {
            let directory = Path::new(directory);
            checkpoint = match form {
                WeightsForm::Adapter => checkpoint.with_adapter(directory, team).map_err(told)?,
                _ => checkpoint.with_delta(directory, team).map_err(told)?,
            };
        }
        Ok(checkpoint)
    }

    /// A checkpoint may come without its tokenizer; with another one it is another model.
    fn check_tokenizer(&self, dir: &Path) -> Result<(), String> {
        if dir == self.checkpoint || !dir.join("tokenizer.json").exists() {
            return Ok(());
        }
        let [own, new] = [self.checkpoint.as_path(), dir].map(|dir| Tokenizer::open(dir).map_err(told));
        if own?.sha256() == new?.sha256() {
            return Ok(());
        }
        Err(format!("{} has another tokenizer than the job; start a job of its own for it", dir.display()))
    }
}

/// An error with its causes on one line.
fn told(error: impl std::error::Error) -> String {
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
