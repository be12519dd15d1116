//! Reads the modules of a crate: what each defines, what it imports, and which paths its code
//! names. Code for tests alone is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, ItemMod, ItemUse, Macro, Meta, UseTree, Visibility};

/// Returns the text of a file, if it exists.
pub(super) type ReadFile<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// The modules of one crate; the first is its root.
#[derive(Debug, Default)]
pub(super) struct CrateModules {
    pub modules: Vec<Module>,
}

#[derive(Debug, Default)]
pub(super) struct Module {
    /// The file that holds it; several inline modules share one.
    pub file: String,
    pub parent: Option<usize>,
    pub children: BTreeMap<String, usize>,
    /// Names of its own items.
    pub items: BTreeSet<String>,
    pub imports: Vec<Import>,
    /// Modules and enums whose names it imports all.
    pub globs: Vec<Vec<String>>,
    /// Paths in its code, and in the arguments of its macros.
    pub paths: BTreeSet<Vec<String>>,
}

/// One name of a `use`.
#[derive(Debug)]
pub(super) struct Import {
    /// The name in this module.
    pub name: String,
    pub path: Vec<String>,
    /// Whether it only hands the name on, as `pub use` does.
    pub is_reexport: bool,
}

impl CrateModules {
    /// Reads the crate whose root is this file.
    pub(super) fn read(root: &Path, read: ReadFile<'_>) -> Self {
        let mut modules = Self::default();
        let text = read(root).unwrap_or_else(|| panic!("{} does not exist", root.display()));
        let folder = root.parent().unwrap_or(Path::new(""));
        modules.modules.push(Module { file: root.display().to_string(), ..Module::default() });
        modules.add_items(0, folder, &parse(root, &text), read);
        modules
    }

    /// Adds the items of a module whose children are in `folder`.
    fn add_items(&mut self, module: usize, folder: &Path, items: &[Item], read: ReadFile<'_>) {
        for item in items {
            match item {
                Item::Mod(child) if !child.attrs.iter().any(is_for_tests) => {
                    self.add_child(module, folder, child, read);
                }
                item => {
                    PathCollector { module: &mut self.modules[module], is_inside: false }.visit_item(item);
                }
            }
        }
    }

    fn add_child(&mut self, parent: usize, folder: &Path, child: &ItemMod, read: ReadFile<'_>) {
        let name = child.ident.to_string();
        let folder_of_child = folder.join(&name);
        let file_of_parent = self.modules[parent].file.clone();
        if let Some((_, items)) = &child.content {
            let index = self.add_module(file_of_parent, parent, name);
            return self.add_items(index, &folder_of_child, items, read);
        }
        let files = [folder.join(format!("{name}.rs")), folder_of_child.join("mod.rs")];
        let found = files.iter().find_map(|file| Some((file, read(file)?)));
        let (file, text) = found.unwrap_or_else(|| panic!("{file_of_parent}: module {name} has no file"));
        let index = self.add_module(file.display().to_string(), parent, name);
        self.add_items(index, &folder_of_child, &parse(file, &text), read);
    }

    fn add_module(&mut self, file: String, parent: usize, name: String) -> usize {
        let index = self.modules.len();
        self.modules.push(Module { file, parent: Some(parent), ..Module::default() });
        self.modules[parent].children.insert(name, index);
        index
    }
}

fn parse(file: &Path, text: &str) -> Vec<Item> {
    syn::parse_file(text).unwrap_or_else(|problem| panic!("{}: {problem}", file.display())).items
}

/// Whether only tests compile what has this attribute.
fn is_for_tests(attribute: &Attribute) -> bool {
    let Meta::List(list) = &attribute.meta else { return false };
    let condition = list.tokens.to_string();
    list.path.is_ident("cfg") && (condition == "test" || condition.starts_with("all (test"))
}

/// Adds what an item defines, imports and names to its module.
struct PathCollector<'a> {
    module: &'a mut Module,
    /// Whether it is inside an item: a name defined there is not the module's.
    is_inside: bool,
}

impl PathCollector<'_> {
    fn add_import(&mut self, item: &ItemUse) {
        // What a function imports, its module does not define for others.
        let is_reexport = !matches!(item.vis, Visibility::Inherited);
        if item.leading_colon.is_none() {
            self.add_use_tree(&item.tree, Vec::new(), is_reexport);
        }
    }

    fn add_use_tree(&mut self, tree: &UseTree, mut path: Vec<String>, is_reexport: bool) {
        match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.add_use_tree(&part.tree, path, is_reexport);
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.add_use_tree(tree, path.clone(), is_reexport));
            }
            UseTree::Glob(_) => self.module.globs.push(path),
            UseTree::Name(leaf) => self.add_name(leaf.ident.to_string(), None, path, is_reexport),
            UseTree::Rename(leaf) => {
                self.add_name(leaf.ident.to_string(), Some(leaf.rename.to_string()), path, is_reexport);
            }
        }
    }

    fn add_name(&mut self, leaf: String, rename: Option<String>, mut path: Vec<String>, is_reexport: bool) {
        // `use a::{self}` imports `a`.
        if leaf != "self" {
            path.push(leaf);
        }
        if let Some(name) = rename.or_else(|| path.last().cloned()) {
            self.module.imports.push(Import { name, path, is_reexport });
        }
    }

    /// Adds the paths among tokens: `a::b`, and a single name that can be a type or a constant. A
    /// single lower-case name in a macro is most often a field or a variable.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for tree in tokens {
            match tree {
                TokenTree::Ident(name) if colons == 2 || path.is_empty() => {
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Ident(name) => {
                    self.add_token_path(std::mem::take(&mut path));
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' && !path.is_empty() => colons += 1,
                TokenTree::Group(group) => {
                    self.add_token_path(std::mem::take(&mut path));
                    colons = 0;
                    self.add_tokens(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {
                    self.add_token_path(std::mem::take(&mut path));
                    colons = 0;
                }
            }
        }
        self.add_token_path(path);
    }

    fn add_token_path(&mut self, path: Vec<String>) {
        let is_named = |name: &String| name.starts_with(|first: char| first.is_ascii_uppercase());
        if path.len() > 1 || path.first().is_some_and(is_named) {
            self.module.paths.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for PathCollector<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if attributes_of(item).iter().any(is_for_tests) {
            return;
        }
        if let Item::Use(item) = item {
            return self.add_import(item);
        }
        if let Some(name) = name_of(item).filter(|_| !self.is_inside) {
            self.module.items.insert(name);
        }
        let was_inside = std::mem::replace(&mut self.is_inside, true);
        visit::visit_item(self, item);
        self.is_inside = was_inside;
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes: &[Attribute] = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            _ => &[],
        };
        if !attributes.iter().any(is_for_tests) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.module.paths.insert(path.segments.iter().map(|part| part.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.add_tokens(list.tokens.clone());
        }
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.visit_path(&call.path);
        self.add_tokens(call.tokens.clone());
    }
}

/// The name that an item has in its module.
fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

fn attributes_of(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
