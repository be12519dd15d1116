//! One module per command.

pub mod backup;
pub mod check;
pub mod checkpoint;
pub mod discarded;
pub mod doctor;
pub mod export;
pub mod init;
pub mod model;
pub mod plan;
pub mod publish;
pub mod records;
pub mod replay;
pub mod report;
pub mod roles;
pub mod run;
pub mod runs;
pub mod score;
pub mod serve_only;
pub mod shell;
pub mod tasks;
pub mod view;
pub mod watch;
