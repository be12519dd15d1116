//! `furrow doctor`: is this machine fit to run a farm, and what to do if not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use furrow_coordinator::PutAside;
use furrow_env::{Chromium, EnvFile, Sites};
use serde::Serialize;

use crate::{Failure, launch, output};

/// What to look at.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Browser to try instead of the one that would be found
    #[arg(long, env = "FURROW_BROWSER")]
    browser: Option<PathBuf>,
    /// Folder that the browser's process searches for shared libraries, as env.browser_libraries; several may be given
    #[arg(long, value_name = "DIR")]
    browser_libraries: Vec<PathBuf>,
    /// Fontconfig file for the browser's process, as env.browser_fonts
    #[arg(long, value_name = "FILE")]
    browser_fonts: Option<PathBuf>,
    /// Try the browser without its own sandbox, as env.sandbox = false
    #[arg(long)]
    no_sandbox: bool,
    /// List what starts of this run put aside in its lost+found, instead of looking at the machine
    #[arg(long, value_name = "DIR", conflicts_with = "browser")]
    run: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    fit: bool,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'static str>,
}

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Result<(), Failure> {
    if let Some(run) = &args.run {
        return lost_and_found(run, args.json);
    }
    let [browser, limits] = browser(args)?;
    let findings =
        vec![browser, limits, setpriv(), shared_memory(), fonts(args), memory(), temporary_folder(), gpu()];
    if args.json {
        output::json(&findings)?;
    } else {
        for finding in &findings {
            let mark = if finding.fit { "ok " } else { "BAD" };
            output::line(format!("{mark}  {:<14} {}", finding.what, finding.found));
            if let Some(remedy) = finding.remedy.filter(|_| !finding.fit) {
                output::line(format!("     {:<14} {remedy}", ""));
            }
        }
    }
    match findings.iter().filter(|finding| !finding.fit).count() {
        0 => Ok(()),
        bad => Err(anyhow::anyhow!("{bad} things to put right").into()),
    }
}

/// What a run could not account for: files of no shard, damaged spool files, manifest commits that cannot be read.
fn lost_and_found(run: &Path, as_json: bool) -> Result<(), Failure> {
    if !run.join("ledger.sqlite").exists() {
        let why =
            format!("--run: {} holds no run; name the directory with ledger.sqlite in it", run.display());
        return Err(Failure::Input(vec![why]));
    }
    let found = furrow_coordinator::lost_and_found(run)?;
    if as_json {
        return Ok(output::json(&found)?);
    }
    if found.is_empty() {
        output::line(format!("{}: nothing was put aside", run.display()));
        return Ok(());
    }
    output::line(format!("{} things were put aside; remove what you do not need:", found.len()));
    for PutAside { from, kept_as, why, copied_bytes } in &found {
        let how = copied_bytes
            .map_or_else(|| "moved".to_owned(), |bytes| format!("copied, {}", output::bytes(bytes)));
        // A name may hold a line break or a terminal's control characters: they are printed as escapes.
        let shown = |path: &Path| path.to_string_lossy().escape_debug().to_string();
        output::line(format!("  {}  ({how})\n      was {}: {why}", shown(&run.join(kept_as)), shown(from)));
    }
    Ok(())
}

/// Whether `policy.engine.backend = "cuda"` finds a device. A farm runs without one.
fn gpu() -> Finding {
    let found = match furrow_cuda::device::Device::open(0) {
        Ok(gpu) => {
            let bytes = output::bytes(gpu.memory_bytes() as u64);
            format!("{}, {bytes}, kernels for {}", gpu.name(), gpu.target().name())
        }
        Err(why) => format!("none: {why}"),
    };
    Finding { what: "gpu", fit: true, found, remedy: None }
}

/// Starts the browser as a farm would, with its self-test: page, dialog, crash, screenshot. Then whether it can be held to its limits.
fn browser(args: &DoctorArgs) -> Result<[Finding; 2], Failure> {
    let file = EnvFile {
        browser: args.browser.clone(),
        browser_libraries: args.browser_libraries.clone(),
        browser_fonts: args.browser_fonts.clone(),
        sandbox: !args.no_sandbox,
        ..EnvFile::default()
    };
    let most = file.browser_memory_bytes_max;
    // A browser is started in /, so a relative path would be another one there.
    let here = std::env::current_dir().map_err(anyhow::Error::from)?;
    let config = file.check(&here).map_err(Failure::Input)?;
    let sites = std::sync::Arc::new(Sites::open(&[], config.sites)?);
    let started = launch::runtime()?.block_on(async {
        let pool = Chromium::start(config.browser, sites, config.egress).await?;
        Ok::<_, furrow_env::BrowserError>(pool.health().clone())
    });
    let remedy = Some(
        "on Debian: apt-get install chromium-headless-shell; in a container allow user namespaces for its sandbox",
    );
    let held = started.as_ref().ok().and_then(|health| health.held_bytes);
    let browser = match started {
        Ok(health) => Finding {
            what: "browser",
            fit: health.sandbox || args.no_sandbox,
            found: format!(
                "{}, self-test passed in {} ms, sandbox {}",
                health.product,
                health.self_test.as_millis(),
                if health.sandbox { "on" } else { "OFF" }
            ),
            remedy,
        },
        Err(error) => Finding { what: "browser", fit: false, found: crate::chain(&error.into()), remedy },
    };
    Ok([browser, limits(held, most)])
}

fn limits(held: Option<u64>, most: u64) -> Finding {
    let found = match held {
        Some(held) => format!(
            "a browser holds {}, and is held to {} (env.browser_memory_bytes_max)",
            output::bytes(held),
            output::bytes(most)
        ),
        None => "what a browser holds cannot be seen: a greedy page may take all memory".into(),
    };
    let remedy = Some("put the browser right first; then let this user see its own processes in /proc");
    Finding { what: "browser limits", fit: held.is_some(), found, remedy }
}

fn setpriv() -> Finding {
    let found = Command::new("setpriv").arg("--version").output();
    let fit = found.as_ref().is_ok_and(|output| output.status.success());
    let found = found.map_or_else(
        |why| why.to_string(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    );
    Finding {
        what: "setpriv",
        fit,
        found,
        remedy: Some("install util-linux: browsers are started with it, so that they die with their worker"),
    }
}

fn shared_memory() -> Finding {
    let room = free_bytes("/dev/shm");
    let fit = room.is_some();
    let found = room.map_or("absent".into(), |bytes| {
        format!("{} free (below 512 MB browsers use files instead)", output::bytes(bytes))
    });
    Finding { what: "/dev/shm", fit, found, remedy: Some("mount a tmpfs on /dev/shm") }
}

fn fonts(args: &DoctorArgs) -> Finding {
    if let Some(file) = &args.browser_fonts {
        let found = format!("those of {}", file.display());
        return Finding { what: "fonts", fit: file.is_file(), found, remedy: Some("name a fontconfig file") };
    }
    let folders = ["/usr/share/fonts", "/usr/local/share/fonts"];
    let count: usize = folders.iter().map(|folder| count_files(Path::new(folder), 4)).sum();
    Finding {
        what: "fonts",
        fit: count > 0,
        found: format!("{count} font files"),
        remedy: Some("install fonts-liberation and fonts-dejavu-core: without fonts pages have no text"),
    }
}

fn memory() -> Finding {
    // The container's limit where there is one.
    let available = furrow_telemetry::available_bytes().unwrap_or_default();
    let reserve = EnvFile::default().memory_reserve_bytes;
    // A light page costs 35 MB, an idle browser 136 MB.
    let sessions = available.saturating_sub(reserve) / (50 << 20);
    Finding {
        what: "memory",
        fit: sessions > 2,
        found: format!(
            "{} available, room for about {sessions} sessions of light pages beside the {} that stay free (env.memory_reserve_bytes)",
            output::bytes(available),
            output::bytes(reserve)
        ),
        remedy: Some(
            "below the reserve nothing is taken up; each session takes about 50 MB, live sites several times that",
        ),
    }
}

fn temporary_folder() -> Finding {
    let folder = std::env::temp_dir();
    let room = free_bytes(&folder.display().to_string()).unwrap_or_default();
    Finding {
        what: "temp folder",
        fit: room >= 1 << 30,
        found: format!("{} with {} free", folder.display(), output::bytes(room)),
        remedy: Some("free 1 GB there, or set TMPDIR: browser profiles live in it"),
    }
}

/// Free bytes of the file system under a path, as `df` tells them.
fn free_bytes(path: &str) -> Option<u64> {
    let output = Command::new("df").args(["--output=avail", "-B1", path]).output().ok()?;
    String::from_utf8_lossy(&output.stdout).lines().nth(1)?.trim().parse().ok()
}

fn count_files(folder: &Path, depth: u32) -> usize {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => count_files(&entry.path(), depth - 1),
            Ok(kind) if kind.is_file() => 1,
            _ => 0,
        })
        .sum()
}
