//! File choosers of a page: the browser announces them instead of showing a dialog, and a chooser
//! waits until files are given to it or the page is left.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use chromiumoxide::cdp::browser_protocol::dom::{BackendNodeId, SetFileInputFilesParams};
use chromiumoxide::cdp::browser_protocol::page::{
    EventFileChooserOpened, EventFrameNavigated, FileChooserOpenedMode, FrameId,
};

/// A chooser that waits for files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileChooser {
    /// The page's field; `None` if a script opened the chooser without one, which cannot be
    /// answered.
    field: Option<BackendNodeId>,
    pub takes_several: bool,
}

/// The choosers of one page.
#[derive(Debug, Default)]
pub(super) struct ChooserState {
    opened: AtomicU32,
    /// The newest one: a page that opens another one no longer waits for the first.
    waiting: Mutex<Option<(FrameId, FileChooser)>>,
}

impl ChooserState {
    pub(super) fn open(&self, event: &EventFileChooserOpened) {
        let takes_several = event.mode == FileChooserOpenedMode::SelectMultiple;
        let chooser = FileChooser { field: event.backend_node_id, takes_several };
        self.set(Some((event.frame_id.clone(), chooser)));
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn opened(&self) -> u32 {
        self.opened.load(Ordering::Relaxed)
    }

    pub(super) fn waiting(&self) -> Option<FileChooser> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.as_ref().map(|(_, chooser)| *chooser)
    }

    /// Another document replaces that of a frame: fields of the old one could still be given files,
    /// and nothing would come of it.
    pub(super) fn leave(&self, event: &EventFrameNavigated) {
        let frame = &event.frame;
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.take_if(|(of, _)| frame.parent_id.is_none() || *of == frame.id);
    }

    pub(super) fn close(&self) {
        self.set(None);
    }

    fn set(&self, chooser: Option<(FrameId, FileChooser)>) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = chooser;
    }
}

impl FileChooser {
    /// Whether files can be given to it.
    pub(super) fn takes_files(self) -> bool {
        self.field.is_some()
    }

    /// The command that gives it files.
    pub(super) fn with_files(self, paths: Vec<String>) -> SetFileInputFilesParams {
        let mut command = SetFileInputFilesParams::new(paths);
        command.backend_node_id = self.field;
        command
    }
}
