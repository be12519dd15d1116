//! Reads grounding sets from Parquet without Arrow: rows for their texts and boxes, one column for
//! the pictures.
//!
//! Files are untrusted: sizes are checked before anything is decoded, and a panic of the reader
//! becomes a problem of the file.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use parquet::column::reader::ColumnReader;
use parquet::data_type::ByteArray;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::Type;
use serde_json::{Map, Value, json};

use super::picture::{BYTES_MAX, PictureLocation};
use super::row::{GroundingRow, KEPT_BYTES_MAX, ROWS_MAX, make_row, too_many};

/// Largest row group by its metadata; 128 pictures of the largest size fit.
const ROW_GROUP_BYTES_MAX: i64 = 4 << 30;

/// Most columns of one file; the published sets have at most six.
const COLUMNS_MAX: usize = 256;

/// All rows of these files, or what is wrong with them.
pub(super) fn read(paths: &[PathBuf], problems: &mut Vec<String>) -> Vec<GroundingRow> {
    let mut rows = Vec::new();
    for path in paths {
        let before = problems.len();
        let read = catch_unwind(AssertUnwindSafe(|| read_file(path, &mut rows, problems)));
        let failed = read.unwrap_or_else(|_| Err("is damaged: the Parquet reader panicked".to_owned()));
        if let Err(problem) = failed {
            problems.push(format!("{}: {problem}", path.display()));
        }
        if rows.len() >= ROWS_MAX || problems.len() > before {
            break;
        }
    }
    rows
}

/// The picture of one row.
pub(super) fn picture(path: &Path, row_group: usize, row: usize) -> Result<Vec<u8>, String> {
    let read = catch_unwind(AssertUnwindSafe(|| {
        let file = open(path)?;
        let group = file.get_row_group(row_group).map_err(|error| error.to_string())?;
        PictureColumn::open(&*group, picture_column(&file)?)?.nth(row)
    }));
    read.unwrap_or_else(|_| Err("is damaged: the Parquet reader panicked".to_owned()))
        .map_err(|problem| format!("{}: {problem}", path.display()))
}

fn open(path: &Path) -> Result<SerializedFileReader<File>, String> {
    let file = File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let reader =
        SerializedFileReader::new(file).map_err(|error| format!("is not a Parquet file: {error}"))?;
    let metadata = reader.metadata();
    let columns = metadata.file_metadata().schema_descr().num_columns();
    if columns > COLUMNS_MAX {
        return Err(format!("has {columns} columns; use at most {COLUMNS_MAX}"));
    }
    for group in metadata.row_groups() {
        if !(0..=ROW_GROUP_BYTES_MAX).contains(&group.total_byte_size()) {
            return Err(format!(
                "has a row group of {} bytes; write groups of at most {ROW_GROUP_BYTES_MAX}",
                group.total_byte_size()
            ));
        }
    }
    Ok(reader)
}

/// Index of the leaf `image.bytes`, or of an `image` column that contains bytes directly.
fn picture_column(file: &SerializedFileReader<File>) -> Result<usize, String> {
    let schema = file.metadata().file_metadata().schema_descr();
    let named =
        |name: &str| (0..schema.num_columns()).find(|index| schema.column(*index).path().string() == name);
    let found = named("image.bytes").or_else(|| named("image"));
    found.ok_or_else(|| {
        "has no column image.bytes; write pictures as Hugging Face does, a struct of bytes and path"
            .to_owned()
    })
}

fn read_file(path: &Path, rows: &mut Vec<GroundingRow>, problems: &mut Vec<String>) -> Result<(), String> {
    let file = open(path)?;
    let column = picture_column(&file)?;
    for row_group in 0..file.num_row_groups() {
        let group = file.get_row_group(row_group).map_err(|error| error.to_string())?;
        let mut pictures = PictureColumn::open(&*group, column)?;
        let texts = group.get_row_iter(Some(without_pictures(&file)?)).map_err(|error| error.to_string())?;
        for (row, texts) in texts.enumerate() {
            if rows.len() >= ROWS_MAX {
                return Err(format!("has more rows than the {ROWS_MAX} allowed; split the set"));
            }
            let line = rows.len() + 1;
            let location = format!("{}: row {row} of group {row_group}", path.display());
            let texts = texts.map_err(|error| format!("{location}: {error}"))?;
            let fields: Map<String, Value> = texts
                .get_column_iter()
                .filter_map(|(name, field)| Some((name.clone(), plain(field)?)))
                .collect();
            let at = PictureLocation::Row { path: path.to_owned(), row_group, row };
            let bytes = pictures.next().map_err(|problem| format!("{location}: image: {problem}"));
            match bytes.and_then(|bytes| make_row(location, line, fields, at, &bytes)) {
                Ok(row) => rows.push(row),
                Err(problem) => problems.push(problem),
            }
            if too_many(problems) {
                return Err("has more rows that cannot be used".to_owned());
            }
        }
    }
    Ok(())
}

/// The schema without the picture column.
fn without_pictures(file: &SerializedFileReader<File>) -> Result<Type, String> {
    let schema = file.metadata().file_metadata().schema();
    let fields = schema.get_fields().iter().filter(|field| field.name() != "image").cloned().collect();
    Type::group_type_builder(schema.name()).with_fields(fields).build().map_err(|error| error.to_string())
}

/// Texts, numbers and lists of numbers as JSON; other types are not kept.
fn plain(field: &Field) -> Option<Value> {
    Some(match field {
        Field::Null => Value::Null,
        Field::Bool(flag) => json!(flag),
        Field::Byte(n) => json!(n),
        Field::Short(n) => json!(n),
        Field::Int(n) => json!(n),
        Field::Long(n) => json!(n),
        Field::UByte(n) => json!(n),
        Field::UShort(n) => json!(n),
        Field::UInt(n) => json!(n),
        Field::ULong(n) => json!(n),
        Field::Float(n) => json!(n),
        Field::Double(n) => json!(n),
        Field::Str(text) if text.len() <= KEPT_BYTES_MAX * 4 => json!(text),
        Field::ListInternal(list) if list.elements().len() <= 64 => {
            Value::Array(list.elements().iter().map(plain).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

/// Reads the pictures of a row group in order.
struct PictureColumn {
    reader: parquet::column::reader::ColumnReaderImpl<parquet::data_type::ByteArrayType>,
    optional: bool,
}

impl PictureColumn {
    fn open(group: &dyn RowGroupReader, column: usize) -> Result<Self, String> {
        let optional = group.metadata().column(column).column_descr().max_def_level() > 0;
        match group.get_column_reader(column).map_err(|error| error.to_string())? {
            ColumnReader::ByteArrayColumnReader(reader) => Ok(Self { reader, optional }),
            _ => Err("has pictures that are not bytes; write image.bytes as binary".to_owned()),
        }
    }

    fn nth(mut self, row: usize) -> Result<Vec<u8>, String> {
        let skipped = self.reader.skip_records(row).map_err(|error| error.to_string())?;
        if skipped != row {
            return Err(format!("has only {skipped} rows in this group"));
        }
        self.next()
    }

    fn next(&mut self) -> Result<Vec<u8>, String> {
        let mut levels = Vec::new();
        let mut values = Vec::<ByteArray>::new();
        let wanted = self.optional.then_some(&mut levels);
        self.reader.read_records(1, wanted, None, &mut values).map_err(|error| error.to_string())?;
        let bytes = values.pop().ok_or("contains no picture in this row: image.bytes is null")?;
        if bytes.len() as u64 > BYTES_MAX {
            return Err(format!("has a picture of {} bytes; use at most {BYTES_MAX}", bytes.len()));
        }
        Ok(bytes.data().to_vec())
    }
}
