//! How replies are constrained, as a job sets it.

/// Most ids of each free text. A text that reaches its cap is closed, and the reply ends as
/// `grammar_cap`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextCaps {
    pub note: u32,
    pub thought: u32,
    /// `content` of an answer or of written text.
    pub content: u32,
    pub element: u32,
    /// `url`, after http:// or https://.
    pub url: u32,
    pub key: u32,
}

/// How replies are constrained to a grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConstraintRules {
    /// Most ids of each free text.
    pub caps: TextCaps,
    /// Ids of every reply, its stop id included; `None`: as many as its texts take. With a number,
    /// `thought` has no cap of its own: it fills what the longest action leaves, and white space
    /// before the closing braces fills what a shorter one leaves. This is a workload for
    /// measurements.
    pub exact_tokens: Option<u32>,
    /// Whether actions are allowed that end a trajectory or can end it: an answer, or an address
    /// off the task's list.
    pub endings: bool,
}

impl Default for TextCaps {
    fn default() -> Self {
        Self { note: 64, thought: 96, content: 128, element: 48, url: 128, key: 16 }
    }
}

impl From<TextCaps> for ConstraintRules {
    fn from(caps: TextCaps) -> Self {
        Self { caps, exact_tokens: None, endings: true }
    }
}

impl TextCaps {
    /// The cap of an action's field.
    pub(super) fn of(&self, field: &str) -> u32 {
        match field {
            "element" => self.element,
            "url" => self.url,
            "key" => self.key,
            _ => self.content,
        }
    }
}
