//! Parquet encoding of each column, chosen by the type of the leaf, so that no path can be
//! misspelt.

use arrow::datatypes::Schema;
use parquet::arrow::ArrowSchemaConverter;
use parquet::basic::{Compression, ConvertedType, Encoding, Type, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::schema::types::ColumnDescriptor;

/// Content of a leaf, as far as it affects the encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeafKind {
    /// Encoded pictures: already compressed, never equal, never compared.
    Picture,
    /// Token ids, counts, offsets and versions, one per token. Rising offsets take 0.004 bytes as
    /// differences, 2.8 plain; a screenshot's run of placeholders takes almost nothing.
    Tokens,
    /// Log-probs and entropies, one per token. 200,000 synthetic values take 3.63 bytes each after
    /// zstd when byte-stream-split, 3.68 plain, 5.57 by dictionary.
    Floats,
    /// Everything else: strings, numbers, hashes.
    Plain,
}

/// The writer properties of files with these columns.
pub(crate) fn properties(
    schema: &Schema,
    row_group_bytes: usize,
    zstd_level: i32,
    metadata: Vec<KeyValue>,
) -> Result<WriterProperties, ParquetError> {
    let parquet = ArrowSchemaConverter::new().convert(schema)?;
    let whole = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(zstd_level)?))
        .set_dictionary_enabled(true)
        // Per row group, not per page: a shard of a followed job is small and its footer must not
        // outgrow it.
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_max_row_group_bytes(Some(row_group_bytes))
        .set_key_value_metadata(Some(metadata));
    Ok(parquet.columns().iter().fold(whole, |whole, leaf| set_encoding(whole, leaf)).build())
}

fn set_encoding(whole: WriterPropertiesBuilder, leaf: &ColumnDescriptor) -> WriterPropertiesBuilder {
    let path = leaf.path().clone();
    match kind(leaf) {
        LeafKind::Plain => whole,
        LeafKind::Picture => whole
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_statistics_enabled(path.clone(), EnabledStatistics::None)
            .set_column_compression(path, Compression::UNCOMPRESSED),
        LeafKind::Tokens => list(whole, leaf, Encoding::DELTA_BINARY_PACKED),
        LeafKind::Floats => list(whole, leaf, Encoding::BYTE_STREAM_SPLIT),
    }
}

fn list(
    whole: WriterPropertiesBuilder,
    leaf: &ColumnDescriptor,
    encoding: Encoding,
) -> WriterPropertiesBuilder {
    let path = leaf.path().clone();
    whole
        .set_column_dictionary_enabled(path.clone(), false)
        .set_column_statistics_enabled(path.clone(), EnabledStatistics::None)
        .set_column_encoding(path, encoding)
}

/// A list at the root of a table holds one entry per token: `name.list.item`.
fn kind(leaf: &ColumnDescriptor) -> LeafKind {
    let is_token_list = leaf.path().parts().len() == 3 && leaf.max_rep_level() == 1;
    match leaf.physical_type() {
        Type::BYTE_ARRAY if leaf.converted_type() != ConvertedType::UTF8 => LeafKind::Picture,
        Type::INT32 if is_token_list => LeafKind::Tokens,
        Type::FLOAT if is_token_list => LeafKind::Floats,
        _ => LeafKind::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Table;

    fn leaves(table: Table, wanted: LeafKind) -> Vec<String> {
        let parquet = ArrowSchemaConverter::new().convert(&table.schema()).unwrap();
        let leaves = parquet.columns().iter().filter(|leaf| kind(leaf) == wanted);
        leaves.map(|leaf| leaf.path().string()).collect()
    }

    #[test]
    fn leaves_are_classified() {
        assert_eq!(leaves(Table::Steps, LeafKind::Picture), ["observation.screenshot.bytes"]);
        assert_eq!(leaves(Table::Trajectories, LeafKind::Picture), ["evidence.screenshot.bytes"]);
        assert_eq!(
            leaves(Table::Steps, LeafKind::Tokens),
            [
                "prompt_token_ids.list.item",
                "response_token_ids.list.item",
                "commit_token_ids.list.item",
                "kept_count.list.item",
                "kept_token_ids.list.item",
                "kept_offsets.list.item",
                "policy_versions.list.item",
            ]
        );
        assert_eq!(
            leaves(Table::Steps, LeafKind::Floats),
            ["logprobs.list.item", "sampled_logprobs.list.item", "entropy.list.item"]
        );
        for table in [Table::Trajectories, Table::Groups, Table::Scores] {
            assert!(leaves(table, LeafKind::Tokens).is_empty(), "{table}");
            assert!(leaves(table, LeafKind::Floats).is_empty(), "{table}");
        }
    }
}
