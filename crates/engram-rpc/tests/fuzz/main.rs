//! Decoding arbitrary bytes never panics, and allocates memory in proportion to the message size.
//!
//! `ENGRAM_FUZZ=10000000 cargo test -p engram-rpc --test fuzz` sets the number of messages.
//! `ENGRAM_FUZZ_SEED` changes the seed.

#![expect(
    clippy::unwrap_used,
    reason = "test helpers report failures by panicking"
)]

mod corpus;
mod decoders;

use std::fmt::Write as _;

use engram_rpc::pb;
use engram_rpc::wire::{MAX_DECODED_BYTES, check_decoded_size};
use engram_testkit::{
    CountingAllocator, RandomSource, env_number, measure_peak, mutate, random_message,
    runs_all_tests,
};

use corpus::corpus;
use decoders::{Kind, MAX_BATCH_BYTES, is_valid, reset_state};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Bytes of memory that may be allocated per byte of a message. The smallest encoded structure has
/// two bytes.
const MEMORY_PER_BYTE: usize = 512;

/// Bytes of memory that may be allocated for a message of any size: for a batch that is gathered
/// twice, and its decompressed columns.
const BASE_MEMORY: usize = 3 * MAX_BATCH_BYTES;

#[test]
fn mutated_messages_are_decoded_without_panic_in_bounded_memory() {
    let count = env_number(
        "ENGRAM_FUZZ",
        if runs_all_tests() { 200_000 } else { 70_000 },
    );
    let seed = env_number("ENGRAM_FUZZ_SEED", 1);
    let mut random = RandomSource::new(seed);
    let corpus = corpus();
    for (kind, message) in &corpus {
        reset_state(*kind, true);
        // Some messages are valid only after the ones before them: parts of a batch or a chunk.
        let _ = is_valid(*kind, message);
    }
    let (mut accepted, mut max_peak) = (0_u64, 0);
    for index in 0..count {
        let (kind, valid) = &corpus[random.below(corpus.len())];
        let message = if random.below(10) == 0 {
            random_message(&mut random)
        } else {
            let mut message = valid.clone();
            let other = &corpus[random.below(corpus.len())].1;
            mutate(&mut message, other, &mut random);
            message
        };
        reset_state(*kind, index % 8 == 0);
        let (was_accepted, peak) = measure_peak(|| is_valid(*kind, &message));
        accepted += u64::from(was_accepted);
        max_peak = max_peak.max(peak);
        let allowed = (BASE_MEMORY + MEMORY_PER_BYTE * message.len()).min(4 * MAX_DECODED_BYTES);
        assert!(
            peak <= allowed,
            "seed {seed}, message {index} ({kind:?}): {} bytes needed {peak} bytes of memory, at most \
             {allowed} are allowed: {}",
            message.len(),
            hex(&message[..message.len().min(300)])
        );
    }
    // Between 10% and 90% of the messages must be accepted, so that all decoding stages are tested.
    assert!(
        accepted > count / 10 && accepted < count / 10 * 9,
        "{accepted}"
    );
    let mut summary = String::new();
    writeln!(
        summary,
        "{count} messages, {accepted} accepted, at most {max_peak} bytes of memory"
    )
    .unwrap();
    std::io::Write::write_all(&mut std::io::stderr(), summary.as_bytes()).unwrap();
}

#[test]
fn a_message_of_many_tiny_structures_is_rejected_before_decoding() {
    // 4 MiB of empty `Items` messages, which would be 600 MB of structures.
    let items = [6 << 3 | 2, 0].repeat(2 << 20);
    let ((), peak) = measure_peak(|| {
        assert!(check_decoded_size::<pb::InsertRequest>(&items).is_err());
        assert!(!is_valid(Kind::InsertRequest, &items));
    });
    assert!(peak < 10_000, "{peak} bytes");
}

/// `protocol-1.txt` has the messages of version 1 of the protocol, as the release that introduced it sent them, and whether
/// they are valid alone. They do not change: every later release with this version must read them, and send the same bytes
/// for the same content. New content gets new messages.
#[test]
fn messages_of_earlier_releases_are_read_and_sent() {
    let recorded: Vec<&str> = include_str!("protocol-1.txt").lines().collect();
    reset_state(Kind::InsertRequest, true);
    let current = corpus().into_iter().map(|(kind, message)| {
        let state = if is_valid(kind, &message) {
            "valid"
        } else {
            "part"
        };
        format!("{kind:?} {state} {}", hex(&message))
    });
    let current: Vec<String> = current.collect();
    for line in &recorded {
        let is_current = current.iter().any(|each| each == line);
        assert!(is_current, "not sent or not read any more:\n{line}");
    }
    let new = current.iter().map(String::as_str);
    let new: Vec<&str> = new.filter(|line| !recorded.contains(line)).collect();
    assert!(
        new.is_empty(),
        "not in protocol-1.txt; add these if their content is new:\n{}",
        new.join("\n")
    );
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}
