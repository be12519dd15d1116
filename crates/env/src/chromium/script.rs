//! Scripts in a page: the suite's own in the page's world, ours in a world apart that the page cannot see.

use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::page::{CreateIsolatedWorldParams, FrameId};
use chromiumoxide::cdp::js_protocol::runtime::{EvaluateParams, ExecutionContextId};
use serde_json::Value;

use super::tab::Tab;
use crate::stage::StageError;

/// A result larger than this is refused: a probe is a line, not a document.
const RESULT_BYTES_MAX: usize = 256 << 10;

/// Name of our own world in each document; the browser knows it by this and makes it once.
pub(super) const WORLD: &str = "furrow";

/// Evaluates an expression, waits for its promise, and returns its value.
pub(super) async fn in_page(
    tab: &Tab,
    expression: &str,
    deadline: Duration,
    what: &'static str,
) -> Result<Value, StageError> {
    evaluate(tab, expression, None, deadline, what, RESULT_BYTES_MAX).await
}

/// The same in a world of our own: it shares the document and nothing else.
pub(super) async fn apart(
    tab: &Tab,
    expression: &str,
    deadline: Duration,
    what: &'static str,
) -> Result<Value, StageError> {
    let world = world(tab, deadline, what).await?;
    evaluate(tab, expression, Some(&world), deadline, what, RESULT_BYTES_MAX).await
}

/// A world of our own in the document that is there now.
#[derive(Debug)]
pub(super) struct World(ExecutionContextId);

/// Opens one, so that what is asked in it can be sent together with something else.
pub(super) async fn world(tab: &Tab, deadline: Duration, what: &'static str) -> Result<World, StageError> {
    // The main frame of a page bears the id of its target.
    let frame = FrameId::new(tab.target().inner().clone());
    let mut world = CreateIsolatedWorldParams::new(frame);
    world.world_name = Some(WORLD.into());
    Ok(World(tab.call(world, deadline, what).await?.execution_context_id))
}

/// Evaluates an expression whose result has at most so many bytes, in the page's world or in one of our own.
///
/// The page may have replaced whatever the answer is made with, and its texts may be cut inside a character or have any length. What travels is
/// therefore one string that was measured first: a message that cannot be read is answered by nobody, and a long one keeps everybody waiting.
pub(super) async fn evaluate(
    tab: &Tab,
    expression: &str,
    world: Option<&World>,
    deadline: Duration,
    what: &'static str,
    bytes_max: usize,
) -> Result<Value, StageError> {
    let mut evaluate = EvaluateParams::new(format!("({TELL})(async () => ({expression}\n), {bytes_max})"));
    evaluate.context_id = world.map(|world| world.0);
    evaluate.await_promise = Some(true);
    evaluate.return_by_value = Some(true);
    let answer = tab.call(evaluate, deadline, what).await?;
    let failed =
        |why: &str| StageError::Failed(format!("{what}: {}", why.chars().take(300).collect::<String>()));
    if let Some(thrown) = answer.exception_details {
        return Err(failed(&thrown.exception.and_then(|error| error.description).unwrap_or(thrown.text)));
    }
    let told = answer.result.value.as_ref().and_then(Value::as_str).unwrap_or_default();
    let size = match told.split_at_checked(1) {
        Some(("v", json)) if json.len() <= bytes_max => {
            return serde_json::from_str(json).map_err(|error| failed(&format!("no JSON: {error}")));
        }
        Some(("v", json)) => json.len().to_string(),
        Some(("s", size)) => size.to_owned(),
        Some(("e", said)) => return Err(failed(said)),
        _ => return Err(failed("the page told something else than was asked")),
    };
    Err(failed(&format!("the result has {size} bytes, at most {bytes_max} are taken")))
}

/// `v` and the value as JSON, `s` and its size if that is too large, or `e` and what was thrown. Halves of characters become U+FFFD.
const TELL: &str = r"async (ask, most) => {
  const whole = (key, value) => typeof value === 'string' ? value.toWellFormed() : value;
  const told = (text) => text.length > most ? 's' + text.length : 'v' + text;
  try {
    return told('' + (JSON.stringify(await ask(), whole) ?? null));
  } catch (error) {
    let said = '', cut = '';
    try { said = '' + error; } catch {}
    for (let at = 0; at < 300 && at < said.length; at++) cut += said[at];
    return 'e' + cut.toWellFormed();
  }
}";
