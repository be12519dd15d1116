//! The drift audit: on the `cpu` backend the prefill path gives what was recorded, to the last bit, and nothing a session draws depends on it.

use furrow_policy::Policy;
use furrow_rollout::{Reply, Trace};

use crate::ground::*;

/// Three steps of one session of each context policy.
async fn acted(share: f64) -> Vec<Vec<(Reply, Trace)>> {
    let config = config(|file| file.audit.share = share);
    let model = model(&config);
    let mut all = Vec::new();
    for (group, keep) in (0..).zip(POLICIES) {
        let opening = opening(&config, group, 0, keep);
        let mut session = open(&model, &opening, &[]).await.unwrap();
        let mut steps = Vec::new();
        for step in 0..3 {
            steps.push(replied(act(&mut *session, &opening, step).await.unwrap()));
        }
        // Rebuilt elsewhere it is audited as well.
        let mut again = open(&model, &opening, &steps[..2]).await.unwrap();
        let last = replied(act(&mut *again, &opening, 2).await.unwrap());
        assert_eq!(last.1.tokens, steps[2].1.tokens, "{keep}");
        assert_eq!(last.1.scored_again, steps[2].1.scored_again, "{keep}");
        all.push(steps);
    }
    model.stop().await;
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_prefill_path_gives_what_was_recorded() {
    let (all, some, none) = (acted(1.0).await, acted(0.4).await, acted(0.0).await);
    let mut counts = (0, 0);
    for ((all, some), none) in all.iter().flatten().zip(some.iter().flatten()).zip(none.iter().flatten()) {
        assert_eq!(all.1.tokens, none.1.tokens, "an audit moves no draw");
        assert_eq!(none.1.scored_again, []);
        let logprobs = all.1.tokens.as_ref().unwrap().logprobs.clone().unwrap();
        let drawn: Vec<(u32, u32)> = (0..)
            .zip(&logprobs)
            .filter_map(|(token, logprob)| Some((token, logprob.as_ref()?.to_bits())))
            .collect();
        let scored: Vec<(u32, u32)> =
            all.1.scored_again.iter().map(|scored| (scored.token, scored.logprob.to_bits())).collect();
        assert_eq!(scored, drawn, "every drawn token, to the last bit");
        assert!(some.1.scored_again.iter().all(|scored| all.1.scored_again.contains(scored)));
        counts = (counts.0 + drawn.len(), counts.1 + some.1.scored_again.len());
    }
    assert!(counts.1 > counts.0 / 8 && counts.1 < counts.0 * 3 / 4, "{counts:?}");
}
