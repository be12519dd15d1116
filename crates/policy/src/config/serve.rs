//! `[policy.serve]`: an OpenAI-compatible endpoint on the policy worker.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use furrow_openai::server::ChatLimits;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServeFile {
    /// Address and port that serve `/v1/chat/completions`; port 0 takes a free one. Empty: no
    /// endpoint. An address other than loopback needs a token.
    pub listen: String,
    /// File with the token that callers send as `Authorization: Bearer …`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// The model's name for callers; empty: the name of the checkpoint's directory.
    pub model: String,
    /// Sessions reserved for chats: those kept by `session_id` and those that run a request.
    /// Trajectories use the others.
    pub sessions_max: u32,
    /// Most requests that run at once; each uses a session. A request with `n` counts `n` times.
    pub requests_max: u32,
    /// Most requests that wait for those; one more is refused.
    pub queue_max: u32,
    /// Most open connections; more wait in the system's queue.
    pub connections_max: u32,
    /// Most bytes of a request's body. The bodies of all running and waiting requests are in memory
    /// at once.
    pub body_bytes_max: u64,
    /// Most messages of a chat; a request with more is refused.
    pub messages_max: u32,
    /// Most images of a chat; a request with more is refused.
    pub images_max: u32,
    /// Most bytes of an image as PNG or JPEG; a request with a larger one is refused.
    pub image_bytes_max: u64,
    /// Most tokens of a reply, and the default for a request that sets no limit.
    pub max_tokens: u32,
    /// Milliseconds within which a request is answered, including its wait for a session.
    pub deadline_millis: u64,
    /// Milliseconds after which an unused session is dropped.
    pub idle_millis: u64,
}

/// `[policy.serve]`, checked, if it is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeConfig {
    /// Address on which it listens.
    pub listen: SocketAddr,
    /// File with the token.
    pub token_file: Option<PathBuf>,
    pub model: String,
    /// Sessions reserved for chats.
    pub sessions_max: u32,
    pub(crate) requests_max: usize,
    pub(crate) queue_max: usize,
    pub(crate) connections_max: usize,
    pub(crate) body_bytes_max: usize,
    pub(crate) limits: ChatLimits,
    pub(crate) deadline: Duration,
    pub(crate) idle: Duration,
}

/// Limits the name because every event of a stream repeats it.
const MODEL_CHARS_MAX: usize = 200;

impl Default for ServeFile {
    fn default() -> Self {
        Self {
            listen: String::new(),
            token_file: None,
            model: String::new(),
            sessions_max: 8,
            requests_max: 8,
            queue_max: 64,
            connections_max: 128,
            // Ten screenshots of 1280 x 720 as PNG; base64 makes them a third larger.
            body_bytes_max: 32 << 20,
            messages_max: 256,
            images_max: 32,
            image_bytes_max: 8 << 20,
            max_tokens: 1024,
            deadline_millis: 300_000,
            idle_millis: 300_000,
        }
    }
}

impl ServeFile {
    /// Makes the path absolute.
    pub fn resolved(self, base: &Path) -> Self {
        Self { token_file: self.token_file.map(|file| base.join(file)), ..self }
    }

    /// Checks every value and reports all problems; `None` if the endpoint is off.
    pub(super) fn check(self, kind: &str, checkpoint: &Path) -> Result<Option<ServeConfig>, Vec<String>> {
        if self.listen.is_empty() {
            return Ok(None);
        }
        let mut wrong = self.limit_problems();
        wrong.extend(self.model_problems(kind));
        match self.listen_address() {
            Ok(listen) if wrong.is_empty() => Ok(Some(self.into_config(listen, checkpoint))),
            Ok(_) => Err(wrong),
            Err(problem) => {
                wrong.push(problem);
                Err(wrong)
            }
        }
    }

    fn limit_problems(&self) -> Vec<String> {
        let hour = 3_600_000;
        let mut wrong: Vec<String> = [
            ("sessions_max", u64::from(self.sessions_max), 1, 10_000),
            ("requests_max", u64::from(self.requests_max), 1, 10_000),
            ("queue_max", u64::from(self.queue_max), 0, 100_000),
            ("connections_max", u64::from(self.connections_max), 1, 65_536),
            ("body_bytes_max", self.body_bytes_max, 1 << 10, 1 << 30),
            ("messages_max", u64::from(self.messages_max), 1, 100_000),
            ("images_max", u64::from(self.images_max), 0, 10_000),
            ("image_bytes_max", self.image_bytes_max, 1, 256 << 20),
            ("max_tokens", u64::from(self.max_tokens), 1, 1_000_000),
            ("deadline_millis", self.deadline_millis, 1, 24 * hour),
            ("idle_millis", self.idle_millis, 0, 24 * hour),
        ]
        .into_iter()
        .filter(|(_, value, from, to)| !(from..=to).contains(&value))
        .map(|(key, value, from, to)| format!("policy.serve.{key}: {value}; use {from} to {to}"))
        .collect();
        if self.requests_max > self.sessions_max {
            wrong.push(format!(
                "policy.serve.requests_max: {}; each takes one of the {} sessions of policy.serve.sessions_max; use that or fewer",
                self.requests_max, self.sessions_max
            ));
        }
        wrong
    }

    fn model_problems(&self, kind: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.model.chars().count() > MODEL_CHARS_MAX || self.model.chars().any(char::is_control) {
            wrong.push(format!(
                "policy.serve.model: {:?}; use a name of at most {MODEL_CHARS_MAX} characters without control characters",
                self.model.chars().take(40).collect::<String>()
            ));
        }
        if kind != "model" {
            wrong.push(format!(
                "policy.serve.listen: policy.kind = {kind:?} has no model to serve; set policy.kind = \"model\""
            ));
        }
        wrong
    }

    fn listen_address(&self) -> Result<SocketAddr, String> {
        let address: SocketAddr = self.listen.parse().map_err(|_| {
            let listen: String = self.listen.chars().take(80).collect();
            format!(
                "policy.serve.listen: {listen:?}; use an address and a port, such as 127.0.0.1:8000, 0.0.0.0:8000 or [::1]:0"
            )
        })?;
        if !address.ip().is_loopback() && self.token_file.is_none() {
            return Err(format!(
                "policy.serve.listen: {address} accepts connections from other machines and needs a token; set policy.serve.token_file"
            ));
        }
        Ok(address)
    }

    /// The values as they are used. The caller has checked all of them.
    fn into_config(self, listen: SocketAddr, checkpoint: &Path) -> ServeConfig {
        let name = || {
            checkpoint.file_name().map_or_else(|| "furrow".into(), |name| name.to_string_lossy().into_owned())
        };
        ServeConfig {
            listen,
            token_file: self.token_file,
            model: if self.model.is_empty() { name() } else { self.model },
            sessions_max: self.sessions_max,
            requests_max: self.requests_max as usize,
            queue_max: self.queue_max as usize,
            connections_max: self.connections_max as usize,
            body_bytes_max: self.body_bytes_max as usize,
            limits: ChatLimits {
                messages_max: self.messages_max as usize,
                images_max: self.images_max as usize,
                image_bytes_max: self.image_bytes_max as usize,
                max_tokens: self.max_tokens,
                choices_max: self.requests_max,
            },
            deadline: Duration::from_millis(self.deadline_millis),
            idle: Duration::from_millis(self.idle_millis),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: impl FnOnce(&mut ServeFile), want: &[&str]) {
        let mut file = ServeFile { listen: "127.0.0.1:0".into(), ..ServeFile::default() };
        change(&mut file);
        let got = file.check("model", Path::new("/x/tiny")).err().unwrap_or_default();
        let keys: Vec<&str> = got.iter().map(|message| message.split(": ").next().unwrap()).collect();
        assert_eq!(keys, want, "{got:?}");
    }

    #[test]
    fn values_are_checked() {
        check(|_| {}, &[]);
        check(|file| file.listen = "localhost:8000".into(), &["policy.serve.listen"]);
        check(|file| file.listen = "0.0.0.0:8000".into(), &["policy.serve.listen"]);
        let open = |file: &mut ServeFile| {
            file.listen = "0.0.0.0:8000".into();
            file.token_file = Some("token".into());
        };
        check(open, &[]);
        check(|file| file.requests_max = 9, &["policy.serve.requests_max"]);
        check(|file| file.model = "acme/tiny 3 é".into(), &[]);
        check(|file| file.model = "é".repeat(200), &[]);
        check(|file| file.model = "x".repeat(201), &["policy.serve.model"]);
        check(|file| file.model = "a\u{1b}[2J".into(), &["policy.serve.model"]);
        check(
            |file| (file.sessions_max, file.requests_max) = (0, 0),
            &["policy.serve.sessions_max", "policy.serve.requests_max"],
        );
        check(
            |file| (file.body_bytes_max, file.deadline_millis, file.max_tokens) = (0, 0, 0),
            &["policy.serve.body_bytes_max", "policy.serve.max_tokens", "policy.serve.deadline_millis"],
        );
        let file = || ServeFile { listen: "127.0.0.1:0".into(), ..ServeFile::default() };
        assert!(file().check("scripted", Path::new("")).unwrap_err()[0].contains("policy.kind"));
        assert_eq!(file().check("model", Path::new("/x/tiny")).unwrap().unwrap().model, "tiny");
        let off = ServeFile { sessions_max: 0, ..ServeFile::default() };
        assert_eq!(
            off.check("scripted", Path::new("")),
            Ok(None),
            "the other keys of an endpoint that is off are not checked"
        );
    }
}
