//! The final state that the environment observed. Only a scorer turns it into a reward.

use bytes::Bytes;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::end::FaultOwner;

/// Final state of a trajectory as reported by the environment worker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evidence {
    /// Encoded screenshot of the last page; environment workers send evidence only with one.
    pub screenshot: Option<Bytes>,
    /// Address of the active tab.
    pub url: Option<String>,
    /// Title of the active tab.
    pub title: Option<String>,
    /// Text of the answer; `None` unless the policy ended the trajectory with one.
    pub answer: Option<String>,
    /// The JSON object that the suite's probe returned. No probe can run on the browser's error
    /// page; the environment worker's own report, [`ErrorPage::report`], replaces it there.
    pub probe_json: Option<String>,
    /// What the scorer's queries found ([`crate::Finding::list_to_json`]); `None` without queries.
    pub findings_json: Option<String>,
}

/// The browser's own error page, shown where a page should be.
///
/// It travels as a report in place of the probe's, so that evidence keeps its parts and its hash.
/// Reports of earlier builds say that an error page is shown (`away`), but not who caused it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorPage {
    /// Who caused the error page: the policy if it navigated to an address that did not answer, the
    /// farm if an address of the farm itself did not answer or the policy had not acted yet.
    pub fault: FaultOwner,
    /// The address that could not be loaded.
    pub url: String,
}

/// The scheme under which the browser shows its error pages, as a page's script reads it.
const ERROR_SCHEME: &str = "chrome-error:";

impl ErrorPage {
    /// Formats the environment worker's report as a JSON object.
    pub fn report(&self) -> String {
        let Self { fault, url } = self;
        json!({ "done": false, "away": ERROR_SCHEME, "error_page": { "fault": fault.as_str(), "url": url } })
            .to_string()
    }

    /// Whether a report says that an error page is shown.
    pub fn is_reported(report: &Map<String, Value>) -> bool {
        report.get("away").and_then(Value::as_str) == Some(ERROR_SCHEME)
    }

    /// Parses such a report; `None` if it does not say who caused the error page.
    pub fn of_report(report: &Map<String, Value>) -> Option<Self> {
        let page = report.get("error_page").filter(|_| Self::is_reported(report))?;
        let text = |key: &str| page.get(key).and_then(Value::as_str);
        Some(Self { fault: FaultOwner::parse(text("fault")?)?, url: text("url")?.to_owned() })
    }
}

impl Evidence {
    /// SHA-256 over screenshot, url, title, answer and probe_json in this order, each preceded by
    /// its length as u64 little-endian. An absent part is encoded as the length with all bits set
    /// and no bytes. findings_json follows in the same way only where it is present, so that
    /// evidence of earlier builds keeps its hash.
    pub fn sha256(&self) -> [u8; 32] {
        let text = |part: &Option<String>| part.as_ref().map(|text| text.as_bytes().to_vec());
        let mut parts = vec![
            self.screenshot.as_ref().map(|bytes| bytes.to_vec()),
            text(&self.url),
            text(&self.title),
            text(&self.answer),
            text(&self.probe_json),
        ];
        parts.extend(self.findings_json.is_some().then(|| text(&self.findings_json)));
        let mut hash = Sha256::new();
        for part in parts {
            match part {
                None => hash.update(u64::MAX.to_le_bytes()),
                Some(bytes) => {
                    hash.update((bytes.len() as u64).to_le_bytes());
                    hash.update(&bytes);
                }
            }
        }
        hash.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_page_is_read_back_and_one_of_an_earlier_build_names_no_fault() {
        let read = |json: &str| {
            let object: Map<String, Value> = serde_json::from_str(json).unwrap();
            (ErrorPage::is_reported(&object), ErrorPage::of_report(&object))
        };
        for fault in [FaultOwner::Policy, FaultOwner::Farm] {
            let page = ErrorPage { fault, url: "https://a.test/?q=\"1\"".to_owned() };
            assert_eq!(read(&page.report()), (true, Some(page)));
        }
        for (json, is_reported) in [
            (r#"{"done":false,"away":"chrome-error:"}"#, true),
            (r#"{"done":false,"away":"chrome-error:","error_page":{"fault":"neither","url":"x"}}"#, true),
            (r#"{"done":false,"away":"chrome-error:","error_page":{"fault":"policy"}}"#, true),
            (r#"{"done":false,"away":"chrome-error:","error_page":true}"#, true),
            (r#"{"done":false,"away":"http:","error_page":{"fault":"policy","url":"x"}}"#, false),
            (r#"{"done":false,"away":true}"#, false),
            ("{}", false),
        ] {
            assert_eq!(read(json), (is_reported, None), "{json}");
        }
    }

    #[test]
    fn absent_and_empty_parts_hash_differently() {
        let absent = Evidence::default();
        let empty = Evidence { answer: Some(String::new()), ..Evidence::default() };
        let moved = Evidence { title: Some(String::new()), ..Evidence::default() };
        assert_ne!(absent.sha256(), empty.sha256());
        assert_ne!(empty.sha256(), moved.sha256());
        let found = Evidence { findings_json: Some("[]".to_owned()), ..Evidence::default() };
        assert_ne!(absent.sha256(), found.sha256());
    }
}
