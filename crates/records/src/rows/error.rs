//! Why a row cannot be written or read. The texts follow the name of the record or the row.

use std::num::TryFromIntError;

use furrow_rollout::BadId;

/// A value that does not fit its column, or columns that no record has.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RowError {
    #[error("{column} {value} is above {}", i16::MAX)]
    TooLarge { column: &'static str, value: u32 },
    #[error(transparent)]
    Id(#[from] BadId),
    #[error("attempt {0} is negative")]
    NegativeAttempt(i16),
    /// `value` is cut to 40 characters.
    #[error("{column} holds {value:?}, which is not an allowed value")]
    NotAllowed { column: &'static str, value: String },
    #[error("{column} is null, but related columns are not")]
    Null { column: &'static str },
    #[error("{column} is present, but prompt_token_ids is null")]
    WithoutTokens { column: &'static str },
    #[error("format and quality must be a png, or a jpeg with its quality")]
    ImageFormat,
    #[error("session.context and context_window are not a known context policy")]
    Context,
    #[error("task.clock and clock_step_millis are not a known clock")]
    Clock,
    #[error("reward is present, but score is null")]
    RewardWithoutScore,
    #[error("mean, std and zero_variance must be null together")]
    GroupStatistics,
    #[error("action.valid and action.error contradict each other")]
    ActionValidity,
    /// A count or a time of an action does not fit 8 bits.
    #[error(transparent)]
    ActionNumber(#[from] TryFromIntError),
    /// `action.text` of several actions is not their list.
    #[error(transparent)]
    ActionList(#[from] serde_json::Error),
    /// The listed actions cannot form one step.
    #[error("{0}")]
    SeveralActions(String),
}
