//! The settings that a policy worker receives when a session opens. The job sets them and the
//! assignment carries them, so that they are decided once.

/// How the policy of a session parses replies, samples and keeps context.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionSpec {
    /// Action grammar of the replies.
    pub grammar: Grammar,
    /// How the policy samples the tokens of a response.
    pub sampling: SamplingParams,
    /// What the session keeps between steps.
    pub context: ContextPolicy,
    /// Instructions that precede the task in the prompt.
    pub instructions: String,
}

/// An action grammar and the extra actions that the job enables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grammar {
    /// Name of the grammar, such as `holo_navigation`.
    pub name: String,
    /// Enabled actions beyond the grammar's own, sorted, without repetition.
    pub extra: Vec<ExtraAction>,
}

/// An action that a job may enable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExtraAction {
    /// `drag` with x, y, to_x, to_y.
    Drag,
    /// `select_tab` with index: the tab to bring to the front, oldest first.
    SelectTab,
    /// `press_key` with key, such as `Enter` or `Control+a`.
    PressKey,
    /// `write` with content and press_enter, typed at the current focus.
    Write,
    /// `upload` with files: names of the task's files, for the file chooser that is open.
    Upload,
}

/// Sampling parameters of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Softmax temperature; 0 is greedy.
    pub temperature: f32,
    /// Nucleus sampling: probability mass to keep; 1 keeps all tokens.
    pub top_p: f32,
    /// Number of most probable tokens to keep; 0 keeps all.
    pub top_k: u32,
    /// Minimum probability relative to the most probable token; 0 keeps all.
    pub min_p: f32,
    /// Most tokens of one response.
    pub max_tokens: u32,
    /// Seed of the job. Each session derives its random stream from it, its group and its sample
    /// index.
    pub seed: u64,
}

/// What a session keeps between steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextPolicy {
    /// All text and all screenshots.
    Append,
    /// Text of all turns and the newest screenshot.
    LastImage,
    /// The newest k screenshots.
    Window(u32),
    /// Nothing; each step starts a new prompt.
    Fresh,
}

impl ExtraAction {
    /// Every extra action, in the order in which [`Grammar::extra`] is sorted.
    pub const ALL: [ExtraAction; 5] = [
        ExtraAction::Drag,
        ExtraAction::SelectTab,
        ExtraAction::PressKey,
        ExtraAction::Write,
        ExtraAction::Upload,
    ];

    /// The action's name in grammars, job files and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            ExtraAction::Drag => "drag",
            ExtraAction::SelectTab => "select_tab",
            ExtraAction::PressKey => "press_key",
            ExtraAction::Write => "write",
            ExtraAction::Upload => "upload",
        }
    }

    /// Parses what `as_str` returns.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|extra| extra.as_str() == name)
    }
}

impl Default for SamplingParams {
    /// The usual setting for RL: the whole distribution at temperature 1.
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, max_tokens: 512, seed: 0 }
    }
}

impl ContextPolicy {
    /// Parses what `Display` writes: `append`, `last_image`, `window(k)` with k of at least 1,
    /// `fresh`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "append" => Some(ContextPolicy::Append),
            "last_image" => Some(ContextPolicy::LastImage),
            "fresh" => Some(ContextPolicy::Fresh),
            other => {
                let images = other.strip_prefix("window(")?.strip_suffix(')')?.parse().ok()?;
                (images > 0).then_some(ContextPolicy::Window(images))
            }
        }
    }
}

impl std::fmt::Display for ContextPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ContextPolicy::Append => f.write_str("append"),
            ContextPolicy::LastImage => f.write_str("last_image"),
            ContextPolicy::Window(images) => write!(f, "window({images})"),
            ContextPolicy::Fresh => f.write_str("fresh"),
        }
    }
}
