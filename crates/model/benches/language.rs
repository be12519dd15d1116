//! Tokens a second of the `cpu` backend on 97M random weights: `cargo bench -p furrow-model --bench language [-- THREADS [PART OF A NAME]]`.
//!
//! The model is the one of the comparison with transformers: decode at batch 1, 8 and 32 after a short prompt, prefill of 1,024 tokens,
//! and decode after a long context; the best of several runs each.
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use std::sync::Arc;
use std::time::Instant;

use furrow_model::backend::{Backend, Page, Room, Slot, Span, Want};
use furrow_model::config::{AttentionConfig, Config, LayerKind, SsmConfig, TextConfig};
use furrow_model::cpu::Cpu;
use furrow_model::forward::Sequence;
use furrow_model::kernels::{Compute, Matrix};
use furrow_model::weights::{
    AttentionWeights, Layer, Mixer, MlpWeights, SsmWeights, Table, TextWeights, Values, Weights,
};
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

const SEED: u64 = 7;
/// Pages of a sequence: 2,048 positions.
const PAGES: u32 = 32;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let threads = arguments.next().and_then(|argument| argument.parse().ok()).unwrap_or(2);
    let part = arguments.next().unwrap_or_default();
    println!("{threads} threads, seed {SEED}");
    for (precision, half, compute) in [
        ("float32", false, Compute::Float32),
        ("bfloat16 weights", true, Compute::Float32),
        ("bfloat16", true, Compute::Bfloat16),
    ] {
        let weights = Arc::new(weights(half));
        let show = |what: &str, rate: &dyn Fn(Cpu) -> f64| {
            let name = format!("{precision}, {what}");
            if name.contains(&part) {
                println!("{name:<40} {:>7.1} tokens/s", rate(open(&weights, threads, compute)));
            }
        };
        for sequences in [1, 8, 32] {
            show(&format!("decode, batch {sequences}"), &|cpu| decode(cpu, sequences, 16));
        }
        show("decode after 1,900", &|cpu| decode(cpu, 1, 1900));
        show("prefill of 1,024", &prefill);
    }
}

fn open(weights: &Arc<Weights>, threads: usize, compute: Compute) -> Cpu {
    let room =
        Room { slots: 32, pages: 32 * PAGES, rows_max: 1024, logits_max: 32, features: 0, parked_bytes: 0 };
    Cpu::open(Arc::clone(weights), room, threads, compute).expect("memory for the room")
}

/// Tokens a second of one step for all sequences, after a prompt each.
fn decode(mut cpu: Cpu, sequences: u32, prompt: usize) -> f64 {
    let page = |slot: u32| (slot * PAGES..(slot + 1) * PAGES).map(Page).collect();
    let mut own: Vec<Sequence> = (0..sequences).map(|slot| Sequence::new(Slot(slot), page(slot))).collect();
    let ids: Vec<u32> = (0..prompt as u32).map(|id| id * 37 % 16_000).collect();
    for sequence in &mut own {
        for ids in ids.chunks(1024) {
            sequence.run(&mut cpu, ids, &[], Want::Last).expect("it fits");
        }
    }
    let mut best = f64::INFINITY;
    for _ in 0..24 {
        let start = Instant::now();
        let spans: Vec<Span<'_>> = own.iter().map(|own| own.span(&ids[..1], &[], Want::Last)).collect();
        cpu.run(&spans).expect("it fits");
        best = best.min(start.elapsed().as_secs_f64());
        own.iter_mut().for_each(|own| own.advance(1));
    }
    f64::from(sequences) / best
}

fn prefill(mut cpu: Cpu) -> f64 {
    let ids: Vec<u32> = (0..1024).map(|id| id * 37 % 16_000).collect();
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        let mut own = Sequence::new(Slot(0), (0..PAGES).map(Page).collect());
        own.run(&mut cpu, &ids, &[], Want::Last).expect("it fits");
        best = best.min(start.elapsed().as_secs_f64());
    }
    ids.len() as f64 / best
}

fn config() -> TextConfig {
    let kind = |letter| match letter {
        'M' => LayerKind::Ssm,
        '*' => LayerKind::Attention,
        _ => LayerKind::Mlp,
    };
    TextConfig {
        layers: "M-M-M*-M-M-M*-M-".chars().map(kind).collect(),
        hidden: 768,
        vocabulary: 16_384,
        intermediate: 3072,
        norm_epsilon: 1e-5,
        positions_max: 131_072,
        attention: AttentionConfig { heads: 12, kv_heads: 4, head_dim: 64 },
        ssm: SsmConfig {
            heads: 24,
            head_dim: 64,
            state: 128,
            groups: 8,
            conv_kernel: 4,
            chunk: 128,
            time_step_limit: (0.0, f32::INFINITY),
        },
        moe: None,
    }
}

fn weights(half: bool) -> Weights {
    let text = config();
    let mut draw = Draw { random: ChaCha12Rng::seed_from_u64(SEED), half };
    let (h, ssm) = (text.hidden, &text.ssm);
    let [q, _, qkv] = text.attention.widths();
    let mixer = |kind: &LayerKind, draw: &mut Draw| match kind {
        LayerKind::Ssm => Mixer::Ssm(SsmWeights {
            in_proj: draw.matrix(ssm.in_proj_width(), h),
            conv: draw.values(ssm.conv_width() * ssm.conv_kernel, 0.5),
            conv_bias: draw.values(ssm.conv_width(), 0.1),
            a: draw.values(ssm.heads, 1.0).into_iter().map(|a| -1.0 - a).collect(),
            d: draw.values(ssm.heads, 1.0),
            dt_bias: draw.values(ssm.heads, 4.0),
            norm: vec![1.0; ssm.inner()],
            out_proj: draw.matrix(h, ssm.inner()),
        }),
        LayerKind::Attention => {
            Mixer::Attention(AttentionWeights { qkv: draw.matrix(qkv, h), out: draw.matrix(h, q) })
        }
        _ => Mixer::Mlp(MlpWeights {
            up: draw.matrix(text.intermediate, h),
            down: draw.matrix(h, text.intermediate),
        }),
    };
    let layers =
        text.layers.iter().map(|kind| Layer { norm: vec![1.0; h], mixer: mixer(kind, &mut draw) }).collect();
    let embeddings =
        Table { rows: text.vocabulary, width: h, values: Values::F32(draw.values(text.vocabulary * h, 1.0)) };
    let head = draw.matrix(text.vocabulary, h);
    let text_weights = TextWeights { embeddings, layers, final_norm: vec![1.0; h], head };
    Weights { config: Config { text, vision: None }, text: text_weights, vision: None }
}

/// Uniform random weights.
struct Draw {
    random: ChaCha12Rng,
    half: bool,
}

impl Draw {
    fn values(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| scale * (self.random.random::<f32>() * 2.0 - 1.0)).collect()
    }

    fn matrix(&mut self, out: usize, input: usize) -> Matrix {
        // Variance 1 / input: rows keep their size.
        let values = self.values(out * input, (3.0 / input as f32).sqrt());
        if self.half {
            let bits: Vec<u16> = values.iter().map(|value| (value.to_bits() >> 16) as u16).collect();
            Matrix::from_bf16(out, input, &bits)
        } else {
            Matrix::from_f32(out, input, &values)
        }
    }
}
