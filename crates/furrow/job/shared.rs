//! The job as it is shared with a data set or a report: without secrets, and without paths of the
//! machine that ran it.
//!
//! Of an absolute path only the last name stays, also inside instructions and templates. Keys that
//! could hold a secret, and the parts of addresses that do, are struck whatever release wrote the
//! job.

use toml::{Table, Value};

/// What replaces a secret.
pub(crate) const STRUCK: &str = "[struck]";
/// What replaces the folders of a path.
const ELSEWHERE: &str = "[elsewhere]";

const HEADER: &str =
    "# The job that wrote this data: every key with its value, without secrets and paths of its machine.\n\n";

/// The shared form of a resolved job. The same job gives the same text.
///
/// # Errors
/// What TOML says of the text.
pub(crate) fn text(resolved: &str) -> Result<String, String> {
    let shared = share_table(super::stored::table(resolved)?);
    let text = toml::to_string(&shared).map_err(|why| why.to_string())?;
    Ok(format!("{HEADER}{text}"))
}

fn share_table(table: Table) -> Table {
    let share = |(key, value): (String, Value)| {
        let value = if is_secret(&key) { strike(value) } else { share_value(value) };
        (key, value)
    };
    table.into_iter().map(share).collect()
}

fn share_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(share_text(&text)),
        Value::Array(entries) => Value::Array(entries.into_iter().map(share_value).collect()),
        Value::Table(table) => Value::Table(share_table(table)),
        other => other,
    }
}

/// Whether a key may hold a secret, as opposed to the name of a file or a variable that does.
fn is_secret(key: &str) -> bool {
    // The arguments of a hook may hold anything.
    ["key", "token", "secret", "password", "authorization", "cookie", "header", "headers", "argv"]
        .iter()
        .any(|name| key == *name || key.strip_suffix(name).is_some_and(|before| before.ends_with('_')))
}

/// Strikes every text of a value. Numbers stay: `policy.constrain.key` is a length.
fn strike(value: Value) -> Value {
    match value {
        Value::String(text) if text.is_empty() => Value::String(text),
        Value::String(_) => Value::String(STRUCK.to_owned()),
        Value::Array(entries) => Value::Array(entries.into_iter().map(strike).collect()),
        Value::Table(table) => {
            Value::Table(table.into_iter().map(|(key, value)| (key, strike(value))).collect())
        }
        other => other,
    }
}

/// Shares each part of a text that could be a path or an address. The texts between them stay.
fn share_text(text: &str) -> String {
    // A path as a value may contain anything.
    if text.starts_with('/') && !text.contains(['\n', '<']) {
        return last_name(text);
    }
    let is_end = |letter: char| letter.is_whitespace() || "\"'`()[]{}<>,;".contains(letter);
    let mut shared = String::with_capacity(text.len());
    for part in text.split_inclusive(is_end) {
        let bare = part.trim_end_matches(is_end);
        let share = match bare.split_once("://") {
            Some((scheme, rest)) => share_address(scheme, rest),
            None => share_path(bare),
        };
        shared.push_str(&share);
        shared.push_str(&part[bare.len()..]);
    }
    shared
}

/// A path, also one behind `name=`. A single name behind a slash is none: `/no_think`.
fn share_path(text: &str) -> String {
    match text.split_once('=') {
        Some((name, path)) if path.starts_with('/') => format!("{name}={}", share_path(path)),
        _ if text.starts_with('/') && text[1..].contains('/') => last_name(text),
        _ => text.to_owned(),
    }
}

fn last_name(path: &str) -> String {
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    format!("{ELSEWHERE}/{name}")
}

/// An address without user, password, query and fragment; of a file only its name.
fn share_address(scheme: &str, rest: &str) -> String {
    if scheme.eq_ignore_ascii_case("file") {
        let name = rest.rsplit('/').next().unwrap_or_default();
        return format!("{scheme}://{ELSEWHERE}/{name}");
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let authority = match authority.rsplit_once('@') {
        Some((_, host)) => format!("{STRUCK}@{host}"),
        None => authority.to_owned(),
    };
    let path = match rest.find(['?', '#']) {
        Some(at) => format!("{}?{STRUCK}", &rest[..at]),
        None => rest.to_owned(),
    };
    format!("{scheme}://{authority}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::shape::KeyShape;
    use crate::job::{Job, JobFile};

    #[track_caller]
    fn check(line: &str, want: &str) {
        let shared: Table = text(line).unwrap().parse().unwrap();
        assert_eq!(shared, want.parse().unwrap(), "{line}");
    }

    #[test]
    fn paths_lose_their_folders() {
        check("a = \"/home/me/work/tasks/web\"", "a = \"[elsewhere]/web\"");
        check("a = \"/home/me/my files/web/\"", "a = \"[elsewhere]/web\"");
        check("a = [\"/usr/lib/x\", \"plain\"]", "a = [\"[elsewhere]/x\", \"plain\"]");
        check("a = \"/\"", "a = \"[elsewhere]/\"");
        check("a = \"read /home/me/notes, then go\"", "a = \"read [elsewhere]/notes, then go\"");
        check("a = \"(/home/me/notes)\\n'/etc/x'\"", "a = \"([elsewhere]/notes)\\n'[elsewhere]/x'\"");
        // Nothing of these names a folder of the machine.
        check("a = \"a/b\"", "a = \"a/b\"");
        check("a = \"say /no_think and </s>, 1/2\"", "a = \"say /no_think and </s>, 1/2\"");
        check("a = \"--dir=/home/me/x\"", "a = \"--dir=[elsewhere]/x\"");
        check("a = \"file:///home/me/x.html\"", "a = \"file://[elsewhere]/x.html\"");
    }

    #[test]
    fn secrets_are_struck_and_the_names_of_their_sources_stay() {
        check(
            "a = \"https://me:hidden@host:1/v1?key=hidden#x\"",
            "a = \"https://[struck]@host:1/v1?[struck]\"",
        );
        check("a = \"http://127.0.0.1:8000/v1\"", "a = \"http://127.0.0.1:8000/v1\"");
        check("a = \"https://host?key=hidden\"", "a = \"https://host?[struck]\"");
        check("api_key = \"hidden\"", "api_key = \"[struck]\"");
        check("headers = { X-Any = \"hidden\", n = 1 }", "headers = { X-Any = \"[struck]\", n = 1 }");
        check("tokens = [\"a\"]", "tokens = [\"a\"]");
        check("token = [\"hidden\"]", "token = [\"[struck]\"]");
        check("key_env = \"OPENAI_API_KEY\"", "key_env = \"OPENAI_API_KEY\"");
        check("key_file = \"/home/me/.key\"", "key_file = \"[elsewhere]/.key\"");
        check("key = 16", "key = 16");
        check(
            "a = \"ask http://me:hidden@host/x?k=hidden now\"",
            "a = \"ask http://[struck]@host/x?[struck] now\"",
        );
    }

    #[test]
    fn a_whole_job_is_shared_without_its_folders_and_reads_as_a_job() {
        let base = std::path::Path::new("/home/me/work");
        let job = "[[tasks.source]]\nsuite = \"s\"\npath = \"tasks\"\n[policy]\ncheckpoint = \"/opt/models/tiny\"\n";
        let resolved = Job::parse(job, "night", base, &[]).unwrap().resolved;
        assert!(resolved.contains("/home/me/work"));
        let shared = text(&resolved).unwrap();
        assert!(!shared.contains("/home") && !shared.contains("/opt"), "{shared}");
        let table = crate::job::stored::table(&shared).unwrap();
        assert_eq!(table["run"]["name"].as_str(), Some("night"));
        assert_eq!(table["run"]["output_dir"].as_str(), Some("[elsewhere]/runs"));
        assert_eq!(table["policy"]["checkpoint"].as_str(), Some("[elsewhere]/tiny"));
        assert_eq!(text(&resolved).unwrap(), shared);
    }

    /// A key whose name is that of a secret and whose values are texts would be struck. None is one
    /// today: secrets come from files and the environment.
    #[test]
    fn no_key_of_a_job_holds_a_secret() {
        let keys = KeyShape::of::<JobFile>().keys();
        let secret: Vec<_> =
            keys.iter().filter(|key| is_secret(key.rsplit('.').next().unwrap_or_default())).collect();
        assert_eq!(secret, ["policy.constrain.key"], "a number; of any other key, see is_secret");
    }
}
