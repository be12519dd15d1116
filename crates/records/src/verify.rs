//! Verifies a data set from its files alone: invariants 1 to 4, with every breach located by table,
//! file, row, trajectory and step.
//!
//! Nothing here trusts the writer: rows are read as untrusted input, derived values are derived
//! again, prompts and hashes are rebuilt. It needs a few hundred bytes of memory per trajectory,
//! and one trajectory's tokens.

mod groups;
mod report;
mod steps;
mod tokens;
mod trajectories;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use furrow_rollout::TrajectoryStatus;

use crate::cell::ColumnCell;
use crate::file::IntegrityCheck;
use crate::read::DataSet;
use crate::rows::{RecordedStep, RescoreRecord};
use crate::schema::{GroupRow, ScoreRow, StepRow, TrajectoryRow};
use crate::schema_version::SchemaVersion;
use crate::shard::local_files;
use crate::{RecordsError, Table, WrittenFile, chain, jobs};
use groups::GroupTally;
use report::RowLocation;
pub use report::{ExpiredCounts, RuleBreach, VerifyCheck, VerifyCounts, VerifyReport, VerifyWarning};
use steps::{StepWalk, check_marks};
use trajectories::{TrajectoryChecks, check_trajectory};

struct Verifier<'a> {
    set: &'a DataSet,
    report: VerifyReport,
    facts: BTreeMap<String, TrajectoryChecks>,
    scored_slots: BTreeMap<(String, u32), String>,
    groups: BTreeSet<String>,
    tallies: BTreeMap<String, GroupTally>,
    /// Schema of the file that is being read.
    schema: SchemaVersion,
    /// Hashes of the jobs that files name, with the first such file.
    jobs: BTreeMap<String, String>,
    /// Whether files expired between the opening of the data set and their turn.
    has_expired_meanwhile: bool,
}

/// Checks a run directory or its `data` folder. It fails only when it cannot check; its findings
/// are in the report.
pub fn verify(dir: &Path) -> Result<VerifyReport, RecordsError> {
    let (set, checkpoint_agrees) = match DataSet::open_whole(dir) {
        Ok(opened) => opened,
        Err(RecordsError::Manifest { version, what }) => {
            return Ok(VerifyReport::of_manifest(version, &what.to_string()));
        }
        Err(error) => return Err(error),
    };
    if !checkpoint_agrees {
        let what = "the newest checkpoint lists other files than the commits before it: remove checkpoints/";
        return Ok(VerifyReport::of_manifest(set.snapshot().version(), what));
    }
    let mut verifier = Verifier::new(&set);
    verifier.read();
    verifier.compare();
    verifier.check_jobs();
    verifier.look_for_strays()?;
    Ok(verifier.report)
}

impl<'a> Verifier<'a> {
    fn new(set: &'a DataSet) -> Self {
        let snapshot = set.snapshot();
        let expired = snapshot.has_expired().then(|| ExpiredCounts {
            trajectories: snapshot.expired_rows(Table::Trajectories),
            steps: snapshot.expired_rows(Table::Steps),
            ..ExpiredCounts::default()
        });
        Self {
            set,
            report: VerifyReport { expired, ..VerifyReport::new(snapshot.version()) },
            facts: BTreeMap::new(),
            scored_slots: BTreeMap::new(),
            groups: BTreeSet::new(),
            tallies: BTreeMap::new(),
            schema: SchemaVersion::newest(),
            jobs: BTreeMap::new(),
            has_expired_meanwhile: false,
        }
    }

    /// Trajectories come first: every other table is compared with them.
    fn read(&mut self) {
        self.rows(Table::Trajectories, Self::trajectory);
        self.tally();
        self.rows(Table::Groups, Self::group);
        self.rows(Table::Scores, Self::rescore);
        for table in [Table::Steps, Table::FailedSteps] {
            let mut walk = StepWalk::default();
            self.rows(table, |this, location, row| this.step(&mut walk, location, row));
        }
    }

    fn rows<R: ColumnCell>(&mut self, table: Table, mut look: impl FnMut(&mut Self, RowLocation<'_>, R)) {
        let set = self.set;
        for file in set.snapshot().files(table) {
            self.report.counts.files += 1;
            if let Err(error) = self.rows_of(file, &mut look) {
                self.unreadable(file, &error);
            }
        }
    }

    fn rows_of<R: ColumnCell>(
        &mut self,
        file: &WrittenFile,
        look: &mut impl FnMut(&mut Self, RowLocation<'_>, R),
    ) -> Result<(), RecordsError> {
        let opened = self.set.file(file, IntegrityCheck::Hash)?;
        self.schema = opened.schema();
        for job in opened.jobs() {
            self.jobs.entry(job.sha256).or_insert_with(|| file.path.clone());
        }
        let mut row = 0;
        for batch in opened.rows::<R>()? {
            for cells in batch? {
                look(self, RowLocation { table: file.table, file: &file.path, row }, cells);
                row += 1;
            }
        }
        Ok(())
    }

    fn unreadable(&mut self, file: &WrittenFile, error: &RecordsError) {
        if matches!(error, RecordsError::Expired { .. }) {
            self.has_expired_meanwhile = true;
            self.report.expired.get_or_insert_default();
            return self.report.warn(&file.path, error.to_string());
        }
        self.report.breach(RuleBreach {
            check: VerifyCheck::File,
            table: Some(file.table),
            file: Some(file.path.clone()),
            row: None,
            trajectory: None,
            step: None,
            what: chain(error),
        });
    }

    // Trajectories.

    fn trajectory(&mut self, location: RowLocation<'_>, row: TrajectoryRow) {
        self.report.counts.trajectories += 1;
        let id = row.trajectory_id.clone();
        let evidence = row.evidence.clone();
        let success = row.success;
        let record = match row.into_domain() {
            Ok(record) => record,
            Err(what) => {
                let what = what.to_string();
                return self.report.breach(location.breach(VerifyCheck::Row, Some(&id), None, what));
            }
        };
        for (check, what) in check_trajectory(&record, evidence.as_ref()) {
            self.report.breach(location.breach(check, Some(&id), None, what));
        }
        if self.schema.has(Table::Trajectories, "success") {
            let wanted = record.score.as_ref().and_then(|score| score.success);
            if success != wanted {
                let what = format!("says success {success:?}, its score says {wanted:?}");
                self.report.breach(location.breach(VerifyCheck::DerivedValues, Some(&id), None, what));
            }
        }
        if let Some(first) = self.facts.get(&id) {
            let what = format!("already has a row in {}, row {}", first.file, first.row);
            return self.report.breach(location.breach(VerifyCheck::TrajectoryOnce, Some(&id), None, what));
        }
        let facts = TrajectoryChecks::new(location, &record, evidence.map(|evidence| evidence.sha256));
        self.slot(location, &id, &facts);
        self.facts.insert(id, facts);
    }

    fn slot(&mut self, location: RowLocation<'_>, id: &str, facts: &TrajectoryChecks) {
        if facts.status != TrajectoryStatus::Scored {
            return;
        }
        let slot = (facts.group_id.clone(), facts.sample_index);
        if let Some(first) = self.scored_slots.insert(slot, id.to_owned()) {
            let what =
                format!("slot {} of group {} is also scored by {first}", facts.sample_index, facts.group_id);
            self.report.breach(location.breach(VerifyCheck::SlotOnce, Some(id), None, what));
        }
    }

    fn tally(&mut self) {
        for facts in self.facts.values() {
            self.tallies.entry(facts.group_id.clone()).or_default().add(facts);
        }
    }

    // Groups and later scores.

    fn group(&mut self, location: RowLocation<'_>, row: GroupRow) {
        self.report.counts.groups += 1;
        let group = match row.into_domain() {
            Ok(group) => group,
            Err(what) => {
                let what = what.to_string();
                return self.report.breach(location.breach(VerifyCheck::Row, None, None, what));
            }
        };
        let id = group.group_id.as_str();
        if !self.groups.insert(id.to_owned()) {
            let what = format!("group {id} already has a row");
            self.report.breach(location.breach(VerifyCheck::GroupOnce, None, None, what));
        }
        let none = GroupTally::default();
        let tally = self.tallies.get(id).unwrap_or(&none);
        if let Some(expired) = self.report.expired.as_mut().filter(|_| tally.is_part_of(&group)) {
            expired.groups_cut += 1;
            return;
        }
        for (check, what) in tally.compare(&group) {
            let what = format!("group {id} {what}");
            self.report.breach(location.breach(check, None, None, what));
        }
    }

    fn rescore(&mut self, location: RowLocation<'_>, row: ScoreRow) {
        self.report.counts.scores += 1;
        let id = row.trajectory_id.clone();
        let problem = match row.into_domain() {
            Ok(rescore) => self.check_rescore(&id, &rescore),
            Err(what) => Some((VerifyCheck::Row, what.to_string())),
        };
        if let Some((check, what)) = problem {
            self.report.breach(location.breach(check, Some(&id), None, what));
        }
    }

    fn check_rescore(&mut self, id: &str, rescore: &RescoreRecord) -> Option<(VerifyCheck, String)> {
        if rescore.score.reward.is_some_and(|reward| !reward.is_finite()) {
            return Some((VerifyCheck::RewardFinite, "its reward is not a finite number".into()));
        }
        match (self.facts.get(id), &mut self.report.expired) {
            (None, Some(expired)) => {
                expired.scores_left += 1;
                None
            }
            (None, None) => {
                Some((VerifyCheck::EvidenceReceived, "scores a trajectory that has no row".into()))
            }
            (Some(facts), _) if facts.evidence_sha256 == Some(rescore.score.evidence_sha256) => None,
            (Some(_), _) => Some((
                VerifyCheck::EvidenceReceived,
                "its scorer received other evidence than is stored".into(),
            )),
        }
    }

    // Steps.

    fn step(&mut self, walk: &mut StepWalk, location: RowLocation<'_>, row: StepRow) {
        match location.table {
            Table::Steps => self.report.counts.steps += 1,
            _ => self.report.counts.failed_steps += 1,
        }
        let id = row.trajectory_id.clone();
        let step = row.step.cast_unsigned();
        let mut problems = walk.arrive(&id, step);
        match row.into_domain() {
            Ok(recorded) => {
                problems.extend(self.check_step(location.table, &recorded));
                problems.extend(walk.memory.step(&recorded.record, &mut self.report.counts));
                problems.extend(check_marks(&recorded.record.observation));
            }
            Err(what) => problems.push((VerifyCheck::Row, what.to_string())),
        }
        for (check, what) in problems {
            self.report.breach(location.breach(check, Some(&id), Some(step), what));
        }
    }

    fn check_step(&mut self, table: Table, step: &RecordedStep) -> Vec<(VerifyCheck, String)> {
        let Some(facts) = self.facts.get_mut(step.ancestry.trajectory_id.as_str()) else {
            return self.orphan(table).into_iter().collect();
        };
        facts.steps_read += 1;
        facts.add_versions(step.record.trace.tokens.as_ref());
        let mut problems = facts.check_table(table);
        if !facts.is_parent_of(step) {
            problems.push((VerifyCheck::StepParent, "its ids differ from its trajectory's".into()));
        }
        let is_last = step.record.step + 1 == facts.steps;
        let wanted = facts.trajectory_columns().derive(&step.record, is_last);
        if wanted != step.derived {
            problems.push((
                VerifyCheck::DerivedValues,
                format!("says {:?}, it should be {wanted:?}", step.derived),
            ));
        }
        problems
    }

    /// A step without its trajectory. Where rows have expired, failed trajectories may leave some.
    fn orphan(&mut self, table: Table) -> Option<(VerifyCheck, String)> {
        match &mut self.report.expired {
            Some(expired) if table == Table::FailedSteps => {
                expired.failed_steps_left += 1;
                None
            }
            Some(_) if self.has_expired_meanwhile => None,
            _ => Some((VerifyCheck::StepParent, "its trajectory has no row".into())),
        }
    }

    // The end.

    /// Checks that need all rows.
    fn compare(&mut self) {
        let facts = std::mem::take(&mut self.facts);
        for (id, facts) in &facts {
            let location = RowLocation { table: Table::Trajectories, file: &facts.file, row: facts.row };
            if self.has_expired_meanwhile && facts.steps_read == 0 {
                continue;
            }
            for (check, what) in facts.check_whole() {
                self.report.breach(location.breach(check, Some(id), None, what));
            }
        }
    }

    /// A job that is gone is a loss and no lie; one of another content is.
    fn check_jobs(&mut self) {
        for (sha256, file) in std::mem::take(&mut self.jobs) {
            let name = jobs::name(&sha256);
            match jobs::read(self.set.data_dir(), &sha256) {
                Some(Ok(_)) => {}
                None => self.report.warn(name, format!("is missing or cannot be read; {file} names it")),
                Some(Err(found)) => self.report.breach(RuleBreach {
                    check: VerifyCheck::File,
                    table: None,
                    file: Some(name),
                    row: None,
                    trajectory: None,
                    step: None,
                    what: format!("has SHA-256 {found}"),
                }),
            }
        }
    }

    fn look_for_strays(&mut self) -> Result<(), RecordsError> {
        let snapshot = self.set.snapshot();
        for file in local_files(self.set.data_dir())? {
            if snapshot.holds(&file.name) {
                continue;
            }
            let what = match (file.temporary, snapshot.removed().contains_key(&file.name)) {
                (true, _) => "was never finished",
                (_, true) => "is also in a merged file, or has expired, and was not set aside",
                (_, false) => "is in no commit",
            };
            self.report.warn(file.name, what);
        }
        Ok(())
    }
}

#[cfg(test)]
mod cases;
