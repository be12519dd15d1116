//! Checks lower bounds against the numbers of an independent calculator, and against sums by hand.

use super::*;
use crate::config::Config;

#[track_caller]
fn near(got: f64, want: f64, share: f64) {
    assert!((got / want - 1.0).abs() <= share, "{got}, expected {want} within {share}");
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
