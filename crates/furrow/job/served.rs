//! The policy of a job alone, for a worker that serves chats and has no tasks.

use std::path::Path;
use std::time::Duration;

use furrow_policy::PolicyConfig;
use furrow_telemetry::TelemetryConfig;
use serde::Deserialize as _;

use super::check::{self, CheckFindings};
use super::shape::KeyShape;
use super::{JobFile, inherit, read_text, sorted, tree};

/// What a worker that only serves chats needs.
#[derive(Debug, Clone)]
pub(crate) struct ServedJob {
    pub policy: PolicyConfig,
    pub telemetry: TelemetryConfig,
    /// How long running requests may take after a stop.
    pub drain_grace: Duration,
}

/// Where chats are served if nothing says otherwise.
const LISTEN_USUAL: &str = "127.0.0.1:8000";

impl ServedJob {
    /// Reads the policy of a job file, or makes one of a checkpoint's directory, and applies the
    /// `key=value` settings. Tasks, browsers and scorers may be missing.
    pub(crate) fn read(path: &Path, settings: &[String]) -> Result<Self, Vec<String>> {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        if !path.is_dir() {
            let text = read_text(path).map_err(|why| vec![format!("{}: {why}", path.display())])?;
            let base = absolute.parent().unwrap_or(Path::new("/"));
            return Self::parse(&text, path, base, settings);
        }
        let checkpoint = toml::Value::from(absolute.to_string_lossy().into_owned());
        let of_checkpoint = ["policy.kind=\"model\"".to_owned(), format!("policy.checkpoint={checkpoint}")];
        let settings: Vec<String> = of_checkpoint.iter().chain(settings).cloned().collect();
        let base = std::path::absolute(".").unwrap_or_default();
        Self::parse("", path, &base, &settings)
    }

    fn parse(text: &str, path: &Path, base: &Path, settings: &[String]) -> Result<Self, Vec<String>> {
        let shape = KeyShape::of::<JobFile>();
        let located = |problems: Vec<super::KeyProblem>| -> Vec<String> {
            problems.iter().map(|problem| problem.with_location(path)).collect()
        };
        let mut tree = tree::parse(text).map_err(located)?;
        let mut problems: Vec<_> =
            settings.iter().filter_map(|setting| tree.set(setting, &shape).err()).collect();
        tree.default_to("policy.serve.listen", LISTEN_USUAL.into());
        let CheckFindings { problems: found, .. } = check::check(&mut tree, &shape);
        problems.extend(found);
        if !problems.is_empty() {
            return Err(located(sorted(problems)));
        }
        inherit(&mut tree, "served");
        let file = JobFile::deserialize(tree.into_toml()).map_err(|why| vec![why.to_string()])?;
        let drain_grace = Duration::from_millis(file.env.drain_grace_millis);
        let policy = file.policy.resolved(base).check()?;
        let telemetry = file.telemetry.check()?;
        if policy.serve.is_none() {
            let key = "policy.serve.listen";
            return Err(vec![format!(
                "{key}: it is empty, so nothing is served; use an address such as {LISTEN_USUAL}"
            )]);
        }
        Ok(Self { policy, telemetry, drain_grace })
    }
}
