//! Finds files of one crate that use each other in a circle.
//!
//! A file uses another one if it imports a name that the other defines, or names it in its code.
//! `mod` and `pub use` alone do not count as use: they only hand a name on. A name that was handed
//! on counts for the file that defines it.

use std::collections::{BTreeMap, BTreeSet};

use crate::architecture::modules::{CrateModules, Module};

/// Files that use each other, directly or through one another.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Circle {
    /// The files, in order.
    pub files: Vec<String>,
    /// A line for each file and another one that it uses, with the names.
    pub uses: Vec<String>,
}

/// Names that each file uses, by file and by the file that defines them.
type FileUses = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// What a path leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Module(usize),
    Item { file: String, name: String },
}

/// The circles of a crate, in order of their first files.
pub(super) fn find_circles(modules: &CrateModules) -> Vec<Circle> {
    let uses = Resolver { modules: &modules.modules }.file_uses();
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        uses.keys().map(|file| (file.as_str(), reached_from(file, &uses))).collect();
    let mut circles: Vec<Circle> = Vec::new();
    for (file, beyond) in &reached {
        let is_mutual = |other: &&str| reached.get(*other).is_some_and(|back| back.contains(file));
        let files: Vec<String> =
            beyond.iter().filter(|other| is_mutual(other)).map(ToString::to_string).collect();
        if !files.is_empty() && !circles.iter().any(|circle| circle.files == files) {
            let uses = describe(&files, &uses);
            circles.push(Circle { files, uses });
        }
    }
    circles
}

/// All files that a file uses, directly or through others.
fn reached_from<'a>(file: &str, uses: &'a FileUses) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![file];
    while let Some(file) = open.pop() {
        for used in uses.get(file).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(used.as_str()) {
                open.push(used);
            }
        }
    }
    reached
}

fn describe(files: &[String], uses: &FileUses) -> Vec<String> {
    let mut lines = Vec::new();
    for file in files {
        for (used, names) in uses.get(file).into_iter().flatten().filter(|(used, _)| files.contains(used)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            lines.push(format!("{file} uses {used}: {}", names.join(", ")));
        }
    }
    lines
}

struct Resolver<'a> {
    modules: &'a [Module],
}

impl Resolver<'_> {
    fn file_uses(&self) -> FileUses {
        let mut uses = FileUses::new();
        for (index, module) in self.modules.iter().enumerate() {
            let imported = module.imports.iter().filter(|import| !import.is_reexport);
            for path in imported.map(|import| &import.path).chain(&module.paths) {
                if let Some(Target::Item { file, name }) = self.resolve(index, path, &BTreeSet::new())
                    && file != module.file
                {
                    uses.entry(module.file.clone()).or_default().entry(file).or_default().insert(name);
                }
            }
        }
        uses
    }

    /// What a path in a module leads to; `None` for what is not of this crate. `visited` has the
    /// names whose resolution led here: two modules may import all names of each other.
    fn resolve(&self, from: usize, path: &[String], visited: &BTreeSet<(usize, String)>) -> Option<Target> {
        let mut module = from;
        for (position, part) in path.iter().enumerate() {
            let is_last = position + 1 == path.len();
            match part.as_str() {
                "crate" => module = 0,
                "self" => {}
                "super" => module = self.modules[module].parent?,
                name => match self.look_up(module, name, is_last, visited) {
                    Some(Target::Module(next)) => module = next,
                    Some(item) => return Some(item),
                    None => return self.made_by_macro(module, name, position > 0),
                },
            }
        }
        Some(Target::Module(module))
    }

    /// What a name means in a module. Before `::` it is a module or a type, elsewhere rather an
    /// item than a module.
    fn look_up(
        &self,
        module: usize,
        name: &str,
        is_last: bool,
        visited: &BTreeSet<(usize, String)>,
    ) -> Option<Target> {
        let here = (module, name.to_owned());
        if visited.contains(&here) {
            return None;
        }
        let visited: BTreeSet<_> = visited.iter().cloned().chain([here]).collect();
        let Module { file, children, items, imports, globs, .. } = &self.modules[module];
        let child = children.get(name).copied().map(Target::Module);
        let item =
            || items.contains(name).then(|| Target::Item { file: file.clone(), name: name.to_owned() });
        let imported = || {
            let named = imports.iter().filter(|import| import.name == name);
            named.into_iter().find_map(|import| self.resolve(module, &import.path, &visited))
        };
        let by_glob = || {
            globs.iter().find_map(|glob| match self.resolve(module, glob, &visited)? {
                Target::Module(other) => self.look_up(other, name, is_last, &visited),
                Target::Item { .. } => None,
            })
        };
        match child {
            Some(child) if !is_last => Some(child),
            child => item().or_else(imported).or(child).or_else(by_glob),
        }
    }

    /// A name below a module of this crate that nothing defines or imports: one of its macros makes
    /// it, unless the module imports all names of something.
    fn made_by_macro(&self, module: usize, name: &str, is_below: bool) -> Option<Target> {
        let Module { file, imports, globs, .. } = &self.modules[module];
        let is_made = is_below && globs.is_empty() && !imports.iter().any(|import| import.name == name);
        is_made.then(|| Target::Item { file: file.clone(), name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The circles of a tree of files, as the lines that describe them.
    #[track_caller]
    fn check(files: &[(&str, &str)], want: &[&[&str]]) {
        let read = |path: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned())
        };
        let circles = find_circles(&CrateModules::read(Path::new("lib.rs"), &read));
        let found: Vec<Vec<String>> = circles.into_iter().map(|circle| circle.uses).collect();
        assert_eq!(found, want);
    }

    const ROOT: (&str, &str) = ("lib.rs", "mod a; mod b; mod c;");

    #[test]
    fn a_circle_is_found_with_the_names_that_tie_it() {
        let a = "use crate::b::{B, self}; pub struct A; fn f() { b::make(); }";
        let b = "use super::a; pub struct B(a::A); pub fn make() {}";
        let uses = ["a.rs uses b.rs: B, make", "b.rs uses a.rs: A"];
        check(&[ROOT, ("a.rs", a), ("b.rs", b), ("c.rs", "use crate::a::A;")], &[&uses]);
        check(&[ROOT, ("a.rs", a), ("b.rs", "pub struct B; pub fn make() {}"), ("c.rs", "")], &[]);
    }

    #[test]
    fn a_circle_may_have_many_files_and_a_crate_many_circles() {
        let three = ["a.rs uses b.rs: B", "b.rs uses c.rs: C", "c.rs uses a.rs: A"];
        let a = ("a.rs", "use crate::b::B; pub struct A;");
        let b = ("b.rs", "use crate::c::C; pub struct B;");
        check(&[ROOT, a, b, ("c.rs", "use crate::a::A; pub struct C;")], &[&three]);
        let four = ("lib.rs", "mod a; mod b; mod c; mod d;");
        let b = ("b.rs", "use crate::a::A; pub struct B;");
        let c = ("c.rs", "use crate::d::D; pub struct C;");
        let d = ("d.rs", "use crate::c::C; pub struct D;");
        let one = ["a.rs uses b.rs: B", "b.rs uses a.rs: A"];
        let other = ["c.rs uses d.rs: D", "d.rs uses c.rs: C"];
        check(&[four, a, b, c, d], &[&one, &other]);
    }

    #[test]
    fn a_reexport_is_no_use_of_its_own() {
        let child = ("a.rs", "use super::Root; pub struct A(Root);");
        check(&[("lib.rs", "mod a; pub use a::A; pub struct Root;"), child], &[]);
        let uses = ["a.rs uses lib.rs: Root", "lib.rs uses a.rs: A"];
        check(&[("lib.rs", "mod a; pub use a::A; pub struct Root; fn f(_: A) {}"), child], &[&uses]);
        check(&[("lib.rs", "mod a; use a::A; pub struct Root;"), child], &[&uses]);
    }

    #[test]
    fn a_name_counts_for_the_file_that_defines_it() {
        let root = ("lib.rs", "mod a; mod b; pub use a::A as Renamed; pub use b::*;");
        let uses = ["a.rs uses b.rs: B", "b.rs uses a.rs: A"];
        let a = ("a.rs", "use super::*; pub struct A(B);");
        check(&[root, a, ("b.rs", "use crate::Renamed; pub struct B(Renamed);")], &[&uses]);
        // A folder's module, a module inside a file, and a name that a macro makes.
        let root = ("lib.rs", "mod a; mod b;");
        let a = ("a/mod.rs", "mod inner { pub struct A(crate::b::B); }");
        let uses = ["a/mod.rs uses b.rs: B", "b.rs uses a/mod.rs: A"];
        check(&[root, a, ("b.rs", "make! { B } fn f(_: super::a::inner::A) {}")], &[&uses]);
    }

    #[test]
    fn macros_and_attributes_name_what_they_use() {
        let b = ("b.rs", "use crate::a::A; pub const B: u8 = 0; pub fn show() {}");
        let a = "mod x {} #[error(\"{}\", crate::b::show())] pub struct A;";
        check(&[ROOT, ("a.rs", a), b, ("c.rs", "")], &[&["a.rs uses b.rs: show", "b.rs uses a.rs: A"]]);
        let a = "pub use crate::b::B; pub struct A; fn f() { println!(\"{} {}\", B, 1); }";
        check(&[ROOT, ("a.rs", a), b, ("c.rs", "")], &[&["a.rs uses b.rs: B", "b.rs uses a.rs: A"]]);
    }

    #[test]
    fn tests_and_other_crates_do_not_count() {
        let b = ("b.rs", "use crate::a::A; pub struct B;");
        for a in [
            "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }",
            "pub struct A; #[cfg(test)] mod tests;",
            "pub struct A; #[cfg(test)] use crate::b::B;",
            "pub struct A; impl A { #[cfg(all(test, unix))] fn f(_: crate::b::B) {} }",
            "pub struct A; use b::B; use ::c::B as Other; fn f() { std::b::B; }",
        ] {
            check(&[ROOT, ("a.rs", a), b, ("c.rs", "")], &[]);
        }
    }
}
