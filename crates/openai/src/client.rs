//! A client of one endpoint, with attempts, pauses, deadlines and size limits.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use rand::RngExt;
use ureq::http::{HeaderMap, StatusCode, header};
use ureq::{Agent, Error, Timeout};
use url::Url;

use crate::chat::{self, ChatConversation, ChatReply};
use crate::wire::{self, Completion, JudgeQuestion};

/// Longest pause between two attempts, whatever a server requests.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How often a pause checks whether it should end.
const LOOK: Duration = Duration::from_millis(50);

/// Most bytes of a server's error that are read.
const COMPLAINT_BYTES_MAX: u64 = 16 << 10;

/// A secret that is sent but never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

/// The endpoint and the limits of its calls.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientConfig {
    /// The base address of `/chat/completions`, such as `https://api.example/v1`.
    pub endpoint: Url,
    /// Sent as a bearer token, if the server needs one.
    pub key: Option<ApiKey>,
    /// The model's name at the endpoint.
    pub model: String,
    pub temperature: f64,
    /// Most tokens of a reply.
    pub max_tokens: u32,
    /// Deadline of one call, including connecting and reading.
    pub call: Duration,
    /// Most bytes of a reply.
    pub reply_bytes_max: u64,
    /// Most attempts at one question.
    pub attempts_max: u32,
    /// Pause before the second attempt; it doubles with each further one.
    pub pause: Duration,
}

/// Limits of a call beyond the client's own.
#[derive(Clone, Copy)]
pub struct CallLimits<'a> {
    /// Deadline of all attempts.
    pub deadline: Instant,
    /// Stops the attempts when it returns true.
    pub stopped: &'a (dyn Fn() -> bool + Sync),
}

/// Why there is no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChatCallError {
    /// The server did not answer, or not to the end.
    #[error("{endpoint} cannot be reached: {why}")]
    Unreachable { endpoint: String, why: String },
    /// The server did not answer in time.
    #[error("{endpoint} did not answer within {millis} ms")]
    TimedOut { endpoint: String, millis: u128 },
    /// The server answered with an error.
    #[error("{endpoint} answered {status}: {message}")]
    Refused {
        endpoint: String,
        status: u16,
        /// The server's message, shortened.
        message: String,
        /// Pause that the server requests.
        pause: Option<Duration>,
    },
    /// The reply is too long.
    #[error("the reply of {endpoint} is longer than {bytes_max} bytes")]
    TooLong { endpoint: String, bytes_max: u64 },
    /// The reply is not a chat completion.
    #[error("the reply of {endpoint} {problem}")]
    Garbled { endpoint: String, problem: String },
    /// All attempts failed, or the deadline passed.
    #[error("no reply after {attempts} attempts: {last}")]
    GaveUp {
        attempts: u32,
        /// How the last one ended.
        last: Box<ChatCallError>,
    },
    /// The caller stopped the attempts.
    #[error("the call was stopped")]
    Stopped,
}

/// Calls one endpoint. Clones share their connections.
#[derive(Debug, Clone)]
pub struct ChatClient {
    config: ClientConfig,
    agent: Agent,
    url: String,
}

impl ApiKey {
    /// A key without surrounding white space; `None` if it is empty or cannot be sent in a header.
    pub fn new(text: &str) -> Option<Self> {
        let key = text.trim();
        (!key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic())).then(|| Self(key.to_owned()))
    }

    /// Removes the key from a text, because a server may repeat what it was sent.
    fn redact(&self, text: &str) -> String {
        text.replace(&self.0, "…")
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

impl ChatClient {
    /// Creates a client. Sends nothing yet.
    pub fn new(config: ClientConfig) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            // The key must not be sent to another server.
            .max_redirects(0)
            .user_agent("furrow")
            .build()
            .into();
        let url = format!("{}/chat/completions", config.endpoint.as_str().trim_end_matches('/'));
        Self { config, agent, url }
    }

    /// Repeats the call until there is a reply, an error that a retry cannot fix, or no attempt or
    /// time is left.
    pub fn ask(&self, ask: &JudgeQuestion, until: CallLimits) -> Result<Completion, ChatCallError> {
        let body = wire::body(&self.config.model, self.config.temperature, self.config.max_tokens, ask);
        self.call_with_retries(&body, until, wire::completion).map(|(completion, _)| completion)
    }

    /// As `ask`, for a conversation with its own sampling settings.
    pub fn chat(&self, chat: &ChatConversation, until: CallLimits) -> Result<ChatReply, ChatCallError> {
        let body = chat::body(&self.config.model, chat);
        let (reply, attempts) = self.call_with_retries(&body, until, chat::reply)?;
        Ok(ChatReply { attempts, ..reply })
    }

    /// Returns the parsed reply and the number of attempts.
    fn call_with_retries<T>(
        &self,
        body: &[u8],
        until: CallLimits,
        read: fn(&[u8]) -> Result<T, String>,
    ) -> Result<(T, u32), ChatCallError> {
        let mut attempts = 0;
        loop {
            if (until.stopped)() {
                return Err(ChatCallError::Stopped);
            }
            attempts += 1;
            let error = match self.attempt(body, until.deadline, read) {
                Ok(reply) => return Ok((reply, attempts)),
                Err(error) if !error.is_transient() => return Err(error),
                Err(error) => error,
            };
            let pause = self.pause(attempts, &error);
            let late = Instant::now() + pause >= until.deadline;
            if attempts >= self.config.attempts_max || late {
                return Err(ChatCallError::GaveUp { attempts, last: Box::new(error) });
            }
            sleep_until(pause, until.stopped);
        }
    }

    fn attempt<T>(
        &self,
        body: &[u8],
        deadline: Instant,
        read: fn(&[u8]) -> Result<T, String>,
    ) -> Result<T, ChatCallError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let call = self.config.call.min(left).max(Duration::from_millis(1));
        let mut request = self
            .agent
            .post(&self.url)
            .config()
            .timeout_global(Some(call))
            .build()
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(ApiKey(key)) = &self.config.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let mut response = request.send(body).map_err(|error| self.failed(error, call))?;
        let status = response.status();
        if status != StatusCode::OK {
            let pause = retry_after(response.headers());
            let message = response
                .body_mut()
                .with_config()
                .limit(COMPLAINT_BYTES_MAX)
                .read_to_vec()
                .unwrap_or_default();
            let message = self.without_key(&wire::complaint(&message));
            return Err(ChatCallError::Refused {
                endpoint: self.name(),
                status: status.as_u16(),
                message,
                pause,
            });
        }
        let reply = response.body_mut().with_config().limit(self.config.reply_bytes_max).read_to_vec();
        let reply = reply.map_err(|error| self.failed(error, call))?;
        read(&reply).map_err(|problem| ChatCallError::Garbled {
            endpoint: self.name(),
            problem: self.without_key(&problem),
        })
    }

    fn failed(&self, error: Error, call: Duration) -> ChatCallError {
        let endpoint = self.name();
        match error {
            Error::Timeout(Timeout::Resolve | Timeout::Connect) => {
                ChatCallError::Unreachable { endpoint, why: "no connection in time".to_owned() }
            }
            Error::Timeout(_) => ChatCallError::TimedOut { endpoint, millis: call.as_millis() },
            Error::BodyExceedsLimit(bytes_max) => ChatCallError::TooLong { endpoint, bytes_max },
            Error::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
                ChatCallError::TimedOut { endpoint, millis: call.as_millis() }
            }
            other => ChatCallError::Unreachable { endpoint, why: self.without_key(&other.to_string()) },
        }
    }

    /// The server's pause, or one that doubles after each attempt. Half of it is random, so that
    /// many calls that failed together do not return together.
    fn pause(&self, attempts: u32, error: &ChatCallError) -> Duration {
        let doubled = self.config.pause.saturating_mul(1 << (attempts - 1).min(10)).min(PAUSE_MAX);
        let own = doubled.mul_f64(rand::rng().random_range(0.5..=1.0));
        match error {
            ChatCallError::Refused { pause: Some(server_pause), .. } => {
                own.max((*server_pause).min(PAUSE_MAX))
            }
            _ => own,
        }
    }

    /// Scheme, host and port. Other parts of an address may be secret.
    fn name(&self) -> String {
        self.config.endpoint.origin().ascii_serialization()
    }

    fn without_key(&self, text: &str) -> String {
        self.config.key.as_ref().map_or_else(|| text.to_owned(), |key| key.redact(text))
    }
}

impl ChatCallError {
    /// Whether the server reports that the conversation is longer than the model's context, with
    /// OpenAI's error code or vLLM's text.
    pub fn is_too_long_a_prompt(&self) -> bool {
        let is_too_long = |text: &str| {
            let text = text.to_ascii_lowercase();
            ["context_length_exceeded", "context length"].iter().any(|phrase| text.contains(phrase))
        };
        match self {
            Self::Refused { status: 400 | 413 | 422, message, .. } => is_too_long(message),
            _ => false,
        }
    }

    /// Whether a retry may help: the server is down, busy, or sent a broken reply.
    fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Garbled { .. } => true,
            Self::Refused { status, .. } => matches!(status, 408 | 409 | 425 | 429) || *status >= 500,
            Self::TooLong { .. } | Self::GaveUp { .. } | Self::Stopped => false,
        }
    }
}

/// `Retry-After` in seconds; the form with a date is ignored.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: f64 = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn sleep_until(pause: Duration, stopped: &dyn Fn() -> bool) {
    let end = Instant::now() + pause;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || stopped() {
            return;
        }
        std::thread::park_timeout(left.min(LOOK));
    }
}
