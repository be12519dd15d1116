//! Fail points where a test may kill the process. A build without the feature `failpoints` has
//! none.

/// All fail points of this crate, in the order of a trajectory.
/// `FAILPOINTS=env.before_record=return` kills the process there as kill -9 would.
pub const ENV_FAIL_POINTS: [&str; 4] =
    ["env.before_record", "env.after_record", "env.before_finish", "env.after_finish"];

/// Kills the process here if a test enabled the fail point.
#[cfg(feature = "failpoints")]
pub(crate) fn point(name: &str) {
    fail::fail_point!(name, |_| die());
}

#[cfg(not(feature = "failpoints"))]
pub(crate) fn point(_name: &str) {}

/// No destructor runs and nothing is flushed.
#[cfg(feature = "failpoints")]
fn die() {
    use rustix::process::{Signal, getpid, kill_process};
    kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
    loop {
        std::thread::park();
    }
}
