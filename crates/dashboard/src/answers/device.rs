//! The kinds of devices.

use serde::{Deserialize, Serialize};

/// The kind of device behind a device-hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// A GPU-hour is one GPU for one hour, busy or idle.
    Gpu,
    /// The `cpu` backend: a CPU-hour is one engine on a machine's CPU for one hour, busy or idle.
    Cpu,
    /// A policy without a device: scripted, random, remote. Stands for a kind that only a newer
    /// dashboard knows, too.
    #[default]
    #[serde(other)]
    None,
}
