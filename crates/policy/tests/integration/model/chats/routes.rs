//! Completions and responses: the engine's replies in the forms of their routes.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_of_a_chats_tokens_is_the_chats_reply() {
    let worker = start(|_| {}).await;
    let mut payload = request(json!([user("Tell me.")]));
    (payload["logprobs"], payload["top_logprobs"]) = (json!(true), json!(2));
    let chat = ChatWorker::expect_ok(worker.ask(&payload).await);
    let mut completion = json!({
        "model": "tiny", "prompt": chat["prompt_token_ids"], "temperature": 0, "max_tokens": 12, "logprobs": 2,
        "return_token_ids": true,
    });
    let whole = ChatWorker::expect_ok(worker.ask_at("/v1/completions", &completion).await);
    let choice = &whole["choices"][0];
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(
        (&choice["text"], &choice["token_ids"]),
        (&chat["choices"][0]["message"]["content"], &chat["choices"][0]["token_ids"])
    );
    assert_eq!(choice["prompt_token_ids"], chat["prompt_token_ids"]);
    let mut text_length = 0;
    let content = chat["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), content.len());
    for (index, entry) in content.iter().enumerate() {
        let logprobs = &choice["logprobs"];
        assert_eq!(
            (&logprobs["tokens"][index], &logprobs["token_logprobs"][index]),
            (&entry["token"], &entry["logprob"])
        );
        assert_eq!(logprobs["text_offset"][index], json!(text_length));
        let likeliest = &entry["top_logprobs"][0];
        assert_eq!(
            logprobs["top_logprobs"][index][likeliest["token"].as_str().unwrap()],
            likeliest["logprob"]
        );
        text_length += entry["token"].as_str().unwrap().chars().count();
    }
    let mut streamed = String::new();
    let mut offsets = Vec::new();
    for event in worker.stream_at("/v1/completions", &completion).await {
        let Some(part) = event["choices"].get(0) else { continue };
        streamed.push_str(part["text"].as_str().unwrap());
        offsets.extend(part["logprobs"]["text_offset"].as_array().into_iter().flatten().cloned());
    }
    assert_eq!(
        (json!(streamed), json!(offsets)),
        (choice["text"].clone(), choice["logprobs"]["text_offset"].clone())
    );

    // A text is tokenised without marks; each of several prompts has its choices.
    let template = template();
    completion["prompt"] = json!("Blue <SPECIAL_12>");
    let one = ChatWorker::expect_ok(worker.ask_at("/v1/completions", &completion).await);
    assert_eq!(ids(&one["choices"][0]["prompt_token_ids"]), template.tokenizer().encode("Blue <SPECIAL_12>"));
    completion["prompt"] = json!(["Blue <SPECIAL_12>", "Red"]);
    let two = ChatWorker::expect_ok(worker.ask_at("/v1/completions", &completion).await);
    assert_eq!(two["choices"].as_array().unwrap().len(), 2);
    assert_eq!(two["choices"][0], one["choices"][0]);
    assert_eq!(two["choices"][1]["index"], 1);
    for (prompt, n, param) in
        [(json!([999_999]), 1, "prompt"), (json!(["a", "b"]), 2, "prompt"), (json!("a"), 9, "n")]
    {
        (completion["prompt"], completion["n"]) = (prompt, json!(n));
        let (status, error) = worker.ask_at("/v1/completions", &completion).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{error}");
    }
    worker.end().await;
}

/// The events of a response's stream; each event's name is its type.
async fn events(worker: &ChatWorker, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let answer = send(worker.address, "POST", "/v1/responses", &[], body.to_string()).await;
    let (status, text) = read(answer).await;
    assert_eq!(status, 200, "{text}");
    let event = |event: &str| -> Value {
        let (name, data) = event.split_once('\n').unwrap();
        let value: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name, format!("event: {}", value["type"].as_str().unwrap()));
        value
    };
    let events: Vec<Value> = text.split("\n\n").filter(|text| !text.is_empty()).map(event).collect();
    for (index, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], json!(index));
    }
    events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_is_the_chats_reply() {
    let worker = start(|_| {}).await;
    let mut payload = request(json!([{ "role": "system", "content": "Be brief." }, user("Tell me.")]));
    payload["temperature"] = json!(0);
    let chat = ChatWorker::expect_ok(worker.ask(&payload).await);
    let body = json!({
        "model": "tiny", "instructions": "Be brief.", "input": "Tell me.", "temperature": 0,
        "max_output_tokens": 12, "metadata": { "a": "b" },
    });
    let whole = ChatWorker::expect_ok(worker.ask_at("/v1/responses", &body).await);
    let message = &whole["output"][0];
    assert_eq!(
        (&message["type"], &message["content"][0]["text"]),
        (&json!("message"), &chat["choices"][0]["message"]["content"])
    );
    let is_cut = chat["choices"][0]["finish_reason"] == "length";
    assert_eq!(whole["status"], if is_cut { "incomplete" } else { "completed" });
    assert_eq!(
        whole["incomplete_details"]["reason"],
        if is_cut { json!("max_output_tokens") } else { Value::Null }
    );
    assert_eq!((&whole["metadata"], &whole["instructions"]), (&body["metadata"], &body["instructions"]));
    assert_eq!(whole["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    assert_eq!(whole["usage"]["output_tokens"], chat["usage"]["completion_tokens"]);

    let events = events(&worker, &body).await;
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    let last = if is_cut { "response.incomplete" } else { "response.completed" };
    assert_eq!(
        kinds,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            last,
        ]
    );
    let text: String = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta")
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(json!(text), message["content"][0]["text"]);
    let ended = &events.last().unwrap()["response"];
    let same = |key: &str| ended[key] == whole[key];
    assert!(["status", "usage", "incomplete_details", "metadata", "model"].into_iter().all(same), "{ended}");
    assert_eq!(ended["output"][0]["content"], message["content"]);
    worker.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_calls_functions_and_takes_their_results() {
    let worker = start(|file| (file.engine.context_tokens_max, file.engine.kv_tokens) = (2048, 8192)).await;
    let parameters =
        json!({ "type": "object", "properties": { "x": { "type": "boolean" } }, "required": ["x"] });
    let mut body = json!({
        "model": "tiny", "input": [{ "role": "user", "content": "Go." }], "max_output_tokens": 300, "seed": 1,
        "tools": [{ "type": "function", "name": "flip", "parameters": parameters }], "tool_choice": "required",
        "parallel_tool_calls": false, "session_id": "r",
    });
    let first = ChatWorker::expect_ok(worker.ask_at("/v1/responses", &body).await);
    let call = &first["output"][0];
    assert_eq!(
        (&call["type"], &call["name"], &first["status"]),
        (&json!("function_call"), &json!("flip"), &json!("completed")),
        "{first}"
    );
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["x"].is_boolean());
    let items = body["input"].as_array_mut().unwrap();
    items.push(call.clone());
    items.push(json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "done" }));
    let second = ChatWorker::expect_ok(worker.ask_at("/v1/responses", &body).await);
    let cached = second["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= first["usage"]["input_tokens"].as_u64().unwrap(), "{second}");
    body["session_id"] = Value::Null;
    let events = events(&worker, &body).await;
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    assert_eq!(events[5]["item"], events[6]["response"]["output"][0]);
    let (status, error) = worker
        .ask_at("/v1/responses", &json!({ "model": "tiny", "input": "x", "previous_response_id": "resp_1" }))
        .await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("previous_response_id")));
    worker.end().await;
}
