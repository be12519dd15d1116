//! Finds out which keys a section has and which values each takes, from the types that read it.
//!
//! Serde passes the names of a struct's fields to a deserializer before it asks for their values. A
//! deserializer that records the names and makes up values therefore learns the whole shape of a
//! type, without a list of keys that could be forgotten.

use std::fmt;

use serde::de::value::Error;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, Expected, IntoDeserializer,
    MapAccess, SeqAccess, VariantAccess, Visitor,
};

/// The values that a key takes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum KeyShape {
    /// A type that this module does not support; a test requires that no key of a job has one.
    Unknown,
    Flag,
    /// A whole number within inclusive limits.
    Whole {
        least: i128,
        most: i128,
    },
    Number,
    Text,
    /// Text that names a file or a directory.
    Path,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list whose entries have one shape.
    List(Box<KeyShape>),
    /// A section with free keys whose values have one shape.
    Map(Box<KeyShape>),
    /// A section with these keys.
    Section(Vec<(&'static str, KeyShape)>),
}

impl KeyShape {
    /// The shape of a type. Its deserializers must accept any value of the right kind.
    pub(crate) fn of<T: DeserializeOwned>() -> Self {
        let mut shape = KeyShape::Unknown;
        // A deserializer that refuses the made-up values leaves `Unknown`, which the test of the
        // job's shape rejects.
        T::deserialize(ShapeProbe(&mut shape)).map(drop).unwrap_or_default();
        shape
    }

    /// The shape of a key, if this is a section that has it.
    pub(crate) fn at(&self, key: &str) -> Option<&KeyShape> {
        match self {
            KeyShape::Section(keys) => keys.iter().find(|(name, _)| *name == key).map(|(_, shape)| shape),
            KeyShape::Map(each) => Some(each),
            _ => None,
        }
    }

    /// All keys below, dotted, such as `policy.sampling.temperature` and `tasks.source[].path`.
    pub(crate) fn keys(&self) -> Vec<String> {
        match self {
            KeyShape::Section(keys) => keys.iter().flat_map(|(name, shape)| below(name, shape)).collect(),
            _ => Vec::new(),
        }
    }
}

/// The key itself, then the keys of its section or of the sections in its list.
fn below(name: &str, shape: &KeyShape) -> Vec<String> {
    let (section, inner) = match shape {
        KeyShape::List(each) => (format!("{name}[]"), each.keys()),
        _ => (name.to_owned(), shape.keys()),
    };
    let dotted = inner.into_iter().map(|key| format!("{section}.{key}"));
    [name.to_owned()].into_iter().chain(dotted).collect()
}

impl fmt::Display for KeyShape {
    /// Completes the sentence "use ..".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyShape::Unknown => f.write_str("another value"),
            KeyShape::Flag => f.write_str("true or false"),
            // Only the type's own limit: the key's is checked where its meaning is known.
            KeyShape::Whole { least: 0, most } if *most >= u32::MAX.into() => {
                f.write_str("a whole number, 0 or more")
            }
            KeyShape::Whole { least, most } => write!(f, "a whole number from {least} to {most}"),
            KeyShape::Number => f.write_str("a number"),
            KeyShape::Text => f.write_str("text in quotes"),
            KeyShape::Path => f.write_str("a path in quotes"),
            KeyShape::Choice(choices) => {
                let quoted: Vec<_> = choices.iter().map(|choice| format!("{choice:?}")).collect();
                write!(f, "one of {}", quoted.join(", "))
            }
            KeyShape::List(each) => write!(f, "a list [..], each entry {each}"),
            KeyShape::Map(_) | KeyShape::Section(_) => f.write_str("a section"),
        }
    }
}

/// Supplies made-up values and records what was requested.
struct ShapeProbe<'s>(&'s mut KeyShape);

/// The fields of a struct, one after another.
struct FieldProbe<'s> {
    names: std::slice::Iter<'static, &'static str>,
    section: &'s mut Vec<(&'static str, KeyShape)>,
}

/// One entry of a list or of a map with free keys.
struct EntryProbe<'s>(Option<&'s mut KeyShape>);

/// The first variant of a choice.
struct FirstChoice(&'static str);

macro_rules! whole_numbers {
    ($($method:ident $visit:ident $type:ident),*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            // TOML integers end at the largest signed number of 64 bits.
            let most = i128::from($type::MAX).min(i64::MAX.into());
            *self.0 = KeyShape::Whole { least: $type::MIN.into(), most };
            visitor.$visit(0)
        }
    )*};
}

macro_rules! unsupported {
    ($($method:ident($($arg:ident: $type:ty),*)),*) => {$(
        fn $method<V: Visitor<'de>>(self, $($arg: $type,)* _visitor: V) -> Result<V::Value, Error> {
            Err(Error::custom(concat!("a job file has no ", stringify!($method))))
        }
    )*};
}

impl<'de> Deserializer<'de> for ShapeProbe<'_> {
    type Error = Error;

    whole_numbers!(
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64, deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64
    );

    unsupported!(
        deserialize_any(), deserialize_bytes(), deserialize_byte_buf(), deserialize_unit(), deserialize_char(),
        deserialize_ignored_any(), deserialize_unit_struct(_name: &'static str), deserialize_tuple(_len: usize),
        deserialize_tuple_struct(_name: &'static str, _len: usize)
    );

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        *self.0 = KeyShape::Flag;
        visitor.visit_bool(false)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        *self.0 = KeyShape::Number;
        visitor.visit_f32(0.0)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        *self.0 = KeyShape::Number;
        visitor.visit_f64(0.0)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_string(visitor)
    }

    /// `PathBuf` reads a string like any other type; only the text of what it expects distinguishes
    /// it.
    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let expects = (&visitor as &dyn Expected).to_string();
        *self.0 = if expects == "path string" { KeyShape::Path } else { KeyShape::Text };
        visitor.visit_string(String::new())
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let mut each = KeyShape::Unknown;
        let read = visitor.visit_seq(EntryProbe(Some(&mut each)));
        *self.0 = KeyShape::List(Box::new(each));
        read
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let mut each = KeyShape::Unknown;
        let read = visitor.visit_map(EntryProbe(Some(&mut each)));
        *self.0 = KeyShape::Map(Box::new(each));
        read
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let mut section: Vec<_> = fields.iter().map(|name| (*name, KeyShape::Unknown)).collect();
        let read = visitor.visit_map(FieldProbe { names: fields.iter(), section: &mut section });
        *self.0 = KeyShape::Section(section);
        read
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let first = variants.first().ok_or_else(|| Error::custom("an enum without variants"))?;
        let read = visitor.visit_enum(FirstChoice(first))?;
        *self.0 = KeyShape::Choice(variants);
        Ok(read)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_string(visitor)
    }
}

impl<'de> MapAccess<'de> for FieldProbe<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        self.names.next().map(|name| seed.deserialize((*name).into_deserializer())).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let next = self.section.len() - self.names.len() - 1; // the key was already returned
        seed.deserialize(ShapeProbe(&mut self.section[next].1))
    }
}

impl<'de> SeqAccess<'de> for EntryProbe<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.0.take().map(|each| seed.deserialize(ShapeProbe(each))).transpose()
    }
}

impl<'de> MapAccess<'de> for EntryProbe<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        self.0.is_some().then(|| seed.deserialize("key".into_deserializer())).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let each = self.0.take().ok_or_else(|| Error::custom("the only entry was already read"))?;
        seed.deserialize(ShapeProbe(each))
    }
}

impl<'de> EnumAccess<'de> for FirstChoice {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        Ok((seed.deserialize(self.0.into_deserializer())?, self))
    }
}

impl<'de> VariantAccess<'de> for FirstChoice {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _seed: T) -> Result<T::Value, Error> {
        Err(Error::custom("enum variants must hold no data"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, _visitor: V) -> Result<V::Value, Error> {
        Err(Error::custom("enum variants must hold no data"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Error> {
        Err(Error::custom("enum variants must hold no data"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    #[track_caller]
    fn check<T: DeserializeOwned>(want: &KeyShape) {
        assert_eq!(&KeyShape::of::<T>(), want);
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Colour {
        #[serde(rename = "rot")]
        Red,
        DarkBlue,
    }

    #[derive(Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Inner {
        on: Option<bool>,
        #[serde(rename = "called")]
        name: String,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only the shape is used")]
    struct Outer {
        inner: Inner,
        list: Vec<Inner>,
        maybe: Option<Vec<Option<f32>>>,
        free: BTreeMap<String, u8>,
    }

    #[test]
    fn a_type_yields_its_shape() {
        let inner = || KeyShape::Section(vec![("on", KeyShape::Flag), ("called", KeyShape::Text)]);
        check::<bool>(&KeyShape::Flag);
        check::<u8>(&KeyShape::Whole { least: 0, most: 255 });
        check::<u64>(&KeyShape::Whole { least: 0, most: i64::MAX.into() });
        check::<i32>(&KeyShape::Whole { least: i32::MIN.into(), most: i32::MAX.into() });
        check::<f32>(&KeyShape::Number);
        check::<Option<Option<f64>>>(&KeyShape::Number);
        check::<String>(&KeyShape::Text);
        check::<PathBuf>(&KeyShape::Path);
        check::<Colour>(&KeyShape::Choice(&["rot", "dark-blue"]));
        check::<Vec<u8>>(&KeyShape::List(Box::new(KeyShape::Whole { least: 0, most: 255 })));
        check::<Inner>(&inner());
        check::<Outer>(&KeyShape::Section(vec![
            ("inner", inner()),
            ("list", KeyShape::List(Box::new(inner()))),
            ("maybe", KeyShape::List(Box::new(KeyShape::Number))),
            ("free", KeyShape::Map(Box::new(KeyShape::Whole { least: 0, most: 255 }))),
        ]));
        check::<char>(&KeyShape::Unknown);
    }

    #[test]
    fn keys_are_dotted() {
        let want =
            ["inner", "inner.on", "inner.called", "list", "list[].on", "list[].called", "maybe", "free"];
        assert_eq!(KeyShape::of::<Outer>().keys(), want);
    }
}
