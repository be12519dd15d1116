//! What actions leave down for later ones. It belongs to the document in which it was pressed: once
//! another document or tab is in front, everything is released.

use chromiumoxide::cdp::browser_protocol::target::TargetId;

use super::tabs::ContextTabs;
use crate::chromium::act;
use crate::chromium::input::InputState;
use crate::chromium::navigate::{self, DocumentId};
use crate::chromium::tab::BrowserTab;
use crate::environment::EnvironmentError;

pub(super) struct PressedInput {
    pub state: InputState,
    /// Where the first of it was pressed.
    origin: Option<(TargetId, DocumentId)>,
}

impl PressedInput {
    pub(super) fn new() -> Self {
        Self { state: InputState::new(), origin: None }
    }

    /// Called before something is pressed that stays down.
    pub(super) async fn note_origin(&mut self, tab: &BrowserTab) -> Result<(), EnvironmentError> {
        if self.state.is_idle() {
            self.origin = Some((tab.target().clone(), navigate::document_id(tab).await?));
        }
        Ok(())
    }

    /// Releases everything if its document is no longer in front, and returns what it was. A
    /// document that never saw a key go down would otherwise act under it, and the policy with it.
    pub(super) async fn release_if_left(
        &mut self,
        tabs: &ContextTabs,
    ) -> Result<Option<String>, EnvironmentError> {
        if self.state.is_idle() {
            return Ok(None);
        }
        let Some((target, document)) = &self.origin else { return Ok(None) };
        let front = tabs.active()?;
        if front.target() == target && navigate::document_id(front).await? == *document {
            return Ok(None);
        }
        let names = self.state.names();
        if front.target() == target {
            act::release_everything(front, &mut self.state).await?;
        } else if let Some(tab) = tabs.find(target) {
            // A tab in the background that does not answer is no reason to end the trajectory.
            act::release_everything(tab, &mut self.state).await.ok();
        }
        self.state.forget_pressed();
        self.origin = None;
        Ok(Some(names))
    }
}
