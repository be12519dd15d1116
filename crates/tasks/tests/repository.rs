//! The suites of this repository load, and hold what is promised of them.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use furrow_rollout::Split;
use furrow_tasks::{SourceFile, TaskSet, TaskSpec, TasksFile, load};

fn suite(name: &str, pages: Option<&Path>) -> TaskSet {
    let envs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../envs");
    let source = SourceFile {
        suite: name.to_owned(),
        path: name.into(),
        pages: pages.map(Path::to_owned),
        ..SourceFile::default()
    };
    let file = TasksFile { source: vec![source], ..TasksFile::default() };
    load(&file.check(&envs).unwrap()).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

#[test]
fn starter_has_fifteen_demonstrated_tasks_on_small_pages() {
    let set = suite("starter", None);
    assert_eq!(set.specs().len(), 15);
    for spec in set.specs() {
        let (task, name) = (&spec.task, spec.name());
        assert!(task.hooks.solve.is_some(), "{name} has no demonstration");
        assert!(task.viewport.width <= 512 && task.viewport.height <= 512, "{name} costs more than one tile");
        assert!(spec.scorer.needs_probe() && !spec.scorer.needs_judge(), "{name}");
    }
    assert!(set.notes().is_empty(), "{:?}", set.notes());
}

/// Every site has what is promised of it: 12 templates or more, three difficulties, all splits, a demonstration for each task.
#[test]
fn the_webs_sites_have_twelve_templates_over_three_difficulties_and_all_splits() {
    let set = suite("web", None);
    let mut sites: BTreeMap<String, Vec<&TaskSpec>> = BTreeMap::new();
    for spec in set.specs() {
        let site = spec.task.start_url.trim_start_matches("http://").split('.').next().unwrap().to_owned();
        assert!(spec.task.hooks.solve.is_some(), "{} has no demonstration", spec.name());
        assert!(spec.scorer.needs_probe() && !spec.scorer.needs_judge(), "{}", spec.name());
        sites.entry(site).or_default().push(spec);
    }
    assert_eq!(sites.len(), set.sites().len());
    for (site, tasks) in sites {
        let own: Vec<_> = tasks.iter().filter(|spec| !spec.task.task_id.contains('@')).collect();
        assert!(own.len() >= 12, "{site} has {} templates", own.len());
        let levels: BTreeSet<_> = own.iter().filter_map(|spec| spec.difficulty.as_deref()).collect();
        assert_eq!(levels, BTreeSet::from(["easy", "hard", "medium"]), "{site}");
        for split in [Split::Train, Split::Validation, Split::Test] {
            let held = own.iter().filter(|spec| spec.task.split == split).count();
            assert!(held >= 2, "{site} has {held} templates that are {} alone", split.as_str());
        }
        let starts: BTreeSet<_> = tasks.iter().map(|spec| spec.task.hooks.start.clone()).collect();
        assert_eq!(starts.len(), tasks.len(), "{site}: two tasks draw the same world");
    }
}

/// The pages are not in the repository, so empty ones stand in for them.
#[test]
fn miniwob_lists_seventy_pages_and_demonstrates_fifteen() {
    let envs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../envs/miniwob/tasks.jsonl");
    let list = std::fs::read_to_string(envs).unwrap();
    let pages = tempfile::tempdir().unwrap();
    std::fs::create_dir(pages.path().join("miniwob")).unwrap();
    for line in list.lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        std::fs::write(pages.path().join(row["file"].as_str().unwrap()), "").unwrap();
    }
    let set = suite("miniwob", Some(pages.path()));
    assert_eq!(set.specs().len(), 70);
    let demonstrated = set.specs().iter().filter(|spec| spec.task.hooks.solve.is_some()).count();
    assert!(demonstrated >= 15, "{demonstrated}");
}
