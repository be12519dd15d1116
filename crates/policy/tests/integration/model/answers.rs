//! The endpoint's answers: equal whole and streamed, each schema with its own automaton, log-probs
//! of one pass; and what a request may cost before it is answered.

use std::sync::Arc;
use std::time::Duration;

use furrow_model::cpu::CpuBackend;
use furrow_model::forward::{ForwardRequest, capacity_for, forward};
use furrow_model::kernels::{ProductPrecision, ThreadPool};
use furrow_model::weights::ModelWeights;
use furrow_rollout::ContextPolicy;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::model::chats::*;
use crate::model::fixture::*;

/// For what takes a fraction of a second where nothing else runs.
const DEADLINE: Duration = Duration::from_secs(90);

/// Assembles the parts of a stream into the form of a whole answer.
fn gathered(events: &[Value]) -> Value {
    let (counted, parts) = events.split_last().unwrap();
    assert_eq!(counted["choices"], json!([]));
    let mut content = String::new();
    let mut token_ids = None;
    let mut logprobs = None;
    let mut finish = Value::Null;
    let grow = |all: &mut Option<Vec<Value>>, part: &Value| {
        if let Some(part) = part.as_array() {
            all.get_or_insert_default().extend(part.iter().cloned());
        }
    };
    for (at, event) in parts.iter().enumerate() {
        assert_eq!((&event["object"], &event["usage"]), (&json!("chat.completion.chunk"), &Value::Null));
        let heads = ["id", "created", "model", "system_fingerprint"];
        assert!(heads.iter().all(|key| !event[key].is_null() && event[key] == counted[key]), "{event}");
        let [part] = &event["choices"].as_array().unwrap()[..] else { panic!("{event}") };
        assert!(finish.is_null(), "no part follows the finish reason");
        assert_eq!(part["delta"]["role"] == "assistant", at == 0, "{event}");
        content.push_str(part["delta"]["content"].as_str().unwrap_or_default());
        grow(&mut token_ids, &part["token_ids"]);
        grow(&mut logprobs, &part["logprobs"]["content"]);
        finish = part["finish_reason"].clone();
    }
    let logprobs = logprobs.map(|content| json!({ "content": content, "refusal": null }));
    let mut choice = json!({
        "index": 0,
        "message": { "role": "assistant", "content": content, "refusal": null },
        "logprobs": logprobs,
        "finish_reason": finish,
    });
    if let Some(ids) = token_ids {
        choice["token_ids"] = json!(ids);
    }
    let mut whole = json!({ "choices": [choice], "usage": counted["usage"] });
    if !events[0]["prompt_token_ids"].is_null() {
        whole["prompt_token_ids"] = events[0]["prompt_token_ids"].clone();
    }
    whole
}

fn of_schema(schema: &str) -> Value {
    let schema: Value = serde_json::from_str(schema).unwrap();
    json!({ "type": "json_schema", "json_schema": { "name": "form", "schema": schema } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_adds_up_to_the_whole_answer_for_every_request() {
    let worker = start(|_| {}).await;
    let with = |changes: Value| {
        let mut payload = request(json!([user("Tell me everything.")]));
        (payload["max_tokens"], payload["temperature"], payload["seed"]) = (json!(40), json!(1), json!(3));
        for (key, value) in changes.as_object().unwrap() {
            payload[key] = value.clone();
        }
        payload
    };
    let image = data_url(&page(&opening(&worker.config, 1, 0, ContextPolicy::Append), 0).screenshot.bytes);
    let shown = json!([{ "role": "user", "content": [
        { "type": "image_url", "image_url": { "url": image } }, { "type": "text", "text": "What?" } ] }]);
    let schema = r#"{"type":"object","properties":{"say":{"type":"string"},"n":{"type":"integer"}},"required":["say"]}"#;
    let table = [
        json!({}),
        json!({ "logprobs": true, "top_logprobs": 4, "temperature": 0.7, "top_p": 0.9 }),
        json!({ "logprobs": true, "return_token_ids": null, "temperature": 0 }),
        json!({ "max_tokens": 1, "logprobs": true }),
        json!({ "messages": shown, "temperature": 0 }),
        json!({ "response_format": of_schema(schema), "seed": 1 }),
        json!({ "response_format": { "type": "json_object" }, "seed": 9 }),
        json!({ "top_k": 5, "min_p": 0.01, "stop": ["e", "a", "\u{fffd}"], "logprobs": true }),
    ];
    for changes in table {
        let payload = with(changes);
        let whole = ChatWorker::expect_ok(worker.ask(&payload).await);
        let mut parts = gathered(&worker.stream(&payload).await);
        for key in ["id", "object", "created", "model", "system_fingerprint"] {
            parts[key] = whole[key].clone();
        }
        assert_eq!(parts, whole, "{payload}");
        assert!(whole["usage"]["completion_tokens"].as_u64() > Some(0), "{whole}");
    }
    // A session continues after a stream as it does after a whole answer.
    let mut messages = vec![user("Tell me everything.")];
    for turn in 0..3 {
        let named = |name: &str| with(json!({ "messages": messages, "session_id": name, "temperature": 0 }));
        let whole = ChatWorker::expect_ok(worker.ask(&named("whole")).await);
        let parts = gathered(&worker.stream(&named("parts")).await);
        assert_eq!((&parts["choices"], &parts["usage"]), (&whole["choices"], &whole["usage"]), "turn {turn}");
        assert_eq!(counts(&whole).1 > 0, turn > 0);
        messages.extend([assistant(&whole), user("Go on.")]);
    }
    worker.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_schema_is_answered_by_its_own_automaton() {
    let worker = start(|_| {}).await;
    let object = |properties: &str, required: &str| {
        of_schema(&format!(r#"{{"type":"object","properties":{{{properties}}},"required":[{required}]}}"#))
    };
    let flag = r#"{"type":"boolean"}"#;
    let pair =
        |first: &str, second: &str| object(&format!(r#""{first}":{flag},"{second}":{flag}"#), r#""a","b""#);
    // The first two are equal as JSON values, but their replies are different texts.
    assert_eq!(pair("a", "b"), pair("b", "a"));
    let literals = |literals: &str| of_schema(&format!(r#"{{"enum":[{literals}]}}"#));
    let list = |least: u32| {
        of_schema(&format!(r#"{{"type":"array","items":{flag},"minItems":{least},"maxItems":3}}"#))
    };
    type ReplyCheck = fn(&str) -> bool;
    let table: [(Value, u32, ReplyCheck); 12] = [
        (pair("a", "b"), 60, |text| text.starts_with(r#"{"a":"#) && text.contains(r#","b":"#)),
        (pair("b", "a"), 60, |text| text.starts_with(r#"{"b":"#) && text.contains(r#","a":"#)),
        (object(&format!(r#""a":{flag},"b":{flag}"#), r#""b""#), 60, |text| text.contains(r#""b":"#)),
        (literals(r#""red","blue""#), 60, |text| [r#""red""#, r#""blue""#].contains(&text)),
        (literals(r#""red","green""#), 60, |text| [r#""red""#, r#""green""#].contains(&text)),
        (literals("1,2"), 60, |text| ["1", "2"].contains(&text)),
        (list(2), 60, |text| (1..3).contains(&text.matches(',').count())),
        (list(3), 60, |text| text.matches(',').count() == 2),
        (of_schema(r#"{"type":"string"}"#), 60, |text| text.starts_with('"') && text.len() > 20),
        (of_schema(r#"{"type":"string"}"#), 12, |text| text.starts_with('"') && text.ends_with('"')),
        (json!({ "type": "json_object" }), 60, |text| text.starts_with('{')),
        (json!({ "type": "text" }), 60, |text| serde_json::from_str::<Value>(text).is_err()),
    ];
    // Twice in turn, and more of them than are kept: automata are dropped and compiled again.
    for round in 0..2 {
        for (format, max_tokens, is_right) in &table {
            let mut payload = request(json!([user("Fill it in.")]));
            (payload["response_format"], payload["max_tokens"]) = (format.clone(), json!(max_tokens));
            (payload["temperature"], payload["seed"]) = (json!(1), json!(round));
            let answer = ChatWorker::expect_ok(worker.ask(&payload).await);
            assert!(is_right(text(&answer)), "{format} in {max_tokens}: {answer}");
            assert!(ids(&answer["choices"][0]["token_ids"]).len() as u32 <= *max_tokens, "{answer}");
        }
    }
    worker.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_likeliest_tokens_are_those_of_one_pass() {
    let worker = start(|_| {}).await;
    let weights = Arc::new(ModelWeights::load(checkpoint(), &ThreadPool::new(2), &mut |_, _| {}).unwrap());
    let width = weights.config.text.vocabulary;
    for (temperature, top, seed) in [(0.0, 5, 0), (1.0, 20, 1), (0.7, 3, 2), (0.7, 0, 2), (1.4, 1, 3)] {
        let mut payload = request(json!([user("Name a colour.")]));
        (payload["temperature"], payload["seed"]) = (json!(temperature), json!(seed));
        (payload["logprobs"], payload["top_logprobs"]) = (json!(true), json!(top));
        let answer = ChatWorker::expect_ok(worker.ask(&payload).await);
        let prompt = ids(&answer["prompt_token_ids"]);
        let reply = ids(&answer["choices"][0]["token_ids"]);
        let all = [&prompt[..], &reply].concat();
        let mut cpu =
            CpuBackend::open(weights.clone(), capacity_for(all.len(), 0, 0), 2, ProductPrecision::Float32)
                .unwrap();
        let pass =
            forward(&mut cpu, &ForwardRequest { input_ids: &all, ..ForwardRequest::default() }).unwrap();
        let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
        assert_eq!(content.len(), reply.len());
        for (at, (entry, id)) in content.iter().zip(&reply).enumerate() {
            let row = &pass.logits[(prompt.len() + at - 1) * width..][..width];
            let whole = row.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
            let mut want: Vec<f64> = row.iter().map(|logit| f64::from(*logit) - whole).collect();
            let logprob = |entry: &Value| entry["logprob"].as_f64().unwrap();
            let near =
                |got: f64, want: f64| assert!((got - want).abs() < 1e-4, "{got}, one pass gives {want}");
            near(logprob(entry), want[*id as usize]);
            want.sort_by(|a, b| b.total_cmp(a));
            let likeliest = entry["top_logprobs"].as_array().unwrap();
            assert_eq!(likeliest.len(), top);
            likeliest.iter().zip(&want).for_each(|(entry, want)| near(logprob(entry), *want));
            let own = likeliest.iter().find(|other| other["bytes"] == entry["bytes"]);
            assert!(own.is_none_or(|own| own["logprob"] == entry["logprob"]), "{entry}");
            if temperature == 0.0 {
                assert_eq!(likeliest[0]["token"], entry["token"], "greedy sampling takes the likeliest");
            }
        }
    }
    // Ranking changes neither the sampled tokens nor their log-probs.
    let mut payload = request(json!([user("Name a colour.")]));
    (payload["temperature"], payload["seed"], payload["logprobs"]) = (json!(1), json!(4), json!(true));
    let alone = ChatWorker::expect_ok(worker.ask(&payload).await);
    payload["top_logprobs"] = json!(2);
    let mut beside = ChatWorker::expect_ok(worker.ask(&payload).await);
    for entry in beside["choices"][0]["logprobs"]["content"].as_array_mut().unwrap() {
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 2);
        entry["top_logprobs"] = json!([]);
    }
    assert_eq!(beside["choices"], alone["choices"]);
    worker.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures_that_cannot_be_shown_are_not_decoded() {
    let worker = start(|file| file.serve.images_max = 200).await;
    let sound = page(&opening(&worker.config, 1, 0, ContextPolicy::Append), 0).screenshot.bytes.to_vec();
    // Header and end are intact, but the data between them cannot be decoded.
    let mut torn = sound.clone();
    let data = torn.windows(4).position(|name| name == b"IDAT").unwrap() + 4;
    torn[data..data + 8].fill(0xff);
    let show = |pictures: &[&Vec<u8>]| {
        let parts: Vec<Value> = pictures
            .iter()
            .map(|png| json!({ "type": "image_url", "image_url": { "url": data_url(png) } }))
            .collect();
        request(json!([user("first"), { "role": "user", "content": parts }]))
    };
    let check = async |pictures: &[&Vec<u8>], code: &str, message: &str| {
        let (status, answer) = worker.ask(&show(pictures)).await;
        let error = &answer["error"];
        assert_eq!((status, error["code"].as_str().unwrap_or_default()), (400, code), "{answer}");
        assert!(error["message"].as_str().unwrap().contains(message), "{answer}");
    };
    ChatWorker::expect_ok(worker.ask(&show(&[&sound; 3])).await);
    check(&[&sound, &torn], "", "the image cannot be read").await;
    // 16 rows each, and a context of 768 tokens. If the first one were decoded, the error would be
    // about that.
    check(&[&torn; 100], "context_length_exceeded", "take 768 tokens; all must be below 768").await;
    worker.end().await;
}

/// Begins a chat and sends its body later.
async fn begin(worker: &ChatWorker, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(worker.address).await.unwrap();
    let address = worker.address;
    let bytes = body.len();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {bytes}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&body.as_bytes()[..1]).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_sender_delays_no_other_request() {
    let worker = start(|file| {
        (file.serve.sessions_max, file.serve.requests_max, file.serve.queue_max) = (1, 1, 1);
    })
    .await;
    let payload = request(json!([user("hi")]));
    let body = payload.to_string();
    let mut slow = begin(&worker, &body).await;
    // At most two are admitted. A second slow request fills the queue, which shows that the first
    // is in it. On a busy machine the third may come before it: then each has more time.
    let full = async {
        for attempt in 1.. {
            let second = begin(&worker, &body).await;
            tokio::time::sleep(attempt * Duration::from_millis(50)).await;
            if worker.ask(&payload).await.0 == 429 {
                return second;
            }
        }
        unreachable!("attempts do not end");
    };
    drop(timeout(DEADLINE, full).await.unwrap());
    // The only permit to run is free for requests whose bodies have arrived.
    let first_answer = timeout(DEADLINE, until(&worker, 200)).await.unwrap();
    slow.write_all(&body.as_bytes()[1..]).await.unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).await.unwrap();
    let (head, whole) = answer.split_once("\r\n\r\n").unwrap();
    let own: Value = serde_json::from_str(whole).unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(own["choices"], first_answer["choices"]);
    worker.end().await;

    let worker = start(|file| file.serve.deadline_millis = 300).await;
    let mut late = begin(&worker, &body).await;
    let mut answer = String::new();
    timeout(DEADLINE, late.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("body_late"), "{answer}");
    worker.end().await;
}
