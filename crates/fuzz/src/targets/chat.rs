//! Requests of the chat endpoint, and the replies that their schemas allow.

use std::sync::OnceLock;

use furrow_openai::server::{
    ChatLimits, ChatRequest, CompletionRequest, RequestedSchema, ResponseFormat, ResponsesRequest,
    ToolChoice, ToolUse,
};
use furrow_policy::constrain::{
    CallForms, Constraint, ConstraintCursor, NextToken, Schema, SharedTransitions, TokenLexicon,
};
use serde_json::Value;

use crate::{FuzzTarget, Seed, accept, models};

pub(super) const CHAT: FuzzTarget = FuzzTarget {
    name: "chat",
    run,
    repair: None,
    memory_max: |_| 64 << 20,
    bytes_max: 16 << 10,
    catches_panics: false,
    seeds,
};

const LIMITS: ChatLimits =
    ChatLimits { messages_max: 64, images_max: 4, image_bytes_max: 1 << 20, max_tokens: 400, choices_max: 8 };
const REPLY_TOKENS: u32 = 400;

/// The first byte names the route.
fn run(input: &[u8]) {
    let Some((route, body)) = input.split_first() else { return };
    match route {
        b'c' => {
            if CompletionRequest::read(body, &LIMITS).is_ok() {
                accept();
            }
        }
        b'r' => {
            if let Ok(request) = ResponsesRequest::read(body, &LIMITS) {
                reply_to(&request.chat);
            }
        }
        b's' => {
            if let Ok(schema) = serde_json::from_slice(body) {
                reply_of(&schema);
            }
        }
        _ => {
            if let Ok(request) = ChatRequest::read(body, &LIMITS) {
                reply_to(&request);
            }
        }
    }
}

fn reply_to(request: &ChatRequest) {
    let is_free = request.format == ResponseFormat::Text && request.tools.is_none();
    if is_free {
        accept();
    }
    if let ResponseFormat::JsonSchema(RequestedSchema { schema, .. }) = &request.format {
        reply_of(schema);
    }
    if let Some(tools) = &request.tools {
        call(tools);
    }
}

/// A reply of a schema that is accepted ends in time, and is JSON.
fn reply_of(schema: &Value) {
    let Ok(checked) = Schema::check(schema) else { return };
    let lexicon = lexicon();
    let Ok(constraint) = Constraint::of_schema(&checked, &lexicon, letters(), REPLY_TOKENS) else { return };
    accept();
    for choice in [0, 1] {
        let text = walk(&constraint, choice);
        let read: Result<Value, _> = serde_json::from_str(&text);
        assert!(read.is_ok(), "{text:?} is no JSON");
    }
}

fn call(tools: &ToolUse) {
    let chosen = match tools.choice {
        ToolChoice::Required(Some(index)) => &tools.functions[index..=index],
        _ => &tools.functions[..],
    };
    let checked: Result<Vec<_>, _> = chosen
        .iter()
        .map(|function| Ok((function.name.clone(), Schema::check(&function.parameters)?)))
        .collect::<Result<_, furrow_policy::constrain::SchemaError>>();
    let Ok(functions) = checked else { return };
    let calls = CallForms { functions, several: tools.parallel, otherwise: None };
    let lexicon = lexicon();
    let Ok(constraint) = Constraint::of_calls(&calls, &lexicon, letters(), REPLY_TOKENS) else { return };
    accept();
    let text = walk(&constraint, 0);
    assert!(text.starts_with("<tool_call>") && text.ends_with("</tool_call>"), "{text:?} is no call");
}

/// A reply that takes the first id that may be chosen, or the last.
fn walk(constraint: &std::sync::Arc<Constraint>, choice: usize) -> String {
    let mut cursor = ConstraintCursor::new(constraint);
    let mut ids = Vec::new();
    loop {
        let id = match cursor.next() {
            NextToken::Done => break,
            NextToken::Forced(id) => id,
            NextToken::Choose(allowed) => {
                let rows = 0..models::config().text.vocabulary as u32;
                let mut legal = rows.filter(|id| allowed.contains(*id));
                let chosen = if choice == 0 { legal.next() } else { legal.next_back() };
                chosen.expect("at least two ids may be chosen")
            }
        };
        cursor.advance(id).expect("an id that may come next is taken");
        ids.push(id);
        assert!(ids.len() <= REPLY_TOKENS as usize, "the reply does not end");
    }
    models::tokenizer().decode(&ids)
}

fn lexicon() -> TokenLexicon<'static> {
    let tokenizer = models::tokenizer();
    let stop = tokenizer.special("</s>").expect("the tokenizer has the mark");
    TokenLexicon::of(tokenizer, models::config().text.vocabulary, stop)
}

fn letters() -> &'static SharedTransitions {
    static LETTERS: OnceLock<SharedTransitions> = OnceLock::new();
    LETTERS.get_or_init(|| SharedTransitions::of(&lexicon()))
}

fn seeds() -> Vec<Seed> {
    let schema = concat!(
        r##"{"type":"object","properties":{"a":{"type":"string","minLength":1,"maxLength":5},"b":{"type":"array","##,
        r##""items":{"anyOf":[{"type":"integer","minimum":-3,"maximum":120},{"enum":["x","y",null,2.5]}]},"##,
        r##""minItems":1,"maxItems":3},"c":{"$ref":"#/$defs/n"}},"required":["a","c"],"$defs":{"n":{"type":"number","##,
        r##""minimum":0.5,"exclusiveMaximum":9}}}"##
    );
    let format = format!(
        r#""response_format":{{"type":"json_schema","json_schema":{{"name":"r","schema":{schema}}}}}"#
    );
    let picture = "data:image/png;base64,iVBORw0KGgo=";
    let chat = format!(
        r#"m{{"model":"m","messages":[{{"role":"system","content":"S"}},{{"role":"user","content":[{{"type":"text","text":"t"}},{{"type":"image_url","image_url":{{"url":"{picture}"}}}}]}}],"temperature":0.5,"seed":3,"stop":["\n"],"max_tokens":50,"stream":true,"stream_options":{{"include_usage":true}}}}"#
    );
    let formed = format!(r#"m{{"model":"m","messages":[{{"role":"user","content":"hi"}}],{format}}}"#);
    let tools = r#"m{"model":"m","messages":[{"role":"user","content":"hi"},{"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"name":"add","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"c1","content":"2"}],"tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}}}],"tool_choice":"required","parallel_tool_calls":true}"#;
    let responses = r#"r{"model":"m","instructions":"S","input":[{"role":"user","content":[{"type":"input_text","text":"t"}]}],"text":{"format":{"type":"json_schema","name":"r","schema":{"type":"object","properties":{"a":{"type":"boolean"}}}}},"max_output_tokens":9}"#;
    let completions = r#"c{"model":"m","prompt":["a",[1,2,3]],"n":2,"logprobs":3,"top_k":5,"min_p":0.1}"#;
    vec![
        Seed::new("chat", chat),
        Seed::new("schema", format!("s{schema}")),
        Seed::new("formed", formed),
        Seed::new("tools", tools),
        Seed::new("responses", responses),
        Seed::new("completions", completions),
    ]
}
