//! A task: an instruction, a start page and a way to score. The scorer stays with the coordinator
//! (`tasks` owns it), so that neither a policy nor a page can read the expected answer.

use crate::{ImageFormat, Size};

/// What an environment worker needs to know about a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Unique within its suite, such as `Allrecipes--0` or `click-checkboxes`; free text of at most
    /// 256 bytes.
    pub task_id: String,
    /// `starter`, `miniwob`, `webvoyager` or a name that the user chose.
    pub suite: String,
    /// The split that the task belongs to.
    pub split: Split,
    /// The instruction; `None` if the page generates it from the seed, in which case
    /// `PageHooks::start` returns it.
    pub goal: Option<String>,
    /// Absolute http(s) URL of the first page.
    pub start_url: String,
    /// Seed of the page's content, shared by the whole group.
    pub seed: u64,
    /// Number of steps after which the trajectory is truncated.
    pub max_steps: u32,
    /// Wall-clock limit of the whole trajectory.
    pub time_limit_millis: u64,
    /// Viewport in CSS pixels, device scale 1.
    pub viewport: Size,
    /// How screenshots of the page are taken for the policy.
    pub observation: ObservationSpec,
    /// Hosts that the browser may reach, as `host` or `*.host`; the start URL's host is always
    /// included.
    pub allow_hosts: Vec<String>,
    /// Scripts that run in the page.
    pub hooks: PageHooks,
    /// The clock of the page.
    pub clock: PageClock,
}

/// Share of the tasks. Rows of `Eval` are never trainable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// Tasks to learn from: the only split whose rows are trainable.
    Train,
    /// Held out to choose among policies; its rows are never trainable.
    Validation,
    /// Held out for final results; its rows are never trainable.
    Test,
    /// For evaluation inside a training job.
    Eval,
}

/// How a screenshot is taken.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservationSpec {
    /// Image encoding. The recorded bytes are those that the policy decodes.
    pub format: ImageFormat,
    /// Size of the top left part of the viewport to show; `None` shows all of it. Hides a page's
    /// own score panel.
    pub clip: Option<Size>,
    /// Pad right and below with white to a square, so that a small page costs one tile. The page
    /// and the image keep the same origin.
    pub square: bool,
}

/// Scripts run in the page's own world, each an expression that may return a promise.
///
/// Page text can never become one of these: they come from the suite's files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PageHooks {
    /// Runs after loading and starts the task. `{seed}` is replaced by the seed. Returns the goal
    /// as a string, or null.
    pub start: Option<String>,
    /// Runs after every action and at the end and returns a JSON object. `done: true` in it ends
    /// the trajectory.
    pub probe: Option<String>,
    /// Demonstration, run in an isolated world: the body of `(goal, seed, step) => hint`. Only the
    /// `scripted` policy receives its hints.
    pub solve: Option<String>,
}

/// The clock of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageClock {
    /// The page uses the wall clock.
    Real,
    /// Page time stands still while the policy computes and advances by a fixed amount in each
    /// step, whether or not its action had an effect. A `wait` advances it by its seconds instead.
    Virtual {
        /// Milliseconds of page time granted to each step.
        step_millis: u32,
    },
}

/// A demonstration's next action in page coordinates, as a JSON object. It is never part of a
/// prompt or an observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionHint {
    /// For example `{"action":"click_element","element":"OK","x":40.5,"y":12}`, with x and y in CSS
    /// pixels of the page.
    pub json: String,
}

impl Split {
    /// All splits, in the order of their names.
    pub const ALL: [Split; 4] = [Split::Train, Split::Validation, Split::Test, Split::Eval];

    /// The split's name in files and columns.
    pub fn as_str(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Validation => "validation",
            Split::Test => "test",
            Split::Eval => "eval",
        }
    }

    /// Parses what `as_str` returns.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|split| split.as_str() == name)
    }
}

impl PageHooks {
    /// The start script with the seed inserted.
    pub fn start_with(&self, seed: u64) -> Option<String> {
        self.start.as_ref().map(|script| script.replace("{seed}", &seed.to_string()))
    }
}
