//! Job files: TOML, with settings of the command line.

use std::path::Path;

use furrow::JobFile;

use crate::{FuzzTarget, Seed, accept};

pub(super) const JOB: FuzzTarget = FuzzTarget {
    name: "job",
    run,
    repair: None,
    memory_max: |_| 64 << 20,
    bytes_max: 16 << 10,
    catches_panics: false,
    seeds,
};

/// Begins a line with a setting of the command line.
const SET: &str = "--set ";

/// A job that is accepted yields the same job wherever it is read.
fn run(input: &[u8]) {
    let Ok(input) = std::str::from_utf8(input) else { return };
    let settings: Vec<String> =
        input.lines().filter_map(|line| line.strip_prefix(SET)).map(str::to_owned).collect();
    let lines = input.lines().filter(|line| !line.starts_with(SET));
    let text = lines.collect::<Vec<_>>().join("\n");
    let Ok(resolved) = JobFile::resolve(&text, "job", Path::new("/jobs"), &settings) else { return };
    accept();
    let again = JobFile::resolve(&resolved, "other", Path::new("/elsewhere"), &[]);
    assert_eq!(again.as_ref(), Ok(&resolved), "a resolved job is read again");
}

fn seeds() -> Vec<Seed> {
    let quickstart = include_str!("../../../../deploy/quickstart.toml");
    let web = include_str!("../../../../deploy/web.toml");
    let grammar = "[run]\nname = \"m\"\nseed = 7\n[[tasks.source]]\nsuite = \"starter\"\npath = \"s\"\n\
                 splits = [\"train\"]\n[policy]\nkind = \"random\"\n\
                 [policy.grammar]\nname = \"holo_navigation\"\nextra = [\"drag\"]\n\
                 --set policy.sampling.temperature=0.5\n--set tasks.source[0].repeat=2\n--set env.marks=true\n";
    let wrong = "[run]\nname = \"a b\"\n[tasks]\ngrup_size = 4\n[eval]\nevery = 1979-05-27\n[[tasks.source]]\n\
                 weight = nan\nrepeat = 0x_ff\n--set tasks.source[9].repeat\n--set a..b=1\n";
    [("quickstart", quickstart), ("web", web), ("grammar", grammar), ("wrong", wrong)]
        .map(|(name, text)| Seed::new(name, text))
        .into()
}
