//! Reports that a site made of its final state in a page of the farm's own, not in the one that the
//! policy acted in.
//!
//! The report travels in place of the probe's, with a key that only the environment worker writes,
//! so that evidence keeps its parts and its hash.

use serde_json::{Map, Value, json};

/// The key of a report that only the environment worker writes.
const KEY: &str = "furrow_graded";

/// Why a final state counts for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VoidState {
    /// The site's own pages cannot have left it so.
    Tampered,
    /// It has more bytes than a site's state may have.
    Oversized,
    /// Parts of it changed that the task did not ask for, such as a second order.
    SideEffects,
}

impl VoidState {
    /// All reasons, to find one by its name.
    pub const ALL: [Self; 3] = [Self::Tampered, Self::Oversized, Self::SideEffects];

    /// Its name in reports and among the components of a score.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tampered => "tampered",
            Self::Oversized => "oversized",
            Self::SideEffects => "side_effects",
        }
    }

    /// The report of a state that no site is asked about.
    pub fn report(self) -> Map<String, Value> {
        let report = json!({ "done": false, "correct": false, "expected": null, "void": self.as_str() });
        report.as_object().cloned().unwrap_or_default()
    }
}

/// The report with the farm's mark, as JSON.
pub fn mark_graded(mut report: Map<String, Value>) -> String {
    report.insert(KEY.to_owned(), Value::Bool(true));
    Value::Object(report).to_string()
}

/// The report of a page without the mark, which it may have written itself.
pub fn strip_graded(probe_json: String) -> String {
    // A key may be written with escapes.
    if !probe_json.contains(KEY) && !probe_json.contains('\\') {
        return probe_json;
    }
    match serde_json::from_str::<Map<String, Value>>(&probe_json) {
        Ok(mut report) if report.contains_key(KEY) => {
            report.remove(KEY);
            Value::Object(report).to_string()
        }
        _ => probe_json,
    }
}

/// Whether the farm had the site make this report.
pub fn is_graded(probe_json: &str) -> bool {
    serde_json::from_str(probe_json).is_ok_and(|report| has_mark(&report))
}

fn has_mark(report: &Map<String, Value>) -> bool {
    report.get(KEY) == Some(&Value::Bool(true))
}

/// Why a graded state counts for nothing, and what the site says about it.
pub fn void_of(probe_json: &str) -> Option<(VoidState, String)> {
    let report: Map<String, Value> = serde_json::from_str(probe_json).ok()?;
    let named = report.get("void").filter(|_| has_mark(&report))?;
    let void = VoidState::ALL.into_iter().find(|void| named.as_str() == Some(void.as_str()));
    let why = report.get("why").and_then(Value::as_str).unwrap_or_default();
    // A reason that this build does not know is one as well.
    Some((void.unwrap_or(VoidState::Tampered), why.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_farms_mark_counts() {
        let page = r#"{"correct":true,"furrow_graded":true,"void":"tampered"}"#;
        let stripped = strip_graded(page.to_owned());
        assert_eq!(stripped, r#"{"correct":true,"void":"tampered"}"#);
        assert_eq!(void_of(&stripped), None, "a page cannot grade itself");
        for escaped in [r#"{"furrow\u005fgraded":true}"#, r#"{"a":{"furrow_graded":true}}"#] {
            assert!(!is_graded(&strip_graded(escaped.into())), "{escaped}");
        }
        for void in VoidState::ALL {
            let marked = mark_graded(void.report());
            assert!(is_graded(&marked), "{marked}");
            assert_eq!(void_of(&marked), Some((void, String::new())));
        }
        assert_eq!(void_of(&mark_graded(Map::new())), None);
        let strange = r#"{"void":"other","why":"x","furrow_graded":true}"#;
        assert_eq!(void_of(strange), Some((VoidState::Tampered, "x".to_owned())));
    }
}
