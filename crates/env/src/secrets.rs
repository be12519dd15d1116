//! Declared secrets: values that this worker reads from its environment and types into pages, and
//! that nothing else of the farm ever gets.
//!
//! A policy writes the placeholder `{{NAME}}`. The worker replaces it at the moment at which it
//! types, and only into a page of a host that the job names for the secret (`chromium/fill.rs`).
//! Everything that comes back has placeholders in place of values: `guard.rs` replaces them in what
//! an environment returns, `chromium/conceal.rs` in pictures, `chromium/network.rs` in archives.

mod encodings;
mod guard;
mod scrub;
mod value;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

use furrow_rollout::{Action, SECRETS_MAX, is_secret_name, secret_placeholder};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

pub(crate) use guard::{SecretGuard, scrubbed_error};
pub(crate) use scrub::Scrubber;
use value::SecretValue;

use crate::hosts::{AllowList, HostName};

/// Most hosts of one secret.
const HOSTS_MAX: usize = 64;

/// Longest name of a variable, in bytes.
const VARIABLE_BYTES_MAX: usize = 256;

/// A secret as written in the job file. Tasks name it; no task can declare one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SecretFile {
    /// Variable of the environment worker's own environment that holds the value, of 6 characters
    /// to 4 KiB. It is read once, when the worker starts.
    pub variable: String,
    /// Hosts whose pages may get the value: `host` or `*.host`. On any other page it is not typed.
    pub hosts: Vec<String>,
}

/// A secret of the job, without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredSecret {
    /// Its name, which tasks and policies use.
    pub name: String,
    /// The variable that holds the value.
    pub variable: String,
    hosts: AllowList,
}

/// The secrets of a worker with their values.
#[derive(Debug, Default)]
pub struct WorkerSecrets {
    secrets: Vec<Secret>,
    scrubber: Scrubber,
    /// The same for recorded traffic, in which a placeholder also has one spelling only.
    archived: Arc<Scrubber>,
}

impl PartialEq for WorkerSecrets {
    fn eq(&self, other: &Self) -> bool {
        self.secrets == other.secrets
    }
}

#[derive(Debug, PartialEq)]
struct Secret {
    name: String,
    value: SecretValue,
    hosts: AllowList,
}

/// The secrets that one trajectory may use.
#[derive(Debug, Clone)]
pub(crate) struct TrajectorySecrets {
    worker: Arc<WorkerSecrets>,
    names: Vec<String>,
}

/// A text to type, with values in it.
pub(crate) struct SecretText<'a> {
    text: Zeroizing<String>,
    used: Vec<&'a Secret>,
}

impl SecretFile {
    fn check(self, name: &str, problems: &mut Vec<String>) -> Option<DeclaredSecret> {
        let given: String = name.chars().take(80).collect();
        let key = format!("env.secrets.{given}");
        let before = problems.len();
        if !is_secret_name(name) {
            problems
                .push(format!("{key}: {given:?} is not a name; use 1 to 64 of A-Z 0-9 _, a letter first"));
        }
        if !is_variable(&self.variable) {
            let variable: String = self.variable.chars().take(80).collect();
            problems.push(format!(
                "{key}.variable: {variable:?}; use the name of a variable of the worker's environment, such as SHOP_PASSWORD"
            ));
        }
        let count = self.hosts.len();
        if !(1..=HOSTS_MAX).contains(&count) {
            problems.push(format!("{key}.hosts: {count} hosts; use 1 to {HOSTS_MAX}"));
        }
        for (index, host) in self.hosts.iter().enumerate() {
            // A secret for every host is one for the page that only asks for it.
            if host == "*" || AllowList::of_hosts(std::slice::from_ref(host)).is_err() {
                let host: String = host.chars().take(80).collect();
                problems.push(format!(
                    "{key}.hosts[{index}]: {host:?} is not a host; use host.example or *.host.example"
                ));
            }
        }
        let hosts = AllowList::of_hosts(&self.hosts).ok()?;
        let name = name.to_owned();
        (problems.len() == before).then_some(DeclaredSecret { name, variable: self.variable, hosts })
    }
}

/// Validates the secrets of a job, in the order of their names.
pub(crate) fn check_all(files: BTreeMap<String, SecretFile>) -> Result<Vec<DeclaredSecret>, Vec<String>> {
    let mut problems = Vec::new();
    let count = files.len();
    if count > SECRETS_MAX {
        problems.push(format!("env.secrets: {count} secrets; use at most {SECRETS_MAX}"));
    }
    let declared = files.into_iter().filter_map(|(name, file)| file.check(&name, &mut problems)).collect();
    if problems.is_empty() { Ok(declared) } else { Err(problems) }
}

impl WorkerSecrets {
    /// Reads the values from this process's environment. The error names every variable that is
    /// missing or unusable, and no value.
    pub fn read(declared: &[DeclaredSecret]) -> Result<Self, Vec<String>> {
        Self::read_from(declared, |variable| std::env::var_os(variable))
    }

    /// The same from another source: the value of a variable by its name.
    pub fn read_from(
        declared: &[DeclaredSecret],
        read: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let mut secrets = Vec::new();
        for DeclaredSecret { name, variable, hosts } in declared {
            let value = SecretValue::parse(read(variable)).and_then(|value| {
                let is_in = |other: &&DeclaredSecret| {
                    secret_placeholder(&other.name).to_lowercase().contains(&value.text().to_lowercase())
                };
                match declared.iter().find(is_in) {
                    Some(other) => Err(format!(
                        "has a value that occurs in {}, which replaces a value in records; use another value or name",
                        secret_placeholder(&other.name)
                    )),
                    None => Ok(value),
                }
            });
            match value {
                Ok(value) => secrets.push(Secret { name: name.clone(), value, hosts: hosts.clone() }),
                Err(why) => problems.push(format!("env.secrets.{name}.variable: {variable} {why}")),
            }
        }
        if problems.is_empty() { Ok(Self::of(secrets)) } else { Err(problems) }
    }

    /// Secrets whose values are their own placeholders, for a replay of recorded traffic, which
    /// holds placeholders.
    pub fn placeholders(declared: &[DeclaredSecret]) -> Self {
        let public = |DeclaredSecret { name, hosts, .. }: &DeclaredSecret| Secret {
            name: name.clone(),
            value: SecretValue::public(secret_placeholder(name)),
            hosts: hosts.clone(),
        };
        Self::of(declared.iter().map(public).collect())
    }

    fn of(secrets: Vec<Secret>) -> Self {
        let values = || secrets.iter().map(|secret| (secret.value.text(), secret_placeholder(&secret.name)));
        let scrubber = Scrubber::new(values());
        let placeholders: Vec<String> =
            secrets.iter().map(|secret| secret_placeholder(&secret.name)).collect();
        let own = placeholders.iter().map(|placeholder| (placeholder.as_str(), placeholder.clone()));
        let archived = Arc::new(Scrubber::new(values().chain(own)));
        Self { secrets, scrubber, archived }
    }

    /// Replaces values in texts.
    pub(crate) fn scrubber(&self) -> &Scrubber {
        &self.scrubber
    }

    /// Replaces values in recorded traffic.
    pub(crate) fn archived(&self) -> &Arc<Scrubber> {
        &self.archived
    }
}

impl TrajectorySecrets {
    /// The secrets of these names; the error names one that the job of this worker lacks.
    pub(crate) fn new(worker: Arc<WorkerSecrets>, names: &[String]) -> Result<Self, String> {
        let is_known = |name: &&String| worker.secrets.iter().any(|secret| secret.name == **name);
        if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
            return Err(format!(
                "the task's secret {unknown} is not declared in the job of this worker; add [env.secrets.{unknown}]"
            ));
        }
        Ok(Self { worker, names: names.to_vec() })
    }

    pub(crate) fn scrubber(&self) -> &Scrubber {
        &self.worker.scrubber
    }

    /// The text with values in place of the placeholders in it; `None` if there is none.
    pub(crate) fn fill(&self, content: &str) -> Option<SecretText<'_>> {
        let own = self.worker.secrets.iter().filter(|secret| self.names.contains(&secret.name));
        let own: Vec<(&Secret, String)> =
            own.map(|secret| (secret, secret_placeholder(&secret.name))).collect();
        let mut text = Zeroizing::new(String::with_capacity(content.len()));
        let mut used: Vec<&Secret> = Vec::new();
        let mut rest = content;
        while let Some(at) = rest.find("{{") {
            let (before, from) = rest.split_at(at);
            text.push_str(before);
            let named = own.iter().find(|(_, placeholder)| from.starts_with(placeholder.as_str()));
            rest = match named {
                Some((secret, placeholder)) => {
                    text.push_str(secret.value.text());
                    used.push(secret);
                    &from[placeholder.len()..]
                }
                None => {
                    text.push('{');
                    &from[1..]
                }
            };
        }
        text.push_str(rest);
        (!used.is_empty()).then_some(SecretText { text, used })
    }
}

impl SecretText<'_> {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Why a page of this host does not get it; `None` if it may.
    pub(crate) fn refusal(&self, host: &str) -> Option<String> {
        let host_name = HostName::parse(host).ok();
        let is_for = |secret: &&&Secret| host_name.as_ref().is_some_and(|name| secret.hosts.allows(name));
        let refused = self.used.iter().find(|secret| !is_for(secret))?;
        let page = if host.is_empty() { "a page without a host" } else { host };
        Some(format!("{} is not for pages of {page}; nothing was typed", secret_placeholder(&refused.name)))
    }
}

/// Why an action with a placeholder of these secrets is not done: an address leaves the page that
/// the secret is for.
pub(crate) fn refused_address(action: &Action, names: &[String]) -> Option<String> {
    let placeholders: Vec<String> = names.iter().map(|name| secret_placeholder(name)).collect();
    let address = |part: &Action| match part {
        Action::Goto { url } | Action::OpenTab { url } => {
            placeholders.iter().find(|placeholder| url.contains(placeholder.as_str())).cloned()
        }
        _ => None,
    };
    let placeholder = action.parts().iter().find_map(address)?;
    Some(format!("{placeholder} cannot be part of an address; type it into a field of the page"))
}

fn is_variable(name: &str) -> bool {
    let right = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins && name.len() <= VARIABLE_BYTES_MAX && name.chars().all(right)
}

#[cfg(test)]
mod tests;
