//! Fixtures: a checkpoint, sessions of it, and pages.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use furrow_model::init::{InitSpec, ModelSize, StoredType, init};
use furrow_policy::{
    EngineFile, ModelPolicy, Policy, PolicyConfig, PolicyError, PolicyFile, PolicyInput, PolicyOutput,
    Session,
};
use furrow_rollout::*;
use furrow_wire::{PastStep, SessionOpening};

/// The checkpoint of all tests, written once.
pub(super) fn checkpoint() -> &'static Path {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    let write = || {
        let dir = tempfile::tempdir().unwrap();
        let what = InitSpec {
            size: ModelSize::Tiny,
            seed: 7,
            dtype: StoredType::Float32,
            shard_bytes_max: u64::MAX,
        };
        init(&dir.path().join("tiny"), &what).unwrap();
        dir
    };
    static PATH: OnceLock<std::path::PathBuf> = OnceLock::new();
    PATH.get_or_init(|| DIR.get_or_init(write).path().join("tiny"))
}

/// A job with little capacity, so that sessions compete for it.
pub(super) fn config(change: impl FnOnce(&mut PolicyFile)) -> PolicyConfig {
    let mut file = PolicyFile {
        kind: "model".into(),
        checkpoint: checkpoint().to_owned(),
        instructions: "Press what the task says.".into(),
        engine: EngineFile {
            threads: 2,
            state_slots: 6,
            snapshot_slots: 3,
            context_tokens_max: 768,
            kv_tokens: 4096,
            prefill_chunk: 48,
            prefill_tokens: 96,
            feature_bytes: 1 << 20,
            offload_bytes: 512 << 20,
            ..EngineFile::default()
        },
        ..PolicyFile::default()
    };
    file.sampling.max_tokens = 4;
    change(&mut file);
    file.check().unwrap()
}

pub(super) fn model(config: &PolicyConfig) -> Arc<ModelPolicy> {
    Arc::new(ModelPolicy::open(config.model.as_ref().unwrap(), &config.session).unwrap())
}

pub(super) fn opening(
    config: &PolicyConfig,
    group: u64,
    sample_index: u32,
    keep: ContextPolicy,
) -> SessionOpening {
    let run_id = Id::new("r").unwrap();
    let group_id = Id::nth(&run_id, group);
    let trajectory_id = Id::attempt(&group_id, sample_index, 0);
    let session = SessionSpec { context: keep, ..config.session.clone() };
    SessionOpening {
        ancestry: TrajectoryAncestry { run_id, group_id, sample_index, attempt: 0, trajectory_id },
        token: 1,
        session,
        goal: format!("Click the button {group}."),
        past_steps: 0,
    }
}

/// A page of a few colours. Siblings get the same first page, and pages repeat.
pub(super) fn page(opening: &SessionOpening, step: u32) -> Observation {
    let group = opening.ancestry.group_id.as_str().bytes().map(u32::from).sum::<u32>();
    let seed = if step == 0 { group } else { group + opening.ancestry.sample_index % 2 * 31 + step % 3 * 7 };
    let pixel = |x: u32, y: u32| {
        image::Rgb([(x * 3 + seed * 17) as u8, (y * 5 + seed * 29) as u8, ((x / 16 + y / 16) * seed) as u8])
    };
    let mut bytes = std::io::Cursor::new(Vec::new());
    image::RgbImage::from_fn(96, 96, pixel).write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    let bytes = Bytes::from(bytes.into_inner());
    Observation {
        screenshot: Screenshot { bytes, format: ImageFormat::Png, size: Size::new(96, 96) },
        url: "http://starter.test/".into(),
        title: String::new(),
        tabs: vec![],
        scroll_y: 0.0,
        page_height: 96.0,
        axtree: None,
        marks: None,
    }
}

pub(super) fn outcome(step: u32) -> Option<Outcome> {
    (step > 0).then(|| Outcome::with_detail(OutcomeName::InvalidAction, format!("step {step}")))
}

/// One step as an environment worker keeps it.
pub(super) fn past(opening: &SessionOpening, step: u32, (reply, trace): &(PolicyReply, Trace)) -> PastStep {
    PastStep {
        step,
        screenshot: page(opening, step).screenshot,
        last_outcome: outcome(step),
        reply: reply.clone(),
        trace: trace.clone(),
    }
}

/// Opens a session and sends it its past steps.
pub(super) async fn open(
    model: &ModelPolicy,
    opening: &SessionOpening,
    steps: &[(PolicyReply, Trace)],
) -> Result<Box<dyn Session>, PolicyError> {
    let opening = SessionOpening { past_steps: steps.len() as u32, ..opening.clone() };
    let mut session = model.open(&opening).await?;
    for (step, acted) in (0..).zip(steps) {
        session.rebuild_step(past(&opening, step, acted)).await?;
    }
    Ok(session)
}

pub(super) async fn act(
    session: &mut dyn Session,
    opening: &SessionOpening,
    step: u32,
) -> Result<PolicyOutput, PolicyError> {
    let observation = page(opening, step);
    let last_outcome = outcome(step);
    let turn = PolicyInput {
        ancestry: &opening.ancestry,
        session: &opening.session,
        goal: &opening.goal,
        step,
        observation: &observation,
        last_outcome: last_outcome.as_ref(),
        hint_json: None,
    };
    session.act(turn).await
}

/// The reply of a step that must have one.
pub(super) fn replied(answer: PolicyOutput) -> (PolicyReply, Trace) {
    match answer {
        PolicyOutput::Reply(given) => *given,
        PolicyOutput::ContextFull => panic!("the context is full"),
    }
}

/// Acts several steps in sequence.
pub(super) async fn act_steps(
    model: &ModelPolicy,
    opening: &SessionOpening,
    steps: u32,
) -> Vec<(PolicyReply, Trace)> {
    let mut session = open(model, opening, &[]).await.unwrap();
    let mut acted = Vec::new();
    for step in 0..steps {
        acted.push(replied(act(&mut *session, opening, step).await.unwrap()));
    }
    acted
}

pub(super) fn tokens(trace: &Trace) -> &TokenTrace {
    trace.tokens.as_ref().unwrap()
}

pub(super) const POLICIES: [ContextPolicy; 4] =
    [ContextPolicy::Append, ContextPolicy::LastImage, ContextPolicy::Window(2), ContextPolicy::Fresh];
