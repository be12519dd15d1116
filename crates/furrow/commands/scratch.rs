//! A folder that is gone when what needed it is.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Failure, output};

/// The folder; removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes it below another folder, whose disk is the one that is measured.
    pub fn make(below: &Path) -> Result<Self, Failure> {
        let below = std::path::absolute(below)?;
        let path = below.join(format!("furrow-scratch-{}", uuid::Uuid::now_v7().simple()));
        fs::create_dir(&path).map_err(|why| Failure::Input(vec![format!("{}: {why}", path.display())]))?;
        Ok(Self(path))
    }

    /// An empty folder in it, made anew.
    pub fn fresh(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.0.join(name);
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(why) = fs::remove_dir_all(&self.0) {
            output::complain(&format!("{} is left behind: {why}", self.0.display()));
        }
    }
}
