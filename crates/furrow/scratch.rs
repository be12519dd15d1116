//! A temporary folder that is removed with its owner.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{CommandFailure, output};

pub struct ScratchDir(PathBuf);

impl ScratchDir {
    /// Creates the folder below another one, on whose disk it then lies.
    pub fn make(below: &Path) -> Result<Self, CommandFailure> {
        let below = std::path::absolute(below)?;
        let path = below.join(format!("furrow-scratch-{}", uuid::Uuid::now_v7().simple()));
        fs::create_dir(&path)
            .map_err(|why| CommandFailure::Input(vec![format!("{}: {why}", path.display())]))?;
        Ok(Self(path))
    }

    /// Creates an empty folder in it, after removing an earlier one.
    pub fn fresh(&self, name: &str) -> Result<PathBuf, CommandFailure> {
        let path = self.0.join(name);
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir(&path)?;
        Ok(path)
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Err(why) = fs::remove_dir_all(&self.0) {
            output::error_line(&format!("cannot remove {}: {why}; remove it by hand", self.0.display()));
        }
    }
}
