//! Failures of the device that a test asks for. A build without the feature `failpoints` has none.

use furrow_model::backend::DeviceLost;

/// The kinds of calls that may fail, as fail points.
///
/// `FAILPOINTS=device.sample=40*off->return(launch failed)` makes the device report a failed kernel
/// at the 41st sample, `return(hang)` makes the call never return, and `sleep(ms)` makes it slow.
pub const DEVICE_FAIL_POINTS: [&str; 15] = [
    "device.encode",
    "device.await_tiles",
    "device.run",
    "device.logits",
    "device.sample",
    "device.clear",
    "device.copy",
    "device.copy_page",
    "device.offload",
    "device.is_moving",
    "device.await_states",
    "device.restore",
    "device.stage",
    "device.copy_staged",
    "device.swap",
];

/// Fails or hangs where a test wants it.
#[cfg(feature = "failpoints")]
pub(crate) fn fault(point: &str) -> Result<(), DeviceLost> {
    fail::fail_point!(point, |why| {
        let why = why.unwrap_or_else(|| "a test injected this failure".to_owned());
        let at_micros = furrow_telemetry::TimeSource::system().wall_micros();
        tracing::error!(point, why, at_micros, "a test's device failure");
        if why == "hang" {
            loop {
                std::thread::park();
            }
        }
        Err(DeviceLost(why))
    });
    Ok(())
}

/// Failpoints are off in this build.
#[cfg(not(feature = "failpoints"))]
pub(crate) fn fault(_point: &str) -> Result<(), DeviceLost> {
    Ok(())
}

/// Takes as long as a test wants: `sleep(ms)`.
#[cfg(feature = "failpoints")]
pub(crate) fn delay(point: &str) {
    fail::fail_point!(point);
}

/// Failpoints are off in this build.
#[cfg(not(feature = "failpoints"))]
pub(crate) fn delay(_point: &str) {}

/// From when the worker stops, another failure is armed:
/// `FAILPOINTS=device.at_stop=return(device.run=return(hang))`.
#[cfg(feature = "failpoints")]
pub(crate) fn arm_at_stop() {
    let arm = || {
        fail::fail_point!("device.at_stop", |plan| plan);
        None
    };
    let Some(plan) = arm() else { return };
    let armed = plan.split_once('=').map(|(point, actions)| fail::cfg(point, actions));
    if !matches!(armed, Some(Ok(()))) {
        tracing::error!(plan, "device.at_stop: not a fail point and its actions");
    }
}

/// Failpoints are off in this build.
#[cfg(not(feature = "failpoints"))]
pub(crate) fn arm_at_stop() {}
