//! Spool files: the entries of a trajectory that are not yet in Parquet.

use furrow_coordinator::spool::{EntryKey, Spool, SpoolEntry, SpoolLimits, SpoolTail, read_finished};
use furrow_rollout::{Id, Trajectory};
use futures::executor::block_on;
use sha2::{Digest, Sha256};

use crate::{FuzzTarget, Seed, accept, files};

pub(super) const SPOOL: FuzzTarget = FuzzTarget {
    name: "spool",
    run,
    repair: Some(repair),
    memory_max: |_| 16 << 20,
    bytes_max: 8 << 10,
    catches_panics: false,
    seeds,
};

const FILE: &str = "t.spool";
const MAGIC: &[u8] = b"FSP1";
/// Bytes before the payload; the CRC covers all but its own four.
const HEADER_BYTES: usize = 52;
const CRC_AT: usize = 48;

fn id() -> Id<Trajectory> {
    Id::new("t").expect("the name of a trajectory")
}

/// Steps that are found can be read, and appended to another spool they are the same bytes.
fn run(input: &[u8]) {
    let folder = files::scratch();
    files::put(folder, FILE, input);
    let (spool, found) = Spool::open(folder, SpoolLimits::default()).expect("a readable folder is opened");
    let [found] = &found[..] else { panic!("one file is one trajectory: {found:?}") };
    let mut steps: Vec<SpoolEntry> = Vec::new();
    let mut ending = None;
    let mut is_sound = true;
    for entry in spool.read(&id()).expect("the file is there") {
        match entry {
            Ok(entry) if entry.key == EntryKey::End => ending = Some(entry),
            Ok(entry) => steps.push(entry),
            // The digest is the sender's, which a start does not compute again.
            Err(_) => is_sound = false,
        }
    }
    if is_sound {
        assert_eq!(steps.len(), found.steps.len(), "every step that is found is read");
        assert_eq!(ending.as_ref().map(|entry| entry.digest), found.ending, "and so is the ending");
        rewrite(input, &steps);
        if !steps.is_empty() {
            accept();
        }
    }
    let mut finished = 0;
    read_finished(folder, &mut |_, _, _| finished += 1).expect("a readable folder is read");
    let is_whole = is_sound && found.tail == SpoolTail::None;
    assert!(!is_whole || finished == usize::from(ending.is_some()), "{finished} trajectories ended");
}

fn rewrite(input: &[u8], steps: &[SpoolEntry]) {
    let folder = files::beside("again");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).expect("its own folder can be removed");
    }
    let (spool, _) = Spool::open(&folder, SpoolLimits::default()).expect("an empty folder is opened");
    let id = id();
    for (step, entry) in (0..).zip(steps) {
        let appended = spool.append_step(&id, step, entry.digest, entry.payload.clone());
        block_on(appended).expect("a step that was read is appended");
    }
    let written = if steps.is_empty() {
        Vec::new()
    } else {
        std::fs::read(spool.path(&id)).expect("the file was written")
    };
    assert!(input.starts_with(&written), "the same steps are the same bytes");
}

/// Corrects lengths beyond the end, digests and checksums of the entries.
fn repair(input: &[u8]) -> Vec<u8> {
    let mut repaired = input.to_vec();
    let mut at = 0;
    while repaired.len() >= at + HEADER_BYTES && repaired[at..].starts_with(MAGIC) {
        let header = &repaired[at..at + HEADER_BYTES];
        let claimed = u32::from_le_bytes([header[12], header[13], header[14], header[15]]) as usize;
        let length = claimed.min(repaired.len() - at - HEADER_BYTES);
        let end = at + HEADER_BYTES + length;
        repaired[at + 12..at + 16].copy_from_slice(&(length as u32).to_le_bytes());
        let digest = Sha256::digest(&repaired[at + HEADER_BYTES..end]);
        repaired[at + 16..at + CRC_AT].copy_from_slice(&digest);
        let mut crc = crc32fast::Hasher::new();
        crc.update(&repaired[at..at + CRC_AT]);
        crc.update(&repaired[at + HEADER_BYTES..end]);
        repaired[at + CRC_AT..at + HEADER_BYTES].copy_from_slice(&crc.finalize().to_le_bytes());
        at = end;
    }
    repaired
}

fn seeds() -> Vec<Seed> {
    let entry = |kind: u8, step: u32, payload: &[u8]| {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(MAGIC);
        header[4] = kind;
        header[8..12].copy_from_slice(&step.to_le_bytes());
        header[12..16].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        [&header[..], payload].concat()
    };
    let steps = [entry(1, 0, b"first"), entry(1, 1, b"the second FSP1"), entry(1, 2, b"")].concat();
    let ended = repair(&[&steps[..], &entry(2, 0, b"end")].concat());
    let torn = ended[..ended.len() - 40].to_vec();
    let mut changed = ended.clone();
    changed[HEADER_BYTES] ^= 1;
    vec![
        Seed::new("steps", repair(&steps)),
        Seed::new("ended", ended),
        Seed::new("torn", torn),
        Seed::new("changed", changed),
        Seed::new("marks", [&repair(&steps)[..], &MAGIC.repeat(100)].concat()),
    ]
}
