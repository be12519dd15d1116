//! `furrow doctor`: checks whether this machine can run a farm, and says what to do if not.

mod job;
mod run;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use furrow_env::{BrowserWalls, ChromiumPool, EnvFile, SiteServer};
use serde::Serialize;

use crate::launch::JobArgs;
use crate::{CommandFailure, launch, output};

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Job file to check this machine for: its start pages and hosts, browser, checkpoint, disk,
    /// memory and open files, instead of the machine in general
    #[arg(value_name = "JOB", conflicts_with_all = ["browser_libraries", "browser_fonts", "no_sandbox", "run"])]
    job: Option<PathBuf>,
    /// Replace one key of the job, such as `env.sessions_max=100`; repeat the option for more keys
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "job")]
    set: Vec<String>,
    /// Browser program to try instead of the one that a farm would find
    #[arg(long, env = "FURROW_BROWSER")]
    browser: Option<PathBuf>,
    /// Directory with shared libraries for the browser's process, as in env.browser_libraries;
    /// repeat the option for more directories
    #[arg(long, value_name = "DIR")]
    browser_libraries: Vec<PathBuf>,
    /// Fontconfig file for the browser's process, as in env.browser_fonts
    #[arg(long, value_name = "FILE")]
    browser_fonts: Option<PathBuf>,
    /// Try the browser without its own sandbox, as with env.sandbox = false; for containers without
    /// user namespaces
    #[arg(long)]
    no_sandbox: bool,
    /// Check this run directory instead of the machine: ledger, manifest, spool, links and every
    /// committed file by its hash; nothing in it changes
    #[arg(long, value_name = "DIR", conflicts_with = "browser")]
    run: Option<PathBuf>,
    /// With --run: do what the next start would do with the directory, and say what was done
    #[arg(long, requires = "run")]
    repair: bool,
    /// Print each check, its finding and its remedy as JSON instead of text
    #[arg(long)]
    json: bool,
}

/// One result of a check.
#[derive(Debug, Serialize)]
struct DoctorFinding {
    what: &'static str,
    fit: bool,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'static str>,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<(), CommandFailure> {
    if let Some(path) = &args.job {
        let browser = args.browser.iter().map(|browser| format!("env.browser={}", browser.display()));
        let set = browser.chain(args.set.iter().cloned()).collect();
        let named = JobArgs { job: path.clone(), set };
        return job::check(&named, args.json);
    }
    if let Some(run) = &args.run {
        return run::check(run, args.repair, args.json);
    }
    let BrowserFindings { browser, walls, limits, missing_scripts } = browser(args)?;
    let fonts = fonts(args, &missing_scripts);
    let findings =
        vec![browser, walls, limits, setpriv(), shared_memory(), fonts, memory(), temporary_folder(), gpu()];
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
        bad => Err(anyhow::anyhow!("{bad} checks failed; see the remedies above").into()),
    }
}

/// Whether `policy.engine.backend = "cuda"` finds a device. A farm also runs without one.
fn gpu() -> DoctorFinding {
    let found = match furrow_cuda::device::GpuDevice::open(0) {
        Ok(gpu) => {
            let bytes = output::bytes(gpu.memory_bytes() as u64);
            format!("{}, {bytes}, kernels for {}", gpu.name(), gpu.target().name())
        }
        Err(why) => format!("none: {why}"),
    };
    DoctorFinding { what: "gpu", fit: true, found, remedy: None }
}

/// What a start of the browser shows.
struct BrowserFindings {
    browser: DoctorFinding,
    walls: DoctorFinding,
    limits: DoctorFinding,
    /// Scripts that its fonts lack; empty where it did not start.
    missing_scripts: Vec<&'static str>,
}

/// Starts the browser as a farm would, with its self-test (page, dialog, crash, screenshot, fonts),
/// and checks that its memory can be limited.
fn browser(args: &DoctorArgs) -> Result<BrowserFindings, CommandFailure> {
    let file = EnvFile {
        browser: args.browser.clone(),
        browser_libraries: args.browser_libraries.clone(),
        browser_fonts: args.browser_fonts.clone(),
        sandbox: !args.no_sandbox,
        ..EnvFile::default()
    };
    let most = file.browser_memory_bytes_max;
    // The browser starts in /, where a relative path would name another file.
    let here = std::env::current_dir().map_err(anyhow::Error::from)?;
    let config = file.check(&here).map_err(CommandFailure::Input)?;
    let sites = std::sync::Arc::new(SiteServer::open(&[], config.sites)?);
    let started = launch::runtime()?.block_on(async {
        let pool = ChromiumPool::start(config.browser, sites, config.egress).await?;
        Ok::<_, furrow_env::BrowserError>(pool.health().clone())
    });
    let remedy = Some(
        "on Debian: apt-get install chromium-headless-shell; in a container allow user namespaces for its sandbox",
    );
    let footprint = started.as_ref().ok().and_then(|health| health.memory_bytes);
    let walls = walls(started.as_ref().ok().map(|health| &health.walls));
    let missing_scripts = started.as_ref().map(|health| health.missing_scripts.clone()).unwrap_or_default();
    let browser = match started {
        Ok(health) => DoctorFinding {
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
        Err(error) => {
            DoctorFinding { what: "browser", fit: false, found: crate::chain(&error.into()), remedy }
        }
    };
    Ok(BrowserFindings { browser, walls, limits: limits(footprint, most), missing_scripts })
}

/// How far browsers are shut off from the machine, and what would raise the level. A farm runs at
/// every level unless its job asks for more (`env.walls`).
fn walls(walls: Option<&BrowserWalls>) -> DoctorFinding {
    let found = match walls {
        None => "unknown: no browser started".to_owned(),
        Some(walls) => {
            let level = format!("level {:?}", walls.level.as_str());
            let missing = walls.missing.iter().map(|wall| format!("; for more: {wall}"));
            missing.fold(level, |text, wall| text + &wall)
        }
    };
    DoctorFinding {
        what: "browser walls",
        fit: walls.is_some(),
        found,
        remedy: Some("fix the browser first"),
    }
}

fn limits(footprint: Option<u64>, most: u64) -> DoctorFinding {
    let found = match footprint {
        Some(footprint) => format!(
            "an idle browser takes {}; its limit is {} (env.browser_memory_bytes_max)",
            output::bytes(footprint),
            output::bytes(most)
        ),
        None => "the memory of a browser cannot be measured: one page may take all memory".into(),
    };
    let remedy = Some("fix the browser first; then let this user read its own processes in /proc");
    DoctorFinding { what: "browser limits", fit: footprint.is_some(), found, remedy }
}

fn setpriv() -> DoctorFinding {
    let found = Command::new("setpriv").arg("--version").output();
    let fit = found.as_ref().is_ok_and(|output| output.status.success());
    let found = found.map_or_else(
        |why| why.to_string(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    );
    DoctorFinding {
        what: "setpriv",
        fit,
        found,
        remedy: Some(
            "install util-linux: environment workers start browsers with it, so that browsers die with their worker",
        ),
    }
}

fn shared_memory() -> DoctorFinding {
    let free = free_bytes("/dev/shm");
    let fit = free.is_some();
    let found = free.map_or("absent".into(), |bytes| {
        format!("{} free (below 512 MB browsers use files instead)", output::bytes(bytes))
    });
    DoctorFinding { what: "/dev/shm", fit, found, remedy: Some("mount a tmpfs on /dev/shm") }
}

/// A farm of offline pages runs without the fonts that other scripts need; pages of the live web
/// are then not what their visitors see.
fn fonts(args: &DoctorArgs, missing_scripts: &[&str]) -> DoctorFinding {
    let (fit, found, remedy) = match &args.browser_fonts {
        Some(file) => {
            (file.is_file(), format!("fonts of {}", file.display()), "use an existing fontconfig file")
        }
        None => {
            let folders = ["/usr/share/fonts", "/usr/local/share/fonts"];
            let count: usize = folders.iter().map(|folder| count_files(Path::new(folder), 4)).sum();
            let remedy = "install fonts-liberation and fonts-dejavu-core: without fonts pages have no text";
            (count > 0, format!("{count} font files"), remedy)
        }
    };
    let found = match missing_scripts {
        [] => found,
        missing => format!("{found}; {}", explain_missing(missing)),
    };
    DoctorFinding { what: "fonts", fit, found, remedy: Some(remedy) }
}

/// What is drawn as boxes, and the Debian packages that have it.
fn explain_missing(scripts: &[&str]) -> String {
    let of = |script: &&str| match *script {
        "emoji" => "fonts-noto-color-emoji",
        "Arabic" => "fonts-dejavu-core",
        _ => "fonts-droid-fallback",
    };
    let packages: BTreeSet<&str> = scripts.iter().map(of).collect();
    let packages: Vec<&str> = packages.into_iter().collect();
    format!(
        "pages show empty boxes for {}; for the live web, on Debian: apt-get install {}",
        scripts.join(", "),
        packages.join(" ")
    )
}

fn memory() -> DoctorFinding {
    // The container's limit, if there is one.
    let available = furrow_telemetry::available_bytes().unwrap_or_default();
    let reserve = EnvFile::default().memory_reserve_bytes;
    // A light page costs 35 MB, an idle browser 136 MB.
    let sessions = available.saturating_sub(reserve) / (50 << 20);
    DoctorFinding {
        what: "memory",
        fit: sessions > 2,
        found: format!(
            "{} available: about {sessions} sessions of light pages, with {} kept free (env.memory_reserve_bytes)",
            output::bytes(available),
            output::bytes(reserve)
        ),
        remedy: Some(
            "add memory: below the reserve no session starts; each takes about 50 MB, on live sites several times that",
        ),
    }
}

fn temporary_folder() -> DoctorFinding {
    let folder = std::env::temp_dir();
    let free = free_bytes(&folder.display().to_string()).unwrap_or_default();
    DoctorFinding {
        what: "temp folder",
        fit: free >= 1 << 30,
        found: format!("{} with {} free", folder.display(), output::bytes(free)),
        remedy: Some("free 1 GB there or set TMPDIR: it holds the browsers' profiles"),
    }
}

/// Free bytes of a path's file system, as `df` reports them.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_scripts_are_named_with_their_packages() {
        let check = |scripts: &[&str], want: &str| {
            let got = explain_missing(scripts);
            assert!(got.ends_with(&format!("apt-get install {want}")), "{got}");
            assert!(got.contains(&format!("empty boxes for {};", scripts.join(", "))), "{got}");
        };
        check(&["emoji", "Chinese", "Korean"], "fonts-droid-fallback fonts-noto-color-emoji");
        check(&["Japanese"], "fonts-droid-fallback");
        check(&["Arabic"], "fonts-dejavu-core");
    }
}
