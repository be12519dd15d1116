//! `[policy.remote]`: the endpoint that the `openai` policy calls, with its deadlines and retries.
//! Problems of the section are texts, as in all of `[policy]`.

use std::time::Duration;

use furrow_openai::{ApiKey, ClientConfig};
use serde::{Deserialize, Serialize};
use url::Url;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RemoteFile {
    /// Base address of `/chat/completions`, such as `http://127.0.0.1:8000/v1`.
    pub endpoint: String,
    /// The model's name at the endpoint; it must accept images.
    pub model: String,
    /// Environment variable with the API key, sent as a bearer token; absent: no key is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_env: Option<String>,
    /// Most calls at once over all sessions of a policy worker; others wait.
    pub calls_max: u32,
    /// Deadline of one call, in milliseconds.
    pub call_millis: u64,
    /// Deadline of one reply in milliseconds, which includes the wait for a free call and all
    /// attempts.
    pub deadline_millis: u64,
    /// Most attempts at one reply; after the last the trajectory ends as `policy_fault`.
    pub attempts_max: u32,
    /// Milliseconds before the second attempt. The pause doubles with each further one, up to 30 s.
    pub pause_millis: u64,
    /// Most bytes of the server's answer; a longer one is not read to its end.
    pub reply_bytes_max: u64,
    /// Whether to request log-probs, which a trainer needs; many servers refuse them.
    pub logprobs: bool,
    /// Whether to request token ids with vLLM's parameters; OpenAI's own servers refuse them.
    pub token_ids: bool,
    /// Id of an image's placeholders in the prompts that the server returns; without it no token
    /// ids are recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_token_id: Option<u32>,
    /// US dollars for a million prompt tokens; absent: costs are not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_million_prompt_tokens: Option<f64>,
    /// US dollars for a million tokens of replies; absent: costs are not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_million_completion_tokens: Option<f64>,
}

/// `[policy.remote]`, checked, before the key is read.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteConfig {
    pub(crate) client: ClientConfig,
    key_env: Option<String>,
    pub(crate) calls_max: u32,
    pub(crate) deadline: Duration,
    pub(crate) logprobs: bool,
    pub(crate) token_ids: bool,
    pub(crate) image_token_id: Option<u32>,
    pub(crate) prices: Option<RemotePrices>,
}

/// US dollars for each token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RemotePrices {
    pub prompt: f64,
    pub completion: f64,
}

/// The variable with the key holds none. The text does not contain its value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "policy.remote.key_env: the environment variable {name:?} is not set to a usable key; export it, or name \
     another variable"
)]
pub struct RemoteKeyError {
    /// Name of the environment variable.
    pub name: String,
}

impl Default for RemoteFile {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            model: String::new(),
            key_env: None,
            calls_max: 16,
            // Below env.policy_millis, 120,000: the environment worker does not wait longer than
            // that for a reply.
            call_millis: 100_000,
            deadline_millis: 110_000,
            attempts_max: 6,
            pause_millis: 500,
            // Prompt ids of 100,000 tokens are 700 kB of text, log-probs of a reply of 1,000 tokens
            // 200 kB.
            reply_bytes_max: 8 << 20,
            logprobs: false,
            token_ids: false,
            image_token_id: None,
            usd_per_million_prompt_tokens: None,
            usd_per_million_completion_tokens: None,
        }
    }
}

impl RemoteFile {
    /// Checks every value and reports all problems.
    pub(super) fn check(self) -> Result<RemoteConfig, Vec<String>> {
        let hour = 3_600_000;
        let mut wrong: Vec<String> = [
            // Each call waits on a blocking thread, of which tokio has 512.
            range("calls_max", u64::from(self.calls_max), 1, 256),
            range("call_millis", self.call_millis, 1, hour),
            range("deadline_millis", self.deadline_millis, 1, hour),
            range("attempts_max", u64::from(self.attempts_max), 1, 100),
            range("pause_millis", self.pause_millis, 0, hour),
            range("reply_bytes_max", self.reply_bytes_max, 1 << 10, 64 << 20),
        ]
        .into_iter()
        .flatten()
        .collect();
        let endpoint = endpoint(&self.endpoint);
        if let Err(why) = &endpoint {
            wrong.push(why.clone());
        }
        if self.model.is_empty() {
            wrong.push(
                "policy.remote.model: missing; give the name that the server uses for the model".into(),
            );
        }
        let prices = prices(&self, &mut wrong);
        match endpoint {
            Ok(endpoint) if wrong.is_empty() => Ok(RemoteConfig {
                client: ClientConfig {
                    endpoint,
                    key: None,
                    model: self.model,
                    // Each conversation sets its own.
                    temperature: 0.0,
                    max_tokens: 0,
                    call: Duration::from_millis(self.call_millis),
                    reply_bytes_max: self.reply_bytes_max,
                    attempts_max: self.attempts_max,
                    pause: Duration::from_millis(self.pause_millis),
                },
                key_env: self.key_env,
                calls_max: self.calls_max,
                deadline: Duration::from_millis(self.deadline_millis),
                logprobs: self.logprobs,
                token_ids: self.token_ids,
                image_token_id: self.image_token_id,
                prices,
            }),
            _ => Err(wrong),
        }
    }
}

impl RemoteConfig {
    /// How long one reply may take: its wait for a free call and all attempts.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Reads the key, so that a worker without it stops before it serves.
    pub fn with_key(mut self) -> Result<Self, RemoteKeyError> {
        let Some(name) = &self.key_env else { return Ok(self) };
        let key = ApiKey::new(&std::env::var(name).unwrap_or_default());
        self.client.key = Some(key.ok_or_else(|| RemoteKeyError { name: name.clone() })?);
        Ok(self)
    }
}

fn endpoint(text: &str) -> Result<Url, String> {
    let right = "use an address such as http://127.0.0.1:8000/v1, without user name, password and query";
    if text.is_empty() {
        return Err(format!("policy.remote.endpoint: missing; {right}"));
    }
    let is_plain = |url: &Url| {
        matches!(url.scheme(), "http" | "https")
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
    };
    // The text may contain a key, so the error does not show it.
    Url::parse(text).ok().filter(is_plain).ok_or_else(|| {
        format!("policy.remote.endpoint: not an http or https address that can be used; {right}")
    })
}

fn prices(file: &RemoteFile, wrong: &mut Vec<String>) -> Option<RemotePrices> {
    let prices = [
        ("usd_per_million_prompt_tokens", file.usd_per_million_prompt_tokens),
        ("usd_per_million_completion_tokens", file.usd_per_million_completion_tokens),
    ];
    for (key, price) in prices {
        if price.is_some_and(|price| !(0.0..=1e6).contains(&price)) {
            wrong.push(format!("policy.remote.{key}: out of range; use 0 to 1000000"));
        }
    }
    match prices {
        [(_, Some(prompt)), (_, Some(completion))] => {
            Some(RemotePrices { prompt: prompt / 1e6, completion: completion / 1e6 })
        }
        [(_, None), (_, None)] => None,
        [(key, price), (other, _)] => {
            let missing = if price.is_none() { key } else { other };
            wrong.push(format!("policy.remote.{missing}: missing; set both prices or neither"));
            None
        }
    }
}

fn range(key: &str, value: u64, from: u64, to: u64) -> Option<String> {
    (!(from..=to).contains(&value)).then(|| format!("policy.remote.{key}: {value}; use {from} to {to}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: impl FnOnce(&mut RemoteFile), want: &[&str]) {
        let mut file = RemoteFile {
            endpoint: "http://127.0.0.1:8000/v1".into(),
            model: "m".into(),
            ..RemoteFile::default()
        };
        change(&mut file);
        let got = file.check().err().unwrap_or_default();
        let keys: Vec<&str> = got
            .iter()
            .map(|message| message.split(':').next().unwrap().strip_prefix("policy.remote.").unwrap())
            .collect();
        assert_eq!(keys, want, "{got:?}");
        assert!(got.iter().all(|message| !message.contains("secret")), "{got:?}");
    }

    #[test]
    fn every_wrong_key_is_named_at_once_and_no_secret_is_shown() {
        check(|_| {}, &[]);
        check(|file| file.endpoint.clear(), &["endpoint"]);
        check(|file| file.endpoint = "https://me:secret@a.test/v1".into(), &["endpoint"]);
        check(|file| file.endpoint = "https://a.test/v1?key=secret".into(), &["endpoint"]);
        check(|file| file.endpoint = "ftp://a.test".into(), &["endpoint"]);
        check(|file| file.model.clear(), &["model"]);
        check(|file| file.usd_per_million_prompt_tokens = Some(1.0), &["usd_per_million_completion_tokens"]);
        check(|file| file.usd_per_million_completion_tokens = Some(1.0), &["usd_per_million_prompt_tokens"]);
        check(
            |file| (file.calls_max, file.call_millis, file.reply_bytes_max) = (0, 0, 1 << 40),
            &["calls_max", "call_millis", "reply_bytes_max"],
        );
    }

    #[test]
    fn a_missing_key_is_reported_by_the_name_of_its_variable() {
        let file = RemoteFile {
            endpoint: "http://127.0.0.1:8000/v1".into(),
            model: "m".into(),
            key_env: Some("FURROW_TEST_NO_SUCH_KEY".into()),
            ..RemoteFile::default()
        };
        let error = file.check().unwrap().with_key().unwrap_err().to_string();
        assert!(
            error.starts_with("policy.remote.key_env: ") && error.contains("FURROW_TEST_NO_SUCH_KEY"),
            "{error}"
        );
    }
}
