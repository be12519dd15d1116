//! Converts domain types to rows and back. Rows are untrusted input, so reading them can fail;
//! writing fails only where a column is too narrow.

mod action;
mod derived;
mod error;
mod group;
mod observation;
mod parts;
mod score;
mod step;
mod task;
mod timing;
mod trajectory;
mod values;

pub use derived::DerivedColumns;
pub(crate) use derived::TrajectoryColumns;
pub(crate) use error::RowError;
pub use score::RescoreRecord;
pub use step::RecordedStep;
