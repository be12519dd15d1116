//! Embeddings and image rows against `layers::embed::row`, bit for bit.

use furrow_cuda::ops::embed::{Embed, Source};
use furrow_model::layers::embed;
use furrow_model::weights::{Table, Values};
use half::bf16;

use crate::batch::{Draw, Held};
use crate::family::{Bug, Family, Kind, same};
use crate::memory::{Memory, Number, widened};
use crate::place::Library;

pub const FAMILY: Family = Family {
    file: "embed.cu",
    check,
    bugs: &[
        Bug {
            kind: Kind::Index,
            find: "features + (size_t)(source & ~FEATURE) * width",
            put: "features + (size_t)blockIdx.x * width",
        },
        Bug { kind: Kind::Index, find: "(size_t)source * width", put: "(size_t)source * blockDim.x" },
        Bug {
            kind: Kind::Index,
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

fn check(library: &Library) -> Result<(), String> {
    for width in [8, 40, 2560] {
        compare::<f32, f32>(library, width)?;
        compare::<bf16, bf16>(library, width)?;
        compare::<bf16, f32>(library, width)?;
    }
    Ok(())
}

fn compare<T: Number, R: Number>(library: &Library, width: usize) -> Result<(), String> {
    let (ids, feature_rows) = (7, 5);
    let mut draw = Draw::new(4);
    let table: Held<T> = draw.held(ids * width, 1.0);
    let features: Held<T> = draw.held(feature_rows * width, 1.0);
    let sources = [0, 6, 3].map(Source::Token).into_iter().chain([1, 2, 4].map(Source::Feature));
    let sources: Vec<Source> = sources.chain([Source::Token(6), Source::Feature(0)]).collect();

    let words = Memory::of(&sources.iter().map(|source| source.word()).collect::<Vec<_>>());
    let out = Memory::<R>::unwritten(sources.len() * width);
    let launch = Embed {
        table: table.view(),
        features: features.view(),
        sources: words.view(),
        out: out.view(),
        width,
    };
    library.run(&launch.launch())?;

    let table = Table { rows: ids, width, values: Values::F32(table.values) };
    let mut want = vec![0.0; sources.len() * width];
    for (source, row) in sources.iter().zip(want.chunks_exact_mut(width)) {
        match source {
            Source::Token(id) => embed::row(&table, *id, row),
            Source::Feature(at) => row.copy_from_slice(&features.values[*at as usize * width..][..width]),
        }
    }
    same(format!("rows of {width}"), &widened(&out.read()?), &want)
}
