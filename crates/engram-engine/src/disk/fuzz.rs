//! No bytes in a directory bring down who reads them, make it take more memory than they are worth, or pass for
//! what was not written.
//!
//! `ENGRAM_FUZZ=1000000 cargo test -p engram-engine --lib fuzz` tries so many directories;
//! `ENGRAM_FUZZ_SEED` others than usual.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::file_format::{FILE_HEADER_BYTES, RECORD_HEADER_BYTES, padding, record_header};
use super::file_system::FileSystem;
use super::inspect::look;
use super::power_loss::PowerLossFiles;
use super::random_workload::{History, begin};
use super::recover::{Recovered, recover};

#[path = "../../../engram-rpc/tests/fuzz/counting_allocator.rs"]
mod counting_allocator;
#[path = "../../../engram-rpc/tests/fuzz/mutate.rs"]
mod mutate;

use counting_allocator::{CountingAllocator, measure_peak};
use mutate::{RandomSource, mutate, random_message};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Bytes that reading a directory may take, for each byte of it: tables have maps that take some whatever they hold.
const PER_BYTE: usize = 512;

/// Bytes that it may take whatever its size.
const ANYWAY: usize = 4 << 20;

type Directory = Vec<(String, Vec<u8>)>;

fn bases() -> Vec<(Directory, u64, History)> {
    let lives = (1..=20).map(|seed| {
        let files = PowerLossFiles::of(&[]);
        let mut past = History::default();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut opened = begin(&files, seed << 8).unwrap();
        past.work(&mut opened, &mut rng);
        drop(opened);
        (files.all(), seed << 8 | 1, past)
    });
    lives.collect()
}

/// Where a file's records begin, as far as their lengths can be followed.
fn records(file: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = FILE_HEADER_BYTES;
    while let Some(head) = file.get(at..at + RECORD_HEADER_BYTES) {
        let len = usize::from_le_bytes(head[8..16].try_into().unwrap());
        if len > file.len() - at - RECORD_HEADER_BYTES {
            break;
        }
        found.push((at, len));
        at += RECORD_HEADER_BYTES + len + padding(len);
    }
    found
}

/// Spoils the body of a record, or its kind, and makes the file one whose checksums fit.
fn forge(file: &mut Vec<u8>, other: &[u8], random: &mut RandomSource) {
    let all = records(file);
    let Some(number) = file.get(24..32) else {
        return;
    };
    let number = u64::from_le_bytes(number.try_into().unwrap());
    let spoiled = random.below(all.len());
    let mut forged = file[..FILE_HEADER_BYTES].to_vec();
    for (which, (at, len)) in all.into_iter().enumerate() {
        let mut kind = u32::from_le_bytes(file[at + 4..at + 8].try_into().unwrap());
        let mut body = file[at + RECORD_HEADER_BYTES..at + RECORD_HEADER_BYTES + len].to_vec();
        if which == spoiled {
            match random.below(8) {
                0 => kind = u32::try_from(random.below(24)).unwrap(),
                1 | 2 => wide(&mut body, random),
                3 => continue,
                _ => mutate(&mut body, other, random),
            }
        }
        let head = record_header(number, forged.len() as u64, kind, &[&body]);
        forged.extend(head);
        forged.extend(&body);
        forged.resize(forged.len() + padding(body.len()), 0);
    }
    *file = forged;
}

/// Makes a number of it one at which things are likely to go wrong.
fn wide(body: &mut [u8], random: &mut RandomSource) {
    let edges = [
        0,
        1,
        u64::MAX,
        u64::MAX >> 1,
        u64::from(u32::MAX),
        1 << 31,
        1 << 62,
        1 << 40,
    ];
    let edge = edges[random.below(edges.len())].to_le_bytes();
    let at = random.below(body.len());
    let width = [4, 8][random.below(2)].min(body.len() - at);
    body[at..at + width].copy_from_slice(&edge[..width]);
}

/// Spoils a directory; whether its checksums were made to fit.
fn spoil(files: &mut Directory, other: &Directory, random: &mut RandomSource) -> bool {
    let at = random.below(files.len());
    let from = random.below(other.len());
    match random.below(12) {
        0..6 => mutate(&mut files[at].1, &other[from].1, random),
        6..10 => {
            forge(&mut files[at].1, &other[from].1, random);
            return true;
        }
        10 => match random.below(4) {
            0 => drop(files.remove(at)),
            1 => files[at].1.clone_from(&other[from].1),
            2 => {
                let to = random.below(files.len());
                let bytes = files[at].1.clone();
                files[to].1 = bytes;
            }
            _ => files[at].1 = random_message(random),
        },
        _ => {
            for _ in 0..=random.below(3) {
                let at = random.below(files.len());
                mutate(&mut files[at].1, &other[from].1, random);
            }
        }
    }
    false
}

fn read(files: &PowerLossFiles, repair: bool) -> Option<Recovered> {
    recover(files, repair, &mut |_, _| {}).ok()
}

#[test]
fn no_directory_does_harm() {
    let setting = |name: &str, otherwise: u64| {
        std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
    };
    let count = setting("ENGRAM_FUZZ", 10_000);
    let seed = setting("ENGRAM_FUZZ_SEED", 1);
    let mut random = RandomSource(Xoshiro256PlusPlus::seed_from_u64(seed));
    let bases = bases();
    let (mut taken, mut repaired, mut largest) = (0_u64, 0_u64, 0);
    for at in 0..count {
        let what = format!("{at} of seed {seed}");
        let (files, store, past) = &bases[random.below(bases.len())];
        let mut files = files.clone();
        let is_forged = spoil(&mut files, &bases[random.below(bases.len())].0, &mut random);
        let bytes: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
        let files = PowerLossFiles::of(&files);
        let (looked, peak) = measure_peak(|| look(&files, &files.list().unwrap()));
        assert!(
            peak <= ANYWAY + PER_BYTE * bytes,
            "{what}: {bytes} bytes took {peak} to inspect"
        );
        for repair in [false, true] {
            let (found, peak) = measure_peak(|| read(&files, repair));
            largest = largest.max(peak);
            assert!(
                peak <= ANYWAY + PER_BYTE * bytes,
                "{what}: {bytes} bytes took {peak}"
            );
            let opened = looked
                .opening
                .as_ref()
                .filter(|opened| opened.repaired == repair);
            assert_eq!(opened.is_some(), found.is_some(), "{what}: {looked:?}");
            let Some(mut found) = found else {
                continue;
            };
            // A file of another store may be the only one.
            if !is_forged && found.store == Some(*store) {
                past.recognise(&mut found.tables, repair, &what);
            }
            taken += u64::from(!repair);
            repaired += u64::from(repair);
            break;
        }
    }
    let out = format!(
        "{count} directories: {taken} taken, {repaired} repaired; at most {largest} bytes held\n"
    );
    std::io::Write::write_all(&mut std::io::stderr(), out.as_bytes()).unwrap();
    // Enough must pass for the deeper readers, and enough must not.
    assert!(taken > count / 10 && taken < count / 10 * 9, "{taken}");
}
