//! Sessions that share an engine, compared with each of them alone, on real threads.

use std::sync::Arc;
use std::time::Duration;

use furrow_policy::{ModelPolicy, Policy, PolicyError};
use furrow_rollout::{PolicyReply, StateOrigin, Trace};
use furrow_wire::SessionOpening;
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;

use crate::model::fixture::*;

/// Steps of a session: every fourth one continues after its first image has left a window of two.
fn steps(opening: &SessionOpening) -> u32 {
    if opening.ancestry.sample_index == 3 { 3 } else { 2 }
}

/// Acts one session, whose stream is cut at times and whose worker ends under it.
async fn act_interrupted(
    models: watch::Receiver<Arc<ModelPolicy>>,
    opening: SessionOpening,
    seed: u64,
) -> Vec<(PolicyReply, Trace)> {
    let mut random = ChaCha12Rng::seed_from_u64(seed);
    let mut acted = Vec::new();
    let mut session = None;
    while (acted.len() as u32) < steps(&opening) {
        tokio::time::sleep(Duration::from_micros(random.random_range(0..4000))).await;
        let mut open_session = match session.take() {
            Some(session) => session,
            None => {
                let model = models.borrow().clone();
                match open(&model, &opening, &acted).await {
                    Ok(session) => session,
                    Err(PolicyError::Full { .. } | PolicyError::Gone { .. }) => continue,
                    Err(other) => panic!("{other}"),
                }
            }
        };
        match act(&mut *open_session, &opening, acted.len() as u32).await {
            Ok(answer) => acted.push(replied(answer)),
            Err(PolicyError::Gone { .. }) => continue,
            Err(other) => panic!("{other}"),
        }
        if random.random_range(0..8) > 0 {
            session = Some(open_session);
        }
    }
    acted
}

/// The replies without what concerns only the cost.
fn compared(acted: &[(PolicyReply, Trace)]) -> Vec<(&PolicyReply, Option<&furrow_rollout::TokenTrace>)> {
    acted.iter().map(|(reply, trace)| (reply, trace.tokens.as_ref())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_sessions_get_bit_for_bit_what_they_get_alone() {
    let config = config(|_| {});
    let openings: Vec<SessionOpening> = (0..64)
        .map(|index| opening(&config, index / 4, index as u32 % 4, POLICIES[index as usize / 4 % 4]))
        .collect();
    let quiet = model(&config);
    let mut want = Vec::new();
    for opening in &openings {
        want.push(act_steps(&quiet, opening, steps(opening)).await);
    }
    quiet.stop().await.unwrap();

    let seed = 20_261_121;
    let (models, watched) = watch::channel(model(&config));
    let tasks: Vec<_> = (seed..)
        .zip(&openings)
        .map(|(seed, opening)| tokio::spawn(act_interrupted(watched.clone(), opening.clone(), seed)))
        .collect();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let old = models.send_replace(model(&config));
        old.stop().await.unwrap();
    }
    let mut origins = Vec::new();
    for ((task, want), opening) in tasks.into_iter().zip(&want).zip(&openings) {
        let got = task.await.unwrap();
        assert_eq!(
            compared(&got),
            compared(want),
            "seed {seed}, {} {}",
            opening.session.context,
            opening.ancestry.trajectory_id
        );
        origins.extend(got.iter().filter_map(|(_, trace)| trace.engine.state_origin));
    }
    for origin in [StateOrigin::Forked, StateOrigin::Rebuilt, StateOrigin::Resident] {
        assert!(origins.contains(&origin), "seed {seed}: no reply has the origin {origin:?}");
    }
    models.borrow().stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_sessions_are_offloaded_and_restored_bit_for_bit() {
    let config = config(|_| {});
    let model = model(&config);
    for keep in [POLICIES[0], POLICIES[1]] {
        let openings: Vec<SessionOpening> =
            (0..8).map(|index| opening(&config, 100 + index, 0, keep)).collect();
        let mut want = Vec::new();
        for opening in &openings {
            want.push(act_steps(&model, opening, 3).await);
        }
        let mut sessions = Vec::new();
        for opening in &openings {
            sessions.push(open(&model, opening, &[]).await.unwrap());
        }
        let mut origins = Vec::new();
        for step in 0..3 {
            for ((opening, session), want) in openings.iter().zip(&mut sessions).zip(&want) {
                let got = replied(act(&mut **session, opening, step).await.unwrap());
                assert_eq!(
                    compared(std::slice::from_ref(&got)),
                    compared(&want[step as usize..=step as usize]),
                    "{keep} step {step}"
                );
                origins.extend(got.1.engine.state_origin);
            }
        }
        assert!(origins.contains(&StateOrigin::Offloaded), "{keep}: eight sessions on six slots");
    }
    model.stop().await.unwrap();
}
