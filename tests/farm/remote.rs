//! A model behind an OpenAI-compatible endpoint acts in a whole farm; the endpoint is a fake that
//! first misbehaves and then acts correctly.

use std::process::Command;

use furrow_testkit::chat_server::{FakeChatServer, ServerAction, completion};
use serde_json::Value;

use crate::farm::{FURROW, simulated_tasks};

const GROUPS: u32 = 3;
const GROUP_SIZE: u32 = 2;

/// The button of a simulated page is at its centre.
const CLICK: &str = r#"{"note":"","thought":"there","action":{"action":"click_element","element":"the button","x":500,"y":500}}"#;

#[test]
fn a_model_behind_an_endpoint_acts_in_a_farm() {
    let answer = completion(CLICK, Some((&[1, 9, 9, 2], &[7, 8], &[-0.25, -0.5])));
    let deeds = vec![
        ServerAction::Status(429, Some("0.05")),
        ServerAction::Status(500, None),
        ServerAction::Body("<html>busy</html>".into()),
        ServerAction::Truncated,
        ServerAction::Body(answer),
    ];
    let server = FakeChatServer::start(deeds).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let job = format!(
        "[run]\nname = \"run\"\noutput_dir = \".\"\n{tasks}\
         [policy]\nkind = \"openai\"\n[policy.context]\nkeep = \"last_image\"\n\
         [policy.remote]\nendpoint = {endpoint:?}\nmodel = \"actor\"\nkey_env = \"FURROW_TEST_REMOTE_KEY\"\npause_millis = 10\ncalls_max = 2\n\
         logprobs = true\ntoken_ids = true\nimage_token_id = 9\n\
         usd_per_million_prompt_tokens = 1.0\nusd_per_million_completion_tokens = 10.0\n\
         [env]\nsessions_max = 3\n",
        tasks = simulated_tasks(folder.path(), GROUPS, GROUP_SIZE),
        endpoint = server.endpoint(),
    );
    let path = folder.path().join("job.toml");
    std::fs::write(&path, job).unwrap();
    let furrow = |arguments: &[&str], key: Option<&str>| {
        let mut command = Command::new(FURROW);
        command.args(arguments).current_dir(folder.path()).env_remove("FURROW_TEST_REMOTE_KEY");
        command.envs(key.map(|key| ("FURROW_TEST_REMOTE_KEY", key)));
        let output = command.output().unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text)
    };
    let job = path.to_str().unwrap();
    let (status, stderr) = furrow(&["run", job, "--simulate-browser", "20000"], None);
    assert!(status == Some(2) && stderr.contains("policy.remote.key_env"), "{stderr}");
    assert!(server.requests().is_empty());

    let (status, stderr) = furrow(&["run", job, "--simulate-browser", "20000"], Some("sk-farm-0123"));
    assert_eq!(status, Some(0), "{stderr}");
    let requests = server.requests();
    let has_key = |header: &String| header.eq_ignore_ascii_case("authorization: Bearer sk-farm-0123");
    assert!(requests.iter().all(|request| request.headers.iter().any(has_key)), "{:?}", requests[0].headers);

    let run = folder.path().join("run");
    let python = std::env::var("FURROW_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let check = Command::new(&python)
        .arg("tests/check.py")
        .arg(&run)
        .args(["--groups", &GROUPS.to_string(), "--group-size", &GROUP_SIZE.to_string()])
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    let (status, stderr) = furrow(&["records", "verify", "run"], None);
    assert_eq!(status, Some(0), "{stderr}");
    let rows = Command::new(&python)
        .args(["-c", ROWS])
        .arg(&run)
        .arg((requests.len() - 4).to_string())
        .output()
        .unwrap();
    assert!(rows.status.success(), "{}", String::from_utf8_lossy(&rows.stderr));
    println!("{}", String::from_utf8_lossy(&rows.stdout));
    let (_, report) = furrow(&["report", "run", "--json"], None);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["lines"][0]["success"]["value"], 1.0, "{report}");
    let written = std::fs::read_to_string(run.join("job.toml")).unwrap() + &stderr;
    let logs = std::fs::read_dir(run.join("logs"))
        .unwrap()
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    assert!(!(written + &logs.collect::<String>()).contains("sk-farm-0123"), "the key was written to a file");
}

/// Every reply of the endpoint is a step with recorded tokens, and costs are added up.
const ROWS: &str = r#"
import glob, sys
import pyarrow.parquet as parquet
run, replies = sys.argv[1], int(sys.argv[2])
read = lambda table: [row for path in sorted(glob.glob(f"{run}/data/{table}/*.parquet")) for row in parquet.read_table(path).to_pylist()]
steps, trajectories = read("steps"), read("trajectories")
assert len(steps) == replies, (len(steps), replies)
for step in steps:
    assert step["policy_kind"] == "openai" and step["trainable_rl"], {key: value for key, value in step.items() if key != "observation"}
    assert step["response_token_ids"] == [7, 8] and step["logprobs"] == [-0.25, -0.5], step["logprobs"]
    assert [span["token_len"] for span in step["image_spans"]] == [2] and step["prefix_len"] == 0
for row in trajectories:
    assert row["reward"] == 1 and row["policy_version_min"] == 0, row
    # 1,200 tokens at 1 and 30 at 10 dollars a million, a step.
    assert abs(row["cost_usd"] - row["num_steps"] * 0.0015) < 1e-9, (row["cost_usd"], row["num_steps"])
print(f"{len(steps)} steps of {len(trajectories)} trajectories, {sum(row['cost_usd'] for row in trajectories):.4f} US dollars")
"#;
