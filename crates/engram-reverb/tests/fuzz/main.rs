//! Mutated insert requests never cause a panic or large allocations, and accepted items can be sampled.
//!
//! `ENGRAM_FUZZ=10000000 cargo test -p engram-reverb --test fuzz` sets the number of requests;
//! `ENGRAM_FUZZ_SEED` sets the seed.

#![expect(
    clippy::unwrap_used,
    reason = "test helpers report failures by panicking"
)]

use std::sync::Arc;

use engram_codec::{DecodedSize, check_decoded_size};
use engram_core::pool::Pool;
use engram_core::{SelectorKind, TableOptions};
use engram_engine::{Engine, Table};
use engram_reverb::{ChunkDecoder, ChunkKeyCounter, ChunksByKey, decode_item, encode_sample, pb};
use engram_testkit::reverb_messages::{chunk, insert_requests, item, tensor};
use engram_testkit::{
    CountingAllocator, RandomSource, env_number, measure_peak, mutate, random_message,
    runs_all_tests, table_options,
};
use futures_util::FutureExt as _;
use prost::Message as _;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Maximum peak memory per byte of a request, in bytes.
const ALLOCATED_PER_BYTE: usize = 512;

/// Peak memory that any request may need in addition, in bytes: for rows without elements and for a sample.
const ALLOCATED_ALWAYS: usize = 4 << 20;

fn options() -> TableOptions {
    TableOptions {
        max_size: 10,
        sampler: SelectorKind::Lifo,
        ..table_options("table")
    }
}

fn table() -> Arc<Table> {
    let engine = Engine::new(vec![options()], 1).unwrap();
    engine.table("table").unwrap()
}

/// Handles a request like an insert stream, and samples each item that it inserts. Returns their number.
fn handle(request: &[u8], table: &Arc<Table>, pool: &Arc<Pool>) -> usize {
    if check_decoded_size::<pb::InsertStreamRequest>(request).is_err() {
        return 0;
    }
    let Ok(request) = pb::InsertStreamRequest::decode(request) else {
        return 0;
    };
    let (mut decoder, mut by_key) = (ChunkDecoder::default(), ChunksByKey::new());
    for message in &request.chunks {
        if let Ok(chunk) = decoder.decode(message) {
            by_key.insert(message.chunk_key, Arc::new(chunk));
        }
    }
    let mut accepted = 0;
    for message in &request.items {
        let Ok(item) = decode_item(&mut decoder, &by_key, table.options(), message) else {
            continue;
        };
        if table.insert(vec![item]).is_err() {
            continue;
        }
        let sample = table.sample(1, false).unwrap().now_or_never();
        let draw = &sample.unwrap().unwrap().draws[0];
        let entry =
            encode_sample(draw, "table", false, &mut ChunkKeyCounter::default(), pool).unwrap();
        assert!(entry.end_of_sequence);
        accepted += 1;
    }
    accepted
}

#[test]
fn mutated_requests_are_handled_within_limits() {
    let count = env_number(
        "ENGRAM_FUZZ",
        if runs_all_tests() { 100_000 } else { 40_000 },
    );
    let seed = env_number("ENGRAM_FUZZ_SEED", 1);
    let mut random = RandomSource::new(seed);
    let (corpus, table, pool) = (insert_requests(), table(), Arc::new(Pool::default()));
    for (request, items) in corpus.iter().zip([3, 1]) {
        assert_eq!(handle(request, &table, &pool), items);
    }
    let mut accepted = 0;
    for number in 0..count {
        let request = if random.below(10) == 0 {
            random_message(&mut random)
        } else {
            let mut request = corpus[random.below(corpus.len())].clone();
            let other = &corpus[random.below(corpus.len())];
            mutate(&mut request, other, &mut random);
            request
        };
        let (items, peak) = measure_peak(|| handle(&request, &table, &pool));
        accepted += u64::from(items > 0);
        let allowed = ALLOCATED_ALWAYS + ALLOCATED_PER_BYTE * request.len();
        assert!(
            peak <= allowed,
            "request {number} of seed {seed}: {} bytes allocated {peak}, {allowed} are allowed: {request:?}",
            request.len()
        );
    }
    // Enough requests must be accepted, and enough rejected, for the test to be meaningful.
    assert!(
        accepted > count / 10 && accepted < count / 10 * 9,
        "{accepted}"
    );
}

#[test]
fn a_request_of_very_many_items_is_rejected_before_decoding() {
    // 32 MiB of empty items.
    let items = [2 << 3 | 2, 0].repeat(16 << 20);
    let (text, peak) =
        measure_peak(|| check_decoded_size::<pb::InsertStreamRequest>(&items).unwrap_err());
    assert!(
        text.contains(&pb::InsertStreamRequest::MAX_DECODED_BYTES.to_string()),
        "{text}"
    );
    assert!(peak < 10_000, "{peak} bytes");
}

/// Returns the error for a chunk of one tensor. The chunk must be rejected without large allocations.
fn rejection(sizes: &[i64], content: Vec<u8>, dtype: pb::tensorflow::DataType) -> String {
    let chunk = chunk(1, vec![tensor(dtype, sizes, content)]);
    let (status, peak) = measure_peak(|| ChunkDecoder::default().decode(&chunk).unwrap_err());
    assert!(peak < 100_000, "{peak} bytes");
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    status.message().to_owned()
}

#[test]
fn declared_sizes_are_checked_against_the_bytes() {
    use pb::tensorflow::DataType::{DtFloat, DtString};

    // A Snappy block that declares 4 GiB.
    let huge = vec![0xff, 0xff, 0xff, 0xff, 0x0f, 0];
    assert_eq!(
        rejection(&[1, 0x3fff_ffff], huge, DtFloat),
        "a tensor of 1 rows of float32[1073741823] has 4294967292 bytes, but its 6 compressed bytes declare 4294967295"
    );
    for (sizes, text) in [
        (
            &[][..],
            "a tensor of a chunk has shape []; expected 1 to 16 axes",
        ),
        (
            &[-1, 2],
            "a tensor of a chunk has shape [-1, 2]; expected 1 to 16 axes, time first, no negative size",
        ),
        (
            &[1 << 40, 0],
            "a tensor of a chunk has shape [1099511627776, 0], which is too large",
        ),
        (
            &[1 << 20, 0],
            "a tensor of a chunk has shape [1048576, 0], which is too large; a tensor without elements may have at most 65536 rows",
        ),
        (
            &[1, i64::MAX, i64::MAX],
            "a tensor of a chunk has shape [1, 9223372036854775807, 9223372036854775807], which is too large",
        ),
        (
            &[1, 0, i64::MAX],
            "a tensor of a chunk has shape [1, 0, 9223372036854775807], which is too large",
        ),
    ] {
        let error = rejection(sizes, vec![0], DtFloat);
        assert!(error.starts_with(text), "{error}");
    }
    assert_eq!(
        rejection(&[1, 1 << 30], vec![1; 100], DtString),
        "a tensor of 1073741824 strings has 100 bytes; each string takes at least one"
    );
    for content in [vec![0xff; 20], vec![5, 1, 2], vec![1, 1, 2]] {
        let error = rejection(&[1], content, DtString);
        assert!(
            error.contains(
                "strings are corrupt: expected their lengths followed by the strings' bytes"
            ),
            "{error}"
        );
    }
    let error = rejection(&[1, 6], vec![24, 0xff, 0xff], DtFloat);
    assert!(
        error.starts_with("the compressed bytes of a tensor are corrupt: "),
        "{error}"
    );
}

#[test]
fn rows_without_bytes_are_limited() {
    use pb::tensorflow::DataType::DtString;

    let message_of = |columns: usize, rows: i64| {
        let mut tensors = vec![tensor(DtString, &[rows, 0], Vec::new()); columns];
        tensors.push(tensor(
            DtString,
            &[rows],
            vec![0; usize::try_from(rows).unwrap()],
        ));
        chunk(1, tensors)
    };
    let message = message_of(100, 1000);
    let (status, peak) = measure_peak(|| ChunkDecoder::default().decode(&message).unwrap_err());
    assert_eq!(
        status.message(),
        "chunk 1 has 100000 empty string rows in 1000 bytes; at most 256 plus one per byte are allowed"
    );
    assert!(
        peak < ALLOCATED_PER_BYTE * message.encoded_len(),
        "{peak} bytes"
    );
    for (columns, rows) in [(1, 1000), (64, 4), (2, 256)] {
        let chunk = ChunkDecoder::default()
            .decode(&message_of(columns, rows))
            .unwrap();
        assert_eq!(chunk.schema().cells.len(), columns + 1);
    }
    // At most about three rows per byte are accepted.
    for chunk in [
        message_of(1000, 65_536),
        message_of(257, 1),
        message_of(1, 65_536),
    ] {
        let decoded = ChunkDecoder::default().decode(&chunk);
        let rows = decoded.map_or(0, |chunk| {
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
fn invalid_items_are_rejected() {
    let chunk = chunk(
        1,
        vec![tensor(
            pb::tensorflow::DataType::DtUint8,
            &[3],
            vec![3, 8, 1, 2, 3],
        )],
    );
    let mut decoder = ChunkDecoder::default();
    let by_key = ChunksByKey::from([(1, Arc::new(decoder.decode(&chunk).unwrap()))]);
    let mut rejection = |columns: &[&[[i64; 4]]]| {
        let result = decode_item(&mut decoder, &by_key, &options(), &item(5, columns));
        let status = result.unwrap_err();
        (status.code(), status.message().to_owned())
    };
    assert_eq!(
        rejection(&[&[[2, 0, 1, 0]]]),
        (
            tonic::Code::Internal,
            "Could not find sequence chunk 2.".into()
        )
    );
    for (columns, text) in [
        (&[][..], "item 5 must have 1 to 16384 columns; got 0"),
        (
            &[&[[1, -1, 1, 0]][..]],
            "a slice of chunk 1 has offset -1, length 1 and index 0; none may be negative",
        ),
        (&[&[[1, 2, 2, 0]]], "column `0`"),
        (&[&[[1, 0, 1, 1]]], "column `0`"),
        (&[&[[1, 0, 0, 0]]], "column `0`"),
        (&[&[]], "column `0`"),
        (
            &[&[[1, 0, i64::from(i32::MAX), 0]; 3]],
            "an item must have fewer than 2^32 cells and slices",
        ),
    ] {
        let (code, error) = rejection(columns);
        assert_eq!(code, tonic::Code::InvalidArgument);
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn deprecated_items_have_a_limited_number_of_slices() {
    let mut decoder = ChunkDecoder::default();
    let column = tensor(pb::tensorflow::DataType::DtUint8, &[1], vec![1, 0, 1]);
    let wide_chunk = decoder.decode(&chunk(1, vec![column; 16_384])).unwrap();
    let by_key = ChunksByKey::from([(1, Arc::new(wide_chunk))]);
    let mut deprecated = |count: usize| {
        let message = pb::PrioritizedItem {
            deprecated_chunk_keys: vec![1; count],
            deprecated_sequence_range: Some(pb::SliceRange {
                offset: 0,
                length: i32::try_from(count).unwrap(),
            }),
            ..pb::PrioritizedItem::default()
        };
        decode_item(&mut decoder, &by_key, &options(), &message)
    };
    assert!(deprecated(2).is_ok());
    let (status, peak) = measure_peak(|| deprecated(10_000).unwrap_err());
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    assert!(peak < 100_000, "{peak} bytes");
}
