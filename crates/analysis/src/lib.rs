//! Answers questions about a data set, finished or still written: its metrics, how good its policy
//! is, what a trainer would keep of it, how large its steps are, and any trajectory row by row.
//!
//! Each question reads only the columns it needs, which it names in `columns!`; the format, the
//! manifest and the check that a data set can be trusted are in `furrow-records`.

#![warn(missing_docs)]

mod attempt;
mod compare;
mod evaluate;
mod inspect;
mod json;
mod kept;
mod reasons;
mod sizes;
mod statistics;
mod success;
mod suite_versions;
mod timing;
pub mod view;

pub use attempt::{AttemptResult, TaskAttempt};
pub use compare::{ComparisonVerdict, RunComparison, TaskDifference, TaskResult, compare, compare_runs};
pub use evaluate::{
    ActingPolicy, EvaluationLine, EvaluationQuery, EvaluationReport, LineGrouping, PassAtK, VersionLine,
    evaluate,
};
pub use inspect::{DataSetSummary, EndLine, RewardLine, ShardGap, TableTotals, TimeLine, inspect};
pub use kept::{KeptLine, KeptReport, kept};
pub use reasons::FailureReason;
pub use sizes::{StepSize, StepTokens, step_sizes};
pub use statistics::{
    BOOTSTRAP_SEED, Estimate, Interval, IntervalMethod, RESAMPLES, TaskShare, TermKind, bootstrap, estimate,
    pass_at_k, wilson,
};
pub use success::{SuccessCounts, success_counts};
pub use suite_versions::MixedSuite;
