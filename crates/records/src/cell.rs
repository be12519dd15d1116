//! Maps Rust types to Arrow columns and back, so that `schema.rs` can be a plain list of fields.
//!
//! A reader of some columns names them with [`columns!`](crate::columns) and passes the struct to
//! [`DataSet::rows`](crate::DataSet::rows) or [`TableFile::rows`](crate::TableFile::rows).

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, FixedSizeBinaryArray, ListArray, PrimitiveArray,
    StringArray, TimestampMicrosecondArray, make_array,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Field, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, TimeUnit,
    TimestampMicrosecondType, UInt64Type,
};
use bytes::Bytes;

/// A Rust type that fills one Arrow column.
///
/// `read` trusts its array: `file.rs` has already compared the file's types with `data_type`.
/// Values under a null are read as any other and dropped by `Option`.
pub trait ColumnCell: Sized + Default {
    /// Whether the column may hold nulls.
    const NULLABLE: bool = false;

    /// The Arrow type of a column of these cells, without its nullability.
    fn data_type() -> DataType;

    /// The column of these cells.
    fn column(cells: Vec<Self>) -> ArrayRef;

    /// The cells of this column.
    fn read(array: &dyn Array) -> Vec<Self>;

    /// The column's entry in a schema.
    fn field(name: &str) -> Field {
        Field::new(name, Self::data_type(), Self::NULLABLE)
    }

    /// Adds the columns inside this one, where it is a struct or a list of structs. `above` is its
    /// path with a dot, or empty for a row.
    fn columns_below(_above: &str, _columns: &mut Vec<Column>) {}
}

/// A column of a table, for documentation.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Its names from the row down, such as `observation.tabs.title`.
    pub path: String,
    /// The Arrow type of its cells.
    pub data_type: DataType,
    /// Whether it may hold nulls.
    pub nullable: bool,
    /// The comment beside its name.
    pub meaning: String,
}

impl Column {
    /// The column of cells of type `T` with this path, `doc` as the compiler passes it: a line of
    /// the comment each.
    pub fn of<T: ColumnCell>(path: &str, doc: &[&str]) -> Self {
        let lines: Vec<&str> = doc.iter().map(|line| line.trim()).collect();
        let data_type = T::data_type();
        Self { path: path.to_owned(), data_type, nullable: T::NULLABLE, meaning: lines.join(" ") }
    }
}

/// Whether columns of type `got` can be read as `want`: they are equal, except that structs may
/// have additional fields.
pub(crate) fn fits(want: &DataType, got: &DataType) -> bool {
    match (want, got) {
        (DataType::Struct(want), DataType::Struct(got)) => {
            want.iter().all(|want| got.iter().any(|got| got.name() == want.name() && fits_field(want, got)))
        }
        (DataType::List(want), DataType::List(got)) => fits_field(want, got),
        (want, got) => want == got,
    }
}

fn fits_field(want: &Field, got: &Field) -> bool {
    want.is_nullable() == got.is_nullable() && fits(want.data_type(), got.data_type())
}

/// Wall clock, microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimestampMicros(
    /// Negative for a time before 1970.
    pub i64,
);

macro_rules! primitives {
    ($($rust:ty => $arrow:ty),* $(,)?) => {$(
        impl ColumnCell for $rust {
            fn data_type() -> DataType {
                <$arrow as ArrowPrimitiveType>::DATA_TYPE
            }
            fn column(cells: Vec<Self>) -> ArrayRef {
                Arc::new(PrimitiveArray::<$arrow>::from_iter_values(cells))
            }
            fn read(array: &dyn Array) -> Vec<Self> {
                array.as_primitive::<$arrow>().values().to_vec()
            }
        }
    )*};
}

primitives! {
    i16 => Int16Type,
    i32 => Int32Type,
    i64 => Int64Type,
    u64 => UInt64Type,
    f32 => Float32Type,
    f64 => Float64Type,
}

impl ColumnCell for TimestampMicros {
    fn data_type() -> DataType {
        DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
    }
    fn column(cells: Vec<Self>) -> ArrayRef {
        let array = TimestampMicrosecondArray::from_iter_values(cells.into_iter().map(|at| at.0));
        Arc::new(array.with_timezone("UTC"))
    }
    fn read(array: &dyn Array) -> Vec<Self> {
        array
            .as_primitive::<TimestampMicrosecondType>()
            .values()
            .iter()
            .map(|&at| TimestampMicros(at))
            .collect()
    }
}

impl ColumnCell for bool {
    fn data_type() -> DataType {
        DataType::Boolean
    }
    fn column(cells: Vec<Self>) -> ArrayRef {
        Arc::new(BooleanArray::from(cells))
    }
    fn read(array: &dyn Array) -> Vec<Self> {
        array.as_boolean().values().iter().collect()
    }
}

impl ColumnCell for String {
    fn data_type() -> DataType {
        DataType::Utf8
    }
    fn column(cells: Vec<Self>) -> ArrayRef {
        Arc::new(StringArray::from_iter_values(cells))
    }
    fn read(array: &dyn Array) -> Vec<Self> {
        let array = array.as_string::<i32>();
        (0..array.len()).map(|row| array.value(row).to_owned()).collect()
    }
}

impl ColumnCell for Bytes {
    fn data_type() -> DataType {
        DataType::Binary
    }
    fn column(cells: Vec<Self>) -> ArrayRef {
        Arc::new(BinaryArray::from_iter_values(cells))
    }
    fn read(array: &dyn Array) -> Vec<Self> {
        let array = array.as_binary::<i32>();
        (0..array.len()).map(|row| Bytes::copy_from_slice(array.value(row))).collect()
    }
}

/// Hashes of 16 or 32 bytes.
impl<const N: usize> ColumnCell for [u8; N]
where
    [u8; N]: Default,
{
    fn data_type() -> DataType {
        DataType::FixedSizeBinary(N as i32)
    }
    fn column(cells: Vec<Self>) -> ArrayRef {
        Arc::new(FixedSizeBinaryArray::new(N as i32, Buffer::from_vec(cells.concat()), None))
    }
    fn read(array: &dyn Array) -> Vec<Self> {
        let array = array.as_fixed_size_binary();
        let hash = |row| <[u8; N]>::try_from(array.value(row)).unwrap_or_default();
        (0..array.len()).map(hash).collect()
    }
}

impl<T: ColumnCell> ColumnCell for Option<T> {
    const NULLABLE: bool = true;

    fn data_type() -> DataType {
        T::data_type()
    }
    fn column(cells: Vec<Self>) -> ArrayRef {
        let nulls: NullBuffer = cells.iter().map(Option::is_some).collect::<Vec<_>>().into();
        let filled = T::column(cells.into_iter().map(Option::unwrap_or_default).collect());
        let data = filled.to_data().into_builder().nulls(Some(nulls)).build();
        make_array(data.expect("a null mask of the column's own length"))
    }
    fn read(array: &dyn Array) -> Vec<Self> {
        let cells = T::read(array).into_iter().enumerate();
        cells.map(|(row, cell)| array.is_valid(row).then_some(cell)).collect()
    }
    fn columns_below(above: &str, columns: &mut Vec<Column>) {
        T::columns_below(above, columns);
    }
}

impl<T: ColumnCell> ColumnCell for Vec<T> {
    fn data_type() -> DataType {
        DataType::List(Arc::new(Field::new_list_field(T::data_type(), T::NULLABLE)))
    }
    fn column(cells: Vec<Self>) -> ArrayRef {
        let item = Arc::new(Field::new_list_field(T::data_type(), T::NULLABLE));
        let offsets = OffsetBuffer::from_lengths(cells.iter().map(Vec::len));
        let items = T::column(cells.into_iter().flatten().collect());
        Arc::new(ListArray::new(item, offsets, items, None))
    }
    fn read(array: &dyn Array) -> Vec<Self> {
        let array = array.as_list::<i32>();
        let offsets = array.value_offsets();
        let first = offsets[0] as usize;
        let last = offsets[array.len()] as usize;
        let mut items = T::read(&*array.values().slice(first, last - first)).into_iter();
        let lengths = offsets.windows(2).map(|pair| (pair[1] - pair[0]) as usize);
        lengths.map(|length| items.by_ref().take(length).collect()).collect()
    }
    fn columns_below(above: &str, columns: &mut Vec<Column>) {
        T::columns_below(above, columns);
    }
}

/// Declares structs whose fields are columns, so that each name is written only once.
///
/// A struct is a row of a table or a part of one, with all columns or some of them; each is a
/// [`ColumnCell`]. A column that a file of an earlier schema lacks reads as its type's default: a
/// new column is nullable. The calling crate needs `arrow`.
#[macro_export]
macro_rules! columns {
    ($(
        $(#[$doc:meta])*
        $name:ident { $( $(#[doc = $field_doc:literal])* $field:ident : $type:ty ),* $(,)? }
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Default)]
        pub(crate) struct $name { $( $(#[doc = $field_doc])* pub $field: $type ),* }

        impl $name {
            /// The columns in order.
            pub(crate) fn fields() -> arrow::datatypes::Fields {
                [$( <$type as $crate::cell::ColumnCell>::field(stringify!($field)) ),*].into_iter().collect()
            }
        }

        impl $crate::cell::ColumnCell for $name {
            fn data_type() -> arrow::datatypes::DataType {
                arrow::datatypes::DataType::Struct(Self::fields())
            }

            fn column(cells: Vec<Self>) -> arrow::array::ArrayRef {
                let rows = cells.len();
                $( let mut $field = Vec::with_capacity(rows); )*
                for cell in cells {
                    $( $field.push(cell.$field); )*
                }
                let arrays = vec![$( <$type as $crate::cell::ColumnCell>::column($field) ),*];
                std::sync::Arc::new(arrow::array::StructArray::new(Self::fields(), arrays, None))
            }

            fn read(array: &dyn arrow::array::Array) -> Vec<Self> {
                let rows = array.len();
                let array = arrow::array::AsArray::as_struct(array);
                $( let mut $field = array
                    .column_by_name(stringify!($field))
                    .map(|column| <$type as $crate::cell::ColumnCell>::read(column))
                    .unwrap_or_else(|| (0..rows).map(|_| Default::default()).collect())
                    .into_iter(); )*
                (0..rows)
                    .map(|_| Self { $( $field: $field.next().expect("columns of one length") ),* })
                    .collect()
            }

            fn columns_below(above: &str, columns: &mut Vec<$crate::cell::Column>) {
                $(
                    let path = format!("{above}{}", stringify!($field));
                    columns.push($crate::cell::Column::of::<$type>(&path, &[$($field_doc),*]));
                    <$type as $crate::cell::ColumnCell>::columns_below(&format!("{path}."), columns);
                )*
            }
        }
    )*};
}
pub use columns;

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: ColumnCell + PartialEq + std::fmt::Debug + Clone>(cells: &[T]) {
        let column = T::column(cells.to_vec());
        assert_eq!(column.data_type(), &T::data_type());
        assert_eq!(T::read(&*column), cells);
        // A slice of a column reads like a column: readers produce slices.
        let tail = column.slice(cells.len().min(1), cells.len().saturating_sub(1));
        assert_eq!(T::read(&*tail), cells[cells.len().min(1)..]);
    }

    #[test]
    fn what_goes_in_comes_out() {
        check::<i32>(&[]);
        check(&[i64::MIN, 0, i64::MAX]);
        check(&[Some(1.5f32), None, Some(-0.0)]);
        check(&[true, false, true]);
        check(&[String::from("é\0"), String::new()]);
        check(&[Bytes::from_static(b"\xff"), Bytes::new()]);
        check::<[u8; 16]>(&[]);
        check(&[Some([7u8; 32]), None]);
        check(&[TimestampMicros(i64::MIN), TimestampMicros(5)]);
        check(&[vec![1, 2], vec![], vec![3]]);
        check(&[Some(vec![Some(1), None]), None, Some(vec![])]);
        check(&[vec![vec![String::from("a")], vec![]], vec![]]);
    }

    columns! {
        Wide { a: i32, b: Option<Inner> }
        Inner { c: String, d: Vec<i64> }
        /// A subset of the columns.
        Narrow { b: Option<InnerPart> }
        /// A subset of the nested struct.
        InnerPart { d: Vec<i64> }
        /// A column of another type.
        Wrong { a: i64 }
    }

    #[test]
    fn a_row_may_select_fewer_columns() {
        let inner = Inner { c: "x".into(), d: vec![1, 2] };
        let cells = vec![Wide { a: 1, b: Some(inner) }, Wide { a: 2, b: None }];
        check(&cells);
        assert!(fits(&Narrow::data_type(), &Wide::data_type()));
        assert!(!fits(&Wide::data_type(), &Narrow::data_type()));
        assert!(!fits(&Wrong::data_type(), &Wide::data_type()));
        let read = Narrow::read(&*Wide::column(cells));
        assert_eq!(read, [Narrow { b: Some(InnerPart { d: vec![1, 2] }) }, Narrow { b: None }]);
    }

    columns! {
        /// What a later schema has of the same row.
        Later { a: i32, b: Option<LaterInner>, e: Option<bool> }
        LaterInner { c: String, d: Vec<i64>, f: Option<String> }
    }

    #[test]
    fn a_column_that_an_older_file_lacks_reads_as_null_at_any_depth() {
        let inner = Inner { c: "x".into(), d: vec![1, 2] };
        let cells = vec![Wide { a: 1, b: Some(inner) }, Wide { a: 2, b: None }];
        let later = LaterInner { c: "x".into(), d: vec![1, 2], f: None };
        assert_eq!(
            Later::read(&*Wide::column(cells)),
            [Later { a: 1, b: Some(later), e: None }, Later { a: 2, b: None, e: None }]
        );
    }
}
