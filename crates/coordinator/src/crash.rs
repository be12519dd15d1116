//! Places where a test may stop the process or plant a bug. A build without the feature `failpoints` has none of them.

/// Reads the environment variable `FAILPOINTS` for the whole life of the process; the binary calls it first of all.
///
/// `<point>=return` kills the process there as kill -9 would, `<point>=1*off->return` on the second visit; `pause`, `sleep(ms)`
/// and `panic` work as in the crate `fail`. `bug.<name>=return` plants a bug.
#[cfg(feature = "failpoints")]
pub fn arm_fail_points() {
    std::mem::forget(fail::FailScenario::setup());
}

/// The fail points that every job passes, in the order of a step's way to the data set.
pub fn fail_points() -> impl Iterator<Item = &'static str> {
    all().filter(|point| !is_of_weights(point) && !is_of_evaluations(point))
}

/// The fail points that are passed where weights are published.
pub fn weights_fail_points() -> impl Iterator<Item = &'static str> {
    all().filter(|point| is_of_weights(point))
}

/// The fail points that are passed where versions are evaluated.
pub fn evaluation_fail_points() -> impl Iterator<Item = &'static str> {
    all().filter(|point| is_of_evaluations(point))
}

fn is_of_evaluations(point: &str) -> bool {
    point.contains("_evaluation_")
}

fn is_of_weights(point: &str) -> bool {
    point.contains("_version_") || point == "coordinator.before_ack_publish"
}

fn all() -> impl Iterator<Item = &'static str> {
    let publishing = crate::publish::Stage::ALL.into_iter().map(crate::publish::Stage::fail_point);
    let ledger = crate::ledger::LEDGER_FAIL_POINTS.iter().copied();
    let service = crate::shell::SERVICE_FAIL_POINTS.iter().copied();
    crate::spool::SPOOL_FAIL_POINTS.iter().copied().chain(ledger).chain(service).chain(publishing)
}

/// A place a test can make deadly.
#[cfg(feature = "failpoints")]
pub(crate) fn point(name: &str) {
    fail::fail_point!(name, |_| die());
}

/// Nothing.
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

/// Never.
#[cfg(not(feature = "failpoints"))]
pub(crate) const fn planted(_bug: &str) -> bool {
    false
}

/// No destructor runs and nothing is flushed.
#[cfg(feature = "failpoints")]
fn die() {
    use rustix::process::{Signal, getpid, kill_process};
    kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
    loop {
        std::thread::park();
    }
}
