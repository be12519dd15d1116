//! Devices and the rates that they reach.

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceSpec {
    /// Its name on the command line.
    pub name: &'static str,
    pub bandwidth: f64,
    /// bfloat16 matrix operations a second, dense.
    pub flops: f64,
    pub memory: f64,
    /// Source of these numbers.
    pub source: &'static str,
}

/// All known devices. The shares of the data sheet that were measured on one H200 (0.896 of the
/// bandwidth, 0.797 of the matrix rate) are assumed for related devices; `source` says so.
pub const DEVICES: [DeviceSpec; 5] = [
    DeviceSpec {
        name: "h200",
        bandwidth: 4.3e12,
        flops: 788e12,
        memory: 141e9,
        source: "copy and matmul rates measured on one",
    },
    DeviceSpec {
        name: "h100",
        bandwidth: 3.0e12,
        flops: 788e12,
        memory: 80e9,
        source: "data sheet times the shares an H200 reached",
    },
    DeviceSpec {
        name: "b200",
        bandwidth: 7.17e12,
        flops: 1793e12,
        memory: 180e9,
        source: "data sheet times the shares an H200 reached",
    },
    DeviceSpec {
        name: "a100",
        bandwidth: 1.83e12,
        flops: 249e12,
        memory: 80e9,
        source: "data sheet times the shares an H200 reached",
    },
    DeviceSpec {
        name: "l40s",
        bandwidth: 0.774e12,
        flops: 289e12,
        memory: 48e9,
        source: "data sheet times the shares an H200 reached",
    },
];

impl DeviceSpec {
    /// The device of this name.
    pub fn named(name: &str) -> Option<&'static DeviceSpec> {
        DEVICES.iter().find(|device| device.name == name)
    }
}
