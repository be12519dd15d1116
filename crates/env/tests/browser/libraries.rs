//! A browser with libraries and fonts of the job, and one that lacks what it needs.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use furrow_env::{ChromiumPool, EnvFile, LOOKED_FOR, SiteServer};

use crate::fixture::{config, fixture_with};
use crate::life::commands;

/// A library that the browser is linked with, and a name of the same length that does not exist on
/// any machine.
const NEEDED: &str = "libnspr4.so";
const RENAMED: &str = "libnspr9.so";

/// The browser that tests use: a program, not a script.
fn program() -> PathBuf {
    let named = std::env::var_os("FURROW_BROWSER").map(PathBuf::from);
    named.or_else(|| LOOKED_FOR.iter().map(PathBuf::from).find(|path| path.is_file())).unwrap()
}

/// The path at which the system's loader finds a library of the browser.
fn system_library(name: &str) -> PathBuf {
    let listed = Command::new(program()).env("LD_TRACE_LOADED_OBJECTS", "1").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let line = listed.lines().find(|line| line.trim().starts_with(name)).unwrap();
    PathBuf::from(line.split_whitespace().nth(2).unwrap())
}

fn open_folder(path: &Path) {
    fs::create_dir_all(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A copy of the browser in its own folder with its files, linked with other names in place of some
/// libraries.
fn relinked(folder: &Path, names: &[(&str, &str)]) -> PathBuf {
    open_folder(folder);
    let source = program();
    let mut bytes = fs::read(&source).unwrap();
    for (needed, renamed) in names {
        let name = format!("\0{needed}\0");
        // The names that the loader reads are at the start of the file, before the code.
        let front = &bytes[..bytes.len().min(32 << 20)];
        let at = front.windows(name.len()).position(|window| window == name.as_bytes()).unwrap();
        bytes[at + 1..=at + renamed.len()].copy_from_slice(renamed.as_bytes());
    }
    let copy = folder.join("chrome-headless-shell");
    fs::write(&copy, bytes).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    for entry in fs::read_dir(source.parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        if path != source {
            symlink(&path, folder.join(path.file_name().unwrap())).unwrap();
        }
    }
    copy
}

async fn start_error(change: impl FnOnce(&mut EnvFile)) -> String {
    let config = config(change);
    let sites = Arc::new(SiteServer::open(&[], config.sites).unwrap());
    ChromiumPool::start(config.browser, sites, config.egress).await.map(drop).unwrap_err().to_string()
}

fn environment(pid: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap();
    bytes.split(|byte| *byte == 0).map(|entry| String::from_utf8_lossy(entry).into_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_takes_its_libraries_and_fonts_from_the_folders_of_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path();
    open_folder(base);
    let program = relinked(&base.join("browser"), &[(NEEDED, RENAMED)]);
    let named = |file: &mut EnvFile, libraries: &[&Path]| {
        file.browser = Some(program.clone());
        file.browser_libraries = libraries.iter().map(|path| path.to_path_buf()).collect();
    };

    // Without the folder the error names what is missing and the key.
    let error = start_error(|file| named(file, &[])).await;
    let want =
        format!("needs shared libraries that are not found: {RENAMED}; install them, or name the folder");
    assert!(error.contains(&want) && error.contains("env.browser_libraries"), "{error}");
    // The loader stops at the first missing library; the error names all of them.
    let several = relinked(&base.join("several"), &[(NEEDED, RENAMED), ("libnssutil3.so", "libnssutil9.so")]);
    let error = start_error(|file| file.browser = Some(several.clone())).await;
    assert!(error.contains(RENAMED) && error.contains("libnssutil9.so"), "{error}");
    // A folder without the library does not help.
    let empty = base.join("empty");
    let libraries = base.join("lib");
    open_folder(&empty);
    open_folder(&libraries);
    let error = start_error(|file| named(file, &[&empty])).await;
    assert!(error.contains(&want), "{error}");

    fs::copy(system_library(NEEDED), libraries.join(RENAMED)).unwrap();
    let fonts = write_fonts(base);
    let inherited = std::env::var("LD_LIBRARY_PATH").ok();
    let fixture = fixture_with(
        |file| {
            named(file, &[&empty, &libraries]);
            file.browser_fonts = Some(fonts.clone());
        },
        vec![],
    )
    .await;
    let page_environment = fixture.page("<p>here</p>").await;
    let browser = check_processes(&program, &libraries);
    let environment = environment(browser);
    for want in [
        format!("LD_LIBRARY_PATH={}:{}", empty.display(), libraries.display()),
        format!("FONTCONFIG_FILE={}", fonts.display()),
    ] {
        assert!(environment.contains(&want), "{environment:?}");
    }
    assert!(fixture.pool.health().sandbox);
    assert_eq!(std::env::var("LD_LIBRARY_PATH").ok(), inherited, "the worker's own is left alone");
    page_environment.close().await;
    fixture.close().await;

    // A part of the C library is refused before any program starts with it.
    fs::write(libraries.join("libc.so.6"), "x").unwrap();
    let error = start_error(|file| named(file, &[&libraries])).await;
    let want = format!(
        "env.browser_libraries: {} is a part of the C library",
        libraries.join("libc.so.6").display()
    );
    assert!(error.starts_with(&want), "{error}");
}

/// A Fontconfig file that adds a cache of its own to the system's fonts.
fn write_fonts(base: &Path) -> PathBuf {
    let fonts = base.join("fonts.conf");
    let cache = base.join("cache").display().to_string();
    let system = "<include ignore_missing=\"yes\">/etc/fonts/fonts.conf</include>";
    let text =
        format!("<?xml version=\"1.0\"?><fontconfig>{system}<cachedir>{cache}</cachedir></fontconfig>");
    fs::write(&fonts, text).unwrap();
    fonts
}

/// Checks that every process of the program maps the renamed library from the folder; returns the
/// pid of this worker's browser.
fn check_processes(program: &Path, libraries: &Path) -> u32 {
    let processes: Vec<(u32, String)> = commands()
        .into_iter()
        .filter(|(_, command)| command.starts_with(&program.display().to_string()))
        .collect();
    let is_renderer = |command: &String| command.contains("--type=renderer");
    assert!(processes.iter().any(|(_, command)| is_renderer(command)), "{processes:?}");
    let mine = format!("furrow-env-{}-", std::process::id());
    assert!(processes.iter().any(|(_, command)| command.contains(&mine) && !command.contains("--type=")));
    let mapped = libraries.join(RENAMED).display().to_string();
    for (pid, command) in &processes {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        assert!(maps.lines().any(|line| line.ends_with(&mapped)), "{command} does not map {mapped}");
        // All other libraries are the system's: the change of user on the way removed nothing.
        assert!(!maps.contains(&format!("/{NEEDED}")), "{command} maps the system's {NEEDED}, too");
        assert!(!command.contains("--no-sandbox"), "{command}");
    }
    processes.iter().find(|(_, command)| command.contains(&mine)).unwrap().0
}

/// The self-test names what the browser's fonts lack: of these Liberation has nothing, DejaVu has
/// Arabic letters and an emoji in black and white.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_self_test_names_the_scripts_that_its_fonts_lack() {
    let folder = tempfile::tempdir().unwrap();
    open_folder(folder.path());
    let all = ["emoji", "Chinese", "Japanese", "Korean", "Arabic"];
    for (family, want) in [("liberation", &all[..]), ("dejavu", &all[1..4])] {
        let fonts = folder.path().join(format!("{family}.conf"));
        let cache = folder.path().join(family).display().to_string();
        let text = format!(
            "<?xml version=\"1.0\"?><fontconfig><dir>/usr/share/fonts/truetype/{family}</dir>\
             <cachedir>{cache}</cachedir></fontconfig>"
        );
        fs::write(&fonts, text).unwrap();
        let fixture = fixture_with(|file| file.browser_fonts = Some(fonts.clone()), vec![]).await;
        assert_eq!(fixture.pool.health().missing_scripts, want, "{family}");
        fixture.close().await;
    }
}
