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

/// The fail points that every job passes, in the order of a step's path to the data set.
pub fn fail_points() -> impl Iterator<Item = &'static str> {
    all_fail_points().filter(|point| !is_weights_point(point) && !is_evaluation_point(point))
}

/// The fail points passed when weights are published.
pub fn weights_fail_points() -> impl Iterator<Item = &'static str> {
    all_fail_points().filter(|point| is_weights_point(point))
}

/// The fail points passed when versions are evaluated.
pub fn evaluation_fail_points() -> impl Iterator<Item = &'static str> {
    all_fail_points().filter(|point| is_evaluation_point(point))
}

fn is_evaluation_point(point: &str) -> bool {
    point.contains("_evaluation_")
}

fn is_weights_point(point: &str) -> bool {
    point.contains("_version_") || point == "coordinator.before_ack_publish"
}

fn all_fail_points() -> impl Iterator<Item = &'static str> {
    let publishing = crate::commit::CommitStage::ALL.into_iter().map(crate::commit::CommitStage::fail_point);
    let ledger = crate::ledger::LEDGER_FAIL_POINTS.iter().copied();
    let service = crate::shell::SERVICE_FAIL_POINTS.iter().copied();
    crate::spool::SPOOL_FAIL_POINTS.iter().copied().chain(ledger).chain(service).chain(publishing)
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
