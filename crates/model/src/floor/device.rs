//! Devices by what they reach.

/// A device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Device {
    /// How it is called on the command line.
    pub name: &'static str,
    /// Bytes a second.
    pub bandwidth: f64,
    /// bfloat16 matrix operations a second, dense.
    pub flops: f64,
    /// Bytes of memory.
    pub memory: f64,
    /// Where the figures come from.
    pub source: &'static str,
}

/// All that are known. What was measured on one H200 (0.896 of the data sheet's bandwidth, 0.797 of its matrix rate) is assumed of its
/// sisters, and said so.
pub const DEVICES: [Device; 5] = [
    Device {
        name: "h200",
        bandwidth: 4.3e12,
        flops: 788e12,
        memory: 141e9,
        source: "copy and matmul rates measured on one",
    },
    Device {
        name: "h100",
        bandwidth: 3.0e12,
        flops: 788e12,
        memory: 80e9,
        source: "data sheet times the shares an H200 reached",
    },
    Device {
        name: "b200",
        bandwidth: 7.17e12,
        flops: 1793e12,
        memory: 180e9,
        source: "data sheet times the shares an H200 reached",
    },
    Device {
        name: "a100",
        bandwidth: 1.83e12,
        flops: 249e12,
        memory: 80e9,
        source: "data sheet times the shares an H200 reached",
    },
    Device {
        name: "l40s",
        bandwidth: 0.774e12,
        flops: 289e12,
        memory: 48e9,
        source: "data sheet times the shares an H200 reached",
    },
];

impl Device {
    /// The device of that name.
    pub fn named(name: &str) -> Option<&'static Device> {
        DEVICES.iter().find(|device| device.name == name)
    }
}
