//! What the environment workers know to be acknowledged, from the events that they log.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use furrow_telemetry::event;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// What was acknowledged of one trajectory.
#[derive(Debug, Default, Clone)]
pub(crate) struct Account {
    pub steps: u32,
    /// The acknowledged end, if there is one.
    pub end: Option<String>,
}

/// The accounts of a run, by trajectory.
#[derive(Debug, Default, Clone)]
pub(crate) struct Accounts(Arc<Mutex<BTreeMap<String, Account>>>);

impl Accounts {
    pub(crate) fn all(&self) -> BTreeMap<String, Account> {
        self.0.lock().unwrap().clone()
    }
}

/// Text and numbers of an event's fields.
#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl<S: Subscriber> Layer<S> for Accounts {
    fn on_event(&self, line: &Event<'_>, _context: Context<'_, S>) {
        let mut fields = Fields::default();
        line.record(&mut fields);
        let Some(trajectory) = fields.0.remove("trajectory_id") else { return };
        let mut accounts = self.0.lock().unwrap();
        let name = fields.0.get("event").map_or("", String::as_str);
        if name == event::STEP_ACKNOWLEDGED {
            let step: u32 = fields.0["step"].parse().unwrap();
            let account = accounts.entry(trajectory).or_default();
            account.steps = account.steps.max(step + 1);
        } else if name == event::TRAJECTORY_ACKNOWLEDGED {
            accounts.entry(trajectory).or_default().end = fields.0.remove("end");
        }
    }
}
