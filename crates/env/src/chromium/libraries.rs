//! Shared libraries and fonts that the job supplies to a browser's process because the system lacks
//! them. They are checked before the first start, and a failed start is explained by the messages
//! of the dynamic loader or of the sandbox.
//!
//! The C library is never among them: it, its loader and the rest of glibc form one release and
//! depend on each other's internals, and the kernel has mapped the machine's loader before that
//! loader reads `LD_LIBRARY_PATH`.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::BrowserError;
use super::user::{OwnerIds, as_user};
use crate::config::BrowserConfig;

/// Parts of glibc, by the name before `.so` or before a release (`libm-2.31.so`). Any name that
/// begins with `ld-` is a loader.
const C_LIBRARY: &[&str] = &[
    "libc",
    "libm",
    "libmvec",
    "libdl",
    "librt",
    "libpthread",
    "libresolv",
    "libutil",
    "libanl",
    "libthread_db",
    "libBrokenLocale",
    "libnss_files",
    "libnss_dns",
    "libnss_compat",
    "libnss_hesiod",
    "ld",
    "ld64",
];

/// Folders inside folders: `glibc-hwcaps/x86-64-v3`.
const DEPTH_MAX: usize = 3;

/// Bytes of a fontconfig file that are searched for its element.
const FONTS_BYTES_MAX: u64 = 1 << 20;

/// Most files per run of the checking program.
const PATHS_PER_CHECK_MAX: usize = 500;

/// Prints the first of its arguments that its user may not read.
const READABLE: &str = "for path do \
    if [ ! -r \"$path\" ] || { [ -d \"$path\" ] && [ ! -x \"$path\" ]; }; then printf '%s\\n' \"$path\"; exit 0; fi; \
done";

/// Becomes the program `$1`, whose loader lists its libraries and exits. `$0` is its search path.
const TRACE: &str =
    "[ -z \"$0\" ] || export LD_LIBRARY_PATH=\"$0\"; export LD_TRACE_LOADED_OBJECTS=1; exec \"$1\"";

/// Prefix of the message of glibc's loader about a library that it does not find.
const LOADER_ERROR: &str = "error while loading shared libraries: ";

/// Messages of Chromium when it may not create the namespaces of its sandbox.
const SANDBOX_ERRORS: &[&str] =
    &["No usable sandbox", "Failed to move to new namespace", "The SUID sandbox helper binary"];

const LIBRARIES: &str = "env.browser_libraries";
const FONTS: &str = "env.browser_fonts";

/// The value of `LD_LIBRARY_PATH` for the browser; empty leaves the variable unchanged.
pub(super) fn search_path(config: &BrowserConfig) -> String {
    let folders = config.libraries.iter().map(|folder| folder.display().to_string());
    folders.collect::<Vec<_>>().join(":")
}

/// Checks the folders of libraries and the fontconfig file of a job on this machine.
///
/// # Errors
/// If one is absent, is not what its key names, contains a part of the C library, or is not
/// readable for the browser's user.
pub(super) fn check(config: &BrowserConfig, owner: OwnerIds) -> Result<(), BrowserError> {
    let mut libraries = Vec::new();
    for folder in &config.libraries {
        libraries.push(folder.clone());
        list_libraries(folder, 0, &mut libraries)?;
    }
    if let Some(part) = libraries.iter().find(|path| is_c_library(path)) {
        let what =
            "is a part of the C library, which must be the machine's own; remove the file from the folder";
        return Err(invalid_file(LIBRARIES, part, what));
    }
    check_readable(LIBRARIES, &libraries, config, owner)?;
    let Some(fonts) = &config.fonts else { return Ok(()) };
    let unreadable = |why: std::io::Error| invalid_file(FONTS, fonts, format!("cannot be read: {why}"));
    if !fs::metadata(fonts).map_err(unreadable)?.is_file() {
        return Err(invalid_file(FONTS, fonts, "is not a file"));
    }
    let mut text = Vec::new();
    let read = fs::File::open(fonts).and_then(|file| file.take(FONTS_BYTES_MAX).read_to_end(&mut text));
    read.map_err(unreadable)?;
    if !String::from_utf8_lossy(&text).contains("<fontconfig") {
        return Err(invalid_file(FONTS, fonts, "is not a fontconfig file: it has no element <fontconfig>"));
    }
    check_readable(FONTS, std::slice::from_ref(fonts), config, owner)
}

/// Explains a failed start: missing libraries, or a machine that refuses the sandbox. `messages`
/// contains the browser's messages.
pub(super) fn explain_start_failure(
    program: &Path,
    messages: String,
    config: &BrowserConfig,
    owner: OwnerIds,
) -> BrowserError {
    let path = program.to_owned();
    if let Some((_, rest)) = messages.split_once(LOADER_ERROR) {
        let mut missing = missing_libraries(program, config, owner);
        if missing.is_empty() {
            missing.push(rest.split(':').next().unwrap_or(rest).trim().to_owned());
        }
        return BrowserError::MissingLibraries { path, missing: missing.join(", "), message: messages };
    }
    if config.sandbox && SANDBOX_ERRORS.iter().any(|error| messages.contains(error)) {
        return BrowserError::Sandbox { path, messages };
    }
    BrowserError::Start { path, messages }
}

/// All libraries that the loader does not find, in its order. A normal start stops at the first
/// one.
fn missing_libraries(program: &Path, config: &BrowserConfig, owner: OwnerIds) -> Vec<String> {
    let mut command = as_user(owner, config);
    command.args(["/bin/sh", "-c", TRACE]).arg(search_path(config)).arg(program);
    let output = command.current_dir("/").stdin(Stdio::null()).output();
    let listed = output.map(|output| output.stdout).unwrap_or_default();
    let mut missing: Vec<String> = Vec::new();
    for line in String::from_utf8_lossy(&listed).lines() {
        if let Some((name, "not found")) = line.trim().split_once(" => ")
            && !missing.iter().any(|known| known == name)
        {
            missing.push(name.to_owned());
        }
    }
    missing
}

/// Adds the shared libraries of a folder and of the folders in it.
fn list_libraries(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), BrowserError> {
    let entries = match fs::metadata(folder) {
        Ok(metadata) if !metadata.is_dir() => return Err(invalid_file(LIBRARIES, folder, "is not a folder")),
        Ok(_) => fs::read_dir(folder),
        Err(why) => Err(why),
    };
    let unreadable =
        |why: std::io::Error| invalid_file(LIBRARIES, folder, format!("cannot be listed: {why}"));
    for entry in entries.map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.is_dir() {
            // The loader searches no other folder.
            let is_searched = depth > 0 || path.file_name().is_some_and(|name| name == "glibc-hwcaps");
            if is_searched && depth < DEPTH_MAX {
                found.push(path.clone());
                list_libraries(&path, depth + 1, found)?;
            }
        } else if path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so")) {
            found.push(path);
        }
    }
    Ok(())
}

/// Whether a file is, by its name, a part of the C library or a loader.
fn is_c_library(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some((stem, _)) = name.split_once(".so") else { return false };
    let is_release = |rest: &str| rest.starts_with(|first: char| first.is_ascii_digit());
    let stem = stem.split_once('-').filter(|(_, rest)| is_release(rest)).map_or(stem, |(stem, _)| stem);
    stem.starts_with("ld-") || stem.starts_with("libc.musl") || C_LIBRARY.contains(&stem)
}

/// Runs a program as the browser's user to check access: mode bits alone do not show what access
/// lists and mounts allow.
fn check_readable(
    key: &'static str,
    paths: &[PathBuf],
    config: &BrowserConfig,
    owner: OwnerIds,
) -> Result<(), BrowserError> {
    let user = if owner.is_some() { config.user.as_str() } else { "the worker's user" };
    for some in paths.chunks(PATHS_PER_CHECK_MAX) {
        let mut command: Command = as_user(owner, config);
        command.args(["/bin/sh", "-c", READABLE, "sh"]).args(some).current_dir("/");
        let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
        let output = output.map_err(|source| BrowserError::Io {
            what: "check whether the browser's user may read its libraries (is setpriv of util-linux there?)",
            source,
        })?;
        let refused = String::from_utf8_lossy(&output.stdout);
        if let Some(path) = refused.lines().next() {
            let what = format!(
                "is not readable for {user:?}, the user that the browser runs as; open it and the folders above it (chmod a+rX)"
            );
            return Err(invalid_file(key, Path::new(path), what));
        }
        if !output.status.success() {
            let what = format!("cannot be checked as {user}: {}", output.status);
            return Err(invalid_file(key, &some[0], what));
        }
    }
    Ok(())
}

fn invalid_file(key: &'static str, path: &Path, what: impl Into<String>) -> BrowserError {
    BrowserError::Given { key, path: path.to_owned(), what: what.into() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::user::owner;
    use super::*;
    use crate::config::EnvFile;

    /// A folder with a shared library in `good`, each other file or folder as named (`x/` is a
    /// folder), and the expected error.
    #[track_caller]
    fn check_given(files: &[&str], folders: &[&str], fonts: Option<&str>, want: &str) {
        let base = tempfile::tempdir().unwrap();
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for file in ["good/libnss3.so"].iter().chain(files) {
            let path = base.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, if file.ends_with(".conf") { "<?xml?><fontconfig/>" } else { "x" }).unwrap();
            if file.contains("closed") {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            }
        }
        let file = EnvFile {
            browser_libraries: folders.iter().map(PathBuf::from).collect(),
            browser_fonts: fonts.map(PathBuf::from),
            ..EnvFile::default()
        };
        let config = file.check(base.path()).unwrap().browser;
        let got = check(&config, owner(&config).unwrap()).err().map(|error| error.to_string());
        let got = got.unwrap_or_default().replace(&format!("{}/", base.path().display()), "");
        assert!(got.starts_with(want) && got.is_empty() == want.is_empty(), "{got}\n{want}");
    }

    #[test]
    fn folders_and_fonts_are_checked_on_the_machine_that_uses_them() {
        check_given(&[], &["good"], None, "");
        check_given(&["fonts.conf"], &["good"], Some("fonts.conf"), "");
        check_given(&["more/libcap.so.2", "more/README"], &["good", "more"], None, "");
        check_given(&[], &["absent"], None, "env.browser_libraries: absent cannot be listed: No such file");
        check_given(
            &[],
            &["good/libnss3.so"],
            None,
            "env.browser_libraries: good/libnss3.so is not a folder",
        );
        for part in ["libc.so.6", "ld-linux-x86-64.so.2", "libm-2.31.so", "glibc-hwcaps/x86-64-v3/libc.so.6"]
        {
            let want = format!("env.browser_libraries: bad/{part} is a part of the C library");
            check_given(&[&format!("bad/{part}")], &["good", "bad"], None, &want);
        }
        check_given(&[], &[], Some("absent.conf"), "env.browser_fonts: absent.conf cannot be read: No such");
        check_given(
            &["words.txt"],
            &[],
            Some("words.txt"),
            "env.browser_fonts: words.txt is not a fontconfig",
        );
        // Root can read everything; the browser's user cannot.
        if rustix::process::geteuid().is_root() {
            let want = "env.browser_libraries: more/libclosed.so is not readable for \"nobody\", the user";
            check_given(&["more/libclosed.so"], &["good", "more"], None, want);
            let want = "env.browser_fonts: closed.conf is not readable for \"nobody\"";
            check_given(&["closed.conf"], &[], Some("closed.conf"), want);
        }
    }

    #[test]
    fn the_c_library_is_known_by_its_names() {
        let all = |names: &str, want: bool| {
            for name in names.split_whitespace() {
                assert_eq!(is_c_library(&Path::new("/lib").join(name)), want, "{name}");
            }
        };
        all(
            "libc.so.6 libc.so libc-2.31.so libm.so.6 libmvec.so.1 libdl.so.2 librt.so.1 libpthread-2.31.so",
            true,
        );
        all(
            "ld-linux-x86-64.so.2 ld-2.31.so ld-musl-x86_64.so.1 ld64.so.2 ld.so.1 libc.musl-x86_64.so.1",
            true,
        );
        all("libresolv.so.2 libnss_files.so.2 libanl.so.1 libutil.so.1", true);
        all(
            "libcairo.so.2 libcups.so.2 libnss3.so libnssutil3.so libmd.so.0 libdbus-1.so.3 libgbm.so.1",
            false,
        );
        all("libc++.so.1 libc.txt libm libstdc++.so.6 libgcc_s.so.1 libdrm.so.2 libpcre2-8.so.0", false);
    }

    #[test]
    fn messages_of_a_failed_start_say_what_to_do() {
        let config = |sandbox| {
            let file = EnvFile { sandbox, ..EnvFile::default() };
            file.check(Path::new("/")).unwrap().browser
        };
        let check = |messages: &str, sandbox: bool, want: &str| {
            // This program cannot be traced, so that the loader's message must suffice.
            let got =
                explain_start_failure(Path::new("/absent/shell"), messages.into(), &config(sandbox), None)
                    .to_string();
            assert!(got.contains(want), "{got}");
            assert!(got.contains(messages), "{got}");
        };
        let loader = "shell: error while loading shared libraries: libnspr4.so: cannot open shared object file: No such file or directory";
        check(
            loader,
            true,
            "shared libraries that are not found: libnspr4.so; install them, or name the folder",
        );
        check(loader, true, "env.browser_libraries");
        let refused = "FATAL:content/browser/zygote_host/zygote_host_impl_linux.cc:128] No usable sandbox! If you are running on Ubuntu";
        check(refused, true, "set env.sandbox = false");
        check(refused, false, "did not start: FATAL");
        check("Trace/breakpoint trap", true, "did not start: Trace");
    }
}
