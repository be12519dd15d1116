//! Checks the floors of rollouts against the numbers of an independent calculator, and turns
//! against sums by hand.

use super::*;

#[track_caller]
fn near(got: f64, want: f64, share: f64) {
    assert!((got / want - 1.0).abs() <= share, "{got}, expected {want} within {share}");
}

/// Numbers of a calculator written independently of this one: H200, 100 sessions of 30 steps, 150
/// tokens a step.
#[test]
fn rollouts_of_the_published_model_have_their_known_floors() {
    let model = Config::published();
    let device = DeviceSpec::named("h200").unwrap();
    let floor = |screenshot, keep| {
        let mix = SessionMix { screenshot, ..SessionMix::default() };
        RolloutFloor::floor(&model, device, &mix, keep).trajectories_per_hour
    };
    let three_tiles = (1280, 720);
    let seven_tiles = (1440, 900);
    near(floor(three_tiles, ContextRetention::Append), 1747.0, 0.01);
    near(floor(seven_tiles, ContextRetention::Append), 966.0, 0.01);
    near(floor(three_tiles, ContextRetention::LastImage), 1878.0, 0.02);
    near(floor(seven_tiles, ContextRetention::LastImage), 1191.0, 0.02);
    near(floor(three_tiles, ContextRetention::Recompute), 197.0, 0.2);
}

#[test]
fn the_tower_beside_decode_is_never_slower_and_costs_nothing_while_decode_leaves_matrix_units_idle() {
    let model = Config::published();
    let device = DeviceSpec::named("h200").unwrap();
    for keep in [ContextRetention::Append, ContextRetention::LastImage] {
        for screenshot in [(1280, 720), (1440, 900)] {
            let mix = SessionMix { screenshot, ..SessionMix::default() };
            let rate = |floor: RolloutFloor| floor.steps_per_second;
            let alone = RolloutFloor::floor(&model, device, &mix, keep);
            let beside = RolloutFloor::floor_concurrent(&model, device, &mix, keep);
            assert!(rate(beside) > 1.05 * rate(alone), "{keep:?} {screenshot:?}");
            // As if screenshots were encoded elsewhere, because decode leaves the matrix units most
            // of its time.
            let blind = TextOnlyWork(&model);
            near(rate(beside), rate(RolloutFloor::floor(&blind, device, &mix, keep)), 1e-9);
        }
    }
}

/// The model with screenshots that are encoded elsewhere.
struct TextOnlyWork<'a>(&'a Config);

impl ModelWork for TextOnlyWork<'_> {
    fn decode(&self, batch: f64, context: f64) -> Vec<WorkPart> {
        self.0.decode(batch, context)
    }

    fn prefill(&self, new: f64, past: f64) -> Vec<WorkPart> {
        self.0.prefill(new, past)
    }

    fn vision(&self, _: usize, _: usize) -> Vec<WorkPart> {
        Vec::new()
    }

    fn screenshot_tokens(&self, width: usize, height: usize) -> usize {
        self.0.screenshot_tokens(width, height)
    }

    fn weight_bytes(&self) -> f64 {
        self.0.weight_bytes()
    }

    fn session_bytes(&self, context: f64) -> f64 {
        self.0.session_bytes(context)
    }
}

#[test]
fn a_workload_of_steps_that_are_alike_has_the_floor_of_its_mix() {
    let model = Config::published();
    let device = DeviceSpec::named("h200").unwrap();
    for keep in [ContextRetention::Append, ContextRetention::LastImage, ContextRetention::Recompute] {
        for (screenshot, tiles) in [((1280, 720), 3), ((1440, 900), 7)] {
            let mix = SessionMix { screenshot, ..SessionMix::default() };
            let work = Workload::uniform(&mix, tiles);
            for (of_mix, of_work) in [
                (
                    RolloutFloor::floor(&model, device, &mix, keep),
                    RolloutFloor::workload_floor(&model, device, &work, mix.sessions, keep),
                ),
                (
                    RolloutFloor::floor_concurrent(&model, device, &mix, keep),
                    RolloutFloor::workload_floor_concurrent(&model, device, &work, mix.sessions, keep),
                ),
            ] {
                // Only one of the two counts the mark after each reply: a token of hundreds.
                near(of_work.steps_per_second, of_mix.steps_per_second, 0.002);
                near(of_work.trajectories_per_hour, of_mix.trajectories_per_hour, 0.002);
                near(of_work.context_max, of_mix.context_max, 0.001);
            }
        }
    }
}

/// Two trajectories of two steps and one, their turns counted by hand.
#[test]
fn turns_of_a_workload_follow_the_context_retention() {
    let model = Config::published();
    let step =
        |instructions, text, tiles, sampled, given| StepSizes { instructions, text, tiles, sampled, given };
    let work = Workload {
        trajectories: vec![vec![step(100, 10, 1, 20, 3), step(0, 7, 2, 30, 1)], vec![step(50, 5, 0, 4, 0)]],
        page_seconds: 1.0,
    };
    let turn = |new, past, sampled| TurnTokens { new, past, sampled };
    let append = work.turns(&model, ContextRetention::Append);
    // 100 + 256 + 10 + 3, and after those and the 20 sampled tokens 512 + 7 + 1.
    assert_eq!(append[0], [turn(369.0, 0.0, 20.0), turn(520.0, 389.0, 30.0)]);
    assert_eq!(append[1], [turn(55.0, 0.0, 4.0)]);
    let last_image = work.turns(&model, ContextRetention::LastImage);
    // The second step commits the first one's 10 + 3 + 20 and prefills 520 after 133 tokens of
    // text.
    assert_eq!(last_image[0], [turn(369.0, 0.0, 20.0), turn(553.0, 100.0, 30.0)]);
    assert_eq!((work.steps_mean(), work.steps_max()), (1.5, 2));
}
