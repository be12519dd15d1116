//! Everything that opening a model would refuse about its checkpoint, found without reading
//! weights, without a backend and without a thread.

use furrow_model::checkpoint::{Checkpoint, chain, inspect};
use furrow_model::config::Config;
use furrow_model::template::ChatTemplate;
use furrow_rollout::SessionSpec;

use super::ModelPolicy;
use super::open::{ModelError, layout};
use crate::config::ModelConfig;
use crate::constrain::{Constraint, TokenLexicon};

impl ModelPolicy {
    /// Checks a checkpoint: configuration, headers and index of the weights against each other,
    /// tokenizer, template, and the constraint of replies. Returns every problem; takes a second
    /// for a large tokenizer.
    pub fn check(config: &ModelConfig, spec: &SessionSpec) -> Vec<String> {
        let dir = config.checkpoint.display();
        let headers = inspect(&config.checkpoint).problems;
        let mut problems: Vec<String> =
            headers.into_iter().map(|problem| format!("policy.checkpoint: {dir}: {problem}")).collect();
        // Without the configuration nothing else can be compared; its problem is among the others.
        let Ok(model) = Config::read(&config.checkpoint) else { return problems };
        if model.vision.is_none() {
            problems.push(chain(&ModelError::NoVision { dir: config.checkpoint.clone() }));
            return problems;
        }
        match layout(config, &model) {
            Ok((template, _)) => problems.extend(template_problems(config, spec, &model, &template)),
            Err(error) => problems.push(chain(&error)),
        }
        problems
    }
}

fn template_problems(
    config: &ModelConfig,
    spec: &SessionSpec,
    model: &Config,
    template: &ChatTemplate,
) -> Vec<String> {
    let mut problems = Vec::new();
    let rows = Checkpoint::open(&config.checkpoint).ok().and_then(|checkpoint| {
        let embeddings = checkpoint.tensor("backbone.embeddings.weight").ok()?;
        embeddings.shape().first().copied()
    });
    // Without readable headers there is no number of rows, and the headers are a problem already.
    if let Some(Err(unfit)) = rows.map(|rows| template.tokenizer().fits(model, rows)) {
        problems.push(chain(&ModelError::Unfit { dir: config.checkpoint.clone(), problems: unfit }));
    }
    if config.chat_sessions > 0 && !template.has_chat() {
        problems.push(chain(&ModelError::NoChat));
    }
    if let Some(rules) = &config.constrain {
        let lexicon = TokenLexicon::of(template.tokenizer(), model.text.vocabulary, template.stop());
        let compiled = Constraint::compile(&spec.grammar, &lexicon, rules, spec.sampling.max_tokens);
        problems.extend(compiled.err().map(|why| chain(&ModelError::Constraint(why))));
    }
    problems
}
