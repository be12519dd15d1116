//! Sizes of trajectories: screenshot and reply of each step, recorded or assumed.

/// Sizes of a session.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SessionMix {
    /// Steps of a trajectory.
    pub steps: usize,
    /// Pixels of a screenshot.
    pub screenshot: (usize, usize),
    /// Text tokens of a turn, not counting the screenshot.
    pub text: usize,
    /// Tokens generated a step.
    pub generated: usize,
    /// Tokens of instructions and task, once.
    pub instructions: usize,
    /// Seconds that the page takes a step.
    pub page_seconds: f64,
    pub sessions: usize,
}

/// Sizes of one step, in tokens and tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepSizes {
    /// Tokens of instructions and task before the first screenshot. 0 from the second step on.
    pub instructions: u32,
    /// Other tokens of the prompt, not counting the rows of its screenshot.
    pub text: u32,
    /// Tiles of the step's own screenshot.
    pub tiles: u32,
    /// Sampled tokens of the reply.
    pub sampled: u32,
    /// Tokens of the reply that were not sampled: the grammar left no choice, or the mark that ends
    /// a reply was appended.
    pub given: u32,
}

/// Trajectories, and how long a page takes a step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Workload {
    /// Steps of each trajectory, in order. None is empty.
    pub trajectories: Vec<Vec<StepSizes>>,
    /// Mean seconds from a reply to the next screenshot.
    pub page_seconds: f64,
}

impl Default for SessionMix {
    fn default() -> Self {
        Self {
            steps: 30,
            screenshot: (1280, 720),
            text: 60,
            generated: 150,
            instructions: 1200,
            page_seconds: 2.0,
            sessions: 100,
        }
    }
}

impl StepSizes {
    /// Tokens of the whole reply.
    pub fn reply(&self) -> u32 {
        self.sampled + self.given
    }
}

impl Workload {
    /// Equal trajectories, with screenshots of this many tiles. After each reply comes the mark
    /// that ends it, which counts as text of the next turn.
    pub fn uniform(mix: &SessionMix, tiles: u32) -> Self {
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

    /// Mean number of steps of a trajectory.
    pub fn steps_mean(&self) -> f64 {
        self.steps().count() as f64 / self.trajectories.len().max(1) as f64
    }

    /// Steps of the longest trajectory.
    pub fn steps_max(&self) -> usize {
        self.trajectories.iter().map(Vec::len).max().unwrap_or(0)
    }
}
