//! Events: what happens in the farm, said once. `Event { .. }.emit()` writes one log line and moves the figures.
//!
//! Every line carries `event`, its name from `names.rs`, and its ids as fields; no id ever becomes a label. What the farm does
//! is of level `info` (each step acknowledged included: that is what a checker holds against the data set), what the coordinator
//! repeats of it and what pages provoke is of level `debug` (a page could fill a disk otherwise; it is counted all the same),
//! what somebody should look at is `warn`.

mod coordinator;
mod env;
mod farm;
mod policy;

pub use coordinator::*;
pub use env::*;
pub use farm::*;
pub use policy::*;

/// Writes a line about a trajectory: `say!(info, NAME, ancestry, "text", field = value, ..)`.
macro_rules! say {
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
use say;

/// The first characters of a text that comes from outside: a host name has at most 253, and a log line should end.
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
