//! A `tokenizer.json`, checked before the library that runs it sees it.
//!
//! Only byte-level BPE is accepted, the kind that every published checkpoint of this architecture
//! has. The parts are checked by name because text of pages passes through them: each must keep
//! every byte, and the library's BPE builder trusts its merges.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::Value;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use super::alphabet;
use super::vocabulary::{TokenKind, Vocabulary};

/// Highest id, plus one: eight times the largest vocabulary known (262,144), so that a hostile id
/// allocates little.
const IDS_MAX: u32 = 1 << 21;
/// Longest split pattern. The longest published ones have about 400 bytes.
const PATTERN_BYTES_MAX: usize = 16 << 10;
/// Normalizers that only replace characters by their canonical equivalents.
const NORMALIZERS: [&str; 4] = ["NFC", "NFD", "NFKC", "NFKD"];

/// The file as written. Padding, truncation, decoding and templates are not used here.
#[derive(Deserialize)]
pub(super) struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Option<Value>,
    #[serde(default)]
    pre_tokenizer: Option<Value>,
    model: BpeModel,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct BpeModel {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    vocab: HashMap<String, u32>,
    merges: Vec<BpeMerge>,
    #[serde(default)]
    dropout: Option<f32>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(rename = "end_of_word_suffix", default)]
    final_subword_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum BpeMerge {
    Pair(String, String),
    Line(String),
}

/// The parts of the pipeline that are used.
pub(super) struct TokenizerParts {
    pub normalizer: Option<NormalizerWrapper>,
    pub pre_tokenizer: Option<PreTokenizerWrapper>,
    pub bpe: BPE,
    pub vocabulary: Vocabulary,
    pub added: BTreeMap<String, u32>,
    pub byte_ids: [u32; 256],
}

impl TokenizerFile {
    /// Checks everything, or returns every problem.
    pub(super) fn check(self) -> Result<TokenizerParts, Vec<String>> {
        let mut problems = Vec::new();
        check_model(&self.model, &mut problems);
        check_pipeline(self.normalizer.as_ref(), self.pre_tokenizer.as_ref(), &mut problems);
        let entries = entries(&self.model.vocab, &self.added_tokens, &mut problems);
        let byte_ids = byte_ids(&self.model.vocab, &entries, &mut problems);
        let normalizer = part("normalizer", self.normalizer, &mut problems);
        let pre_tokenizer = part("pre_tokenizer", self.pre_tokenizer, &mut problems);
        let merges = merges(self.model.merges, &self.model.vocab, &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }
        let vocab: Vocab = self.model.vocab.into_iter().collect();
        let bpe = bpe(vocab, merges, self.model.ignore_merges).map_err(|problem| vec![problem])?;
        let added = self.added_tokens.into_iter().map(|token| (token.content, token.id)).collect();
        Ok(TokenizerParts {
            normalizer,
            pre_tokenizer,
            bpe,
            vocabulary: Vocabulary::new(&entries),
            added,
            byte_ids,
        })
    }
}

fn check_model(model: &BpeModel, problems: &mut Vec<String>) {
    let mut refuse = |wrong: bool, problem: String| problems.extend(wrong.then_some(problem));
    let kind = model.kind.as_deref().unwrap_or("BPE");
    refuse(kind != "BPE", format!("model.type is {kind:?}; only \"BPE\" is read"));
    refuse(
        model.dropout.is_some_and(|dropout| dropout != 0.0),
        "model.dropout is set; set it to null: a text must always give the same ids".into(),
    );
    for (key, value) in [
        ("continuing_subword_prefix", &model.continuing_subword_prefix),
        ("end_of_word_suffix", &model.final_subword_suffix),
    ] {
        let set = value.as_ref().is_some_and(|value| !value.is_empty());
        refuse(set, format!("model.{key} is set; remove it, a byte-level vocabulary has none"));
    }
    refuse(
        model.byte_fallback,
        "model.byte_fallback is true; set it to false, a byte-level vocabulary needs none".into(),
    );
}

/// Text becomes bytes once, in the normalizer or in the pre-tokenizer, and no other step changes or
/// drops any.
fn check_pipeline(normalizer: Option<&Value>, pre_tokenizer: Option<&Value>, problems: &mut Vec<String>) {
    let normalizers = flat(normalizer, "normalizers");
    let pre_tokenizers = flat(pre_tokenizer, "pretokenizers");
    for part in &normalizers {
        if !NORMALIZERS.contains(&kind(part)) && kind(part) != "ByteLevel" {
            problems
                .push(format!("normalizer {:?} is not supported; use one of {NORMALIZERS:?}", kind(part)));
        }
    }
    for part in &pre_tokenizers {
        problems.extend(pre_tokenizer_problem(part));
    }
    let byte_levels =
        normalizers.iter().chain(&pre_tokenizers).filter(|part| kind(part) == "ByteLevel").count();
    if byte_levels != 1 {
        problems.push(format!(
            "there are {byte_levels} ByteLevel steps in normalizer and pre_tokenizer; exactly one must turn text into bytes"
        ));
    }
}

fn pre_tokenizer_problem(part: &Value) -> Option<String> {
    match kind(part) {
        "ByteLevel" if part.get("add_prefix_space") != Some(&Value::Bool(false)) => {
            Some("pre_tokenizer ByteLevel adds a space before text; set add_prefix_space to false".into())
        }
        "Split" if part.get("behavior").and_then(Value::as_str) == Some("Removed") => {
            Some("pre_tokenizer Split removes what it finds; set behavior to \"Isolated\"".into())
        }
        "Split"
            if part.get("pattern").is_some_and(|pattern| pattern.to_string().len() > PATTERN_BYTES_MAX) =>
        {
            Some(format!("pre_tokenizer Split has a pattern of more than {PATTERN_BYTES_MAX} bytes"))
        }
        "ByteLevel" | "Split" | "Digits" => None,
        other => Some(format!("pre_tokenizer {other:?} is not supported; use ByteLevel, Split or Digits")),
    }
}

/// A part and, if it is a sequence, its parts. The parser's own limit bounds the depth.
fn flat<'a>(part: Option<&'a Value>, list: &str) -> Vec<&'a Value> {
    match part {
        None | Some(Value::Null) => Vec::new(),
        Some(part) if kind(part) == "Sequence" => {
            let parts = part.get(list).and_then(Value::as_array);
            parts.into_iter().flatten().flat_map(|part| flat(Some(part), list)).collect()
        }
        Some(part) => vec![part],
    }
}

fn kind(part: &Value) -> &str {
    part.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn part<T: for<'a> Deserialize<'a>>(
    name: &str,
    value: Option<Value>,
    problems: &mut Vec<String>,
) -> Option<T> {
    let value = value.filter(|value| !value.is_null())?;
    match serde_json::from_value(value) {
        Ok(part) => Some(part),
        Err(why) => {
            problems.push(format!("{name} cannot be read: {why}"));
            None
        }
    }
}

/// Kind and bytes of each id.
fn entries(
    vocab: &HashMap<String, u32>,
    added: &[AddedToken],
    problems: &mut Vec<String>,
) -> Vec<Option<(TokenKind, Vec<u8>)>> {
    let ids = vocab.values().chain(added.iter().map(|token| &token.id));
    let highest = ids.copied().max().unwrap_or_default();
    if highest >= IDS_MAX {
        problems.push(format!("id {highest} is too high; ids end below {IDS_MAX}"));
        return Vec::new();
    }
    let mut names: Vec<Option<&str>> = vec![None; highest as usize + 1];
    let mut entries = vec![None; highest as usize + 1];
    for (entry, id) in vocab {
        name(&mut names, *id, entry, problems);
        entries[*id as usize] = text_entry(entry);
    }
    for token in added {
        if vocab.get(&token.content).is_some_and(|id| *id != token.id) {
            problems.push(format!(
                "added token {:?} has another id in model.vocab than {}",
                token.content, token.id
            ));
        }
        name(&mut names, token.id, &token.content, problems);
        let kind = if token.special { TokenKind::Special } else { TokenKind::Added };
        entries[token.id as usize] = Some((kind, token.content.clone().into_bytes()));
    }
    entries
}

/// Records the name of an id; two names for one id could not be distinguished when decoding.
fn name<'a>(names: &mut [Option<&'a str>], id: u32, name: &'a str, problems: &mut Vec<String>) {
    match names[id as usize].replace(name) {
        Some(other) if other != name => {
            let (first, second) = if other < name { (other, name) } else { (name, other) };
            problems.push(format!("id {id} is both {first:?} and {second:?}"));
        }
        _ => {}
    }
}

/// An entry with a character outside the alphabet cannot come from text; decoding writes it
/// unchanged.
fn text_entry(entry: &str) -> Option<(TokenKind, Vec<u8>)> {
    match alphabet::bytes_of(entry) {
        Some(bytes) if bytes.is_empty() => None,
        Some(bytes) => Some((TokenKind::Text, bytes)),
        None => Some((TokenKind::Added, entry.as_bytes().to_vec())),
    }
}

/// The id of each single byte, so that any text can be spelled.
fn byte_ids(
    vocab: &HashMap<String, u32>,
    entries: &[Option<(TokenKind, Vec<u8>)>],
    problems: &mut Vec<String>,
) -> [u32; 256] {
    let mut missing = Vec::new();
    let ids = std::array::from_fn(|byte| {
        let id = vocab.get(alphabet::char_of(byte as u8).encode_utf8(&mut [0; 4]) as &str).copied();
        let entry = id.and_then(|id| entries.get(id as usize)?.as_ref());
        if !entry.is_some_and(|(kind, _)| *kind == TokenKind::Text) {
            missing.push(format!("{byte:#04x}"));
        }
        id.unwrap_or_default()
    });
    if !missing.is_empty() {
        let first = missing.iter().take(8).cloned().collect::<Vec<_>>().join(" ");
        problems.push(format!(
            "model.vocab lacks {} of the 256 single bytes ({first} first); only byte-level BPE is read",
            missing.len()
        ));
    }
    ids
}

/// Checks that the parts and the result of each merge are in the vocabulary: the library's builder
/// relies on a result's length.
fn merges(written: Vec<BpeMerge>, vocab: &HashMap<String, u32>, problems: &mut Vec<String>) -> Merges {
    let mut merges = Merges::with_capacity(written.len());
    for (index, merge) in written.into_iter().enumerate() {
        match merge.parts(index, vocab) {
            Ok(parts) => merges.extend(parts),
            Err(problem) => problems.push(problem),
        }
    }
    merges
}

impl BpeMerge {
    /// Both parts; `None` for the version line at the beginning of older files.
    fn parts(self, index: usize, vocab: &HashMap<String, u32>) -> Result<Option<(String, String)>, String> {
        let (left, right) = match self {
            Self::Pair(left, right) => (left, right),
            Self::Line(line) if index == 0 && line.starts_with("#version") => return Ok(None),
            Self::Line(line) => line
                .split_once(' ')
                .map(|(left, right)| (left.to_owned(), right.to_owned()))
                .ok_or_else(|| format!("model.merges[{index}] is {line:?}; it needs two parts"))?,
        };
        let merged = format!("{left}{right}");
        for part in [&left, &right, &merged] {
            if !vocab.contains_key(part) {
                return Err(format!(
                    "model.merges[{index}] uses or produces {part:?}, which is not in model.vocab"
                ));
            }
        }
        Ok(Some((left, right)))
    }
}

/// Without a cache: a cache would live in each thread as long as the thread does, even after the
/// tokenizer is dropped.
fn bpe(vocab: Vocab, merges: Merges, ignore_merges: bool) -> Result<BPE, String> {
    let builder =
        BPE::builder().vocab_and_merges(vocab, merges).cache_capacity(0).ignore_merges(ignore_merges);
    builder.build().map_err(|why| format!("model cannot be built: {why}"))
}
