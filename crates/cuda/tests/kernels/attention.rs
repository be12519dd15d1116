//! The three kernels of attention over pages against `layers::attention::attend`.

use furrow_cuda::launch::RowSpan;
use furrow_cuda::ops::attention::{AttentionLaunch, DevicePages, SplitBuffers, TILE_ROWS};
use furrow_model::backend::PAGE_TOKENS;
use furrow_model::config::AttentionConfig;
use furrow_model::layers::attention::attend;
use half::bf16;

use crate::batch::{RandomCase, SpreadRows, TestBatch};
use crate::family::{BugKind, KernelFamily, PlantedBug, near, same};
use crate::memory::{GuardedMemory, TestNumber, rounded, stored, widened};
use crate::runner::KernelRunner;

pub(crate) const FAMILY: KernelFamily = KernelFamily {
    file: "attention.cu",
    check,
    bugs: &[
        PlantedBug { kind: BugKind::Index, find: "row - spans[span].base;", put: "row;" },
        PlantedBug {
            kind: BugKind::Index,
            find: "head / (heads / pages.kv_heads)",
            put: "head % pages.kv_heads",
        },
        PlantedBug { kind: BugKind::Index, find: "+ first % PAGE_TOKENS * size", put: "" },
        PlantedBug {
            kind: BugKind::State,
            find: "spans[span].start + row - spans[span].base + 1",
            put: "row - spans[span].base + 1",
        },
        PlantedBug { kind: BugKind::Index, find: "visible - first", put: "visible" },
        PlantedBug { kind: BugKind::Index, find: "lane < there ? expf", put: "lane + 1 < there ? expf" },
        PlantedBug { kind: BugKind::State, find: "sums[i] *= fade", put: "sums[i] *= 1.0f" },
        PlantedBug { kind: BugKind::Formula, find: "total = total * fade", put: "total = total" },
    ],
};

pub(crate) const DECODE: KernelFamily = KernelFamily {
    file: "attention_decode.cu",
    check: check_decode,
    bugs: &[
        PlantedBug { kind: BugKind::Index, find: "- (int)warp * 16", put: "" },
        PlantedBug { kind: BugKind::Index, find: "span.start - index * PAGE_TOKENS + 1", put: "PAGE_TOKENS" },
        PlantedBug { kind: BugKind::Index, find: "kv_head * group * SIZE", put: "kv_head * SIZE" },
        PlantedBug { kind: BugKind::Barrier, find: "        copy_wait<0>();\n", put: "" },
        PlantedBug {
            kind: BugKind::Barrier,
            find: "        __syncthreads();  // this page may be overwritten, the next one is complete\n",
            put: "",
        },
        PlantedBug {
            kind: BugKind::Barrier,
            find: "    __syncthreads();\n    const size_t part",
            put: "    const size_t part",
        },
        PlantedBug {
            kind: BugKind::State,
            find: "exp2_approx(most[w * GROUP_MAX + row] - highest)",
            put: "1.0f",
        },
        PlantedBug {
            kind: BugKind::State,
            find: "exp2_approx(weights[(part + (size_t)s * heads) * 2] - highest)",
            put: "1.0f",
        },
    ],
};

pub(crate) const PREFILL: KernelFamily = KernelFamily {
    file: "attention_prefill.cu",
    check: check_prefill,
    bugs: &[
        PlantedBug { kind: BugKind::Index, find: "{visible, visible + 8}", put: "{visible, visible}" },
        PlantedBug {
            kind: BugKind::Index,
            find: "position + rows - index * PAGE_TOKENS",
            put: "PAGE_TOKENS",
        },
        PlantedBug {
            kind: BugKind::Index,
            find: "position = span.start + tile.first",
            put: "position = span.start",
        },
        PlantedBug { kind: BugKind::Barrier, find: "        copy_wait<0>();\n", put: "" },
        PlantedBug {
            kind: BugKind::Barrier,
            find: "        __syncthreads();  // this page may be overwritten, the next one is complete\n",
            put: "",
        },
        PlantedBug { kind: BugKind::State, find: "begin_page(index + 1)", put: "begin_page(index)" },
    ],
};

#[test]
fn agrees_with_the_cpu() {
    FAMILY.agrees();
}

#[test]
fn planted_bugs_show() {
    FAMILY.finds_its_bugs();
}

#[test]
fn decode_agrees_with_the_cpu() {
    DECODE.agrees();
}

#[test]
fn planted_bugs_show_in_decode() {
    DECODE.finds_its_bugs();
}

#[test]
fn prefill_agrees_with_the_cpu() {
    PREFILL.agrees();
}

#[test]
fn planted_bugs_show_in_prefill() {
    PREFILL.finds_its_bugs();
}

fn config(heads: usize, kv_heads: usize, head_dim: usize) -> AttentionConfig {
    AttentionConfig { heads, kv_heads, head_dim }
}

fn check(library: &KernelRunner) -> Result<(), String> {
    let ragged: &[(u32, u32)] = &[(1, 0), (3, 0), (1, 63), (2, 64), (5, 126)];
    for config in [config(4, 2, 6), config(2, 1, 128), config(6, 3, 40)] {
        plain(library, &AttentionCase::<f32>::new(config, ragged))?;
        plain(library, &AttentionCase::<bf16>::new(config, ragged))?;
    }
    Ok(())
}

fn check_decode(library: &KernelRunner) -> Result<(), String> {
    let of: &[(u32, u32)] = &[(1, 0), (1, 1), (0, 0), (1, 63), (1, 64), (1, 130), (1, 290)];
    for (config, pages) in [(config(5, 1, 128), 2), (config(8, 2, 64), 3), (config(16, 1, 64), 1)] {
        let case = AttentionCase::<bf16>::new(config, of);
        let splits = SplitBuffers::splits(291, pages);
        let part_rows = of.len() * splits * config.heads;
        let values = GuardedMemory::<f32>::unwritten(part_rows * config.head_dim);
        let weights = GuardedMemory::<f32>::unwritten(2 * part_rows);
        let parts = SplitBuffers { values: values.view(), weights: weights.view(), splits, pages };
        for launch in case.attention().decode(&parts).unwrap() {
            library.run(&launch)?;
        }
        values.read()?;
        weights.read()?;
        case.compare(8e-3)?;
    }
    Ok(())
}

fn check_prefill(library: &KernelRunner) -> Result<(), String> {
    let of: &[(u32, u32)] = &[(1, 0), (70, 0), (0, 0), (64, 64), (3, 130), (65, 63)];
    for config in [config(2, 1, 128), config(4, 2, 64)] {
        let case = AttentionCase::<bf16>::new(config, of);
        let of_batch = GuardedMemory::of(&case.batch.tiles(TILE_ROWS));
        library.run(&case.attention().prefill(of_batch.view()).unwrap())?;
        case.compare(8e-3)?;
    }
    Ok(())
}

/// Stores the batch's keys and values, then runs the plain kernel.
fn plain<T: TestNumber>(library: &KernelRunner, case: &AttentionCase<T>) -> Result<(), String> {
    let whose = case.batch.span_of();
    let written = case.pages.read()?;
    let emptied = case.without_the_batch();
    library.run(&AttentionLaunch { pages: emptied.pages(), ..case.attention() }.store(whose.view()))?;
    // Values that were never written are NaN on both sides, so bits are compared.
    let bits = |values: &[T]| -> Vec<u32> { values.iter().map(|value| value.wide().to_bits()).collect() };
    same(format!("pages of {:?}", case.config), &bits(&emptied.memory.read()?), &bits(&written))?;
    library.run(&case.attention().launch(whose.view()))?;
    case.compare(2.0 * T::TOLERANCE)
}

/// Spans over pages in random order; values that were not written are NaN.
struct AttentionCase<T> {
    config: AttentionConfig,
    batch: TestBatch,
    qkv: SpreadRows<T>,
    /// Keys and values by span, position and KV head.
    past: Vec<Vec<[Vec<f32>; 2]>>,
    pages: GuardedMemory<T>,
    table: Vec<u32>,
    table_memory: GuardedMemory<u32>,
    out: GuardedMemory<T>,
}

struct EmptiedPages<T> {
    memory: GuardedMemory<T>,
    table: DevicePages<T>,
}

impl<T: TestNumber> EmptiedPages<T> {
    fn pages(&self) -> DevicePages<T> {
        DevicePages { values: self.memory.view(), ..self.table }
    }
}

/// Pages of the longest span here.
const TABLE: usize = 5;

impl<T: TestNumber> AttentionCase<T> {
    fn new(config: AttentionConfig, of: &[(u32, u32)]) -> Self {
        let batch = TestBatch::new(of);
        let mut random = RandomCase::new(17);
        let [q, kv, width] = config.widths();
        let count = batch.count();
        let qkv = random.spread_in_packs::<T>(count, width, 16, 2.0);
        // The page of span i and index j; the numbers are spread over all pages.
        let number = |span: usize, index: usize| (span * TABLE + index) * 11 % ((of.len() * TABLE) | 1);
        let table: Vec<u32> = (0..of.len() * TABLE).map(|at| number(at / TABLE, at % TABLE) as u32).collect();
        let mut past = Vec::new();
        for span in &batch.spans {
            let older = (0..span.start).map(|_| [0; 2].map(|_| rounded::<T>(&random.floats(kv, 2.0))));
            let newer = (span.base..span.base + span.length).map(|row| {
                let row = qkv.row(row as usize);
                [row[q..q + kv].to_vec(), row[q + kv..].to_vec()]
            });
            past.push(older.chain(newer).collect::<Vec<_>>());
        }
        let mut case = Self {
            table_memory: GuardedMemory::of(&table),
            out: GuardedMemory::unwritten(count * q),
            pages: GuardedMemory::unwritten(0),
            config,
            batch,
            qkv,
            past,
            table,
        };
        case.pages = case.fill(|_, _| true);
        case
    }

    /// An arena that holds the requested positions.
    fn fill(&self, wanted: impl Fn(&RowSpan, usize) -> bool) -> GuardedMemory<T> {
        let size = self.config.head_dim;
        let page = self.config.page_values();
        let page_count = (self.batch.spans.len() * TABLE) | 1;
        let mut values = vec![f32::NAN; page_count * page];
        for (index, (span, past)) in self.batch.spans.iter().zip(&self.past).enumerate() {
            for (position, both) in past.iter().enumerate().filter(|(at, _)| wanted(span, *at)) {
                let number = self.table[index * TABLE + position / PAGE_TOKENS] as usize;
                for (half, values_of) in both.iter().enumerate() {
                    for (head, own) in values_of.chunks_exact(size).enumerate() {
                        let row = (head * 2 + half) * PAGE_TOKENS + position % PAGE_TOKENS;
                        values[number * page + row * size..][..size].copy_from_slice(own);
                    }
                }
            }
        }
        GuardedMemory::of(&stored::<T>(&values))
    }

    fn without_the_batch(&self) -> EmptiedPages<T> {
        EmptiedPages {
            memory: self.fill(|span, position| position < span.start as usize),
            table: self.attention().pages,
        }
    }

    fn attention(&self) -> AttentionLaunch<'_, T> {
        AttentionLaunch {
            config: &self.config,
            qkv: self.qkv.rows(),
            spans: self.batch.view(),
            pages: DevicePages {
                values: self.pages.view(),
                stride: self.config.page_values(),
                table: self.table_memory.view(),
                table_stride: TABLE,
            },
            out: self.out.view(),
        }
    }

    fn compare(&self, tolerance: f32) -> Result<(), String> {
        let AttentionConfig { heads, kv_heads, head_dim: size } = self.config;
        let mut want = Vec::new();
        for (span, past) in self.batch.spans.iter().zip(&self.past) {
            for t in 0..span.length as usize {
                let row = self.qkv.row(span.base as usize + t);
                let visible = &past[..span.start as usize + t + 1];
                for head in 0..heads {
                    let own = head / (heads / kv_heads) * size..(head / (heads / kv_heads) + 1) * size;
                    let [keys, values] = [0, 1].map(|half| {
                        visible.iter().flat_map(|both| both[half][own.clone()].to_vec()).collect::<Vec<_>>()
                    });
                    let mut out = vec![0.0; size];
                    attend(&row[head * size..][..size], &keys, &values, &mut out);
                    want.extend(out);
                }
            }
        }
        let what = format!("{:?}, {}", self.config, std::any::type_name::<T>());
        near(what, &widened(&self.out.read()?), &want, tolerance)
    }
}
