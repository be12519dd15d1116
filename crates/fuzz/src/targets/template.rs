//! `furrow_template.json` of a checkpoint.

use furrow_model::template::{ChatContent, ChatTemplate, TemplateFile};
use serde_json::json;

use crate::{FuzzTarget, Seed, accept, models};

pub(super) const TEMPLATE: FuzzTarget = FuzzTarget {
    name: "template",
    run,
    repair: None,
    memory_max: |_| 64 << 20,
    bytes_max: 4 << 10,
    catches_panics: false,
    seeds,
};

/// A chat with one text and one image is the turns of a session.
fn run(input: &[u8]) {
    let Ok(file) = serde_json::from_slice::<TemplateFile>(input) else { return };
    let Ok(template) = ChatTemplate::check(&file, models::tokenizer(), models::config()) else { return };
    accept();
    let first = template.first_turn("Be brief. <s>", "Click {image} well.");
    let later = template.later_turn("clicked </s>");
    let image = template.image(3).unwrap_or_default();
    if !template.has_chat() {
        return;
    }
    let content = [ChatContent::Text("Click {image} well."), ChatContent::Image { rows: 3 }];
    let chat = template.render_first("Be brief. <s>", &content);
    assert!(chat.images.iter().all(|at| (*at as usize) < chat.ids.len()), "images are in the chat");
    let turns = [&first.before_image[..], &image, &first.after_image].concat();
    if let Some(text) = file.first_turn.find("{task}").zip(file.first_turn.find("{image}"))
        && text.0 < text.1
    {
        assert_eq!(chat.ids, turns, "a chat is a session's first turn");
    }
    let content = [ChatContent::Text("clicked </s>"), ChatContent::Image { rows: 3 }];
    let chat = template.render_later(&content);
    let turns = [&later.before_image[..], &image, &later.after_image].concat();
    if let Some(text) = file.later_turn.find("{outcome}").zip(file.later_turn.find("{image}"))
        && text.0 < text.1
    {
        assert_eq!(chat.ids, turns, "a chat is a session's later turn");
    }
}

fn seeds() -> Vec<Seed> {
    let written = TemplateFile::default();
    let other = TemplateFile {
        first_turn: "<s>{instructions}cl{image}ick {task}</s>".into(),
        later_turn: "</s>{image}\n{outcome}<think>".into(),
        marks: vec!["<s>".into()],
        stop: "</s>".into(),
        image_open: Some("<img>".into()),
        image_close: Some("</img>".into()),
    };
    vec![Seed::new("default", json!(written).to_string()), Seed::new("other", json!(other).to_string())]
}
