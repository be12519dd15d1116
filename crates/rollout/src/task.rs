//! A task: an instruction, a start page, a way to score. The way to score stays with the coordinator (`tasks` owns it): what a
//! policy or a page could read is never told what is right.

use crate::{ImageFormat, Size};

/// What an environment worker needs to know of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Unique within its suite, such as `Allrecipes--0` or `click-checkboxes`; free text of at most 256 bytes.
    pub task_id: String,
    /// `starter`, `miniwob`, `webvoyager` or a user's own word.
    pub suite: String,
    /// Which share of the tasks it belongs to.
    pub split: Split,
    /// The instruction; `None` where the page makes it from the seed (`PageHooks::start` then returns it).
    pub goal: Option<String>,
    /// Absolute http(s) URL.
    pub start_url: String,
    /// Seed of the page's content; one draw is shared by the whole group.
    pub seed: u64,
    /// The trajectory is truncated after this many steps.
    pub max_steps: u32,
    /// Wall limit of the whole trajectory in the farm.
    pub time_limit_millis: u64,
    /// Viewport in CSS pixels, device scale 1.
    pub viewport: Size,
    /// What the policy is shown of it.
    pub observation: ObservationSpec,
    /// Hosts the browser may reach, `host` or `*.host`; the start URL's host is always among them.
    pub allow_hosts: Vec<String>,
    /// Scripts that speak with the page.
    pub hooks: PageHooks,
    /// Which time the page lives in.
    pub clock: Clock,
}

/// Share of the tasks. Rows of `Eval` are never trainable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// For learning.
    Train,
    /// For choosing.
    Validation,
    /// For reporting.
    Test,
    /// Evaluation inside a training job.
    Eval,
}

/// How a screenshot is taken.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservationSpec {
    /// Encoding; the recorded bytes are the very bytes the policy decodes.
    pub format: ImageFormat,
    /// Top left part of the viewport that is shown, `None` for all of it. Keeps a page's own score panel out of sight.
    pub clip: Option<Size>,
    /// Pad right and below with white to a square, so that a small page costs one tile. Page and image keep one origin.
    pub square: bool,
}

/// Scripts run in the page's own world, each an expression that may return a promise.
///
/// Page text can never become one of these: they come from the suite's files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PageHooks {
    /// After loading: starts the task. `{seed}` is replaced by the seed. Returns the goal as a string, or null.
    pub start: Option<String>,
    /// After every action and at the end: returns a JSON object. `done: true` in it ends the trajectory.
    pub probe: Option<String>,
    /// Demonstration, run in an isolated world: the body of `(goal, seed, step) => hint`. Only the `scripted` policy sees its hints.
    pub solve: Option<String>,
}

/// Which time the page lives in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The wall clock.
    Real,
    /// Page time stands still while the policy thinks and advances by this much in each step, whether or not its action had an effect; by the
    /// seconds of a `wait` in its place.
    Virtual {
        /// Milliseconds of page time granted to each step.
        step_millis: u32,
    },
}

/// What a demonstration says to do next: an action in page coordinates as a JSON object. Never part of a prompt or an observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint {
    /// For example `{"action":"click_element","element":"OK","x":40.5,"y":12}` with x and y in CSS pixels of the page.
    pub json: String,
}

impl Split {
    /// All of them, in the order of the names.
    pub const ALL: [Split; 4] = [Split::Train, Split::Validation, Split::Test, Split::Eval];

    /// The word in files and columns.
    pub fn as_str(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Validation => "validation",
            Split::Test => "test",
            Split::Eval => "eval",
        }
    }

    /// Reads the word back.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|split| split.as_str() == word)
    }
}

impl PageHooks {
    /// The start script with the seed filled in.
    pub fn start_with(&self, seed: u64) -> Option<String> {
        self.start.as_ref().map(|script| script.replace("{seed}", &seed.to_string()))
    }
}
