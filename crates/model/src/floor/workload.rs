//! Trajectories by their sizes: what each step showed and how long its reply was, as recorded or as assumed.

use super::Mix;

/// Sizes of one step, in tokens and tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepSizes {
    /// Tokens of instructions and task, which stand before the first screenshot. 0 from the second step on.
    pub instructions: u32,
    /// Tokens that the prompt adds beside those and beside the rows of its screenshot.
    pub text: u32,
    /// Tiles of the step's own screenshot.
    pub tiles: u32,
    /// Tokens of the reply that were sampled.
    pub sampled: u32,
    /// Tokens of the reply that were not: a grammar left no choice, or the mark that ends a reply was put behind it.
    pub given: u32,
}

/// Trajectories, and how long a page takes for a step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Workload {
    /// Steps of each trajectory, in order. None is empty.
    pub trajectories: Vec<Vec<StepSizes>>,
    /// Seconds from a reply to the next screenshot, in the mean.
    pub page_seconds: f64,
}

impl StepSizes {
    /// Tokens of the whole reply.
    pub fn reply(&self) -> u32 {
        self.sampled + self.given
    }
}

impl Workload {
    /// Trajectories that are all alike, with screenshots of so many tiles. Behind each reply stands the mark that ends it, which counts as text of the turn that
    /// follows.
    pub fn uniform(mix: &Mix, tiles: u32) -> Self {
        let step = |index: usize| StepSizes {
            instructions: if index == 0 { mix.instructions as u32 } else { 0 },
            text: (mix.text as u32).saturating_sub(u32::from(index > 0)),
            tiles,
            sampled: mix.generated as u32,
            given: 1,
        };
        Self { trajectories: vec![(0..mix.steps).map(step).collect()], page_seconds: mix.page_seconds }
    }

    /// All steps, trajectory by trajectory.
    pub fn steps(&self) -> impl Iterator<Item = &StepSizes> {
        self.trajectories.iter().flatten()
    }

    /// Steps of a trajectory, in the mean.
    pub fn steps_mean(&self) -> f64 {
        self.steps().count() as f64 / self.trajectories.len().max(1) as f64
    }

    /// Steps of the longest trajectory.
    pub fn steps_max(&self) -> usize {
        self.trajectories.iter().map(Vec::len).max().unwrap_or(0)
    }
}
