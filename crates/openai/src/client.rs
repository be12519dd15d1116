//! One endpoint, asked with patience: attempts, pauses, deadlines, caps.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::RngExt;
use ureq::http::{HeaderMap, StatusCode, header};
use ureq::{Agent, Error, Timeout};
use url::Url;

use crate::chat::{self, Chat, ChatReply};
use crate::wire;

/// No pause between two attempts is longer, whatever a server asks for.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How often a pause looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// What is shown of a server's complaint is read so far.
const COMPLAINT_BYTES_MAX: u64 = 16 << 10;

/// A secret that is sent and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(String);

/// Whom to ask, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientConfig {
    /// The address below which `/chat/completions` lies, such as `https://api.example/v1`.
    pub endpoint: Url,
    /// Sent as a bearer token, if the server wants one.
    pub key: Option<Key>,
    /// The model's name there.
    pub model: String,
    /// Sampling temperature.
    pub temperature: f64,
    /// Most tokens of a reply.
    pub max_tokens: u32,
    /// One call comes within this time, connecting and reading included.
    pub call: Duration,
    /// Longest reply.
    pub reply_bytes_max: u64,
    /// Attempts at one question.
    pub attempts_max: u32,
    /// Pause before the second attempt; it doubles with each further one.
    pub pause: Duration,
}

/// A question.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// The system message.
    pub system: String,
    /// The user's words.
    pub text: String,
    /// The user's pictures behind them, PNG or JPEG.
    pub pictures: Vec<Bytes>,
    /// Seed of the reply, where the server heeds it.
    pub seed: i64,
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// What was said.
    pub text: String,
    /// Whether it was cut off at `max_tokens`.
    pub cut: bool,
    /// Tokens of the question, 0 where the server does not count them.
    pub prompt_tokens: u64,
    /// Tokens of the reply, 0 where the server does not count them.
    pub completion_tokens: u64,
}

/// When to give up, beyond a client's own limits.
#[derive(Clone, Copy)]
pub struct Until<'a> {
    /// Not later than this.
    pub deadline: Instant,
    /// Nor when this says so.
    pub stopped: &'a (dyn Fn() -> bool + Sync),
}

/// Why there is no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// Nobody answered, or not to the end.
    #[error("{endpoint} cannot be reached: {why}")]
    Unreachable {
        /// Address.
        endpoint: String,
        /// Why.
        why: String,
    },
    /// It did not answer in time.
    #[error("{endpoint} did not answer within {millis} ms")]
    Slow {
        /// Address.
        endpoint: String,
        /// The deadline.
        millis: u128,
    },
    /// It answered with an error.
    #[error("{endpoint} answered {status}: {said}")]
    Refused {
        /// Address.
        endpoint: String,
        /// HTTP status.
        status: u16,
        /// Its own words, cut.
        said: String,
        /// How long it asks to be left alone.
        pause: Option<Duration>,
    },
    /// Its reply is too long.
    #[error("the reply of {endpoint} is longer than {bytes_max} bytes")]
    TooLong {
        /// Address.
        endpoint: String,
        /// The cap.
        bytes_max: u64,
    },
    /// Its reply is none.
    #[error("the reply of {endpoint} {problem}")]
    Garbled {
        /// Address.
        endpoint: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The time was used up.
    #[error("no reply after {attempts} attempts: {last}")]
    GaveUp {
        /// Attempts made.
        attempts: u32,
        /// How the last one ended.
        last: Box<AskError>,
    },
    /// Asking was stopped.
    #[error("asking was stopped")]
    Stopped,
}

/// Asks one endpoint. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    config: ClientConfig,
    agent: Agent,
    url: String,
}

impl Key {
    /// A key without the space around it; `None` where nothing is left, or what cannot be sent in a header.
    pub fn new(text: &str) -> Option<Self> {
        let key = text.trim();
        (!key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic())).then(|| Self(key.to_owned()))
    }

    /// The text with this key taken out of it: a server may repeat what it was sent.
    fn struck_from(&self, text: &str) -> String {
        text.replace(&self.0, "…")
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Client {
    /// A client; nothing is sent yet.
    pub fn new(config: ClientConfig) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            // A key is for the server it was given for.
            .max_redirects(0)
            .user_agent("furrow")
            .build()
            .into();
        let url = format!("{}/chat/completions", config.endpoint.as_str().trim_end_matches('/'));
        Self { config, agent, url }
    }

    /// Asks until there is a reply, an error that will not heal, or no more patience.
    pub fn ask(&self, ask: &Ask, until: Until) -> Result<Completion, AskError> {
        let body = wire::body(&self.config.model, self.config.temperature, self.config.max_tokens, ask);
        self.persist(&body, until, wire::completion).map(|(completion, _)| completion)
    }

    /// The same for a conversation; its sampling settings are its own.
    pub fn chat(&self, chat: &Chat, until: Until) -> Result<ChatReply, AskError> {
        let body = chat::body(&self.config.model, chat);
        let (reply, attempts) = self.persist(&body, until, chat::reply)?;
        Ok(ChatReply { attempts, ..reply })
    }

    /// What was read of a reply, and how often it was asked for.
    fn persist<T>(
        &self,
        body: &[u8],
        until: Until,
        read: fn(&[u8]) -> Result<T, String>,
    ) -> Result<(T, u32), AskError> {
        let mut attempts = 0;
        loop {
            if (until.stopped)() {
                return Err(AskError::Stopped);
            }
            attempts += 1;
            let error = match self.attempt(body, until.deadline, read) {
                Ok(reply) => return Ok((reply, attempts)),
                Err(error) if !error.may_heal() => return Err(error),
                Err(error) => error,
            };
            let pause = self.pause(attempts, &error);
            let late = Instant::now() + pause >= until.deadline;
            if attempts >= self.config.attempts_max || late {
                return Err(AskError::GaveUp { attempts, last: Box::new(error) });
            }
            rest(pause, until.stopped);
        }
    }

    fn attempt<T>(
        &self,
        body: &[u8],
        deadline: Instant,
        read: fn(&[u8]) -> Result<T, String>,
    ) -> Result<T, AskError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let call = self.config.call.min(left).max(Duration::from_millis(1));
        let mut request = self
            .agent
            .post(&self.url)
            .config()
            .timeout_global(Some(call))
            .build()
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(Key(key)) = &self.config.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let mut response = request.send(body).map_err(|error| self.failed(error, call))?;
        let status = response.status();
        if status != StatusCode::OK {
            let pause = asked_pause(response.headers());
            let said = response
                .body_mut()
                .with_config()
                .limit(COMPLAINT_BYTES_MAX)
                .read_to_vec()
                .unwrap_or_default();
            let said = self.without_key(&wire::complaint(&said));
            return Err(AskError::Refused { endpoint: self.name(), status: status.as_u16(), said, pause });
        }
        let reply = response.body_mut().with_config().limit(self.config.reply_bytes_max).read_to_vec();
        let reply = reply.map_err(|error| self.failed(error, call))?;
        read(&reply).map_err(|problem| AskError::Garbled {
            endpoint: self.name(),
            problem: self.without_key(&problem),
        })
    }

    fn failed(&self, error: Error, call: Duration) -> AskError {
        let endpoint = self.name();
        match error {
            Error::Timeout(Timeout::Resolve | Timeout::Connect) => {
                AskError::Unreachable { endpoint, why: "no connection in time".to_owned() }
            }
            Error::Timeout(_) => AskError::Slow { endpoint, millis: call.as_millis() },
            Error::BodyExceedsLimit(bytes_max) => AskError::TooLong { endpoint, bytes_max },
            Error::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
                AskError::Slow { endpoint, millis: call.as_millis() }
            }
            other => AskError::Unreachable { endpoint, why: self.without_key(&other.to_string()) },
        }
    }

    /// The server's, or twice as long after each attempt; half of it by chance, so that many that failed together do not come
    /// back together.
    fn pause(&self, attempts: u32, error: &AskError) -> Duration {
        let doubled = self.config.pause.saturating_mul(1 << (attempts - 1).min(10)).min(PAUSE_MAX);
        let own = doubled.mul_f64(rand::rng().random_range(0.5..=1.0));
        match error {
            AskError::Refused { pause: Some(asked), .. } => own.max((*asked).min(PAUSE_MAX)),
            _ => own,
        }
    }

    /// Scheme, host and port: what an address may hold beyond them is nobody's business.
    fn name(&self) -> String {
        self.config.endpoint.origin().ascii_serialization()
    }

    fn without_key(&self, text: &str) -> String {
        self.config.key.as_ref().map_or_else(|| text.to_owned(), |key| key.struck_from(text))
    }
}

impl AskError {
    /// Whether the server says that the conversation is longer than its model takes: in OpenAI's word for it, or in vLLM's.
    pub fn is_too_long_a_prompt(&self) -> bool {
        let told = |said: &str| {
            let said = said.to_ascii_lowercase();
            ["context_length_exceeded", "context length"].iter().any(|word| said.contains(word))
        };
        match self {
            Self::Refused { status: 400 | 413 | 422, said, .. } => told(said),
            _ => false,
        }
    }

    /// Whether asking again may help: the server is away, busy, or said something broken this once.
    fn may_heal(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Slow { .. } | Self::Garbled { .. } => true,
            Self::Refused { status, .. } => matches!(status, 408 | 409 | 425 | 429) || *status >= 500,
            Self::TooLong { .. } | Self::GaveUp { .. } | Self::Stopped => false,
        }
    }
}

/// `Retry-After` in seconds; a day of the calendar is not worth reading.
fn asked_pause(headers: &HeaderMap) -> Option<Duration> {
    let seconds: f64 = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn rest(pause: Duration, stopped: &dyn Fn() -> bool) {
    let end = Instant::now() + pause;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || stopped() {
            return;
        }
        std::thread::park_timeout(left.min(LOOK));
    }
}
