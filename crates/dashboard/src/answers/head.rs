//! The headers of the answers.

use serde::{Deserialize, Serialize};

use super::device::DeviceKind;

/// The header of a page: the run, and how complete its data is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct PageHead {
    pub name: String,
    /// Newest commit that was read.
    pub version: u64,
    /// Changes when rows were read again from the start.
    pub generation: u64,
    /// Number of lines read of the run's history.
    pub lines: u64,
    /// Trajectories in the index.
    pub trajectories: u64,
    /// Trajectories that the index has no space for; the metrics count them.
    pub left_out: u64,
    /// Number of step files that are not summed up yet.
    pub step_files_left: u64,
    /// Files that cannot be read, one sentence each.
    pub problems: Vec<String>,
    /// Why the run cannot be read completely, if so.
    pub trouble: Option<String>,
    pub device: DeviceKind,
}

/// The header of the page Sessions, which does not wait for the data set: nothing is missing there.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct SessionsHead {
    pub name: String,
    pub problems: Vec<String>,
    pub step_files_left: u64,
    pub left_out: u64,
}
