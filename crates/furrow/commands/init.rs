//! `furrow init`: writes a commented job to begin with, and the small files that it needs.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::{CommandFailure, output};

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// What the job is for
    #[arg(value_enum, default_value_t = JobKind::Demo)]
    kind: JobKind,
    /// File to write; it must not exist
    #[arg(default_value = "job.toml")]
    file: PathBuf,
}

/// What a job is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum JobKind {
    /// The demonstrations of twelve small pages: a first run, without a model
    Demo,
    /// Static pages of your own, served by the farm; also writes a first site
    OwnSite,
    /// A server of your own, reached by a pin; also writes a first task
    Localhost,
    /// WebVoyager on the live web, with a model behind an endpoint and a judge
    Webvoyager,
    /// A checkpoint on an NVIDIA GPU
    Gpu,
    /// The evaluation of a model behind an endpoint
    Eval,
}

/// The text of a kind, and what belongs to it.
#[derive(Debug)]
struct JobTemplate {
    /// With `{file}`, `{envs}` and `{next_year}` to be filled in.
    text: &'static str,
    /// Files that are written beside it.
    files: &'static [(&'static str, &'static str)],
    /// Files that the user brings, for the last line of the output.
    needs: &'static str,
}

/// The folder of the repository's suites, as a job beside it names it.
const SUITES: &str = "envs";

impl JobKind {
    const fn template(self) -> JobTemplate {
        match self {
            JobKind::Demo => JobTemplate { text: include_str!("init/demo.toml"), files: &[], needs: "" },
            JobKind::OwnSite => JobTemplate {
                text: include_str!("init/own_site.toml"),
                files: &[
                    (
                        "sites/notes/tasks.jsonl",
                        include_str!("../../../examples/notes/sites/notes/tasks.jsonl"),
                    ),
                    ("sites/notes/solve.js", include_str!("../../../examples/notes/sites/notes/solve.js")),
                    (
                        "sites/notes/www/index.html",
                        include_str!("../../../examples/notes/sites/notes/www/index.html"),
                    ),
                    (
                        "sites/notes/www/app.js",
                        include_str!("../../../examples/notes/sites/notes/www/app.js"),
                    ),
                ],
                needs: "",
            },
            JobKind::Localhost => JobTemplate {
                text: include_str!("init/localhost.toml"),
                files: &[("localhost-tasks.jsonl", include_str!("init/localhost-tasks.jsonl"))],
                needs: "your server at 127.0.0.1:8000",
            },
            JobKind::Webvoyager => JobTemplate {
                text: include_str!("init/webvoyager.toml"),
                files: &[],
                needs: "WebVoyager_data.jsonl and reference_answer.json beside the job, two endpoints and a network",
            },
            JobKind::Gpu => JobTemplate {
                text: include_str!("init/gpu.toml"),
                files: &[],
                needs: "a checkpoint in the folder `checkpoint` beside the job, and an NVIDIA GPU",
            },
            JobKind::Eval => JobTemplate {
                text: include_str!("init/eval.toml"),
                files: &[],
                needs: "an endpoint with a model",
            },
        }
    }
}

pub(crate) fn run(args: &InitArgs) -> Result<(), CommandFailure> {
    let template = args.kind.template();
    let folder = args.file.parent().unwrap_or(Path::new(""));
    let mut files = vec![(args.file.clone(), args.kind.text(&args.file))];
    files.extend(template.files.iter().map(|(path, text)| (folder.join(path), (*text).to_owned())));
    // All of them, before one is written: half a job helps less than none.
    let existing = files.iter().filter(|(path, _)| path.symlink_metadata().is_ok());
    let refused: Vec<String> = existing
        .map(|(path, _)| format!("{}: exists already; name another file, or move it away", path.display()))
        .collect();
    if !refused.is_empty() {
        return Err(CommandFailure::Input(refused));
    }
    for (path, text) in &files {
        write_new(path, text)
            .map_err(|error| CommandFailure::Input(vec![format!("{}: {error}", path.display())]))?;
        output::line(format!("wrote {}", path.display()));
    }
    let job = args.file.display();
    if template.text.contains("{envs}") && suites_from(folder).is_none() {
        output::line(format!(
            "{SUITES}/ of Furrow's repository is not above {}: correct tasks.source.path in {job}",
            absolute(folder)?.display()
        ));
    }
    if !template.needs.is_empty() {
        output::line(format!("needs {}", template.needs));
    }
    output::line(format!("next: furrow check {job}"));
    Ok(())
}

impl JobKind {
    fn text(self, file: &Path) -> String {
        let folder = file.parent().unwrap_or(Path::new(""));
        let suites = suites_from(folder).unwrap_or_else(|| PathBuf::from(SUITES));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        // A year has 365.2425 days; on the days around New Year either year will do.
        let next_year = 1971 + now.as_secs() / 31_556_952;
        self.template()
            .text
            .replace("{file}", &file.display().to_string())
            .replace("{envs}", &suites.display().to_string())
            .replace("{next_year}", &next_year.to_string())
    }
}

/// The repository's suites as seen from a folder in the repository: `envs`, `../envs` and so on.
fn suites_from(folder: &Path) -> Option<PathBuf> {
    let absolute = absolute(folder).ok()?;
    let is_repository = |above: &Path| above.join(SUITES).join("starter/tasks.jsonl").is_file();
    let steps = absolute.ancestors().position(is_repository)?;
    Some(std::iter::repeat_n("..", steps).collect::<PathBuf>().join(SUITES))
}

/// The folder of a file without one is the current one.
fn absolute(folder: &Path) -> std::io::Result<PathBuf> {
    std::path::absolute(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
}

fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let mut file = fs::File::options().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Job;
    use crate::launch;

    /// A folder inside a repository, as far as a job can tell.
    fn repository() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        let envs = Path::new(env!("CARGO_MANIFEST_DIR")).join(SUITES);
        std::os::unix::fs::symlink(envs, home.path().join(SUITES)).unwrap();
        home
    }

    /// What the user brings for a kind; its output names it.
    fn bring(kind: JobKind, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        let mut names = Vec::new();
        if kind == JobKind::Webvoyager {
            let row = r#"{"web_name":"ArXiv","id":"ArXiv--0","ques":"Find it.","web":"https://arxiv.org/"}"#;
            write("WebVoyager_data.jsonl", row);
            write("reference_answer.json", r#"{"ArXiv":{"answers":[{"id":0,"type":"golden","ans":"x"}]}}"#);
            names = vec!["WebVoyager_data.jsonl", "reference_answer.json"];
        }
        if kind == JobKind::Gpu {
            fs::create_dir_all(folder.join("checkpoint")).unwrap();
            write("checkpoint/config.json", include_str!("../../model/tests/configs/nano_12b_vl.json"));
            names = vec!["`checkpoint`"];
        }
        let needs = kind.template().needs;
        assert!(names.iter().all(|name| needs.contains(name)), "{needs}");
    }

    #[test]
    fn every_kind_passes_the_check_and_says_what_it_needs() {
        let home = repository();
        for kind in JobKind::value_variants() {
            let name = kind.to_possible_value().unwrap().get_name().to_owned();
            let file = home.path().join(&name).join("job.toml");
            run(&InitArgs { kind: *kind, file: file.clone() }).unwrap();
            let text = fs::read_to_string(&file).unwrap();
            assert!(!text.contains(['{', '}']) && text.contains("docs/CONFIG.md"), "{text}");
            bring(*kind, &home.path().join(&name));
            let job = Job::read(&file, &[]).unwrap_or_else(|problems| panic!("{name}: {problems:#?}"));
            assert_eq!(job.run_name.to_string(), name);
            assert!(job.warnings.is_empty(), "{name}: {:?}", job.warnings);
            let (set, _) = launch::load(&job).unwrap_or_else(|error| panic!("{name}: {error:?}"));
            assert!(!set.specs().is_empty(), "{name}");
        }
    }

    #[test]
    fn every_key_of_a_kind_is_one_even_if_it_is_commented_out() {
        let home = repository();
        for kind in JobKind::value_variants() {
            bring(*kind, home.path());
            let text = kind.text(&home.path().join("job.toml"));
            // `# key = value` is an offer, `# A sentence` is not.
            let offers = text.lines().map(|line| match line.strip_prefix("# ") {
                Some(rest) if rest.split_once(" = ").is_some_and(|(key, _)| is_key(key)) => rest,
                _ => line,
            });
            let offered: String = offers.flat_map(|line| [line, "\n"]).collect();
            assert!(offered.lines().count() > 20);
            let problems = Job::parse(&offered, "job", home.path(), &[]).err().unwrap_or_default();
            assert!(problems.is_empty(), "{kind:?}: {problems:?}\n{offered}");
        }
    }

    fn is_key(text: &str) -> bool {
        text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    }

    #[test]
    fn nothing_is_overwritten_and_nothing_is_half_written() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("job.toml");
        let site = home.path().join("sites/notes/solve.js");
        fs::create_dir_all(site.parent().unwrap()).unwrap();
        fs::write(&site, "mine").unwrap();
        let args = InitArgs { kind: JobKind::OwnSite, file: file.clone() };
        let Err(CommandFailure::Input(refused)) = run(&args) else { panic!("it is written over") };
        assert!(refused[0].contains("solve.js: exists already"), "{refused:?}");
        assert!(!file.exists() && fs::read_to_string(&site).unwrap() == "mine");
        fs::remove_file(&site).unwrap();
        run(&args).unwrap();
        assert!(matches!(run(&args), Err(CommandFailure::Input(refused)) if refused.len() == 5));
    }
}
