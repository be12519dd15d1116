//! Ends the process although a thread holds up its exit.

use std::time::Duration;

/// Time for the handlers that run at exit. A driver whose device hangs can wait in them for ever.
const EXIT_MAX: Duration = Duration::from_secs(5);

/// Kills this process if it still exists a few seconds from now; called when its command is over.
pub fn end_soon() {
    let killing = std::thread::Builder::new().name("furrow-exit".into()).spawn(|| {
        let (_open, never) = std::sync::mpsc::sync_channel::<()>(0);
        never.recv_timeout(EXIT_MAX).ok();
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::KILL).ok();
    });
    // Without the thread the exit has no limit, as in any other program.
    drop(killing);
}
