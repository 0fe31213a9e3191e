//! No bytes that a peer can send bring down who reads them, or make it take more memory than they
//! are worth.
//!
//! `ENGRAM_FUZZ=10000000 cargo test -p engram-rpc --test fuzz` tries so many messages;
//! `ENGRAM_FUZZ_SEED` others than usual.

#![expect(
    clippy::unwrap_used,
    reason = "a test's helpers may fail, and say so by panicking"
)]

mod corpus;
mod counting;
mod decoders;
mod mutate;

use std::fmt::Write as _;

use engram_rpc::pb;
use engram_rpc::wire::{MAX_DECODED_BYTES, check_decoded_size};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng as _;

use corpus::corpus;
use counting::{Counting, peak_of};
use decoders::{Kind, MOST_BATCH, prepare, read};
use mutate::{Chance, mutate, noise};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that reading a message may take, for each byte of it: the smallest structure takes two.
const PER_BYTE: usize = 512;

/// Bytes that it may take whatever its size: a batch gathered twice, columns unpacked for it.
const ANYWAY: usize = 3 * MOST_BATCH;

fn setting(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap(),
        Err(_) => otherwise,
    }
}

#[test]
fn no_message_does_harm() {
    let count = setting("ENGRAM_FUZZ", 200_000);
    let seed = setting("ENGRAM_FUZZ_SEED", 1);
    let mut chance = Chance(Xoshiro256PlusPlus::seed_from_u64(seed));
    let corpus = corpus();
    for (kind, message) in &corpus {
        prepare(*kind, true);
        // A batch's part, and an insert's, go on with what came before them.
        let _ = read(*kind, message);
    }
    let (mut taken, mut largest) = (0_u64, 0);
    for at in 0..count {
        let (kind, valid) = &corpus[chance.below(corpus.len())];
        let message = if chance.below(10) == 0 {
            noise(&mut chance)
        } else {
            let mut message = valid.clone();
            let other = &corpus[chance.below(corpus.len())].1;
            mutate(&mut message, other, &mut chance);
            message
        };
        prepare(*kind, at % 8 == 0);
        let (was_taken, peak) = peak_of(|| read(*kind, &message));
        taken += u64::from(was_taken);
        largest = largest.max(peak);
        let allowed = (ANYWAY + PER_BYTE * message.len()).min(4 * MAX_DECODED_BYTES);
        assert!(
            peak <= allowed,
            "{kind:?} {at} of seed {seed}: {} bytes took {peak}, {allowed} are allowed: {}",
            message.len(),
            hex(&message[..message.len().min(300)])
        );
    }
    // Enough must pass for the deeper readers, and enough must not.
    assert!(taken > count / 10 && taken < count / 10 * 9, "{taken}");
    let mut out = String::new();
    writeln!(
        out,
        "{count} messages, {taken} taken, at most {largest} bytes held"
    )
    .unwrap();
    std::io::Write::write_all(&mut std::io::stderr(), out.as_bytes()).unwrap();
}

#[test]
fn a_message_full_of_tiny_structures_is_refused_unread() {
    // Four megabytes of empty items: 600 MB of structures.
    let items = [6 << 3 | 2, 0].repeat(2 << 20);
    let ((), peak) = peak_of(|| {
        assert!(check_decoded_size::<pb::InsertRequest>(&items).is_err());
        assert!(!read(Kind::InsertRequest, &items));
    });
    assert!(peak < 10_000, "{peak} bytes");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}
