//! A row of any table as JSON, with the names of its columns: everything a page or a program shows
//! of it.
//!
//! Bytes are replaced by their length: a picture has an address of its own. A whole number that a
//! double cannot hold (seeds, fencing tokens) is a string of its digits, so that no reader rounds
//! it.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{
    DataType, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType, UInt64Type,
};
use furrow_records::hex;
use serde_json::{Map, Value, json};

/// Whole numbers beyond 2^53 do not fit a double exactly.
const EXACT_MAX: u64 = 1 << 53;

/// The rows of a batch, one JSON object each.
pub(crate) fn rows(batch: &RecordBatch) -> Vec<Value> {
    (0..batch.num_rows()).map(|row| object(batch.schema_ref().fields(), batch.columns(), row)).collect()
}

fn object(fields: &arrow::datatypes::Fields, columns: &[arrow::array::ArrayRef], row: usize) -> Value {
    let cells = fields.iter().zip(columns);
    Value::Object(
        cells.map(|(field, column)| (field.name().clone(), cell(column, row))).collect::<Map<_, _>>(),
    )
}

/// One cell. The types are those of `furrow_records::cell`; any other type becomes null, which a
/// test of all tables excludes.
fn cell(column: &dyn Array, row: usize) -> Value {
    if column.is_null(row) {
        return Value::Null;
    }
    match column.data_type() {
        DataType::Boolean => column.as_boolean().value(row).into(),
        DataType::Int16 => column.as_primitive::<Int16Type>().value(row).into(),
        DataType::Int32 => column.as_primitive::<Int32Type>().value(row).into(),
        DataType::Int64 => signed(column.as_primitive::<Int64Type>().value(row)),
        DataType::UInt64 => unsigned(column.as_primitive::<UInt64Type>().value(row)),
        // As short as it was written: 0.1f32 is 0.1 and not 0.10000000149.
        DataType::Float32 => column
            .as_primitive::<Float32Type>()
            .value(row)
            .to_string()
            .parse::<f64>()
            .map_or(Value::Null, Value::from),
        DataType::Float64 => column.as_primitive::<Float64Type>().value(row).into(),
        DataType::Timestamp(..) => signed(column.as_primitive::<TimestampMicrosecondType>().value(row)),
        DataType::Utf8 => column.as_string::<i32>().value(row).into(),
        DataType::Binary => json!({ "num_bytes": column.as_binary::<i32>().value(row).len() }),
        DataType::FixedSizeBinary(_) => hex(column.as_fixed_size_binary().value(row)).into(),
        DataType::List(_) => {
            let items = column.as_list::<i32>().value(row);
            (0..items.len()).map(|item| cell(&items, item)).collect()
        }
        DataType::Struct(fields) => object(fields, column.as_struct().columns(), row),
        _ => Value::Null,
    }
}

fn signed(value: i64) -> Value {
    if value.unsigned_abs() > EXACT_MAX { value.to_string().into() } else { value.into() }
}

fn unsigned(value: u64) -> Value {
    if value > EXACT_MAX { value.to_string().into() } else { value.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::StructArray;
    use bytes::Bytes;
    use furrow_records::Table;
    use furrow_records::cell::{ColumnCell, TimestampMicros, columns};

    columns! {
        /// A column of each type.
        EveryRow {
            flag: bool,
            short: i16,
            int: i32,
            long: i64,
            seed: u64,
            small: f32,
            wide: f64,
            at: TimestampMicros,
            text: String,
            bytes: Bytes,
            hash: [u8; 16],
            list: Vec<Option<f32>>,
            inner: Option<InnerCell>,
        }

        InnerCell { name: String }
    }

    #[test]
    fn a_row_says_what_its_columns_say() {
        let row = EveryRow {
            flag: true,
            short: -3,
            int: 7,
            long: -9,
            seed: u64::MAX,
            small: 0.1,
            wide: 1.5,
            at: TimestampMicros(1_790_000_000_000_000),
            text: "</script>\u{0}é".into(),
            bytes: Bytes::from_static(b"abc"),
            hash: [0xab; 16],
            list: vec![Some(-0.5), None, Some(f32::NAN)],
            inner: Some(InnerCell { name: "x".into() }),
        };
        let batch = RecordBatch::from(EveryRow::column(vec![row, EveryRow::default()]).as_struct());
        let rows = rows(&batch);
        let want = json!({
            "flag": true, "short": -3, "int": 7, "long": -9, "seed": "18446744073709551615", "small": 0.1,
            "wide": 1.5, "at": 1_790_000_000_000_000_i64, "text": "</script>\u{0}é", "bytes": {"num_bytes": 3},
            "hash": "ab".repeat(16), "list": [-0.5, null, null], "inner": {"name": "x"},
        });
        assert_eq!(rows[0], want);
        assert_eq!((&rows[1]["inner"], &rows[1]["seed"]), (&Value::Null, &json!(0)));
    }

    #[test]
    fn every_column_of_every_table_has_a_form() {
        fn known(kind: &DataType) -> bool {
            match kind {
                DataType::List(item) => known(item.data_type()),
                DataType::Struct(fields) => fields.iter().all(|field| known(field.data_type())),
                DataType::Boolean
                | DataType::Int16
                | DataType::Int32
                | DataType::Int64
                | DataType::UInt64 => true,
                DataType::Float32 | DataType::Float64 | DataType::Timestamp(..) | DataType::Utf8 => true,
                other => matches!(other, DataType::Binary | DataType::FixedSizeBinary(_)),
            }
        }
        for table in Table::ALL {
            for field in table.schema().fields() {
                assert!(known(field.data_type()), "{table}: {field}");
            }
        }
        drop(StructArray::from(RecordBatch::new_empty(Table::Steps.schema())));
    }
}
