//! A call of a function, in an earlier reply or in a new one.

/// A function's call in a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Name of the call, to which its result refers.
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// The arguments, a JSON object as text.
    pub arguments: String,
}
