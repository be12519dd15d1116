//! Records the network traffic of a trajectory, so that the trajectory can be replayed without the
//! network.
//!
//! ```text
//! archive/<trajectory>.jsonl          one line about the trajectory, then one line per response
//! archive/blobs/<2 digits>/<sha256>   bodies, each stored once for all trajectories
//! archive/lock                        only with a limit on the whole: see `retention.rs`
//! ```
//!
//! Matching, for a request of the same method: first an exchange with the same address and body;
//! then one that is the same except for *volatile* parameters of the address (see
//! [`VOLATILE_PARAMETERS`]) and their order; then, if the request has a body, one with any body. Of
//! several matches, those that were not served yet come first, in the order they were recorded;
//! when all were served, the last one is repeated.
//!
//! An index shows that secrets existed, but not their values: values of headers and address
//! parameters with a secret's name are replaced. Bodies are kept unchanged. An archive is best
//! effort: nothing waits for the disk, and a kill may lose one that was not finished.

mod error;
mod index;
mod retention;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use furrow_rollout::{Id, Trajectory};
use serde::Serialize;
use sha2::{Digest, Sha256};

pub use error::ArchiveError;
use error::io_error;
pub(crate) use index::EXCHANGES_MAX;
pub use index::HttpExchange;
use index::{IndexHeader, IndexLines, VERSION, blob_path, hex, index_path, is_hash, unfinished_path};
use retention::{LimitedFolder, RemovedArchives};

/// Limits on what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// Largest body that is stored, in bytes.
    pub response_bytes_max: u64,
    /// Most bytes of all bodies of a trajectory; further bodies are not stored.
    pub trajectory_bytes_max: u64,
    /// Most bytes of all archives of the run: the oldest finished ones are removed. `None`: all are
    /// kept.
    pub bytes_max: Option<u64>,
}

/// How archives are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArchiveMode {
    /// Record the traffic of every trajectory.
    Record {
        /// The archive's folder, such as `<run>/archive`.
        folder: PathBuf,
        /// Limits on what is stored.
        limits: ArchiveLimits,
    },
    /// Run trajectories from the archive, which alone answers their requests.
    Replay {
        /// The archive's folder, such as `<run>/archive`.
        folder: PathBuf,
    },
}

/// The index's description of a trajectory.
#[derive(Debug, Clone, Copy)]
pub struct ArchiveMetadata<'a> {
    pub trajectory: &'a Id<Trajectory>,
    /// Id of the task.
    pub task_id: &'a str,
    /// The task's start page.
    pub start_url: &'a str,
    /// Product and version of the browser.
    pub browser: &'a str,
}

/// The parts of a request that are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveRequest {
    /// HTTP method, such as `GET`.
    pub method: String,
    /// Absolute address; a fragment is never sent and is cut off.
    pub url: String,
    /// SHA-256 of the body; `None` if there is none.
    pub body_sha256: Option<[u8; 32]>,
}

/// The archive's response to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArchiveResponse {
    /// The response that the site gave.
    Response { status: u16, headers: Vec<(String, String)>, body: Bytes },
    /// No response came when recorded either; the browser's reason.
    Failure(String),
}

// Recording.

/// Writes the archive of one trajectory. One that is dropped unfinished leaves its index under a
/// temporary name.
#[derive(Debug)]
pub struct ArchiveRecorder {
    folder: PathBuf,
    name: String,
    index: BufWriter<File>,
    limits: ArchiveLimits,
    /// The folder, where its size is limited.
    limited: Option<LimitedFolder>,
    exchanges: usize,
    bytes: u64,
}

impl ArchiveRecorder {
    /// Creates the folder and begins an index.
    pub fn create(
        folder: &Path,
        about: ArchiveMetadata<'_>,
        limits: ArchiveLimits,
    ) -> Result<Self, ArchiveError> {
        let blobs = folder.join("blobs");
        for made in [folder, &blobs] {
            furrow_storage::create_dir(made).map_err(|source| io_error(made, "cannot be made", source))?;
        }
        let limited = limits.bytes_max.map(|most| LimitedFolder::open(folder, most)).transpose()?;
        let name = about.trajectory.to_string();
        let path = unfinished_path(folder, &name);
        let begin = || {
            let file =
                furrow_storage::create(&path).map_err(|source| io_error(&path, "cannot be made", source))?;
            retention::keep(&file);
            Ok(file)
        };
        let file = match &limited {
            Some(limited) => limited.while_none_is_removed(begin)?,
            None => begin()?,
        };
        let mut recorder = Self {
            folder: folder.to_owned(),
            name,
            index: BufWriter::new(file),
            limits,
            limited,
            exchanges: 0,
            bytes: 0,
        };
        recorder.write_line(&IndexHeader {
            furrow_archive: VERSION,
            trajectory_id: about.trajectory.to_string(),
            task_id: about.task_id.to_owned(),
            start_url: redacted_url(about.start_url),
            browser: about.browser.to_owned(),
        })?;
        Ok(recorder)
    }

    /// Whether a body of this length would be stored: `Err` names why not.
    pub(crate) fn check_body_size(&self, bytes: u64) -> Result<(), &'static str> {
        if bytes > self.limits.response_bytes_max {
            return Err("too_large");
        }
        if self.bytes.saturating_add(bytes) > self.limits.trajectory_bytes_max {
            return Err("trajectory_full");
        }
        Ok(())
    }

    /// Adds one exchange; secrets are replaced here and nowhere else. Blocks on the disk.
    pub fn add(&mut self, mut exchange: HttpExchange, body: Option<&[u8]>) -> Result<(), ArchiveError> {
        if self.exchanges >= EXCHANGES_MAX {
            return Ok(());
        }
        self.exchanges += 1;
        exchange.url = redacted_url(without_fragment(&exchange.url));
        exchange.headers = exchange.headers.into_iter().filter_map(kept_header).collect();
        let Some(body) = body else { return self.write_line(&exchange) };
        if let Err(why) = self.check_body_size(body.len() as u64) {
            exchange.missing = Some(why.to_owned());
            return self.write_line(&exchange);
        }
        exchange.body_bytes = body.len() as u64;
        let Some(limited) = self.limited.take() else { return self.write_named_body(exchange, body) };
        let written = limited.while_none_is_removed(|| {
            self.write_named_body(exchange, body)?;
            // Removing bodies begins with reading here which are needed.
            self.flush()
        });
        self.limited = Some(limited);
        written
    }

    fn write_named_body(&mut self, mut exchange: HttpExchange, body: &[u8]) -> Result<(), ArchiveError> {
        exchange.body_sha256 = Some(self.write_body(body)?);
        self.write_line(&exchange)
    }

    /// Completes the index and gives it its final name. Then the oldest archives make space, where
    /// the size of all is limited.
    pub fn finish(mut self) -> Result<(), ArchiveError> {
        let path = unfinished_path(&self.folder, &self.name);
        let whole = index_path(&self.folder, &self.name);
        self.flush()?;
        let bytes = self.index.get_ref().metadata().map_or(0, |found| found.len());
        let name_it =
            || fs::rename(&path, &whole).map_err(|source| io_error(&whole, "cannot be named", source));
        let Some(limited) = self.limited else { return name_it() };
        limited.while_none_is_removed(name_it)?;
        let RemovedArchives { archives, bodies, bytes } = limited.add(self.bytes.saturating_add(bytes))?;
        if archives + bodies > 0 {
            tracing::info!(
                archives,
                bodies,
                bytes,
                "the oldest archives were removed: env.archive_bytes_max"
            );
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ArchiveError> {
        let path = unfinished_path(&self.folder, &self.name);
        self.index.flush().map_err(|source| io_error(&path, "cannot be written", source))
    }

    fn write_body(&mut self, body: &[u8]) -> Result<String, ArchiveError> {
        self.bytes += body.len() as u64;
        let name = hex(&Sha256::digest(body));
        let path = blob_path(&self.folder, &name);
        if path.is_file() {
            return Ok(name);
        }
        let folder = path.parent().unwrap_or(&self.folder);
        furrow_storage::create_dir(folder).map_err(|source| io_error(folder, "cannot be made", source))?;
        // Two trajectories may store the same body at once: each writes under its own name first.
        let own = folder.join(format!("{name}.{}.part", self.name));
        let written = furrow_storage::create(&own).and_then(|mut file| file.write_all(body));
        written.map_err(|source| io_error(&own, "cannot be written", source))?;
        fs::rename(&own, &path).map_err(|source| io_error(&path, "cannot be named", source))?;
        Ok(name)
    }

    fn write_line(&mut self, of: &impl Serialize) -> Result<(), ArchiveError> {
        let path = unfinished_path(&self.folder, &self.name);
        let mut text = serde_json::to_string(of)
            .map_err(|error| io_error(&path, "cannot be written", io::Error::other(error)))?;
        text.push('\n');
        self.index.write_all(text.as_bytes()).map_err(|source| io_error(&path, "cannot be written", source))
    }
}

// Replay.

/// The archive of one trajectory. It serves responses in the order of its pages' requests.
#[derive(Debug)]
pub struct TrajectoryArchive {
    folder: PathBuf,
    /// The index: while it is open, the archive is not removed.
    _index: File,
    exchanges: Vec<HttpExchange>,
    served: Vec<bool>,
    /// For each match level, the exchanges with one key, in their order.
    keys: [HashMap<String, Vec<usize>>; MATCH_LEVELS],
}

/// Number of match levels, the strictest first.
const MATCH_LEVELS: usize = 3;

impl TrajectoryArchive {
    /// Reads an index, within limits. Bodies stay on the disk.
    pub fn open(folder: &Path, trajectory: &Id<Trajectory>) -> Result<Self, ArchiveError> {
        let path = index_path(folder, trajectory.as_str());
        let opened = || {
            let index = File::open(&path)?;
            retention::keep(&index);
            let lines = index.try_clone()?;
            Ok((index, lines))
        };
        let (index, lines) = opened().map_err(|source| io_error(&path, "cannot be opened", source))?;
        let mut lines = IndexLines::of(lines, &path);
        match lines.next::<IndexHeader>()? {
            Some(IndexHeader { furrow_archive: VERSION, .. }) => {}
            Some(heading) => {
                let version = heading.furrow_archive;
                return Err(lines
                    .line_error(format!("version {version} of the format; this program reads {VERSION}")));
            }
            None => return Err(lines.line_error("the file is empty")),
        }
        let mut archive = Self {
            folder: folder.to_owned(),
            _index: index,
            exchanges: Vec::new(),
            served: Vec::new(),
            keys: Default::default(),
        };
        while let Some(exchange) = lines.next::<HttpExchange>()? {
            if archive.exchanges.len() == EXCHANGES_MAX {
                return Err(lines.line_error(format!("more than {EXCHANGES_MAX} responses")));
            }
            if exchange.body_sha256.as_deref().is_some_and(|name| !is_hash(name)) {
                return Err(lines.line_error("body_sha256 is not a SHA-256"));
            }
            archive.add(exchange);
        }
        Ok(archive)
    }

    /// Whether the folder holds an archive of this trajectory.
    pub fn exists(folder: &Path, trajectory: &Id<Trajectory>) -> bool {
        index_path(folder, trajectory.as_str()).is_file()
    }

    /// The recorded response to a request; `None` if nothing matches or its body was not stored.
    /// Blocks on the disk.
    pub fn find_response(
        &mut self,
        request: &ArchiveRequest,
    ) -> Result<Option<ArchiveResponse>, ArchiveError> {
        let body = request.body_sha256.map(|hash| hex(&hash));
        let url = redacted_url(without_fragment(&request.url));
        let keys = match_keys(&request.method, &url, body.as_deref());
        let found = keys.into_iter().zip(&self.keys).find_map(|(key, table)| table.get(&key?));
        let Some(fitting) = found else { return Ok(None) };
        let Some(&index) = fitting.iter().find(|index| !self.served[**index]).or(fitting.last()) else {
            return Ok(None);
        };
        self.served[index] = true;
        self.response_for(&self.exchanges[index])
    }

    fn add(&mut self, exchange: HttpExchange) {
        let index = self.exchanges.len();
        let keys = match_keys(&exchange.method, &exchange.url, exchange.request_sha256.as_deref());
        for (key, table) in keys.into_iter().zip(&mut self.keys) {
            if let Some(key) = key {
                table.entry(key).or_default().push(index);
            }
        }
        self.exchanges.push(exchange);
        self.served.push(false);
    }

    fn response_for(&self, exchange: &HttpExchange) -> Result<Option<ArchiveResponse>, ArchiveError> {
        if exchange.status == 0 {
            return Ok(Some(ArchiveResponse::Failure(exchange.missing.clone().unwrap_or_default())));
        }
        let body = match &exchange.body_sha256 {
            Some(name) => read_blob(&self.folder, name, exchange.body_bytes)?,
            None if exchange.missing.is_some() => return Ok(None),
            None => Bytes::new(),
        };
        let headers = exchange.headers.clone();
        Ok(Some(ArchiveResponse::Response { status: exchange.status, headers, body }))
    }
}

fn read_blob(folder: &Path, name: &str, bytes: u64) -> Result<Bytes, ArchiveError> {
    let path = blob_path(folder, name);
    let read = || {
        let file = File::open(&path)?;
        let mut body = Vec::new();
        file.take(bytes.saturating_add(1)).read_to_end(&mut body)?;
        Ok(body)
    };
    let body: Vec<u8> = read().map_err(|source| io_error(&path, "cannot be read", source))?;
    if hex(&Sha256::digest(&body)) != name {
        let other =
            io::Error::new(io::ErrorKind::InvalidData, "its content does not have the hash in its name");
        return Err(io_error(&path, "is damaged", other));
    }
    Ok(body.into())
}

// Matching.

/// Parameters of an address that change from one visit to the next without any other meaning: cache
/// busters, clocks, random numbers, visit and campaign ids. A parameter is also volatile if its
/// value is a timestamp: 10 or 13 digits that begin with 1 or 2.
pub(crate) const VOLATILE_PARAMETERS: &[&str] = &[
    "_",
    "cb",
    "cachebust",
    "cachebuster",
    "nocache",
    "t",
    "ts",
    "time",
    "timestamp",
    "rand",
    "random",
    "rnd",
    "nonce",
    "requestid",
    "request_id",
    "req_id",
    "traceid",
    "trace_id",
    "correlationid",
    "visitid",
    "sid",
    "sessionid",
    "session_id",
    "csrf",
    "_csrf",
    "csrf_token",
    "gclid",
    "fbclid",
    "msclkid",
    "utm_source",
    "utm_medium",
    "utm_campaign",
    "utm_term",
    "utm_content",
];

/// The key of each match level that applies to such a request.
fn match_keys(method: &str, url: &str, body_sha256: Option<&str>) -> [Option<String>; MATCH_LEVELS] {
    let steady = stable_url(url);
    let body = body_sha256.unwrap_or_default();
    [
        Some(format!("{method} {url} {body}")),
        Some(format!("{method} {steady} {body}")),
        body_sha256.map(|_| format!("{method} {steady}")),
    ]
}

/// The address without its volatile parameters, the others sorted.
fn stable_url(url: &str) -> String {
    let Some((path, query)) = url.split_once('?') else { return url.to_owned() };
    let mut steady: Vec<&str> = query.split('&').filter(|parameter| !is_volatile(parameter)).collect();
    steady.sort_unstable();
    if steady.is_empty() { path.to_owned() } else { format!("{path}?{}", steady.join("&")) }
}

fn is_volatile(parameter: &str) -> bool {
    let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
    let is_clock = matches!(value.len(), 10 | 13)
        && value.starts_with(['1', '2'])
        && value.bytes().all(|byte| byte.is_ascii_digit());
    is_clock || parameter.is_empty() || VOLATILE_PARAMETERS.contains(&&*name.to_ascii_lowercase())
}

fn without_fragment(url: &str) -> &str {
    url.split_once('#').map_or(url, |(url, _)| url)
}

// Secrets.

const REDACTED: &str = "redacted";

/// Headers whose values are secrets, besides those whose names end in one of [`SECRET_ENDS`].
const SECRET_HEADERS: &[&str] = &[
    "authorization",
    "proxy-authorization",
    "cookie",
    "www-authenticate",
    "proxy-authenticate",
    "authentication-info",
];

/// Endings of secrets' names: `access_token`, `X-Api-Key`, `clientSecret`; not of `tokenizer` or
/// `author`.
const SECRET_ENDS: &[&str] = &[
    "token",
    "secret",
    "password",
    "passwd",
    "api-key",
    "api_key",
    "apikey",
    "session",
    "sessionid",
    "session_id",
    "session-id",
    "signature",
    "credential",
    "credentials",
];

/// Headers about the bytes on the wire; the stored body is decoded and complete.
const WIRE_HEADERS: &[&str] = &[
    "content-encoding",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "alt-svc",
    "trailer",
    "upgrade",
];

/// A header as it is stored; a cookie keeps its name and attributes, which pages may depend on.
fn kept_header((name, value): (String, String)) -> Option<(String, String)> {
    let lower = name.to_ascii_lowercase();
    if WIRE_HEADERS.contains(&&*lower) {
        return None;
    }
    let value = match &*lower {
        "set-cookie" => {
            let lines = value.split('\n').map(|cookie| {
                let (pair, attributes) =
                    cookie.split_once(';').map_or((cookie, None), |(pair, rest)| (pair, Some(rest)));
                let name = pair.split_once('=').map_or(pair, |(name, _)| name);
                attributes.map_or(format!("{name}={REDACTED}"), |rest| format!("{name}={REDACTED};{rest}"))
            });
            lines.collect::<Vec<_>>().join("\n")
        }
        "location" | "content-location" | "refresh" => redacted_url(&value),
        _ if SECRET_HEADERS.contains(&&*lower) || is_secret_name(&lower) => REDACTED.to_owned(),
        _ => value,
    };
    Some((name, value))
}

fn is_secret_name(name: &str) -> bool {
    name == "auth" || SECRET_ENDS.iter().any(|end| name.ends_with(end))
}

/// Replaces the values of parameters with a secret's name and cuts out the user information before
/// an `@` in the authority.
fn redacted_url(url: &str) -> String {
    let url = without_user(url);
    let Some((path, query)) = url.split_once('?') else { return url };
    let (query, fragment) =
        query.split_once('#').map_or((query, None), |(query, fragment)| (query, Some(fragment)));
    let redacted = query.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, _)) if is_secret_name(&name.to_ascii_lowercase()) => format!("{name}={REDACTED}"),
        _ => parameter.to_owned(),
    });
    let redacted = redacted.collect::<Vec<_>>().join("&");
    match fragment {
        Some(fragment) => format!("{path}?{redacted}#{fragment}"),
        None => format!("{path}?{redacted}"),
    }
}

fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://{}", &rest[at + 1..]),
        None => url.to_owned(),
    }
}

// Paths.

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ArchiveLimits =
        ArchiveLimits { response_bytes_max: 10, trajectory_bytes_max: 25, bytes_max: None };

    fn exchange(method: &str, url: &str, request: Option<&str>) -> HttpExchange {
        HttpExchange {
            method: method.into(),
            url: url.into(),
            request_sha256: request.map(|body| hex(&Sha256::digest(body))),
            resource: "Fetch".into(),
            status: 200,
            headers: vec![("Content-Type".into(), "text/plain".into())],
            body_sha256: None,
            body_bytes: 0,
            missing: None,
        }
    }

    fn request(method: &str, url: &str, body: Option<&str>) -> ArchiveRequest {
        let body_sha256 = body.map(|body| Sha256::digest(body).into());
        ArchiveRequest { method: method.into(), url: url.into(), body_sha256 }
    }

    fn metadata(trajectory: &Id<Trajectory>) -> ArchiveMetadata<'_> {
        ArchiveMetadata { trajectory, task_id: "t", start_url: "http://a.test/?token=1", browser: "b 1" }
    }

    /// Records these requests, each answered by its index in the list, and requests them again.
    #[track_caller]
    fn check(recorded: &[(&str, &str, Option<&str>)], asks: &[(&str, &str, Option<&str>, Option<&str>)]) {
        let folder = tempfile::tempdir().unwrap();
        let id = Id::new("r-g000000-s0-a0").unwrap();
        let limits = ArchiveLimits { trajectory_bytes_max: 1000, ..LIMITS };
        let mut recorder = ArchiveRecorder::create(folder.path(), metadata(&id), limits).unwrap();
        for (index, (method, url, body)) in recorded.iter().enumerate() {
            recorder.add(exchange(method, url, *body), Some(index.to_string().as_bytes())).unwrap();
        }
        recorder.finish().unwrap();
        let mut archive = TrajectoryArchive::open(folder.path(), &id).unwrap();
        for (method, url, body, want) in asks {
            let got = archive.find_response(&request(method, url, *body)).unwrap();
            let got = got.map(|answer| match answer {
                ArchiveResponse::Response { body, .. } => String::from_utf8(body.to_vec()).unwrap(),
                ArchiveResponse::Failure(why) => why,
            });
            assert_eq!(got.as_deref(), *want, "{method} {url} {body:?}");
        }
    }

    #[test]
    fn the_same_address_is_served_in_order_and_the_last_repeats() {
        let poll = ("GET", "http://a.test/poll", None);
        let asks = [Some("0"), Some("1"), Some("2"), Some("2")]
            .map(|want| ("GET", "http://a.test/poll#x", None, want));
        check(&[poll, poll, poll], &asks);
    }

    #[test]
    fn an_exact_match_comes_before_one_without_volatile_parameters() {
        let recorded = [
            ("GET", "http://a.test/?q=x&_=1", None),
            ("GET", "http://a.test/?q=x&_=2", None),
            ("GET", "http://a.test/?q=y", None),
            ("POST", "http://a.test/log?t=5", Some("one")),
            ("POST", "http://a.test/log?t=5", Some("two")),
        ];
        check(
            &recorded,
            &[
                ("GET", "http://a.test/?q=x&_=2", None, Some("1")),
                // Of those that match, the one not served yet.
                ("GET", "http://a.test/?_=3&q=x", None, Some("0")),
                ("GET", "http://a.test/?q=x&when=1700000000000", None, Some("1")),
                ("GET", "http://a.test/?q=z", None, None),
                ("GET", "http://a.test/", None, None),
                ("HEAD", "http://a.test/?q=y", None, None),
                ("POST", "http://a.test/log?t=9", Some("two"), Some("4")),
                ("POST", "http://a.test/log", Some("three"), Some("3")),
                ("POST", "http://a.test/log", None, None),
                ("GET", "http://b.test/?q=y", None, None),
            ],
        );
    }

    #[test]
    fn an_index_holds_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        let id = Id::new("r-g000000-s0-a0").unwrap();
        let mut recorder = ArchiveRecorder::create(folder.path(), metadata(&id), LIMITS).unwrap();
        let url = "https://me:hunter2@a.test/x?access_token=hunter2&q=kept&API_KEY=hunter2#hunter2";
        let mut with_secrets = exchange("GET", url, None);
        for (name, value) in [
            ("Set-Cookie", "sid=hunter2; Path=/; HttpOnly\nother=hunter2"),
            ("Authorization", "Bearer hunter2"),
            ("X-Csrf-Token", "hunter2"),
            ("Location", "/next?session=hunter2&page=2"),
            ("Content-Encoding", "gzip"),
            ("Content-Length", "7"),
        ] {
            with_secrets.headers.push((name.into(), value.into()));
        }
        recorder.add(with_secrets, Some(b"body")).unwrap();
        recorder.finish().unwrap();
        let text = fs::read_to_string(index_path(folder.path(), id.as_str())).unwrap();
        assert!(!text.contains("hunter2"), "{text}");
        for kept in ["sid=redacted; Path=/; HttpOnly", "q=kept", "page=2", "other=redacted", "X-Csrf-Token"] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
        assert!(!text.to_lowercase().contains("content-encoding"), "{text}");
        assert_eq!(
            redacted_url("http://a.test/?author=x&tokenizer=y"),
            "http://a.test/?author=x&tokenizer=y"
        );
        // Secrets do not distinguish requests.
        let mut archive = TrajectoryArchive::open(folder.path(), &id).unwrap();
        let repeated = request("GET", "https://a.test/x?access_token=other&q=kept&API_KEY=other", None);
        assert!(archive.find_response(&repeated).unwrap().is_some());
    }

    #[test]
    fn bodies_are_kept_once_and_within_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let id = Id::new("r-g000000-s0-a0").unwrap();
        let mut recorder = ArchiveRecorder::create(folder.path(), metadata(&id), LIMITS).unwrap();
        for (url, body) in
            [("a", "0123456789"), ("b", "0123456789"), ("c", "01234567890"), ("d", "012345"), ("e", "01234")]
        {
            recorder
                .add(exchange("GET", &format!("http://a.test/{url}"), None), Some(body.as_bytes()))
                .unwrap();
        }
        recorder
            .add(
                HttpExchange {
                    status: 0,
                    missing: Some("TimedOut".into()),
                    ..exchange("GET", "http://a.test/f", None)
                },
                None,
            )
            .unwrap();
        recorder.finish().unwrap();
        let mut archive = TrajectoryArchive::open(folder.path(), &id).unwrap();
        let missing: Vec<_> = archive.exchanges.iter().map(|exchange| exchange.missing.as_deref()).collect();
        assert_eq!(missing, [None, None, Some("too_large"), Some("trajectory_full"), None, Some("TimedOut")]);
        let mut answer = |path: &str| {
            archive.find_response(&request("GET", &format!("http://a.test/{path}"), None)).unwrap()
        };
        assert!(answer("b").is_some());
        assert_eq!(answer("c"), None, "a body that was not stored is not invented");
        assert_eq!(answer("f"), Some(ArchiveResponse::Failure("TimedOut".into())));
        let blobs = || walk(&folder.path().join("blobs"));
        assert_eq!(blobs().len(), 2, "{:?}", blobs());
        fs::write(&blobs()[0], "other").unwrap();
        fs::write(&blobs()[1], "other").unwrap();
        let damaged = archive.find_response(&request("GET", "http://a.test/a", None)).unwrap_err();
        assert!(damaged.to_string().contains("is damaged"), "{damaged}");
    }

    fn walk(folder: &Path) -> Vec<PathBuf> {
        let inside =
            fs::read_dir(folder).unwrap().flat_map(|entry| fs::read_dir(entry.unwrap().path()).unwrap());
        inside.map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn a_strangers_index_is_refused_by_line() {
        let folder = tempfile::tempdir().unwrap();
        let id = Id::new("r-g000000-s0-a0").unwrap();
        let heading =
            r#"{"furrow_archive":1,"trajectory_id":"r","task_id":"t","start_url":"u","browser":"b"}"#;
        let line = |hash: &str| {
            format!(
                r#"{{"method":"GET","url":"u","resource":"Document","status":200,"headers":[],"body_sha256":"{hash}"}}"#
            )
        };
        for (text, want) in [
            (String::new(), "line 1: the file is empty"),
            (format!("{}\n", heading.replace(":1,", ":2,")), "line 1: version 2"),
            (heading.to_owned(), "line 1: the line is cut off"),
            (format!("{heading}\n{{}}\n"), "line 2: missing field"),
            (format!("{heading}\n{}\n", line("../../etc/passwd")), "line 2: body_sha256"),
            (format!("{heading}\n{}\n", line(&"A".repeat(64))), "line 2: body_sha256"),
            (format!("{heading}\n{}\n", " ".repeat(300 << 10)), "line 2: the line is cut off or too long"),
        ] {
            fs::write(index_path(folder.path(), id.as_str()), text).unwrap();
            let error = TrajectoryArchive::open(folder.path(), &id).unwrap_err().to_string();
            assert!(error.contains(want), "{error} does not contain {want:?}");
        }
    }
}
