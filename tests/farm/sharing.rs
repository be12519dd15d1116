//! What is shared of a run: a data set copied elsewhere is whole, and nothing in it names the
//! machine's folders or a secret of the job.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use furrow_records::DataSet;

use crate::farm::{browser_setting, furrow};

const SECRET: &str = "planted-secret";

/// A task that is solved and one that ends early; the job names a secret where a key of another
/// release, or a policy that is not used, could hold one.
const JOB: &str = r#"
[run]
name = "shared"
output_dir = "."
[tasks]
group_size = 2
sampler = "sequential"
[[tasks.source]]
suite = "starter"
path = "{root}/envs/starter"
include = ["click", "type", "read-and-answer"]
[policy]
kind = "scripted"
instructions = "Read {folder}/notes first."
[policy.remote]
endpoint = "http://me:planted-secret@127.0.0.1:1/v1?key=planted-secret"
[env]
sessions_max = 2
"#;

/// A finished run, and its directory.
fn run(folder: &Path) -> PathBuf {
    let job = JOB.replace("{root}", env!("CARGO_MANIFEST_DIR")).replace("{folder}", folder.to_str().unwrap());
    fs::write(folder.join("job.toml"), job).unwrap();
    let settings = browser_setting();
    let set = settings.iter().flat_map(|setting| ["--set", setting]);
    let arguments: Vec<&str> =
        ["run", "job.toml", "--set", "dashboard.listen=127.0.0.1:0"].into_iter().chain(set).collect();
    let ran = furrow(&arguments, folder);
    assert!(ran.status.success(), "{}", text(&ran));
    folder.join("shared")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn copy(from: &Path, to: &Path) {
    for path in files(from) {
        let to = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(path, to).unwrap();
    }
}

/// All that a reader of these files can get at: their bytes, and the cells behind the compression.
fn contents(data: &Path) -> Vec<(String, String)> {
    let of_bytes = |path: &PathBuf| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
    let mut found: Vec<(String, String)> =
        files(data).iter().map(|path| (path.display().to_string(), of_bytes(path))).collect();
    let set = DataSet::open(data).unwrap();
    found.extend(set.trajectories().map(|row| ("a trajectory".to_owned(), format!("{:?}", row.unwrap()))));
    let steps = set.steps().chain(set.failed_steps());
    found.extend(steps.map(|row| ("a step".to_owned(), format!("{:?}", row.unwrap()))));
    found
}

#[test]
fn a_data_set_that_is_passed_on_is_whole_and_names_no_folder_and_no_secret() {
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let run = run(home.path());
    let folder = home.path().to_str().unwrap().to_owned();
    let job = fs::read_to_string(run.join("job.toml")).unwrap();
    assert!(job.contains(&folder) && job.contains(SECRET), "the run's own job keeps what it needs\n{job}");

    let elsewhere = tempfile::tempdir().unwrap();
    let data = elsewhere.path().join("kept");
    copy(&run.join("data"), &data);
    let page = elsewhere.path().join("report.html");
    let report = furrow(&["report", run.to_str().unwrap(), "--html", page.to_str().unwrap()], home.path());
    assert!(report.status.success(), "{}", text(&report));
    let found = DataSet::open(&data).unwrap().trajectory_ids().unwrap();
    let html = elsewhere.path().join("one.html");
    let gif = elsewhere.path().join("one.gif");
    let outputs = ["--html", html.to_str().unwrap(), "--video", gif.to_str().unwrap(), "--seconds", "0.5"];
    let exported = [&["records", "export", &found[0], "--run", run.to_str().unwrap()], &outputs[..]].concat();
    let exported = furrow(&exported, home.path());
    assert!(exported.status.success(), "{}", text(&exported));
    assert!(fs::read(&gif).unwrap().starts_with(b"GIF89a"));
    drop(home);

    // The instructions are a column: what the policy was given is recorded as it was.
    let instructions = format!("Read {folder}/notes first.");
    let mut shared = contents(&data);
    shared.push(("the report".to_owned(), fs::read_to_string(&page).unwrap()));
    let exported = fs::read_to_string(&html).unwrap();
    assert!(exported.contains(&found[0]) && exported.contains("data:image/png;base64,"));
    shared.push(("the trajectory".to_owned(), exported));
    assert!(shared.len() >= 20, "{}", shared.len());
    for (name, text) in &shared {
        let text = text.replace(&instructions, "");
        for hidden in [&*folder, env!("CARGO_MANIFEST_DIR"), SECRET] {
            assert!(!text.contains(hidden), "{name} contains {hidden}");
        }
    }

    for arguments in [
        &["records", "verify", "kept"][..],
        &["records", "inspect", "kept"],
        &["records", "kept", "kept"],
        &["report", "kept"],
        &["report", "kept", "--json"],
    ] {
        let output = furrow(arguments, elsewhere.path());
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        assert!(!text(&output).contains("warning"), "{arguments:?}: {}", text(&output));
    }
    let report = fs::read_to_string(data.join("report.html")).unwrap();
    assert!(report.contains("shared") && report.contains("[elsewhere]/starter"), "the report lacks the job");

    // A job that was taken away is a warning, one that was changed a breach.
    let [job] = &files(&data.join("jobs"))[..] else { panic!("{:?}", files(&data.join("jobs"))) };
    fs::write(job, "[run]\nname = \"other\"\n").unwrap();
    let output = furrow(&["records", "verify", "kept"], elsewhere.path());
    assert!(!output.status.success() && text(&output).contains("BREACH jobs/"), "{}", text(&output));
    fs::remove_file(job).unwrap();
    let output = furrow(&["records", "verify", "kept"], elsewhere.path());
    assert!(output.status.success() && text(&output).contains("warning: jobs/"), "{}", text(&output));
}

#[test]
fn what_cannot_be_exported_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("{}/tests/fixtures/v0.1.0/finished", env!("CARGO_MANIFEST_DIR"));
    let id = DataSet::open(Path::new(&data)).unwrap().trajectory_ids().unwrap().swap_remove(0);
    for (arguments, want) in [
        (&["none-such", "--html", "a.html"][..], "holds no trajectory with this id"),
        (&["a/b", "--html", "a.html"], "is not a valid trajectory id"),
        (&[&id], "--html <FILE>"),
        (&[&id, "--video", "a.mp4"], "only animated GIFs are written"),
        (&[&id, "--video", "a.gif", "--seconds", "0"], "--seconds: 0; use 0.05 to 60"),
        (&[&id, "--html", "none/a.html"], "cannot write none/a.html"),
    ] {
        let output = furrow(&[&["records", "export", "--run", &data], arguments].concat(), folder.path());
        assert!(!output.status.success() && text(&output).contains(want), "{arguments:?}: {}", text(&output));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    // A run of an earlier release is exported like any other.
    let output = furrow(&["records", "export", &id, "--run", &data, "--html", "a.html"], folder.path());
    assert!(output.status.success(), "{}", text(&output));
}

/// Its files hold the job in their footers.
#[test]
fn the_data_of_v0_1_0_is_whole_without_its_run() {
    let elsewhere = tempfile::tempdir().unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v0.1.0/finished/data");
    copy(&fixture, &elsewhere.path().join("kept"));
    for arguments in
        [&["records", "verify", "kept"][..], &["report", "kept"], &["records", "inspect", "kept"]]
    {
        let output = furrow(arguments, elsewhere.path());
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
    }
    let report = fs::read_to_string(elsewhere.path().join("kept/report.html")).unwrap();
    assert!(report.contains("finished") && report.contains("scripted"));
    assert!(!report.contains("/tmp/furrow-v0.1.0"), "the page shows the job as it is shared");
}
