//! Rebuilds a trajectory's prompts from what its steps record as kept, and checks all token lists
//! against each other.

use std::collections::BTreeMap;

use furrow_rollout::{ImageFormat, ImageSpan, Screenshot, StepRecord, TokenTrace, token_hash};
use sha2::{Digest, Sha256};

use super::report::{VerifyCheck, VerifyCounts};
use crate::pixels::{self, PictureError};

/// Ids are listed where at most this many were allowed.
const KEPT_IDS_MAX: u32 = 512;

/// The state of a session, as far as its rows record it: K and the pictures in it.
#[derive(Default)]
pub(super) struct SessionMemory {
    kept: Vec<u32>,
    kept_spans: Vec<ImageSpan>,
    /// The id that all spans cover; the first span sets it.
    placeholder: Option<u32>,
    pictures: BTreeMap<u32, PictureHashes>,
}

/// Hashes of a recorded screenshot.
struct PictureHashes {
    blob_sha256: [u8; 32],
    rgb_sha256: Result<[u8; 32], PictureError>,
    is_lossless: bool,
    is_counted: bool,
}

type CheckProblems = Vec<(VerifyCheck, String)>;

impl SessionMemory {
    /// Checks one step and applies its commit.
    pub(super) fn step(&mut self, step: &StepRecord, counts: &mut VerifyCounts) -> CheckProblems {
        let Some(tokens) = &step.trace.tokens else { return Vec::new() };
        self.pictures.insert(step.step, PictureHashes::of(&step.observation.screenshot));
        let mut problems = response_problems(tokens);
        problems.extend(self.prefix(tokens));
        let prompt = [&self.kept[..], &tokens.prompt_token_ids].concat();
        counts.prompts += 1;
        counts.tokens += (tokens.prompt_token_ids.len() + tokens.response_token_ids.len()) as u64;
        let misplaced = span_bounds(&tokens.image_spans, prompt.len());
        if misplaced.is_empty() {
            problems.extend(self.kept_pictures(tokens));
            problems.extend(self.placeholders(&prompt, &tokens.image_spans));
            problems.extend(self.check_pictures(step.step, &tokens.image_spans, counts));
            if token_hash(&prompt, &tokens.image_spans) != tokens.prompt_hash {
                problems.push((
                    VerifyCheck::PromptHash,
                    "the prompt rebuilt from K and the commits has another hash".into(),
                ));
            }
        }
        problems.extend(misplaced.into_iter().map(|what| (VerifyCheck::SpanBounds, what)));
        problems.extend(self.keep(prompt, tokens));
        problems
    }

    fn prefix(&self, tokens: &TokenTrace) -> CheckProblems {
        let mut problems = Vec::new();
        if tokens.prefix_len as usize != self.kept.len() {
            let what =
                format!("prefix_len is {}, the commits make it {}", tokens.prefix_len, self.kept.len());
            problems.push((VerifyCheck::Prefix, what));
        }
        if tokens.prefix_hash != token_hash(&self.kept, &self.kept_spans) {
            problems
                .push((VerifyCheck::Prefix, "prefix_hash is not that of the tokens the commits kept".into()));
        }
        problems
    }

    /// The pictures inside K must be exactly those that were committed.
    fn kept_pictures(&self, tokens: &TokenTrace) -> CheckProblems {
        let inside = |span: &&ImageSpan| (span.token_start as usize) < self.kept.len();
        let named = tokens.image_spans.iter().filter(inside);
        if named.eq(&self.kept_spans) {
            return Vec::new();
        }
        vec![(VerifyCheck::Prefix, "image_spans inside K are not the pictures that were kept".into())]
    }

    fn placeholders(&mut self, prompt: &[u32], spans: &[ImageSpan]) -> CheckProblems {
        let Some(first) = spans.first() else { return self.bare_placeholder(prompt, spans) };
        let placeholder = *self.placeholder.get_or_insert(prompt[first.token_start as usize]);
        let covered = |span: &ImageSpan| &prompt[span.token_start as usize..][..span.token_len as usize];
        let mut problems = Vec::new();
        for span in spans {
            if let Some(other) = covered(span).iter().find(|&&id| id != placeholder) {
                let what = format!(
                    "the span at {} covers id {other}, the placeholder is {placeholder}",
                    span.token_start
                );
                problems.push((VerifyCheck::Placeholders, what));
            }
        }
        problems.extend(self.bare_placeholder(prompt, spans));
        problems
    }

    fn bare_placeholder(&self, prompt: &[u32], spans: &[ImageSpan]) -> CheckProblems {
        let Some(placeholder) = self.placeholder else { return Vec::new() };
        let mut spans = spans.iter().peekable();
        for (at, _) in prompt.iter().enumerate().filter(|(_, id)| **id == placeholder) {
            while spans.next_if(|span| (span.token_start + span.token_len) as usize <= at).is_some() {}
            if spans.peek().is_none_or(|span| at < span.token_start as usize) {
                let what = format!("placeholder {placeholder} at {at} belongs to no span");
                return vec![(VerifyCheck::Placeholders, what)];
            }
        }
        Vec::new()
    }

    /// Spans must name recorded screenshots, of this step or earlier ones.
    fn check_pictures(&mut self, now: u32, spans: &[ImageSpan], counts: &mut VerifyCounts) -> CheckProblems {
        let mut problems = Vec::new();
        for span in spans {
            let at = format!("the span at {}", span.token_start);
            let Some(picture) = self.pictures.get_mut(&span.step) else {
                let what = format!("{at} names step {}, which no row up to step {now} records", span.step);
                problems.push((VerifyCheck::Pictures, what));
                continue;
            };
            if span.blob_sha256 != picture.blob_sha256 {
                let what = format!("{at}: blob_sha256 is not that of step {}'s screenshot", span.step);
                problems.push((VerifyCheck::Pictures, what));
            }
            let pixels = picture.compare(&span.rgb_sha256, counts);
            problems.extend(pixels.map(|what| (VerifyCheck::Pictures, format!("{at}: {what}"))));
        }
        problems
    }

    /// `K_{t+1} = K_t ++ commit`; an explicit commit is text.
    fn keep(&mut self, prompt: Vec<u32>, tokens: &TokenTrace) -> CheckProblems {
        match &tokens.commit_token_ids {
            None => {
                self.kept = prompt;
                self.kept.extend(&tokens.response_token_ids);
                self.kept_spans.clone_from(&tokens.image_spans);
                self.kept_spans.retain(|span| span_end(span) <= self.kept.len() as u64);
                Vec::new()
            }
            Some(commit) => {
                self.kept.extend(commit);
                let has_picture = self.placeholder.is_some_and(|placeholder| commit.contains(&placeholder));
                let what = "commit_token_ids holds a placeholder: an explicit commit is text".into();
                has_picture.then_some((VerifyCheck::Placeholders, what)).into_iter().collect()
            }
        }
    }
}

impl PictureHashes {
    fn of(screenshot: &Screenshot) -> Self {
        let (format, is_lossless) = match screenshot.format {
            ImageFormat::Png => (image::ImageFormat::Png, true),
            ImageFormat::Jpeg { .. } => (image::ImageFormat::Jpeg, false),
        };
        Self {
            blob_sha256: Sha256::digest(&screenshot.bytes).into(),
            rgb_sha256: pixels::rgb_sha256(&screenshot.bytes, format),
            is_lossless,
            is_counted: false,
        }
    }

    /// JPEG decoders may differ in the last bits, so such a difference is counted and is not a
    /// breach.
    fn compare(&mut self, rgb_sha256: &[u8; 32], counts: &mut VerifyCounts) -> Option<String> {
        let differs = self.rgb_sha256.as_ref().ok() != Some(rgb_sha256);
        if !std::mem::replace(&mut self.is_counted, true) {
            counts.png_pictures += u64::from(self.is_lossless);
            counts.jpeg_pictures += u64::from(!self.is_lossless);
            counts.jpeg_differing += u64::from(!self.is_lossless && differs);
        }
        match &self.rgb_sha256 {
            Err(why) => Some(format!("its screenshot cannot be decoded: {why}")),
            Ok(_) if self.is_lossless && differs => {
                Some("rgb_sha256 is not that of the decoded pixels".into())
            }
            Ok(_) => None,
        }
    }
}

fn span_end(span: &ImageSpan) -> u64 {
    u64::from(span.token_start) + u64::from(span.token_len)
}

/// Spans must be non-empty, in order, apart, and inside the prompt. Everything that indexes by them
/// comes after this check.
fn span_bounds(spans: &[ImageSpan], prompt_len: usize) -> Vec<String> {
    let mut problems = Vec::new();
    let mut free_from = 0;
    for span in spans {
        let ImageSpan { token_start, token_len, .. } = span;
        if *token_len == 0 {
            problems.push(format!("the span at {token_start} is empty"));
        } else if u64::from(*token_start) < free_from {
            problems
                .push(format!("the span at {token_start} begins before the previous one ends ({free_from})"));
        } else if span_end(span) > prompt_len as u64 {
            problems.push(format!(
                "the span at {token_start} is {token_len} long, but the prompt ends at {prompt_len}"
            ));
        }
        free_from = free_from.max(span_end(span));
    }
    problems
}

// The response.

fn response_problems(tokens: &TokenTrace) -> CheckProblems {
    let mut problems = lengths(tokens);
    if problems.is_empty() {
        problems.extend(marks(tokens));
        problems.extend(kept_ids(tokens));
    }
    problems.extend(numbers(tokens));
    if !tokens.policy_versions.is_sorted() {
        problems.push((VerifyCheck::Versions, "policy_versions go back within the response".into()));
    }
    problems
}

fn lengths(tokens: &TokenTrace) -> CheckProblems {
    let want = tokens.response_token_ids.len();
    let lists = [
        ("response_mask", Some(tokens.response_mask.len())),
        ("forced", Some(tokens.forced.len())),
        ("policy_versions", Some(tokens.policy_versions.len())),
        ("logprobs", tokens.logprobs.as_ref().map(Vec::len)),
        ("sampled_logprobs", tokens.sampled_logprobs.as_ref().map(Vec::len)),
        ("kept_count", tokens.kept_count.as_ref().map(Vec::len)),
        ("entropy", tokens.entropy.as_ref().map(Vec::len)),
    ];
    let wrong = lists.into_iter().filter_map(|(name, len)| Some((name, len.filter(|len| *len != want)?)));
    wrong
        .map(|(name, len)| (VerifyCheck::TokenLengths, format!("{name} has {len} entries for {want} tokens")))
        .collect()
}

/// Sampled tokens have log-probs; forced ones have 0 after cutting and none before; appended ones
/// have none.
fn marks(tokens: &TokenTrace) -> CheckProblems {
    let logprob = |at: usize| tokens.logprobs.as_ref().map(|list| list[at]);
    let sampled = |at: usize| tokens.sampled_logprobs.as_ref().map(|list| list[at]);
    let mut problems = Vec::new();
    for at in 0..tokens.response_token_ids.len() {
        let what = match (tokens.response_mask[at], tokens.forced[at]) {
            (true, true) => Some("is both sampled and forced"),
            (true, false) if logprob(at) == Some(None) => Some("was sampled and has no log-prob"),
            (true, false) if sampled(at) == Some(None) => Some("was sampled and has no sampled log-prob"),
            (false, _) if logprob(at).flatten().is_some() => Some("was not sampled and has a log-prob"),
            (false, true) if sampled(at).is_some_and(|logprob| logprob != Some(0.0)) => {
                Some("was forced: its sampled log-prob is 0")
            }
            (false, false) if sampled(at).flatten().is_some() => {
                Some("was appended and has a sampled log-prob")
            }
            _ => None,
        };
        problems.extend(what.map(|what| (VerifyCheck::TokenMarks, format!("response token {at} {what}"))));
    }
    problems
}

fn numbers(tokens: &TokenTrace) -> CheckProblems {
    let lists = [("logprobs", &tokens.logprobs), ("sampled_logprobs", &tokens.sampled_logprobs)];
    let at_most_0 = |value: f32| value.is_finite() && value <= 0.0;
    let mut problems: CheckProblems = lists
        .into_iter()
        .filter_map(|(name, list)| first_wrong(list.as_deref(), at_most_0).map(|found| (name, found)))
        .map(|(name, (at, value))| {
            (VerifyCheck::Logprobs, format!("{name}[{at}] is {value}; it must be finite and at most 0"))
        })
        .collect();
    let not_negative = |value: f32| value.is_finite() && value >= 0.0;
    if let Some((at, value)) = first_wrong(tokens.entropy.as_deref(), not_negative) {
        problems.push((
            VerifyCheck::Logprobs,
            format!("entropy[{at}] is {value}; it must be finite and not negative"),
        ));
    }
    problems
}

fn first_wrong(list: Option<&[Option<f32>]>, right: impl Fn(f32) -> bool) -> Option<(usize, f32)> {
    let values = list?.iter().enumerate().filter_map(|(at, value)| Some((at, (*value)?)));
    values.into_iter().find(|(_, value)| !right(*value))
}

/// Offsets begin at 0, never decrease and end with the ids; a token lists either all ids that were
/// allowed or none.
fn kept_ids(tokens: &TokenTrace) -> CheckProblems {
    let offsets = &tokens.kept_offsets;
    let ids = &tokens.kept_token_ids;
    let wrong = |what: String| vec![(VerifyCheck::KeptIds, what)];
    if offsets.is_empty() {
        return if ids.is_empty() { Vec::new() } else { wrong("kept_token_ids have no kept_offsets".into()) };
    }
    if offsets.len() != tokens.response_token_ids.len() + 1 {
        return wrong(format!(
            "kept_offsets has {} entries; it needs one more than there are tokens",
            offsets.len()
        ));
    }
    if !offsets.is_sorted() || offsets[0] != 0 || offsets[offsets.len() - 1] as usize != ids.len() {
        return wrong(format!("kept_offsets do not increase from 0 to {}", ids.len()));
    }
    let Some(counts) = &tokens.kept_count else { return Vec::new() };
    let listed = offsets.windows(2).map(|pair| pair[1] - pair[0]).zip(counts).enumerate();
    let mismatch =
        |listed: u32, count: Option<u32>| listed != 0 && (listed > KEPT_IDS_MAX || Some(listed) != count);
    match listed.into_iter().find(|(_, (listed, count))| mismatch(*listed, **count)) {
        Some((at, (listed, count))) => {
            wrong(format!("token {at} lists {listed} of the {count:?} ids that were allowed"))
        }
        None => Vec::new(),
    }
}
