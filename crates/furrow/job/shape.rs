//! Which keys a section knows and what may stand behind each, asked of the very types that read it.
//!
//! Serde hands a deserializer the names of a struct's fields before it asks for their values. So a deserializer that notes the
//! names and makes values up learns the whole shape of a type. There is no list of keys to forget.

use std::fmt;

use serde::de::value::Error;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, Expected, IntoDeserializer,
    MapAccess, SeqAccess, VariantAccess, Visitor,
};

/// What may stand behind a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// Something this module does not know; a test says that no key of a job is one.
    Unknown,
    /// `true` or `false`.
    Flag,
    /// A whole number, limits included.
    Whole { least: i128, most: i128 },
    /// Any number.
    Number,
    /// Text.
    Text,
    /// Text that names a file or a folder.
    Path,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list, all of one shape.
    List(Box<Shape>),
    /// A section whose keys are free, all of one shape.
    Map(Box<Shape>),
    /// A section with these keys.
    Section(Vec<(&'static str, Shape)>),
}

impl Shape {
    /// The shape of a type. Its readers must not care which values they get, only of which kind.
    pub fn of<T: DeserializeOwned>() -> Self {
        let mut shape = Shape::Unknown;
        // A reader that refuses the made-up values leaves `Unknown` behind, which the test of a job's shape does not forgive.
        T::deserialize(Probe(&mut shape)).map(drop).unwrap_or_default();
        shape
    }

    /// The shape behind a key, if this is a section that knows it.
    pub fn at(&self, key: &str) -> Option<&Shape> {
        match self {
            Shape::Section(keys) => keys.iter().find(|(name, _)| *name == key).map(|(_, shape)| shape),
            Shape::Map(each) => Some(each),
            _ => None,
        }
    }

    /// All keys below, dotted, such as `policy.sampling.temperature` and `tasks.source[].path`.
    pub fn keys(&self) -> Vec<String> {
        match self {
            Shape::Section(keys) => keys.iter().flat_map(|(name, shape)| below(name, shape)).collect(),
            _ => Vec::new(),
        }
    }
}

/// The key itself, then what its section, or each section of its list, knows.
fn below(name: &str, shape: &Shape) -> Vec<String> {
    let (section, inner) = match shape {
        Shape::List(each) => (format!("{name}[]"), each.keys()),
        _ => (name.to_owned(), shape.keys()),
    };
    let dotted = inner.into_iter().map(|key| format!("{section}.{key}"));
    [name.to_owned()].into_iter().chain(dotted).collect()
}

impl fmt::Display for Shape {
    /// What to use, as the end of a sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Unknown => f.write_str("another value"),
            Shape::Flag => f.write_str("true or false"),
            Shape::Whole { least, most } => write!(f, "a whole number from {least} to {most}"),
            Shape::Number => f.write_str("a number"),
            Shape::Text => f.write_str("text in quotes"),
            Shape::Path => f.write_str("a path in quotes"),
            Shape::Choice(words) => {
                let quoted: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
                write!(f, "one of {}", quoted.join(", "))
            }
            Shape::List(each) => write!(f, "a list [..], each entry {each}"),
            Shape::Map(_) | Shape::Section(_) => f.write_str("a section"),
        }
    }
}

/// Gives made-up values and notes what was asked for.
struct Probe<'s>(&'s mut Shape);

/// The fields of a struct, one after another.
struct Fields<'s> {
    names: std::slice::Iter<'static, &'static str>,
    section: &'s mut Vec<(&'static str, Shape)>,
}

/// One entry of a list or of a map with free keys.
struct One<'s>(Option<&'s mut Shape>);

/// The first word of a choice.
struct FirstWord(&'static str);

macro_rules! whole_numbers {
    ($($method:ident $visit:ident $type:ident),*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            // TOML itself ends at the largest signed number of 64 bits.
            let most = i128::from($type::MAX).min(i64::MAX.into());
            *self.0 = Shape::Whole { least: $type::MIN.into(), most };
            visitor.$visit(0)
        }
    )*};
}

macro_rules! refused {
    ($($method:ident($($arg:ident: $type:ty),*)),*) => {$(
        fn $method<V: Visitor<'de>>(self, $($arg: $type,)* _visitor: V) -> Result<V::Value, Error> {
            Err(Error::custom(concat!("a job file has no ", stringify!($method))))
        }
    )*};
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    whole_numbers!(
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64, deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64
    );

    refused!(
        deserialize_any(), deserialize_bytes(), deserialize_byte_buf(), deserialize_unit(), deserialize_char(),
        deserialize_ignored_any(), deserialize_unit_struct(_name: &'static str), deserialize_tuple(_len: usize),
        deserialize_tuple_struct(_name: &'static str, _len: usize)
    );

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        *self.0 = Shape::Flag;
        visitor.visit_bool(false)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        *self.0 = Shape::Number;
        visitor.visit_f32(0.0)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        *self.0 = Shape::Number;
        visitor.visit_f64(0.0)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_string(visitor)
    }

    /// `PathBuf` reads a string like any other; only what its reader says it expects tells it apart.
    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let expects = (&visitor as &dyn Expected).to_string();
        *self.0 = if expects == "path string" { Shape::Path } else { Shape::Text };
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
        let mut each = Shape::Unknown;
        let read = visitor.visit_seq(One(Some(&mut each)));
        *self.0 = Shape::List(Box::new(each));
        read
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let mut each = Shape::Unknown;
        let read = visitor.visit_map(One(Some(&mut each)));
        *self.0 = Shape::Map(Box::new(each));
        read
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let mut section: Vec<_> = fields.iter().map(|name| (*name, Shape::Unknown)).collect();
        let read = visitor.visit_map(Fields { names: fields.iter(), section: &mut section });
        *self.0 = Shape::Section(section);
        read
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let first = variants.first().ok_or_else(|| Error::custom("a choice of nothing"))?;
        let read = visitor.visit_enum(FirstWord(first))?;
        *self.0 = Shape::Choice(variants);
        Ok(read)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_string(visitor)
    }
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        self.names.next().map(|name| seed.deserialize((*name).into_deserializer())).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let next = self.section.len() - self.names.len() - 1; // the key was handed out already
        seed.deserialize(Probe(&mut self.section[next].1))
    }
}

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.0.take().map(|each| seed.deserialize(Probe(each))).transpose()
    }
}

impl<'de> MapAccess<'de> for One<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        self.0.is_some().then(|| seed.deserialize("key".into_deserializer())).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let each = self.0.take().ok_or_else(|| Error::custom("there is one entry"))?;
        seed.deserialize(Probe(each))
    }
}

impl<'de> EnumAccess<'de> for FirstWord {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        Ok((seed.deserialize(self.0.into_deserializer())?, self))
    }
}

impl<'de> VariantAccess<'de> for FirstWord {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _seed: T) -> Result<T::Value, Error> {
        Err(Error::custom("a choice is between plain words"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, _visitor: V) -> Result<V::Value, Error> {
        Err(Error::custom("a choice is between plain words"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Error> {
        Err(Error::custom("a choice is between plain words"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    #[track_caller]
    fn check<T: DeserializeOwned>(want: &Shape) {
        assert_eq!(&Shape::of::<T>(), want);
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
    #[expect(dead_code, reason = "only its shape matters")]
    struct Outer {
        inner: Inner,
        list: Vec<Inner>,
        maybe: Option<Vec<Option<f32>>>,
        free: BTreeMap<String, u8>,
    }

    #[test]
    fn a_type_tells_its_shape() {
        let inner = || Shape::Section(vec![("on", Shape::Flag), ("called", Shape::Text)]);
        check::<bool>(&Shape::Flag);
        check::<u8>(&Shape::Whole { least: 0, most: 255 });
        check::<u64>(&Shape::Whole { least: 0, most: i64::MAX.into() });
        check::<i32>(&Shape::Whole { least: i32::MIN.into(), most: i32::MAX.into() });
        check::<f32>(&Shape::Number);
        check::<Option<Option<f64>>>(&Shape::Number);
        check::<String>(&Shape::Text);
        check::<PathBuf>(&Shape::Path);
        check::<Colour>(&Shape::Choice(&["rot", "dark-blue"]));
        check::<Vec<u8>>(&Shape::List(Box::new(Shape::Whole { least: 0, most: 255 })));
        check::<Inner>(&inner());
        check::<Outer>(&Shape::Section(vec![
            ("inner", inner()),
            ("list", Shape::List(Box::new(inner()))),
            ("maybe", Shape::List(Box::new(Shape::Number))),
            ("free", Shape::Map(Box::new(Shape::Whole { least: 0, most: 255 }))),
        ]));
        check::<char>(&Shape::Unknown);
    }

    #[test]
    fn keys_are_dotted() {
        let want =
            ["inner", "inner.on", "inner.called", "list", "list[].on", "list[].called", "maybe", "free"];
        assert_eq!(Shape::of::<Outer>().keys(), want);
    }
}
