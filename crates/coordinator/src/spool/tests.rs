//! The spool against torn files, a model, and a full disk.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use proptest::prelude::*;
use tokio::runtime::Runtime;

use super::entry::{HEADER_BYTES, MAGIC};
use super::*;
use crate::small_disk::on_small_disk;

type StoredEntries = Vec<(EntryKey, Vec<u8>)>;

fn id(name: &str) -> Id<Trajectory> {
    Id::new(name).unwrap()
}

fn digest(payload: &[u8]) -> [u8; 32] {
    Sha256::digest(payload).into()
}

fn open(dir: &Path) -> (Spool, Vec<RecoveredTrajectory>) {
    Spool::open(dir, SpoolLimits::default()).unwrap()
}

async fn put(spool: &Spool, name: &str, key: EntryKey, payload: &[u8]) -> Result<AppendOutcome, SpoolError> {
    let id = id(name);
    let digest = digest(payload);
    let payload = Bytes::copy_from_slice(payload);
    match key {
        EntryKey::Step(step) => spool.append_step(&id, step, digest, payload).await,
        EntryKey::End => spool.append_ending(&id, digest, payload).await,
    }
}

/// The entries that can be read, as the tests write them.
fn contents(spool: &Spool, name: &str) -> StoredEntries {
    let read = spool.read(&id(name)).unwrap();
    read.map(|entry| entry.unwrap()).map(|entry| (entry.key, entry.payload.to_vec())).collect()
}

/// Appends each entry in turn and compares the last answer, an error by a part of its text.
#[track_caller]
fn check(story: &[(&str, EntryKey, &str)], want: Result<AppendOutcome, &str>) {
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = open(dir.path());
    let runtime = Runtime::new().unwrap();
    let answers: Vec<_> = story
        .iter()
        .map(|(name, key, payload)| runtime.block_on(put(&spool, name, *key, payload.as_bytes())))
        .collect();
    match (answers.last().unwrap(), want) {
        (Ok(got), Ok(want)) => assert_eq!(*got, want, "{story:?}"),
        (Err(error), Err(part)) if error.to_string().contains(part) => {}
        (got, want) => panic!("{story:?}: got {got:?}, want {want:?}"),
    }
}

#[test]
fn every_entry_is_kept_once_and_in_order() {
    use AppendOutcome::{New, Repeated};
    use EntryKey::{End, Step};
    check(&[("a", Step(0), "x")], Ok(New));
    check(&[("a", Step(0), "x"), ("a", Step(0), "x")], Ok(Repeated));
    check(
        &[("a", Step(0), "x"), ("a", Step(0), "y")],
        Err("a: step 0 is already recorded with another digest"),
    );
    check(&[("a", Step(0), "x"), ("a", Step(2), "z")], Err("a: step 2 came before step 1"));
    check(&[("a", Step(1), "y")], Err("a: step 1 came before step 0"));
    check(&[("a", Step(0), "x"), ("b", Step(0), "y")], Ok(New));
    check(&[("a", End, "e")], Ok(New));
    check(&[("a", End, "e"), ("a", End, "e")], Ok(Repeated));
    check(&[("a", End, "e"), ("a", End, "f")], Err("a: the ending is already recorded with another digest"));
    check(&[("a", Step(0), "x"), ("a", End, "e"), ("a", Step(0), "x")], Ok(Repeated));
    check(&[("a", Step(0), "x"), ("a", End, "e"), ("a", Step(1), "y")], Err("a is over"));
    check(&[("a", Step(0), "")], Ok(New));
}

#[tokio::test]
async fn damaged_and_oversized_payloads_are_refused_on_append() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = open(dir.path());
    let wrong = spool.append_step(&id("a"), 0, [0; 32], Bytes::from_static(b"x")).await.unwrap_err();
    assert!(matches!(wrong, SpoolError::WrongDigest { .. }), "{wrong}");
    let huge = Bytes::from(vec![0; PAYLOAD_BYTES_MAX + 1]);
    let refused = spool.append_step(&id("a"), 0, [0; 32], huge).await.unwrap_err();
    assert_eq!(refused.to_string(), "a: step 0 has 67108865 bytes; at most 67108864 are allowed");
    assert_eq!(spool.bytes(), 0);
}

#[test]
fn a_sealed_trajectory_takes_no_more_and_a_deleted_one_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = open(dir.path());
    let runtime = Runtime::new().unwrap();
    runtime.block_on(put(&spool, "a", EntryKey::Step(0), b"x")).unwrap();
    assert_eq!(spool.seal(&id("a")).unwrap(), HEADER_BYTES as u64 + 1);
    assert_eq!(spool.seal(&id("never")).unwrap(), 0);
    for (name, key) in [("a", EntryKey::Step(1)), ("a", EntryKey::End), ("never", EntryKey::Step(0))] {
        let refused = runtime.block_on(put(&spool, name, key, b"y")).unwrap_err();
        assert!(matches!(refused, SpoolError::Over { .. }), "{name} {key}: {refused}");
    }
    assert_eq!(runtime.block_on(put(&spool, "a", EntryKey::Step(0), b"x")).unwrap(), AppendOutcome::Repeated);
    assert_eq!(contents(&spool, "a"), [(EntryKey::Step(0), b"x".to_vec())]);
    for name in ["a", "never", "a"] {
        spool.delete(&id(name)).unwrap();
    }
    assert_eq!(contents(&spool, "a"), []);
    assert_eq!(spool.bytes(), 0);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn appends_of_many_trajectories_at_once_are_all_kept() {
    let dir = tempfile::tempdir().unwrap();
    let limits = SpoolLimits { queued_max: 3, queued_bytes_max: 1, open_files_max: 2 };
    let (spool, _) = Spool::open(dir.path(), limits).unwrap();
    let tasks: Vec<_> = (0..20)
        .map(|index| {
            let spool = spool.clone();
            tokio::spawn(async move {
                for step in 0..10 {
                    put(&spool, &format!("t{index}"), EntryKey::Step(step), &[index; 3000]).await.unwrap();
                }
                put(&spool, &format!("t{index}"), EntryKey::End, b"e").await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    drop(spool);
    let (spool, recovered) = open(dir.path());
    assert_eq!(recovered.len(), 20);
    assert!(recovered.iter().all(|found| found.steps.len() == 10 && found.ending == Some(digest(b"e"))));
    assert_eq!(spool.bytes(), 20 * (11 * HEADER_BYTES as u64 + 30_001));
}

/// Three steps and an ending, and where each entry ends.
fn a_whole_file() -> (Vec<u8>, StoredEntries, Vec<usize>) {
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = open(dir.path());
    let entries = vec![
        (EntryKey::Step(0), b"the first".to_vec()),
        (EntryKey::Step(1), Vec::new()),
        (EntryKey::Step(2), vec![7; 40]),
        (EntryKey::End, b"over".to_vec()),
    ];
    let runtime = Runtime::new().unwrap();
    for (key, payload) in &entries {
        runtime.block_on(put(&spool, "a", *key, payload)).unwrap();
    }
    let mut end = 0;
    let ends = entries.iter().map(|(_, payload)| {
        end += HEADER_BYTES + payload.len();
        end
    });
    let ends = ends.collect();
    (fs::read(dir.path().join("a.spool")).unwrap(), entries, ends)
}

#[test]
fn a_tail_torn_at_any_byte_is_cut_and_written_again() {
    let (whole, entries, ends) = a_whole_file();
    assert_eq!(whole.len(), *ends.last().unwrap());
    let runtime = Runtime::new().unwrap();
    for length in 0..=whole.len() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.spool"), &whole[..length]).unwrap();
        let (spool, recovered) = open(dir.path());
        let kept = ends.iter().filter(|end| **end <= length).count();
        let last = if kept == 0 { 0 } else { ends[kept - 1] };
        assert_eq!(recovered[0].tail.torn_bytes(), (length - last) as u64, "cut at {length}");
        assert_eq!(recovered[0].steps.len(), kept.min(3));
        assert_eq!(recovered[0].ending.is_some(), kept == 4);
        for (at, (key, payload)) in entries.iter().enumerate() {
            let want = if at < kept { AppendOutcome::Repeated } else { AppendOutcome::New };
            assert_eq!(runtime.block_on(put(&spool, "a", *key, payload)).unwrap(), want, "cut at {length}");
        }
        assert_eq!(contents(&spool, "a"), entries, "cut at {length}");
        assert_eq!(fs::read(dir.path().join("a.spool")).unwrap(), whole);
    }
}

#[test]
fn a_changed_byte_never_becomes_an_entry() {
    let (whole, entries, ends) = a_whole_file();
    for at in 0..whole.len() {
        let dir = tempfile::tempdir().unwrap();
        let mut damaged = whole.clone();
        damaged[at] ^= 0x20;
        fs::write(dir.path().join("a.spool"), &damaged).unwrap();
        let (spool, recovered) = open(dir.path());
        let kept = ends.iter().filter(|end| **end <= at).count();
        assert_eq!(contents(&spool, "a"), entries[..kept], "byte {at}");
        assert_eq!(recovered[0].steps.len(), kept.min(3), "byte {at}");
        let offset = ends[..kept].last().copied().unwrap_or(0) as u64;
        let want = match kept {
            3 => SpoolTail::Torn { bytes: whole.len() as u64 - offset },
            _ => SpoolTail::Damaged { offset, why: EntryFlaw::Changed },
        };
        assert_eq!(recovered[0].tail, want, "byte {at}");
        assert_eq!(fs::read(dir.path().join("a.spool")).unwrap(), damaged, "byte {at}: opening changed it");
        if kept < 3 {
            let late =
                Runtime::new().unwrap().block_on(put(&spool, "a", EntryKey::Step(kept as u32), b"later"));
            assert!(matches!(late, Err(SpoolError::Over { .. })), "byte {at}: {late:?}");
            assert_eq!(fs::read(dir.path().join("a.spool")).unwrap(), damaged, "byte {at}: an append cut it");
            spool.cut(&id("a")).unwrap();
            assert_eq!(fs::read(dir.path().join("a.spool")).unwrap(), whole[..offset as usize], "byte {at}");
        }
    }
}

#[test]
fn entries_out_of_order_are_damage() {
    let (whole, _, ends) = a_whole_file();
    let dir = tempfile::tempdir().unwrap();
    let swapped = [&whole[..ends[0]], &whole[ends[1]..]].concat();
    fs::write(dir.path().join("a.spool"), &swapped).unwrap();
    let (_spool, recovered) = open(dir.path());
    assert_eq!(recovered[0].tail, SpoolTail::Damaged { offset: ends[0] as u64, why: EntryFlaw::OutOfOrder });
}

/// A page may write text that looks like headers into what is recorded. The search for a whole
/// entry must not take time that grows with their number times their length.
#[test]
fn a_payload_full_of_headers_is_looked_through_quickly() {
    let header = |step: u32, length: usize| {
        let payload = Bytes::from(vec![0; length]);
        SpoolEntry { key: EntryKey::Step(step), digest: [0; 32], payload }.header()
    };
    let claim = header(1, 1 << 20);
    // 60,000 claims of a megabyte each, or 800,000 marks with a piece of the file behind each,
    // would take minutes.
    for (claims, is_damaged) in [(&claim[..], true), (MAGIC, false)] {
        let dir = tempfile::tempdir().unwrap();
        let mut torn = header(0, 8 << 20).to_vec();
        while torn.len() < 3 << 20 {
            torn.extend_from_slice(claims);
        }
        fs::write(dir.path().join("a.spool"), &torn).unwrap();
        let began = std::time::Instant::now();
        let (_spool, recovered) = open(dir.path());
        assert_eq!(recovered[0].steps, []);
        let tail = recovered[0].tail;
        assert_eq!(matches!(tail, SpoolTail::Damaged { offset: 0, .. }), is_damaged, "{tail:?}");
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
    }
}

#[test]
fn a_spool_file_that_is_a_link_is_refused_and_what_it_leads_to_stays() {
    let dir = tempfile::tempdir().unwrap();
    let users = dir.path().join("users");
    fs::write(&users, "root").unwrap();
    let spool = dir.path().join("spool");
    fs::create_dir(&spool).unwrap();
    std::os::unix::fs::symlink(&users, spool.join("a.spool")).unwrap();
    let error = Spool::open(&spool, SpoolLimits::default()).map(drop).unwrap_err();
    assert!(
        matches!(&error, SpoolError::Storage(cause) if cause.source.to_string().contains("symbolic link")),
        "{error:?}"
    );
    fs::remove_file(spool.join("a.spool")).unwrap();
    fs::hard_link(&users, spool.join("a.spool")).unwrap();
    let error = Spool::open(&spool, SpoolLimits::default()).map(drop).unwrap_err();
    assert!(
        matches!(&error, SpoolError::Storage(cause) if cause.source.to_string().contains("2 names")),
        "{error:?}"
    );
    assert_eq!(fs::read_to_string(&users).unwrap(), "root");
}

#[test]
fn damage_while_the_spool_runs_is_reported_with_its_offset() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = open(dir.path());
    let runtime = Runtime::new().unwrap();
    for step in 0..3 {
        runtime.block_on(put(&spool, "a", EntryKey::Step(step), b"abc")).unwrap();
    }
    let path = dir.path().join("a.spool");
    let mut bytes = fs::read(&path).unwrap();
    bytes[2 * (HEADER_BYTES + 3) - 1] ^= 1;
    fs::write(&path, bytes).unwrap();
    let read: Vec<_> = spool.read(&id("a")).unwrap().collect();
    assert_eq!(read.len(), 2, "nothing follows a damaged entry");
    let error = read[1].as_ref().unwrap_err().to_string();
    assert!(error.ends_with("a.spool, byte 55: the CRC is another"), "{error}");
}

#[test]
fn strange_files_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["notes.txt", "a b.spool", ".spool"] {
        fs::write(dir.path().join(name), "mine").unwrap();
    }
    let (_spool, recovered) = open(dir.path());
    assert_eq!(recovered, []);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
}

#[test]
fn a_full_disk_keeps_what_was_acknowledged_and_goes_on_when_freed() {
    on_small_disk("spool::tests::a_full_disk_keeps_what_was_acknowledged_and_goes_on_when_freed", |disk| {
        let dir = disk.join("spool");
        let runtime = Runtime::new().unwrap();
        let payload = vec![9; 100_000];
        for cycle in 0..5 {
            let name = format!("t{cycle}");
            let (spool, _) = open(&dir);
            let mut acknowledged = 0;
            let error = loop {
                match runtime.block_on(put(&spool, &name, EntryKey::Step(acknowledged), &payload)) {
                    Ok(appended) => assert_eq!(appended, AppendOutcome::New),
                    Err(error) => break error,
                }
                acknowledged += 1;
                assert!(acknowledged < 1000, "the small disk is not small");
            };
            assert!(matches!(error, SpoolError::DiskFull(_)), "{error}: {error:?}");
            assert!(acknowledged > 0);
            drop(spool);
            let (spool, recovered) = open(&dir);
            let found = recovered.iter().find(|found| found.trajectory_id == id(&name)).unwrap();
            assert_eq!(found.steps.len() as u32, acknowledged, "cycle {cycle}");
            assert_eq!(contents(&spool, &name).len() as u32, acknowledged);
            // the same append, refused and then accepted by the same spool
            let append =
                |spool: &Spool| runtime.block_on(put(spool, "small", EntryKey::Step(cycle), &payload));
            let refused = append(&spool).is_err();
            spool.delete(&id(&name)).unwrap();
            assert_eq!(
                append(&spool).unwrap(),
                if refused { AppendOutcome::New } else { AppendOutcome::Repeated }
            );
        }
    });
}

/// The limit is the process's, so the test runs again in a child that has 64 descriptors.
#[test]
fn a_step_without_a_descriptor_is_refused_and_accepted_once_there_is_one() {
    const CHILD: &str = "FURROW_TEST_FEW_DESCRIPTORS";
    if std::env::var_os(CHILD).is_none() {
        let test = "spool::tests::a_step_without_a_descriptor_is_refused_and_accepted_once_there_is_one";
        let script = "ulimit -n 64; exec \"$0\" \"$@\"";
        let mut child = std::process::Command::new("sh");
        child.arg("-c").arg(script).arg(std::env::current_exe().unwrap()).env(CHILD, "1");
        let output = child.args(["--exact", test, "--nocapture"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let text = text + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = open(dir.path());
    let runtime = Runtime::new().unwrap();
    let append = |name: &str, key| runtime.block_on(put(&spool, name, key, b"a step"));
    append("a", EntryKey::Step(0)).unwrap();
    let mut taken = Vec::new();
    let take_all = |taken: &mut Vec<fs::File>| {
        while let Ok(file) = fs::File::open("/dev/null") {
            taken.push(file);
        }
    };
    take_all(&mut taken);
    assert!(taken.len() > 20);
    // The idle file of another trajectory is closed for it.
    append("b", EntryKey::Step(0)).unwrap();
    append("b", EntryKey::End).unwrap();
    take_all(&mut taken);
    let error = append("c", EntryKey::Step(0)).unwrap_err();
    assert!(matches!(error, SpoolError::NoDescriptor(_)), "{error:?}");
    taken.clear();
    assert_eq!(append("c", EntryKey::Step(0)).unwrap(), AppendOutcome::New);
    assert_eq!(append("a", EntryKey::Step(1)).unwrap(), AppendOutcome::New);
    drop(spool);
    let (_, recovered) = open(dir.path());
    let steps: Vec<_> =
        recovered.iter().map(|found| (found.trajectory_id.as_str(), found.steps.len())).collect();
    assert_eq!(steps, [("a", 2), ("b", 1), ("c", 1)]);
}

/// What may happen to a spool. A trajectory's payloads differ by their seed.
#[derive(Debug, Clone)]
enum SpoolAction {
    Step {
        who: usize,
        step: u32,
        seed: u8,
        size: usize,
    },
    End {
        who: usize,
        seed: u8,
    },
    Delete {
        who: usize,
    },
    /// A crash in the middle of a write: of an entry that would fit, the first bytes are there.
    Torn {
        who: usize,
        size: usize,
        reached: usize,
    },
    /// A disk that lost data: only a prefix of the file is there.
    Short {
        who: usize,
        length: usize,
    },
    Restart,
}

fn any_act() -> impl Strategy<Value = SpoolAction> {
    let who = || 0..3usize;
    prop_oneof![
        8 => (who(), 0..6u32, 0..2u8, 0..300usize).prop_map(|(who, step, seed, size)| SpoolAction::Step { who, step, seed, size }),
        1 => (who(), 0..2u8).prop_map(|(who, seed)| SpoolAction::End { who, seed }),
        1 => who().prop_map(|who| SpoolAction::Delete { who }),
        2 => (who(), 0..300usize, 0..400usize).prop_map(|(who, size, reached)| SpoolAction::Torn { who, size, reached }),
        1 => (who(), 0..2000usize).prop_map(|(who, length)| SpoolAction::Short { who, length }),
        1 => Just(SpoolAction::Restart),
    ]
}

type SpoolModel = BTreeMap<usize, StoredEntries>;

/// The model's answer to an append.
fn expect(
    model: &mut SpoolModel,
    who: usize,
    key: EntryKey,
    payload: &[u8],
) -> Result<AppendOutcome, &'static str> {
    let entries = model.entry(who).or_default();
    if let Some((_, recorded)) = entries.iter().find(|(recorded, _)| *recorded == key) {
        return if recorded == payload { Ok(AppendOutcome::Repeated) } else { Err("conflict") };
    }
    match key {
        _ if entries.iter().any(|(key, _)| *key == EntryKey::End) => return Err("over"),
        EntryKey::Step(step) if step as usize != entries.len() => return Err("gap"),
        _ => entries.push((key, payload.to_vec())),
    }
    Ok(AppendOutcome::New)
}

fn error_name(error: &SpoolError) -> &'static str {
    match error {
        SpoolError::Conflict { .. } => "conflict",
        SpoolError::Over { .. } => "over",
        SpoolError::Gap { .. } => "gap",
        other => panic!("{other}"),
    }
}

/// Keeps the entries that are whole within the first `length` bytes.
fn shorten(entries: &mut StoredEntries, length: usize) {
    let mut end = 0;
    entries.retain(|(_, payload)| {
        end += HEADER_BYTES + payload.len();
        end <= length
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn agrees_with_a_list_through_crashes(acts in prop::collection::vec(any_act(), 1..50)) {
        let dir = tempfile::tempdir().unwrap();
        let runtime = Runtime::new().unwrap();
        let mut spool = Some(open(dir.path()).0);
        let mut model = SpoolModel::new();
        for act in acts {
            let live = spool.as_ref().unwrap();
            let path = |who: usize| dir.path().join(format!("t{who}.spool"));
            match act {
                SpoolAction::Step { who, step, seed, size } => {
                    let payload = vec![seed; size];
                    let got = runtime.block_on(put(live, &format!("t{who}"), EntryKey::Step(step), &payload));
                    let want = expect(&mut model, who, EntryKey::Step(step), &payload);
                    prop_assert_eq!(got.map_err(|error| error_name(&error)), want);
                }
                SpoolAction::End { who, seed } => {
                    let got = runtime.block_on(put(live, &format!("t{who}"), EntryKey::End, &[seed]));
                    let want = expect(&mut model, who, EntryKey::End, &[seed]);
                    prop_assert_eq!(got.map_err(|error| error_name(&error)), want);
                }
                SpoolAction::Delete { who } => {
                    live.delete(&id(&format!("t{who}"))).unwrap();
                    model.remove(&who);
                }
                SpoolAction::Torn { who, size, reached } => {
                    spool = None;
                    let step = model.get(&who).map_or(0, Vec::len) as u32;
                    let payload = Bytes::from(vec![5; size]);
                    let entry = SpoolEntry { key: EntryKey::Step(step), digest: digest(&payload), payload };
                    let mut bytes = [&entry.header()[..], &entry.payload].concat();
                    bytes.truncate(reached.min(bytes.len() - 1));
                    let mut file = fs::OpenOptions::new().append(true).create(true).open(path(who)).unwrap();
                    io::Write::write_all(&mut file, &bytes).unwrap();
                }
                SpoolAction::Short { who, length } => {
                    spool = None;
                    if let (Ok(bytes), Some(entries)) = (fs::read(path(who)), model.get_mut(&who)) {
                        fs::write(path(who), &bytes[..length.min(bytes.len())]).unwrap();
                        shorten(entries, length);
                    }
                }
                SpoolAction::Restart => spool = None,
            }
            if spool.is_none() {
                let (opened, recovered) = open(dir.path());
                for found in recovered {
                    let who: usize = found.trajectory_id.as_str()[1..].parse().unwrap();
                    let entries = model.entry(who).or_default();
                    prop_assert_eq!(found.steps.len() + usize::from(found.ending.is_some()), entries.len());
                }
                spool = Some(opened);
            }
        }
        let live = spool.as_ref().unwrap();
        for who in 0..3 {
            prop_assert_eq!(contents(live, &format!("t{who}")), model.remove(&who).unwrap_or_default());
        }
    }
}
