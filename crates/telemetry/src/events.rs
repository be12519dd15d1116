//! Events: each thing that happens in the farm is reported once. `Event { .. }.emit()` writes one
//! log line and updates the metrics.
//!
//! Every line carries `event`, its name from `names.rs`, and its ids as fields; no id ever becomes
//! a label. Actions of the farm have level `info`, each acknowledged step included: a checker
//! compares those with the data set. What the coordinator repeats of them and what pages provoke
//! have level `debug`, because a page could otherwise fill a disk; both are counted. What an
//! operator should look at has level `warn`.

mod coordinator;
mod env;
mod farm;
mod policy;

pub use coordinator::*;
pub use env::*;
pub use farm::*;
pub use policy::*;

/// Writes a line about a trajectory: `log_event!(info, NAME, ancestry, "text", field = value, ..)`.
macro_rules! log_event {
    ($level:ident, $event:ident, $of:expr, $text:literal $(, $($fields:tt)+)?) => {
        tracing::$level!(
            event = $crate::names::event::$event,
            run_id = %$of.run_id,
            trajectory_id = %$of.trajectory_id,
            $($($fields)+,)?
            $text
        )
    };
}
use log_event;

/// The first characters of an external text: a host name has at most 253, and a log line must end.
pub(crate) fn cut(text: &str) -> &str {
    let end = text.char_indices().nth(253).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn outside_text_is_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"é".repeat(300)), "é".repeat(253));
    }
}
