//! Tokens a second of the `cpu` backend on 97M random weights: `cargo bench -p furrow-model --bench
//! language [-- THREADS [PART OF A NAME]]`.
//!
//! The model is that of the comparison with transformers: decode at batch 1, 8 and 32 after a short
//! prompt, prefill of 1,024 tokens, and decode after a long context; the best of several runs each.
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use std::sync::Arc;
use std::time::Instant;

use furrow_model::backend::{Backend, BackendCapacity, LogitRows, Page, SequenceSpan, Slot};
use furrow_model::config::{AttentionConfig, Config, LayerKind, SsmConfig, TextConfig};
use furrow_model::cpu::CpuBackend;
use furrow_model::forward::Sequence;
use furrow_model::kernels::{PackedMatrix, ProductPrecision};
use furrow_model::weights::{
    AttentionWeights, EmbeddingTable, LayerWeights, MixerWeights, MlpWeights, ModelWeights, SsmWeights,
    StoredValues, TextWeights,
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
        ("float32", false, ProductPrecision::Float32),
        ("bfloat16 weights", true, ProductPrecision::Float32),
        ("bfloat16", true, ProductPrecision::Bfloat16),
    ] {
        let weights = Arc::new(weights(half));
        let show = |what: &str, rate: &dyn Fn(CpuBackend) -> f64| {
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

fn open(weights: &Arc<ModelWeights>, threads: usize, compute: ProductPrecision) -> CpuBackend {
    let capacity = BackendCapacity {
        slots: 32,
        pages: 32 * PAGES,
        rows_max: 1024,
        logits_max: 32,
        features: 0,
        offload_bytes: 0,
    };
    CpuBackend::open(Arc::clone(weights), capacity, threads, compute).expect("memory for the capacity")
}

/// Tokens a second of one decode step for all sequences, after a prompt each.
fn decode(mut cpu: CpuBackend, sequences: u32, prompt: usize) -> f64 {
    let page = |slot: u32| (slot * PAGES..(slot + 1) * PAGES).map(Page).collect();
    let mut own: Vec<Sequence> = (0..sequences).map(|slot| Sequence::new(Slot(slot), page(slot))).collect();
    let ids: Vec<u32> = (0..prompt as u32).map(|id| id * 37 % 16_000).collect();
    for sequence in &mut own {
        for ids in ids.chunks(1024) {
            sequence.run(&mut cpu, ids, &[], LogitRows::Last).expect("it fits");
        }
    }
    let mut best = f64::INFINITY;
    for _ in 0..24 {
        let start = Instant::now();
        let spans: Vec<SequenceSpan<'_>> =
            own.iter().map(|own| own.span(&ids[..1], &[], LogitRows::Last)).collect();
        cpu.run(&spans).expect("it fits");
        best = best.min(start.elapsed().as_secs_f64());
        own.iter_mut().for_each(|own| own.advance(1));
    }
    f64::from(sequences) / best
}

fn prefill(mut cpu: CpuBackend) -> f64 {
    let ids: Vec<u32> = (0..1024).map(|id| id * 37 % 16_000).collect();
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        let mut own = Sequence::new(Slot(0), (0..PAGES).map(Page).collect());
        own.run(&mut cpu, &ids, &[], LogitRows::Last).expect("it fits");
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

fn weights(half: bool) -> ModelWeights {
    let text = config();
    let mut random = RandomWeights { random: ChaCha12Rng::seed_from_u64(SEED), half };
    let h = text.hidden;
    let ssm = &text.ssm;
    let [q, _, qkv] = text.attention.widths();
    let mixer = |kind: &LayerKind, random: &mut RandomWeights| match kind {
        LayerKind::Ssm => MixerWeights::Ssm(SsmWeights {
            in_proj: random.matrix(ssm.in_proj_width(), h),
            conv: random.values(ssm.conv_width() * ssm.conv_kernel, 0.5),
            conv_bias: random.values(ssm.conv_width(), 0.1),
            a: random.values(ssm.heads, 1.0).into_iter().map(|a| -1.0 - a).collect(),
            d: random.values(ssm.heads, 1.0),
            dt_bias: random.values(ssm.heads, 4.0),
            norm: vec![1.0; ssm.inner()],
            out_proj: random.matrix(h, ssm.inner()),
        }),
        LayerKind::Attention => {
            MixerWeights::Attention(AttentionWeights { qkv: random.matrix(qkv, h), out: random.matrix(h, q) })
        }
        _ => MixerWeights::Mlp(MlpWeights {
            up: random.matrix(text.intermediate, h),
            down: random.matrix(h, text.intermediate),
        }),
    };
    let layers = text
        .layers
        .iter()
        .map(|kind| LayerWeights { norm: vec![1.0; h], mixer: mixer(kind, &mut random) })
        .collect();
    let embeddings = EmbeddingTable {
        rows: text.vocabulary,
        width: h,
        values: StoredValues::F32(random.values(text.vocabulary * h, 1.0)),
    };
    let head = random.matrix(text.vocabulary, h);
    let text_weights = TextWeights { embeddings, layers, final_norm: vec![1.0; h], head };
    ModelWeights { config: Config { text, vision: None }, text: text_weights, vision: None }
}

struct RandomWeights {
    random: ChaCha12Rng,
    half: bool,
}

impl RandomWeights {
    fn values(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| scale * (self.random.random::<f32>() * 2.0 - 1.0)).collect()
    }

    fn matrix(&mut self, out: usize, input: usize) -> PackedMatrix {
        // Variance 1 / input: rows keep their norm.
        let values = self.values(out * input, (3.0 / input as f32).sqrt());
        if self.half {
            let bits: Vec<u16> = values.iter().map(|value| (value.to_bits() >> 16) as u16).collect();
            PackedMatrix::from_bf16(out, input, &bits)
        } else {
            PackedMatrix::from_f32(out, input, &values)
        }
    }
}
