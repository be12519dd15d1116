//! The static sites that a worker serves itself, each under its own host name.
//!
//! A site is a folder or a part of a zip archive (the MiniWoB++ wheel is one). Its files are read
//! on first request and kept in a bounded cache: a run shows the same pages from its first
//! trajectory to its last. Pages of suites of sites run their own scripts only
//! (`sites/script_policy.rs`).

mod script_policy;

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, Uri, header};
use http_body_util::Full;
use zip::ZipArchive;
use zip::result::ZipError;

use crate::hosts::HostName;
use script_policy::script_policy;

/// The page of a folder.
const INDEX: &str = "index.html";

/// An empty page of every site, on which the worker reads a site's storage. Nothing runs in it.
pub(crate) const STORAGE_PAGE: &str = "/.furrow/storage";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticSite {
    /// Host name of the site, served over plain http on port 80; only the worker's own filter
    /// resolves it.
    pub host: String,
    /// Location of its files.
    pub root: FileRoot,
}

/// Location of a site's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileRoot {
    /// A folder; nothing outside it is served, even through links.
    Folder(PathBuf),
    /// Overlaid folders: the first that has a file serves it.
    Layers(Vec<PathBuf>),
    /// The same, of an application that draws every page itself: a path that is no file and whose
    /// last part has no extension is answered with `index.html`.
    SinglePage(Vec<PathBuf>),
    /// The entries of a zip archive below a prefix.
    Zip {
        path: PathBuf,
        /// Prefix of the entries, such as `miniwob/html`; empty for all of them.
        prefix: String,
    },
    /// Files generated on request.
    Made(SharedMaker),
}

/// Generates a site's files.
pub trait FileMaker: std::fmt::Debug + Send + Sync {
    /// Returns the file of this name below the root, `None` if there is none. Blocks.
    fn make_file(&self, name: &str) -> io::Result<Option<Vec<u8>>>;
}

/// A shared file maker. Two are equal if they are the same object.
#[derive(Debug, Clone)]
pub struct SharedMaker(pub Arc<dyn FileMaker>);

impl PartialEq for SharedMaker {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedMaker {}

/// All sites of a worker, validated and ready for requests.
#[derive(Debug)]
pub struct SiteServer {
    roots: HashMap<HostName, Arc<OpenedRoot>>,
    cache: Mutex<FileCache>,
    file_bytes_max: u64,
}

/// Limits on memory for serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteLimits {
    /// Largest file that is served, in bytes.
    pub file_bytes_max: u64,
    /// Bytes of files cached for later requests, for all sites together.
    pub cache_bytes_max: u64,
}

/// Why a site cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SiteError {
    /// Its name cannot be a host name.
    #[error(
        "site {host:?} cannot be served: use a host name such as starter.test, not an address or localhost"
    )]
    Host { host: String },
    /// Two sites have the same name.
    #[error("site {host:?} is listed twice: give each site its own host name")]
    Twice { host: String },
    /// Its folder cannot be opened.
    #[error("site {host:?}: folder {path:?} cannot be opened")]
    Folder {
        host: String,
        /// Path of the folder.
        path: PathBuf,
        source: io::Error,
    },
    /// Its archive cannot be opened.
    #[error("site {host:?}: zip archive {path:?} cannot be opened")]
    Zip {
        host: String,
        /// Path of the archive.
        path: PathBuf,
        source: ZipError,
    },
    /// Its archive contains nothing below the prefix.
    #[error("site {host:?}: zip archive {path:?} contains nothing below {prefix:?}")]
    EmptyPrefix {
        host: String,
        /// Path of the archive.
        path: PathBuf,
        prefix: String,
    },
}

impl SiteServer {
    /// Validates every name and opens every root.
    pub fn open(sites: &[StaticSite], limits: SiteLimits) -> Result<Self, SiteError> {
        let mut roots = HashMap::new();
        for site in sites {
            let host =
                HostName::parse(&site.host).map_err(|_| SiteError::Host { host: site.host.clone() })?;
            if roots.insert(host, Arc::new(OpenedRoot::open(site)?)).is_some() {
                return Err(SiteError::Twice { host: site.host.clone() });
            }
        }
        let cache = Mutex::new(FileCache::new(limits.cache_bytes_max));
        Ok(Self { roots, cache, file_bytes_max: limits.file_bytes_max })
    }

    /// Whether a site of this name is served here.
    pub fn has(&self, host: &HostName) -> bool {
        self.roots.contains_key(host)
    }

    /// Whether the files of this site are made on request, from the same list as its tasks.
    pub(crate) fn is_made(&self, host: &HostName) -> bool {
        self.roots.get(host).is_some_and(|root| matches!(**root, OpenedRoot::Made(_)))
    }

    /// Answers one request. Only the path of `uri` is used, and its query when a folder is
    /// redirected to its own slash.
    pub async fn answer(&self, host: &HostName, method: &Method, uri: &Uri) -> Response<Full<Bytes>> {
        if method != Method::GET && method != Method::HEAD {
            return text_response(StatusCode::METHOD_NOT_ALLOWED, "a static site answers GET and HEAD only");
        }
        let mut response = match self.find(host, uri.path()).await {
            _ if uri.path() == STORAGE_PAGE => storage_page(),
            Ok(SiteEntry::File(file)) => file_response(&file),
            Ok(SiteEntry::Folder) => redirect_response(uri),
            Err(miss) => miss.response(host, uri.path()),
        };
        if method == Method::HEAD {
            let length = hyper::body::Body::size_hint(response.body()).lower();
            response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
            *response.body_mut() = Full::default();
        }
        response
    }

    async fn find(&self, host: &HostName, path: &str) -> Result<SiteEntry, SiteMiss> {
        let root = self.roots.get(host).ok_or(SiteMiss::NotFound)?.clone();
        let relative = relative_path(path)?;
        let key = (host.clone(), relative.clone());
        if let Some(file) = self.cache().get(&key) {
            return Ok(SiteEntry::File(file));
        }
        let file_bytes_max = self.file_bytes_max;
        let read = tokio::task::spawn_blocking(move || root.find(&relative, file_bytes_max));
        let found = read.await.map_err(|error| SiteMiss::Unreadable(io::Error::other(error)))??;
        if let SiteEntry::File(file) = &found {
            self.cache().put(key, file.clone());
        }
        Ok(found)
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, FileCache> {
        // A panic while the lock was held can at most have lost a cached file.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
enum OpenedRoot {
    /// Open folders; the first that has a file serves it.
    Folders {
        roots: Vec<PathBuf>,
        /// Whether `index.html` stands for paths that are no files.
        is_single_page: bool,
        /// Whether the site is one of a suite of sites.
        is_suite: bool,
    },
    Zip {
        archive: ZipArchive<SharedFile>,
        prefix: String,
    },
    Made(SharedMaker),
}

/// A file as it is sent.
#[derive(Debug, Clone)]
struct SiteFile {
    bytes: Bytes,
    media_type: &'static str,
    /// Its Content-Security-Policy; `None` lets it run any script.
    script_policy: Option<HeaderValue>,
}

enum SiteEntry {
    File(SiteFile),
    /// A folder requested without its slash: relative links of its page would not resolve.
    Folder,
}

#[derive(Debug)]
enum SiteMiss {
    BadPath,
    NotFound,
    TooLarge,
    Unreadable(io::Error),
}

impl OpenedRoot {
    fn open(site: &StaticSite) -> Result<Self, SiteError> {
        match &site.root {
            FileRoot::Folder(path) => {
                Self::open_folders(&site.host, std::slice::from_ref(path), false, false)
            }
            FileRoot::Layers(paths) => Self::open_folders(&site.host, paths, false, true),
            FileRoot::SinglePage(paths) => Self::open_folders(&site.host, paths, true, true),
            FileRoot::Zip { path, prefix } => Self::open_zip(&site.host, path, prefix),
            FileRoot::Made(made) => Ok(Self::Made(made.clone())),
        }
    }

    fn open_folders(
        host: &str,
        paths: &[PathBuf],
        is_single_page: bool,
        is_suite: bool,
    ) -> Result<Self, SiteError> {
        let open = |path: &PathBuf| {
            let opened = path.canonicalize().and_then(|root| std::fs::read_dir(&root).map(|_| root));
            opened.map_err(|source| SiteError::Folder {
                host: host.to_owned(),
                path: path.to_owned(),
                source,
            })
        };
        let roots = paths.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self::Folders { roots, is_single_page, is_suite })
    }

    fn open_zip(host: &str, path: &Path, prefix: &str) -> Result<Self, SiteError> {
        let opened = File::open(path)
            .map_err(ZipError::Io)
            .and_then(|file| ZipArchive::new(SharedFile { file: Arc::new(file), at: 0 }));
        let archive = opened.map_err(|source| SiteError::Zip {
            host: host.to_owned(),
            path: path.to_owned(),
            source,
        })?;
        let prefix = match prefix.trim_matches('/') {
            "" => String::new(),
            inner => format!("{inner}/"),
        };
        if !archive.file_names_raw().any(|name| name.starts_with(prefix.as_bytes())) {
            let host = host.to_owned();
            let path = path.to_owned();
            return Err(SiteError::EmptyPrefix { host, path, prefix });
        }
        Ok(Self::Zip { archive, prefix })
    }

    fn find(&self, relative: &str, file_bytes_max: u64) -> Result<SiteEntry, SiteMiss> {
        match self.read(relative, file_bytes_max) {
            Ok(bytes) => Ok(SiteEntry::File(self.file(bytes, media_type(relative)))),
            Err(SiteMiss::NotFound) if self.has(&format!("{relative}/index.html")) => Ok(SiteEntry::Folder),
            Err(SiteMiss::NotFound) if self.draws(relative) => {
                let bytes = self.read(INDEX, file_bytes_max)?;
                Ok(SiteEntry::File(self.file(bytes, media_type(INDEX))))
            }
            Err(miss) => Err(miss),
        }
    }

    /// Pages of a suite of sites run what is in their files. Other pages, as those of MiniWoB++,
    /// write handlers into their markup.
    fn file(&self, bytes: Bytes, media_type: &'static str) -> SiteFile {
        let is_page = media_type.starts_with("text/html") || media_type.starts_with("image/svg");
        let is_own = matches!(self, Self::Folders { is_suite: true, .. });
        let script_policy = if is_page && is_own { script_policy(&bytes) } else { None };
        SiteFile { bytes, media_type, script_policy }
    }

    /// Whether a path that is no file is a page of a single-page application. A missing picture or
    /// script has an extension and stays missing.
    fn draws(&self, relative: &str) -> bool {
        // A path that ends in a slash was completed to its index.
        let path = relative.strip_suffix(INDEX).map_or(relative, |folder| folder.trim_end_matches('/'));
        let last = path.rsplit('/').next().unwrap_or_default();
        matches!(self, Self::Folders { is_single_page: true, .. }) && !last.contains('.')
    }

    fn has(&self, relative: &str) -> bool {
        match self {
            Self::Folders { roots, .. } => {
                roots.iter().any(|root| resolve_inside(root, relative).is_ok_and(|path| path.is_file()))
            }
            Self::Zip { archive, prefix } => archive.index_for_name(&format!("{prefix}{relative}")).is_some(),
            // Generated sites have no folders.
            Self::Made(_) => false,
        }
    }

    fn read(&self, relative: &str, bytes_max: u64) -> Result<Bytes, SiteMiss> {
        match self {
            Self::Folders { roots, .. } => {
                let looked = roots.iter().map(|root| read_file(root, relative, bytes_max));
                let mut found = looked.skip_while(|found| matches!(found, Err(SiteMiss::NotFound)));
                found.next().unwrap_or(Err(SiteMiss::NotFound))
            }
            Self::Zip { archive, prefix } => {
                // A clone shares the file and its table of contents, so that readers never wait for
                // each other.
                let mut archive = archive.clone();
                let entry = archive.by_name(&format!("{prefix}{relative}")).map_err(SiteMiss::from)?;
                if entry.is_dir() {
                    return Err(SiteMiss::NotFound);
                }
                read_capped(entry, bytes_max)
            }
            Self::Made(SharedMaker(maker)) => {
                match maker.make_file(relative).map_err(SiteMiss::Unreadable)? {
                    None => Err(SiteMiss::NotFound),
                    Some(bytes) if bytes.len() as u64 > bytes_max => Err(SiteMiss::TooLarge),
                    Some(bytes) => Ok(bytes.into()),
                }
            }
        }
    }
}

/// The archive's file, read at offsets: a clone is cheap and has its own position.
#[derive(Debug, Clone)]
struct SharedFile {
    file: Arc<File>,
    at: u64,
}

impl Read for SharedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for SharedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.file.metadata()?.len().checked_add_signed(by),
        };
        self.at = target.ok_or_else(|| io::Error::other("a seek before the start of the file"))?;
        Ok(self.at)
    }
}

type CacheKey = (HostName, String);

/// The most recently read files, up to a number of bytes.
#[derive(Debug)]
struct FileCache {
    files: HashMap<CacheKey, SiteFile>,
    order: VecDeque<CacheKey>,
    bytes: u64,
    bytes_max: u64,
}

impl FileCache {
    fn new(bytes_max: u64) -> Self {
        Self { files: HashMap::new(), order: VecDeque::new(), bytes: 0, bytes_max }
    }

    fn get(&self, key: &CacheKey) -> Option<SiteFile> {
        self.files.get(key).cloned()
    }

    fn put(&mut self, key: CacheKey, file: SiteFile) {
        let size = file.bytes.len() as u64;
        if size > self.bytes_max || self.files.contains_key(&key) {
            return;
        }
        while self.bytes + size > self.bytes_max {
            let oldest = self.order.pop_front().and_then(|oldest| self.files.remove(&oldest));
            self.bytes -= oldest.map_or(self.bytes, |file| file.bytes.len() as u64);
        }
        self.bytes += size;
        self.order.push_back(key.clone());
        self.files.insert(key, file);
    }
}

/// The path of a file below the root, decoded once: `%2e%2e` is `..` and refused, `%252e` is a file
/// whose name begins with `%2e`.
fn relative_path(path: &str) -> Result<String, SiteMiss> {
    let inner = path.strip_prefix('/').ok_or(SiteMiss::BadPath)?;
    let mut segments = inner.split('/').map(decode_segment).collect::<Result<Vec<_>, _>>()?;
    // `/` and `/folder/` name the folder's page.
    if let Some(last) = segments.last_mut().filter(|last| last.is_empty()) {
        *last = INDEX.to_owned();
    }
    match segments.iter().any(|segment| segment.is_empty() || segment.starts_with('.')) {
        // Browsers resolve dots before they send a request, so dots in a request try to leave the
        // root; dot files are not part of a site.
        true => Err(SiteMiss::NotFound),
        false => Ok(segments.join("/")),
    }
}

fn decode_segment(segment: &str) -> Result<String, SiteMiss> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let (byte, after) = match first {
            b'%' => (hex_byte(tail).ok_or(SiteMiss::BadPath)?, &tail[2..]),
            plain => (plain, tail),
        };
        if matches!(byte, b'/' | b'\\' | 0) {
            return Err(SiteMiss::BadPath);
        }
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8(bytes).map_err(|_| SiteMiss::BadPath)
}

fn hex_byte(digits: &[u8]) -> Option<u8> {
    let digit = |at: usize| digits.get(at).and_then(|&digit| char::from(digit).to_digit(16));
    Some((digit(0)? * 16 + digit(1)?) as u8)
}

/// The real location of a relative path. Links are resolved before the check, so that none leads
/// out of the root.
fn resolve_inside(root: &Path, relative: &str) -> Result<PathBuf, SiteMiss> {
    let path = root.join(relative).canonicalize().map_err(SiteMiss::from)?;
    if path.starts_with(root) { Ok(path) } else { Err(SiteMiss::NotFound) }
}

fn read_file(root: &Path, relative: &str, bytes_max: u64) -> Result<Bytes, SiteMiss> {
    let path = resolve_inside(root, relative)?;
    if !path.is_file() {
        return Err(SiteMiss::NotFound);
    }
    read_capped(File::open(path).map_err(SiteMiss::from)?, bytes_max)
}

fn read_capped(source: impl Read, bytes_max: u64) -> Result<Bytes, SiteMiss> {
    let mut bytes = Vec::new();
    source.take(bytes_max + 1).read_to_end(&mut bytes).map_err(SiteMiss::from)?;
    if bytes.len() as u64 > bytes_max { Err(SiteMiss::TooLarge) } else { Ok(bytes.into()) }
}

impl From<io::Error> for SiteMiss {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => {
                Self::NotFound
            }
            _ => Self::Unreadable(error),
        }
    }
}

impl From<ZipError> for SiteMiss {
    fn from(error: ZipError) -> Self {
        match error {
            ZipError::FileNotFound => Self::NotFound,
            other => Self::Unreadable(io::Error::other(other)),
        }
    }
}

impl SiteMiss {
    fn response(self, host: &HostName, path: &str) -> Response<Full<Bytes>> {
        match self {
            Self::BadPath => text_response(StatusCode::BAD_REQUEST, "this path cannot be a file's"),
            Self::NotFound => text_response(StatusCode::NOT_FOUND, "there is no such page on this site"),
            Self::TooLarge => text_response(
                StatusCode::INTERNAL_SERVER_ERROR,
                "this file is larger than env.site_file_bytes_max",
            ),
            Self::Unreadable(error) => {
                tracing::warn!(%host, path, %error, "a file of an offline site cannot be read");
                text_response(StatusCode::INTERNAL_SERVER_ERROR, "this file cannot be read")
            }
        }
    }
}

fn file_response(file: &SiteFile) -> Response<Full<Bytes>> {
    let mut response = response(StatusCode::OK, file.media_type, file.bytes.clone());
    if let Some(policy) = &file.script_policy {
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy.clone());
    }
    response
}

fn storage_page() -> Response<Full<Bytes>> {
    let mut response =
        response(StatusCode::OK, HTML, Bytes::from_static(b"<!doctype html><title>storage</title>"));
    let nothing = HeaderValue::from_static("default-src 'none'");
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, nothing);
    response
}

fn redirect_response(uri: &Uri) -> Response<Full<Bytes>> {
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let mut response = text_response(StatusCode::MOVED_PERMANENTLY, "this folder's address ends in a slash");
    if let Ok(target) = format!("{}/{query}", uri.path()).try_into() {
        response.headers_mut().insert(header::LOCATION, target);
    }
    response
}

/// A small page for people: a status and one sentence.
pub(crate) fn text_response(status: StatusCode, sentence: &str) -> Response<Full<Bytes>> {
    let safe = sentence.replace('&', "&amp;").replace('<', "&lt;");
    let title = format!("{} {}", status.as_u16(), status.canonical_reason().unwrap_or_default());
    let page = format!("<!doctype html><title>{title}</title><h1>{title}</h1><p>{safe}</p>");
    response(status, HTML, page.into())
}

fn response(status: StatusCode, media_type: &'static str, bytes: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // A context is disposed of with its cache, and a page must not differ between its first load
    // and its second.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

const HTML: &str = "text/html; charset=utf-8";

fn media_type(path: &str) -> &'static str {
    let extension = path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map_or("", |(_, end)| end);
    match extension.to_ascii_lowercase().as_str() {
        "html" | "htm" => HTML,
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" | "map" => "application/json",
        "txt" | "md" => "text/plain; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "xml" => "application/xml",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "ico" => "image/x-icon",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "ttf" => "font/ttf",
        "otf" => "font/otf",
        "wasm" => "application/wasm",
        "pdf" => "application/pdf",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        "webm" => "video/webm",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::io::Write;

    const LIMITS: SiteLimits = SiteLimits { file_bytes_max: 1000, cache_bytes_max: 1500 };

    /// `outside.txt` beside the root, and below it pages, a hidden file and links to outside and
    /// inside.
    fn folder() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("root");
        std::fs::create_dir_all(root.join("sub")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(root.join(name), text).unwrap();
        std::fs::write(home.path().join("outside.txt"), "secret").unwrap();
        write("index.html", "home");
        write("sub/index.html", "sub home");
        write("sub/a b.txt", "spaced");
        write("%2e.txt", "percent");
        write(".hidden", "secret");
        write("large.bin", &"x".repeat(1001));
        std::os::unix::fs::symlink("../outside.txt", root.join("out.txt")).unwrap();
        std::os::unix::fs::symlink("..", root.join("up")).unwrap();
        std::os::unix::fs::symlink("index.html", root.join("in.html")).unwrap();
        home
    }

    fn archive() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        let mut zip = zip::ZipWriter::new(File::create(home.path().join("site.zip")).unwrap());
        let options = zip::write::SimpleFileOptions::default();
        for (name, text) in [
            ("outside.txt", "secret".to_owned()),
            ("in/index.html", "home".to_owned()),
            ("in/sub/index.html", "sub home".to_owned()),
            ("in/sub/a b.txt", "spaced".to_owned()),
            ("in/%2e.txt", "percent".to_owned()),
            ("in/.hidden", "secret".to_owned()),
            ("in/large.bin", "x".repeat(1001)),
            ("in/in.html", "home".to_owned()),
        ] {
            zip.start_file(name, options).unwrap();
            zip.write_all(text.as_bytes()).unwrap();
        }
        zip.finish().unwrap();
        home
    }

    fn both() -> (SiteServer, [tempfile::TempDir; 2]) {
        let folder = folder();
        let archive = archive();
        let zip = FileRoot::Zip { path: archive.path().join("site.zip"), prefix: "/in/".into() };
        let sites = [
            StaticSite { host: "folder.test".into(), root: FileRoot::Folder(folder.path().join("root")) },
            StaticSite { host: "zip.test".into(), root: zip },
        ];
        (SiteServer::open(&sites, LIMITS).unwrap(), [folder, archive])
    }

    async fn ask(
        sites: &SiteServer,
        host: &str,
        method: Method,
        path: &str,
    ) -> (u16, String, http::HeaderMap) {
        // Built from parts: `Uri` refuses nothing that a raw request line could contain.
        let uri = Uri::try_from(path).unwrap();
        let answer = sites.answer(&HostName::parse(host).unwrap(), &method, &uri).await;
        let (parts, body) = answer.into_parts();
        let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        (parts.status.as_u16(), text, parts.headers)
    }

    #[tokio::test]
    async fn a_folder_and_a_zip_answer_alike() {
        let (sites, _homes) = both();
        for host in ["folder.test", "zip.test"] {
            for (path, status, text) in [
                ("/", 200, "home"),
                ("/index.html", 200, "home"),
                ("/index.html?q=1", 200, "home"),
                ("/in.html", 200, "home"),
                ("/sub/", 200, "sub home"),
                ("/sub/a%20b.txt", 200, "spaced"),
                ("/%69ndex.html", 200, "home"),
                ("/%252e.txt", 200, "percent"),
                ("/sub", 301, "ends in a slash"),
                ("/missing.html", 404, "no such page"),
                ("/index.html/more", 404, "no such page"),
                ("//index.html", 404, "no such page"),
                ("/sub//index.html", 404, "no such page"),
                ("/out.txt", 404, "no such page"),
                ("/up/outside.txt", 404, "no such page"),
                ("/../outside.txt", 404, "no such page"),
                ("/sub/../../outside.txt", 404, "no such page"),
                ("/%2e%2e/outside.txt", 404, "no such page"),
                ("/.%2e/outside.txt", 404, "no such page"),
                ("/./index.html", 404, "no such page"),
                ("/.hidden", 404, "no such page"),
                ("/..%2foutside.txt", 400, "cannot be a file"),
                ("/..%5coutside.txt", 400, "cannot be a file"),
                ("/index.html%00.txt", 400, "cannot be a file"),
                ("/%ff", 400, "cannot be a file"),
                ("/%2", 400, "cannot be a file"),
                ("/%zz", 400, "cannot be a file"),
                ("/large.bin", 500, "site_file_bytes_max"),
            ] {
                let got = ask(&sites, host, Method::GET, path).await;
                assert!((got.0, got.1.contains(text)) == (status, true), "{host} {path}: {got:?}");
                assert!(!got.1.contains("secret"), "{host} {path}");
                assert_eq!(got.2[header::CACHE_CONTROL], "no-store", "{host} {path}");
            }
        }
    }

    #[tokio::test]
    async fn a_single_page_draws_every_path_that_is_no_file() {
        let home = folder();
        let root = FileRoot::SinglePage(vec![home.path().join("root")]);
        let sites = SiteServer::open(&[StaticSite { host: "app.test".into(), root }], LIMITS).unwrap();
        for (path, status, text) in [
            ("/", 200, "home"),
            ("/orders", 200, "home"),
            ("/orders/17", 200, "home"),
            ("/orders/17/", 200, "home"),
            ("/orders/17?tab=2", 200, "home"),
            ("/sub/", 200, "sub home"),
            ("/sub", 301, "ends in a slash"),
            ("/sub/a%20b.txt", 200, "spaced"),
            // A missing file stays missing: a page in place of a script hides the mistake.
            ("/app.js", 404, "no such page"),
            ("/assets/logo.png", 404, "no such page"),
            ("/v1.2/", 404, "no such page"),
            ("/.hidden", 404, "no such page"),
            ("/../outside", 404, "no such page"),
            ("/out.txt", 404, "no such page"),
            ("/%2", 400, "cannot be a file"),
        ] {
            let got = ask(&sites, "app.test", Method::GET, path).await;
            assert!((got.0, got.1.contains(text)) == (status, true), "{path}: {got:?}");
        }
        let page = ask(&sites, "app.test", Method::GET, "/orders/17").await;
        assert!(page.2[header::CONTENT_TYPE].to_str().unwrap().starts_with("text/html"));
    }

    #[tokio::test]
    async fn the_first_of_layered_folders_that_has_a_file_serves_it() {
        let above = tempfile::tempdir().unwrap();
        let below = tempfile::tempdir().unwrap();
        for (home, name, text) in
            [(&above, "both.txt", "above"), (&below, "both.txt", "below"), (&below, "kit/only.js", "kit")]
        {
            let path = home.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        std::fs::write(above.path().join("long.txt"), "x".repeat(1001)).unwrap();
        std::fs::write(below.path().join("long.txt"), "short").unwrap();
        let root = FileRoot::Layers(vec![above.path().to_owned(), below.path().to_owned()]);
        let sites = SiteServer::open(&[StaticSite { host: "s.test".into(), root }], LIMITS).unwrap();
        for (path, status, text) in [
            ("/both.txt", 200, "above"),
            ("/kit/only.js", 200, "kit"),
            ("/none.txt", 404, "no such page"),
            ("/long.txt", 500, "site_file_bytes_max"),
        ] {
            let (got, body, _) = ask(&sites, "s.test", Method::GET, path).await;
            assert!(got == status && body.contains(text), "{path}: {got} {body}");
        }
    }

    #[tokio::test]
    async fn head_has_the_length_and_no_body_and_nothing_else_is_allowed() {
        let (sites, _homes) = both();
        let (status, text, headers) = ask(&sites, "zip.test", Method::HEAD, "/").await;
        assert_eq!(
            (status, text.as_str(), &headers[header::CONTENT_LENGTH]),
            (200, "", &"4".parse().unwrap())
        );
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS, Method::TRACE] {
            assert_eq!(ask(&sites, "zip.test", method, "/").await.0, 405);
        }
        let (_, _, headers) = ask(&sites, "zip.test", Method::GET, "/sub?a=1").await;
        assert_eq!(headers[header::LOCATION], "/sub/?a=1");
    }

    #[tokio::test]
    async fn the_cache_stays_below_its_bound_and_keeps_the_newest() {
        let home = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(home.path().join(name), name.repeat(600)).unwrap();
        }
        let site = StaticSite { host: "s.test".into(), root: FileRoot::Folder(home.path().to_owned()) };
        let sites = SiteServer::open(&[site], LIMITS).unwrap();
        for path in ["/a", "/b", "/a", "/c"] {
            assert_eq!(ask(&sites, "s.test", Method::GET, path).await.0, 200);
        }
        assert_eq!(sites.cache().bytes, 1200);
        std::fs::remove_file(home.path().join("a")).unwrap();
        std::fs::remove_file(home.path().join("c")).unwrap();
        assert_eq!(ask(&sites, "s.test", Method::GET, "/a").await.0, 404);
        assert_eq!(ask(&sites, "s.test", Method::GET, "/c").await.1, "c".repeat(600));
    }

    #[track_caller]
    fn refused(host: &str, root: FileRoot, want: &str) {
        let error = SiteServer::open(&[StaticSite { host: host.into(), root }], LIMITS).unwrap_err();
        assert!(error.to_string().contains(want), "{error}");
    }

    #[test]
    fn a_site_that_cannot_be_served_is_named() {
        let home = archive();
        let folder = || FileRoot::Folder(home.path().to_owned());
        let zip =
            |name: &str, prefix: &str| FileRoot::Zip { path: home.path().join(name), prefix: prefix.into() };
        refused("127.0.0.1", folder(), "not an address");
        refused("localhost", folder(), "not an address");
        refused("two words", folder(), "use a host name");
        refused("s.test", FileRoot::Folder(home.path().join("none")), "cannot be opened");
        refused("s.test", FileRoot::Folder(home.path().join("site.zip")), "cannot be opened");
        refused("s.test", zip("none.zip", ""), "cannot be opened");
        refused("s.test", zip("site.zip", "elsewhere"), "contains nothing below");
        let twice = [
            StaticSite { host: "s.test".into(), root: folder() },
            StaticSite { host: "S.TEST".into(), root: folder() },
        ];
        assert!(SiteServer::open(&twice, LIMITS).unwrap_err().to_string().contains("twice"));
    }

    #[test]
    fn media_types_follow_the_last_ending() {
        for (path, want) in [
            ("index.html", HTML),
            ("a/b.min.JS", "text/javascript; charset=utf-8"),
            ("pic.tar.png", "image/png"),
            ("v1.2/readme", "application/octet-stream"),
            ("none", "application/octet-stream"),
        ] {
            assert_eq!(media_type(path), want, "{path}");
        }
    }
}
