//! Applies a task's scorer to evidence, as the coordinator does when a trajectory ends.
//!
//! `cargo run --release --example score_evidence`
#![expect(clippy::print_stdout, reason = "an example prints what it finds")]

use std::error::Error;

use furrow_rollout::{EndKind, Evidence};
use furrow_tasks::{EndFacts, Scorer};

/// A task's line in its file. Only the key `score` is read here.
const TASK: &str = r#"{
    "task_id": "hats-1",
    "score": {
        "kind": "step_penalty", "per_step": 0.1, "free_steps": 3,
        "of": {"kind": "all", "of": [
            {"kind": "answer", "match": "number", "value": 12.5, "unit": "$"},
            {"kind": "url", "host": "shop.test"}
        ]}
    }
}"#;

fn main() -> Result<(), Box<dyn Error>> {
    let scorer = Scorer::of_task_json(TASK)?;
    let ended = |end, steps| EndFacts { end, steps, max_steps: 20 };
    let answered = |answer: &str, url: &str| Evidence {
        answer: Some(answer.to_owned()),
        url: Some(url.to_owned()),
        ..Evidence::default()
    };
    let cases = [
        (
            "right, in three steps",
            answered("It is $12.50.", "http://shop.test/red"),
            ended(EndKind::Answered, 3),
        ),
        ("right, in six steps", answered("$12.50", "http://shop.test/red"), ended(EndKind::Answered, 6)),
        ("two prices named", answered("$12.50 or $14", "http://shop.test/red"), ended(EndKind::Answered, 3)),
        ("on another site", answered("$12.50", "http://news.test/"), ended(EndKind::Answered, 3)),
        ("the browser died", answered("$12.50", "http://shop.test/red"), ended(EndKind::BrowserDead, 3)),
    ];
    for (case, evidence, facts) in &cases {
        match scorer.score(evidence, facts) {
            Ok(score) => println!("{case:24} {:.2}  {}", score.reward.unwrap_or_default(), score.rationale),
            // Never a 0: a trajectory without a verdict is tried again.
            Err(error) => println!("{case:24}  --   {error}"),
        }
    }
    Ok(())
}
