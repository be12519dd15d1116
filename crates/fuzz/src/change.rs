//! Changes an input, by libFuzzer's own mutations.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use crate::FuzzTarget;

/// Folder of kept inputs. Without coverage libFuzzer knows no input that is better than another
/// and keeps none: then changes begin with these.
const KEPT: &str = "FURROW_FUZZ_KEPT";
/// Most changes of a kept input.
const CHANGES_MAX: u32 = 8;
/// One of so many inputs begins like one kept input and ends like another.
const SPLICED: u32 = 8;
/// One of so many inputs stays as it is, so that wrong lengths and checksums are tried, too.
const UNREPAIRED: u32 = 8;

/// Changes the first `size` bytes and returns the new size, at most `max_size`.
pub fn change(
    target: &FuzzTarget,
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    mutate: fn(&mut [u8], usize, usize) -> usize,
) -> usize {
    let mut random = ChaCha12Rng::seed_from_u64(u64::from(seed));
    let mut size = size;
    let mut count = 1;
    if !kept().is_empty() {
        let begun = begin(&mut random);
        size = begun.len().min(max_size);
        data[..size].copy_from_slice(&begun[..size]);
        count += random.random_range(0..CHANGES_MAX);
    }
    for _ in 0..count {
        size = mutate(data, size, max_size);
    }
    if target.repair.is_none() || random.random_ratio(1, UNREPAIRED) {
        return size;
    }
    let repaired = target.repaired(&data[..size]);
    if repaired.len() > max_size {
        return size;
    }
    data[..repaired.len()].copy_from_slice(&repaired);
    repaired.len()
}

/// A kept input, or the beginning of one with the end of another.
fn begin(random: &mut ChaCha12Rng) -> Vec<u8> {
    let kept = kept();
    let mut one = || &kept[random.random_range(0..kept.len())][..];
    let first = one();
    let second = one();
    if !random.random_ratio(1, SPLICED) {
        return first.to_vec();
    }
    let end = random.random_range(0..=first.len());
    let start = random.random_range(0..=second.len());
    [&first[..end], &second[start..]].concat()
}

fn kept() -> &'static [Vec<u8>] {
    static INPUTS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    INPUTS.get_or_init(|| {
        let Some(folder) = env::var_os(KEPT).map(PathBuf::from) else { return Vec::new() };
        let listed = fs::read_dir(&folder).unwrap_or_else(|why| panic!("{KEPT} {}: {why}", folder.display()));
        let mut files: Vec<PathBuf> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
        // The order of a folder is not the same everywhere, and a seed chooses by it.
        files.sort();
        files.iter().filter_map(|file| fs::read(file).ok()).collect()
    })
}
