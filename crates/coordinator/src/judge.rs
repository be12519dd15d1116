//! The job's `[score]` section, and the judge it configures: a vision model behind an
//! OpenAI-compatible endpoint. A problem of the section is a text that names the key, the value and
//! what is right: it is only printed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use furrow_openai::{ApiKey, CallLimits, ChatClient, ClientConfig, JudgeQuestion};
use furrow_tasks::{JudgeQuery, JudgeReply, JudgeSettings};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

/// A key is one line; a longer file is not a key file.
const KEY_FILE_BYTES_MAX: u64 = 4096;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScoreFile {
    /// The judge for tasks that are scored by one, such as those of WebVoyager
    /// ([TASKS.md](TASKS.md#a-judge)).
    pub judge: JudgeFile,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JudgeFile {
    /// Base URL of the API, which serves `/chat/completions` below it, such as
    /// `http://127.0.0.1:8000/v1`; empty: no judge.
    pub endpoint: String,
    /// Name of the model at the endpoint; it must accept images.
    pub model: String,
    /// Environment variable that holds the key; without it no key is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_env: Option<String>,
    /// File that holds the key in one line, instead of `key_env`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Number of last screenshots it receives, where a task does not say.
    pub screenshots: u32,
    /// Number of votes where a task does not say; more than half must agree.
    pub votes: u32,
    /// Whether the question contains the reference answer. The published protocol omits it.
    pub show_reference: bool,
    /// Its sampling temperature; 0 as in the published protocol.
    pub temperature: f64,
    /// Its seed; each further vote uses the next one.
    pub seed: u32,
    /// Most tokens of a reply. A yes that is cut does not count.
    pub max_tokens: u32,
    /// Longest reply in bytes; a longer one is not read to its end.
    pub reply_bytes_max: u64,
    /// Deadline of one call.
    pub call_millis: u64,
    /// Deadline of one scoring, all votes and attempts together.
    pub deadline_millis: u64,
    /// Attempts at one question before the scoring fails; `limits.score_attempts_max` scorings are
    /// tried.
    pub attempts_max: u32,
    /// Pause before the second attempt; it doubles with each further one.
    pub pause_millis: u64,
    /// Price of a million prompt tokens in US dollars; without it costs are not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_million_prompt_tokens: Option<f64>,
    /// Price of a million completion tokens in US dollars; without it costs are not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_million_completion_tokens: Option<f64>,
}

#[derive(Debug, Clone, Default)]
pub struct ScoreConfig {
    /// The judge, if the job names one.
    pub judge: Option<JudgeConfig>,
}

/// `[score.judge]`, checked; the key is not read yet.
#[derive(Debug, Clone)]
pub struct JudgeConfig {
    client: ClientConfig,
    key: KeySource,
    habits: JudgeSettings,
    seed: u32,
    deadline: Duration,
    prices: Option<TokenPrices>,
}

#[derive(Debug, Clone, PartialEq)]
enum KeySource {
    None,
    Environment(String),
    File(PathBuf),
}

/// Why the judge's key cannot be used. No variant contains the key.
#[derive(Debug, thiserror::Error)]
pub enum JudgeKeyError {
    #[error("score.judge.key_env: the environment has no key in {name:?}; export it, or name another")]
    NotInEnvironment { name: String },
    #[error("score.judge.key_file: {}: cannot be read: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("score.judge.key_file: {}: has {bytes} bytes; a key is one line", path.display())]
    TooLong { path: PathBuf, bytes: u64 },
    #[error("score.judge.key_file: {}: holds no key; put it there as one line", path.display())]
    Empty { path: PathBuf },
}

/// US dollars per token.
#[derive(Debug, Clone, Copy, PartialEq)]
struct TokenPrices {
    prompt: f64,
    completion: f64,
}

/// A client for the judge. Clones share one client.
#[derive(Debug, Clone)]
pub(crate) struct JudgeClient {
    client: ChatClient,
    habits: Arc<JudgeSettings>,
    seed: u32,
    deadline: Duration,
    prices: Option<TokenPrices>,
    stop: CancellationToken,
}

/// The judge during one scoring, which has a deadline.
#[derive(Debug)]
pub(crate) struct JudgeScoring<'a> {
    judge: &'a JudgeClient,
    deadline: Instant,
}

impl Default for JudgeFile {
    /// The settings of the original script: temperature 0, seed 42, 1000 tokens, the last
    /// screenshot.
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            model: String::new(),
            key_env: None,
            key_file: None,
            screenshots: 1,
            votes: 1,
            show_reference: false,
            temperature: 0.0,
            seed: 42,
            max_tokens: 1000,
            // 1000 tokens of at most a hundred bytes are 100 kB; the rest is for what servers add
            // around them.
            reply_bytes_max: 1 << 20,
            call_millis: 60_000,
            deadline_millis: 180_000,
            attempts_max: 4,
            pause_millis: 500,
            usd_per_million_prompt_tokens: None,
            usd_per_million_completion_tokens: None,
        }
    }
}

impl ScoreFile {
    /// Checks every value and reports every problem. A relative `key_file` is relative to `base`,
    /// the job file's folder.
    pub fn check(self, base: &Path) -> Result<ScoreConfig, Vec<String>> {
        let problems = self.judge.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let named = !self.judge.endpoint.is_empty();
        Ok(ScoreConfig { judge: if named { self.judge.config(base) } else { None } })
    }

    /// The same with every path absolute.
    pub fn resolved(mut self, base: &Path) -> Self {
        self.judge.key_file = self.judge.key_file.map(|path| base.join(path));
        self
    }
}

impl JudgeFile {
    fn problems(&self) -> Vec<String> {
        let hour = 3_600_000;
        let mut problems: Vec<String> = [
            range("screenshots", u64::from(self.screenshots), 1, 100),
            range("votes", u64::from(self.votes), 1, 99),
            range("max_tokens", u64::from(self.max_tokens), 1, 100_000),
            range("reply_bytes_max", self.reply_bytes_max, 1 << 10, 64 << 20),
            range("call_millis", self.call_millis, 1, hour),
            range("deadline_millis", self.deadline_millis, 1, hour),
            range("attempts_max", u64::from(self.attempts_max), 1, 100),
            range("pause_millis", self.pause_millis, 0, hour),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !(0.0..=2.0).contains(&self.temperature) {
            problems
                .push(format!("score.judge.temperature: {} is out of range; use 0 to 2", self.temperature));
        }
        if self.endpoint.is_empty() {
            if !self.model.is_empty() {
                problems.push("score.judge.endpoint: missing; set the base URL of the judge's API".into());
            }
        } else {
            problems.extend(self.address_problems());
        }
        if self.key_env.is_some() && self.key_file.is_some() {
            problems.push("score.judge.key_file: set together with key_env; give one of the two".into());
        }
        let prices = [
            ("usd_per_million_prompt_tokens", self.usd_per_million_prompt_tokens),
            ("usd_per_million_completion_tokens", self.usd_per_million_completion_tokens),
        ];
        for (key, price) in prices {
            if price.is_some_and(|price| !(0.0..=1e6).contains(&price)) {
                problems.push(format!("score.judge.{key}: is out of range; use 0 to 1000000"));
            }
        }
        if prices[0].1.is_some() != prices[1].1.is_some() {
            problems.push(format!(
                "score.judge.{}: missing; give both prices or none",
                prices.iter().find(|(_, price)| price.is_none()).map_or("", |(key, _)| key)
            ));
        }
        problems
    }

    fn address_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let right = "use an address such as http://127.0.0.1:8000/v1, without login and query";
        match url::Url::parse(&self.endpoint) {
            Ok(url)
                if matches!(url.scheme(), "http" | "https")
                    && url.username().is_empty()
                    && url.password().is_none()
                    && url.query().is_none()
                    && url.fragment().is_none() => {}
            // The value may contain a key, so the error does not show it.
            _ => problems.push(format!(
                "score.judge.endpoint: is not an http or https address that can be used; {right}"
            )),
        }
        if self.model.is_empty() {
            problems.push("score.judge.model: missing; set the model's name at its server".into());
        }
        problems
    }

    fn config(self, base: &Path) -> Option<JudgeConfig> {
        let key = match (self.key_env, self.key_file) {
            (Some(name), _) => KeySource::Environment(name),
            (None, Some(path)) => KeySource::File(base.join(path)),
            (None, None) => KeySource::None,
        };
        let prices = match (self.usd_per_million_prompt_tokens, self.usd_per_million_completion_tokens) {
            (Some(prompt), Some(completion)) => {
                Some(TokenPrices { prompt: prompt / 1e6, completion: completion / 1e6 })
            }
            _ => None,
        };
        Some(JudgeConfig {
            habits: JudgeSettings {
                model: self.model.clone(),
                screenshots: self.screenshots,
                votes: self.votes,
                show_reference: self.show_reference,
            },
            client: ClientConfig {
                endpoint: self.endpoint.parse().ok()?,
                key: None,
                model: self.model,
                temperature: self.temperature,
                max_tokens: self.max_tokens,
                call: Duration::from_millis(self.call_millis),
                reply_bytes_max: self.reply_bytes_max,
                attempts_max: self.attempts_max,
                pause: Duration::from_millis(self.pause_millis),
            },
            key,
            seed: self.seed,
            deadline: Duration::from_millis(self.deadline_millis),
            prices,
        })
    }
}

impl JudgeConfig {
    /// Reads the key, so that a job whose key is missing stops before it starts.
    pub fn with_key(mut self) -> Result<Self, JudgeKeyError> {
        self.client.key = match &self.key {
            KeySource::None => None,
            KeySource::Environment(name) => {
                let value = std::env::var(name).unwrap_or_default();
                let missing = || JudgeKeyError::NotInEnvironment { name: name.clone() };
                Some(ApiKey::new(&value).ok_or_else(missing)?)
            }
            KeySource::File(path) => Some(read_key(path)?),
        };
        Ok(self)
    }

    /// How it is called.
    pub fn habits(&self) -> &JudgeSettings {
        &self.habits
    }
}

fn read_key(path: &Path) -> Result<ApiKey, JudgeKeyError> {
    let unreadable = |error| JudgeKeyError::Unreadable { path: path.to_owned(), error };
    let bytes = path.metadata().map_err(unreadable)?.len();
    if bytes > KEY_FILE_BYTES_MAX {
        return Err(JudgeKeyError::TooLong { path: path.to_owned(), bytes });
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    ApiKey::new(&text).ok_or_else(|| JudgeKeyError::Empty { path: path.to_owned() })
}

impl JudgeClient {
    pub(crate) fn new(config: JudgeConfig, stop: CancellationToken) -> Self {
        let JudgeConfig { client, habits, seed, deadline, prices, .. } = config;
        Self { client: ChatClient::new(client), habits: Arc::new(habits), seed, deadline, prices, stop }
    }

    /// How it is called.
    pub(crate) fn habits(&self) -> &JudgeSettings {
        &self.habits
    }

    /// Longest time of one scoring.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    pub(crate) fn begin_scoring(&self) -> JudgeScoring<'_> {
        JudgeScoring { judge: self, deadline: Instant::now() + self.deadline }
    }
}

impl furrow_tasks::Judge for JudgeScoring<'_> {
    fn settings(&self) -> &JudgeSettings {
        &self.judge.habits
    }

    fn ask(&self, question: &JudgeQuery) -> Result<JudgeReply, String> {
        let JudgeClient { client, seed, prices, stop, .. } = self.judge;
        let request = JudgeQuestion {
            system: question.instructions.clone(),
            text: question.text.clone(),
            pictures: question.pictures.clone(),
            seed: i64::from(*seed) + i64::from(question.vote),
        };
        let until = CallLimits { deadline: self.deadline, stopped: &|| stop.is_cancelled() };
        let reply = client.ask(&request, until).map_err(|error| error.to_string())?;
        let cost = |prices: &TokenPrices| {
            prices.prompt * reply.prompt_tokens as f64 + prices.completion * reply.completion_tokens as f64
        };
        Ok(JudgeReply {
            text: reply.text,
            cut: reply.cut,
            prompt_tokens: reply.prompt_tokens,
            completion_tokens: reply.completion_tokens,
            cost_usd: prices.as_ref().map(cost),
        })
    }
}

fn range(key: &str, value: u64, from: u64, to: u64) -> Option<String> {
    (!(from..=to).contains(&value))
        .then(|| format!("score.judge.{key}: {value} is out of range; use {from} to {to}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named() -> JudgeFile {
        JudgeFile { endpoint: "http://127.0.0.1:8000/v1".into(), model: "m".into(), ..JudgeFile::default() }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut JudgeFile), want: &[&str]) {
        let mut judge = named();
        change(&mut judge);
        let problems = ScoreFile { judge }.check(Path::new("/jobs")).err().unwrap_or_default();
        let keys: Vec<_> = problems.iter().filter_map(|problem| problem.split(": ").next()).collect();
        assert_eq!(keys, want, "{problems:?}");
    }

    #[test]
    fn every_wrong_value_is_named_by_its_key() {
        check(|_| {}, &[]);
        check(|file| file.model = String::new(), &["score.judge.model"]);
        check(|file| file.endpoint = String::new(), &["score.judge.endpoint"]);
        for endpoint in ["x", "ftp://a/", "http://me:pw@a/v1", "http://a/v1?key=s", "https://"] {
            check(|file| file.endpoint = endpoint.into(), &["score.judge.endpoint"]);
        }
        check(|file| file.votes = 0, &["score.judge.votes"]);
        check(|file| file.temperature = f64::NAN, &["score.judge.temperature"]);
        check(
            |file| file.usd_per_million_prompt_tokens = Some(1.0),
            &["score.judge.usd_per_million_completion_tokens"],
        );
        check(
            |file| (file.key_env, file.key_file) = (Some("A".into()), Some("b".into())),
            &["score.judge.key_file"],
        );
        assert!(ScoreFile::default().check(Path::new("/")).unwrap().judge.is_none());
    }

    #[test]
    fn a_login_in_the_address_is_not_printed() {
        let judge = JudgeFile { endpoint: "http://me:hunter2@a/v1".into(), ..named() };
        let problems = ScoreFile { judge }.check(Path::new("/")).unwrap_err();
        assert!(!problems[0].contains("hunter2"), "{problems:?}");
    }

    #[test]
    fn the_key_comes_from_a_file_or_a_variable_and_is_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("key"), "sk-secret\n").unwrap();
        std::fs::write(folder.path().join("empty"), "\n").unwrap();
        std::fs::write(folder.path().join("long"), "x".repeat(5000)).unwrap();
        let with = |file: &str| {
            let judge = JudgeFile { key_file: Some(file.into()), ..named() };
            ScoreFile { judge }.check(folder.path()).unwrap().judge.unwrap().with_key()
        };
        let config = with("key").unwrap();
        assert_eq!(config.client.key, ApiKey::new("sk-secret"));
        assert!(!format!("{config:?}").contains("sk-secret"));
        for (file, why) in [("none", "cannot be read"), ("empty", "holds no key"), ("long", "has 5000 bytes")]
        {
            let error = with(file).unwrap_err().to_string();
            assert!(error.starts_with("score.judge.key_file: ") && error.contains(why), "{error}");
        }
        let judge = JudgeFile { key_env: Some("FURROW_TEST_NO_SUCH_KEY".into()), ..named() };
        let error = ScoreFile { judge }.check(folder.path()).unwrap().judge.unwrap().with_key().unwrap_err();
        assert!(error.to_string().contains("no key in \"FURROW_TEST_NO_SUCH_KEY\""), "{error}");
    }
}
