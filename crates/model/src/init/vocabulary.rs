//! A byte-level BPE vocabulary trained on the corpus beside this file, the same on every machine.
//!
//! This code trains it because the library's order among equal counts may depend on a hash map. The
//! corpus is small enough to count anew for each merge: 736 merges x at most 6,000 symbols of 1,000
//! different pieces.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::tokenizer::{Tokenizer, TokenizerError, alphabet};

/// The training text: our own words on web tasks, and replies in the navigation grammar.
const CORPUS: &str = include_str!("corpus.txt");
/// Ids below this one are marks; the 256 bytes follow.
const MARKS: usize = 32;
/// A digit is a piece of its own, so that coordinates are spelled; words include the space before
/// them.
const SPLIT: &str = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*\n|\s+(?!\S)|\s+";
/// A pair that occurs once says nothing about other text.
const COUNT_MIN: u64 = 2;

/// Placeholder of an image row.
pub(super) const IMAGE: u32 = 16;
/// First token of a prompt.
pub(super) const BOS: u32 = 1;
pub(super) const STOP: u32 = 12;

/// The text of a `tokenizer.json` of exactly `size` ids, including marks and bytes.
///
/// # Panics
/// If the corpus has too few pairs for that size, including joined ones. A test excludes that for
/// the existing sizes.
pub(super) fn tokenizer_json(size: usize) -> Result<String, TokenizerError> {
    let untrained = file(&[]);
    let pieces = Tokenizer::parse(Path::new("tokenizer.json"), untrained.to_string().as_bytes())?;
    let pieces = pieces.pieces(CORPUS).unwrap_or_default();
    let mut merges = train(&pieces, size - MARKS - 256);
    fill(&mut merges, size - MARKS - 256);
    assert_eq!(entries(&merges).len(), size, "the corpus has too few pairs");
    Ok(format!("{:#}\n", file(&merges)))
}

/// If the corpus has too few pairs for a large vocabulary, joins trained entries in pairs, the
/// earliest first. A large vocabulary then has as many different texts as a real one, and the
/// grammar's masks have as many choices.
fn fill(merges: &mut Vec<(String, String)>, merges_max: usize) {
    if merges.len() >= merges_max {
        return;
    }
    let trained: Vec<String> = merges.iter().map(|(left, right)| format!("{left}{right}")).collect();
    let mut names: HashSet<String> = (0..=255).map(|byte| alphabet::char_of(byte).to_string()).collect();
    names.extend(trained.iter().cloned());
    for sum in 0..2 * trained.len() {
        for left in sum.saturating_sub(trained.len() - 1)..=sum.min(trained.len() - 1) {
            let right = &trained[sum - left];
            let left = &trained[left];
            if names.insert(format!("{left}{right}")) {
                merges.push((left.clone(), right.clone()));
            }
            if merges.len() == merges_max {
                return;
            }
        }
    }
}

/// Repeatedly makes the most frequent pair of neighbours an entry; among equals the lowest ids win.
fn train(pieces: &[String], merges_max: usize) -> Vec<(String, String)> {
    let mut names: Vec<String> = (0..=255).map(|byte| alphabet::char_of(byte).into()).collect();
    let mut counted_pieces = count_pieces(pieces, &names);
    let mut merges = Vec::new();
    while merges.len() < merges_max {
        let Some(pair) = most_frequent(&counted_pieces, &names) else { break };
        let [left, right] = pair.map(|id| names[id as usize].clone());
        let merged = names.len() as u32;
        names.push(format!("{left}{right}"));
        merges.push((left, right));
        for (ids, _) in &mut counted_pieces {
            merge(ids, pair, merged);
        }
    }
    merges
}

/// Each different piece as ids of single bytes, and its count.
fn count_pieces(pieces: &[String], names: &[String]) -> Vec<(Vec<u32>, u64)> {
    let ids: HashMap<&str, u32> = names.iter().map(String::as_str).zip(0..).collect();
    let mut counts = BTreeMap::<&str, u64>::new();
    for piece in pieces {
        *counts.entry(piece).or_default() += 1;
    }
    let spell = |piece: &str| piece.chars().filter_map(|char| ids.get(&*char.to_string()).copied()).collect();
    counts.into_iter().map(|(piece, count)| (spell(piece), count)).collect()
}

/// Skips a pair whose joined name exists already: one entry could arise in two ways.
fn most_frequent(counted_pieces: &[(Vec<u32>, u64)], names: &[String]) -> Option<[u32; 2]> {
    let mut counts = HashMap::<[u32; 2], u64>::new();
    for (ids, count) in counted_pieces {
        for pair in ids.windows(2) {
            *counts.entry([pair[0], pair[1]]).or_default() += count;
        }
    }
    let mut counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count >= COUNT_MIN).collect();
    counts.sort_unstable_by_key(|(pair, count)| (std::cmp::Reverse(*count), *pair));
    let joined = |pair: [u32; 2]| pair.map(|id| names[id as usize].as_str()).concat();
    counts.into_iter().map(|(pair, _)| pair).find(|pair| !names.contains(&joined(*pair)))
}

fn merge(ids: &mut Vec<u32>, pair: [u32; 2], merged: u32) {
    let mut at = 0;
    while at + 1 < ids.len() {
        if ids[at..at + 2] == pair {
            ids[at] = merged;
            ids.remove(at + 1);
        }
        at += 1;
    }
}

/// The file that the tokenizers library reads.
fn file(merges: &[(String, String)]) -> Value {
    let marks: Vec<Value> = (0..MARKS).map(|id| added_token(id, &mark(id))).collect();
    let merged: Vec<[&str; 2]> = merges.iter().map(|(left, right)| [left.as_str(), right]).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": marks,
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        ]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": entries(merges),
            "merges": merged,
        },
    })
}

fn added_token(id: usize, name: &str) -> Value {
    json!({
        "id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    })
}

/// Names and numbers of the published family; image marks are inside the table, as in its newer
/// members.
fn mark(id: usize) -> String {
    match id as u32 {
        0 => "<unk>".into(),
        BOS => "<s>".into(),
        2 => "</s>".into(),
        IMAGE => "<image>".into(),
        17 => "<img>".into(),
        18 => "</img>".into(),
        id => format!("<SPECIAL_{id}>"),
    }
}

/// Marks, bytes, merges: ids in that order.
fn entries(merges: &[(String, String)]) -> Map<String, Value> {
    let marks = (0..MARKS).map(mark);
    let bytes = (0..=255).map(|byte| alphabet::char_of(byte).to_string());
    let merged = merges.iter().map(|(left, right)| format!("{left}{right}"));
    marks.chain(bytes).chain(merged).zip(0_u32..).map(|(name, id)| (name, id.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_neighbours_are_merged_and_the_lowest_win_ties() {
        #[track_caller]
        fn check(pieces: &[&str], want: &[(&str, &str)]) {
            let pieces: Vec<String> = pieces.iter().map(ToString::to_string).collect();
            let got = train(&pieces, 4);
            let got: Vec<_> = got.iter().map(|(left, right)| (left.as_str(), right.as_str())).collect();
            assert_eq!(got, want);
        }
        check(&["ab", "ab", "cd", "cd", "cd"], &[("c", "d"), ("a", "b")]);
        check(&["cd", "cd", "ab", "ab"], &[("a", "b"), ("c", "d")]);
        check(&["ab", "cd"], &[]);
        check(&["aaaa", "aaaa"], &[("a", "a"), ("aa", "aa")]);
        // "a" + "bc" is skipped because "ab" + "c" exists.
        check(&["abc", "abc", "abc", "bc", "bc"], &[("b", "c"), ("a", "bc")]);
    }

    #[test]
    fn the_library_trains_nearly_the_same_entries() {
        use tokenizers::Trainer;
        use tokenizers::models::bpe::{BPE, BpeTrainer};
        let bare = Tokenizer::parse(Path::new(""), file(&[]).to_string().as_bytes()).unwrap();
        let pieces = bare.pieces(CORPUS).unwrap();
        let ours = entries(&train(&pieces, 600));
        let mut trainer =
            BpeTrainer::builder().vocab_size(256 + 600).show_progress(false).min_frequency(2).build();
        trainer.initial_alphabet = (0..=255).map(alphabet::char_of).collect();
        trainer.feed(pieces.iter(), |piece| Ok(vec![piece.to_owned()])).unwrap();
        let mut library = BPE::default();
        trainer.train(&mut library).unwrap();
        let shared = library.get_vocab().keys().filter(|name| ours.contains_key(*name)).count();
        assert!(shared >= 256 + 570, "{shared}");
    }
}
