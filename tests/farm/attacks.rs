//! The attacks of tests/attacks through a real farm, in real Chromium, on the sites of envs/web as
//! they are. Each attack is the only policy of a suite of its own, so that one run tries them all.

use std::fs;
use std::path::{Path, PathBuf};

use furrow_records::DataSet;
use serde_json::Value;

use crate::farm::{browser_setting, copy, envs, furrow};

/// One file of tests/attacks.
struct Attack {
    /// Its suite: the file's name.
    name: String,
    /// Ids of the tasks that it is tried on, all of one site.
    tasks: Vec<String>,
    reward: f32,
    ends: Vec<String>,
    time_limit_ms: Option<u64>,
    /// What the evidence says if the attack was really made.
    trace: Option<String>,
    script: String,
}

/// Where the helpers of demonstrations find no page of a site.
const AWAY: &str = r#"if (!location.protocol.startsWith("http") || location.pathname.startsWith("/.furrow/"))
  return { action: "answer", content: "1" };"#;

impl Attack {
    fn read(path: &Path) -> Self {
        let script = fs::read_to_string(path).unwrap();
        let key = |name: &str| {
            let head = script.lines().take_while(|line| line.starts_with("//"));
            head.filter_map(|line| line[2..].trim().split_once(": "))
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.to_owned())
        };
        let list = |name: &str| -> Vec<String> {
            let text = key(name).unwrap_or_else(|| panic!("{}: no key {name}", path.display()));
            text.split(", ").map(str::to_owned).collect()
        };
        Self {
            name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
            tasks: list("tasks"),
            reward: list("reward")[0].parse().unwrap(),
            ends: list("end"),
            time_limit_ms: key("time_limit_ms").map(|text| text.parse().unwrap()),
            trace: key("trace"),
            script,
        }
    }

    fn site(&self) -> &str {
        self.tasks[0].split('-').next().unwrap()
    }

    /// Writes the suite: the site as it is, with the attack in place of its demonstration.
    fn write_suite(&self, folder: &Path) -> String {
        let web = envs().join("web");
        let suite = folder.join(&self.name);
        let site = suite.join("sites").join(self.site());
        copy(&web.join("shared"), &suite.join("shared"));
        copy(&web.join("sites").join(self.site()), &site);
        let helpers = fs::read_to_string(web.join("solve.js")).unwrap();
        fs::write(suite.join("solve.js"), format!("{AWAY}\n{helpers}")).unwrap();
        let demonstration = fs::read_to_string(site.join("solve.js")).unwrap();
        let attack = format!("const demonstrate = () => {{\n{demonstration}\n}};\n{}", self.script);
        fs::write(site.join("solve.js"), attack).unwrap();
        if let Some(limit) = self.time_limit_ms {
            let lines = fs::read_to_string(site.join("tasks.jsonl")).unwrap();
            let limited = |line: &str| {
                let mut task: serde_json::Map<String, Value> = serde_json::from_str(line).unwrap();
                task.insert("time_limit_ms".into(), limit.into());
                Value::Object(task).to_string()
            };
            let lines: Vec<String> = lines.lines().map(limited).collect();
            fs::write(site.join("tasks.jsonl"), lines.join("\n")).unwrap();
        }
        format!(
            "[[tasks.source]]\nsuite = {:?}\npath = {:?}\ninclude = {:?}\n",
            self.name, self.name, self.tasks
        )
    }
}

/// `FURROW_ATTACK=h03 cargo test ...` tries those whose name contains that word.
fn chosen() -> Vec<Attack> {
    let only = std::env::var("FURROW_ATTACK").unwrap_or_default();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attacks");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "js"));
    files.sort();
    let mut attacks: Vec<Attack> = files.iter().map(|file| Attack::read(file)).collect();
    attacks.retain(|attack| attack.name.contains(&only));
    attacks
}

#[test]
fn no_attack_earns_what_it_did_not_do_or_escapes_its_score() {
    let attacks = chosen();
    let folder = tempfile::tempdir().unwrap();
    let sources: String = attacks.iter().map(|attack| attack.write_suite(folder.path())).collect();
    let job = format!(
        "[run]\nname = \"run\"\noutput_dir = \".\"\n[tasks]\ngroup_size = 1\nsampler = \"sequential\"\nseed = 3\n{sources}\
         [policy]\nkind = \"scripted\"\n[policy.grammar]\nextra = [\"press_key\"]\n[env]\nsessions_max = 3\n[limits]\nattempts_max = 1\n"
    );
    fs::write(folder.path().join("job.toml"), job).unwrap();
    let settings = browser_setting();
    let set = settings.iter().flat_map(|setting| ["--set", setting]);
    let output = furrow(&["run", "job.toml"].into_iter().chain(set).collect::<Vec<_>>(), folder.path());
    let stderr = String::from_utf8_lossy(&output.stderr);
    let mut wrong = Vec::new();
    let mut tried = 0;
    for record in DataSet::open(&folder.path().join("run")).expect(&stderr).trajectories() {
        let record = record.unwrap();
        let attack = attacks.iter().find(|attack| attack.name == record.task.suite).unwrap();
        let end = record.ending.end.as_str();
        let task = &record.task.task_id;
        let score = record.score.as_ref();
        let reward = score.and_then(|score| score.reward);
        let why = score.map_or(record.ending.reason.as_str(), |score| &score.rationale);
        let line = format!(
            "{} on {task}: {end} after {} steps, reward {reward:?}: {why}",
            attack.name, record.ending.steps
        );
        let evidence = record.ending.evidence.unwrap_or_default();
        let url = evidence.url.unwrap_or_default();
        let report = evidence.probe_json.unwrap_or_default();
        println!("{line}\n    {url:.100} {report:.500}");
        tried += 1;
        let was_made =
            attack.trace.as_ref().is_none_or(|trace| url.contains(trace) || report.contains(trace));
        if reward != Some(attack.reward) || !attack.ends.iter().any(|wanted| wanted == end) {
            wrong.push(line);
        } else if !was_made {
            wrong.push(format!("{line}; the attack was not made: no {:?} in {url} {report}", attack.trace));
        }
    }
    let all: usize = attacks.iter().map(|attack| attack.tasks.len()).sum();
    assert!(wrong.is_empty(), "{} of {all}:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(tried, all, "each attack is one trajectory a task: {stderr}");
}

#[test]
fn a_suite_of_ones_own_is_attacked() {
    let folder = tempfile::tempdir().unwrap();
    let starter = envs().join("starter");
    let web = envs().join("web");
    let job = format!(
        "[run]\nname = \"run\"\noutput_dir = \".\"\n[env]\nsessions_max = 3\n\
         [[tasks.source]]\nsuite = \"starter\"\npath = {starter:?}\ninclude = [\"click\"]\n\
         [[tasks.source]]\nsuite = \"web\"\npath = {web:?}\ninclude = [\"answers-notebook\"]\n"
    );
    fs::write(folder.path().join("job.toml"), job).unwrap();
    let settings = browser_setting();
    let set = settings.iter().flat_map(|setting| ["--set", setting]);
    let command: Vec<&str> = ["tasks", "attack", "job.toml", "--json"].into_iter().chain(set).collect();
    let output = furrow(&command, folder.path());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let result = |task: &str, attack: &str| {
        let rows = report["attacks"].as_array().unwrap();
        let row = rows.iter().find(|row| row["task"] == task && row["attack"] == attack);
        row.unwrap_or_else(|| panic!("no {attack} on {task}: {report:#}"))["result"].clone()
    };
    // A page that reports on itself believes a script that got into it, and the score says so.
    assert_eq!(result("starter/click", "forged_report"), "self_reported", "{report:#}");
    assert_eq!(result("starter/click", "unpaid_end"), "not_paid");
    for attack in
        ["forged_report", "written_storage", "large_storage", "every_candidate", "error_page", "unpaid_end"]
    {
        assert_eq!(result("web/answers-notebook", attack), "not_paid", "{attack}: {report:#}");
    }
}

/// Right half of the time. The other half is wrong, or leaves in one of four ways.
const COIN: &str = r#"
if (memory.coin === undefined) keep({ coin: Math.random() });
if (memory.coin < 0.5) return demonstrate();
const ways = [
  () => answer("-1"),
  () => ({ action: "goto", url: `https://${location.host}/` }),
  () => ({ action: "goto", url: "http://example.com/" }),
  () => ({ action: "wait", seconds: 1 }),
  () => ({ action: "goto", url: `${location.origin}/ask/?q=${step}${"x".repeat(7000)}` }),
];
return ways[LEAVES ? 1 + Math.floor((memory.coin - 0.5) * 8) : 0]();
"#;

/// Trajectories of each coin policy.
const TOSSES: f64 = 48.0;

#[test]
#[ignore = "a hundred trajectories: `tests/long.sh attacks`"]
fn a_policy_that_leaves_what_it_cannot_solve_reports_no_more_than_it_solves() {
    let folder = tempfile::tempdir().unwrap();
    let sources: String = [("stays", "false"), ("leaves", "true")]
        .into_iter()
        .map(|(name, leaves)| {
            let attack = Attack {
                name: name.to_owned(),
                tasks: vec!["answers-fact".to_owned()],
                reward: 0.5,
                ends: Vec::new(),
                time_limit_ms: None,
                trace: None,
                script: COIN.replace("LEAVES", leaves),
            };
            attack.write_suite(folder.path())
        })
        .collect();
    let job = format!(
        "[run]\nname = \"run\"\noutput_dir = \".\"\n[tasks]\ngroup_size = 8\ngroups = 12\nsampler = \"sequential\"\n{sources}\
         [policy]\nkind = \"scripted\"\n[env]\nsessions_max = 3\n"
    );
    fs::write(folder.path().join("job.toml"), job).unwrap();
    let settings = browser_setting();
    let set = settings.iter().flat_map(|setting| ["--set", setting]);
    let output = furrow(&["run", "job.toml"].into_iter().chain(set).collect::<Vec<_>>(), folder.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = furrow(&["report", "run", "--json"], folder.path());
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    // Five standard deviations of a fair coin.
    let margin = 5.0 * (0.25 / TOSSES).sqrt();
    for suite in ["stays", "leaves"] {
        let lines = report["lines"].as_array().unwrap();
        let line = lines.iter().find(|line| line["by"] == "suite" && line["suite"] == suite).unwrap();
        println!("{suite}: {}", line["success"]);
        let success = line["success"]["value"].as_f64().unwrap();
        assert!((success - 0.5).abs() < margin, "{suite}: {line:#}");
        assert_eq!(line["success_failed_as_zero"], success, "nothing is left unscored: {line:#}");
    }
}
