//! The points that a file of a shard passes on its way to the data set.

/// A point that a file of a shard has passed. A crash between any two of them must lose nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShardStage {
    /// All rows are written under the temporary name.
    TempWritten,
    /// The footer is written.
    FooterClosed,
    /// The bytes are durable.
    Fsynced,
    /// The final name exists.
    Linked,
    /// The final name is durable.
    DirFsynced,
    /// The temporary name is gone.
    TempRemoved,
    /// The file was reopened; rows, columns and hash are correct.
    Checked,
}

impl ShardStage {
    /// All stages in order.
    pub const ALL: [ShardStage; 7] = [
        ShardStage::TempWritten,
        ShardStage::FooterClosed,
        ShardStage::Fsynced,
        ShardStage::Linked,
        ShardStage::DirFsynced,
        ShardStage::TempRemoved,
        ShardStage::Checked,
    ];

    /// Name of the stage in crash points and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            ShardStage::TempWritten => "temp_written",
            ShardStage::FooterClosed => "footer_closed",
            ShardStage::Fsynced => "fsynced",
            ShardStage::Linked => "linked",
            ShardStage::DirFsynced => "dir_fsynced",
            ShardStage::TempRemoved => "temp_removed",
            ShardStage::Checked => "checked",
        }
    }
}
