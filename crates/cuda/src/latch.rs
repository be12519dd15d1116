//! An executor that stays lost: after its first failure it is given nothing any more, and every call is answered with that failure.

use furrow_model::backend::DeviceLost;
use furrow_model::checkpoint::{CheckpointError, chain};

use crate::executor::{Executor, ExecutorError};
use crate::weights::LoadError;

/// The one way to an opened executor. Nothing reaches it but through these calls, so no failure of it goes unseen, whatever its caller does with the
/// answer.
pub(crate) struct Latch {
    executor: Box<dyn Executor>,
    lost: Option<DeviceLost>,
}

impl Latch {
    /// Takes an executor that works.
    pub fn new(executor: Box<dyn Executor>) -> Self {
        Self { executor, lost: None }
    }

    /// Whether it can be used.
    pub fn check(&self) -> Result<(), DeviceLost> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// How it was lost.
    pub fn lost(&self) -> Option<&DeviceLost> {
        self.lost.as_ref()
    }

    /// Does some work on it.
    pub fn work<T>(
        &mut self,
        work: impl FnOnce(&mut dyn Executor) -> Result<T, ExecutorError>,
    ) -> Result<T, DeviceLost> {
        self.check()?;
        work(&mut *self.executor).map_err(|error| self.lose(chain(&error)))
    }

    /// Waits until all it was given is done.
    pub fn wait(&mut self) -> Result<(), DeviceLost> {
        self.work(|executor| executor.wait())
    }

    /// Brings weights to it, which may be refused and leave it as it was.
    pub fn load<T>(
        &mut self,
        work: impl FnOnce(&mut dyn Executor) -> Result<T, LoadError>,
    ) -> Result<Result<T, CheckpointError>, DeviceLost> {
        self.check()?;
        match work(&mut *self.executor) {
            Ok(loaded) => Ok(Ok(loaded)),
            Err(LoadError::Checkpoint(refused)) => Ok(Err(refused)),
            Err(LoadError::Executor(error)) => Err(self.lose(chain(&error))),
        }
    }

    /// Gives it up.
    pub fn lose(&mut self, why: String) -> DeviceLost {
        self.lost.get_or_insert(DeviceLost(why)).clone()
    }
}
