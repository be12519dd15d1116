//! The answer of `/completions`, whole or as the chunks of a stream.

use serde_json::{Map, Value, json};

use super::answer::{AnswerHead, ChatCompletion, ChatDelta, ChatFinishReason, TokenLogprob};

/// Writes the answer to one request.
#[derive(Debug, Clone)]
pub(super) struct CompletionAnswer {
    head: AnswerHead,
    /// Number of characters of each choice that were written.
    offsets: Vec<usize>,
}

const ID_PREFIX: &str = "cmpl-";
const OBJECT: &str = "text_completion";

impl CompletionAnswer {
    pub(super) fn new(head: AnswerHead, choices: usize) -> Self {
        Self { head, offsets: vec![0; choices] }
    }

    pub(super) fn whole(&self, completion: &ChatCompletion) -> Value {
        let choices = completion.choices.iter().enumerate().map(|(index, choice)| {
            let mut json = choice_json(index, &choice.reply, 0, Some(choice.finish));
            if let Some(ids) = &choice.prompt_token_ids {
                json.insert("prompt_token_ids".into(), json!(ids));
            }
            Value::Object(json)
        });
        let choices: Vec<Value> = choices.collect();
        let mut whole = self.head.json(ID_PREFIX, OBJECT);
        whole.insert("choices".into(), choices.into());
        whole.insert("usage".into(), completion.usage.json());
        Value::Object(whole)
    }

    /// A part of a reply.
    pub(super) fn delta(&mut self, index: usize, part: &ChatDelta) -> Value {
        let choice = choice_json(index, part, self.offsets[index], None);
        self.offsets[index] += part.logprobs.iter().flatten().map(chars).sum::<usize>();
        self.chunk(choice)
    }

    /// The chunk with the reason why a reply ended.
    pub(super) fn finish(&self, index: usize, finish: ChatFinishReason) -> Value {
        self.chunk(choice_json(index, &ChatDelta::default(), 0, Some(finish)))
    }

    /// The last chunk, with the counts of tokens, if it was requested.
    pub(super) fn usage(&self, completion: &ChatCompletion) -> Option<Value> {
        let mut chunk = self.head.json(ID_PREFIX, OBJECT);
        chunk.insert("choices".into(), json!([]));
        chunk.insert("usage".into(), completion.usage.json());
        self.head.counts_usage.then_some(Value::Object(chunk))
    }

    fn chunk(&self, choice: Map<String, Value>) -> Value {
        let mut chunk = self.head.json(ID_PREFIX, OBJECT);
        chunk.insert("choices".into(), vec![Value::Object(choice)].into());
        if self.head.counts_usage {
            chunk.insert("usage".into(), Value::Null);
        }
        Value::Object(chunk)
    }
}

fn choice_json(
    index: usize,
    reply: &ChatDelta,
    offset: usize,
    finish: Option<ChatFinishReason>,
) -> Map<String, Value> {
    let mut json = Map::new();
    json.insert("index".into(), index.into());
    json.insert("text".into(), reply.text.as_str().into());
    let logprobs = reply.logprobs.as_deref().map(|tokens| logprobs_json(tokens, offset));
    json.insert("logprobs".into(), logprobs.into());
    json.insert("finish_reason".into(), finish.map(ChatFinishReason::as_str).into());
    if let Some(ids) = &reply.token_ids {
        json.insert("token_ids".into(), json!(ids));
    }
    json
}

/// Lists of one entry for each token; offsets count characters from `start`.
fn logprobs_json(tokens: &[TokenLogprob], start: usize) -> Value {
    let mut offset = start;
    let mut offsets = Vec::with_capacity(tokens.len());
    for token in tokens {
        offsets.push(offset);
        offset += chars(token);
    }
    let likeliest = |token: &TokenLogprob| -> Value {
        // Two tokens with the same text share a key; the likelier one is first.
        let mut map = Map::new();
        for other in &token.top {
            map.entry(other.token.clone()).or_insert_with(|| f64::from(other.logprob).into());
        }
        Value::Object(map)
    };
    json!({
        "tokens": tokens.iter().map(|token| token.token.as_str()).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| f64::from(token.logprob)).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(likeliest).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

fn chars(token: &TokenLogprob) -> usize {
    token.token.chars().count()
}
