//! Reads the doc comments of the sections' types from the sources.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use syn::{Attribute, Expr, Fields, GenericArgument, Item, ItemStruct, Lit, Meta, PathArguments, Type};

/// The sections' types by name, such as `EnvFile`.
#[derive(Debug, Default)]
pub(super) struct StructComments(BTreeMap<String, Vec<FieldComment>>);

/// A field of such a type, in the order of the source.
#[derive(Debug)]
pub(super) struct FieldComment {
    pub name: String,
    /// Its doc comment on one line.
    pub comment: String,
    /// Its type, or that of its entries if it is an `Option`, a `Vec` or a map.
    pub type_name: String,
}

impl StructComments {
    /// Reads every type of a section below `crates/`.
    pub(super) fn read(root: &Path) -> Self {
        let mut read = Self::default();
        read.add_folder(&root.join("crates"));
        read
    }

    pub(super) fn of(&self, type_name: &str) -> &[FieldComment] {
        self.0.get(type_name).unwrap_or_else(|| panic!("no section's type is called {type_name}"))
    }

    fn add_folder(&mut self, folder: &Path) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                self.add_folder(&path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                // A source without the word needs no parser, and most have none.
                if text.contains("deny_unknown_fields") {
                    let file = syn::parse_file(&text).unwrap();
                    file.items.into_iter().for_each(|item| self.add_item(item));
                }
            }
        }
    }

    fn add_item(&mut self, item: Item) {
        let Item::Struct(ItemStruct { ident, fields: Fields::Named(fields), .. }) = item else { return };
        let name = ident.to_string();
        if !name.ends_with("File") {
            return;
        }
        let comment = |field: syn::Field| FieldComment {
            name: field.ident.as_ref().unwrap().to_string(),
            comment: comment_of(&field.attrs),
            type_name: type_name(&field.ty),
        };
        let fields = fields.named.into_iter().map(comment).collect();
        assert!(self.0.insert(name.clone(), fields).is_none(), "two sections' types are called {name}");
    }
}

fn comment_of(attributes: &[Attribute]) -> String {
    let line = |attribute: &Attribute| {
        let Meta::NameValue(pair) = &attribute.meta else { return None };
        let Expr::Lit(value) = &pair.value else { return None };
        let Lit::Str(text) = &value.lit else { return None };
        pair.path.is_ident("doc").then(|| text.value().trim().to_owned())
    };
    attributes.iter().filter_map(line).collect::<Vec<_>>().join(" ").trim().to_owned()
}

fn type_name(of: &Type) -> String {
    let Type::Path(path) = of else { return String::new() };
    let Some(last) = path.path.segments.last() else { return String::new() };
    match &last.arguments {
        PathArguments::AngleBracketed(arguments) => match arguments.args.last() {
            Some(GenericArgument::Type(inner)) => type_name(inner),
            _ => last.ident.to_string(),
        },
        _ => last.ident.to_string(),
    }
}
