//! The share of the floor that the scheduler reaches, and its time account.

use furrow_model::floor::ModelWork;
use furrow_policy::stepped::{ConversationFixture, ConversationTurn};
use furrow_rollout::ContextPolicy;
use furrow_telemetry::{DeviceUse, Label};
use proptest::prelude::*;

use super::*;
use crate::settings::{PREFILL_CHUNK, PREFILL_TOKENS};
use crate::workload::{SessionMix, StepSizes};

const THREE_TILES: (usize, usize) = (1280, 720);
const SEVEN_TILES: (usize, usize) = (1440, 900);

fn settings(screenshot: (usize, usize), keep: ContextPolicy) -> SimulatorSettings {
    SimulatorSettings {
        mix: SessionMix { screenshot, ..SessionMix::default() },
        workload: None,
        keep,
        prefill_chunk: PREFILL_CHUNK,
        prefill_tokens: PREFILL_TOKENS,
        host_micros: 0,
        seconds: None,
    }
}

/// A few sessions of short steps.
fn small(sessions: usize) -> SimulatorSettings {
    let mix = SessionMix { sessions, steps: 3, generated: 5, page_seconds: 0.25, ..SessionMix::default() };
    let whole = settings(THREE_TILES, ContextPolicy::Append);
    SimulatorSettings { mix, seconds: Some(4.0), prefill_chunk: 2048, ..whole }
}

#[track_caller]
fn run_on(device: &str, settings: &SimulatorSettings) -> SimulationOutcome {
    simulate(&Config::published(), DeviceSpec::named(device).unwrap(), settings).unwrap()
}

#[track_caller]
fn check_share(screenshot: (usize, usize), keep: ContextPolicy) {
    let outcome = run_on("h200", &settings(screenshot, keep));
    let of = |used: &DeviceUse| {
        format!(
            "{} {:.1} %",
            used.value(),
            100.0 * outcome.time.micros_of(*used) as f64 / outcome.micros as f64
        )
    };
    println!(
        "{keep} at {screenshot:?}, {} offloaded: {:.2} of {:.2} steps/s, {:.1} %, a reply in {:.2} s; {}",
        outcome.offloaded,
        outcome.steps_per_second(),
        outcome.floor.steps_per_second,
        100.0 * outcome.share(),
        outcome.reply_seconds,
        DeviceUse::ALL.iter().map(of).collect::<Vec<_>>().join(", ")
    );
    // Every session passes every age, so steps that the ends of the measurement cut are few
    // compared with those inside. A share above the floor would be an error of the simulator.
    assert!((0.9..1.0).contains(&outcome.share()), "{:.3} of the floor: {outcome:?}", outcome.share());
    assert_eq!(outcome.time.total(), outcome.micros, "{outcome:?}");
    let idle =
        [DeviceUse::NoWork, DeviceUse::NoCapacity, DeviceUse::Host].map(|why| outcome.time.micros_of(why));
    assert!(idle.iter().sum::<u64>() * 100 < outcome.micros * 5, "sessions run in lockstep: {outcome:?}");
}

#[test]
fn append_reaches_nine_tenths_of_its_floor_at_three_tiles() {
    check_share(THREE_TILES, ContextPolicy::Append);
}

#[test]
fn append_reaches_nine_tenths_of_its_floor_at_seven_tiles() {
    check_share(SEVEN_TILES, ContextPolicy::Append);
}

#[test]
fn last_image_reaches_nine_tenths_of_its_floor_at_three_tiles() {
    check_share(THREE_TILES, ContextPolicy::LastImage);
}

#[test]
fn last_image_reaches_nine_tenths_of_its_floor_at_seven_tiles() {
    check_share(SEVEN_TILES, ContextPolicy::LastImage);
}

/// Host time between two batches is lost to the device and is counted as host time.
#[test]
fn host_time_is_accounted_for() {
    let free = run_on("h200", &small(8));
    let settings = SimulatorSettings { host_micros: 2000, ..small(8) };
    let busy = run_on("h200", &settings);
    let host = busy.time.micros_of(DeviceUse::Host);
    assert_eq!(free.time.micros_of(DeviceUse::Host), 0, "{free:?}");
    assert!(host > 0 && host.is_multiple_of(2000), "not a multiple of the host time of one batch: {busy:?}");
    assert!(busy.steps < free.steps, "{busy:?} {free:?}");
    assert_eq!(busy.time.total(), busy.micros);
}

/// A simulated session builds the same segments as sessions of the real policy.
#[test]
fn a_simulated_session_builds_the_segments_of_a_conversation() {
    for keep in [ContextPolicy::Append, ContextPolicy::LastImage] {
        let mix = SessionMix { steps: 4, ..small(1).mix };
        let settings = SimulatorSettings { mix, keep, ..small(1) };
        let work = settings.workload(&Config::published());
        let mut actor = SimulatedSession::new(7, &settings, (work, Arc::default()), 256);
        let mut conversation = ConversationFixture::new(keep);
        for step in 0..4 {
            let (kept, prompt) = actor.take_prompt();
            let wanted = conversation.turn(&prompt.ids, &prompt.pictures[0], &actor.response());
            let keeps_reply = keep == ContextPolicy::Append;
            assert_eq!(ConversationTurn { kept, prompt, keeps_reply }, wanted, "{keep}, step {step}");
            actor.finish_turn();
        }
    }
}

/// One session alone: each use of the device can be computed by hand.
#[test]
fn a_session_alone_is_accounted_for_step_by_step() {
    let settings = small(1);
    let outcome = run_on("h200", &settings);
    let config = Config::published();
    let device = DeviceSpec::named("h200").unwrap();
    let of = |used| outcome.time.micros_of(used) as f64 / 1e6 / outcome.steps as f64;
    let near = |got: f64, want: f64| (got / want - 1.0).abs() < 0.1;
    let seconds = |parts: &[_]| furrow_model::floor::seconds(parts, device);
    assert!(near(of(DeviceUse::NoWork), settings.mix.page_seconds), "{outcome:?}");
    assert!(near(of(DeviceUse::Vision), seconds(&config.vision(1280, 720))), "{outcome:?}");
    // The first token is sampled from the prompt's own logits.
    assert!(near(of(DeviceUse::Decode), 4.0 * seconds(&config.decode(1.0, 2000.0))), "{outcome:?}");
    // The first prompt is cut at its fork points: after the task, and after the image.
    let turns = [(1200.0, 0.0), (770.0, 1200.0), (58.0, 1970.0), (828.0, 2033.0), (828.0, 2866.0)];
    let prefill: f64 = turns.iter().map(|(new, past)| seconds(&config.prefill(*new, *past))).sum();
    assert!(near(of(DeviceUse::Prefill), prefill / 3.0), "{outcome:?}");
    assert_eq!(
        outcome.time.micros_of(DeviceUse::Host) + outcome.time.micros_of(DeviceUse::NoCapacity),
        0,
        "{outcome:?}"
    );
}

/// 48 GB hold only some of these sessions beside the weights; the others are offloaded while their
/// pages act.
#[test]
fn a_small_device_offloads_states_and_reports_it() {
    let mix =
        SessionMix { sessions: 24, steps: 60, generated: 20, page_seconds: 1.0, ..SessionMix::default() };
    let seconds = Some(60.0);
    let outcome =
        run_on("l40s", &SimulatorSettings { mix, seconds, ..settings(SEVEN_TILES, ContextPolicy::Append) });
    // States are transferred beside batches. Only the time spent waiting counts as copying, and
    // that may be 0.
    assert!(outcome.offloaded > 0 && outcome.share() < 1.0, "{outcome:?}");
    assert_eq!(outcome.time.total(), outcome.micros);
}

fn of_work(work: Workload, sessions: usize) -> SimulatorSettings {
    let mix = SessionMix { sessions, ..SessionMix::default() };
    SimulatorSettings { mix, workload: Some(Arc::new(work)), ..small(sessions) }
}

#[test]
fn a_uniform_workload_equals_its_mix() {
    let of_mix = small(4);
    let work = Workload::uniform(&of_mix.mix, 3);
    let of_mix = run_on("h200", &of_mix);
    let of_work = run_on("h200", &of_work(work, 4));
    assert_eq!((of_work.steps, of_work.time), (of_mix.steps, of_mix.time));
}

/// Trajectories of one step and of nine. Both occur equally often, so nine of ten steps are of the
/// long one.
#[test]
fn a_workload_is_acted_in_its_own_proportions() {
    let step = |instructions, tiles, sampled| StepSizes { instructions, text: 20, tiles, sampled, given: 1 };
    let long: Vec<StepSizes> = (0..9).map(|index| step(if index == 0 { 300 } else { 0 }, 1, 3)).collect();
    let work = Workload { trajectories: vec![vec![step(300, 7, 60)], long], page_seconds: 0.2 };
    let settings = SimulatorSettings { seconds: Some(60.0), ..of_work(work.clone(), 10) };
    let outcome = run_on("h200", &settings);
    assert_eq!(outcome.time.total(), outcome.micros);
    assert!(outcome.share() > 0.0 && outcome.share() < 1.05, "{outcome:?}");
    let positions: Vec<(usize, usize)> = (0..10).map(|index| start_position(&work, index, 10)).collect();
    // Ten steps and ten sessions: one session at each step.
    assert_eq!(positions.iter().filter(|(trajectory, _)| *trajectory == 0).count(), 1, "{positions:?}");
    // Other sizes with the same mean take another time, because the distribution is simulated and
    // not its mean.
    let mean = Workload {
        trajectories: vec![(0..5).map(|index| step(if index == 0 { 300 } else { 0 }, 2, 9)).collect()],
        page_seconds: 0.2,
    };
    let other = run_on("h200", &SimulatorSettings { seconds: Some(60.0), ..of_work(mean, 10) });
    assert_ne!(outcome.steps, other.steps);
    let none = of_work(Workload { trajectories: vec![Vec::new()], page_seconds: 1.0 }, 2);
    let refused = simulate(&Config::published(), DeviceSpec::named("h200").unwrap(), &none).unwrap_err();
    assert_eq!(refused, SimulatorError::TooFew("steps"));
}

#[test]
fn sessions_begin_at_steps_that_are_all_as_likely() {
    let step = StepSizes { text: 20, tiles: 1, sampled: 3, ..StepSizes::default() };
    let work = Workload { trajectories: vec![vec![step; 2], vec![step; 18]], page_seconds: 1.0 };
    let positions: Vec<(usize, usize)> = (0..10).map(|index| start_position(&work, index, 10)).collect();
    let want: Vec<(usize, usize)> =
        [(0, 1)].into_iter().chain((0..9).map(|step| (1, 1 + 2 * step))).collect();
    assert_eq!(positions, want);
    let alone = Workload { trajectories: vec![vec![step; 3]], page_seconds: 1.0 };
    assert_eq!([0, 1, 2, 3].map(|index| start_position(&alone, index, 4)), [(0, 0), (0, 1), (0, 2), (0, 0)]);
}

#[test]
fn settings_that_cannot_be_simulated_are_refused() {
    let refused = |change: fn(&mut SimulatorSettings)| {
        let mut settings = small(2);
        change(&mut settings);
        simulate(&Config::published(), DeviceSpec::named("h200").unwrap(), &settings).unwrap_err()
    };
    assert_eq!(refused(|it| it.keep = ContextPolicy::Fresh), SimulatorError::Keep(ContextPolicy::Fresh));
    assert_eq!(refused(|it| it.mix.steps = 0), SimulatorError::TooFew("steps"));
    assert_eq!(refused(|it| it.mix.text = 2), SimulatorError::TooFew("text"));
    assert!(matches!(refused(|it| it.prefill_tokens = 64), SimulatorError::Mismatch(_)));
    assert!(matches!(refused(|it| it.mix.sessions = 5000), SimulatorError::Mismatch(_)));
    assert!(matches!(refused(|it| it.mix.sessions = 100_000), SimulatorError::TooLarge { .. }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_microsecond_has_one_cause(
        sessions in 1usize..9,
        steps in 1usize..5,
        generated in 1usize..7,
        page_millis in 1u32..900,
        chunk in prop::sample::select(vec![64u32, 300, 2048]),
        last_image: bool,
    ) {
        let page_seconds = f64::from(page_millis) / 1e3;
        let mix = SessionMix { sessions, steps, generated, page_seconds, ..SessionMix::default() };
        let keep = if last_image { ContextPolicy::LastImage } else { ContextPolicy::Append };
        let settings = SimulatorSettings { mix, keep, prefill_chunk: chunk, seconds: Some(2.0), ..small(1) };
        let outcome = run_on("h200", &settings);
        prop_assert_eq!(outcome.time.total(), outcome.micros);
        prop_assert!(outcome.micros >= 2_000_000, "{:?}", outcome);
        prop_assert!(outcome.steps > 0, "{:?}", outcome);
        prop_assert_eq!(simulate(&Config::published(), DeviceSpec::named("h200").unwrap(), &settings).unwrap(), outcome);
    }
}
