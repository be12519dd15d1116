//! An executor that stays failed: after its first failure it gets no more work, and every call
//! returns that failure.

use furrow_model::backend::DeviceLost;
use furrow_model::checkpoint::{CheckpointError, chain};

use crate::executor::{ExecutionLane, Executor, ExecutorError};
use crate::weights::LoadError;

/// The only access to an open executor. All its calls go through these methods, so no failure is
/// missed, even if the caller ignores the result.
pub(crate) struct ExecutorLatch {
    executor: Box<dyn Executor>,
    lost: Option<DeviceLost>,
}

impl ExecutorLatch {
    /// Takes an executor that works.
    pub(crate) fn new(executor: Box<dyn Executor>) -> Self {
        Self { executor, lost: None }
    }

    /// Checks that it has not failed.
    pub(crate) fn check(&self) -> Result<(), DeviceLost> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// The failure, if it has failed.
    pub(crate) fn lost(&self) -> Option<&DeviceLost> {
        self.lost.as_ref()
    }

    /// Runs some work on it.
    pub(crate) fn work<T>(
        &mut self,
        work: impl FnOnce(&mut dyn Executor) -> Result<T, ExecutorError>,
    ) -> Result<T, DeviceLost> {
        self.check()?;
        work(&mut *self.executor).map_err(|error| self.lose(chain(&error)))
    }

    /// Waits until all its work is done.
    pub(crate) fn wait(&mut self) -> Result<(), DeviceLost> {
        self.work(|executor| executor.wait())
    }

    /// Makes later work of `lane` wait for the present work of `other`.
    pub(crate) fn follow(&mut self, lane: ExecutionLane, other: ExecutionLane) -> Result<(), DeviceLost> {
        self.work(|executor| executor.follow(lane, other))
    }

    /// Loads weights, which may be refused; then the executor stays usable.
    pub(crate) fn load<T>(
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

    /// Marks it as failed.
    pub(crate) fn lose(&mut self, why: String) -> DeviceLost {
        self.lost.get_or_insert(DeviceLost(why)).clone()
    }
}
