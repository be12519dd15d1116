//! The command line: reads and checks a job file, starts services, inspects data sets.
//!
//! The `furrow` program is [`run_command_line`]. All else that is public serves `furrow-bench`,
//! which starts that program with jobs of its own and prints as it does, and `furrow-fuzz`, which
//! reads jobs.

mod animation;
mod attack;
mod blind;
mod budget;
mod command_line;
mod commands;
mod exit;
mod failure;
pub mod headless;
mod identity;
mod job;
mod launch;
mod look;
pub mod output;
mod peers;
mod preflight;
mod progress;
mod prove;
mod recorded;
mod renamed;
mod replay;
mod run_dir;
mod run_list;
mod scratch;
mod sessions;
pub mod simulation;
mod suggested;
mod tokens;
mod whole_file;

pub use command_line::run_command_line;
pub use exit::end_soon;
pub use failure::{CommandFailure, exit_code};
pub use job::{JobFile, RunFile};
pub use launch::runtime;
pub use recorded::RecordedRun;
pub use scratch::ScratchDir;

use failure::chain;
