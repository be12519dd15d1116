//! What a policy worker is told when a session opens. It comes from the job, through the assignment, so that one place decides.

/// How the policy of a session speaks, samples and remembers.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionSpec {
    /// Action language.
    pub grammar: Grammar,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// What is kept between steps.
    pub context: ContextPolicy,
    /// Instructions put before the task.
    pub instructions: String,
}

/// Action language and what the job switches on beyond it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grammar {
    /// Such as `holo_navigation`.
    pub name: String,
    /// Actions beyond the grammar's own, sorted, without repetition.
    pub extra: Vec<ExtraAction>,
}

/// An action a job may switch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExtraAction {
    /// `drag` with x, y, to_x, to_y.
    Drag,
    /// `select_tab` with index.
    SelectTab,
    /// `press_key` with key.
    PressKey,
    /// `write` with content and press_enter, typed where the focus is.
    Write,
}

/// How tokens are drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Nucleus; 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 0 keeps all.
    pub min_p: f32,
    /// Most tokens of one response.
    pub max_tokens: u32,
    /// Seed of the job; a session's stream is derived from it, its group and its sample index.
    pub seed: u64,
}

/// What a session keeps between steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextPolicy {
    /// Everything.
    Append,
    /// Text of all turns and the newest screenshot.
    LastImage,
    /// The newest k screenshots.
    Window(u32),
    /// Nothing; a new prompt each step.
    Fresh,
}

impl ExtraAction {
    /// All of them.
    pub const ALL: [ExtraAction; 4] =
        [ExtraAction::Drag, ExtraAction::SelectTab, ExtraAction::PressKey, ExtraAction::Write];

    /// The word in grammars, job files and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            ExtraAction::Drag => "drag",
            ExtraAction::SelectTab => "select_tab",
            ExtraAction::PressKey => "press_key",
            ExtraAction::Write => "write",
        }
    }

    /// Reads the word back.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|extra| extra.as_str() == word)
    }
}

impl Default for Sampling {
    /// The RL default: the whole distribution at temperature 1.
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, max_tokens: 512, seed: 0 }
    }
}

impl ContextPolicy {
    /// Reads what `Display` writes: `append`, `last_image`, `window(k)` with k of at least 1, `fresh`.
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
