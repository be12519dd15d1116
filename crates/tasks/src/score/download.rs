//! Conditions on the files that the pages of a trajectory let it download.

use furrow_rollout::{DownloadReport, DownloadedFile};

use super::verdict::{RuleVerdict, ScoreError, ScoreInput};
use crate::fields::{JsonFields, short};
use crate::glob;

const NAME: &str = "download";

/// One download must meet all given conditions.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DownloadRule {
    name: Option<String>,
    min_bytes: u64,
    sha256: Option<String>,
    contains: Vec<String>,
}

impl DownloadRule {
    /// Keys: `name` (a pattern with `*` and `?`), `min_bytes`, `sha256` (hexadecimal), `contains`
    /// (a text or several, each of which the file contains).
    pub(super) fn read(fields: &mut JsonFields) -> Option<Self> {
        let rule = Self {
            name: fields.text("name", 256),
            min_bytes: fields.integer("min_bytes", 1..=(1 << 40)).unwrap_or_default(),
            sha256: fields.text("sha256", 64).map(|hash| hash.to_ascii_lowercase()),
            contains: fields.texts("contains", 100, 4096).unwrap_or_default(),
        };
        let given = ["name", "min_bytes", "sha256", "contains"].map(|key| fields.has(key)).contains(&true);
        if !given {
            fields.problem("kind", "download needs a condition; give name, min_bytes, sha256 or contains");
        }
        let is_hash = |hash: &String| hash.len() == 64 && hash.chars().all(|c| c.is_ascii_hexdigit());
        if rule.sha256.as_ref().is_some_and(|hash| !is_hash(hash)) {
            fields.problem("sha256", "is not a SHA-256; write its 64 hexadecimal digits");
        }
        given.then_some(rule)
    }

    pub(super) fn score(&self, case: &ScoreInput) -> Result<RuleVerdict, ScoreError> {
        let reported = case.evidence.probe_json.as_deref().and_then(DownloadReport::of);
        let report = reported.ok_or(ScoreError::Missing { scorer: NAME, part: "a report of downloads" })?;
        if let Some(file) = report.files.iter().find(|file| self.failed_condition(file).is_none()) {
            let why = format!("the download {} meets every condition", short(&file.name));
            return Ok(RuleVerdict::binary(true, why));
        }
        let rationale = match report.files.last() {
            None => "nothing was downloaded".to_owned(),
            Some(last) => format!(
                "none of {} downloads meets every condition; {} does not meet `{}`",
                report.files.len(),
                short(&last.name),
                self.failed_condition(last).unwrap_or_default()
            ),
        };
        Ok(RuleVerdict::binary(false, rationale))
    }

    fn failed_condition(&self, file: &DownloadedFile) -> Option<&'static str> {
        // A file whose content is not stored is too large, or no text: it does not contain one.
        let contains = |text: &String| file.text().is_some_and(|content| content.contains(text.as_str()));
        let conditions = [
            ("name", self.name.as_ref().is_none_or(|name| glob::fits(name, &file.name))),
            ("min_bytes", file.bytes >= self.min_bytes),
            ("sha256", self.sha256.as_ref().is_none_or(|hash| *hash == file.sha256)),
            ("contains", self.contains.iter().all(contains)),
        ];
        conditions.into_iter().find(|(_, is_met)| !is_met).map(|(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use furrow_rollout::{EndKind, Evidence};
    use serde_json::json;

    use super::*;
    use crate::{EndFacts, Scorer};

    fn file(name: &str, content: &str) -> DownloadedFile {
        let content = content.to_owned();
        DownloadedFile {
            name: name.into(),
            bytes: content.len() as u64,
            sha256: "ab".repeat(32),
            content: Some(content.into()),
        }
    }

    fn scored(rule: &serde_json::Value, files: Option<Vec<DownloadedFile>>) -> Result<f32, ScoreError> {
        let mut value = json!({ "kind": "download" });
        value.as_object_mut().unwrap().extend(rule.as_object().unwrap().clone());
        let scorer = Scorer::from_value(&value).unwrap();
        let report = files.map(|files| DownloadReport { files });
        let probe = Some(r#"{"away":"http://elsewhere.test/"}"#.to_owned());
        let probe_json = DownloadReport::attach(report.as_ref(), probe);
        let evidence = Evidence { probe_json, ..Evidence::default() };
        let facts = EndFacts { end: EndKind::Answered, steps: 1, max_steps: 1 };
        scorer.score(&evidence, &facts).map(|score| score.reward.unwrap())
    }

    #[test]
    fn a_download_pays_if_it_meets_every_condition() {
        let report = || file("report-2024.csv", "day,sum\n1,42\n");
        let huge = DownloadedFile { content: None, bytes: 1 << 30, ..file("huge.csv", "") };
        let image = DownloadedFile { content: Some(vec![0xff, 0xd8].into()), ..file("a.jpg", "") };
        for (rule, files, reward) in [
            (json!({"name": "*.csv"}), vec![report()], 1.0),
            (json!({"name": "report-????.csv"}), vec![report()], 1.0),
            (json!({"name": "*.pdf"}), vec![report()], 0.0),
            (json!({"name": "*.csv"}), vec![], 0.0),
            (json!({"contains": "1,42"}), vec![file("x", ""), report()], 1.0),
            (json!({"contains": ["1,42", "sum"]}), vec![report()], 1.0),
            (json!({"contains": ["1,42", "nothing"]}), vec![report()], 0.0),
            // Two files that meet half of the conditions each are not one that meets all.
            (json!({"name": "x", "contains": "42"}), vec![file("x", ""), report()], 0.0),
            (json!({"min_bytes": 13}), vec![report()], 1.0),
            (json!({"min_bytes": 14}), vec![report()], 0.0),
            (json!({"min_bytes": 14}), vec![huge.clone()], 1.0),
            (json!({"contains": "a"}), vec![huge], 0.0),
            (json!({"contains": "a"}), vec![image], 0.0),
            (json!({"sha256": "AB".repeat(32)}), vec![report()], 1.0),
            (json!({"sha256": "00".repeat(32)}), vec![report()], 0.0),
        ] {
            assert_eq!(scored(&rule, Some(files)), Ok(reward), "{rule}");
        }
    }

    #[test]
    fn evidence_without_a_report_of_downloads_gives_no_verdict() {
        let error = scored(&json!({"name": "*"}), None).unwrap_err();
        assert!(matches!(error, ScoreError::Missing { scorer: NAME, .. }), "{error}");
    }

    #[test]
    fn a_rule_without_or_with_wrong_conditions_is_refused() {
        for (rule, problem) in [
            (json!({"kind": "download"}), "needs a condition"),
            (json!({"kind": "download", "sha256": "abc"}), "is not a SHA-256"),
            (json!({"kind": "download", "size": 1}), "size"),
            (json!({"kind": "download", "min_bytes": -1}), "min_bytes"),
        ] {
            let problems = Scorer::from_value(&rule).unwrap_err();
            assert!(problems.iter().any(|text| text.contains(problem)), "{rule}: {problems:?}");
        }
    }
}
