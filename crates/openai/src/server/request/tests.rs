//! Requests that are read, and those that are refused by the key that is wrong.

use bytes::Bytes;
use serde_json::{Value, json};

use super::super::completions::{CompletionRequest, Prompt};
use super::super::keys::PIECES_MAX;
use super::super::messages::{MessagePart, joined_text};
use super::super::responses::ResponsesRequest;
use super::super::tool_call::ToolCall;
use super::super::tools::FunctionTool;
use super::*;
use crate::chat::Role;

const LIMITS: ChatLimits =
    ChatLimits { messages_max: 4, images_max: 1, image_bytes_max: 6, max_tokens: 100, choices_max: 3 };

fn read(value: &Value) -> ApiResult<ChatRequest> {
    ChatRequest::read(value.to_string().as_bytes(), &LIMITS)
}

/// A request with one key replaced.
fn with(key: &str, value: Value) -> Value {
    let mut request = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
    request[key] = value;
    request
}

#[track_caller]
fn check(key: &str, value: Value, want: Option<&str>) {
    let shown = value.to_string();
    let got = read(&with(key, value));
    let param = got.as_ref().err().map(|error| error.param.clone().unwrap_or_default());
    assert_eq!(param.as_deref(), want, "{key} = {shown}: {got:?}");
    if let Err(error) = got {
        assert_eq!((error.status, error.kind), (400, "invalid_request_error"));
        assert!(error.message.len() < 300, "{error}");
    }
}

#[test]
fn supported_keys_and_neutral_values_of_others_are_accepted() {
    let fine = [
        ("n", json!(3)),
        ("n", Value::Null),
        ("temperature", json!(0)),
        ("frequency_penalty", json!(0.0)),
        ("tools", json!([])),
        ("logit_bias", json!({})),
        ("user", json!("somebody")),
        ("metadata", json!({ "a": "b" })),
        ("top_k", json!(-1)),
        ("seed", json!(-5)),
        ("top_logprobs", json!(0)),
        ("max_tokens", json!(100)),
        ("stop", json!(["a", "b"])),
        ("response_format", json!({ "type": "text" })),
        ("session_id", json!("a-b_c.D:9")),
    ];
    for (key, value) in fine {
        check(key, value, None);
    }
}

#[test]
fn unsupported_keys_are_refused_by_name() {
    let wrong = [
        ("n", json!(0)),
        ("n", json!(4)),
        ("n", json!(1.5)),
        ("temperature", json!("hot")),
        ("temperature", json!(-0.1)),
        ("top_p", json!(0)),
        ("top_p", json!(1.5)),
        ("top_k", json!(1.5)),
        ("seed", json!("x")),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(101)),
        ("max_completion_tokens", json!(101)),
        ("stop", json!("")),
        ("stop", json!(["a", "b", "c", "d", "e"])),
        ("stop", json!([1])),
        ("top_logprobs", json!(3)),
        ("top_logprobs", json!(21)),
        ("top_logprobs", json!(-1)),
        ("logit_bias", json!({ "5": 1 })),
        ("presence_penalty", json!(2.5)),
        ("frequency_penalty", json!("high")),
        ("repetition_penalty", json!(-1)),
        ("functions", json!([{ "name": "f" }])),
        ("function_call", json!("auto")),
        ("audio", json!({ "voice": "v" })),
        ("modalities", json!(["audio"])),
        ("web_search_options", json!({ "search_context_size": "low" })),
        ("min_tokens", json!(3)),
        ("store", json!("yes")),
        ("tool_choice", json!("required")),
        ("tool_choice", json!("sometimes")),
        ("parallel_tool_calls", json!(1)),
        ("tools", json!({ "type": "function" })),
        ("stream", json!(1)),
        ("stream_options", json!({ "include_usage": true })),
        ("session_id", json!("a b")),
        ("session_id", json!("")),
        ("session_id", json!("x".repeat(129))),
        ("reasoning_effort", json!(3)),
        ("surprise", json!(true)),
        ("model", json!(7)),
        ("model", Value::Null),
        ("messages", json!("hi")),
        ("messages", json!([])),
        ("messages", json!([{}, {}, {}, {}, {}])),
    ];
    for (key, value) in wrong {
        check(key, value, Some(key));
    }
    let both = json!({ "model": "m", "messages": [{ "role": "user", "content": "" }], "max_tokens": 2, "max_completion_tokens": 3 });
    assert_eq!(read(&both).unwrap_err().param.as_deref(), Some("max_tokens"));
    let least = read(&with("top_p", json!(0))).unwrap_err();
    assert_eq!(least.message, "top_p must be a number above 0 and at most 1");
}

#[test]
fn a_refused_response_format_names_the_part_that_is_wrong() {
    check("response_format", json!({ "type": "xml" }), Some("response_format.type"));
    check("response_format", json!({ "type": "json_schema" }), Some("response_format.json_schema"));
    check(
        "response_format",
        json!({ "type": "json_schema", "json_schema": { "name": "n" } }),
        Some("response_format.json_schema.schema"),
    );
}

#[test]
fn logprobs_are_for_free_text_with_up_to_20_alternatives() {
    for (top, format, want) in [
        (Value::Null, json!({ "type": "text" }), Some(0)),
        (json!(0), Value::Null, Some(0)),
        (json!(20), Value::Null, Some(20)),
        (json!(21), Value::Null, None),
        (Value::Null, json!({ "type": "json_object" }), None),
    ] {
        let mut payload = with("logprobs", json!(true));
        (payload["top_logprobs"], payload["response_format"]) = (top, format);
        assert_eq!(read(&payload).ok().map(|read| read.options.logprobs), want.map(Some), "{payload}");
    }
    assert_eq!(read(&with("logprobs", json!(false))).unwrap().options.logprobs, None);
}

#[test]
fn messages_are_read_in_their_order() {
    let url = "data:image/png;base64,iVBORy4u";
    let image = |url: &str| json!({ "type": "image_url", "image_url": { "url": url, "detail": "high" } });
    let text = json!({ "type": "text", "text": "t" });
    let user = |content: Value| json!({ "role": "user", "content": content });
    let assistant = json!({ "role": "assistant", "content": "a", "refusal": null, "annotations": [] });
    let system = json!({ "role": "developer", "content": "s" });
    let read = read(&with(
        "messages",
        json!([system, user(json!([image(url), text])), assistant, user(json!("u"))]),
    ));
    let mut at = 0..;
    let mut of = |role, parts| ChatMessage {
        role,
        parts,
        token_ids: None,
        path: format!("messages[{}]", at.next().unwrap()),
    };
    let text_part = |text: &str| MessagePart::Text(text.into());
    let want = [
        of(Role::System, vec![text_part("s")]),
        of(Role::User, vec![MessagePart::Image(Bytes::from_static(b"\x89PNG..")), text_part("t")]),
        of(Role::Assistant, vec![text_part("a")]),
        of(Role::User, vec![text_part("u")]),
    ];
    assert_eq!(read.unwrap().messages, want);

    let table = [
        (json!([system]), "messages[0].role"),
        (json!([assistant, user(json!("u"))]), "messages[0].role"),
        (json!([system, system]), "messages[0].role"),
        (json!([system, assistant, user(json!("u"))]), "messages[1].role"),
        (json!([user(json!("u")), assistant, assistant, user(json!("u"))]), "messages[2].role"),
        (json!([user(json!("u")), assistant]), "messages[1].role"),
        (json!([{ "role": "function", "content": "x" }]), "messages[0].role"),
        (json!([{ "role": "tool", "content": "x" }]), "messages[0].tool_call_id"),
        (json!([{ "role": "tool", "content": "x", "tool_call_id": "c" }]), "messages[0].tool_call_id"),
        (json!([{ "role": "user" }]), "messages[0].content"),
        (json!([{ "role": "user", "content": [] }]), "messages[0].content"),
        (json!([{ "role": "user", "content": 7 }]), "messages[0].content"),
        (json!([{ "role": "user", "content": "x", "name": 7 }]), "messages[0].name"),
        (json!([{ "role": "user", "content": "x", "token_ids": [1] }]), "messages[0].token_ids"),
        (json!(["x"]), "messages[0]"),
        (json!([user(json!(["x"]))]), "messages[0].content[0]"),
        (json!([user(json!([{ "type": "input_audio" }]))]), "messages[0].content[0].type"),
        (json!([user(json!([image(url), image(url)]))]), "messages[0].content[1].image_url"),
        (
            json!([{ "role": "system", "content": [image(url)] }, user(json!("u"))]),
            "messages[0].content[0].type",
        ),
    ];
    for (messages, param) in table {
        check("messages", messages, Some(param));
    }
    for url in [
        "http://127.0.0.1/x.png",
        "https://example.test/x.png",
        "file:///etc/passwd",
        "data:image/png,raw",
        "data:text/html;base64,PGI+",
        "data:image/png;base64,****",
        "data:image/png;base64,",
        "data:image/png;base64,iVBORy4uLi4u",
        "data:image/png;base64",
        "",
    ] {
        check("messages", json!([user(json!([image(url)]))]), Some("messages[0].content[0].image_url.url"));
    }
}

#[test]
fn a_body_that_is_no_object_is_refused() {
    let many = format!("{{\"x\":[0{}]}}", ",0".repeat(PIECES_MAX));
    let refused = ChatRequest::read(many.as_bytes(), &LIMITS).unwrap_err();
    assert!(refused.message.contains("values"), "{refused}");
    let texts = with("user", json!(",:[{\\\"".repeat(PIECES_MAX)));
    assert!(read(&texts).is_ok(), "separators inside a string do not count");
    let deep = "[".repeat(100_000);
    for body in ["", "null", "[]", "{", "\u{0}", "{\"model\":\"m\"}", &deep] {
        assert_eq!(ChatRequest::read(body.as_bytes(), &LIMITS).unwrap_err().status, 400);
    }
}

#[test]
fn keys_without_effect_are_named() {
    let ignored = |changes: Value| {
        let mut request = with("model", json!("m"));
        for (key, value) in changes.as_object().unwrap() {
            request[key] = value.clone();
        }
        read(&request).unwrap().options.ignored
    };
    assert_eq!(
        ignored(json!({
            "frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1, "logit_bias": {},
            "store": false, "service_tier": "auto", "metadata": null, "n": 1, "modalities": ["text"],
        })),
        Vec::<String>::new()
    );
    let named = [
        ("frequency_penalty", json!(0.5)),
        ("presence_penalty", json!(-2)),
        ("repetition_penalty", json!(1.1)),
        ("reasoning_effort", json!("low")),
        ("verbosity", json!("low")),
        ("store", json!(true)),
        ("service_tier", json!("flex")),
        ("user", json!("somebody")),
        ("metadata", json!({ "a": "b" })),
        ("prediction", json!({ "type": "content", "content": "x" })),
        ("parallel_tool_calls", json!(false)),
    ];
    for (key, value) in named {
        assert_eq!(ignored(json!({ key: value })), [key]);
    }
    let messages = json!([{ "role": "user", "content": "x", "name": "eve" }]);
    assert_eq!(ignored(json!({ "messages": messages })), ["messages.name"]);
    let tools = json!([{ "type": "function", "function": { "name": "f", "strict": true } }]);
    assert_eq!(ignored(json!({ "tools": tools })), ["tools.function.strict"]);
    assert!(ignored(json!({ "tools": tools, "tool_choice": "required" })).is_empty());
}

#[test]
fn system_messages_are_joined_at_the_start_and_the_users_later() {
    let of = |role: &str, text: &str| json!({ "role": role, "content": text });
    let messages =
        json!([of("system", "one"), of("developer", "two"), of("user", "hi"), of("system", "three")]);
    let read = read(&with("messages", messages)).unwrap().messages;
    let got: Vec<(Role, String)> =
        read.iter().map(|message| (message.role, joined_text(message.parts.clone()))).collect();
    let want = [(Role::System, "one\n\ntwo"), (Role::User, "hi"), (Role::User, "three")];
    assert_eq!(got, want.map(|(role, text)| (role, text.to_owned())));
}

fn nested(name: &str) -> Value {
    json!({ "type": "function", "function": { "name": name, "parameters": { "type": "object" } } })
}

#[test]
fn tools_are_read_with_the_choice_among_them() {
    let tools = json!([nested("add"), nested("say")]);
    for (choice, want) in [
        (Value::Null, ToolChoice::Auto),
        (json!("none"), ToolChoice::None),
        (json!("required"), ToolChoice::Required(None)),
        (json!({ "type": "function", "function": { "name": "say" } }), ToolChoice::Required(Some(1))),
    ] {
        let mut request = with("tools", tools.clone());
        request["tool_choice"] = choice;
        let tools = read(&request).unwrap().tools.unwrap();
        assert_eq!((tools.choice, tools.parallel, tools.functions.len()), (want, true, 2));
    }
    let function = json!({ "type": "function", "function": { "name": "f", "description": "d" } });
    let read = read(&with("tools", json!([function]))).unwrap().tools.unwrap();
    let parameters = json!({ "type": "object", "properties": {} });
    let path = "tools[0].function.parameters".to_owned();
    assert_eq!(
        read.functions,
        [FunctionTool { name: "f".into(), description: Some("d".into()), parameters, path }]
    );
}

#[test]
fn malformed_tools_and_calls_name_their_key() {
    let of = |function: Value| json!([{ "type": "function", "function": function }]);
    for (tools, param) in [
        (json!([7]), "tools[0]"),
        (json!([{}]), "tools[0].type"),
        (json!([{ "type": "web_search" }]), "tools[0].type"),
        (json!([{ "type": "function" }]), "tools[0].function"),
        (of(json!({})), "tools[0].function.name"),
        (of(json!({ "name": "a b" })), "tools[0].function.name"),
        (of(json!({ "name": "x".repeat(65) })), "tools[0].function.name"),
        (of(json!({ "name": "f", "parameters": [] })), "tools[0].function.parameters"),
        (of(json!({ "name": "f", "description": 7 })), "tools[0].function.description"),
        (of(json!({ "name": "f", "surprise": 7 })), "tools[0].function.surprise"),
        (json!([nested("f"), nested("f")]), "tools[1]"),
        (json!(vec![nested("f"); 129]), "tools"),
        (of(json!({ "name": "f", "description": "x".repeat(300_000) })), "tools"),
    ] {
        check("tools", tools, Some(param));
    }
    for (choice, param) in [
        (json!(7), "tool_choice"),
        (json!({ "type": "allowed_tools" }), "tool_choice.type"),
        (json!({ "type": "function" }), "tool_choice.function"),
        (json!({ "type": "function", "function": { "name": "g" } }), "tool_choice.function.name"),
    ] {
        let mut request = with("tools", json!([nested("f")]));
        request["tool_choice"] = choice;
        assert_eq!(read(&request).unwrap_err().param.as_deref(), Some(param));
    }
    for key in ["stop", "logprobs"] {
        let mut request = with("tools", json!([nested("f")]));
        request["tool_choice"] = json!("required");
        request[key] = if key == "stop" { json!("x") } else { json!(true) };
        assert_eq!(read(&request).unwrap_err().param.as_deref(), Some(key));
    }
    let user = json!({ "role": "user", "content": "x" });
    let called = |call: Value| json!([user, { "role": "assistant", "tool_calls": [call] }, user]);
    let at = "messages[1].tool_calls[0]";
    for (call, param) in [
        (json!("x"), at.to_owned()),
        (json!({}), format!("{at}.id")),
        (json!({ "id": "c" }), format!("{at}.function")),
        (json!({ "id": "c", "type": "custom" }), format!("{at}.type")),
        (
            json!({ "id": "c", "function": { "name": "f", "arguments": "{" } }),
            format!("{at}.function.arguments"),
        ),
        (
            json!({ "id": "c", "function": { "name": "f", "arguments": "[]" } }),
            format!("{at}.function.arguments"),
        ),
        (
            json!({ "id": "c", "function": { "name": "f", "arguments": {} } }),
            format!("{at}.function.arguments"),
        ),
    ] {
        check("messages", called(call), Some(&param));
    }
}

/// A call with this id, in the form of a message.
fn call(id: &str) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": "f", "arguments": "{\"a\":1}" } })
}

#[test]
fn results_follow_their_calls_in_order() {
    let user = json!({ "role": "user", "content": "x" });
    let assistant = json!({ "role": "assistant", "content": null, "tool_calls": [call("c1"), call("c2")] });
    let result = |id: &str| json!({ "role": "tool", "tool_call_id": id, "content": format!("of {id}") });
    let read = read(&with("messages", json!([user, assistant, result("c2"), result("c1")]))).unwrap();
    let parts: Vec<&MessagePart> = read.messages.iter().flat_map(|message| &message.parts).collect();
    let call = |id: &str| {
        MessagePart::Call(ToolCall { id: id.into(), name: "f".into(), arguments: "{\"a\":1}".into() })
    };
    let want = [
        MessagePart::Text("x".into()),
        call("c1"),
        call("c2"),
        MessagePart::CallResult("of c1".into()),
        MessagePart::CallResult("of c2".into()),
    ];
    assert_eq!(parts, want.iter().collect::<Vec<_>>());
    for (messages, param) in [
        (json!([user, assistant, result("c3")]), "messages[2].tool_call_id"),
        (json!([user, assistant, result("c1"), result("c1")]), "messages[3].tool_call_id"),
    ] {
        check("messages", messages, Some(param));
    }
}

#[test]
fn completions_take_texts_and_ids() {
    let read = |changes: Value| {
        let mut request = json!({ "model": "m", "prompt": "p" });
        for (key, value) in changes.as_object().unwrap() {
            request[key] = value.clone();
        }
        CompletionRequest::read(request.to_string().as_bytes(), &LIMITS)
    };
    let text = |text: &str| Prompt::Text(text.into());
    for (prompt, want) in [
        (json!("p"), vec![text("p")]),
        (json!(["p", "q"]), vec![text("p"), text("q")]),
        (json!([1, 2]), vec![Prompt::Ids(vec![1, 2])]),
        (json!([[1, 2], [3]]), vec![Prompt::Ids(vec![1, 2]), Prompt::Ids(vec![3])]),
    ] {
        assert_eq!(read(json!({ "prompt": prompt })).unwrap().prompts, want);
    }
    let usual = read(json!({ "logprobs": 2, "best_of": 1, "echo": false, "suffix": "" })).unwrap();
    assert_eq!((usual.options.max_tokens, usual.options.logprobs), (Some(16), Some(2)));
    for (key, value, param) in [
        ("prompt", Value::Null, "prompt"),
        ("prompt", json!(""), "prompt"),
        ("prompt", json!([]), "prompt"),
        ("prompt", json!([[]]), "prompt"),
        ("prompt", json!([-1]), "prompt"),
        ("prompt", json!([1, "a"]), "prompt"),
        ("prompt", json!([4_294_967_296u64]), "prompt"),
        ("prompt", json!({ "text": "p" }), "prompt"),
        ("prompt", json!(["a", "b", "c", "d"]), "prompt"),
        ("echo", json!(true), "echo"),
        ("suffix", json!("x"), "suffix"),
        ("best_of", json!(2), "best_of"),
        ("logprobs", json!(21), "logprobs"),
        ("max_tokens", json!(101), "max_tokens"),
        ("session_id", json!("s"), "session_id"),
        ("messages", json!([{ "role": "user" }]), "messages"),
        ("tools", json!([7]), "tools"),
    ] {
        assert_eq!(read(json!({ key: value })).unwrap_err().param.as_deref(), Some(param), "{key} {value}");
    }
}

fn read_response(changes: &Value) -> ApiResult<ResponsesRequest> {
    let mut request = json!({ "model": "m", "input": "hi" });
    for (key, value) in changes.as_object().unwrap() {
        request[key] = value.clone();
    }
    ResponsesRequest::read(request.to_string().as_bytes(), &LIMITS)
}

#[test]
fn items_become_messages() {
    let url = "data:image/png;base64,iVBORy4u";
    let read = read_response(&json!({
        "instructions": "Be brief.",
        "input": [
            { "role": "user", "content": [
                { "type": "input_text", "text": "t" },
                { "type": "input_image", "image_url": url, "detail": "auto" },
            ] },
            { "type": "message", "id": "m1", "role": "assistant", "status": "completed",
              "content": [{ "type": "output_text", "text": "a", "annotations": [] }] },
            { "type": "function_call", "id": "f1", "call_id": "c", "name": "f", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "c", "output": "r" },
        ],
        "tools": [{ "type": "function", "name": "f", "parameters": { "type": "object" }, "strict": true }],
        "tool_choice": { "type": "function", "name": "f" },
        "text": { "format": { "type": "text" }, "verbosity": "low" },
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 20,
        "reasoning": { "effort": "low" },
    }))
    .unwrap();
    let got: Vec<(Role, Vec<MessagePart>)> =
        read.chat.messages.iter().map(|message| (message.role, message.parts.clone())).collect();
    let text = |text: &str| MessagePart::Text(text.into());
    let call = ToolCall { id: "c".into(), name: "f".into(), arguments: "{}".into() };
    let want = [
        (Role::System, vec![text("Be brief.")]),
        (Role::User, vec![text("t"), MessagePart::Image(Bytes::from_static(b"\x89PNG.."))]),
        (Role::Assistant, vec![text("a"), MessagePart::Call(call)]),
        (Role::User, vec![MessagePart::CallResult("r".into())]),
    ];
    assert_eq!(got, want);
    assert_eq!(read.chat.options.max_tokens, Some(20));
    assert_eq!(read.chat.tools.unwrap().choice, ToolChoice::Required(Some(0)));
    let mut ignored = read.chat.options.ignored;
    ignored.sort();
    assert_eq!(ignored, ["include.reasoning.encrypted_content", "reasoning", "text.verbosity"]);
}

#[test]
fn refused_responses_name_their_key() {
    for (key, value, param) in [
        ("input", Value::Null, "input"),
        ("input", json!(7), "input"),
        ("input", json!([]), "input"),
        ("input", json!([7]), "input[0]"),
        ("input", json!([{ "type": "item_reference", "id": "x" }]), "input[0].type"),
        ("input", json!([{ "type": "message" }]), "input[0].role"),
        ("input", json!([{ "role": "user" }]), "input[0].content"),
        (
            "input",
            json!([{ "role": "user", "content": [{ "type": "input_file" }] }]),
            "input[0].content[0].type",
        ),
        (
            "input",
            json!([{ "role": "user", "content": [{ "type": "input_image", "image_url": "http://x.test/" }] }]),
            "input[0].content[0].image_url",
        ),
        ("input", json!([{ "type": "function_call", "name": "f" }]), "input[0].call_id"),
        ("input", json!([{ "type": "function_call_output", "output": "r" }]), "input[0].call_id"),
        (
            "input",
            json!([{ "type": "function_call_output", "call_id": "c", "output": "r" }]),
            "input[0].call_id",
        ),
        ("previous_response_id", json!("resp_1"), "previous_response_id"),
        ("conversation", json!("conv_1"), "conversation"),
        ("prompt", json!({ "id": "p" }), "prompt"),
        ("background", json!(true), "background"),
        ("n", json!(2), "n"),
        ("return_token_ids", json!(true), "return_token_ids"),
        ("include", json!(["file_search_call.results"]), "include[0]"),
        ("top_logprobs", json!(2), "top_logprobs"),
        ("tools", json!([{ "type": "web_search" }]), "tools[0].type"),
        ("tools", json!([nested("f")]), "tools[0].name"),
        ("text", json!({ "format": { "type": "xml" } }), "text.format.type"),
        ("text", json!({ "format": { "type": "json_schema", "name": "n" } }), "text.format.schema"),
        ("max_output_tokens", json!(0), "max_output_tokens"),
        ("messages", json!([7]), "messages"),
    ] {
        let got = read_response(&json!({ key: value }));
        assert_eq!(got.unwrap_err().param.as_deref(), Some(param), "{key} {value}");
    }
}
