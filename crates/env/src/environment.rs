//! The interface of an environment to an attempt. A real browser context and the simulated browser
//! implement it, so that the same attempt runs on either.

use std::fmt;

use async_trait::async_trait;
use furrow_rollout::{
    Action, ActionHint, Assignment, DownloadReport, EndKind, EnvironmentFingerprint, Evidence, Observation,
    Outcome, OutcomeName, Task,
};

/// Creates environments: a pool of browsers, or the simulated browser.
#[async_trait]
pub trait EnvironmentFactory: Send + Sync + 'static {
    /// The environment's fingerprint for records; the worker fills in its own name.
    fn fingerprint(&self, task: Option<&Task>) -> EnvironmentFingerprint;

    /// How many more environments fit into memory.
    fn capacity(&self) -> Capacity {
        Capacity::UNLIMITED
    }

    /// Opens a new environment for one trajectory. It succeeds or fails within its own deadlines; a
    /// caller may stop waiting only if [`EnvironmentFactory::close`] follows.
    async fn open(&self, assignment: &Assignment) -> Result<Box<dyn Environment>, EnvironmentError>;

    /// Ends everything that is still open.
    async fn close(&self);
}

/// The page of one trajectory. Every call ends within the environment's own deadlines, and a caller
/// may stop waiting for any call and make another.
#[async_trait]
pub trait Environment: Send {
    /// Name of its browser in the log.
    fn browser(&self) -> &str;

    /// Loads the start page, starts the task in it and takes control of its clock. Returns the goal
    /// if the page generated one.
    async fn begin(&mut self) -> Result<Option<String>, EnvironmentError>;

    /// Returns the observation for the policy.
    async fn observe(&mut self) -> Result<Observation, EnvironmentError>;

    /// The next action of the page's demonstration; `None` if there is no demonstration.
    async fn hint(&mut self, goal: &str, step: u32) -> Result<Option<ActionHint>, EnvironmentError>;

    /// Delivers the input of an action.
    async fn act(&mut self, action: &Action) -> Result<Outcome, EnvironmentError>;

    /// Waits until the page is quiet. Events during the wait may replace the action's outcome.
    async fn settle(&mut self, outcome: Outcome) -> Result<Outcome, EnvironmentError>;

    /// The result of the suite's probe, a JSON object; `None` if there is no probe.
    async fn probe(&mut self) -> Result<Option<String>, EnvironmentError>;

    /// The final state, without an answer; `None` if the page cannot be observed any more. A hung
    /// page is stopped first.
    async fn evidence(&mut self) -> Option<Evidence>;

    /// Whether it is a script of the farm's own pages, running without end since the policy acted,
    /// that keeps the page from answering. Stops that script.
    async fn has_looping_script(&mut self) -> bool {
        false
    }

    /// The files that its pages downloaded; `None` if the task allows no download.
    async fn downloads(&mut self) -> Option<DownloadReport> {
        None
    }

    /// Requests since the last call that the replayed archive could not answer: method and address
    /// of each.
    fn unrecorded(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// What went wrong in its pages since the last call; empty unless
    /// [`BrowserConfig::page_errors`](crate::BrowserConfig::page_errors) asks for it.
    async fn page_errors(&mut self) -> Vec<PageError> {
        Vec::new()
    }

    /// Why the page or its browser died, if known.
    fn death_cause(&self) -> Option<String> {
        None
    }

    async fn close(self: Box<Self>);
}

/// Capacity for new environments, as limited by memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Number of environments that may be opened now.
    pub environments: u32,
    /// Bytes available to this process.
    pub available_bytes: u64,
    /// Bytes that must stay free.
    pub reserve_bytes: u64,
}

impl Capacity {
    /// Memory is not a limit.
    pub(crate) const UNLIMITED: Self =
        Self { environments: u32::MAX, available_bytes: u64::MAX, reserve_bytes: 0 };
}

/// Something that went wrong in a page, for the author of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageError {
    pub kind: PageErrorKind,
    /// Address and line, `http://site.test/app.js:12`, if the browser knows them.
    pub location: Option<String>,
    /// What happened, on one line; of a request, its address first.
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageErrorKind {
    /// An exception that no script caught.
    Exception,
    /// A line that a script printed as an error.
    Console,
    /// A file that did not load.
    Request,
    /// A request that the egress filter refused.
    Refused,
    /// Another error of the browser about the page.
    Browser,
}

impl PageErrorKind {
    pub fn as_str(self) -> &'static str {
        match self {
            PageErrorKind::Exception => "exception",
            PageErrorKind::Console => "console",
            PageErrorKind::Request => "request",
            PageErrorKind::Refused => "refused",
            PageErrorKind::Browser => "browser",
        }
    }
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "{location}: ")?;
        }
        write!(f, "{}: {}", self.kind.as_str(), self.text)
    }
}

/// Why an environment cannot continue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// The page stopped answering.
    #[error("the page did not answer: {waited_for}")]
    PageHang {
        /// The awaited operation, such as `screenshot`.
        waited_for: &'static str,
    },
    /// The page's renderer process died.
    #[error("the page's process died")]
    PageCrash,
    #[error("the browser died")]
    BrowserDead,
    /// The site refuses to serve the page.
    #[error("{0}")]
    Blocked(String),
    /// The worker itself failed.
    #[error("{0}")]
    Failed(String),
}

impl EnvironmentError {
    /// The end of the trajectory that follows from the error.
    pub fn end(&self) -> EndKind {
        match self {
            EnvironmentError::PageHang { .. } => EndKind::PageHang,
            EnvironmentError::PageCrash => EndKind::PageCrash,
            EnvironmentError::BrowserDead => EndKind::BrowserDead,
            EnvironmentError::Blocked(_) => EndKind::Blocked,
            EnvironmentError::Failed(_) => EndKind::EnvCrash,
        }
    }

    /// The outcome of the action that met the error; `None` if the page was not the cause.
    pub fn outcome(&self) -> Option<Outcome> {
        match self {
            EnvironmentError::PageHang { .. } => {
                Some(Outcome::with_detail(OutcomeName::PageHang, self.to_string()))
            }
            EnvironmentError::PageCrash => Some(Outcome::named(OutcomeName::PageCrash)),
            EnvironmentError::BrowserDead => Some(Outcome::named(OutcomeName::BrowserDead)),
            EnvironmentError::Blocked(_) | EnvironmentError::Failed(_) => None,
        }
    }
}
