//! `[tasks.hooks.NAME]`: the commands that tasks may name, to reset or to check a back end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use furrow_rollout::is_hook_name;
use serde::{Deserialize, Serialize};

use crate::fields::{in_range, short};

/// Most hooks of a job, and most entries of a list in one.
const ENTRIES_MAX: usize = 64;

/// Longest argument of a command.
const ARGUMENT_BYTES_MAX: usize = 4096;

/// A command as written in the job file. Tasks name it; no task can define one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HookFile {
    /// Program and arguments, run without a shell. The program is an absolute path, or a name that
    /// is searched in `/usr/local/bin`, `/usr/bin` and `/bin`.
    pub argv: Vec<String>,
    /// Working directory on the machine of the environment worker.
    pub folder: PathBuf,
    /// Time after which the command is killed with all its children.
    pub deadline_millis: u64,
    /// Names of environment variables that it inherits from the environment worker. It gets no
    /// others but `PATH`, `FURROW_TRAJECTORY` and `FURROW_SEED`.
    pub env: Vec<String>,
    /// Runs at the same time on one environment worker. Raise it if runs do not disturb each other.
    pub concurrent: u32,
}

/// A hook whose values were checked.
#[derive(Debug, Clone, PartialEq)]
pub struct HookConfig {
    /// Its name, which tasks use.
    pub name: String,
    pub argv: Vec<String>,
    /// The directory that it runs in, absolute.
    pub folder: PathBuf,
    pub deadline_millis: u64,
    /// Variables that it inherits.
    pub env: Vec<String>,
    pub concurrent: u32,
}

impl Default for HookFile {
    fn default() -> Self {
        // A reset of a database takes seconds; one that takes longer is better made of copies.
        Self { argv: Vec::new(), folder: ".".into(), deadline_millis: 30_000, env: Vec::new(), concurrent: 1 }
    }
}

impl HookFile {
    pub(super) fn check(self, name: &str, base: &Path, problems: &mut Vec<String>) -> HookConfig {
        let key = format!("tasks.hooks.{}", short(name));
        if !is_hook_name(name) {
            problems.push(format!("{key}: {:?} is not a name; use 1 to 64 of a-z 0-9 - _", short(name)));
        }
        if self.argv.first().is_none_or(String::is_empty) {
            problems.push(format!("{key}.argv: missing; name the program and its arguments"));
        }
        for (list, entries) in [("argv", &self.argv), ("env", &self.env)] {
            in_range(problems, &format!("{key}.{list} entries"), entries.len() as u64, 0, ENTRIES_MAX as u64);
            for entry in entries.iter().filter(|text| text.len() > ARGUMENT_BYTES_MAX || text.contains('\0'))
            {
                let given = short(entry);
                problems.push(format!(
                    "{key}.{list}: {given:?} has {} bytes; use at most {ARGUMENT_BYTES_MAX} without NUL",
                    entry.len()
                ));
            }
        }
        for name in self.env.iter().filter(|name| !is_variable(name)) {
            let given = short(name);
            problems.push(format!(
                "{key}.env: {given:?} is not a variable's name; name one such as DATABASE_URL"
            ));
        }
        in_range(problems, &format!("{key}.deadline_millis"), self.deadline_millis, 100, 3_600_000);
        in_range(problems, &format!("{key}.concurrent"), u64::from(self.concurrent), 1, 1024);
        HookConfig {
            name: name.to_owned(),
            argv: self.argv,
            folder: base.join(self.folder),
            deadline_millis: self.deadline_millis,
            env: self.env,
            concurrent: self.concurrent,
        }
    }

    pub(super) fn resolve(&mut self, base: &Path) {
        self.folder = base.join(&self.folder);
    }
}

/// Not one that the farm sets, nor one that changes how the program is loaded.
fn is_variable(name: &str) -> bool {
    let right = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins && name.len() <= 256 && name.chars().all(right) && !name.starts_with("FURROW_") && name != "PATH"
}

/// All hooks of a job, and how many there may be.
pub(super) fn check_all(
    files: BTreeMap<String, HookFile>,
    base: &Path,
    problems: &mut Vec<String>,
) -> Vec<HookConfig> {
    in_range(problems, "tasks.hooks entries", files.len() as u64, 0, ENTRIES_MAX as u64);
    files.into_iter().map(|(name, file)| file.check(&name, base, problems)).collect()
}
