//! The card of a data set: `README.md` in its folder, as Hugging Face reads it.
//!
//! Its front matter names the tables that have files and the type of every column, so that
//! `datasets.load_dataset("RUN/data", "steps")` works: with pictures decoded, and where older files
//! lack columns. (Features in the footers would not do: `datasets` ignores them for a column that
//! cannot be null.) A table without a file is not named: `datasets` then lists those that there
//! are, where it would fail on a pattern that matches nothing.
//!
//! `datasets` keeps what it has loaded under the folder's name, which is `data` for every run, and
//! a hash of this front matter. So each table's entry has a description that no other state of any
//! run has: [`renew_card`] writes it anew after each commit.

use std::path::Path;

use arrow::datatypes::{DataType, Field};
use sha2::{Digest, Sha256};

use crate::column_table::{column_tables, dtype, inner_fields, is_image};
use crate::schema::hex;
use crate::{CommitDraft, RecordsError, Table, text_file};

/// Name of the file in the data set's folder.
const NAME: &str = "README.md";
/// A card has 40 kB; a longer file is not one of Furrow's.
const CARD_BYTES_MAX: u64 = 1 << 20;
/// How the line begins by which `datasets` tells the states of data sets apart.
const STATE: &str = "  description: ";
/// How the line with the name of the data set begins.
const NAMED: &str = "pretty_name: ";
/// The line after the front matter.
const FRONT_END: &str = "---\n";
/// The state before the first commit.
const NOTHING: &str = "nothing committed";
/// How the last line begins, which says what Furrow wrote.
const SEAL: &str = "<!-- Furrow replaces this file while nobody edits it: ";

/// What a card says of its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataCard {
    /// Id of the run.
    pub run: String,
    /// Kind of the policy, and the model where it has a name.
    pub policy: String,
    /// Names of the suites.
    pub suites: Vec<String>,
}

impl DataCard {
    /// Writes the card where there is none, or replaces one that another release wrote. A file that
    /// a user edited stays as it is. Returns whether anything changed.
    pub fn write(&self, data_dir: &Path) -> Result<bool, RecordsError> {
        let path = data_dir.join(NAME);
        let tables = tables_with_files(data_dir);
        match text_file::read(&path, CARD_BYTES_MAX) {
            Some(found) if is_sealed(&found) => {
                // The state is that of the newest commit, which a start does not change.
                let text = self.text(&tables, committed_state(&found));
                if found == text {
                    return Ok(false);
                }
                text_file::replace(&path, &text)?;
                Ok(true)
            }
            _ => text_file::create(&path, &self.text(&tables, None)),
        }
    }

    /// The card of these tables; `state` is the line of the newest commit, if there is one.
    fn text(&self, tables: &[Table], state: Option<&str>) -> String {
        let name = format!("{NAMED}{}", quoted(&format!("Furrow run {}", self.run)));
        let nothing = format!("{STATE}{}", quoted(&format!("run {}, {NOTHING}", self.run)));
        let front = front_matter(&name, tables, state.unwrap_or(&nothing));
        seal(&format!("---\n{front}{FRONT_END}\n{}", self.body()))
    }

    fn body(&self) -> String {
        let suites: Vec<String> = self.suites.iter().map(|suite| code(suite)).collect();
        BODY.replace("{run}", &code(&self.run))
            .replace("{policy}", &code(&self.policy))
            .replace("{suites}", &suites.join(", "))
            .replace("{columns}", &column_tables())
    }
}

const BODY: &str = r#"# Rollouts of {run}

Trajectories of a computer-use agent in real Chromium, collected by Furrow: what the policy was shown at each step,
what it replied, what its action did, and the reward of the whole. Policy: {policy}. Suites: {suites}.

| folder | rows |
|---|---|
| `trajectories/` | one a trajectory, failed attempts included |
| `steps/` | one a step of every scored trajectory |
| `failed_steps/` | the steps of failed attempts, for looking at |
| `groups/` | one a group of trajectories of one task and seed |
| `scores/` | later verdicts, one a trajectory and scoring |
| `jobs/` | the jobs that wrote the files, without secrets and paths; the footer of each file names its own |
| `manifest/` | which files count, one commit each |
| `replaced/` | small files that a merged one stands for, kept for a while: not for reading |

A folder exists once it has a row; `datasets` knows the tables that have one.

## Reading it

With `DATA` as the path of this folder:

```python
import datasets
steps = datasets.load_dataset("DATA", "steps", split="train")   # pictures are decoded
```

```python
import pandas
trajectories = pandas.read_parquet("DATA/trajectories")
```

```sql
-- DuckDB; union_by_name, because files of an earlier release may lack columns
SELECT suite, task_id, avg(reward), avg(success::INT), count(*)
FROM read_parquet('DATA/trajectories/*.parquet', union_by_name = true)
WHERE status = 'scored' GROUP BY ALL;
```

Rows of every `split` are in the one split `train` of `datasets`. The column `split` tells them apart: train only on
`train`; `eval` is of evaluations. `trainable_rl` and `trainable_sft` say so of each step.

## What is not promised

- **Rights.** The licence is open: pictures and texts are those of the pages, with the rights of their owners. Decide
  on a licence before you share them.
- **What pages say.** Titles, addresses, answers and texts are recorded as they were, hostile ones included. Show them
  as text, never as markup.
- **Privacy.** Pictures show whatever a page showed. Sentences about failures may name hosts and files of the machine.
  Files of schema version 1 hold the whole job of their run, with its paths.
- **Rewards of failed attempts.** They have none, and are not in `steps`.
- **Log-probs** are those of the policy's own kernels. Another implementation differs in the last digits.

## Columns

`?` marks what may be null. A column that an earlier file lacks is null.

{columns}"#;

/// `trajectories` comes first: `datasets` looks for the files of the first table before any other,
/// and a run has some of it as soon as it has anything.
fn front_matter(name: &str, tables: &[Table], state: &str) -> String {
    let mut text = format!(
        "{name}\nlicense: other\ntags:\n- computer-use\n- reinforcement-learning\n- furrow\nconfigs:\n"
    );
    for table in tables {
        text.push_str(&format!("- config_name: {table}\n"));
        if *table == Table::Steps {
            text.push_str("  default: true\n");
        }
        text.push_str(&format!("{state}\n"));
        text.push_str(&format!("  data_files:\n  - split: train\n    path: {table}/*.parquet\n"));
    }
    text.push_str("dataset_info:\n");
    for table in tables {
        text.push_str(&format!("- config_name: {table}\n  features:\n"));
        table.fields().iter().for_each(|field| feature("  ", field, &mut text));
    }
    text
}

/// The tables that have a file. Before the first one all of them: without any, `datasets` would
/// look for data among the other files of the folder.
fn tables_with_files(data_dir: &Path) -> Vec<Table> {
    let has_file = |table: &Table| {
        let files = std::fs::read_dir(data_dir.join(table.as_str())).into_iter().flatten().flatten();
        files.map(|file| file.path()).any(|path| path.extension().is_some_and(|ending| ending == "parquet"))
    };
    let found: Vec<Table> = Table::ALL.into_iter().filter(has_file).collect();
    if found.is_empty() { Table::ALL.into() } else { found }
}

/// Writes the state after a commit into the card, so that `datasets` takes neither what it loaded
/// before nor another run's rows for it, and names the tables that have files by now. A card that a
/// user edited stays as it is.
pub fn renew_card(data_dir: &Path, commit: &CommitDraft, version: u64) -> Result<(), RecordsError> {
    let path = data_dir.join(NAME);
    let Some(found) = text_file::read(&path, CARD_BYTES_MAX).filter(|found| is_sealed(found)) else {
        return Ok(());
    };
    // The time as well as the number: a directory that is made anew begins again at commit 1.
    let CommitDraft { run_id, created_at_micros, .. } = commit;
    let state = quoted(&format!("run {run_id}, commit {version} at {created_at_micros}"));
    let renewed = renewed(&found, &tables_with_files(data_dir), &format!("{STATE}{state}"));
    renewed.map_or(Ok(()), |text| text_file::replace(&path, &text))
}

/// The line of the newest commit's state, in a card of a run that has one.
fn committed_state(card: &str) -> Option<&str> {
    card.lines().find(|line| line.starts_with(STATE) && !line.contains(NOTHING))
}

/// A sealed card with another front matter, for the same data set.
fn renewed(card: &str, tables: &[Table], state: &str) -> Option<String> {
    let (text, _) = card.rsplit_once(SEAL)?;
    let (front, body) = text.split_once(&format!("\n{FRONT_END}"))?;
    let name = front.lines().find(|line| line.starts_with(NAMED))?;
    let front = front_matter(name, tables, state);
    Some(seal(&format!("---\n{front}{FRONT_END}{}", body.strip_suffix('\n').unwrap_or(body))))
}

/// The text with its last line.
fn seal(text: &str) -> String {
    let sha256 = hex(&Sha256::digest(text));
    format!("{text}\n{SEAL}{sha256} -->\n")
}

/// Whether the text is what Furrow wrote, to the last byte.
fn is_sealed(found: &str) -> bool {
    let Some((text, seal)) = found.rsplit_once(SEAL) else { return false };
    let text = text.strip_suffix('\n').unwrap_or(text);
    seal == format!("{} -->\n", hex(&Sha256::digest(text)))
}

/// A field as an entry of `features`, as `datasets` writes it.
fn feature(indent: &str, field: &Field, text: &mut String) {
    text.push_str(&format!("{indent}- name: {}\n", field.name()));
    match field.data_type() {
        image if is_image(image) => text.push_str(&format!("{indent}  dtype: image\n")),
        DataType::List(item) if inner_fields(field).is_none() => {
            text.push_str(&format!("{indent}  list: {}\n", dtype(item.data_type())));
        }
        other => match inner_fields(field) {
            Some(fields) => {
                let kind = if matches!(other, DataType::List(_)) { "list" } else { "struct" };
                text.push_str(&format!("{indent}  {kind}:\n"));
                fields.iter().for_each(|field| feature(&format!("{indent}  "), field, text));
            }
            None => text.push_str(&format!("{indent}  dtype: {}\n", dtype(other))),
        },
    }
}

/// A string of JSON is one of YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A name as code in Markdown, on one line.
fn code(name: &str) -> String {
    let plain = |letter: char| if letter.is_control() || letter == '`' { ' ' } else { letter };
    format!("`{}`", name.chars().map(plain).collect::<String>())
}

#[cfg(test)]
mod tests {
    use furrow_rollout::Id;

    use super::*;

    fn card(run: &str) -> DataCard {
        DataCard { run: run.into(), policy: "model".into(), suites: vec!["starter".into(), "a`b\n".into()] }
    }

    #[test]
    fn a_card_is_written_once_and_replaced_only_while_it_is_furrows_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let read = || std::fs::read_to_string(&path).unwrap();
        assert!(card("night").write(dir.path()).unwrap());
        assert!(!card("night").write(dir.path()).unwrap(), "nothing to change");
        // As another release would have written it.
        assert!(card("day").write(dir.path()).unwrap());
        assert_eq!(read(), card("day").text(&Table::ALL, None));
        for edit in [
            read() + "More.\n",
            read().replace("license: other", "license: mit"),
            read().split_once(SEAL).unwrap().0.to_owned(),
            String::new(),
        ] {
            std::fs::write(&path, &edit).unwrap();
            assert!(!card("night").write(dir.path()).unwrap());
            assert_eq!(read(), edit, "an edited card was replaced");
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(!card("night").write(dir.path()).unwrap(), "a folder of this name stays");
    }

    #[test]
    fn each_commit_gives_the_card_a_state_of_its_own_and_a_start_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let read = || std::fs::read_to_string(&path).unwrap();
        let commit =
            |at| CommitDraft::append(vec![], Id::new("night").unwrap(), 0, Id::new("s").unwrap(), at);
        // Without a card there is nothing to renew.
        renew_card(dir.path(), &commit(1), 1).unwrap();
        assert!(!path.exists());
        card("night").write(dir.path()).unwrap();
        let mut states = vec![read()];
        for (version, at) in [(1, 10), (2, 20), (1, 30)] {
            renew_card(dir.path(), &commit(at), version).unwrap();
            let state = format!("  description: \"run night, commit {version} at {at}\"\n");
            assert_eq!(read().matches(&state).count(), Table::ALL.len());
            assert!(is_sealed(&read()) && !states.contains(&read()));
            states.push(read());
        }
        assert!(!card("night").write(dir.path()).unwrap(), "a start keeps the state");
        assert!(card("day").write(dir.path()).unwrap());
        assert!(read().contains("commit 1 at 30\"\n") && read().contains("Rollouts of `day`"));
        let edited = read() + "More.\n";
        std::fs::write(&path, &edited).unwrap();
        renew_card(dir.path(), &commit(40), 3).unwrap();
        assert_eq!(read(), edited);
    }

    #[test]
    fn a_card_names_the_tables_that_have_files() {
        let dir = tempfile::tempdir().unwrap();
        let tables = || {
            let text = std::fs::read_to_string(dir.path().join(NAME)).unwrap();
            let of = |line: &str| Table::parse(line.strip_prefix("- config_name: ")?);
            let named: Vec<Table> = text.lines().filter_map(of).collect();
            // Once with its files, and once with its columns.
            let (files, columns) = named.split_at(named.len() / 2);
            assert_eq!(files, columns);
            assert!(is_sealed(&text));
            files.to_vec()
        };
        let commit = CommitDraft::append(vec![], Id::new("night").unwrap(), 0, Id::new("s").unwrap(), 1);
        card("night").write(dir.path()).unwrap();
        assert_eq!(tables(), Table::ALL, "nothing has a file");
        // A folder alone, and what no reader takes for a table, are no file.
        std::fs::create_dir(dir.path().join("scores")).unwrap();
        std::fs::write(dir.path().join("scores/.s.tmp"), "").unwrap();
        for (version, table) in [(1, Table::Trajectories), (2, Table::FailedSteps), (3, Table::Steps)] {
            let folder = dir.path().join(table.as_str());
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("s.parquet"), "").unwrap();
            renew_card(dir.path(), &commit, version).unwrap();
            assert!(tables().contains(&table) && tables().len() == version as usize, "{:?}", tables());
        }
        // A start finds the same tables, and keeps the state.
        assert!(!card("night").write(dir.path()).unwrap());
        assert!(card("day").write(dir.path()).unwrap());
        assert_eq!(tables(), [Table::Trajectories, Table::Steps, Table::FailedSteps]);
    }

    #[test]
    fn the_front_matter_names_every_table_and_types_every_column() {
        let text = card("night").text(&Table::ALL, None);
        for table in Table::ALL {
            assert_eq!(text.matches(&format!("- config_name: {table}\n")).count(), 2, "{table}");
            assert!(text.contains(&format!("path: {table}/*.parquet\n")), "{table}");
        }
        for lines in [
            "  - name: observation\n    struct:\n    - name: screenshot\n      dtype: image\n    - name: format\n",
            "    - name: tabs\n      list:\n      - name: title\n        dtype: string\n",
            "  - name: logprobs\n    list: float32\n",
            "  - name: prefix_hash\n    dtype: fixed_size_binary[16]\n",
            "  - name: observed_at\n    dtype: timestamp[us, tz=UTC]\n",
            "  - name: success\n    dtype: bool\n",
        ] {
            assert!(text.contains(lines), "{lines}");
        }
    }

    #[test]
    fn names_that_a_job_chooses_stay_on_their_line() {
        assert!(card("night").text(&Table::ALL, None).contains("Suites: `starter`, `a b `.\n"));
    }
}
