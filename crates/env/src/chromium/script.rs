//! Scripts in a page: the suite's own in the page's world, ours in a world apart that the page cannot see.

use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::page::{CreateIsolatedWorldParams, FrameId};
use chromiumoxide::cdp::js_protocol::runtime::{EvaluateParams, ExecutionContextId};
use serde_json::Value;

use super::tab::Tab;
use crate::stage::StageError;

/// A result larger than this is refused: a probe is a line, not a document.
const RESULT_BYTES_MAX: usize = 256 << 10;

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
    world.world_name = Some("furrow".into());
    Ok(World(tab.call(world, deadline, what).await?.execution_context_id))
}

/// Evaluates an expression whose result has at most so many bytes, in the page's world or in one of our own.
pub(super) async fn evaluate(
    tab: &Tab,
    expression: &str,
    world: Option<&World>,
    deadline: Duration,
    what: &'static str,
    bytes_max: usize,
) -> Result<Value, StageError> {
    let mut evaluate = EvaluateParams::new(expression);
    evaluate.context_id = world.map(|world| world.0);
    evaluate.await_promise = Some(true);
    evaluate.return_by_value = Some(true);
    let answer = tab.call(evaluate, deadline, what).await?;
    if let Some(thrown) = answer.exception_details {
        let said = thrown.exception.and_then(|error| error.description).unwrap_or(thrown.text);
        return Err(StageError::Failed(format!("{what}: {}", said.chars().take(300).collect::<String>())));
    }
    let value = answer.result.value.unwrap_or(Value::Null);
    match serde_json::to_string(&value).map_or(0, |text| text.len()) {
        size if size <= bytes_max => Ok(value),
        size => Err(StageError::Failed(format!(
            "{what}: the result has {size} bytes, at most {bytes_max} are taken"
        ))),
    }
}
