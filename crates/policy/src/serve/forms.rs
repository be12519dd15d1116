//! The forms that a reply may have, from the functions and the format that a request names.

use std::sync::Arc;

use furrow_openai::server::{ApiError, FunctionTool, RequestedSchema, ResponseFormat, ToolChoice, ToolUse};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::errors::{ApiResult, run_blocking, unconstrained};
use super::residents::Sha256Digest;
use crate::constrain::{CallForms, Constraint, Schema};
use crate::model::{ChatEngine, ConstrainedForm};

/// What a reply may be.
#[derive(Debug, Clone)]
pub(super) struct ReplyForms {
    tools: Option<ToolUse>,
    format: ResponseFormat,
}

impl ReplyForms {
    pub(super) fn of(tools: Option<ToolUse>, format: ResponseFormat) -> Self {
        Self { tools, format }
    }

    /// The functions that the instructions describe: all of them, whatever the choice is, so that a
    /// request with another choice continues the same session.
    pub(super) fn functions(&self) -> Vec<FunctionTool> {
        self.tools.iter().flat_map(|tools| tools.functions.clone()).collect()
    }

    /// Hash of those functions.
    pub(super) fn digest(&self) -> Sha256Digest {
        let mut hash = Sha256::new();
        for FunctionTool { name, description, parameters, .. } in
            self.tools.iter().flat_map(|tools| &tools.functions)
        {
            hash.update(json!([name, description, parameters]).to_string());
            hash.update([0]);
        }
        hash.finalize().into()
    }

    /// Names of the functions that the reply may call; `None`: it may call none.
    pub(super) fn callable(&self) -> Option<Arc<[String]>> {
        let ToolUse { functions, choice, .. } = self.tools.as_ref()?;
        let names =
            |functions: &[FunctionTool]| functions.iter().map(|function| function.name.clone()).collect();
        match choice {
            ToolChoice::None => None,
            ToolChoice::Required(Some(index)) => Some(names(&functions[*index..=*index])),
            ToolChoice::Auto | ToolChoice::Required(None) => Some(names(functions)),
        }
    }

    /// The constraint on the reply's tokens.
    pub(super) async fn constraint(
        self,
        chat_engine: &ChatEngine,
        max_tokens: u32,
    ) -> ApiResult<Option<Arc<Constraint>>> {
        let Self { tools, format } = self;
        let is_free = format == ResponseFormat::Text;
        let format_path = match &format {
            ResponseFormat::JsonSchema(RequestedSchema { path, .. }) => path.clone(),
            ResponseFormat::Text | ResponseFormat::JsonObject => "response_format".to_owned(),
        };
        let tools = tools.filter(|tools| match tools.choice {
            ToolChoice::None => false,
            ToolChoice::Auto => !is_free,
            ToolChoice::Required(_) => true,
        });
        let param = if tools.is_some() { "tools".to_owned() } else { format_path };
        let Some(tools) = tools else {
            let checking = move || value_schema(format);
            let Some((source, schema)) = run_blocking(checking).await? else { return Ok(None) };
            let made = chat_engine.constraint(source, ConstrainedForm::Value(schema), max_tokens).await;
            return made.map(Some).map_err(|why| unconstrained(why, &param));
        };
        let (source, calls) = run_blocking(move || call_forms(tools, format)).await?;
        let made = chat_engine.constraint(Some(source), ConstrainedForm::Calls(calls), max_tokens).await;
        made.map(Some).map_err(|why| unconstrained(why, &param))
    }
}

/// The schema of a format and its text, which is `None` for any object; `None` for free text.
fn value_schema(format: ResponseFormat) -> ApiResult<Option<(Option<String>, Schema)>> {
    match format {
        ResponseFormat::Text => Ok(None),
        ResponseFormat::JsonObject => Ok(Some((None, Schema::any_object()))),
        ResponseFormat::JsonSchema(RequestedSchema { schema, path }) => {
            let checked =
                Schema::check(&schema).map_err(|why| ApiError::unsupported(path, why.to_string()))?;
            Ok(Some((Some(schema.to_string()), checked)))
        }
    }
}

/// The calls that a reply must have, or may have instead of a value of the format; and a text that
/// identifies them.
fn call_forms(tools: ToolUse, format: ResponseFormat) -> ApiResult<(String, CallForms)> {
    let ToolUse { functions, choice, parallel } = tools;
    let (chosen, otherwise) = match choice {
        ToolChoice::Required(Some(index)) => (&functions[index..=index], None),
        ToolChoice::Required(None) => (&functions[..], None),
        ToolChoice::Auto | ToolChoice::None => (&functions[..], value_schema(format)?),
    };
    let mut forms = Vec::with_capacity(chosen.len());
    for FunctionTool { name, parameters, path, .. } in chosen {
        let schema = Schema::check(parameters).map_err(|why| ApiError::unsupported(path, why.to_string()))?;
        forms.push((name.clone(), schema));
    }
    let shown: Vec<_> = chosen.iter().map(|function| json!([function.name, function.parameters])).collect();
    let (otherwise_source, otherwise) = match otherwise {
        Some((source, schema)) => (json!([source]), Some(schema)),
        None => (json!(null), None),
    };
    // No schema is a list, so this text is none of a schema.
    let source = json!([shown, parallel, otherwise_source]).to_string();
    Ok((source, CallForms { functions: forms, several: parallel, otherwise }))
}
