//! The operations that a disk counts and the faults that may happen in them.

use rand::RngExt;
use rand::rngs::ChaCha12Rng;

/// An operation that changes files or makes changes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// A file is opened that was not there.
    Create,
    /// A file that is there is opened to be written.
    Open,
    Write,
    Truncate,
    /// A file's content is made durable.
    Sync,
    /// A folder's names are made durable.
    SyncFolder,
    MakeFolder,
    Link,
    Rename,
    Unlink,
}

/// An operation on a kind of file.
pub type Site = (Operation, &'static str);

/// How a process ends in the middle of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Crash {
    /// The system stays: everything written is there.
    Kill,
    /// What was not synced may be lost, in any part.
    PowerCut,
}

/// What goes wrong in an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// It fails as on a broken disk. A sync that fails drops what it should have made durable.
    Broken,
    /// It fails as on a full disk, and so do the next few.
    Full,
    /// Less is written than was asked for.
    Short,
    Kill,
    PowerCut,
}

impl FaultKind {
    pub const ALL: [FaultKind; 5] =
        [FaultKind::Broken, FaultKind::Full, FaultKind::Short, FaultKind::Kill, FaultKind::PowerCut];
}

impl Operation {
    pub const ALL: [Operation; 10] = [
        Operation::Create,
        Operation::Open,
        Operation::Write,
        Operation::Truncate,
        Operation::Sync,
        Operation::SyncFolder,
        Operation::MakeFolder,
        Operation::Link,
        Operation::Rename,
        Operation::Unlink,
    ];

    /// The faults that an operation of this kind can meet.
    pub fn faults(self) -> &'static [FaultKind] {
        use FaultKind::{Broken, Full, Kill, PowerCut, Short};
        match self {
            Operation::Write => &[Broken, Full, Short, Kill, PowerCut],
            Operation::Open | Operation::Truncate | Operation::Unlink => &[Broken, Kill, PowerCut],
            _ => &[Broken, Full, Kill, PowerCut],
        }
    }

    /// Whether a full disk makes it fail.
    pub(crate) fn takes_space(self) -> bool {
        self.faults().contains(&FaultKind::Full)
    }
}

/// What becomes of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    /// It fails with this error of the system.
    Fail(i32),
    Short,
    /// The process ends here, before or after the operation took effect.
    Crash {
        crash: Crash,
        is_done: bool,
    },
}

/// How often operations fail.
#[derive(Debug, Default)]
pub(crate) struct FaultRate {
    /// One operation of weight 1 in so many meets a fault; 0 is none.
    pub one_in: u32,
    /// Operations that still find the disk full.
    pub full_left: u32,
}

/// Most operations that find the disk full once it is.
const FULL_MAX: u32 = 6;

impl FaultRate {
    /// Decides about the next operation. The same chance gives the same decision.
    pub(crate) fn decide(
        &mut self,
        operation: Operation,
        weight: u32,
        chance: &mut ChaCha12Rng,
    ) -> (Verdict, Option<FaultKind>) {
        if self.one_in == 0 {
            return (Verdict::Pass, None);
        }
        if self.full_left > 0 && operation.takes_space() {
            self.full_left -= 1;
            return (Verdict::Fail(libc::ENOSPC), Some(FaultKind::Full));
        }
        if chance.random_range(0..self.one_in) >= weight {
            return (Verdict::Pass, None);
        }
        let faults = operation.faults();
        let fault = faults[chance.random_range(0..faults.len())];
        let verdict = match fault {
            FaultKind::Broken => Verdict::Fail(libc::EIO),
            FaultKind::Full => {
                self.full_left = chance.random_range(0..FULL_MAX);
                Verdict::Fail(libc::ENOSPC)
            }
            FaultKind::Short => Verdict::Short,
            FaultKind::Kill => Verdict::Crash { crash: Crash::Kill, is_done: chance.random() },
            FaultKind::PowerCut => Verdict::Crash { crash: Crash::PowerCut, is_done: chance.random() },
        };
        (verdict, Some(fault))
    }
}
