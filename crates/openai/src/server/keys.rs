//! The keys of a request: each is taken once, in its right form. Keys that remain are refused by
//! name, or ignored and named.

use serde_json::{Map, Value};

use super::ApiError;

pub(super) type ApiResult<T> = Result<T, ApiError>;

/// Most values of a body. Each takes some 100 bytes once parsed, however short its text is.
pub(super) const PIECES_MAX: usize = 200_000;

/// A key that is accepted in this form and has no effect.
#[derive(Debug, Clone, Copy)]
pub(super) struct IgnoredKey {
    pub name: &'static str,
    pub form: IgnoredForm,
}

/// The form of a key that is ignored. A neutral value asks for what is done anyway, so it is not
/// named as ignored.
#[derive(Debug, Clone, Copy)]
pub(super) enum IgnoredForm {
    Any,
    Text,
    /// A flag, of which `false` asks for nothing.
    Flag,
    Number {
        from: f64,
        to: f64,
        neutral: f64,
    },
    /// A text; these are neutral.
    TextBut(&'static [&'static str]),
}

impl IgnoredForm {
    /// Whether a value is neutral; the error says what the value must be.
    fn is_neutral(self, value: &Value) -> Result<bool, String> {
        match (self, value) {
            (Self::Any, _) | (Self::Text, Value::String(_)) => Ok(false),
            (Self::Flag, Value::Bool(flag)) => Ok(!flag),
            (Self::TextBut(neutral), Value::String(text)) => Ok(neutral.contains(&text.as_str())),
            (Self::Number { from, to, neutral }, value) => {
                let number = value.as_f64().filter(|number| (from..=to).contains(number));
                number.map(|number| number == neutral).ok_or_else(|| format!("a number of {from} to {to}"))
            }
            (Self::Text | Self::TextBut(_), _) => Err("a text".to_owned()),
            (Self::Flag, _) => Err("true or false".to_owned()),
        }
    }
}

/// An object of the request whose keys are removed one by one. Keys that remain at the end are
/// unknown.
pub(super) struct RequestKeys {
    path: String,
    map: Map<String, Value>,
    /// Paths of keys that are ignored, without indices of lists.
    pub ignored: Vec<String>,
}

impl RequestKeys {
    pub(super) fn of_body(body: &[u8]) -> ApiResult<Self> {
        let whole = |message: String| ApiError { param: None, ..ApiError::invalid("", message) };
        if pieces(body) > PIECES_MAX {
            return Err(whole(format!("the body has more than {PIECES_MAX} values; send less")));
        }
        let value: Value =
            serde_json::from_slice(body).map_err(|why| whole(format!("the body is not JSON: {why}")))?;
        match value {
            Value::Object(map) => Ok(Self { path: String::new(), map, ignored: Vec::new() }),
            _ => Err(whole("the body is not a JSON object".to_owned())),
        }
    }

    /// An object within the request.
    pub(super) fn of_part(path: String, value: Value, right: &str) -> ApiResult<Self> {
        match value {
            Value::Object(map) => Ok(Self { path, map, ignored: Vec::new() }),
            _ => Err(ApiError::invalid(path, right.to_owned())),
        }
    }

    /// Copies of these keys, where they are there.
    pub(super) fn copies(&self, names: &[&str]) -> Map<String, Value> {
        let copy = |name: &&str| Some(((*name).to_owned(), self.map.get(*name)?.clone()));
        names.iter().filter_map(copy).collect()
    }

    /// The path of this object.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The path of a key.
    pub(super) fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    pub(super) fn missing(&self, key: &str) -> ApiError {
        ApiError::invalid(self.at(key), format!("{} is missing", self.at(key)))
    }

    pub(super) fn wrong(&self, key: &str, right: &str) -> ApiError {
        ApiError::invalid(self.at(key), format!("{} must be {right}", self.at(key)))
    }

    /// A null counts as missing.
    pub(super) fn take(&mut self, key: &str) -> Option<Value> {
        self.map.remove(key).filter(|value| !value.is_null())
    }

    pub(super) fn text(&mut self, key: &str) -> ApiResult<Option<String>> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(key, "a text")),
        }
    }

    pub(super) fn needed_text(&mut self, key: &str) -> ApiResult<String> {
        self.text(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn flag(&mut self, key: &str) -> ApiResult<Option<bool>> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    pub(super) fn number(&mut self, key: &str, from: f64, to: f64) -> ApiResult<Option<f64>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.as_f64().filter(|number| (from..=to).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(key, &format!("a number of {from:.0} to {to}"))),
        }
    }

    pub(super) fn whole(&mut self, key: &str, from: i64, to: i64) -> ApiResult<Option<i64>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.as_i64().filter(|number| (from..=to).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(key, &format!("a whole number of {from} to {to}"))),
        }
    }

    pub(super) fn object(&mut self, key: &str) -> ApiResult<Option<Self>> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self { path: self.at(key), map, ignored: Vec::new() })),
            Some(_) => Err(self.wrong(key, "an object")),
        }
    }

    pub(super) fn list(&mut self, key: &str) -> ApiResult<Option<Vec<Value>>> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(_) => Err(self.wrong(key, "a list")),
        }
    }

    /// Refuses the remaining keys, except ignored ones in their form, `fixed` ones with their only
    /// value, and those that say nothing: nulls, empty lists and empty objects. Returns the paths
    /// of the keys that are ignored.
    pub(super) fn finish(
        mut self,
        ignored: &[IgnoredKey],
        fixed: &[(&'static str, &'static str)],
    ) -> ApiResult<Vec<String>> {
        for (key, value) in std::mem::take(&mut self.map) {
            if is_empty(&value) {
                continue;
            }
            let at = self.at(cut(&key));
            if let Some(IgnoredKey { name, form }) = ignored.iter().find(|ignored| ignored.name == key) {
                if !form.is_neutral(&value).map_err(|right| self.wrong(name, &right))? {
                    self.ignored.push(without_indices(&at));
                }
                continue;
            }
            match fixed.iter().find(|(name, _)| *name == key) {
                Some((_, only)) if is_same(&value, only) => {}
                Some((_, only)) => {
                    return Err(ApiError::unsupported(&at, format!("{at} may only be {only}")));
                }
                None => return Err(ApiError::unsupported(&at, format!("{at} is not supported"))),
            }
        }
        Ok(self.ignored)
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null()
        || value.as_array().is_some_and(Vec::is_empty)
        || value.as_object().is_some_and(Map::is_empty)
}

/// A path such as `messages[3].name` as `messages.name`.
pub(super) fn without_indices(path: &str) -> String {
    let mut is_index = false;
    let keep = |char: &char| {
        match char {
            '[' => is_index = true,
            ']' => {
                is_index = false;
                return false;
            }
            _ => {}
        }
        !is_index
    };
    path.chars().filter(keep).collect()
}

/// Upper bound of the number of values in a JSON body: it counts opening brackets and separators
/// outside of strings.
fn pieces(body: &[u8]) -> usize {
    let mut count = 0;
    let mut is_text = false;
    let mut is_escaped = false;
    for byte in body {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b',' | b':' | b'[' | b'{' if !is_text => count += 1,
            _ => {}
        }
    }
    count
}

/// Whether a value equals this JSON; numbers are compared by value.
fn is_same(value: &Value, only: &str) -> bool {
    let only: Value = serde_json::from_str(only).unwrap_or_default();
    match (value.as_f64(), only.as_f64()) {
        (Some(value), Some(only)) => value == only,
        _ => *value == only,
    }
}

/// The first characters of a text from outside.
pub(super) fn cut(text: &str) -> &str {
    let end = text.char_indices().nth(40).map_or(text.len(), |(at, _)| at);
    &text[..end]
}
