//! Whether a movement of the mouse begins a native drag of the page.
//!
//! The browser reports a drag some time after the movement that began it, and a busy machine takes
//! longer. The page's own event comes before the movement is answered, so it says whether there is
//! a report to wait for.

use super::script::{self, IsolatedWorld};
use super::tab::BrowserTab;
use crate::environment::EnvironmentError;

const SCRIPT: &str = include_str!("drag_start.js");

const WHAT: &str = "looking for a drag";

/// The script returns true or false.
const RESULT_BYTES_MAX: usize = 64;

/// Looks for the event in the page as it is now.
pub(super) struct DragStartWatch {
    /// `None` for a page that was left meanwhile.
    world: Option<IsolatedWorld>,
}

impl DragStartWatch {
    pub(super) async fn begin(tab: &BrowserTab) -> Result<Self, EnvironmentError> {
        let world = match script::isolated_world(tab, tab.deadlines.input, WHAT).await {
            Err(EnvironmentError::Failed(_)) => return Ok(Self { world: None }),
            world => world?,
        };
        let is_watching = ask(tab, &world, true).await?;
        Ok(Self { world: is_watching.then_some(world) })
    }

    /// Whether the page has begun a drag and left it to the browser. False for one in a frame of
    /// another site, which no script of ours reaches from here.
    pub(super) async fn has_begun(&self, tab: &BrowserTab) -> Result<bool, EnvironmentError> {
        match &self.world {
            Some(world) => ask(tab, world, false).await,
            None => Ok(false),
        }
    }
}

async fn ask(tab: &BrowserTab, world: &IsolatedWorld, begins: bool) -> Result<bool, EnvironmentError> {
    let call = format!("({SCRIPT})({begins})");
    match script::evaluate(tab, &call, Some(world), tab.deadlines.input, WHAT, RESULT_BYTES_MAX).await {
        Err(EnvironmentError::Failed(_)) => Ok(false),
        answer => Ok(answer?.as_bool() == Some(true)),
    }
}
