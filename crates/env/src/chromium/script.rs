//! Scripts in a page: the suite's own run in the page's world, the worker's in an isolated world
//! that the page cannot see.

use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::page::{CreateIsolatedWorldParams, FrameId};
use chromiumoxide::cdp::js_protocol::runtime::{EvaluateParams, ExecutionContextId};
use serde_json::Value;

use super::tab::{BrowserTab, WORLD};
use crate::environment::EnvironmentError;

/// Largest accepted result: a probe returns a line, not a document.
const RESULT_BYTES_MAX: usize = 256 << 10;

/// Evaluates an expression, waits for its promise, and returns its value.
pub(super) async fn evaluate_in_page(
    tab: &BrowserTab,
    expression: &str,
    deadline: Duration,
    what: &'static str,
) -> Result<Value, EnvironmentError> {
    evaluate(tab, expression, None, deadline, what, RESULT_BYTES_MAX).await
}

/// The same in an isolated world, which shares only the document.
pub(super) async fn evaluate_isolated(
    tab: &BrowserTab,
    expression: &str,
    deadline: Duration,
    what: &'static str,
) -> Result<Value, EnvironmentError> {
    let world = isolated_world(tab, deadline, what).await?;
    evaluate(tab, expression, Some(&world), deadline, what, RESULT_BYTES_MAX).await
}

/// An isolated world in the current document.
#[derive(Debug)]
pub(super) struct IsolatedWorld(ExecutionContextId);

/// Opens an isolated world, so that scripts in it can be sent together with other commands.
pub(super) async fn isolated_world(
    tab: &BrowserTab,
    deadline: Duration,
    what: &'static str,
) -> Result<IsolatedWorld, EnvironmentError> {
    // The main frame of a page has the id of its target.
    let frame = FrameId::new(tab.target().inner().clone());
    let mut world = CreateIsolatedWorldParams::new(frame);
    world.world_name = Some(WORLD.into());
    Ok(IsolatedWorld(tab.call(world, deadline, what).await?.execution_context_id))
}

/// Evaluates an expression whose result has at most `bytes_max` bytes, in the page's world or in an
/// isolated one.
///
/// The page may have replaced the functions that build the answer, and its texts may be cut inside
/// a character or have any length. Therefore the answer is one string whose length was checked
/// first: a message that cannot be parsed is never answered, and a long one delays every page of
/// the browser.
pub(super) async fn evaluate(
    tab: &BrowserTab,
    expression: &str,
    world: Option<&IsolatedWorld>,
    deadline: Duration,
    what: &'static str,
    bytes_max: usize,
) -> Result<Value, EnvironmentError> {
    let failed = |why: &str| {
        EnvironmentError::Failed(format!("{what}: {}", why.chars().take(300).collect::<String>()))
    };
    match try_evaluate(tab, expression, world, deadline, what, bytes_max).await? {
        Ok(value) => Ok(value),
        Err(ScriptFailure::Threw(why)) => Err(failed(&why)),
        Err(ScriptFailure::TooLarge(size)) => {
            Err(failed(&format!("the result has {size} bytes, at most {bytes_max} are allowed")))
        }
    }
}

/// Why a page that answered has no value for an expression.
#[derive(Debug)]
pub(super) enum ScriptFailure {
    /// It threw, or its value is not JSON.
    Threw(String),
    /// Its value has this many bytes.
    TooLarge(String),
}

/// The same as [`evaluate`], with what went wrong by its kind.
pub(super) async fn try_evaluate(
    tab: &BrowserTab,
    expression: &str,
    world: Option<&IsolatedWorld>,
    deadline: Duration,
    what: &'static str,
    bytes_max: usize,
) -> Result<Result<Value, ScriptFailure>, EnvironmentError> {
    let mut evaluate =
        EvaluateParams::new(format!("({ENCODE_RESULT})(async () => ({expression}\n), {bytes_max})"));
    evaluate.context_id = world.map(|world| world.0);
    evaluate.await_promise = Some(true);
    evaluate.return_by_value = Some(true);
    let answer = tab.call(evaluate, deadline, what).await?;
    if let Some(thrown) = answer.exception_details {
        let why = thrown.exception.and_then(|error| error.description).unwrap_or(thrown.text);
        return Ok(Err(ScriptFailure::Threw(why)));
    }
    let encoded = answer.result.value.as_ref().and_then(Value::as_str).unwrap_or_default();
    Ok(match encoded.split_at_checked(1) {
        Some(("v", json)) if json.len() <= bytes_max => {
            serde_json::from_str(json).map_err(|error| ScriptFailure::Threw(format!("not JSON: {error}")))
        }
        Some(("v", json)) => Err(ScriptFailure::TooLarge(json.len().to_string())),
        Some(("s", size)) => Err(ScriptFailure::TooLarge(size.to_owned())),
        Some(("e", thrown_text)) => Err(ScriptFailure::Threw(thrown_text.to_owned())),
        _ => Err(ScriptFailure::Threw("the page returned an unexpected value".to_owned())),
    })
}

/// Returns `v` and the value as JSON, `s` and its size if that is too large, or `e` and the thrown
/// error. Unpaired surrogates become U+FFFD.
const ENCODE_RESULT: &str = r"async (evaluate, sizeMax) => {
  const wellFormed = (key, value) => typeof value === 'string' ? value.toWellFormed() : value;
  const encode = (text) => text.length > sizeMax ? 's' + text.length : 'v' + text;
  try {
    return encode('' + (JSON.stringify(await evaluate(), wellFormed) ?? null));
  } catch (error) {
    let message = '', cut = '';
    try { message = '' + error; } catch {}
    for (let at = 0; at < 300 && at < message.length; at++) cut += message[at];
    return 'e' + cut.toWellFormed();
  }
}";
