//! The header of a safetensors file: eight bytes of length, then JSON with the type, shape and byte
//! range of each tensor.
//!
//! Everything is checked before the header leads to an allocation. Afterwards each range is inside
//! the file and has the size of its shape, and together the ranges cover the data once.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use safetensors::Dtype;
use serde::de::{
    Deserialize, Deserializer, Error as _, IgnoredAny, IntoDeserializer, MapAccess, Visitor, value,
};

use super::displayed::displayed_name;

/// Longest header that is read: 6,000 tensors x 150 bytes = 0.9 MB.
pub const HEADER_MAX: u64 = 16 << 20;
/// Bytes that hold the header's length.
const LENGTH_BYTES: usize = 8;
/// Most dimensions of a tensor. Models have at most four.
const DIMENSIONS_MAX: usize = 8;

/// Position of a tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TensorEntry {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Its bytes, counted from the start of the file.
    pub(super) bytes: Range<usize>,
}

/// Why a file is not a valid safetensors file.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// Too short for the length.
    #[error(
        "the file has {bytes} bytes; a safetensors file begins with 8 bytes that hold the length of its header"
    )]
    Short {
        /// Bytes of the file.
        bytes: usize,
    },
    /// A header longer than any checkpoint needs.
    #[error("the header is {claimed} bytes long; at most {HEADER_MAX} are accepted")]
    Bomb {
        /// Length that the file gives.
        claimed: u64,
    },
    /// The file ends inside its header.
    #[error(
        "the header is {claimed} bytes long, but the file has {bytes} bytes: it is truncated; copy it again"
    )]
    CutOff {
        /// Length that the file gives.
        claimed: u64,
        /// Bytes of the file.
        bytes: usize,
    },
    /// The header is not valid JSON of the expected form.
    #[error("the header is not a JSON object of tensors")]
    Json(#[source] serde_json::Error),
    /// Two tensors have one name.
    #[error("tensor {name} is named twice")]
    Twice { name: String },
    /// A type that is not one of the format's.
    #[error("tensor {name} has the unknown type {dtype}")]
    Dtype { name: String, dtype: String },
    /// Shape and byte range contradict each other.
    #[error(
        "tensor {name} of type {dtype} and shape {shape} cannot have the byte range {start}..{end} of the data"
    )]
    Size {
        name: String,
        dtype: String,
        shape: String,
        start: u64,
        /// The byte after its last.
        end: u64,
    },
    /// A tensor's range ends after the end of the file.
    #[error(
        "tensor {name} ends at byte {end} of the data, but the file has {data}: it is truncated; copy it again"
    )]
    Beyond {
        name: String,
        /// The byte after its last.
        end: u64,
        /// Bytes of data in the file.
        data: usize,
    },
    /// Two tensors share bytes.
    #[error("tensors {first} and {second} overlap")]
    Overlap {
        /// The one that starts first.
        first: String,
        second: String,
    },
    /// Bytes that belong to no tensor.
    #[error("bytes {start}..{end} of the data belong to no tensor; the format allows no gaps")]
    Gap {
        start: usize,
        /// The one after the last.
        end: usize,
    },
}

/// Reads and checks the header of a whole file.
pub(super) fn read(file: &[u8]) -> Result<Vec<TensorEntry>, HeaderError> {
    let length = file.first_chunk::<LENGTH_BYTES>().ok_or(HeaderError::Short { bytes: file.len() })?;
    let claimed = u64::from_le_bytes(*length);
    if claimed > HEADER_MAX {
        return Err(HeaderError::Bomb { claimed });
    }
    let data_start = LENGTH_BYTES + claimed as usize;
    let json =
        file.get(LENGTH_BYTES..data_start).ok_or(HeaderError::CutOff { claimed, bytes: file.len() })?;
    let EntryList(listed) = serde_json::from_slice(json).map_err(HeaderError::Json)?;
    let data = file.len() - data_start;
    let entries: Vec<TensorEntry> = listed
        .into_iter()
        .map(|(name, raw)| check(name, &raw, data_start, data))
        .collect::<Result<_, _>>()?;
    check_names(&entries)?;
    check_cover(&entries, data_start, file.len())?;
    Ok(entries)
}

/// Checks one tensor: its type is known, the length of its range is that of its shape, and the
/// range is inside the file.
fn check(name: String, raw: &RawEntry, data_start: usize, data: usize) -> Result<TensorEntry, HeaderError> {
    let dtype: value::StrDeserializer<'_, value::Error> = raw.dtype.as_str().into_deserializer();
    let Ok(dtype) = Dtype::deserialize(dtype) else {
        return Err(HeaderError::Dtype { name: displayed_name(&name), dtype: displayed_name(&raw.dtype) });
    };
    let (start, end) = raw.data_offsets;
    if bytes_of(dtype, &raw.shape).is_none_or(|bytes| start.checked_add(bytes) != Some(end)) {
        let shape = displayed_name(&format!("{:?}", &raw.shape[..raw.shape.len().min(DIMENSIONS_MAX)]));
        return Err(HeaderError::Size {
            name: displayed_name(&name),
            dtype: raw.dtype.clone(),
            shape,
            start,
            end,
        });
    }
    if end > data as u64 {
        return Err(HeaderError::Beyond { name: displayed_name(&name), end, data });
    }
    let shape = raw.shape.iter().map(|dimension| *dimension as usize).collect();
    Ok(TensorEntry { name, dtype, shape, bytes: data_start + start as usize..data_start + end as usize })
}

/// Bytes of a tensor; `None` if they are not a whole number or the product overflows.
fn bytes_of(dtype: Dtype, shape: &[u64]) -> Option<u64> {
    let elements = shape.iter().try_fold(1_u64, |product, dimension| product.checked_mul(*dimension))?;
    let bits = elements.checked_mul(dtype.bitsize() as u64)?;
    (shape.len() <= DIMENSIONS_MAX && bits.is_multiple_of(8)).then_some(bits / 8)
}

fn check_names(entries: &[TensorEntry]) -> Result<(), HeaderError> {
    let mut known = HashSet::with_capacity(entries.len());
    let twice = entries.iter().find(|entry| !known.insert(entry.name.as_str()));
    twice.map_or(Ok(()), |entry| Err(HeaderError::Twice { name: displayed_name(&entry.name) }))
}

/// Checks that tensors follow each other without overlap or gap, from the first byte of the data to
/// the last.
fn check_cover(entries: &[TensorEntry], data_start: usize, file_end: usize) -> Result<(), HeaderError> {
    let mut sorted: Vec<&TensorEntry> = entries.iter().collect();
    sorted.sort_by_key(|entry| (entry.bytes.start, entry.bytes.end));
    let mut before: Option<&TensorEntry> = None;
    for entry in sorted {
        let covered = before.map_or(data_start, |before| before.bytes.end);
        match before {
            Some(before) if entry.bytes.start < covered => {
                return Err(HeaderError::Overlap {
                    first: displayed_name(&before.name),
                    second: displayed_name(&entry.name),
                });
            }
            _ => gap(covered, entry.bytes.start, data_start)?,
        }
        before = Some(entry);
    }
    gap(before.map_or(data_start, |before| before.bytes.end), file_end, data_start)
}

fn gap(covered: usize, next: usize, data_start: usize) -> Result<(), HeaderError> {
    match covered == next {
        true => Ok(()),
        false => Err(HeaderError::Gap { start: covered - data_start, end: next - data_start }),
    }
}

/// A tensor as the JSON describes it.
#[derive(serde::Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The JSON object in its own order, including names that occur twice.
struct EntryList(Vec<(String, RawEntry)>);

impl<'de> Deserialize<'de> for EntryList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntryListVisitor).map(Self)
    }
}

struct EntryListVisitor;

impl<'de> Visitor<'de> for EntryListVisitor {
    type Value = Vec<(String, RawEntry)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut listed = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let raw = map.next_value();
            let raw = raw.map_err(|error| {
                A::Error::custom(format_args!("tensor {}: {error}", displayed_name(&name)))
            })?;
            listed.push((name, raw));
        }
        Ok(listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.resize(file.len() + data, 0);
        file
    }

    fn entry(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
    }

    fn valid() -> Vec<u8> {
        let parts = [
            entry("b", "BF16", "[2,3]", 8, 20),
            entry("a", "F32", "[2]", 0, 8),
            entry("c", "F32", "[0]", 20, 20),
        ];
        file(&format!(r#"{{"__metadata__":{{"format":"pt"}},{}}}"#, parts.join(",")), 20)
    }

    #[test]
    fn a_valid_header_is_read_in_its_order() {
        let file = valid();
        let entries = read(&file).unwrap();
        let found: Vec<_> = entries.iter().map(|entry| (entry.name.as_str(), entry.bytes.len())).collect();
        assert_eq!(found, [("b", 12), ("a", 8), ("c", 0)]);
        assert_eq!(entries[0].bytes.end, file.len());
        assert_eq!(entries[0].shape, [2, 3]);
    }

    #[test]
    fn hostile_headers_are_refused_by_name() {
        let check = |file: &[u8], fragments: &[&str]| {
            let error = read(file).expect_err(&format!("{fragments:?}"));
            let text = format!(
                "{error} {}",
                std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default()
            );
            assert!(fragments.iter().all(|fragment| text.contains(fragment)), "{fragments:?}: {text}");
        };
        let one = |dtype, shape, start, end, data| {
            file(&format!("{{{}}}", entry("w", dtype, shape, start, end)), data)
        };
        check(&[], &["0 bytes"]);
        check(&[1, 0, 0], &["3 bytes"]);
        check(&u64::MAX.to_le_bytes(), &["18446744073709551615", "16777216"]);
        check(&(HEADER_MAX + 1).to_le_bytes(), &["at most 16777216"]);
        check(&file("{}", 0)[..9], &["2 bytes long", "9 bytes", "truncated"]);
        check(&file("[]", 0), &["not a JSON object"]);
        check(&file(r#"{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, 4), &["tensor w", "-1"]);
        check(&file(r#"{"w":{"dtype":"F32","shape":[1]}}"#, 4), &["tensor w", "data_offsets"]);
        check(&file(&"[".repeat(100_000), 0), &["not a JSON object"]);
        check(&file(&format!(r#"{{"__metadata__":{}"#, "[".repeat(100_000)), 0), &["not a JSON object"]);
        check(&one("F128", "[1]", 0, 4, 4), &["w", "F128"]);
        check(&one("F32", "[1]", 0, 8, 8), &["w", "[1]", "0..8"]);
        check(&one("F32", "[2]", 8, 0, 8), &["w", "8..0"]);
        check(&one("F32", "[18446744073709551615,2]", 0, 8, 8), &["w", "18446744073709551615"]);
        check(&one("F32", "[4611686018427387904]", 0, 0, 8), &["w", "4611686018427387904"]);
        check(&one("F32", "[1,1,1,1,1,1,1,1,1]", 0, 4, 4), &["w"]);
        check(&one("F4", "[1]", 0, 0, 0), &["w", "F4"]);
        check(&one("F32", "[2]", 18_446_744_073_709_551_608, 18_446_744_073_709_551_615, 8), &["w"]);
        check(&one("F32", "[2]", 0, 8, 7), &["w", "byte 8", "has 7"]);
        check(&one("F32", "[2]", 0, 8, 9), &["8..9", "no tensor"]);
        check(&one("F32", "[2]", 4, 12, 12), &["0..4", "no tensor"]);
        let two = |second: String| file(&format!("{{{},{second}}}", entry("a", "F32", "[2]", 0, 8)), 12);
        check(&two(entry("b", "F32", "[2]", 4, 12)), &["a and b overlap"]);
        check(&two(entry("a", "F32", "[1]", 8, 12)), &["a is named twice"]);
        check(&two(entry("b", "F32", "[2]", 0, 8)), &["a and b overlap"]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(read(&bytes).is_err());
        }

        #[test]
        fn no_change_of_a_valid_file_makes_it_panic(at in 0..150_usize, to in any::<u8>(), cut in 0..400_usize) {
            let mut file = valid();
            let at = at % file.len();
            file[at] = to;
            file.truncate(cut);
            for entry in read(&file).unwrap_or_default() {
                prop_assert!(entry.bytes.end <= file.len());
            }
        }
    }
}
