//! Fuzzing of recovery: no directory makes it panic or use too much memory, and no damaged bytes are
//! taken for content that was not written.
//!
//! `ENGRAM_FUZZ=1000000 cargo test -p engram-engine --lib fuzz` sets the number of directories;
//! `ENGRAM_FUZZ_SEED` sets the seed.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::file_format::{FILE_HEADER_BYTES, RECORD_HEADER_BYTES, padding, record_header};
use super::file_system::FileSystem;
use super::inspect::inspect_files;
use super::power_loss::PowerLossFiles;
use super::random_workload::{History, open_store};
use super::recover::{Recovered, recover};

#[path = "../../../engram-rpc/tests/fuzz/counting_allocator.rs"]
mod counting_allocator;
#[path = "../../../engram-rpc/tests/fuzz/mutate.rs"]
mod mutate;

use counting_allocator::{CountingAllocator, measure_peak};
use mutate::{RandomSource, mutate, random_message};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Memory that reading a directory may use per byte of it. Tables have maps with a minimum size.
const MEMORY_PER_BYTE: usize = 512;

/// Memory that it may use in addition.
const BASE_MEMORY: usize = 4 << 20;

type Directory = Vec<(String, Vec<u8>)>;

fn bases() -> Vec<(Directory, u64, History)> {
    let runs = (1..=20).map(|seed| {
        let files = PowerLossFiles::from_files(&[]);
        let mut history = History::default();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut opened = open_store(&files, seed << 8).unwrap();
        history.run(&mut opened, &mut rng);
        drop(opened);
        (files.files(), seed << 8 | 1, history)
    });
    runs.collect()
}

/// Offset and body length of each record, as far as the lengths are plausible.
fn records(file: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = FILE_HEADER_BYTES;
    while let Some(header) = file.get(at..at + RECORD_HEADER_BYTES) {
        let len = usize::from_le_bytes(header[8..16].try_into().unwrap());
        if len > file.len() - at - RECORD_HEADER_BYTES {
            break;
        }
        found.push((at, len));
        at += RECORD_HEADER_BYTES + len + padding(len);
    }
    found
}

/// Changes the body or the kind of one record, and recomputes all checksums.
fn forge(file: &mut Vec<u8>, other: &[u8], random: &mut RandomSource) {
    let all = records(file);
    let Some(number) = file.get(24..32) else {
        return;
    };
    let number = u64::from_le_bytes(number.try_into().unwrap());
    let target = random.below(all.len());
    let mut forged = file[..FILE_HEADER_BYTES].to_vec();
    for (which, (at, len)) in all.into_iter().enumerate() {
        let mut kind = u32::from_le_bytes(file[at + 4..at + 8].try_into().unwrap());
        let mut body = file[at + RECORD_HEADER_BYTES..at + RECORD_HEADER_BYTES + len].to_vec();
        if which == target {
            match random.below(8) {
                0 => kind = u32::try_from(random.below(24)).unwrap(),
                1 | 2 => put_edge_number(&mut body, random),
                3 => continue,
                _ => mutate(&mut body, other, random),
            }
        }
        let header = record_header(number, forged.len() as u64, kind, &[&body]);
        forged.extend(header);
        forged.extend(&body);
        forged.resize(forged.len() + padding(body.len()), 0);
    }
    *file = forged;
}

/// Overwrites a number in the body with an edge case.
fn put_edge_number(body: &mut [u8], random: &mut RandomSource) {
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

/// Damages a directory; true if the checksums were recomputed.
fn damage(files: &mut Directory, other: &Directory, random: &mut RandomSource) -> bool {
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
fn damaged_directories_are_handled() {
    let setting = |name: &str, otherwise: u64| {
        std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
    };
    let count = setting("ENGRAM_FUZZ", 10_000);
    let seed = setting("ENGRAM_FUZZ_SEED", 1);
    let mut random = RandomSource(Xoshiro256PlusPlus::seed_from_u64(seed));
    let bases = bases();
    let (mut opened_count, mut repaired, mut largest) = (0_u64, 0_u64, 0);
    for at in 0..count {
        let case = format!("{at} of seed {seed}");
        let (files, store, history) = &bases[random.below(bases.len())];
        let mut files = files.clone();
        let is_forged = damage(&mut files, &bases[random.below(bases.len())].0, &mut random);
        let bytes: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
        let files = PowerLossFiles::from_files(&files);
        let (inspection, peak) = measure_peak(|| inspect_files(&files, &files.list().unwrap()));
        assert!(
            peak <= BASE_MEMORY + MEMORY_PER_BYTE * bytes,
            "{case}: {bytes} bytes took {peak} to inspect"
        );
        for repair in [false, true] {
            let (found, peak) = measure_peak(|| read(&files, repair));
            largest = largest.max(peak);
            assert!(
                peak <= BASE_MEMORY + MEMORY_PER_BYTE * bytes,
                "{case}: {bytes} bytes took {peak}"
            );
            let opened = inspection
                .opening
                .as_ref()
                .filter(|opened| opened.repaired == repair);
            assert_eq!(opened.is_some(), found.is_some(), "{case}: {inspection:?}");
            let Some(mut found) = found else {
                continue;
            };
            // The only file left may belong to another store.
            if !is_forged && found.store == Some(*store) {
                history.check_repaired(&mut found.tables, repair, &case);
            }
            opened_count += u64::from(!repair);
            repaired += u64::from(repair);
            break;
        }
    }
    let out = format!(
        "{count} directories: {opened_count} opened_count, {repaired} repaired; at most {largest} bytes used\n"
    );
    std::io::Write::write_all(&mut std::io::stderr(), out.as_bytes()).unwrap();
    // Both outcomes must be frequent enough to test all readers.
    assert!(
        opened_count > count / 10 && opened_count < count / 10 * 9,
        "{opened_count}"
    );
}
