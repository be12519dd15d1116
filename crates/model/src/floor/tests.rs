//! Checks lower bounds against the numbers of an independent calculator, and against sums by hand.

use super::*;
use crate::config::Config;

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
fn a_decode_step_moves_the_bytes_of_weights_states_and_contexts() {
    let model = Config::published();
    let bytes = |context| model.decode(100.0, context).iter().map(|part| part.bytes).sum::<f64>();
    // 23.3 GB of weights without the embedding, 29.4 GB of states read and written, 0.4 GB of
    // convolution states, activations.
    near(bytes(1.0), 54.0e9, 0.03);
    // Before the first token there is no state to read: it is only written.
    near(bytes(1.0) - bytes(0.0), 100.0 * (24_576.0 + 146_800_640.0 + 2_064_384.0), 1e-6);
    near(bytes(16_001.0) - bytes(1.0), 100.0 * 16_000.0 * 24_576.0, 1e-6);
    near(model.session_bytes(0.0), 146_800_640.0 + 2_064_384.0, 1e-9);
}

#[test]
fn a_transformer_pays_six_times_the_bytes_a_token() {
    let transformer = Transformer::HOLO2_8B;
    let a_token = transformer.session_bytes(1.0);
    assert_eq!(a_token, 147_456.0);
    assert_eq!(
        a_token / (Config::published().session_bytes(1.0) - Config::published().session_bytes(0.0)),
        6.0
    );
    // 8.8 billion weights in all, published as "8B".
    near(transformer.weight_bytes() / 2.0, 8.7e9, 0.03);
    assert_eq!(transformer.screenshot_tokens(1280, 720), 40 * 23);
}

#[test]
fn a_batch_takes_as_long_as_its_rows_and_reads_the_weights_once() {
    let model = Config::published();
    let device = DeviceSpec::named("h200").unwrap();
    let batch = |decodes, spans: &[PrefillSpan]| BatchFloor::floor(&model, device, decodes, 8000.0, spans);
    let span = PrefillSpan { new: 828.0, past: 8000.0 };
    near(batch(80, &[]).seconds(), seconds(&model.decode(80.0, 8000.0), device), 1e-12);
    near(batch(0, &[span]).seconds(), seconds(&model.prefill(828.0, 8000.0), device), 1e-12);
    let both = batch(80, &[span, span]);
    assert_eq!(both.decode, batch(80, &[]).seconds());
    // The products' operations, and 1.1 ms a span for bytes of activations.
    near(both.prefill, 2.0 * 41.2e12 / 1792.0 * 828.0 / device.flops, 0.12);
    // One token alone reads every weight; in a batch with others it costs next to nothing.
    let one = [PrefillSpan { new: 1.0, past: 8000.0 }];
    assert!(batch(0, &one).prefill > 5e-3 && batch(1, &one).prefill < 2e-4, "{:?}", batch(1, &one));
    assert!(batch(0, &[span, span]).prefill < 2.0 * batch(0, &[span]).prefill);
}

fn part(bytes: f64, flops: f64) -> WorkPart {
    WorkPart { name: "part", bytes, flops }
}

/// In units in which a device moves one byte and computes one operation a second.
const UNIT: DeviceSpec = DeviceSpec { name: "unit", bandwidth: 1.0, flops: 1.0, memory: 1.0, source: "" };

#[test]
fn two_streams_share_what_one_leaves() {
    let check = |first, second, want: [f64; 2]| {
        let got = speeds(&first, &second, &UNIT);
        near(got[0], want[0], 1e-12);
        near(got[1] + 1.0, want[1] + 1.0, 1e-12);
    };
    // Bytes alone and operations alone do not slow each other.
    check(part(3.0, 0.0), part(0.0, 2.0), [1.0, 1.0]);
    // Decode leaves three quarters of the matrix units.
    check(part(4.0, 1.0), part(0.0, 2.0), [1.0, 0.75]);
    // And the tower needs a fifth of the bandwidth at full speed, 0.15 at this speed.
    check(part(4.0, 1.0), part(1.0, 5.0), [1.0 / 1.15, 0.75 / 1.15]);
    // A product uses all of them.
    check(part(0.0, 1.0), part(0.0, 2.0), [1.0, 0.0]);
    check(part(1.0, 0.0), part(1.0, 0.0), [0.5, 0.5]);
}

#[test]
fn concurrent_work_ends_and_no_resource_is_oversubscribed() {
    let decode = part(4.0, 1.0);
    let product = part(0.0, 2.0);
    let tower = part(1.0, 5.0);
    let mut beside = ConcurrentWork::default();
    near(beside.run(&[decode, product], &UNIT), 6.0, 1e-12);
    beside.add(vec![tower]);
    // 4 s of decode become 4.6, in which 3 of the tower's 5 operations are done; a product leaves
    // it none.
    near(beside.run(&[decode, product], &UNIT), 6.6, 1e-12);
    near(beside.clone().finish_alone(&UNIT), 2.0, 1e-12);
    near(beside.run_alone(&UNIT, 0.5) + 1.0, 1.0, 1e-12);
    // The remaining 1.5 s take 2 concurrently with decode.
    near(beside.run(&[decode], &UNIT), 4.0 + 0.15 * 2.0, 1e-12);
    assert!(beside.is_done());
    near(beside.run_alone(&UNIT, 0.5), 0.5, 1e-12);

    let model = Config::published();
    let device = DeviceSpec::named("h200").unwrap();
    for (decodes, tiles) in [(1, 1.0), (75, 3.0), (100, 13.0)] {
        let [decode, prefill] =
            BatchFloor::parts(&model, decodes, 8000.0, &[PrefillSpan { new: 512.0, past: 8000.0 }]);
        let batch = [decode, prefill].concat();
        let vision = model.tower(tiles);
        let mut beside = ConcurrentWork::default();
        beside.add(vision.clone());
        let taken = beside.run(&batch, device);
        let all = taken + beside.finish_alone(device);
        let own = seconds(&batch, device);
        let other = seconds(&vision, device);
        let sum = |of: fn(&WorkPart) -> f64| batch.iter().chain(&vision).map(of).sum::<f64>();
        let least = (sum(|part| part.flops) / device.flops).max(sum(|part| part.bytes) / device.bandwidth);
        assert!(taken >= own && all >= least * (1.0 - 1e-9) && all < own + other, "{taken} {all} {least}");
    }
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
