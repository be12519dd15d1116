//! The kept inputs: `FURROW_WRITE_CORPUS=1` writes the first ones anew.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::PathBuf;

use furrow_fuzz::{FuzzTarget, TARGETS, accepts};

/// Begins the names of inputs that the targets' own writers make; the others are findings.
const SEED: &str = "seed-";
/// Most bytes of all inputs.
const BYTES_MAX: u64 = 400_000;

/// The folder of a target's inputs.
pub(crate) fn folder(target: &FuzzTarget) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

fn kept(target: &FuzzTarget) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder(target)).into_iter().flatten().map(|file| file.unwrap().path());
    files
        .map(|file| (file.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&file).unwrap()))
        .collect()
}

fn made(target: &FuzzTarget) -> BTreeMap<String, Vec<u8>> {
    (target.seeds)().into_iter().map(|seed| (format!("{SEED}{}", seed.name), seed.bytes)).collect()
}

/// One test, because the inputs of a process share a folder for their files.
#[test]
fn the_first_inputs_are_what_the_writers_make_and_most_are_accepted() {
    for target in TARGETS {
        let made = made(target);
        assert!(!made.is_empty(), "{} has no first input", target.name);
        if env::var_os("FURROW_WRITE_CORPUS").is_some() {
            fs::create_dir_all(folder(target)).unwrap();
            for name in kept(target).keys().filter(|name| name.starts_with(SEED)) {
                fs::remove_file(folder(target).join(name)).unwrap();
            }
            for (name, bytes) in &made {
                fs::write(folder(target).join(name), bytes).unwrap();
            }
        }
        let kept: BTreeMap<_, _> =
            kept(target).into_iter().filter(|(name, _)| name.starts_with(SEED)).collect();
        let differs = made.keys().chain(kept.keys()).find(|name| made.get(*name) != kept.get(*name));
        assert_eq!(differs, None, "{}: write it anew with FURROW_WRITE_CORPUS=1", folder(target).display());
    }
    // Written so that they are refused: several wrong values, and an entry that is damaged.
    assert_eq!(refused(), ["job/wrong", "spool/changed"]);
}

/// The first inputs that the parsers refuse: only what is accepted reaches the code behind them.
fn refused() -> Vec<String> {
    let of_target = |target: &'static FuzzTarget| {
        let seeds = (target.seeds)();
        let refused = seeds.into_iter().filter(|seed| !accepts(target, &seed.bytes));
        refused.map(|seed| format!("{}/{}", target.name, seed.name)).collect::<Vec<_>>()
    };
    TARGETS.iter().flat_map(of_target).collect()
}

#[test]
fn inputs_are_few_and_short_enough_to_be_tried_whole() {
    let mut sum = 0;
    for target in TARGETS {
        for (name, bytes) in kept(target) {
            assert!(bytes.len() <= target.bytes_max, "{}/{name} has {} bytes", target.name, bytes.len());
            sum += bytes.len() as u64;
        }
    }
    assert!(sum <= BYTES_MAX, "the inputs have {sum} bytes, at most {BYTES_MAX}");
    let folders: Vec<_> = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus")).unwrap().collect();
    assert_eq!(folders.len(), TARGETS.len(), "a folder for each target");
}
