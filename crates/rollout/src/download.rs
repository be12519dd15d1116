//! Downloads as evidence: what the pages of a trajectory gave to the farm.
//!
//! The report travels inside the probe's report, under a key that only the environment worker
//! writes, so that evidence keeps its parts and its hash.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value, json};

/// A download as evidence: a scorer decides by it, so a page cannot be asked later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownloadedFile {
    /// The name that the page or its server suggested, cut and without control characters and
    /// slashes. It never becomes a path.
    pub name: String,
    /// Also of a file whose content is too large to be kept.
    pub bytes: u64,
    /// Hexadecimal SHA-256 of the content.
    pub sha256: String,
    /// The content of a small file.
    pub content: Option<Bytes>,
}

/// The downloads of a trajectory, in the order in which they began.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DownloadReport {
    /// Those that ended before the trajectory did.
    pub files: Vec<DownloadedFile>,
}

/// The key of a probe's report that only the environment worker writes.
const KEY: &str = "furrow_downloads";

/// Most bytes of all contents in a report, as JSON writes them: half of what a report may have on
/// the wire.
const CONTENT_BYTES_MAX: usize = 512 << 10;

/// Longest name in characters.
const NAME_CHARS_MAX: usize = 200;

impl DownloadReport {
    /// The probe's report with the downloads in it, whatever the page itself reported under their
    /// key. `None` removes that key: the task allows no download.
    pub fn attach(downloads: Option<&Self>, probe_json: Option<String>) -> Option<String> {
        match (downloads, probe_json) {
            // A key may be written with escapes.
            (None, Some(json)) if json.contains(KEY) || json.contains('\\') => Some(Self::strip(&json)),
            (None, json) => json,
            (Some(downloads), json) => {
                let mut report = json.as_deref().and_then(object).unwrap_or_default();
                report.insert(KEY.to_owned(), downloads.to_value());
                Some(Value::Object(report).to_string())
            }
        }
    }

    /// The downloads in a report; `None` if their task allowed none.
    pub fn of(probe_json: &str) -> Option<Self> {
        let report = object(probe_json)?;
        let files = report.get(KEY)?.as_array()?.iter().map(DownloadedFile::of).collect::<Option<_>>()?;
        Some(Self { files })
    }

    /// The probe's report as the page wrote it.
    pub fn strip(probe_json: &str) -> String {
        match object(probe_json) {
            Some(mut report) if report.contains_key(KEY) => {
                report.remove(KEY);
                Value::Object(report).to_string()
            }
            _ => probe_json.to_owned(),
        }
    }

    fn to_value(&self) -> Value {
        let mut left = CONTENT_BYTES_MAX;
        let files = self.files.iter().map(|file| {
            let mut value = json!({ "name": file.name, "bytes": file.bytes, "sha256": file.sha256 });
            if let Some((key, content)) = file.content.as_deref().map(encode) {
                let size = Value::String(content.clone()).to_string().len();
                if size <= left {
                    left -= size;
                    value[key] = content.into();
                }
            }
            value
        });
        files.collect()
    }
}

impl DownloadedFile {
    /// A name for reports, made from one that a page chose.
    pub fn clean_name(suggested: &str) -> String {
        let clean = |c: char| if c.is_control() || matches!(c, '/' | '\\') { '_' } else { c };
        let name: String = suggested.chars().take(NAME_CHARS_MAX).map(clean).collect();
        if name.trim_matches(['.', ' ']).is_empty() { "download".to_owned() } else { name }
    }

    /// The content as text, if it is stored and UTF-8.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(self.content.as_ref()?).ok()
    }

    fn of(value: &Value) -> Option<Self> {
        let text = |key: &str| value.get(key).and_then(Value::as_str);
        let content = match (text("text"), text("base64")) {
            (Some(content), _) => Some(Bytes::copy_from_slice(content.as_bytes())),
            (None, Some(content)) => Some(STANDARD.decode(content).ok()?.into()),
            (None, None) => None,
        };
        Some(Self {
            name: text("name")?.to_owned(),
            bytes: value.get("bytes")?.as_u64()?,
            sha256: text("sha256")?.to_owned(),
            content,
        })
    }
}

/// The key and the text of a content.
fn encode(content: &[u8]) -> (&'static str, String) {
    match std::str::from_utf8(content) {
        Ok(text) => ("text", text.to_owned()),
        Err(_) => ("base64", STANDARD.encode(content)),
    }
}

fn object(json: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(json).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, content: Option<&'static [u8]>) -> DownloadedFile {
        let content = content.map(Bytes::from_static);
        let bytes = content.as_ref().map_or(1 << 30, |content| content.len() as u64);
        DownloadedFile { name: name.into(), bytes, sha256: "ab".repeat(32), content }
    }

    #[test]
    fn downloads_are_read_back_from_any_report() {
        let files =
            vec![file("a.csv", Some(b"x,y\n\0")), file("b.pdf", Some(&[0xff, 0, 1])), file("c.iso", None)];
        let downloads = DownloadReport { files };
        for json in [None, Some(r#"{"done":true}"#), Some(r#"{"furrow_downloads":[]}"#), Some("7")] {
            let whole = DownloadReport::attach(Some(&downloads), json.map(str::to_owned)).unwrap();
            assert_eq!(DownloadReport::of(&whole), Some(downloads.clone()), "{whole}");
            let page = if json == Some(r#"{"done":true}"#) { r#"{"done":true}"# } else { "{}" };
            assert_eq!(DownloadReport::strip(&whole), page);
        }
    }

    #[test]
    fn a_page_cannot_report_downloads_by_itself() {
        let forged = r#"{"done":true,"furrow_downloads":[{"name":"a","bytes":1,"sha256":"00"}]}"#;
        let kept = DownloadReport::attach(None, Some(forged.to_owned())).unwrap();
        assert_eq!(kept, r#"{"done":true}"#);
        let none = DownloadReport::default();
        let kept = DownloadReport::attach(Some(&none), Some(forged.to_owned())).unwrap();
        assert_eq!(DownloadReport::of(&kept), Some(none));
        // A report without the key stays as the page wrote it, spaces included.
        let page = Some("{ \"done\": true }".to_owned());
        assert_eq!(DownloadReport::attach(None, page.clone()), page);
        assert_eq!(DownloadReport::attach(None, None), None);
    }

    #[test]
    fn contents_beyond_the_limit_are_left_out() {
        // JSON writes six bytes for each of these.
        let content = Bytes::from(vec![1; 64 << 10]);
        let one = DownloadedFile { content: Some(content), ..file("a", None) };
        let whole = DownloadReport { files: vec![one; 16] };
        let json = DownloadReport::attach(Some(&whole), None).unwrap();
        assert!(json.len() < CONTENT_BYTES_MAX + 16 * 256, "{}", json.len());
        let read = DownloadReport::of(&json).unwrap().files;
        assert_eq!(read.iter().filter(|file| file.content.is_some()).count(), 1);
        assert_eq!(read.len(), 16);
    }

    #[test]
    fn names_are_no_paths() {
        let long = "n".repeat(300);
        for (suggested, name) in [
            ("a.csv", "a.csv"),
            ("../../etc/passwd", ".._.._etc_passwd"),
            ("a\0b\n", "a_b_"),
            ("", "download"),
            ("..", "download"),
            (&long, &long[..200]),
        ] {
            assert_eq!(DownloadedFile::clean_name(suggested), name);
        }
    }
}
