//! What the files of a run are, and where faults are rare enough to be made more often.

use furrow_faulty_disk::{DiskLabels, Operation, Site};

pub(crate) const LABELS: DiskLabels = DiskLabels { kind, weight };

/// The kind of file that a name below the disk belongs to.
///
/// SQLite maps its `-shm` file into memory and builds it anew after a crash; the lock holds
/// nothing.
fn kind(name: &str) -> Option<&'static str> {
    let Some(name) = name.strip_prefix("run/") else { return Some("run") };
    let kind = match name.split('/').collect::<Vec<_>>()[..] {
        ["lock" | "ledger.sqlite-shm"] => return None,
        ["ledger.sqlite-wal"] => "ledger wal",
        ["ledger.sqlite" | "ledger.sqlite-journal"] => "ledger",
        ["spool", ..] => "spool",
        ["lost+found", ..] => "lost+found",
        ["data", "manifest", ..] => "manifest",
        ["data", "checkpoints", ..] => "checkpoint",
        ["data", "jobs", ..] => "job",
        ["data", "replaced", ..] => "replaced",
        ["data", "README.md" | ".README.md.tmp"] => "card",
        ["data"] => "data",
        ["data", ..] => "shard",
        _ => "run",
    };
    Some(kind)
}

/// Operations that a run does once or seldom meet faults more often, so that each fault has
/// happened often enough at each site of the long tier.
fn weight((operation, kind): Site) -> u32 {
    match (operation, kind) {
        (Operation::Unlink, "data" | "lost+found" | "run") => 60,
        (_, "lost+found") => 16,
        (Operation::Truncate, "spool") => 10,
        (Operation::MakeFolder | Operation::Link, _) | (_, "job") => 6,
        (_, "replaced" | "data") => 3,
        (Operation::Unlink | Operation::Create | Operation::Open, _) => 3,
        (Operation::Sync | Operation::SyncFolder | Operation::Truncate, _) => 2,
        _ => 1,
    }
}
