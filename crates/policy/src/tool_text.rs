//! The text form of functions, their calls and results. Layouts of checkpoints have no field for
//! them, so they are text in the instructions, in replies and in what the user says.

use furrow_openai::server::{FunctionTool, MessagePart, ToolCall};
use serde_json::json;

pub(crate) const CALL_OPEN: &str = "<tool_call>";
pub(crate) const CALL_CLOSE: &str = "</tool_call>";
/// Text between two calls of a reply, and between its content and the first.
pub(crate) const BETWEEN_CALLS: &str = "\n";

/// A call up to its arguments.
pub(crate) fn call_head(name: &str) -> String {
    format!("{CALL_OPEN}{{\"name\":{},\"arguments\":", json!(name))
}

/// A call after its arguments.
pub(crate) fn call_tail() -> String {
    format!("}}{CALL_CLOSE}")
}

/// The instructions of a chat with these functions.
pub(crate) fn with_functions(instructions: &str, functions: &[FunctionTool]) -> String {
    let line = |function: &FunctionTool| {
        let FunctionTool { name, description, parameters, .. } = function;
        match description {
            Some(description) => {
                json!({ "name": name, "description": description, "parameters": parameters }).to_string()
            }
            None => json!({ "name": name, "parameters": parameters }).to_string(),
        }
    };
    let lines: Vec<String> = functions.iter().map(line).collect();
    let gap = if instructions.is_empty() { "" } else { "\n\n" };
    format!(
        "{instructions}{gap}You can call these functions, one in each line:\n{}\n\
         Call a function by writing {CALL_OPEN}{{\"name\":\"NAME\",\"arguments\":{{…}}}}{CALL_CLOSE}, \
         with arguments that match its parameters. \
         What it returns follows as <tool_response>…</tool_response>.",
        lines.join("\n")
    )
}

/// The text of a part that is not an image, which has none.
pub(crate) fn part_text(part: &MessagePart) -> String {
    match part {
        MessagePart::Text(text) => text.clone(),
        MessagePart::Image(_) => String::new(),
        MessagePart::Call(ToolCall { name, arguments, .. }) => {
            [&call_head(name), arguments.as_str(), &call_tail()].concat()
        }
        MessagePart::CallResult(text) => format!("<tool_response>{text}</tool_response>"),
    }
}

/// The texts of a message, its calls included, as a reply has them.
pub(crate) fn message_text(parts: &[MessagePart]) -> String {
    let mut text = String::new();
    for part in parts {
        if matches!(part, MessagePart::Call(_)) && !text.is_empty() {
            text.push_str(BETWEEN_CALLS);
        }
        text.push_str(&part_text(part));
    }
    text
}
