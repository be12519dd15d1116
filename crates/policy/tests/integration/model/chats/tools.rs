//! Functions that are offered, called and answered.

use super::*;

fn tools() -> Value {
    json!([
        { "type": "function", "function": { "name": "add", "description": "Adds.", "parameters": {
            "type": "object", "required": ["a", "b"],
            "properties": { "a": { "type": "integer", "minimum": 0, "maximum": 99 }, "b": { "type": "integer", "minimum": 0, "maximum": 99 } },
        } } },
        { "type": "function", "function": { "name": "paint", "strict": true, "parameters": {
            "type": "object", "required": ["colour"], "properties": { "colour": { "enum": ["red", "green"] } },
        } } },
    ])
}

fn asking(choice: Value) -> Value {
    let mut payload = request(json!([user("Work.")]));
    (payload["tools"], payload["tool_choice"]) = (tools(), choice);
    (payload["temperature"], payload["max_tokens"]) = (json!(1), json!(400));
    payload
}

fn large_context(file: &mut PolicyFile) {
    (file.engine.context_tokens_max, file.engine.kv_tokens) = (2048, 12_000);
}

/// Checks a call and returns its function's name.
#[track_caller]
fn checked(call: &Value) -> &str {
    assert!(call["type"] == "function" && call["id"].as_str().unwrap().starts_with("call_"), "{call}");
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    let name = call["function"]["name"].as_str().unwrap();
    match name {
        "add" => assert!(arguments["a"].as_u64().unwrap() < 100 && arguments["b"].as_u64().unwrap() < 100),
        "paint" => assert!(["red", "green"].contains(&arguments["colour"].as_str().unwrap())),
        other => panic!("{other} was not offered"),
    }
    name
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_required_call_matches_its_schema() {
    let worker = start(large_context).await;
    let named = json!({ "type": "function", "function": { "name": "paint" } });
    let mut most = 0;
    let mut names = Vec::new();
    for (seed, (choice, parallel)) in [(json!("required"), true), (json!("required"), false), (named, true)]
        .iter()
        .cycle()
        .take(12)
        .enumerate()
    {
        let mut payload = asking(choice.clone());
        (payload["seed"], payload["parallel_tool_calls"]) = (json!(seed), json!(parallel));
        let answer = ChatWorker::expect_ok(worker.ask(&payload).await);
        let part = &answer["choices"][0];
        assert_eq!(
            (&part["finish_reason"], &part["message"]["content"]),
            (&json!("tool_calls"), &Value::Null),
            "{answer}"
        );
        let calls = part["message"]["tool_calls"].as_array().unwrap();
        for call in calls {
            let name = checked(call);
            assert!(choice.is_string() || name == "paint");
            names.push(name.to_owned());
        }
        assert!(*parallel || calls.len() == 1, "{answer}");
        most = most.max(calls.len());

        let mut streamed = Vec::new();
        let mut finish = Value::Null;
        for event in worker.stream(&payload).await {
            let Some(part) = event["choices"].get(0) else { continue };
            assert_eq!(part["delta"]["content"].as_str().unwrap_or_default(), "");
            for call in part["delta"]["tool_calls"].as_array().into_iter().flatten() {
                assert_eq!(call["index"], json!(streamed.len()));
                streamed.push(call["function"].clone());
            }
            if !part["finish_reason"].is_null() {
                finish = part["finish_reason"].clone();
            }
        }
        let whole: Vec<Value> = calls.iter().map(|call| call["function"].clone()).collect();
        assert_eq!((streamed, finish), (whole, json!("tool_calls")));
    }
    assert!(most > 1, "no reply had several calls");
    assert!(names.iter().any(|name| name == "add") && names.iter().any(|name| name == "paint"), "{names:?}");
    worker.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_goes_on_after_calls() {
    let worker = start(large_context).await;
    let mut payload = asking(json!("required"));
    (payload["session_id"], payload["seed"]) = (json!("t"), json!(2));
    let first = ChatWorker::expect_ok(worker.ask(&payload).await);
    let message = &first["choices"][0]["message"];
    let calls = message["tool_calls"].as_array().unwrap();
    let mut messages = vec![user("Work."), message.clone()];
    messages.extend(
        calls
            .iter()
            .map(|call| json!({ "role": "tool", "tool_call_id": call["id"], "content": "forty-two" })),
    );
    // The client's own message, without ids of tokens, continues the session; auto is another
    // choice among the same functions.
    (payload["messages"], payload["tool_choice"]) = (json!(messages), json!("auto"));
    payload["max_tokens"] = json!(12);
    let second = ChatWorker::expect_ok(worker.ask(&payload).await);
    assert!(counts(&second).1 >= counts(&first).0, "{second}");
    assert!(second["choices"][0]["message"]["tool_calls"].is_null(), "random text is content: {second}");
    let template = template();
    let prompt = template.tokenizer().decode_with_marks(&ids(&second["prompt_token_ids"]));
    for part in [
        "{\"name\":\"add\",\"description\":\"Adds.\",\"parameters\":{",
        "<tool_call>{\"name\":\"",
        "<tool_response>forty-two</tool_response>",
    ] {
        assert!(prompt.contains(part), "{part} is not in {prompt}");
    }
    // With the sampled ids a fresh chat has the same prompt and so the same reply.
    messages[1]["token_ids"] = first["choices"][0]["token_ids"].clone();
    (payload["messages"], payload["session_id"]) = (json!(messages), Value::Null);
    let fresh = ChatWorker::expect_ok(worker.ask(&payload).await);
    assert_eq!(fresh["prompt_token_ids"], second["prompt_token_ids"]);
    assert_eq!(fresh["choices"], second["choices"]);
    // Other functions are other instructions.
    payload["session_id"] = json!("t");
    payload["tools"].as_array_mut().unwrap().pop();
    messages[1].as_object_mut().unwrap().remove("token_ids");
    payload["messages"] = json!(messages);
    assert_eq!(counts(&ChatWorker::expect_ok(worker.ask(&payload).await)).1, 0);
    worker.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_form_of_the_reply_leaves_the_choice_between_it_and_a_call() {
    let worker = start(large_context).await;
    let mut kinds = [0, 0];
    for seed in 0..12 {
        let mut payload = asking(json!("auto"));
        payload["seed"] = json!(seed);
        let schema = json!({ "type": "object", "properties": { "done": { "type": "boolean" } }, "required": ["done"] });
        payload["response_format"] =
            json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
        let answer = ChatWorker::expect_ok(worker.ask(&payload).await);
        let message = &answer["choices"][0]["message"];
        if let Some(calls) = message["tool_calls"].as_array() {
            for call in calls {
                checked(call);
            }
            kinds[0] += 1;
        } else {
            assert!(serde_json::from_str::<Value>(text(&answer)).unwrap()["done"].is_boolean(), "{answer}");
            kinds[1] += 1;
        }
        payload["tool_choice"] = json!("none");
        let answer = ChatWorker::expect_ok(worker.ask(&payload).await);
        assert!(serde_json::from_str::<Value>(text(&answer)).unwrap()["done"].is_boolean(), "{answer}");
    }
    assert!(kinds[0] > 0 && kinds[1] > 0, "{kinds:?}");
    // A schema that cannot be enforced is refused where a call is required, and shown as it is
    // where it is not.
    let mut payload = asking(json!("required"));
    payload["tools"][0]["function"]["parameters"]["properties"]["a"] =
        json!({ "type": "string", "pattern": "x" });
    let (status, error) = worker.ask(&payload).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("tools[0].function.parameters")), "{error}");
    (payload["tool_choice"], payload["max_tokens"]) = (json!("auto"), json!(8));
    ChatWorker::expect_ok(worker.ask(&payload).await);
    (payload["tool_choice"], payload["tools"]) = (json!("required"), tools());
    let (status, error) = worker.ask(&payload).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("max_tokens")), "{error}");
    worker.end().await;
}
