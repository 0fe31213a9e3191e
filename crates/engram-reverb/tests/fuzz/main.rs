//! No request that a writer can send brings down who reads it, or makes it take more memory than it is
//! worth; and what is taken can be sampled.
//!
//! `ENGRAM_FUZZ=10000000 cargo test -p engram-reverb --test fuzz` tries so many requests;
//! `ENGRAM_FUZZ_SEED` others than usual.

#![expect(
    clippy::unwrap_used,
    reason = "a test's helpers may fail, and say so by panicking"
)]

mod corpus;
#[path = "../../../engram-rpc/tests/fuzz/counting_allocator.rs"]
mod counting_allocator;
#[path = "../../../engram-rpc/tests/fuzz/mutate.rs"]
mod mutate;

use std::sync::Arc;

use engram_codec::{DecodedSize, check_decoded_size};
use engram_core::pool::Pool;
use engram_core::{RateLimits, SelectorKind, TableOptions};
use engram_engine::{Engine, Table};
use engram_reverb::{ByKey, Chunks, Items, SampleKeys, entry, pb};
use futures_util::FutureExt as _;
use prost::Message as _;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng as _;

use corpus::{chunk, corpus, item, tensor};
use counting_allocator::{CountingAllocator, measure_peak};
use mutate::{RandomSource, mutate, random_message};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Bytes that reading a request may take, for each byte of it.
const PER_BYTE: usize = 512;

/// Bytes that it may take whatever its size: rows of nothing, and a sample.
const ANYWAY: usize = 4 << 20;

fn options() -> TableOptions {
    TableOptions {
        name: "table".into(),
        max_size: 10,
        max_bytes: None,
        max_times_sampled: 0,
        ttl: None,
        sampler: SelectorKind::Lifo,
        remover: SelectorKind::Fifo,
        limits: RateLimits::min_size(1),
        signature: None,
        note: None,
        seed: 1,
    }
}

fn table() -> Arc<Table> {
    let engine = Engine::new(vec![options()], 1).unwrap();
    engine.table("table").unwrap()
}

/// Does with a request what a stream does, then samples the items; returns how many those were.
fn read(request: &[u8], table: &Arc<Table>, pool: &Arc<Pool>) -> usize {
    if check_decoded_size::<pb::InsertStreamRequest>(request).is_err() {
        return 0;
    }
    let Ok(request) = pb::InsertStreamRequest::decode(request) else {
        return 0;
    };
    let (mut chunks, mut by_key) = (Chunks::default(), ByKey::new());
    for message in &request.chunks {
        if let Ok(chunk) = chunks.make(message) {
            by_key.insert(message.chunk_key, Arc::new(chunk));
        }
    }
    let mut taken = 0;
    for message in &request.items {
        let Ok(item) = Items::make(&mut chunks, &by_key, table.options(), message) else {
            continue;
        };
        if table.insert(vec![item]).is_err() {
            continue;
        }
        let sample = table.sample(1, false).unwrap().now_or_never();
        let draw = &sample.unwrap().unwrap().draws[0];
        let entry = entry(draw, "table", false, &mut SampleKeys::default(), pool).unwrap();
        assert!(entry.end_of_sequence);
        taken += 1;
    }
    taken
}

fn setting(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap(),
        Err(_) => otherwise,
    }
}

#[test]
fn no_request_does_harm() {
    let count = setting("ENGRAM_FUZZ", 100_000);
    let seed = setting("ENGRAM_FUZZ_SEED", 1);
    let mut random = RandomSource(Xoshiro256PlusPlus::seed_from_u64(seed));
    let (corpus, table, pool) = (corpus(), table(), Arc::new(Pool::default()));
    for (request, items) in corpus.iter().zip([3, 1]) {
        assert_eq!(read(request, &table, &pool), items);
    }
    let mut taken = 0;
    for at in 0..count {
        let request = if random.below(10) == 0 {
            random_message(&mut random)
        } else {
            let mut request = corpus[random.below(corpus.len())].clone();
            let other = &corpus[random.below(corpus.len())];
            mutate(&mut request, other, &mut random);
            request
        };
        let (items, peak) = measure_peak(|| read(&request, &table, &pool));
        taken += u64::from(items > 0);
        let allowed = ANYWAY + PER_BYTE * request.len();
        assert!(
            peak <= allowed,
            "{at} of seed {seed}: {} bytes took {peak}, {allowed} are allowed: {request:?}",
            request.len()
        );
    }
    // Enough must pass for the deeper readers, and enough must not.
    assert!(taken > count / 10 && taken < count / 10 * 9, "{taken}");
}

#[test]
fn a_request_full_of_tiny_structures_is_refused_unread() {
    // 32 megabytes of empty items.
    let items = [2 << 3 | 2, 0].repeat(16 << 20);
    let (text, peak) =
        measure_peak(|| check_decoded_size::<pb::InsertStreamRequest>(&items).unwrap_err());
    assert!(
        text.contains(&pb::InsertStreamRequest::MAX_DECODED_BYTES.to_string()),
        "{text}"
    );
    assert!(peak < 10_000, "{peak} bytes");
}

/// What a chunk of one tensor is refused with, having taken no memory to speak of.
fn refusal(sizes: &[i64], content: Vec<u8>, dtype: pb::tensorflow::DataType) -> String {
    let chunk = chunk(1, vec![tensor(dtype, sizes, content)]);
    let (status, peak) = measure_peak(|| Chunks::default().make(&chunk).unwrap_err());
    assert!(peak < 100_000, "{peak} bytes");
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    status.message().to_owned()
}

#[test]
fn claims_are_held_against_the_bytes_that_came() {
    use pb::tensorflow::DataType::{DtFloat, DtString};

    // A block that says it is 4 GB long.
    let huge = vec![0xff, 0xff, 0xff, 0xff, 0x0f, 0];
    assert_eq!(
        refusal(&[1, 0x3fff_ffff], huge, DtFloat),
        "a tensor of 1 rows of float32[1073741823] takes 4294967292 bytes; 6 bytes came that say they are 4294967295 \
         uncompressed"
    );
    for (sizes, text) in [
        (
            &[][..],
            "a tensor of a chunk has 0 axes, []; it has 1 to 16 axes",
        ),
        (
            &[-1, 2],
            "a tensor of a chunk has 2 axes, [-1, 2]; it has 1 to 16 axes, the first of them time, and no negative size",
        ),
        (
            &[1 << 40, 0],
            "a tensor of a chunk has shape [1099511627776, 0]; its sizes can be counted",
        ),
        (
            &[1 << 20, 0],
            "a tensor of a chunk has shape [1048576, 0]; its sizes can be counted, and it has at most 65536 rows of no elements",
        ),
        (
            &[1, i64::MAX, i64::MAX],
            "a tensor of a chunk has shape [1, 9223372036854775807, 9223372036854775807]; its sizes",
        ),
        (
            &[1, 0, i64::MAX],
            "a tensor of a chunk has shape [1, 0, 9223372036854775807]; its sizes",
        ),
    ] {
        let found = refusal(sizes, vec![0], DtFloat);
        assert!(found.starts_with(text), "{found}");
    }
    assert_eq!(
        refusal(&[1, 1 << 30], vec![1; 100], DtString),
        "a tensor of 1073741824 strings has 100 bytes, fewer than the strings"
    );
    for content in [vec![0xff; 20], vec![5, 1, 2], vec![1, 1, 2]] {
        let found = refusal(&[1], content, DtString);
        assert!(found.contains("which are not their lengths"), "{found}");
    }
    let found = refusal(&[1, 6], vec![24, 0xff, 0xff], DtFloat);
    assert!(
        found.starts_with("a tensor's bytes are no Snappy block: "),
        "{found}"
    );
}

#[test]
fn rows_that_cost_nothing_are_few() {
    use pb::tensorflow::DataType::DtString;

    let of = |columns: usize, rows: i64| {
        let mut tensors = vec![tensor(DtString, &[rows, 0], Vec::new()); columns];
        tensors.push(tensor(
            DtString,
            &[rows],
            vec![0; usize::try_from(rows).unwrap()],
        ));
        chunk(1, tensors)
    };
    let message = of(100, 1000);
    let (status, peak) = measure_peak(|| Chunks::default().make(&message).unwrap_err());
    assert_eq!(
        status.message(),
        "chunk 1 has 100000 rows of strings of no elements in 1000 bytes; at most 256 and one for each byte are allowed"
    );
    assert!(peak < PER_BYTE * message.encoded_len(), "{peak} bytes");
    for (columns, rows) in [(1, 1000), (64, 4), (2, 256)] {
        let chunk = Chunks::default().make(&of(columns, rows)).unwrap();
        assert_eq!(chunk.schema().cells.len(), columns + 1);
    }
    // So many for each byte at most.
    for chunk in [of(1000, 65_536), of(257, 1), of(1, 65_536)] {
        let made = Chunks::default().make(&chunk);
        let rows = made.map_or(0, |chunk| {
            chunk
                .extents()
                .iter()
                .map(|extent| extent.rows as usize)
                .sum()
        });
        assert!(rows <= 3 * chunk.encoded_len() + 256, "{rows}");
    }
}

#[test]
fn items_that_make_no_sense_are_refused() {
    let chunk = chunk(
        1,
        vec![tensor(
            pb::tensorflow::DataType::DtUint8,
            &[3],
            vec![3, 8, 1, 2, 3],
        )],
    );
    let mut chunks = Chunks::default();
    let by_key = ByKey::from([(1, Arc::new(chunks.make(&chunk).unwrap()))]);
    let mut refusal = |columns: &[&[[i64; 4]]]| {
        let made = Items::make(&mut chunks, &by_key, &options(), &item(5, columns));
        let status = made.unwrap_err();
        (status.code(), status.message().to_owned())
    };
    assert_eq!(
        refusal(&[&[[2, 0, 1, 0]]]),
        (
            tonic::Code::Internal,
            "Could not find sequence chunk 2.".into()
        )
    );
    for (columns, text) in [
        (&[][..], "item 5 has 0 columns; it has 1 to 16384"),
        (
            &[&[[1, -1, 1, 0]][..]],
            "a slice of chunk 1 has offset -1, length 1 and index 0; none is below 0",
        ),
        (&[&[[1, 2, 2, 0]]], "column `0`"),
        (&[&[[1, 0, 1, 1]]], "column `0`"),
        (&[&[[1, 0, 0, 0]]], "column `0`"),
        (&[&[]], "column `0`"),
        (
            &[&[[1, 0, i64::from(i32::MAX), 0]; 3]],
            "an item has more cells or slices than can be counted",
        ),
    ] {
        let (code, found) = refusal(columns);
        assert_eq!(code, tonic::Code::InvalidArgument);
        assert!(found.contains(text), "{found}");
    }
}

#[test]
fn items_of_the_old_kind_grow_with_what_names_their_chunks() {
    let mut chunks = Chunks::default();
    let column = tensor(pb::tensorflow::DataType::DtUint8, &[1], vec![1, 0, 1]);
    let made = chunks.make(&chunk(1, vec![column; 16_384])).unwrap();
    let by_key = ByKey::from([(1, Arc::new(made))]);
    let mut old = |count: usize| {
        let message = pb::PrioritizedItem {
            deprecated_chunk_keys: vec![1; count],
            deprecated_sequence_range: Some(pb::SliceRange {
                offset: 0,
                length: i32::try_from(count).unwrap(),
            }),
            ..pb::PrioritizedItem::default()
        };
        Items::make(&mut chunks, &by_key, &options(), &message)
    };
    assert!(old(2).is_ok());
    let (status, peak) = measure_peak(|| old(10_000).unwrap_err());
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    assert!(peak < 100_000, "{peak} bytes");
}
