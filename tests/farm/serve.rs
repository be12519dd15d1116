//! A policy worker alone serves chats: started from a job file, called over HTTP, stopped by a
//! signal.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use crate::farm::{FURROW, furrow, simulated_tasks};
use crate::weights::write_checkpoint;

#[test]
fn a_policy_worker_alone_serves_chats() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    write_checkpoint(&path("tiny"), "7");
    fs::write(path("token"), "correct-horse-battery\n").unwrap();
    let job = |listen: &str, token: &str| {
        let tasks = simulated_tasks(folder.path(), 1, 1);
        let text = format!(
            "[run]\nname = \"run\"\noutput_dir = \".\"\n{tasks}\
             [policy]\nkind = \"model\"\ncheckpoint = \"tiny\"\n[policy.serve]\nlisten = {listen:?}\n{token}"
        );
        fs::write(path("job.toml"), text).unwrap();
        let mut command = Command::new(FURROW);
        command.args(["policy", "job.toml"]).current_dir(folder.path()).stdin(Stdio::null());
        command
    };
    let open = job("0.0.0.0:0", "").output().unwrap();
    let stderr = String::from_utf8_lossy(&open.stderr);
    assert!(open.status.code() == Some(2) && stderr.contains("policy.serve.token_file"), "{stderr}");

    // A port that is taken fails a run before it starts.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    drop(job(&taken.local_addr().unwrap().to_string(), ""));
    let refused = furrow(&["run", "job.toml", "--simulate-browser=4000"], folder.path());
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && stderr.contains("policy.serve.listen"), "{stderr}");
    assert!(!path("run").exists(), "a half-made run directory is left");

    let mut worker = job("127.0.0.1:0", "token_file = \"token\"\n").stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(worker.stderr.take().unwrap()).lines().map(Result::unwrap);
    let address = lines.find_map(|line| Some(line.split_once(" served at http://")?.1.to_owned())).unwrap();
    let rest = std::thread::spawn(move || lines.collect::<Vec<_>>().join("\n"));
    let address = address.trim_end_matches("/v1");
    let requests =
        [("/v1/models", "", "401"), ("/v1/models", "Authorization: Bearer correct-horse-battery\r\n", "200")];
    for (route, token, status) in requests {
        let mut stream = TcpStream::connect(address).unwrap();
        let head = format!("GET {route} HTTP/1.1\r\nHost: {address}\r\n{token}Connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.split(' ').nth(1), Some(status), "{answer}");
        assert_eq!(answer.contains("\"id\":\"tiny\""), status == "200", "{answer}");
    }
    let pid = worker.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let ended = worker.wait().unwrap();
    let stderr = rest.join().unwrap();
    assert_eq!(ended.code(), Some(0), "{stderr}");
}

/// Sends a request and returns the whole answer.
fn call(address: &str, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_checkpoint_is_served_without_a_farm() {
    let folder = tempfile::tempdir().unwrap();
    write_checkpoint(&folder.path().join("tiny"), "7");
    // A job whose tasks and browser are not on this machine.
    let job = "[[tasks.source]]\nsuite = \"starter\"\npath = \"gone\"\n[env]\nbrowser = \"/gone\"\n\
               [policy]\nkind = \"model\"\ncheckpoint = \"tiny\"\n[policy.serve]\nmodel = \"named\"\n";
    fs::write(folder.path().join("job.toml"), job).unwrap();
    let start = |args: &[&str]| {
        let mut command = Command::new(FURROW);
        command.args(["policy", "--serve-only"]).args(args).current_dir(folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let refused = [
        (&["gone.toml"][..], "gone.toml"),
        (&["tiny", "--serve", "0.0.0.0:0"], "policy.serve.token_file"),
        (&["tiny", "--serve", "nowhere"], "policy.serve.listen"),
        (&["tiny", "--sessions", "0"], "--sessions"),
        (&["tiny", "--set", "policy.serve.surprise=1"], "policy.serve.surprise"),
        (&["tiny", "--coordinator", "127.0.0.1:1"], "--coordinator"),
        (&["job.toml", "--set", "policy.kind=random"], "policy.kind"),
    ];
    for (args, part) in refused {
        let ended = start(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.code() == Some(2) && stderr.contains(part), "{args:?}: {stderr}");
    }
    let free = ["--serve", "127.0.0.1:0"];
    for (args, model) in [
        (&["tiny"][..], "tiny"),
        (&["tiny", "--model", "other", "--sessions", "2"], "other"),
        (&["job.toml"], "named"),
    ] {
        let mut worker = start(&[args, &free].concat()).spawn().unwrap();
        let mut lines = BufReader::new(worker.stderr.take().unwrap()).lines().map(Result::unwrap);
        let address =
            lines.find_map(|line| Some(line.split_once(" served at http://")?.1.to_owned())).unwrap();
        let rest = std::thread::spawn(move || lines.collect::<Vec<_>>().join("\n"));
        let address = address.trim_end_matches("/v1");
        let body = format!(
            "{{\"model\":{model:?},\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}],\"max_tokens\":4,\"session_id\":\"s\"}}"
        );
        let answer = call(address, "POST /v1/chat/completions", &body);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"choices\""), "{answer}");
        let pid = worker.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let ended = worker.wait().unwrap();
        let rest = rest.join().unwrap();
        assert_eq!(ended.code(), Some(0), "{rest}");
        assert!(rest.contains("running chats finish") && !rest.contains("trajector"), "{rest}");
    }
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["job.toml", "tiny"], "the endpoint writes no file");
}
