//! The job's `[policy]` section. A problem of a key is a text that names the key, the value and
//! what is right: all problems are printed together, and no caller tells one from another.

mod model;
mod remote;
mod serve;

use std::path::{Path, PathBuf};
use std::time::Duration;

use furrow_rollout::{
    ContextPolicy, ExtraAction, Grammar, PolicyKind, SamplingParams, SessionSpec, WeightRoots,
};
use serde::{Deserialize, Serialize};

use crate::grammar;
pub use remote::{RemoteConfig, RemoteFile, RemoteKeyError};
pub use serve::{ServeConfig, ServeFile};

pub use model::{AuditFile, BackendChoice, ConstrainFile, EngineFile, LayoutFile, ModelConfig, WeightsFile};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyFile {
    /// Which policy acts: `scripted` (demonstrations stored beside the pages), `random` (untrained
    /// baseline), `model` (a checkpoint) or `openai` (a model behind an endpoint).
    pub kind: String,
    /// Directory of the checkpoint that `model` runs: config.json, safetensors, tokenizer.json.
    pub checkpoint: PathBuf,
    /// Address on which the policy service listens when it runs as its own process; port 0 takes a
    /// free one.
    pub listen: String,
    /// `host:port` that environment workers connect to; empty: the address on which the service
    /// listens.
    pub advertise: String,
    /// Most sessions that a policy worker keeps at once; one more is refused. At least
    /// `env.sessions_max`, unless several policy workers share the sessions.
    pub sessions_max: u32,
    /// Least time of each reply in milliseconds, so that `scripted` and `random` can replace a
    /// model when a farm is sized. 0: none.
    pub think_millis: u64,
    /// Milliseconds for which a session is kept after its stream broke, so that a repeated step
    /// gets the same reply.
    pub linger_millis: u64,
    /// Instructions put before the task; empty: the grammar's own.
    pub instructions: String,
    /// The actions that a policy may ask for, and how it writes them ([GRAMMARS.md](GRAMMARS.md)).
    pub grammar: GrammarFile,
    /// How tokens are sampled. A trainer needs the whole distribution: temperature 1 and no cuts.
    pub sampling: SamplingFile,
    /// What a session keeps of earlier steps.
    pub context: ContextFile,
    /// What `model` runs on, and how much memory its sessions get ([engine.md](engine.md),
    /// [GPU.md](GPU.md)).
    pub engine: EngineFile,
    /// How the replies of `model` are constrained to the grammar.
    pub constrain: ConstrainFile,
    /// How `model` formats a prompt; an empty text keeps the checkpoint's own layout.
    pub template: LayoutFile,
    /// How published weights take effect ([WEIGHTS.md](WEIGHTS.md)).
    pub weights: WeightsFile,
    /// How many of the tokens that `model` samples are scored again.
    pub audit: AuditFile,
    /// The endpoint that `openai` calls ([REMOTE.md](REMOTE.md)).
    pub remote: RemoteFile,
    /// An endpoint beside the policy service, for chats with `model` ([SERVE.md](SERVE.md)).
    pub serve: ServeFile,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GrammarFile {
    /// `holo_navigation` or another grammar of docs/GRAMMARS.md.
    pub name: String,
    /// Actions beyond those of the grammar: `drag`, `select_tab`, `press_key`, `write` in a
    /// navigation grammar, `upload` in every grammar whose replies are JSON.
    pub extra: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingFile {
    /// Divides the logits before sampling: below 1 the likely tokens become likelier, 0 always
    /// takes the likeliest.
    pub temperature: f32,
    /// Samples among the likeliest tokens that together have this probability; 1 keeps all.
    pub top_p: f32,
    /// Samples among this many of the likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Leaves out tokens less likely than this share of the likeliest token; 0 keeps all.
    pub min_p: f32,
    /// Most tokens of one response. A response that is cut there may have no action.
    pub max_tokens: u32,
    /// Seed from which the random streams of all sessions are derived.
    pub seed: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContextFile {
    /// `append` (everything), `last_image` (all text, the newest screenshot), `window(k)` (all
    /// text, the last k screenshots) or `fresh` (one message with the task, the replies so far and
    /// the screenshot). `append` computes least for each step and needs most memory.
    pub keep: String,
}

/// The policies a job can choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyChoice {
    Scripted,
    Random,
    Model,
    /// A model behind an endpoint.
    Openai,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PolicyConfig {
    pub choice: PolicyChoice,
    /// Where the service listens.
    pub listen: String,
    /// Address that environment workers connect to; `None`: the one in `listen`.
    pub advertise: Option<String>,
    /// Most sessions held at once.
    pub sessions_max: u32,
    /// Least time of each reply.
    pub think: Duration,
    /// How long a session is kept after its stream broke.
    pub linger: Duration,
    /// The specification with which every session of the job opens.
    pub session: SessionSpec,
    /// Settings of `model`; set if the choice is `Model`.
    pub model: Option<ModelConfig>,
    /// Settings of `openai`; set if the choice is `Openai`.
    pub remote: Option<RemoteConfig>,
    /// Settings of the endpoint for chats, if there is one.
    pub serve: Option<ServeConfig>,
    /// Where published weights may lie, whatever the policy.
    pub weight_roots: WeightRoots,
}

impl Default for PolicyFile {
    fn default() -> Self {
        Self {
            kind: "scripted".into(),
            checkpoint: PathBuf::new(),
            listen: "127.0.0.1:0".into(),
            advertise: String::new(),
            sessions_max: 256,
            think_millis: 0,
            linger_millis: 120_000,
            instructions: String::new(),
            grammar: GrammarFile::default(),
            sampling: SamplingFile::default(),
            context: ContextFile::default(),
            engine: EngineFile::default(),
            constrain: ConstrainFile::default(),
            template: LayoutFile::default(),
            weights: WeightsFile::default(),
            audit: AuditFile::default(),
            remote: RemoteFile::default(),
            serve: ServeFile::default(),
        }
    }
}

impl Default for GrammarFile {
    fn default() -> Self {
        Self { name: grammar::HOLO_NAVIGATION.into(), extra: Vec::new() }
    }
}

impl Default for SamplingFile {
    fn default() -> Self {
        let SamplingParams { temperature, top_p, top_k, min_p, max_tokens, seed } = SamplingParams::default();
        Self { temperature, top_p, top_k, min_p, max_tokens, seed }
    }
}

impl Default for ContextFile {
    fn default() -> Self {
        Self { keep: ContextPolicy::Append.to_string() }
    }
}

impl PolicyFile {
    /// Makes every path absolute.
    pub fn resolved(mut self, base: &Path) -> Self {
        if !self.checkpoint.as_os_str().is_empty() {
            self.checkpoint = base.join(self.checkpoint);
        }
        self.weights.roots.iter_mut().for_each(|root| *root = base.join(&*root));
        self.serve = self.serve.resolved(base);
        self
    }

    /// Checks every key and reports all problems.
    pub fn check(self) -> Result<PolicyConfig, Vec<String>> {
        let mut wrong = Vec::new();
        let choice = note(PolicyChoice::parse(&self.kind), &mut wrong);
        if !(1..=10_000).contains(&self.sessions_max) {
            wrong.push(format!("policy.sessions_max: {}; use 1 to 10000", self.sessions_max));
        }
        if self.think_millis > 600_000 {
            wrong.push(format!("policy.think_millis: {}; use 0 to 600000", self.think_millis));
        }
        if self.linger_millis > 3_600_000 {
            wrong.push(format!("policy.linger_millis: {}; use 0 to 3600000", self.linger_millis));
        }
        let grammar = note_all(self.grammar.check(), &mut wrong);
        if let Some(grammar) = grammar.as_ref().filter(|grammar| grammar::frame(grammar).is_none())
            && self.constrain.enabled
        {
            wrong.push(format!(
                "policy.constrain.enabled: replies of {:?} have no single layout; use holo_navigation or holo_step, or set it to false",
                grammar.name
            ));
        }
        wrong.extend(self.constrain.check(self.sampling.max_tokens));
        let sampling = note_all(self.sampling.check(), &mut wrong);
        let context = note(context(&self.context.keep), &mut wrong);
        let checked = || {
            let engine = &self.engine;
            let constrain = &self.constrain;
            let template = &self.template;
            model::check(&self.checkpoint, engine, constrain, template, &self.weights, &self.audit)
        };
        let wants_model = choice == Some(PolicyChoice::Model);
        let model = if wants_model { note_all(checked(), &mut wrong) } else { None };
        let serve = note_all(self.serve.check(&self.kind, &self.checkpoint), &mut wrong).flatten();
        let chat_sessions = serve.as_ref().map_or(0, |serve| serve.sessions_max);
        let model = model.map(|model| ModelConfig { chat_sessions, ..model });
        let wants_remote = choice == Some(PolicyChoice::Openai);
        let remote = if wants_remote { note_all(self.remote.check(), &mut wrong) } else { None };
        let (Some(choice), Some(grammar), Some(sampling), Some(context)) =
            (choice, grammar, sampling, context)
        else {
            return Err(wrong);
        };
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let instructions =
            if self.instructions.is_empty() { grammar::instructions(&grammar) } else { self.instructions };
        Ok(PolicyConfig {
            choice,
            listen: self.listen,
            advertise: (!self.advertise.is_empty()).then_some(self.advertise),
            sessions_max: self.sessions_max,
            think: Duration::from_millis(self.think_millis),
            linger: Duration::from_millis(self.linger_millis),
            session: SessionSpec { grammar, sampling, context, instructions },
            model,
            remote,
            serve,
            weight_roots: self.weights.roots(),
        })
    }
}

impl PolicyConfig {
    /// Reads the key of a remote endpoint, if one is configured, so that a worker without the key
    /// stops before it serves.
    pub fn with_key(self) -> Result<Self, RemoteKeyError> {
        let remote = self.remote.map(RemoteConfig::with_key).transpose()?;
        Ok(Self { remote, ..self })
    }
}

impl PolicyChoice {
    /// The policy's kind in the records.
    pub fn kind(self) -> PolicyKind {
        match self {
            PolicyChoice::Scripted => PolicyKind::Scripted,
            PolicyChoice::Random => PolicyKind::Random,
            PolicyChoice::Model => PolicyKind::Model,
            PolicyChoice::Openai => PolicyKind::Openai,
        }
    }

    fn parse(name: &str) -> Result<Self, String> {
        match name {
            "scripted" => Ok(PolicyChoice::Scripted),
            "random" => Ok(PolicyChoice::Random),
            "model" => Ok(PolicyChoice::Model),
            "openai" => Ok(PolicyChoice::Openai),
            other => {
                Err(format!("policy.kind: {other:?}; use \"scripted\", \"random\", \"model\" or \"openai\""))
            }
        }
    }
}

impl GrammarFile {
    fn check(self) -> Result<Grammar, Vec<String>> {
        let mut wrong = Vec::new();
        let known = grammar::extra_actions(&self.name);
        if known.is_none() {
            let names: Vec<&str> = grammar::names().collect();
            wrong.push(format!("policy.grammar.name: {:?}; use one of {}", self.name, names.join(", ")));
        }
        if known.is_some_and(<[_]>::is_empty) && !self.extra.is_empty() {
            wrong.push(format!("policy.grammar.extra: {} has no extra actions; leave it empty", self.name));
        }
        let mut extra = Vec::new();
        for name in &self.extra {
            match ExtraAction::parse(name) {
                Some(action) if known.is_none_or(|known| known.is_empty() || known.contains(&action)) => {
                    extra.push(action);
                }
                _ => {
                    let known = known.filter(|known| !known.is_empty()).unwrap_or(&ExtraAction::ALL);
                    let names: Vec<_> = known.iter().map(|action| action.as_str()).collect();
                    wrong.push(format!("policy.grammar.extra: {name:?}; use some of {}", names.join(", ")));
                }
            }
        }
        extra.sort_unstable();
        extra.dedup();
        if wrong.is_empty() { Ok(Grammar { name: self.name, extra }) } else { Err(wrong) }
    }
}

impl SamplingFile {
    fn check(self) -> Result<SamplingParams, Vec<String>> {
        let rules = [
            ("temperature", self.temperature, 0.0..=100.0, "0 to 100 (0 is greedy)"),
            ("top_p", self.top_p, f32::MIN_POSITIVE..=1.0, "more than 0, at most 1 (1 keeps all)"),
            ("min_p", self.min_p, 0.0..=1.0, "0 to 1 (0 keeps all)"),
        ];
        let mut wrong: Vec<String> = rules
            .into_iter()
            .filter(|(_, value, range, _)| !range.contains(value))
            .map(|(key, value, _, right)| format!("policy.sampling.{key}: {value}; use {right}"))
            .collect();
        if !(1..=1_000_000).contains(&self.max_tokens) {
            wrong.push(format!("policy.sampling.max_tokens: {}; use 1 to 1000000", self.max_tokens));
        }
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let Self { temperature, top_p, top_k, min_p, max_tokens, seed } = self;
        Ok(SamplingParams { temperature, top_p, top_k, min_p, max_tokens, seed })
    }
}

fn context(keep: &str) -> Result<ContextPolicy, String> {
    ContextPolicy::parse(keep).ok_or_else(|| {
        format!("policy.context.keep: {keep:?}; use \"append\", \"last_image\", \"window(k)\" with k of at least 1, or \"fresh\"")
    })
}

fn note<T>(checked: Result<T, String>, wrong: &mut Vec<String>) -> Option<T> {
    note_all(checked.map_err(|message| vec![message]), wrong)
}

fn note_all<T>(checked: Result<T, Vec<String>>, wrong: &mut Vec<String>) -> Option<T> {
    match checked {
        Ok(value) => Some(value),
        Err(messages) => {
            wrong.extend(messages);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: impl FnOnce(&mut PolicyFile), want: &[&str]) {
        let mut file = PolicyFile::default();
        change(&mut file);
        let got = file.check().err().unwrap_or_default();
        let keys: Vec<&str> = got.iter().map(|message| message.split(':').next().unwrap()).collect();
        assert_eq!(keys, want, "{got:?}");
    }

    #[test]
    fn every_wrong_key_is_named_at_once() {
        check(|_| {}, &[]);
        check(|file| file.kind = "skripted".into(), &["policy.kind"]);
        check(|file| file.kind = "openai".into(), &["policy.remote.endpoint", "policy.remote.model"]);
        check(|file| file.sessions_max = 0, &["policy.sessions_max"]);
        check(|file| file.sampling.temperature = f32::NAN, &["policy.sampling.temperature"]);
        check(|file| file.sampling.top_p = 0.0, &["policy.sampling.top_p"]);
        check(|file| file.context.keep = "window(0)".into(), &["policy.context.keep"]);
        check(
            |file| {
                file.kind = String::new();
                file.grammar.extra = vec!["drag".into(), "fly".into()];
                file.sampling.max_tokens = 0;
            },
            &["policy.kind", "policy.grammar.extra", "policy.sampling.max_tokens"],
        );
        check(
            |file| {
                file.kind = "model".into();
                file.engine = EngineFile {
                    backend: "tpu".into(),
                    precision: "int4".into(),
                    compute: "float64".into(),
                    resample: "nearest".into(),
                    state_slots: 1,
                    prefill_tokens: 100,
                    kv_tokens: 1000,
                    ..EngineFile::default()
                };
                file.weights =
                    WeightsFile { on_swap: "drop".into(), bring_bytes: 0, ..WeightsFile::default() };
            },
            &[
                "policy.engine.state_slots",
                "policy.engine.prefill_tokens",
                "policy.engine.kv_tokens",
                "policy.weights.on_swap",
                "policy.weights.bring_bytes",
                "policy.checkpoint",
                "policy.engine.precision",
                "policy.engine.backend",
                "policy.engine.compute",
                "policy.engine.resample",
            ],
        );
        check(|file| file.engine.state_slots = 0, &[]);
        let exact = |enabled, exact_tokens, endings| {
            move |file: &mut PolicyFile| {
                file.sampling.max_tokens = 200;
                file.constrain = ConstrainFile { enabled, exact_tokens, endings, ..ConstrainFile::default() };
            }
        };
        check(exact(true, 200, false), &[]);
        check(exact(true, 201, true), &["policy.constrain.exact_tokens"]);
        check(exact(false, 150, true), &["policy.constrain.exact_tokens"]);
        check(exact(false, 0, false), &["policy.constrain.endings"]);
        check(
            |file| {
                exact(true, 150, false)(file);
                file.grammar.name = "ui_tars".into();
            },
            &["policy.constrain.enabled"],
        );
        check(
            |file| {
                file.kind = "model".into();
                file.engine.backend = "cuda".into();
                file.weights.on_swap = "finish_on_old".into();
            },
            &["policy.weights.on_swap", "policy.checkpoint"],
        );
    }
}
