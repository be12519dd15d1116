//! Ids are typed by what they name, so that a swapped argument does not compile.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;

/// The kind of object that an id names. Only the empty enums below implement it.
pub trait IdKind {
    /// Name of the kind in errors and logs.
    const NAME: &'static str;
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $kind {}
        impl IdKind for $kind { const NAME: &'static str = $name; }
    )*};
}

kinds! {
    /// One execution of a job that fills a run directory.
    Run = "run",
    /// The slots of one task with one seed.
    Group = "group",
    /// One attempt at a slot.
    Trajectory = "trajectory",
    /// An immutable set of Parquet files committed together.
    Shard = "shard",
    /// A process that runs browsers.
    EnvWorker = "env worker",
    /// A process that runs a policy.
    PolicyWorker = "policy worker",
}

/// A name that is safe as a file name: 1 to 128 of `A-Z a-z 0-9 . _ -`, not starting with a dot.
pub struct Id<K> {
    text: Arc<str>,
    kind: PhantomData<fn() -> K>,
}

/// The reason why a text is not a valid id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadId {
    kind: &'static str,
    text: String,
}

impl<K: IdKind> Id<K> {
    /// Checks length and characters.
    pub fn new(text: impl AsRef<str>) -> Result<Self, BadId> {
        let text = text.as_ref();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if text.is_empty() || text.len() > 128 || text.starts_with('.') || !text.chars().all(allowed) {
            let text = text.chars().take(60).collect();
            return Err(BadId { kind: K::NAME, text });
        }
        Ok(Self { text: text.into(), kind: PhantomData })
    }
}

impl<K> Id<K> {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn derived(text: String) -> Self {
        Self { text: text.into(), kind: PhantomData }
    }
}

impl Id<Group> {
    /// The `index`th group of a run: `<run>-g000012`. Ids are derived, not random, so that a
    /// replayed decision names the same object.
    pub fn nth(run: &Id<Run>, index: u64) -> Self {
        Self::derived(format!("{run}-g{index:06}"))
    }
}

impl Id<Trajectory> {
    /// One attempt at one slot: `<group>-s1-a0`.
    pub fn attempt(group: &Id<Group>, sample_index: u32, attempt: u32) -> Self {
        Self::derived(format!("{group}-s{sample_index}-a{attempt}"))
    }
}

impl<K> Clone for Id<K> {
    fn clone(&self) -> Self {
        Self { text: self.text.clone(), kind: PhantomData }
    }
}
impl<K> PartialEq for Id<K> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}
impl<K> Eq for Id<K> {}
impl<K> PartialOrd for Id<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<K> Ord for Id<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.text.cmp(&other.text)
    }
}
impl<K> Hash for Id<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}
impl<K> fmt::Display for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
impl<K: IdKind> fmt::Debug for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", K::NAME, self.text)
    }
}

impl fmt::Display for BadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a valid {} id: use 1 to 128 of A-Z a-z 0-9 . _ - and do not start with a dot",
            self.text, self.kind
        )
    }
}
impl std::error::Error for BadId {}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, good: bool) {
        assert_eq!(Id::<Run>::new(text).is_ok(), good, "{text:?}");
    }

    #[test]
    fn an_id_is_safe_as_a_file_name() {
        check("quickstart-7f3a", true);
        check("a.b_c-D9", true);
        check("", false);
        check("..", false);
        check(".hidden", false);
        check("a/b", false);
        check("a b", false);
        check("é", false);
        check(&"x".repeat(128), true);
        check(&"x".repeat(129), false);
    }

    #[test]
    fn ids_are_derived_from_their_parent_and_index() {
        let run = Id::new("r").unwrap();
        let group = Id::nth(&run, 12);
        assert_eq!(group.as_str(), "r-g000012");
        assert_eq!(Id::attempt(&group, 1, 0).as_str(), "r-g000012-s1-a0");
    }
}
