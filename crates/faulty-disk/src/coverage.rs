//! Which faults happened where, and what was lost.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::fault::{FaultKind, Operation, Site};

/// Counts of one site.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SiteCoverage {
    /// How many operations happened there.
    pub reached: u64,
    /// Faults that had an effect: an error was returned, or a crash lost something.
    pub faults: BTreeMap<FaultKind, u64>,
}

/// Faults by site, and losses by kind of file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    pub sites: BTreeMap<Site, SiteCoverage>,
    /// What was lost and of which kind of file, in crashes and failed syncs.
    pub losses: BTreeMap<(&'static str, &'static str), u64>,
}

impl Coverage {
    /// Adds another run's counts.
    pub fn merge(&mut self, other: &Coverage) {
        for (site, counts) in &other.sites {
            let mine = self.sites.entry(*site).or_default();
            mine.reached += counts.reached;
            for (fault, count) in &counts.faults {
                *mine.faults.entry(*fault).or_default() += count;
            }
        }
        for (loss, count) in &other.losses {
            *self.losses.entry(*loss).or_default() += count;
        }
    }

    /// Faults that had an effect.
    pub fn faults(&self) -> u64 {
        self.sites.values().flat_map(|site| site.faults.values()).sum()
    }

    /// Pairs of a reached site and a fault that had an effect there fewer than `least` times.
    pub fn gaps(&self, least: u64) -> Vec<(Site, FaultKind, u64)> {
        let mut gaps = Vec::new();
        for (site, counts) in &self.sites {
            for fault in site.0.faults() {
                let count = counts.faults.get(fault).copied().unwrap_or_default();
                if count < least {
                    gaps.push((*site, *fault, count));
                }
            }
        }
        gaps
    }

    /// As lines, from which [`read`](Self::read) makes the same counts.
    pub fn lines(&self) -> String {
        let mut text = String::new();
        for ((operation, kind), counts) in &self.sites {
            write!(text, "site\t{operation:?}\t{kind}\t{}", counts.reached).ok();
            for fault in FaultKind::ALL {
                write!(text, "\t{}", counts.faults.get(&fault).copied().unwrap_or_default()).ok();
            }
            text.push('\n');
        }
        for ((what, kind), count) in &self.losses {
            writeln!(text, "loss\t{what}\t{kind}\t{count}").ok();
        }
        text
    }

    /// Reads lines of [`lines`](Self::lines); others are passed over. The names stay in memory for
    /// as long as the process lives.
    pub fn read(text: &str) -> Self {
        let name = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
        let mut coverage = Self::default();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let numbers: Vec<u64> = fields.iter().skip(3).map_while(|field| field.parse().ok()).collect();
            match (&fields[..], &numbers[..]) {
                (["site", operation, kind, ..], [reached, counts @ ..]) => {
                    let named = |known: &&Operation| format!("{known:?}") == *operation;
                    let Some(operation) = Operation::ALL.iter().find(named) else { continue };
                    let counts = FaultKind::ALL.into_iter().zip(counts.iter().copied());
                    let faults = counts.filter(|(_, count)| *count > 0).collect();
                    let site = (*operation, name(kind));
                    coverage.sites.insert(site, SiteCoverage { reached: *reached, faults });
                }
                (["loss", what, kind, ..], [count]) => {
                    coverage.losses.insert((name(what), name(kind)), *count);
                }
                _ => {}
            }
        }
        coverage
    }

    /// As a table of text.
    pub fn table(&self) -> String {
        let faults = FaultKind::ALL;
        let mut text = format!("{:<12} {:<12} {:>10}", "operation", "file", "reached");
        for fault in faults {
            write!(text, " {:>9}", format!("{fault:?}").to_lowercase()).ok();
        }
        for operation in Operation::ALL {
            for ((_, kind), counts) in self.sites.iter().filter(|(site, _)| site.0 == operation) {
                let name = format!("{operation:?}").to_lowercase();
                write!(text, "\n{name:<12} {kind:<12} {:>10}", counts.reached).ok();
                for fault in faults {
                    let count = match counts.faults.get(&fault) {
                        Some(count) => count.to_string(),
                        None if operation.faults().contains(&fault) => "0".to_owned(),
                        None => "-".to_owned(),
                    };
                    write!(text, " {count:>9}").ok();
                }
            }
        }
        for ((what, kind), count) in &self.losses {
            write!(text, "\n{what:<25} {kind:<12} {count:>10}").ok();
        }
        text
    }
}
