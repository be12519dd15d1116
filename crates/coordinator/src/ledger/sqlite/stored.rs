//! What columns hold as JSON: scores and the hashes of policies.

use furrow_rollout::{PolicyHashes, Score};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub(super) struct StoredScore {
    pub components: Vec<(String, f32)>,
    pub scorer: String,
    pub version: u32,
    pub rationale: String,
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredHashes {
    weights: Option<String>,
    tokenizer: Option<String>,
    template: Option<String>,
    grammar: Option<String>,
    processor: Option<String>,
}

impl From<&Score> for StoredScore {
    fn from(score: &Score) -> Self {
        Self {
            components: score.components.iter().map(|part| (part.name.clone(), part.value)).collect(),
            scorer: score.scorer.clone(),
            version: score.version,
            rationale: score.rationale.clone(),
        }
    }
}

impl From<&PolicyHashes> for StoredHashes {
    fn from(hashes: &PolicyHashes) -> Self {
        let PolicyHashes { weights, tokenizer, template, grammar, processor } = hashes.clone();
        Self { weights, tokenizer, template, grammar, processor }
    }
}

impl From<StoredHashes> for PolicyHashes {
    fn from(stored: StoredHashes) -> Self {
        let StoredHashes { weights, tokenizer, template, grammar, processor } = stored;
        Self { weights, tokenizer, template, grammar, processor }
    }
}
