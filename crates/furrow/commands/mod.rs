//! One module per command.

pub(crate) mod backup;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod discarded;
pub(crate) mod doctor;
pub(crate) mod export;
pub(crate) mod identity;
pub(crate) mod init;
pub(crate) mod model;
pub(crate) mod plan;
pub(crate) mod publish;
pub(crate) mod records;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod roles;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod score;
pub(crate) mod serve_only;
pub(crate) mod shell;
pub(crate) mod tasks;
pub(crate) mod view;
pub(crate) mod watch;
