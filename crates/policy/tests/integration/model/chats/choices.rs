//! Several replies to one request, and keys that have no effect.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_choice_has_a_seed_of_its_own_and_the_prompt_runs_once() {
    let worker = start(|_| {}).await;
    let mut payload = request(json!([user("Name three colours, and say why you like each of them.")]));
    (payload["temperature"], payload["seed"]) = (json!(1), json!(11));
    let one = ChatWorker::expect_ok(worker.ask(&payload).await);
    payload["messages"] = json!([user("Name three colours, and tell me why you like each of them.")]);
    let other = ChatWorker::expect_ok(worker.ask(&payload).await);
    payload["n"] = json!(3);
    let three = ChatWorker::expect_ok(worker.ask(&payload).await);
    let choices = three["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    assert_eq!(choices[0], other["choices"][0], "the first has the request's own seed");
    let token_ids: Vec<Vec<u32>> = choices.iter().map(|choice| ids(&choice["token_ids"])).collect();
    assert!(token_ids[0] != token_ids[1] && token_ids[1] != token_ids[2] && token_ids[0] != token_ids[2]);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], json!(index));
    }
    let sum: usize = token_ids.iter().map(Vec::len).sum();
    assert_eq!(three["usage"]["completion_tokens"], json!(sum));
    let (prompt, cached, prefilled) = counts(&three);
    assert_eq!((prompt, cached), (counts(&other).0, 0));
    assert_eq!(prefilled, prompt + 2, "two replies fork before the prompt's last token");

    let repeated = ChatWorker::expect_ok(worker.ask(&payload).await);
    assert_eq!(repeated["choices"], three["choices"], "the same seed samples the same choices");
    let mut texts = vec![String::new(); 3];
    let mut ends = vec![Value::Null; 3];
    for event in worker.stream(&payload).await {
        for part in event["choices"].as_array().unwrap() {
            let index = part["index"].as_u64().unwrap() as usize;
            texts[index].push_str(part["delta"]["content"].as_str().unwrap_or_default());
            if !part["finish_reason"].is_null() {
                ends[index] = part["finish_reason"].clone();
            }
        }
    }
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(
            (&json!(texts[index]), &ends[index]),
            (&choice["message"]["content"], &choice["finish_reason"])
        );
    }
    assert_ne!(text(&one), "");
    for (key, value) in [("n", json!(4)), ("session_id", json!("s"))] {
        let mut wrong = payload.clone();
        wrong[key] = value;
        let (status, error) = worker.ask(&wrong).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!("n")), "{error}");
    }
    worker.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_with_n_counts_n_times() {
    let worker = start(|file| file.serve.queue_max = 1).await;
    let mut payload = request(json!([user("hi")]));
    payload["n"] = json!(3);
    ChatWorker::expect_ok(worker.ask(&payload).await);
    // Two requests wait for their bodies, and two of four permits are left.
    let waiting = [send_partial(worker.address).await, send_partial(worker.address).await];
    let began = Instant::now();
    let refused = loop {
        let (status, value) = worker.ask(&payload).await;
        if status == 429 {
            break value;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{value}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(refused["error"]["code"], "queue_full");
    payload["n"] = json!(2);
    ChatWorker::expect_ok(worker.ask(&payload).await);
    drop(waiting);
    // All permits are back, whatever was refused.
    payload["n"] = json!(3);
    let requests = (0..4).map(|_| worker.ask(&payload));
    for (status, value) in futures::future::join_all(requests).await {
        assert!(status == 200 || value["error"]["code"] == "queue_full", "{value}");
    }
    loop {
        let (status, value) = worker.ask(&payload).await;
        if status == 200 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{value}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    worker.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_without_effect_are_named_in_a_header() {
    let worker = start(|_| {}).await;
    let mut payload = request(json!([{ "role": "user", "content": "hi", "name": "eve" }]));
    let plain = request(json!([user("hi")])).to_string();
    let answer = send(worker.address, "POST", "/v1/chat/completions", &[], plain).await;
    assert!(!answer.headers().contains_key("furrow-ignored"));
    let (_, plain) = read(answer).await;
    (payload["frequency_penalty"], payload["store"]) = (json!(0.3), json!(true));
    (payload["presence_penalty"], payload["reasoning_effort"]) = (json!(0), json!("low"));
    for stream in [false, true] {
        payload["stream"] = json!(stream);
        let answer = send(worker.address, "POST", "/v1/chat/completions", &[], payload.to_string()).await;
        assert_eq!(
            answer.headers()["furrow-ignored"],
            "frequency_penalty, messages.name, reasoning_effort, store"
        );
        let (status, text) = read(answer).await;
        assert_eq!(status, 200, "{text}");
        if !stream {
            let of = |text: &str| serde_json::from_str::<Value>(text).unwrap()["choices"].clone();
            assert_eq!(of(&text), of(&plain));
        }
    }
    // A later system message is a part of what the user says.
    let system = |text: &str| json!({ "role": "system", "content": text });
    let prompt = async |messages: Value| {
        let answer = ChatWorker::expect_ok(worker.ask(&request(messages)).await);
        ids(&answer["prompt_token_ids"])
    };
    assert_eq!(
        prompt(json!([system("one"), system("two"), user("hi"), system("later")])).await,
        prompt(json!([system("one\n\ntwo"), user("hi"), user("later")])).await
    );
    worker.end().await;
}
