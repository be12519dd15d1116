//! Points where a test may stop the process or plant a bug. A build without the feature
//! `failpoints` has none.

/// Reads the environment variable `FAILPOINTS` for the life of the process; the binary calls it
/// before anything else.
///
/// `<point>=return` kills the process there as kill -9 would, `<point>=1*off->return` on the second
/// visit; `pause`, `sleep(ms)` and `panic` work as in the crate `fail`. `bug.<name>=return` plants
/// a bug.
#[cfg(feature = "failpoints")]
pub fn arm_fail_points() {
    std::mem::forget(fail::FailScenario::setup());
}

#[cfg(feature = "failpoints")]
pub(crate) fn point(name: &str) {
    fail::fail_point!(name, |_| die());
}

/// No fail points in this build.
#[cfg(not(feature = "failpoints"))]
pub(crate) fn point(_name: &str) {}

/// Whether a test planted this bug.
#[cfg(feature = "failpoints")]
pub(crate) fn planted(bug: &str) -> bool {
    let armed = || -> bool {
        fail::fail_point!(bug, |_| true);
        false
    };
    armed()
}

/// No planted bugs in this build.
#[cfg(not(feature = "failpoints"))]
pub(crate) const fn planted(_bug: &str) -> bool {
    false
}

/// Kills the process: no destructor runs and nothing is flushed.
#[cfg(feature = "failpoints")]
fn die() {
    use rustix::process::{Signal, getpid, kill_process};
    kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
    loop {
        std::thread::park();
    }
}
