//! Types a secret into the field that has the focus, if its page may have it.
//!
//! The text is inserted by a script in the farm's own world of the page and not key by key: the
//! script's document cannot be exchanged for another one between the check and the input, as a page
//! that leaves would do with the rest of the keys.

use serde_json::Value;
use zeroize::Zeroizing;

use super::script::{self, IsolatedWorld};
use super::tab::BrowserTab;
use crate::environment::EnvironmentError;
use crate::secrets::SecretText;

const SCRIPT: &str = include_str!("fill.js");

/// The script returns names of hosts.
const RESULT_BYTES_MAX: usize = 64 << 10;

const WHAT: &str = "typing a secret";

/// Types the text; the inner error says why nothing was typed.
pub(super) async fn fill(
    tab: &BrowserTab,
    text: &SecretText<'_>,
) -> Result<Result<(), String>, EnvironmentError> {
    match fill_document(tab, text).await {
        // The world of a document ends with it.
        Err(EnvironmentError::Failed(_)) => {
            Ok(Err("the page was left meanwhile; look where it is now".into()))
        }
        filled => filled,
    }
}

async fn fill_document(
    tab: &BrowserTab,
    text: &SecretText<'_>,
) -> Result<Result<(), String>, EnvironmentError> {
    let world = script::isolated_world(tab, tab.deadlines.input, WHAT).await?;
    // Before the document is known to be the right one, it does not get the text.
    if let Err(why) = focus(tab, &world, "null").await?.check(text) {
        return Ok(Err(why));
    }
    let typed = Zeroizing::new(Value::from(text.text()).to_string());
    Ok(focus(tab, &world, &typed).await?.check(text))
}

/// Where the focus is.
struct Focus {
    state: String,
    /// Hosts of the page and of the frames around the focused element.
    hosts: Vec<String>,
}

async fn focus(tab: &BrowserTab, world: &IsolatedWorld, text: &str) -> Result<Focus, EnvironmentError> {
    let call = format!("({SCRIPT})({text})");
    let found =
        script::evaluate(tab, &call, Some(world), tab.deadlines.input, WHAT, RESULT_BYTES_MAX).await?;
    let mut texts =
        found.as_array().into_iter().flatten().map(|text| text.as_str().unwrap_or_default().to_owned());
    Ok(Focus { state: texts.next().unwrap_or_default(), hosts: texts.collect() })
}

impl Focus {
    fn check(&self, text: &SecretText<'_>) -> Result<(), String> {
        if let Some(why) = self.hosts.iter().find_map(|host| text.refusal(host)) {
            return Err(why);
        }
        match self.state.as_str() {
            "field" | "typed" => Ok(()),
            "foreign" => Err("the focus is in a frame of another site; nothing was typed".into()),
            "other" => Err("the focused field takes no text such as a secret; nothing was typed".into()),
            "short" => Err("the focused field is too short for the secret; nothing was typed".into()),
            "refused" => Err("the focused field did not take the text".into()),
            _ => Err("no text field has the focus, so nothing was typed; click the field first".into()),
        }
    }
}
