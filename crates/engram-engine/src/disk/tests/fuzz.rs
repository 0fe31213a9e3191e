//! Fuzzing of recovery with damaged directories: recovery never panics and uses a bounded amount of memory. It never
//! restores data that was not written, unless the checksums of that data are right.
//!
//! `ENGRAM_FUZZ=1000000 cargo test -p engram-engine --lib fuzz` tests this number of directories;
//! `ENGRAM_FUZZ_SEED` sets the seed.

use engram_testkit::{
    CountingAllocator, RandomSource, env_number, measure_peak, mutate, random_message,
    runs_all_tests,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::power_loss_directory::PowerLossDirectory;
use super::random_workload::{History, open_store};
use crate::disk::directory::ReadableDirectory as _;
use crate::disk::directory_reader::Recovered;
use crate::disk::file_format::{FILE_HEADER_BYTES, RECORD_HEADER_BYTES, padding, record_header};
use crate::disk::inspect::inspect_files;
use crate::disk::recover::recover;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Maximum memory, in bytes, that reading a directory uses per byte of its files. It is large because a table of
/// few bytes in a file has maps of a minimum size in memory.
const MEMORY_PER_BYTE: usize = 512;

/// Maximum memory, in bytes, that reading a directory uses independently of the size of its files.
const BASE_MEMORY: usize = 4 << 20;

/// Names and contents of a directory's files.
type Files = Vec<(String, Vec<u8>)>;

/// A store that was closed normally.
struct UndamagedStore {
    files: Files,
    store_id: u64,
    history: History,
}

impl UndamagedStore {
    /// Creates a store and makes random changes in it.
    fn new(seed: u64) -> Self {
        let directory = PowerLossDirectory::from_files(&[]);
        let mut history = History::default();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let entropy = seed << 8;
        let mut opened = open_store(&directory, entropy).unwrap();
        history.run(&mut opened, &mut rng);
        drop(opened);
        Self {
            files: directory.files(),
            // As in `Storage::start`.
            store_id: entropy | 1,
            history,
        }
    }
}

/// Returns offset and body length of each record, up to the first length that exceeds the file.
fn find_records(file: &[u8]) -> Vec<(usize, usize)> {
    let mut records = Vec::new();
    let mut offset = FILE_HEADER_BYTES;
    while let Some(header) = file.get(offset..offset + RECORD_HEADER_BYTES) {
        let len = usize::from_le_bytes(header[8..16].try_into().unwrap());
        if len > file.len() - offset - RECORD_HEADER_BYTES {
            break;
        }
        records.push((offset, len));
        offset += RECORD_HEADER_BYTES + len + padding(len);
    }
    records
}

/// Removes one record or changes its body or kind, and recomputes all checksums. Bytes of `other` may be copied into
/// the body.
fn forge(file: &mut Vec<u8>, other: &[u8], random: &mut RandomSource) {
    let records = find_records(file);
    let Some(number) = file.get(24..32) else {
        return;
    };
    let number = u64::from_le_bytes(number.try_into().unwrap());
    let target = random.below(records.len());
    let mut forged = file[..FILE_HEADER_BYTES].to_vec();
    for (index, (offset, len)) in records.into_iter().enumerate() {
        let mut kind = u32::from_le_bytes(file[offset + 4..offset + 8].try_into().unwrap());
        let mut body =
            file[offset + RECORD_HEADER_BYTES..offset + RECORD_HEADER_BYTES + len].to_vec();
        if index == target {
            match random.below(8) {
                0 => kind = u32::try_from(random.below(24)).unwrap(),
                1 | 2 => overwrite_with_edge_case(&mut body, random),
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

/// Overwrites 4 or 8 bytes at a random position with an edge-case number. At the end of `body`, fewer bytes.
fn overwrite_with_edge_case(body: &mut [u8], random: &mut RandomSource) {
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
    let offset = random.below(body.len());
    let width = [4, 8][random.below(2)].min(body.len() - offset);
    body[offset..offset + width].copy_from_slice(&edge[..width]);
}

/// Damages a directory, possibly with parts of another one; returns true if checksums were
/// recomputed.
fn damage(files: &mut Files, other: &Files, random: &mut RandomSource) -> bool {
    let target = random.below(files.len());
    let source = random.below(other.len());
    match random.below(12) {
        0..6 => mutate(&mut files[target].1, &other[source].1, random),
        6..10 => {
            forge(&mut files[target].1, &other[source].1, random);
            return true;
        }
        10 => match random.below(4) {
            0 => drop(files.remove(target)),
            1 => files[target].1.clone_from(&other[source].1),
            2 => {
                let copy = random.below(files.len());
                let bytes = files[target].1.clone();
                files[copy].1 = bytes;
            }
            _ => files[target].1 = random_message(random),
        },
        _ => {
            for _ in 0..=random.below(3) {
                let target = random.below(files.len());
                mutate(&mut files[target].1, &other[source].1, random);
            }
        }
    }
    false
}

fn try_recover(directory: &PowerLossDirectory, repair: bool) -> Option<Recovered> {
    recover(directory, repair, &mut |_, _| {}).ok()
}

#[test]
fn damaged_directories_are_refused_or_opened_without_wrong_data() {
    let count = env_number("ENGRAM_FUZZ", if runs_all_tests() { 10_000 } else { 500 });
    let seed = env_number("ENGRAM_FUZZ_SEED", 1);
    let mut random = RandomSource::new(seed);
    let stores: Vec<UndamagedStore> = (1..=20).map(UndamagedStore::new).collect();
    let (mut opened_count, mut repaired_count, mut max_peak) = (0_u64, 0_u64, 0);
    for index in 0..count {
        let case = format!("directory {index} of seed {seed}");
        let store = &stores[random.below(stores.len())];
        let mut files = store.files.clone();
        let other = &stores[random.below(stores.len())].files;
        let is_forged = damage(&mut files, other, &mut random);
        let bytes: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
        let directory = PowerLossDirectory::from_files(&files);
        let names = directory.list().unwrap();
        let (inspection, peak) = measure_peak(|| inspect_files(&directory, &names));
        assert!(
            peak <= BASE_MEMORY + MEMORY_PER_BYTE * bytes,
            "{case}: {bytes} bytes took {peak} to inspect"
        );
        for repair in [false, true] {
            let (recovered, peak) = measure_peak(|| try_recover(&directory, repair));
            max_peak = max_peak.max(peak);
            assert!(
                peak <= BASE_MEMORY + MEMORY_PER_BYTE * bytes,
                "{case}: {bytes} bytes took {peak} to recover"
            );
            let predicted = inspection
                .opening
                .as_ref()
                .is_some_and(|opening| opening.repaired == repair);
            assert_eq!(predicted, recovered.is_some(), "{case}: {inspection:?}");
            let Some(mut recovered) = recovered else {
                continue;
            };
            // Files were mixed: those that were recovered may be the other store's.
            if !is_forged && recovered.store == Some(store.store_id) {
                let tables = &mut recovered.tables;
                store.history.check_recovered(tables, repair, &case);
            }
            opened_count += u64::from(!repair);
            repaired_count += u64::from(repair);
            break;
        }
    }
    let summary = format!(
        "{count} directories: {opened_count} opened, {repaired_count} opened with a repair; \
         at most {max_peak} bytes of memory used\n"
    );
    std::io::Write::write_all(&mut std::io::stderr(), summary.as_bytes()).unwrap();
    // Both outcomes must be frequent enough to test all readers.
    assert!(
        opened_count > count / 10 && opened_count < count / 10 * 9,
        "{opened_count} of {count} opened without a repair"
    );
}
