//! Functions that a request offers to the model, whether it must call one, and the calls of earlier
//! replies.

use serde_json::{Map, Value, json};

use super::ApiError;
use super::keys::{ApiResult, IgnoredForm, IgnoredKey, RequestKeys, cut};
use super::tool_call::ToolCall;

/// Functions that the model may call, at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolUse {
    pub functions: Vec<FunctionTool>,
    pub choice: ToolChoice,
    /// Whether one reply may have several calls.
    pub parallel: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct FunctionTool {
    pub name: String,
    pub description: Option<String>,
    /// JSON schema of its arguments, an object.
    pub parameters: Value,
    /// Path of the schema in the request, for errors.
    pub path: String,
}

/// Whether the reply calls a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolChoice {
    None,
    Auto,
    /// It calls one or more; with an index, this one.
    Required(Option<usize>),
}

/// The two forms of tools in the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolForm {
    /// The name is in an object `function`, beside the type.
    Nested,
    Flat,
}

const TOOLS_MAX: usize = 128;
/// Most bytes of all definitions, as JSON.
const TOOLS_BYTES_MAX: usize = 256 << 10;
const NAME_CHARS_MAX: usize = 64;

impl ToolForm {
    /// The object that has the name, and the keys of `outer` are all taken.
    fn named(self, mut outer: RequestKeys) -> ApiResult<RequestKeys> {
        match self {
            Self::Flat => Ok(outer),
            Self::Nested => {
                let inner = outer.object("function")?.ok_or_else(|| outer.missing("function"))?;
                outer.finish(&[], &[])?;
                Ok(inner)
            }
        }
    }
}

impl ToolUse {
    /// Takes `tools`, `tool_choice` and `parallel_tool_calls`; `None` without tools.
    pub(super) fn take(keys: &mut RequestKeys, form: ToolForm) -> ApiResult<Option<Self>> {
        let list = keys.list("tools")?.unwrap_or_default();
        if list.len() > TOOLS_MAX {
            let why = format!("there are {} tools; send at most {TOOLS_MAX}", list.len());
            return Err(ApiError::invalid("tools", why));
        }
        let bytes: usize = list.iter().map(|tool| tool.to_string().len()).sum();
        if bytes > TOOLS_BYTES_MAX {
            let why = format!("the tools have {bytes} bytes; send at most {TOOLS_BYTES_MAX}");
            return Err(ApiError::invalid("tools", why));
        }
        let mut functions: Vec<FunctionTool> = Vec::with_capacity(list.len());
        for (index, tool) in list.into_iter().enumerate() {
            let function = function(keys, index, tool, form)?;
            if functions.iter().any(|other| other.name == function.name) {
                let why = format!("two functions have the name {:?}", function.name);
                return Err(ApiError::invalid(format!("tools[{index}]"), why));
            }
            functions.push(function);
        }
        let choice = choice(keys, &functions, form)?;
        if let ToolChoice::Required(_) = choice {
            // Arguments of a call that is required always match their schema.
            keys.ignored.retain(|path| !path.ends_with(".strict"));
        }
        let parallel = keys.flag("parallel_tool_calls")?;
        if functions.is_empty() {
            if parallel.is_some() {
                keys.ignored.push("parallel_tool_calls".to_owned());
            }
            return Ok(None);
        }
        Ok(Some(Self { functions, choice, parallel: parallel.unwrap_or(true) }))
    }
}

fn function(keys: &mut RequestKeys, index: usize, tool: Value, form: ToolForm) -> ApiResult<FunctionTool> {
    let right = "a tool must be an object with a type";
    let mut outer = RequestKeys::of_part(format!("tools[{index}]"), tool, right)?;
    let kind = outer.needed_text("type")?;
    if kind != "function" {
        let why = format!("tools of type {:?} are not supported; use function", cut(&kind));
        return Err(ApiError::unsupported(outer.at("type"), why));
    }
    let mut named = form.named(outer)?;
    let name = function_name(&mut named)?;
    let description = named.text("description")?;
    let path = named.at("parameters");
    let parameters = match named.take("parameters") {
        None => json!({ "type": "object", "properties": {} }),
        Some(Value::Object(schema)) => Value::Object(schema),
        Some(_) => return Err(named.wrong("parameters", "a JSON schema of an object")),
    };
    let strict = IgnoredKey { name: "strict", form: IgnoredForm::Flag };
    keys.ignored.extend(named.finish(&[strict], &[])?);
    Ok(FunctionTool { name, description, parameters, path })
}

pub(super) fn function_name(keys: &mut RequestKeys) -> ApiResult<String> {
    let name = keys.needed_text("name")?;
    let is_right = (1..=NAME_CHARS_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
    if is_right {
        return Ok(name);
    }
    Err(keys.wrong("name", &format!("1 to {NAME_CHARS_MAX} letters, digits and _ - .")))
}

fn choice(keys: &mut RequestKeys, functions: &[FunctionTool], form: ToolForm) -> ApiResult<ToolChoice> {
    const RIGHT: &str = "none, auto, required or an object that names a function";
    let none_offered =
        || ApiError::invalid("tool_choice", "tool_choice asks for a call, and there are no tools");
    match keys.take("tool_choice") {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(text)) => match text.as_str() {
            "none" => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" if functions.is_empty() => Err(none_offered()),
            "required" => Ok(ToolChoice::Required(None)),
            _ => Err(keys.wrong("tool_choice", RIGHT)),
        },
        Some(Value::Object(map)) => {
            let mut outer = RequestKeys::of_part("tool_choice".to_owned(), Value::Object(map), RIGHT)?;
            let kind = outer.needed_text("type")?;
            if kind != "function" {
                let why = format!("tool_choice of type {:?} is not supported; use function", cut(&kind));
                return Err(ApiError::unsupported("tool_choice.type", why));
            }
            let mut named = form.named(outer)?;
            let path = named.at("name");
            let name = function_name(&mut named)?;
            named.finish(&[], &[])?;
            match functions.iter().position(|function| function.name == name) {
                Some(index) => Ok(ToolChoice::Required(Some(index))),
                None => Err(ApiError::invalid(path, format!("no tool has the name {name:?}"))),
            }
        }
        Some(_) => Err(keys.wrong("tool_choice", RIGHT)),
    }
}

/// The calls of an earlier reply.
pub(super) fn calls(keys: &mut RequestKeys) -> ApiResult<Vec<ToolCall>> {
    let list = keys.list("tool_calls")?.unwrap_or_default();
    if list.len() > TOOLS_MAX {
        let why = format!("there are {} calls in a message; send at most {TOOLS_MAX}", list.len());
        return Err(ApiError::invalid(keys.at("tool_calls"), why));
    }
    let mut calls = Vec::with_capacity(list.len());
    for (index, call) in list.into_iter().enumerate() {
        let path = keys.at(&format!("tool_calls[{index}]"));
        let mut outer = RequestKeys::of_part(path, call, "a call must be an object with an id")?;
        let id = outer.needed_text("id")?;
        let kind = outer.text("type")?.unwrap_or_else(|| "function".to_owned());
        if kind != "function" {
            let why = format!("calls of type {:?} are not supported; use function", cut(&kind));
            return Err(ApiError::unsupported(outer.at("type"), why));
        }
        // The position within a stream, which some clients send back.
        outer.take("index");
        let mut named = ToolForm::Nested.named(outer)?;
        calls.push(call_of(id, &mut named)?);
        named.finish(&[], &[])?;
    }
    Ok(calls)
}

/// Takes the name and arguments of a call.
pub(super) fn call_of(id: String, keys: &mut RequestKeys) -> ApiResult<ToolCall> {
    let name = function_name(keys)?;
    // The official client adds what it read from them.
    keys.take("parsed_arguments");
    let arguments = keys.text("arguments")?.unwrap_or_default();
    // Some servers send no text for no arguments.
    if arguments.trim().is_empty() {
        return Ok(ToolCall { id, name, arguments: "{}".to_owned() });
    }
    match serde_json::from_str::<Map<String, Value>>(&arguments) {
        Ok(_) => Ok(ToolCall { id, name, arguments }),
        Err(_) => Err(keys.wrong("arguments", "a JSON object as text")),
    }
}
