//! A small file takes little memory, whatever its pages unpack to: it is refused, or read in small
//! batches.
//!
//! A binary of its own, because its allocator counts what every thread of the process allocates.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Float32Array, Int32Array, ListArray, RecordBatch, StringArray, StructArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use furrow_records::fixtures::TrajectoryFixture;
use furrow_records::fixtures::data_set::{commit_files, write};
use furrow_records::{Table, verify, written_file};
use furrow_rollout::Id;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use parquet::schema::types::ColumnPath;
use peak_alloc::PeakAlloc;

#[global_allocator]
static COUNTED: PeakAlloc = PeakAlloc;

const ALLOCATED_MAX: usize = 256 << 20;
const FILE_BYTES_MAX: u64 = 1 << 20;
const SHARD: &str = "s";

struct HostileFile {
    name: &'static str,
    table: Table,
    column: &'static str,
    encode: fn(WriterPropertiesBuilder) -> WriterPropertiesBuilder,
    /// What takes the column's cells for this many rows.
    cells: fn(&DataType) -> ArrayRef,
    /// Whether the file must be refused by its size.
    is_refused: bool,
}

#[test]
fn a_small_file_takes_little_memory() {
    for case in cases() {
        let dir = tempfile::tempdir().unwrap();
        let file = hostile(dir.path(), &case);
        let name = case.name;
        assert!(file.bytes <= FILE_BYTES_MAX, "{name}: {} bytes", file.bytes);
        let before = COUNTED.current_usage();
        COUNTED.reset_peak_usage();
        let report = verify(dir.path()).unwrap();
        let taken = COUNTED.peak_usage() - before;
        assert!(taken <= ALLOCATED_MAX, "{name}: {taken} bytes were allocated");
        let refused = report.breaches.iter().find(|breach| breach.what.contains("columns unpack to"));
        assert_eq!(refused.is_some(), case.is_refused, "{name}: {:#?}", report.breaches.first());
        if let Some(breach) = refused {
            let what = &breach.what;
            assert!(
                what.contains(case.column) && what.contains(".parquet") && what.contains("at most"),
                "{what}"
            );
        }
    }
}

const MIB: usize = 1 << 20;
const LONG: usize = 100 * MIB;

fn cases() -> Vec<HostileFile> {
    let goal = |name, encode, cells, is_refused| HostileFile {
        name,
        table: Table::Trajectories,
        column: "goal",
        encode,
        cells,
        is_refused,
    };
    let once: fn(&DataType) -> ArrayRef = |_| Arc::new(StringArray::from_iter_values(["A".repeat(LONG)]));
    let often: fn(&DataType) -> ArrayRef =
        |_| Arc::new(StringArray::from_iter_values((0..400).map(|_| "A".repeat(MIB))));
    let names: fn(&DataType) -> ArrayRef =
        |_| Arc::new(StringArray::from_iter_values((0..100).map(|_| "A".repeat(MIB))));
    let plain: fn(WriterPropertiesBuilder) -> WriterPropertiesBuilder =
        |properties| properties.set_dictionary_enabled(false);
    let prefixed: fn(WriterPropertiesBuilder) -> WriterPropertiesBuilder = |properties| {
        let path = ColumnPath::from("goal");
        let properties = properties.set_column_dictionary_enabled(path.clone(), false);
        properties.set_column_encoding(path, Encoding::DELTA_BYTE_ARRAY)
    };
    vec![
        goal("one cell in a dictionary", |properties| properties, once, true),
        goal("one cell", plain, once, true),
        goal("a dictionary's entry in many rows", |properties| properties, often, false),
        goal("one prefix in many rows", prefixed, often, false),
        HostileFile { column: "trajectory_id", ..goal("long names", |properties| properties, names, false) },
        HostileFile {
            name: "one row of many ids",
            table: Table::Steps,
            column: "prompt_token_ids",
            encode: |properties| {
                let path = ColumnPath::new(["prompt_token_ids", "list", "item"].map(String::from).to_vec());
                let properties = properties.set_column_dictionary_enabled(path.clone(), false);
                properties.set_column_encoding(path, Encoding::DELTA_BINARY_PACKED)
            },
            cells: |kind| one_list(kind, Arc::new(Int32Array::from(vec![0; 15_000_000]))),
            is_refused: true,
        },
        HostileFile {
            name: "one row of many entries of a dictionary",
            table: Table::Steps,
            column: "reward_components",
            encode: |properties| properties,
            cells: |kind| {
                let DataType::List(item) = kind else { panic!("{kind}") };
                let DataType::Struct(fields) = item.data_type() else { panic!("{kind}") };
                let names = StringArray::from_iter_values((0..200).map(|_| "A".repeat(MIB)));
                let values = Float32Array::from(vec![0.0; 200]);
                let entries = StructArray::new(fields.clone(), vec![Arc::new(names), Arc::new(values)], None);
                one_list(kind, Arc::new(entries))
            },
            is_refused: true,
        },
    ]
}

/// A single list of these items.
fn one_list(kind: &DataType, items: ArrayRef) -> ArrayRef {
    let DataType::List(item) = kind else { panic!("{kind}") };
    let offsets = OffsetBuffer::from_lengths([items.len()]);
    Arc::new(ListArray::new(item.clone(), offsets, items, None))
}

/// Commits a data set whose file of the table has other cells in a column.
fn hostile(dir: &Path, case: &HostileFile) -> furrow_records::WrittenFile {
    let made = TrajectoryFixture { steps: 1, ..TrajectoryFixture::default() }.trajectory();
    let mut files = write(dir, SHARD, &[made], &[], &[]);
    let index = files.iter().position(|file| file.table == case.table).unwrap();
    let path = dir.join(&files[index].path);
    rewrite(&path, case);
    files[index] = written_file(dir, case.table, &Id::new(SHARD).unwrap()).unwrap();
    commit_files(dir, SHARD, files.clone());
    files.swap_remove(index)
}

fn rewrite(path: &Path, case: &HostileFile) {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    let pairs = builder.metadata().file_metadata().key_value_metadata().unwrap();
    let pairs = pairs.iter().filter(|pair| pair.key != "ARROW:schema").cloned().collect();
    let row = builder.build().unwrap().next().unwrap().unwrap();
    let schema = case.table.schema();
    let at = schema.index_of(case.column).unwrap();
    let cells = (case.cells)(schema.field(at).data_type());
    let columns = row.columns().iter().zip(schema.fields()).enumerate().map(|(index, (column, field))| {
        if index == at { cells.clone() } else { repeated(column, field, cells.len()) }
    });
    let batch = RecordBatch::try_new(schema.clone(), columns.collect()).unwrap();
    let zstd = Compression::ZSTD(ZstdLevel::try_new(3).unwrap());
    let properties = WriterProperties::builder().set_compression(zstd).set_key_value_metadata(Some(pairs));
    let properties = (case.encode)(properties).build();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), schema, Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// The first cell of a column, this many times.
fn repeated(column: &ArrayRef, field: &Field, count: usize) -> ArrayRef {
    assert_eq!(column.data_type(), field.data_type());
    match column.as_string_opt::<i32>() {
        Some(texts) => Arc::new(StringArray::from_iter_values(std::iter::repeat_n(texts.value(0), count))),
        None => {
            let first = column.slice(0, 1);
            let all: Vec<&dyn Array> = std::iter::repeat_n(&*first, count).collect();
            arrow::compute::concat(&all).unwrap()
        }
    }
}
