//! For tests: a disk of 4 MB that really fills.

use std::path::Path;
use std::process::{Command, Stdio};

const MIB: u32 = 4;

/// Marks the child process that runs under a limit on file sizes.
const LIMITED: &str = "FURROW_TEST_FILES_ARE_SMALL";

/// Runs the body on a tmpfs of 4 MB where one may be mounted. Elsewhere the test runs again in a
/// child whose files may not grow beyond 4 MB, which the system reports in the same way: the test
/// is never skipped.
pub(crate) fn on_small_disk(test: &str, body: impl FnOnce(&Path)) {
    let dir = tempfile::tempdir().unwrap();
    if std::env::var_os(LIMITED).is_some() {
        return body(dir.path());
    }
    match TmpfsMount::new(dir.path()) {
        Some(mount) => body(mount.0),
        None => run_limited(test),
    }
}

/// A mounted tmpfs, unmounted when dropped.
struct TmpfsMount<'a>(&'a Path);

impl<'a> TmpfsMount<'a> {
    fn new(dir: &'a Path) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={MIB}m"), "furrow-test"]).arg(dir);
        let done = mount.stdout(Stdio::null()).stderr(Stdio::null()).status();
        done.is_ok_and(|status| status.success()).then(|| Self(dir))
    }
}

impl Drop for TmpfsMount<'_> {
    fn drop(&mut self) {
        // lazily, because a failed test may still hold files open
        let done = Command::new("umount").arg("-l").arg(self.0).status();
        assert!(done.is_ok_and(|status| status.success()), "{} stays mounted", self.0.display());
    }
}

fn run_limited(test: &str) {
    println!("cannot mount a tmpfs here: {test} runs under a limit on file sizes instead");
    // ulimit -f counts 512-byte blocks in POSIX shells; the signal must be ignored for the error to
    // reach the program
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", u64::from(MIB) * 2048);
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new("sh");
    child.arg("-c").arg(script).arg(program).args(["--exact", test, "--nocapture"]).env(LIMITED, "1");
    let output = child.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let stdout = text(&output.stdout);
    let stderr = text(&output.stderr);
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}{stderr}");
}

/// Whether the test runs under the limit, where a full database looks like a broken disk.
pub(crate) fn is_limited() -> bool {
    std::env::var_os(LIMITED).is_some()
}
