//! What the endpoint answers: the same whole and in parts, each schema by its own automaton, log-probs of one pass; and what a request may
//! cost before it is answered.

use std::sync::Arc;
use std::time::Duration;

use furrow_model::cpu::Cpu;
use furrow_model::forward::{Request, forward, room};
use furrow_model::kernels::{Compute, Team};
use furrow_model::weights::Weights;
use furrow_rollout::ContextPolicy;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::chats::*;
use crate::ground::*;

/// What the parts of a stream make together, in the form of a whole answer.
fn gathered(events: &[Value]) -> Value {
    let (counted, parts) = events.split_last().unwrap();
    assert_eq!(counted["choices"], json!([]));
    let mut content = String::new();
    let (mut token_ids, mut logprobs, mut finish) = (None, None, Value::Null);
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
        assert!(finish.is_null(), "nothing comes behind the end");
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
async fn a_stream_makes_the_whole_answer_whatever_is_asked_for() {
    let worker = start(|_| {}).await;
    let with = |changes: Value| {
        let mut asked = request(json!([user("Tell me everything.")]));
        (asked["max_tokens"], asked["temperature"], asked["seed"]) = (json!(40), json!(1), json!(3));
        for (key, value) in changes.as_object().unwrap() {
            asked[key] = value.clone();
        }
        asked
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
        let asked = with(changes);
        let whole = Worker::told(worker.ask(&asked).await);
        let mut parts = gathered(&worker.stream(&asked).await);
        for key in ["id", "object", "created", "model", "system_fingerprint"] {
            parts[key] = whole[key].clone();
        }
        assert_eq!(parts, whole, "{asked}");
        assert!(whole["usage"]["completion_tokens"].as_u64() > Some(0), "{whole}");
    }
    // A session goes on behind a stream as it does behind a whole answer.
    let mut messages = vec![user("Tell me everything.")];
    for turn in 0..3 {
        let named = |name: &str| with(json!({ "messages": messages, "session_id": name, "temperature": 0 }));
        let whole = Worker::told(worker.ask(&named("whole")).await);
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
    // The first two are equal as JSON values; their replies are other texts.
    assert_eq!(pair("a", "b"), pair("b", "a"));
    let words = |words: &str| of_schema(&format!(r#"{{"enum":[{words}]}}"#));
    let list = |least: u32| {
        of_schema(&format!(r#"{{"type":"array","items":{flag},"minItems":{least},"maxItems":3}}"#))
    };
    type Is = fn(&str) -> bool;
    let table: [(Value, u32, Is); 12] = [
        (pair("a", "b"), 60, |text| text.starts_with(r#"{"a":"#) && text.contains(r#","b":"#)),
        (pair("b", "a"), 60, |text| text.starts_with(r#"{"b":"#) && text.contains(r#","a":"#)),
        (object(&format!(r#""a":{flag},"b":{flag}"#), r#""b""#), 60, |text| text.contains(r#""b":"#)),
        (words(r#""red","blue""#), 60, |text| [r#""red""#, r#""blue""#].contains(&text)),
        (words(r#""red","green""#), 60, |text| [r#""red""#, r#""green""#].contains(&text)),
        (words("1,2"), 60, |text| ["1", "2"].contains(&text)),
        (list(2), 60, |text| (1..3).contains(&text.matches(',').count())),
        (list(3), 60, |text| text.matches(',').count() == 2),
        (of_schema(r#"{"type":"string"}"#), 60, |text| text.starts_with('"') && text.len() > 20),
        (of_schema(r#"{"type":"string"}"#), 12, |text| text.starts_with('"') && text.ends_with('"')),
        (json!({ "type": "json_object" }), 60, |text| text.starts_with('{')),
        (json!({ "type": "text" }), 60, |text| serde_json::from_str::<Value>(text).is_err()),
    ];
    // Twice in turn, more of them than are kept: automata are forgotten and made again.
    for round in 0..2 {
        for (format, max_tokens, is_right) in &table {
            let mut asked = request(json!([user("Fill it in.")]));
            (asked["response_format"], asked["max_tokens"]) = (format.clone(), json!(max_tokens));
            (asked["temperature"], asked["seed"]) = (json!(1), json!(round));
            let told = Worker::told(worker.ask(&asked).await);
            assert!(is_right(text(&told)), "{format} in {max_tokens}: {told}");
            assert!(ids(&told["choices"][0]["token_ids"]).len() as u32 <= *max_tokens, "{told}");
        }
    }
    worker.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_likeliest_tokens_are_those_of_one_pass() {
    let worker = start(|_| {}).await;
    let weights = Arc::new(Weights::load(checkpoint(), &Team::new(2), &mut |_, _| {}).unwrap());
    let width = weights.config.text.vocabulary;
    for (temperature, top, seed) in [(0.0, 5, 0), (1.0, 20, 1), (0.7, 3, 2), (0.7, 0, 2), (1.4, 1, 3)] {
        let mut asked = request(json!([user("Name a colour.")]));
        (asked["temperature"], asked["seed"]) = (json!(temperature), json!(seed));
        (asked["logprobs"], asked["top_logprobs"]) = (json!(true), json!(top));
        let told = Worker::told(worker.ask(&asked).await);
        let (prompt, reply) = (ids(&told["prompt_token_ids"]), ids(&told["choices"][0]["token_ids"]));
        let all = [&prompt[..], &reply].concat();
        let mut cpu = Cpu::open(weights.clone(), room(all.len(), 0, 0), 2, Compute::Float32).unwrap();
        let pass = forward(&mut cpu, &Request { input_ids: &all, ..Request::default() }).unwrap();
        let content = told["choices"][0]["logprobs"]["content"].as_array().unwrap();
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
                assert_eq!(likeliest[0]["token"], entry["token"], "greedy draws the likeliest");
            }
        }
    }
    // Whether others are told beside it changes nothing of what is drawn, nor of its log-prob.
    let mut asked = request(json!([user("Name a colour.")]));
    (asked["temperature"], asked["seed"], asked["logprobs"]) = (json!(1), json!(4), json!(true));
    let alone = Worker::told(worker.ask(&asked).await);
    asked["top_logprobs"] = json!(2);
    let mut beside = Worker::told(worker.ask(&asked).await);
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
    // Its head and its end are whole; between them is nothing that can be decoded.
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
        let (status, told) = worker.ask(&show(pictures)).await;
        let error = &told["error"];
        assert_eq!((status, error["code"].as_str().unwrap_or_default()), (400, code), "{told}");
        assert!(error["message"].as_str().unwrap().contains(message), "{told}");
    };
    Worker::told(worker.ask(&show(&[&sound; 3])).await);
    check(&[&sound, &torn], "", "a picture cannot be read").await;
    // 16 rows each, and a context of 768 tokens: were the first one decoded, the answer would be that it cannot be.
    check(&[&torn; 100], "context_length_exceeded", "take 768 tokens; all must be below 768").await;
    worker.end().await;
}

/// Begins a chat and leaves its body for later.
async fn begin(worker: &Worker, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(worker.address).await.unwrap();
    let (address, bytes) = (worker.address, body.len());
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {bytes}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&body.as_bytes()[..1]).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_slowly_waits_alone() {
    let worker = start(|file| {
        (file.serve.sessions_max, file.serve.requests_max, file.serve.queue_max) = (1, 1, 1);
    })
    .await;
    let asked = request(json!([user("hi")]));
    let body = asked.to_string();
    let mut slow = begin(&worker, &body).await;
    // Two are let in at most: a second slow one fills the house, so the first is known to be inside.
    let full = async {
        loop {
            let second = begin(&worker, &body).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            if worker.ask(&asked).await.0 == 429 {
                return second;
            }
        }
    };
    drop(timeout(Duration::from_secs(20), full).await.unwrap());
    // The only place at work is free for those whose requests are there.
    let told = timeout(Duration::from_secs(20), until(&worker, 200)).await.unwrap();
    slow.write_all(&body.as_bytes()[1..]).await.unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).await.unwrap();
    let (head, whole) = answer.split_once("\r\n\r\n").unwrap();
    let own: Value = serde_json::from_str(whole).unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(own["choices"], told["choices"]);
    worker.end().await;

    let worker = start(|file| file.serve.deadline_millis = 300).await;
    let mut late = begin(&worker, &body).await;
    let mut answer = String::new();
    timeout(Duration::from_secs(20), late.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("body_late"), "{answer}");
    worker.end().await;
}
