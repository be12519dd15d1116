//! The form of a reply: text, any JSON object, or JSON of a schema.

use serde_json::Value;

use super::ApiError;
use super::keys::{ApiResult, IgnoredForm, IgnoredKey, RequestKeys, cut};

/// The form of a reply.
#[derive(Debug, Clone, PartialEq)]
pub enum ResponseFormat {
    Text,
    JsonObject,
    /// JSON that matches this schema.
    JsonSchema(RequestedSchema),
}

#[derive(Debug, Clone, PartialEq)]
pub struct RequestedSchema {
    pub schema: Value,
    /// Path of the schema in the request, for errors.
    pub path: String,
}

/// Keys beside a schema that do not change the reply: every reply matches, and its name and
/// description are not shown to the model.
const BESIDE: [IgnoredKey; 3] = [
    IgnoredKey { name: "name", form: IgnoredForm::Any },
    IgnoredKey { name: "description", form: IgnoredForm::Any },
    IgnoredKey { name: "strict", form: IgnoredForm::Any },
];

impl ResponseFormat {
    pub(super) fn take(keys: &mut RequestKeys) -> ApiResult<Self> {
        match keys.object("response_format")? {
            None => Ok(Self::Text),
            Some(requested) => Self::of(requested, true),
        }
    }

    /// Takes `text.format`, where the schema is beside the type.
    pub(super) fn take_flat(keys: &mut RequestKeys) -> ApiResult<Self> {
        match keys.object("format")? {
            None => Ok(Self::Text),
            Some(requested) => Self::of(requested, false),
        }
    }

    fn of(mut requested: RequestKeys, is_nested: bool) -> ApiResult<Self> {
        let kind = requested.needed_text("type")?;
        match kind.as_str() {
            "text" => requested.finish(&[], &[]).map(|_| Self::Text),
            "json_object" => requested.finish(&[], &[]).map(|_| Self::JsonObject),
            "json_schema" if is_nested => {
                let named =
                    requested.object("json_schema")?.ok_or_else(|| requested.missing("json_schema"))?;
                requested.finish(&[], &[])?;
                Self::schema(named)
            }
            "json_schema" => Self::schema(requested),
            other => {
                let at = requested.at("type");
                let why = format!("{at} is {:?}; use text, json_object or json_schema", cut(other));
                Err(ApiError::invalid(at, why))
            }
        }
    }

    fn schema(mut named: RequestKeys) -> ApiResult<Self> {
        let path = named.at("schema");
        let schema = named.take("schema").ok_or_else(|| named.missing("schema"))?;
        named.finish(&BESIDE, &[])?;
        Ok(Self::JsonSchema(RequestedSchema { schema, path }))
    }
}
