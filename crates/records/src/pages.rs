//! What the pages of a file unpack to, read from their headers before one is unpacked: a few bytes
//! may claim any size.
//!
//! A batch holds the current page of each column, and its own rows. Both are bounded here: no file
//! whose columns unpack to more than [`unpacked_max`] is read, and rows of a batch are as few as
//! their densest pages ask for.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use parquet::basic::Type;
use parquet::column::page::{Page, PageReader};
use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::serialized_reader::SerializedPageReader;

use crate::page_header::{PageHeader, PageKind};

/// Bytes that the columns of any file may unpack to at once: a row has two messages of 16 MiB at
/// most, of which token ids may double.
const UNPACKED_ANY: u64 = 36 << 20;
/// The same of a large file, as a multiple of its bytes. Trees of a page as text unpack to 20 times
/// their size.
const UNPACKED_RATIO: u64 = 32;
/// Target for the memory of one batch.
const BATCH_BYTES: f64 = (16 << 20) as f64;
const BATCH_ROWS_MAX: f64 = 1024.0;
/// Longest page header: the newest writers put no statistics into it, others may.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// What a value takes beside its own bytes: an offset and two levels.
const VALUE_BYTES: u64 = 8;

/// What reading some columns takes.
#[derive(Debug, Default, Clone, Copy)]
struct ColumnCost {
    /// Bytes of the largest part that is unpacked at once.
    at_once: u64,
    /// Bytes of a row where its pages are densest.
    of_row: f64,
}

/// Most bytes that the columns of a file of this length may unpack to at once.
fn unpacked_max(file_bytes: u64) -> u64 {
    UNPACKED_ANY.max(UNPACKED_RATIO.saturating_mul(file_bytes))
}

/// Rows of a batch of these columns; the error is what is wrong with the file.
pub(crate) fn batch_rows(
    file: &File,
    metadata: &ParquetMetaData,
    groups: &[usize],
    reads: impl Fn(usize) -> bool,
) -> Result<usize, ParquetError> {
    let most = unpacked_max(file.metadata()?.len());
    let leaves = metadata.file_metadata().schema_descr().num_columns();
    let mut sum = ColumnCost::default();
    let mut largest = (String::new(), 0);
    for leaf in (0..leaves).filter(|leaf| reads(*leaf)) {
        let mut column = ColumnCost::default();
        for group in groups.iter().map(|group| metadata.row_group(*group)) {
            let cost = chunk_cost(file, group.column(leaf), group.num_rows(), most)?;
            column.at_once = column.at_once.max(cost.at_once);
            column.of_row = column.of_row.max(cost.of_row);
        }
        sum.at_once = sum.at_once.saturating_add(column.at_once);
        sum.of_row += column.of_row;
        if column.at_once > largest.1 {
            let schema = metadata.file_metadata().schema_descr();
            largest = (schema.column(leaf).path().string(), column.at_once);
        }
    }
    if sum.at_once > most {
        let (name, at_once) = largest;
        return Err(ParquetError::General(format!(
            "its columns unpack to {} bytes at once, of which {name} takes {at_once}; at most {most} are read of a file \
             of this length",
            sum.at_once
        )));
    }
    Ok((BATCH_BYTES / sum.of_row.max(1.0)).clamp(1.0, BATCH_ROWS_MAX) as usize)
}

/// The cost of a column in one row group.
fn chunk_cost(
    file: &File,
    chunk: &ColumnChunkMetaData,
    rows: i64,
    most: u64,
) -> Result<ColumnCost, ParquetError> {
    let column = chunk.column_descr();
    let width = match column.physical_type() {
        Type::BOOLEAN => 1,
        Type::INT32 | Type::FLOAT => 4,
        Type::INT64 | Type::DOUBLE => 8,
        Type::INT96 => 12,
        Type::FIXED_LEN_BYTE_ARRAY => u64::try_from(column.type_length()).unwrap_or(0),
        Type::BYTE_ARRAY => 0,
    };
    let is_nested = column.max_rep_level() > 0;
    let mut dictionary = 0;
    let mut longest = 0;
    let mut all = 0u64;
    let mut cost = ColumnCost::default();
    for (index, header) in headers(file, chunk)?.into_iter().enumerate() {
        let of_values = header.values.saturating_mul(width + VALUE_BYTES);
        let mut unpacked = header.unpacked.max(header.packed).max(of_values);
        match header.kind {
            PageKind::Dictionary if index > 0 => {
                return Err(ParquetError::General("has a dictionary behind values".to_owned()));
            }
            PageKind::Dictionary => {
                dictionary = unpacked;
                longest = header.unpacked;
                let is_long = header.unpacked > u64::from(u16::MAX) && header.unpacked <= most;
                if width == 0 && is_long {
                    longest = longest_entry(file, chunk, rows)?;
                }
            }
            PageKind::Values => {
                // Each value may repeat the longest one before it.
                let entry = match width {
                    0 if header.is_dictionary_coded => longest,
                    0 if header.is_prefix_coded => header.unpacked,
                    _ => 0,
                };
                if is_nested {
                    unpacked = unpacked.saturating_add(header.values.saturating_mul(entry));
                    all = all.saturating_add(unpacked);
                } else {
                    let values = header.values.max(1);
                    cost.of_row = cost.of_row.max(unpacked as f64 / values as f64 + entry as f64);
                    unpacked = unpacked.max(entry);
                }
                cost.at_once = cost.at_once.max(unpacked);
            }
        }
    }
    if is_nested {
        // One row may have all values.
        if all > most {
            all = all.min(nested_bytes(file, chunk, rows, most)?);
        }
        cost = ColumnCost { at_once: all, of_row: all as f64 / rows.max(1) as f64 };
    }
    cost.at_once = cost.at_once.saturating_add(dictionary);
    Ok(cost)
}

/// Headers of all pages of a column in one row group.
fn headers(file: &File, chunk: &ColumnChunkMetaData) -> Result<Vec<PageHeader>, ParquetError> {
    let (mut at, length) = chunk.byte_range();
    let end = at.saturating_add(length);
    let mut headers = Vec::new();
    let mut bytes = vec![0; 256];
    while at < end {
        let read = file.read_at(&mut bytes, at)?;
        match PageHeader::parse(&bytes[..read]) {
            Some((header, length)) => {
                at = at.saturating_add(length as u64).saturating_add(header.packed);
                headers.extend((!header.is_index).then_some(header));
            }
            None if read == bytes.len() && read < HEADER_BYTES_MAX => bytes.resize(2 * read, 0),
            None => return Err(ParquetError::General("has a page header that cannot be read".to_owned())),
        }
    }
    Ok(headers)
}

fn pages(
    file: &File,
    chunk: &ColumnChunkMetaData,
    rows: i64,
) -> Result<SerializedPageReader<File>, ParquetError> {
    SerializedPageReader::new(Arc::new(file.try_clone()?), chunk, usize::try_from(rows).unwrap_or(0), None)
}

/// Bytes of the longest entry of a dictionary of texts, each after its length.
fn longest_entry(file: &File, chunk: &ColumnChunkMetaData, rows: i64) -> Result<u64, ParquetError> {
    let page = pages(file, chunk, rows)?.get_next_page()?;
    let Some(Page::DictionaryPage { buf, .. }) = page else { return Ok(0) };
    let mut rest = &buf[..];
    let mut longest = 0;
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length);
        longest = longest.max(u64::from(length));
        rest = after.get(length as usize..).unwrap_or_default();
    }
    Ok(longest)
}

/// Bytes of all texts of a column of lists, counted without copying one; `u64::MAX` of another
/// column, or where even the count is too large.
fn nested_bytes(file: &File, chunk: &ColumnChunkMetaData, rows: i64, most: u64) -> Result<u64, ParquetError> {
    const SLICE_BYTES: u64 = 48;
    let values: u64 = headers(file, chunk)?.iter().map(|header| header.values).sum();
    let column = chunk.column_descr_ptr();
    if column.physical_type() != Type::BYTE_ARRAY || values.saturating_mul(SLICE_BYTES) > most {
        return Ok(u64::MAX);
    }
    let pages: Box<dyn PageReader> = Box::new(pages(file, chunk, rows)?);
    let ColumnReader::ByteArrayColumnReader(mut reader) = get_column_reader(column, pages) else {
        return Ok(u64::MAX);
    };
    let mut sum = values * VALUE_BYTES;
    let mut definitions = Vec::new();
    let mut repetitions = Vec::new();
    let mut texts = Vec::new();
    loop {
        definitions.clear();
        repetitions.clear();
        texts.clear();
        let (records, ..) =
            reader.read_records(256, Some(&mut definitions), Some(&mut repetitions), &mut texts)?;
        if records == 0 {
            return Ok(sum);
        }
        sum += texts.iter().map(|text| text.len() as u64).sum::<u64>();
    }
}
