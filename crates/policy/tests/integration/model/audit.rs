//! The drift audit: on the `cpu` backend the prefill path reproduces the recorded log-probs to the
//! last bit, and the audit changes no sampled token.

use furrow_policy::Policy;
use furrow_rollout::{PolicyReply, Trace};

use crate::model::fixture::*;

/// Three steps of one session of each context policy.
async fn acted(share: f64) -> Vec<Vec<(PolicyReply, Trace)>> {
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
        // A session rebuilt on another worker is audited as well.
        let mut rebuilt = open(&model, &opening, &steps[..2]).await.unwrap();
        let last = replied(act(&mut *rebuilt, &opening, 2).await.unwrap());
        assert_eq!(last.1.tokens, steps[2].1.tokens, "{keep}");
        assert_eq!(last.1.rescored, steps[2].1.rescored, "{keep}");
        all.push(steps);
    }
    model.stop().await.unwrap();
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_prefill_path_gives_what_was_recorded() {
    let all = acted(1.0).await;
    let some = acted(0.4).await;
    let none = acted(0.0).await;
    let mut counts = (0, 0);
    for ((all, some), none) in all.iter().flatten().zip(some.iter().flatten()).zip(none.iter().flatten()) {
        assert_eq!(all.1.tokens, none.1.tokens, "an audit changes no sampled token");
        assert_eq!(none.1.rescored, []);
        let logprobs = all.1.tokens.as_ref().unwrap().logprobs.clone().unwrap();
        let sampled: Vec<(u32, u32)> = (0..)
            .zip(&logprobs)
            .filter_map(|(token, logprob)| Some((token, logprob.as_ref()?.to_bits())))
            .collect();
        let scored: Vec<(u32, u32)> =
            all.1.rescored.iter().map(|scored| (scored.token, scored.logprob.to_bits())).collect();
        assert_eq!(scored, sampled, "every sampled token, to the last bit");
        assert!(some.1.rescored.iter().all(|scored| all.1.rescored.contains(scored)));
        counts = (counts.0 + sampled.len(), counts.1 + some.1.rescored.len());
    }
    assert!(counts.1 > counts.0 / 8 && counts.1 < counts.0 * 3 / 4, "{counts:?}");
}
