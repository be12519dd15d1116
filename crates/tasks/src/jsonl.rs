//! Validates task files: JSON Lines with one object per line. Unknown fields are kept, and all
//! invalid lines are reported at once.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use furrow_rollout::{SECRETS_MAX, Size, Split, is_hook_name, is_secret_name};
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};
use url::Url;

use crate::config::is_host_pattern;
use crate::fields::JsonFields;
use crate::file_keys::FileKeys;
use crate::score::not_a_hook;

/// 100,000 rows of 670 bytes; WebVoyager's rows have 220.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Longest line: a row is copied into every trajectory of its task.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Most rows of one file.
const ROWS_MAX: usize = 100_000;
/// Longest goal: it becomes part of the prompt, where this is about four thousand tokens.
/// WebVoyager's longest has 288 characters.
const GOAL_BYTES_MAX: usize = 16 << 10;
/// The limit documented at `furrow_rollout::Task`.
const TASK_ID_BYTES_MAX: usize = 256;
/// The length that browsers and servers accept.
const URL_BYTES_MAX: usize = 2048;
/// Longest side of a viewport.
const VIEWPORT_SIDE_MAX: u32 = 4096;

/// One line of a task file: an object, and the original text of the line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TaskRow {
    /// Number of the line, counted from 1.
    pub(crate) line: usize,
    /// The object, with its keys in their original order.
    pub(crate) fields: Map<String, Value>,
    /// The text of the line.
    pub(crate) text: String,
}

/// The keys that all kinds of task files have in common; `None` if the row leaves one to the suite.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CommonKeys {
    pub(crate) task_id: String,
    pub(crate) goal: Option<String>,
    pub(crate) start_url: Url,
    pub(crate) seed: Option<u64>,
    pub(crate) max_steps: Option<u32>,
    pub(crate) time_limit_millis: Option<u64>,
    pub(crate) viewport: Option<Size>,
    pub(crate) split: Option<Split>,
    pub(crate) difficulty: Option<String>,
    /// Success rate of the best known policy that looks at nothing, from 0 to 1.
    pub(crate) chance_level: Option<f64>,
    pub(crate) allow_hosts: Vec<String>,
    pub(crate) files: FileKeys,
    /// Name of a hook of the job.
    pub(crate) reset: Option<String>,
    /// Names of secrets of the job.
    pub(crate) secrets: Vec<String>,
}

/// Reads all rows of a file. Lines that are not JSON objects become problems, the others rows.
pub(crate) fn read(path: &Path, problems: &mut Vec<String>) -> Vec<TaskRow> {
    let location = path.display();
    let bytes = match read_capped(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            problems.push(format!("{location}: cannot be read: {error}"));
            return Vec::new();
        }
    };
    let rows = parse(&bytes, &location.to_string(), problems);
    if rows.is_empty() && problems.is_empty() {
        problems.push(format!("{location}: contains no task; write one JSON object per line"));
    }
    rows
}

/// Reads a file of at most [`FILE_BYTES_MAX`] bytes; a longer one is refused before it is read.
pub(crate) fn read_capped(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let too_large =
        || io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {FILE_BYTES_MAX} bytes"));
    if file.metadata()?.len() > FILE_BYTES_MAX {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX { Err(too_large()) } else { Ok(bytes) }
}

/// Reports every repeated id with both lines.
pub(crate) fn refuse_repeated<'a>(
    location: &str,
    ids: impl Iterator<Item = (usize, &'a str)>,
    problems: &mut Vec<String>,
) {
    let mut known_ids = HashSet::new();
    for (line, id) in ids {
        if !known_ids.insert(id) {
            problems.push(format!(
                "{location}:{line}: task_id: {id:?} is already used; give every task its own id"
            ));
        }
    }
}

impl TaskRow {
    /// A reader for the row's keys, whose problems name the file and the line.
    pub(crate) fn reader<'a>(&'a self, file: &str, problems: &'a mut Vec<String>) -> JsonFields<'a> {
        JsonFields::new(&self.fields, format!("{file}:{}: ", self.line), problems)
    }
}

impl CommonKeys {
    /// Reads the keys of Furrow's own task files. `site` is the suite's own server, which relative
    /// addresses refer to.
    pub(crate) fn read(fields: &mut JsonFields, suite: &str, site: Option<&Url>) -> Option<Self> {
        let start_url = read_url(fields, "start_url", site);
        Self::read_at(fields, suite, start_url)
    }

    /// Reads the keys of Furrow's own task files except the start address.
    pub(crate) fn read_at(fields: &mut JsonFields, suite: &str, start_url: Option<Url>) -> Option<Self> {
        if let Some(named) = fields.text("suite", 32).filter(|named| named != suite) {
            let problem =
                format!("{named:?} is not {suite:?}, the suite the job file names; make them agree");
            fields.problem("suite", problem);
        }
        let goal = fields.text("goal", GOAL_BYTES_MAX);
        Self::read_rest(fields, "task_id", goal, start_url)
    }

    /// Reads the keys of WebVoyager's task files.
    pub(crate) fn read_webvoyager(fields: &mut JsonFields) -> Option<Self> {
        let start_url = read_url(fields, "web", None);
        let goal = fields.required_text("ques", GOAL_BYTES_MAX);
        let common = Self::read_rest(fields, "id", goal, start_url)?;
        common.goal.is_some().then_some(common)
    }

    fn read_rest(
        fields: &mut JsonFields,
        id: &'static str,
        goal: Option<String>,
        start_url: Option<Url>,
    ) -> Option<Self> {
        let task_id = fields.required_text(id, TASK_ID_BYTES_MAX);
        Some(Self {
            goal,
            seed: fields.integer("seed", 0..=(1 << 53)),
            max_steps: fields.integer("max_steps", 1..=10_000).map(|steps| steps as u32),
            time_limit_millis: fields.integer("time_limit_ms", 1000..=86_400_000),
            viewport: fields.size("viewport", VIEWPORT_SIDE_MAX),
            split: fields.choice("split", &Split::ALL.map(|split| (split.as_str(), split))),
            difficulty: read_difficulty(fields),
            chance_level: fields.number("chance_level", 0.0..=1.0),
            allow_hosts: read_hosts(fields),
            files: FileKeys::read(fields),
            reset: read_reset(fields),
            secrets: read_secrets(fields),
            task_id: task_id?,
            start_url: start_url?,
        })
    }
}

/// A name or a level; both are kept as text.
fn read_difficulty(fields: &mut JsonFields) -> Option<String> {
    match fields.value("difficulty")? {
        Value::Number(level) => Some(level.to_string()),
        _ => fields.text("difficulty", 64),
    }
}

/// Whether the job has this hook is checked where the suites are together.
fn read_reset(fields: &mut JsonFields) -> Option<String> {
    let name = fields.text("reset", 2048)?;
    if !is_hook_name(&name) {
        fields.problem("reset", not_a_hook(&name));
        return None;
    }
    Some(name)
}

/// Whether the job declares them is checked where the suites are together.
fn read_secrets(fields: &mut JsonFields) -> Vec<String> {
    let names = fields.texts("secrets", SECRETS_MAX, 256).unwrap_or_default();
    for name in names.iter().filter(|name| !is_secret_name(name)) {
        let problem = format!("{name:?} is not a secret's name; use 1 to 64 of A-Z 0-9 _, a letter first");
        fields.problem("secrets", problem);
    }
    names
}

fn read_hosts(fields: &mut JsonFields) -> Vec<String> {
    let hosts = fields.texts("allow_hosts", 1000, 255).unwrap_or_default();
    for host in hosts.iter().filter(|host| !is_host_pattern(host)) {
        fields.problem("allow_hosts", format!("{host:?} is not a host; use host, *.host or * in lower case"));
    }
    hosts
}

/// An absolute http(s) address without a password in it.
fn read_url(fields: &mut JsonFields, key: &'static str, site: Option<&Url>) -> Option<Url> {
    let text = fields.required_text(key, URL_BYTES_MAX)?;
    let parsed = Url::options().base_url(site).parse(&text);
    let problem = match &parsed {
        Err(error) => Some(error.to_string()),
        Ok(url) if !matches!(url.scheme(), "http" | "https") => {
            Some(format!("scheme {} is not allowed", url.scheme()))
        }
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            Some("it contains a login".to_owned())
        }
        Ok(url) if site.is_some_and(|site| site.origin() != url.origin()) => {
            Some("it leaves the suite's own site".to_owned())
        }
        Ok(_) => None,
    };
    if let Some(problem) = problem {
        let remedy = match site {
            Some(site) => format!("use an address under {site}, or one relative to it"),
            None => "use an absolute http or https address".to_owned(),
        };
        return fields.refuse(key, &Value::String(text), &problem, &remedy);
    }
    parsed.ok()
}

fn parse(bytes: &[u8], location: &str, problems: &mut Vec<String>) -> Vec<TaskRow> {
    // byte order mark that editors on Windows write
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut rows = Vec::new();
    for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        if rows.len() == ROWS_MAX {
            problems.push(format!("{location}:{}: more than {ROWS_MAX} tasks; split the file", index + 1));
            break;
        }
        match parse_line(line) {
            Ok((fields, text)) => rows.push(TaskRow { line: index + 1, fields, text }),
            Err(problem) => problems.push(format!("{location}:{}: {problem}", index + 1)),
        }
    }
    rows
}

fn parse_line(line: &[u8]) -> Result<(Map<String, Value>, String), String> {
    if line.len() > LINE_BYTES_MAX {
        return Err(format!("the line has {} bytes; use at most {LINE_BYTES_MAX}", line.len()));
    }
    let text = std::str::from_utf8(line)
        .map_err(|e| format!("is not UTF-8 after {} bytes; save it as UTF-8", e.valid_up_to()))?;
    let fields = strict_object(text)
        .map_err(|e| format!("is not a JSON object: {e}; write one object on one line"))?;
    Ok((fields, text.to_owned()))
}

/// A JSON object in which no key occurs twice (serde_json alone would silently keep the last).
fn strict_object(text: &str) -> serde_json::Result<Map<String, Value>> {
    struct UniqueKeys;
    impl<'de> Visitor<'de> for UniqueKeys {
        type Value = Map<String, Value>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
            let mut map = Map::new();
            while let Some((key, value)) = access.next_entry::<String, Value>()? {
                if map.contains_key(&key) {
                    return Err(A::Error::custom(format_args!("key {key:?} occurs twice")));
                }
                map.insert(key, value);
            }
            Ok(map)
        }
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let map = json.deserialize_map(UniqueKeys)?;
    json.end()?;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows(text: &[u8]) -> (Vec<TaskRow>, Vec<String>) {
        let mut problems = Vec::new();
        (parse(text, "t", &mut problems), problems)
    }

    #[track_caller]
    fn refused(line: &str, want: &str) {
        let (rows, mut problems) = rows(line.as_bytes());
        let site = Url::parse("http://mine.test/").unwrap();
        for row in &rows {
            let mut found = Vec::new();
            CommonKeys::read(&mut row.reader("t", &mut found), "mine", Some(&site));
            problems.append(&mut found);
        }
        assert!(problems.iter().any(|problem| problem.contains(want)), "{want:?} not in {problems:?}");
    }

    #[test]
    fn lines_are_objects_and_the_text_is_kept() {
        let (good, problems) = rows("\u{feff}{\"a\":1, \"note\" : \"é\"}\r\n\n  {\"b\":{}}".as_bytes());
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(good.iter().map(|row| row.line).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(good[0].text, "{\"a\":1, \"note\" : \"é\"}");
    }

    #[test]
    fn every_bad_line_is_reported() {
        let text = b"{\"a\":1}\n[1]\n{\"a\":1,\"a\":2}\n{\"a\n\xff{}\nnull\n{} {}\n{\"b\":2}";
        let (good, problems) = rows(text);
        assert_eq!(good.iter().map(|row| row.line).collect::<Vec<_>>(), [1, 8]);
        let lines: Vec<_> = problems.iter().filter_map(|problem| problem.split(": ").next()).collect();
        assert_eq!(lines, ["t:2", "t:3", "t:4", "t:5", "t:6", "t:7"]);
        assert!(problems[1].contains("key \"a\" occurs twice"), "{}", problems[1]);
        assert!(problems[3].contains("is not UTF-8 after 0 bytes"), "{}", problems[3]);
    }

    #[test]
    fn sizes_are_capped() {
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(LINE_BYTES_MAX));
        assert!(rows(long.as_bytes()).1[0].contains("use at most 65536"));
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(5000), "]".repeat(5000));
        assert!(rows(deep.as_bytes()).1[0].contains("recursion limit"));
        let many = "{}\n".repeat(ROWS_MAX + 5);
        let (good, problems) = rows(many.as_bytes());
        assert_eq!((good.len(), problems.len()), (ROWS_MAX, 1));
    }

    #[test]
    fn every_problem_of_a_row_is_reported() {
        refused(r#"{"start_url":"a.html"}"#, "t:1: task_id: is missing");
        refused(r#"{"task_id":"a"}"#, "t:1: start_url: is missing");
        refused(r#"{"task_id":7,"start_url":"a.html"}"#, "t:1: task_id: 7 is not a string");
        refused(r#"{"task_id":"a","start_url":"file:///etc/passwd"}"#, "scheme file is not allowed");
        refused(
            r#"{"task_id":"a","start_url":"http://other.test/"}"#,
            "it leaves the suite's own site; use an address under http://mine.test/",
        );
        refused(r#"{"task_id":"a","start_url":"http://me:pw@mine.test/"}"#, "it contains a login");
        refused(
            r#"{"task_id":"a","start_url":"a.html","suite":"yours"}"#,
            "suite: \"yours\" is not \"mine\"",
        );
        refused(r#"{"task_id":"a","start_url":"a.html","max_steps":0}"#, "t:1: max_steps: 0 is out of range");
        refused(
            r#"{"task_id":"a","start_url":"a.html","time_limit_ms":10}"#,
            "time_limit_ms: 10 is out of range",
        );
        refused(r#"{"task_id":"a","start_url":"a.html","seed":-1}"#, "seed: -1 is out of range");
        refused(
            r#"{"task_id":"a","start_url":"a.html","split":"dev"}"#,
            "use one of train, validation, test, eval",
        );
        refused(r#"{"task_id":"a","start_url":"a.html","viewport":[1,1]}"#, "viewport: [1,1] is not a size");
        refused(r#"{"task_id":"a","start_url":"a.html","goal":""}"#, "goal: \"\" has 0 bytes");
        refused(r#"{"task_id":"a","start_url":"a.html","allow_hosts":["**"]}"#, "\"**\" is not a host");
        refused(
            r#"{"task_id":"a","start_url":"a.html","secrets":["pw"]}"#,
            "secrets: \"pw\" is not a secret's name",
        );
        refused(r#"{"task_id":"a","start_url":"a.html","difficulty":[]}"#, "difficulty: [] is not a string");
    }

    #[test]
    fn relative_addresses_refer_to_the_suites_site() {
        let line = r#"{"task_id":"a","start_url":"pages/a.html?x=1","difficulty":2,"anything":"else"}"#;
        let (rows, _) = rows(line.as_bytes());
        let mut problems = Vec::new();
        let site = Url::parse("http://mine.test/").unwrap();
        let common = CommonKeys::read(&mut rows[0].reader("t", &mut problems), "mine", Some(&site)).unwrap();
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(common.start_url.as_str(), "http://mine.test/pages/a.html?x=1");
        assert_eq!(common.difficulty.as_deref(), Some("2"));
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_parser(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let (rows, problems) = rows(&bytes);
            let lines = bytes.split(|&byte| byte == b'\n').count();
            prop_assert!(rows.len() + problems.len() <= lines);
        }

        #[test]
        fn any_text_is_safe_in_every_key(text in "\\PC{0,40}", key in "task_id|start_url|goal|seed|viewport|split|allow_hosts") {
            let line = serde_json::json!({ key: text }).to_string();
            let (rows, _) = rows(line.as_bytes());
            let mut problems = Vec::new();
            prop_assert!(CommonKeys::read(&mut rows[0].reader("t", &mut problems), "mine", None).is_none());
            prop_assert!(!problems.is_empty());
        }
    }
}
