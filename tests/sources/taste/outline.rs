//! What a Rust file defines, where its items lie, and which of its `let`s bind tuples.

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Expr, Ident, ImplItem, Item, Meta, Pat, Signature, Token, TraitItem};

#[derive(Debug, Default)]
pub(super) struct Outline {
    pub definitions: Vec<Definition>,
    pub items: Vec<ItemLines>,
    pub functions: Vec<FunctionBody>,
    /// First and last lines of modules that only tests compile.
    pub test_modules: Vec<(usize, usize)>,
    /// Lines on which `let (…) = (…);` begins.
    pub tuple_lets: Vec<usize>,
    /// First and last lines of attributes that keep a stored name.
    pub stored_names: Vec<(usize, usize)>,
}

/// A name that this file gives to something.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Definition {
    pub name: String,
    pub line: usize,
    pub is_type: bool,
}

#[derive(Debug)]
pub(super) struct ItemLines {
    /// The names of the items around it and its own, such as `module::Type::method`.
    pub path: String,
    pub first: usize,
    pub last: usize,
}

/// The lines between a function's braces.
#[derive(Debug)]
pub(super) struct FunctionBody {
    pub path: String,
    pub line: usize,
    pub first: usize,
    pub last: usize,
}

impl Outline {
    pub(super) fn parse(text: &str) -> syn::Result<Self> {
        let file = syn::parse_file(text)?;
        let mut visitor = Visitor::default();
        visitor.visit_file(&file);
        Ok(visitor.outline)
    }

    /// The path of the innermost item around a line; empty outside of all.
    pub(super) fn item_at(&self, line: usize) -> &str {
        let around = self.items.iter().filter(|item| item.first <= line && line <= item.last);
        around.min_by_key(|item| item.last - item.first).map_or("", |item| &item.path)
    }
}

#[derive(Default)]
struct Visitor {
    outline: Outline,
    path: Vec<String>,
    /// Names of methods in `impl Trait for Type` are the trait's.
    is_in_trait_impl: bool,
}

impl Visitor {
    fn define(&mut self, name: &Ident, is_type: bool) {
        let line = name.span().start().line;
        self.outline.definitions.push(Definition { name: name.to_string(), line, is_type });
    }

    /// Visits the inside of an item that has a name of its own.
    fn enter(&mut self, name: String, (first, last): (usize, usize), inside: impl FnOnce(&mut Self)) {
        self.path.push(name);
        let path = self.path.join("::");
        self.outline.items.push(ItemLines { path, first, last });
        inside(self);
        self.path.pop();
    }

    fn add_function(&mut self, signature: &Signature, body: &Block) {
        let braces = body.brace_token.span;
        self.outline.functions.push(FunctionBody {
            path: self.path.join("::"),
            line: signature.ident.span().start().line,
            first: braces.open().start().line + 1,
            last: braces.close().start().line.saturating_sub(1),
        });
    }

    /// Names in a macro's input that is not a list of expressions or statements. They are found by
    /// the tokens around them.
    fn visit_tokens(&mut self, tokens: TokenStream) {
        let trees: Vec<TokenTree> = tokens.into_iter().collect();
        for (index, tree) in trees.iter().enumerate() {
            match tree {
                TokenTree::Group(group) => match Block::parse_within.parse2(group.stream()) {
                    Ok(statements) if group.delimiter() == Delimiter::Brace => {
                        statements.iter().for_each(|statement| Visit::visit_stmt(self, statement));
                    }
                    _ => self.visit_tokens(group.stream()),
                },
                TokenTree::Ident(name) => {
                    let before = index.checked_sub(1).map(|before| &trees[before]);
                    let is_type = TYPE_KEYWORDS.iter().any(|keyword| is_token(before, keyword));
                    let is_value = VALUE_KEYWORDS.iter().any(|keyword| is_token(before, keyword));
                    if is_type || is_value || names_what_follows(&trees[index + 1..]) {
                        self.define(name, is_type);
                    }
                    if name == "let" && binds_tuple(&trees[index + 1..]) {
                        self.outline.tuple_lets.push(name.span().start().line);
                    }
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

/// Tokens before the name of a type, and before other names.
const TYPE_KEYWORDS: [&str; 6] = ["struct", "enum", "union", "trait", "type", "mod"];
const VALUE_KEYWORDS: [&str; 8] = ["fn", "let", "mut", "ref", "const", "static", "for", "$"];

fn is_token(tree: Option<&TokenTree>, text: &str) -> bool {
    match tree {
        Some(TokenTree::Ident(name)) => name == text,
        Some(TokenTree::Punct(mark)) => text.chars().eq([mark.as_char()]),
        _ => false,
    }
}

/// Whether the tokens after a name are a type's colon or the `in` of a generator.
fn names_what_follows(after: &[TokenTree]) -> bool {
    is_token(after.first(), "in") || (is_token(after.first(), ":") && !is_token(after.get(1), ":"))
}

/// Whether the tokens after a `let` are `(…, …) = (…, …);`.
fn binds_tuple(after: &[TokenTree]) -> bool {
    let is_tuple = |tree: Option<&TokenTree>| {
        let Some(TokenTree::Group(group)) = tree else { return false };
        group.delimiter() == Delimiter::Parenthesis
            && group.stream().into_iter().any(|inner| is_token(Some(&inner), ","))
    };
    is_tuple(after.first())
        && is_token(after.get(1), "=")
        && is_tuple(after.get(2))
        && is_token(after.get(3), ";")
}

impl<'ast> Visit<'ast> for Visitor {
    fn visit_item(&mut self, item: &'ast Item) {
        let (name, is_type) = match item {
            Item::Fn(item) => (Some(&item.sig.ident), false),
            Item::Const(item) => (Some(&item.ident), false),
            Item::Static(item) => (Some(&item.ident), false),
            Item::Macro(item) => (item.ident.as_ref(), false),
            Item::Mod(item) => (Some(&item.ident), true),
            Item::Struct(item) => (Some(&item.ident), true),
            Item::Enum(item) => (Some(&item.ident), true),
            Item::Union(item) => (Some(&item.ident), true),
            Item::Trait(item) => (Some(&item.ident), true),
            Item::TraitAlias(item) => (Some(&item.ident), true),
            Item::Type(item) => (Some(&item.ident), true),
            _ => (None, false),
        };
        if let Some(name) = name {
            self.define(name, is_type);
        }
        let path = match item {
            Item::Impl(item) => Some(type_name(&item.self_ty)),
            _ => name.map(Ident::to_string),
        };
        if let Item::Mod(module) = item
            && module.content.is_some()
            && module.attrs.iter().any(is_for_tests)
        {
            self.outline.test_modules.push(lines_of_item(item));
        }
        let is_trait_impl = matches!(item, Item::Impl(item) if item.trait_.is_some());
        let was_in_trait_impl = std::mem::replace(&mut self.is_in_trait_impl, is_trait_impl);
        match path {
            Some(path) => self.enter(path, lines_of_item(item), |this| {
                if let Item::Fn(function) = item {
                    this.add_function(&function.sig, &function.block);
                }
                visit::visit_item(this, item);
            }),
            None => visit::visit_item(self, item),
        }
        self.is_in_trait_impl = was_in_trait_impl;
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let name = match item {
            ImplItem::Fn(item) => Some(&item.sig.ident),
            ImplItem::Const(item) => Some(&item.ident),
            ImplItem::Type(item) => Some(&item.ident),
            _ => None,
        };
        let Some(name) = name else { return visit::visit_impl_item(self, item) };
        if !self.is_in_trait_impl {
            self.define(name, matches!(item, ImplItem::Type(_)));
        }
        let lines = match item {
            ImplItem::Fn(item) => lines_of_function(&item.attrs, &item.sig, &item.block),
            _ => lines_of(item.span()),
        };
        self.enter(name.to_string(), lines, |this| {
            if let ImplItem::Fn(function) = item {
                this.add_function(&function.sig, &function.block);
            }
            visit::visit_impl_item(this, item);
        });
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let name = match item {
            TraitItem::Fn(item) => Some(&item.sig.ident),
            TraitItem::Const(item) => Some(&item.ident),
            TraitItem::Type(item) => Some(&item.ident),
            _ => None,
        };
        let Some(name) = name else { return visit::visit_trait_item(self, item) };
        self.define(name, matches!(item, TraitItem::Type(_)));
        self.enter(name.to_string(), lines_of(item.span()), |this| {
            if let TraitItem::Fn(function) = item
                && let Some(body) = &function.default
            {
                this.add_function(&function.sig, body);
            }
            visit::visit_trait_item(this, item);
        });
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(name) = &field.ident {
            self.define(name, false);
            return self
                .enter(name.to_string(), lines_of(field.span()), |this| visit::visit_field(this, field));
        }
        visit::visit_field(self, field);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.define(&variant.ident, false);
        self.enter(variant.ident.to_string(), lines_of(variant.span()), |this| {
            visit::visit_variant(this, variant);
        });
    }

    fn visit_type_param(&mut self, parameter: &'ast syn::TypeParam) {
        self.define(&parameter.ident, false);
        visit::visit_type_param(self, parameter);
    }

    fn visit_const_param(&mut self, parameter: &'ast syn::ConstParam) {
        self.define(&parameter.ident, false);
        visit::visit_const_param(self, parameter);
    }

    fn visit_lifetime_param(&mut self, parameter: &'ast syn::LifetimeParam) {
        self.define(&parameter.lifetime.ident, false);
        visit::visit_lifetime_param(self, parameter);
    }

    fn visit_label(&mut self, label: &'ast syn::Label) {
        self.define(&label.name.ident, false);
    }

    fn visit_use_rename(&mut self, renamed: &'ast syn::UseRename) {
        self.define(&renamed.rename, false);
    }

    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        self.define(&pattern.ident, false);
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_field_pat(&mut self, field: &'ast syn::FieldPat) {
        // `Type { name }` repeats the name of the field, which may be another crate's.
        if field.colon_token.is_some() {
            visit::visit_field_pat(self, field);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        let pattern = match &local.pat {
            Pat::Type(typed) => &*typed.pat,
            pattern => pattern,
        };
        if matches!(pattern, Pat::Tuple(_))
            && let Some(init) = &local.init
            && matches!(*init.expr, Expr::Tuple(_))
            && init.diverge.is_none()
        {
            self.outline.tuple_lets.push(local.let_token.span.start().line);
        }
        visit::visit_local(self, local);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if attribute.path().is_ident("serde") {
            self.outline.stored_names.push(lines_of(attribute.span()));
        }
        if let Meta::List(list) = &attribute.meta
            && ["arg", "command", "clap"].iter().any(|name| list.path.is_ident(name))
        {
            self.define_flags(list.tokens.clone());
        }
    }

    fn visit_macro(&mut self, invoked: &'ast syn::Macro) {
        if let Ok(list) = invoked.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated) {
            list.iter().for_each(|expression| Visit::visit_expr(self, expression));
        } else if let Ok(statements) = invoked.parse_body_with(Block::parse_within) {
            statements.iter().for_each(|statement| Visit::visit_stmt(self, statement));
        } else {
            self.visit_tokens(invoked.tokens.clone());
        }
    }
}

impl Visitor {
    /// Flags that an attribute spells out, as in `#[arg(long = "name")]`.
    fn define_flags(&mut self, tokens: TokenStream) {
        let trees: Vec<TokenTree> = tokens.into_iter().collect();
        for window in trees.windows(3) {
            if let [TokenTree::Ident(key), TokenTree::Punct(equals), TokenTree::Literal(value)] = window
                && ["long", "name", "value_name", "visible_alias"].iter().any(|known| key == known)
                && equals.as_char() == '='
            {
                let line = value.span().start().line;
                let name = value.to_string().trim_matches('"').to_owned();
                self.outline.definitions.push(Definition { name, line, is_type: false });
            }
        }
    }
}

fn lines_of(span: Span) -> (usize, usize) {
    (span.start().line, span.end().line)
}

/// As `lines_of` its span, which would print the item's tokens again at each level of nesting.
fn lines_of_item(item: &Item) -> (usize, usize) {
    let (attributes, start, braces) = match item {
        Item::Fn(item) => return lines_of_function(&item.attrs, &item.sig, &item.block),
        Item::Mod(item) => {
            (&item.attrs, item.mod_token.span, item.content.as_ref().map(|(braces, _)| braces.span))
        }
        Item::Impl(item) => (&item.attrs, item.impl_token.span, Some(item.brace_token.span)),
        Item::Trait(item) => (&item.attrs, item.trait_token.span, Some(item.brace_token.span)),
        _ => return lines_of(item.span()),
    };
    let last = braces.map_or(start, |braces| braces.close());
    (first_line(attributes, start), last.end().line)
}

fn lines_of_function(attributes: &[Attribute], signature: &Signature, body: &Block) -> (usize, usize) {
    (first_line(attributes, signature.fn_token.span), body.brace_token.span.close().end().line)
}

fn first_line(attributes: &[Attribute], otherwise: Span) -> usize {
    attributes.first().map_or(otherwise, |first| first.pound_token.span).start().line
}

fn is_for_tests(attribute: &Attribute) -> bool {
    let Meta::List(list) = &attribute.meta else { return false };
    let condition = list.tokens.to_string();
    list.path.is_ident("cfg") && (condition == "test" || condition.starts_with("all (test"))
}

fn type_name(of: &syn::Type) -> String {
    match of {
        syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
        syn::Type::Reference(reference) => Some(type_name(&reference.elem)),
        _ => None,
    }
    .unwrap_or_else(|| "impl".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let outline = Outline::parse(text).unwrap();
        outline.definitions.into_iter().map(|definition| definition.name).collect()
    }

    #[test]
    fn definitions_are_found_and_uses_are_not() {
        assert_eq!(names("struct A<T, const N: usize> { b: foreign::C, d: T }"), ["A", "T", "N", "b", "d"]);
        assert_eq!(names("enum A { B(C), D { e: F } }"), ["A", "B", "D", "e"]);
        assert_eq!(names("use a::b as c; mod d { const E: u8 = f(); }"), ["c", "d", "E"]);
        assert_eq!(names("fn a<'b>(c: &'b D) { let (e, mut f) = g.h(|i| i); 'j: loop {} }").len(), 7);
        assert_eq!(names("impl Foreign for A { fn b(&self, c: u8) {} }"), ["c"]);
        assert_eq!(names("impl A { fn b(&self) {} }"), ["b"]);
        assert_eq!(names("trait A { fn b(&self, c: u8); type D; }"), ["A", "b", "c", "D"]);
        assert_eq!(names("fn a() { let B { c, d: e } = f; }"), ["a", "e"]);
        assert_eq!(names("fn a() { vec![1, { let b = 2; b }]; c!(if let d = e { f }) }"), ["a", "b", "d"]);
    }

    #[test]
    fn definitions_in_macros_are_found_by_their_tokens() {
        assert_eq!(
            names("macro_rules! a { ($b:ty) => { struct C; fn d(e: $b) {} } }"),
            ["a", "b", "C", "d", "e", "b"]
        );
        assert_eq!(names("proptest! { fn a(b in 0..3) { let c = d(e); } }"), ["a", "b", "c"]);
    }

    #[test]
    fn flags_are_definitions() {
        assert_eq!(
            names("struct A { #[arg(long = \"some-flag\", requires = \"b\")] c: u8 }"),
            ["A", "c", "some-flag"]
        );
    }

    #[test]
    fn lines_belong_to_the_innermost_item() {
        let text =
            "mod a {\n    impl B {\n        /// C.\n        fn c() {\n        }\n    }\n}\nconst D: u8 = 0;";
        let outline = Outline::parse(text).unwrap();
        assert_eq!(
            [1, 2, 3, 4, 8, 9].map(|line| outline.item_at(line)),
            ["a", "a::B", "a::B::c", "a::B::c", "D", ""]
        );
    }

    #[test]
    fn tuple_lets_are_found() {
        let count = |body: &str| Outline::parse(&format!("fn f() {{ {body} }}")).unwrap().tuple_lets.len();
        assert_eq!(count("let (a, b) = (c, d);"), 1);
        assert_eq!(count("let (a, b): (A, B) = (c, d);"), 1);
        assert_eq!(count("if x { let ((a, b), c) = (d, e); }"), 1);
        assert_eq!(count("select! { a = b => { let (c, d) = (e, f); } }"), 1);
        assert_eq!(count("let (a, b) = c();"), 0);
        assert_eq!(count("let a = (b, c);"), 0);
        assert_eq!(count("let (Some(a), Some(b)) = (c, d) else { return };"), 0);
        assert_eq!(count("(a, b) = (b, a);"), 0);
    }

    #[test]
    fn modules_for_tests_are_known() {
        let text = "#[cfg(test)]\nmod tests {\n}\n#[cfg(test)]\nmod other;\n#[cfg(unix)]\nmod more {\n}";
        assert_eq!(Outline::parse(text).unwrap().test_modules, [(1, 3)]);
    }
}
