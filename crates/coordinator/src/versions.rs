//! Policy versions: which weights were published, what each consists of, and its state. Plain
//! functions of the rows.
//!
//! ```text
//! proposed ──a policy worker runs it──▶ taken ──its weights are broken──▶ withdrawn
//!     └──────every one refuses it─────▶ refused
//! ```
//! Numbers only grow, and a refused number is not used again. What follows a withdrawn version is
//! the next one that was published, or the one before under a new number. Version 0 is the
//! checkpoint that the job names; it has no row.

use std::collections::BTreeSet;

use furrow_rollout::{PolicyVersion, WEIGHTS_LINKS_MAX, WeightsForm, WeightsLink, WeightsOrder};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionRow {
    /// Its number, from 1.
    pub version: i32,
    /// Name of its publication: a repeated publication is the same version.
    pub publication_id: String,
    /// What its weights consist of.
    pub source: VersionSource,
    pub state: VersionState,
    /// Hash of its weights in hexadecimal: given by the publisher, or reported by the first worker
    /// that runs it.
    pub weights_sha256: Option<String>,
    /// Wall clock, microseconds since the Unix epoch.
    pub at_micros: i64,
}

/// What the weights of a version consist of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionSource {
    /// A directory; a delta or an adapter applies to an earlier version.
    Directory {
        link: WeightsLink,
        /// The version it applies to, if it is not whole.
        base_version: i32,
    },
    /// The weights of an earlier version.
    Rollback { to: i32 },
}

/// State of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionState {
    /// No policy worker runs it yet.
    Proposed,
    /// A policy worker runs it or ran it.
    Taken,
    /// No policy worker can run it.
    Refused { reason: String },
    /// It was taken, and its weights turned out to be broken on every worker that ran it.
    Withdrawn { reason: String },
}

/// Why a version cannot be added, or its state not change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VersionRefusal {
    #[error("version {version} is not newer than {last}")]
    NotNewer { version: i32, last: i32 },
    #[error("no policy worker runs it yet")]
    NotProposed,
    /// Its publication is a version already.
    #[error("it was published as version {version}")]
    Published { version: i32 },
    #[error("version {version} does not exist")]
    Unknown { version: i32 },
    #[error("version {base}, on which it is based, does not exist")]
    UnknownBase { base: i32 },
    #[error("version {base} was {state}; nothing can be based on it")]
    UnusableBase { base: i32, state: &'static str },
    #[error("it would consist of more than {WEIGHTS_LINKS_MAX} directories; publish a full checkpoint")]
    TooManyLinks,
    #[error("its weights have another hash")]
    OtherHash,
    /// It was taken or refused before.
    #[error("version {version} is {state} already")]
    Settled { version: i32, state: &'static str },
    #[error("version {version} is {state}; only one that a policy worker ran can be withdrawn")]
    NotTaken { version: i32, state: &'static str },
}

/// All versions of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VersionTable {
    rows: Vec<VersionRow>,
}

impl VersionState {
    /// The name of the state.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Proposed => "proposed",
            Self::Taken => "taken",
            Self::Refused { .. } => "refused",
            Self::Withdrawn { .. } => "withdrawn",
        }
    }

    /// Why it was refused or withdrawn.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Proposed | Self::Taken => None,
            Self::Refused { reason } | Self::Withdrawn { reason } => Some(reason),
        }
    }
}

impl VersionSource {
    /// The version it applies to.
    pub fn base(&self) -> i32 {
        match self {
            Self::Directory { base_version, .. } => *base_version,
            Self::Rollback { to } => *to,
        }
    }
}

impl VersionTable {
    /// A table of rows in order of their numbers.
    pub fn of(rows: Vec<VersionRow>) -> Self {
        Self { rows }
    }

    /// All rows, in order of their numbers.
    pub fn rows(&self) -> &[VersionRow] {
        &self.rows
    }

    /// The row of a published version.
    pub fn get(&self, version: i32) -> Option<&VersionRow> {
        let at = self.rows.binary_search_by_key(&version, |row| row.version).ok()?;
        self.rows.get(at)
    }

    /// The version of a publication; none if it was refused, so that it may be tried again.
    pub(crate) fn find_publication(&self, publication_id: &str) -> Option<&VersionRow> {
        let same = |row: &&VersionRow| row.publication_id == publication_id && !row.is_refused();
        self.rows.iter().rev().find(same)
    }

    pub fn last(&self) -> i32 {
        self.rows.last().map_or(0, |row| row.version)
    }

    /// The newest version that a policy worker runs or ran; 0 for the weights the job names. It
    /// never goes back: a withdrawn version stays current until a newer one is taken.
    pub fn current(&self) -> i32 {
        let ran =
            |row: &&VersionRow| matches!(row.state, VersionState::Taken | VersionState::Withdrawn { .. });
        self.rows.iter().rev().find(ran).map_or(0, |row| row.version)
    }

    /// The version that policy workers shall run: the newest one that was neither refused nor
    /// withdrawn, up to `limit` where newer ones wait.
    pub fn order(&self, limit: Option<i32>) -> Option<WeightsOrder> {
        let may_run = |row: &&VersionRow| row.is_usable() && limit.is_none_or(|limit| row.version <= limit);
        let row = self.rows.iter().rev().find(may_run)?;
        let links = self.links(row.version).ok()?;
        Some(WeightsOrder {
            version: PolicyVersion(row.version),
            links,
            weights_sha256: row.weights_sha256.clone(),
            taken: row.state == VersionState::Taken,
        })
    }

    /// Directories that a policy worker may still read, when it starts now or is ordered another
    /// version later: those of the current version, of the version ordered up to `limit`, and of
    /// all newer versions that no worker runs yet, because the one before is ordered when the
    /// newest is refused.
    pub fn needed(&self, limit: Option<i32>) -> Vec<String> {
        let current = self.current();
        let ordered = self.order(limit).map_or(0, |order| order.version.0);
        let is_waiting = |row: &&VersionRow| row.version > current && row.state == VersionState::Proposed;
        let waiting = self.rows.iter().filter(is_waiting).map(|row| row.version);
        let wanted = [current, ordered].into_iter().chain(waiting);
        let wanted = wanted.filter(|version| self.get(*version).is_some_and(VersionRow::is_usable));
        let links = wanted.filter_map(|version| self.links(version).ok()).flatten();
        let directories: BTreeSet<String> = links.map(|link| link.directory).collect();
        directories.into_iter().collect()
    }

    /// The directories of a version, on top of the job's own checkpoint.
    pub fn links(&self, version: i32) -> Result<Vec<WeightsLink>, VersionRefusal> {
        let mut links = Vec::new();
        let mut at = version;
        while at != 0 {
            let row = self.get(at).ok_or(VersionRefusal::Unknown { version: at })?;
            at = row.source.base();
            let VersionSource::Directory { link, .. } = &row.source else { continue };
            links.push(link.clone());
            if links.len() > WEIGHTS_LINKS_MAX {
                return Err(VersionRefusal::TooManyLinks);
            }
            if link.form == WeightsForm::Full {
                break;
            }
        }
        links.reverse();
        Ok(links)
    }

    /// Adds a published version, or returns why it cannot be added.
    pub(crate) fn propose(&mut self, row: VersionRow) -> Result<(), VersionRefusal> {
        if row.version <= self.last() {
            return Err(VersionRefusal::NotNewer { version: row.version, last: self.last() });
        }
        if row.state != VersionState::Proposed {
            return Err(VersionRefusal::NotProposed);
        }
        if let Some(same) = self.find_publication(&row.publication_id) {
            return Err(VersionRefusal::Published { version: same.version });
        }
        let base = row.source.base();
        match self.get(base) {
            _ if base == 0 => {}
            None => return Err(VersionRefusal::UnknownBase { base }),
            Some(row) if !row.is_usable() => {
                return Err(VersionRefusal::UnusableBase { base, state: row.state.as_str() });
            }
            Some(_) => {}
        }
        let version = row.version;
        self.rows.push(row);
        self.links(version).map(drop).inspect_err(|_| drop(self.rows.pop()))
    }

    /// Records that a policy worker runs a version with this hash.
    pub fn take(&mut self, version: i32, weights_sha256: &str) -> Result<(), VersionRefusal> {
        let row = self.proposed(version)?;
        if row.weights_sha256.as_ref().is_some_and(|expected| !expected.eq_ignore_ascii_case(weights_sha256))
        {
            return Err(VersionRefusal::OtherHash);
        }
        row.weights_sha256 = Some(weights_sha256.to_owned());
        row.state = VersionState::Taken;
        Ok(())
    }

    /// Records that no policy worker can run a version.
    pub fn refuse(&mut self, version: i32, reason: &str) -> Result<(), VersionRefusal> {
        self.proposed(version)?.state = VersionState::Refused { reason: reason.to_owned() };
        Ok(())
    }

    /// Records that the weights of a version that workers run are broken.
    pub fn withdraw(&mut self, version: i32, reason: &str) -> Result<(), VersionRefusal> {
        let row = self.get_mut(version)?;
        match row.state {
            VersionState::Taken => {
                row.state = VersionState::Withdrawn { reason: reason.to_owned() };
                Ok(())
            }
            _ => Err(VersionRefusal::NotTaken { version, state: row.state.as_str() }),
        }
    }

    /// The version to go back to, if the current one was withdrawn and no newer one waits: the
    /// newest earlier one that ran, or the job's own weights where its files are gone. `None` also
    /// when each of these is broken or cannot be loaded.
    pub(crate) fn fallback(&self) -> Option<i32> {
        let current = self.get(self.current()).filter(|row| row.is_withdrawn())?.version;
        let later = || self.rows.iter().filter(|row| row.version > current);
        if later().any(|row| row.state == VersionState::Proposed) {
            return None;
        }
        let is_rollback = |row: &&VersionRow| matches!(row.source, VersionSource::Rollback { .. });
        let refused: BTreeSet<i32> =
            later().filter(is_rollback).map(|row| self.origin(row.version)).collect();
        let withdrawn = self.rows.iter().filter(|row| row.is_withdrawn());
        let broken: BTreeSet<i32> = withdrawn.map(|row| self.origin(row.version)).collect();
        let is_sound = |version: &i32| !broken.contains(&self.origin(*version));
        let ran = self.rows.iter().rev().filter(|row| row.state == VersionState::Taken);
        let newest = if refused.is_empty() { ran.map(|row| row.version).find(is_sound) } else { None };
        newest.or(Some(0)).filter(is_sound).filter(|version| !refused.contains(&self.origin(*version)))
    }

    /// The version whose weights a version has: another one only after a rollback.
    fn origin(&self, version: i32) -> i32 {
        let mut origin = version;
        while let Some(VersionRow { source: VersionSource::Rollback { to }, .. }) = self.get(origin) {
            origin = *to;
        }
        origin
    }

    fn proposed(&mut self, version: i32) -> Result<&mut VersionRow, VersionRefusal> {
        let row = self.get_mut(version)?;
        match row.state {
            VersionState::Proposed => Ok(row),
            _ => Err(VersionRefusal::Settled { version, state: row.state.as_str() }),
        }
    }

    fn get_mut(&mut self, version: i32) -> Result<&mut VersionRow, VersionRefusal> {
        let at = self.rows.binary_search_by_key(&version, |row| row.version);
        let row = at.ok().and_then(|at| self.rows.get_mut(at));
        row.ok_or(VersionRefusal::Unknown { version })
    }
}

impl VersionRow {
    /// Whether no policy worker can run it.
    pub fn is_refused(&self) -> bool {
        matches!(self.state, VersionState::Refused { .. })
    }

    /// Whether its weights turned out to be broken.
    pub(crate) fn is_withdrawn(&self) -> bool {
        matches!(self.state, VersionState::Withdrawn { .. })
    }

    /// Whether a policy worker may be ordered to run it.
    fn is_usable(&self) -> bool {
        matches!(self.state, VersionState::Proposed | VersionState::Taken)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn row(version: i32, form: WeightsForm, base_version: i32) -> VersionRow {
        let link = WeightsLink { form, directory: format!("/w/{version}") };
        VersionRow {
            version,
            publication_id: format!("p{version}"),
            source: VersionSource::Directory { link, base_version },
            state: VersionState::Proposed,
            weights_sha256: None,
            at_micros: 1,
        }
    }

    pub(crate) fn hash(version: i32) -> String {
        format!("{version:064x}")
    }

    fn directories(versions: &VersionTable, version: i32) -> String {
        let links = versions.links(version).unwrap();
        links.iter().map(|link| link.directory.trim_start_matches("/w/")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_version_is_the_last_full_one_with_later_updates_applied() {
        use WeightsForm::{Adapter, Delta, Full};
        let mut versions = VersionTable::default();
        let published =
            [(1, Delta, 0), (2, Full, 0), (3, Delta, 2), (4, Adapter, 3), (5, Adapter, 2), (6, Adapter, 0)];
        for (version, form, base) in published {
            versions.propose(row(version, form, base)).unwrap();
        }
        let back = VersionRow { source: VersionSource::Rollback { to: 4 }, ..row(7, Full, 0) };
        versions.propose(back).unwrap();
        let own = VersionRow { source: VersionSource::Rollback { to: 0 }, ..row(8, Full, 0) };
        versions.propose(own).unwrap();
        let want = ["", "1", "2", "2 3", "2 3 4", "2 5", "6", "2 3 4", ""];
        for (version, want) in (0..).zip(want) {
            assert_eq!(directories(&versions, version), want, "version {version}");
        }
        assert_eq!(versions.order(None).unwrap().version, PolicyVersion(8));
        assert_eq!(versions.order(Some(5)).unwrap().version, PolicyVersion(5));
        assert_eq!(versions.order(Some(0)), None);
    }

    #[test]
    fn directories_of_versions_that_may_be_ordered_are_needed() {
        use WeightsForm::{Delta, Full};
        let mut versions = VersionTable::default();
        let published = [(1, Full, 0), (2, Delta, 1), (3, Full, 0), (4, Full, 0), (5, Delta, 4)];
        for (version, form, base) in published {
            versions.propose(row(version, form, base)).unwrap();
        }
        let needed = |versions: &VersionTable, limit| {
            let needed = versions.needed(limit);
            needed.iter().map(|directory| directory.trim_start_matches("/w/")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            needed(&versions, Some(0)),
            "1 2 3 4 5",
            "newer versions wait, and each may still be ordered"
        );
        versions.take(2, &hash(2)).unwrap();
        assert_eq!(needed(&versions, Some(2)), "1 2 3 4 5", "2 applies to 1");
        versions.refuse(5, "torn").unwrap();
        assert_eq!(needed(&versions, Some(2)), "1 2 3 4");
        versions.take(4, &hash(4)).unwrap();
        assert_eq!(needed(&versions, None), "4", "no older version is ordered again");
        assert_eq!(needed(&versions, Some(2)), "1 2 4", "except for an evaluation");
        assert_eq!(versions.order(Some(2)).unwrap().version, PolicyVersion(2));
    }

    #[test]
    fn what_contradicts_is_refused_and_changes_nothing() {
        use WeightsForm::{Delta, Full};
        let mut versions = VersionTable::default();
        versions.propose(row(1, Full, 0)).unwrap();
        versions.propose(row(2, Full, 0)).unwrap();
        versions.refuse(2, "torn").unwrap();
        let before = versions.clone();
        let mut check = |change: &dyn Fn(&mut VersionTable) -> Result<(), VersionRefusal>, want: &str| {
            let error = change(&mut versions).unwrap_err().to_string();
            assert!(error.contains(want), "{want:?} not in {error:?}");
            assert_eq!(versions, before);
        };
        check(&|versions| versions.propose(row(2, Full, 0)), "not newer than 2");
        check(&|versions| versions.propose(row(3, Delta, 2)), "version 2 was refused");
        check(
            &|versions| versions.propose(row(4, Delta, 3)),
            "version 3, on which it is based, does not exist",
        );
        check(
            &|versions| versions.propose(row(3, Delta, 3)),
            "version 3, on which it is based, does not exist",
        );
        let repeated = VersionRow { publication_id: "p1".into(), ..row(3, Full, 0) };
        check(&|versions| versions.propose(repeated.clone()), "published as version 1");
        check(&|versions| versions.take(2, &hash(2)), "refused already");
        check(&|versions| versions.take(9, &hash(9)), "version 9 does not exist");
        check(&|versions| versions.withdraw(9, "NaN"), "version 9 does not exist");
        check(&|versions| versions.withdraw(2, "NaN"), "version 2 is refused");
        check(&|versions| versions.refuse(9, ""), "version 9 does not exist");
        let retried = VersionRow { publication_id: "p2".into(), ..row(3, Full, 0) };
        versions.propose(retried).unwrap();
        for version in 4..4 + WEIGHTS_LINKS_MAX as i32 - 1 {
            versions.propose(row(version, Delta, version - 1)).unwrap();
        }
        let last = versions.last();
        let error = versions.propose(row(last + 1, Delta, last)).unwrap_err();
        assert_eq!(error, VersionRefusal::TooManyLinks);
        assert!(error.to_string().contains("more than 64 directories"), "{error}");
        assert_eq!(versions.last(), last);
    }

    #[test]
    fn a_withdrawn_version_is_followed_by_the_next_or_by_the_one_before() {
        use WeightsForm::{Delta, Full};
        let mut versions = VersionTable::default();
        let rollback = |version, to| VersionRow {
            publication_id: format!("back {version}"),
            source: VersionSource::Rollback { to },
            ..row(version, Full, 0)
        };
        let take = |versions: &mut VersionTable, row: VersionRow| {
            let version = row.version;
            versions.propose(row).unwrap();
            versions.take(version, &hash(version)).unwrap();
        };
        let ordered = |versions: &VersionTable| versions.order(None).map_or(0, |order| order.version.0);
        for version in 1..=3 {
            take(&mut versions, row(version, Full, 0));
        }
        versions.propose(row(4, Full, 0)).unwrap();
        let error = versions.withdraw(4, "NaN").unwrap_err().to_string();
        assert!(error.contains("version 4 is proposed; only one that a policy worker ran"), "{error}");
        versions.withdraw(3, "NaN").unwrap();
        assert_eq!((versions.current(), ordered(&versions)), (3, 4));
        assert_eq!(versions.fallback(), None, "version 4 waits");
        assert_eq!(versions.needed(None), ["/w/4"], "no worker loads what was withdrawn");
        let error = versions.propose(row(5, Delta, 3)).unwrap_err().to_string();
        assert_eq!(error, "version 3 was withdrawn; nothing can be based on it");
        let repeated = VersionRow { publication_id: "p3".into(), ..row(5, Full, 0) };
        assert_eq!(versions.propose(repeated), Err(VersionRefusal::Published { version: 3 }));

        versions.refuse(4, "torn").unwrap();
        assert_eq!(versions.fallback(), Some(2));
        take(&mut versions, rollback(5, 2));
        assert_eq!((versions.fallback(), ordered(&versions)), (None, 5));
        versions.withdraw(5, "NaN").unwrap();
        assert_eq!(versions.fallback(), Some(1), "the weights of 2 are broken under either number");
        versions.propose(rollback(6, 1)).unwrap();
        versions.refuse(6, "its files are gone").unwrap();
        assert_eq!(versions.fallback(), Some(0), "and earlier files with them");
        take(&mut versions, rollback(7, 0));
        versions.withdraw(7, "NaN").unwrap();
        assert_eq!(versions.fallback(), Some(1), "which may be back");
        versions.propose(rollback(8, 1)).unwrap();
        versions.refuse(8, "its files are gone").unwrap();
        assert_eq!(versions.fallback(), None, "nothing is left");
        assert_eq!(versions.current(), 7);
        take(&mut versions, row(9, Full, 0));
        assert_eq!((versions.current(), versions.fallback(), ordered(&versions)), (9, None, 9));
    }

    /// In any order of operations: numbers grow, the current version never goes back, the ordered
    /// version is usable and not older, and after as many rollbacks as there are versions nothing
    /// is left to go back to.
    #[derive(Debug, Clone)]
    enum VersionOp {
        Propose(i32, u8, i32),
        Take(i32),
        Refuse(i32),
        Withdraw(i32),
        /// A rollback as the core proposes it, which is taken, refused or withdrawn.
        GoBack(u8),
    }

    /// Proposes the version to go back to; returns whether there was one.
    fn go_back(versions: &mut VersionTable, outcome: u8) -> bool {
        let Some(to) = versions.fallback() else { return false };
        let version = versions.last() + 1;
        let id = format!("back {version}");
        let source = VersionSource::Rollback { to };
        versions
            .propose(VersionRow { publication_id: id, source, ..row(version, WeightsForm::Full, 0) })
            .expect("the core proposes what the ledger accepts");
        if outcome == 0 {
            versions.refuse(version, "its files are gone").unwrap();
        } else {
            versions.take(version, &hash(version)).unwrap();
        }
        if outcome == 2 {
            versions.withdraw(version, "NaN").unwrap();
        }
        true
    }

    proptest! {
        #[test]
        fn versions_never_go_back(ops in prop::collection::vec(
            prop_oneof![
                3 => (1..12, 0_u8..4, 0..12).prop_map(|(version, kind, base)| VersionOp::Propose(version, kind, base)),
                2 => (1..12).prop_map(VersionOp::Take),
                1 => (1..12).prop_map(VersionOp::Refuse),
                1 => (1..12).prop_map(VersionOp::Withdraw),
                1 => (0_u8..3).prop_map(VersionOp::GoBack),
            ],
            0..60,
        )) {
            let mut versions = VersionTable::default();
            let mut current = 0;
            for op in ops {
                let before = versions.clone();
                let done = match op {
                    VersionOp::Propose(version, 3, to) => {
                        versions.propose(VersionRow { source: VersionSource::Rollback { to }, ..row(version, WeightsForm::Full, 0) })
                    }
                    VersionOp::Propose(version, kind, base) => versions.propose(row(version, WeightsForm::ALL[kind as usize], base)),
                    VersionOp::Take(version) => versions.take(version, &hash(version)),
                    VersionOp::Refuse(version) => versions.refuse(version, "it cannot be read"),
                    VersionOp::Withdraw(version) => versions.withdraw(version, "NaN"),
                    VersionOp::GoBack(outcome) => {
                        go_back(&mut versions, outcome);
                        Ok(())
                    }
                };
                if done.is_err() {
                    prop_assert_eq!(&versions, &before);
                }
                prop_assert!(versions.rows().is_sorted_by(|a, b| a.version < b.version));
                prop_assert!(versions.current() >= current);
                current = versions.current();
                let ordered = versions.order(None).map_or(0, |order| order.version.0);
                let is_withdrawn = versions.get(current).is_some_and(VersionRow::is_withdrawn);
                prop_assert!(ordered >= current || is_withdrawn);
                prop_assert!(ordered == 0 || versions.get(ordered).unwrap().is_usable());
                prop_assert!(versions.fallback().is_none() || is_withdrawn && ordered < current);
                for outcome in [0, 2] {
                    let mut versions = versions.clone();
                    let most = versions.rows().len() + 3;
                    prop_assert!((0..most).any(|_| !go_back(&mut versions, outcome)));
                }
                for row in versions.rows() {
                    prop_assert!(versions.links(row.version).is_ok());
                }
            }
        }
    }
}
