//! Embeddings and image rows against `layers::embed::row`, bit for bit.

use furrow_cuda::ops::embed::{EmbedLaunch, RowSource};
use furrow_model::layers::embed;
use furrow_model::weights::{EmbeddingTable, StoredValues};
use half::bf16;

use crate::batch::{RandomCase, StoredMemory};
use crate::family::{BugKind, KernelFamily, PlantedBug, same};
use crate::memory::{GuardedMemory, TestNumber, widened};
use crate::runner::KernelRunner;

pub(crate) const FAMILY: KernelFamily = KernelFamily {
    file: "embed.cu",
    check,
    bugs: &[
        PlantedBug {
            kind: BugKind::Index,
            find: "features + (size_t)(source & ~FEATURE) * width",
            put: "features + (size_t)blockIdx.x * width",
        },
        PlantedBug {
            kind: BugKind::Index,
            find: "(size_t)source * width",
            put: "(size_t)source * blockDim.x",
        },
        PlantedBug {
            kind: BugKind::Index,
            find: "i < width; i += blockDim.x * VALUES",
            put: "i < blockDim.x * VALUES; i += blockDim.x * VALUES",
        },
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

fn check(library: &KernelRunner) -> Result<(), String> {
    for width in [8, 40, 2560] {
        compare::<f32, f32>(library, width)?;
        compare::<bf16, bf16>(library, width)?;
        compare::<bf16, f32>(library, width)?;
    }
    Ok(())
}

fn compare<T: TestNumber, R: TestNumber>(library: &KernelRunner, width: usize) -> Result<(), String> {
    let ids = 7;
    let feature_rows = 5;
    let mut random = RandomCase::new(4);
    let table: StoredMemory<T> = random.stored(ids * width, 1.0);
    let features: StoredMemory<T> = random.stored(feature_rows * width, 1.0);
    let sources = [0, 6, 3].map(RowSource::Token).into_iter().chain([1, 2, 4].map(RowSource::Feature));
    let sources: Vec<RowSource> = sources.chain([RowSource::Token(6), RowSource::Feature(0)]).collect();

    let encoded_sources =
        GuardedMemory::of(&sources.iter().map(|source| source.encoded()).collect::<Vec<_>>());
    let out = GuardedMemory::<R>::unwritten(sources.len() * width);
    let launch = EmbedLaunch {
        table: table.view(),
        features: features.view(),
        sources: encoded_sources.view(),
        out: out.view(),
        width,
    };
    library.run(&launch.launch())?;

    let table = EmbeddingTable { rows: ids, width, values: StoredValues::F32(table.values) };
    let mut want = vec![0.0; sources.len() * width];
    for (source, row) in sources.iter().zip(want.chunks_exact_mut(width)) {
        match source {
            RowSource::Token(id) => embed::row(&table, *id, row),
            RowSource::Feature(at) => row.copy_from_slice(&features.values[*at as usize * width..][..width]),
        }
    }
    same(format!("rows of {width}"), &widened(&out.read()?), &want)
}
