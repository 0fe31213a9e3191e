//! Untrusted chunks and items: valid ones are accepted, and no accepted one makes gathering panic.

#![expect(
    clippy::unwrap_used,
    reason = "test helpers report failures by panicking"
)]

mod items;
mod messages;
mod parts;

use std::cell::Cell;
use std::sync::Arc;

use engram_core::gather::{ColumnData, LengthPolicy, gather};
use engram_core::pool::Pool;
use engram_core::{Chunk, Error, Result, Trajectory};
use items::item;
use parts::{ChunkParts, chunk, corruption};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// A runner that tests a property on this many random inputs.
fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..Config::default()
    })
}

/// An item of all rows of a chunk.
fn all_rows(chunk: &Arc<Chunk>) -> Trajectory {
    Trajectory::Rows {
        chunk: Arc::clone(chunk),
        offset: 0,
        len: chunk.extents()[0].rows,
        squeeze: false,
    }
}

/// The bytes of each column of a batch.
fn bytes(items: &[Trajectory], length_policy: LengthPolicy) -> Result<Vec<Vec<u8>>> {
    let columns = gather(items, length_policy, &Arc::new(Pool::default()))?.columns;
    let bytes = columns.into_iter().map(|column| match column.data {
        ColumnData::Bytes(bytes) => bytes.to_vec(),
        ColumnData::Strings(bytes) => bytes,
    });
    Ok(bytes.collect())
}

#[test]
fn valid_chunks_are_accepted() {
    let compressed_count = Cell::new(0);
    runner(300)
        .run(&chunk(), |chunk| {
            let parts = ChunkParts::of(&chunk);
            let copy = Arc::new(parts.clone().build().unwrap());
            let chunk = Arc::new(chunk);
            prop_assert_eq!(copy.footprint(), chunk.footprint());
            copy.check_compressed_columns().unwrap();
            prop_assert_eq!(
                format!("{:?}", copy.origin()),
                format!("{:?}", parts.origin)
            );
            all_rows(&copy).check_parts().unwrap();
            prop_assert_eq!(
                bytes(&[all_rows(&copy)], LengthPolicy::Ragged),
                bytes(&[all_rows(&chunk)], LengthPolicy::Ragged)
            );
            let compressed = |c: usize| chunk.extents()[c].codec == engram_core::codec::Codec::Lz4;
            compressed_count.set(compressed_count.get() + usize::from(compressed(0)));
            Ok(())
        })
        .unwrap();
    assert!(
        compressed_count.get() > 10,
        "{compressed_count:?} compressed columns"
    );
}

#[test]
fn gathering_accepted_items_of_corrupt_chunks_does_not_panic() {
    let (accepted, rejected) = (Cell::new(0), Cell::new(0));
    let corruptions = prop::collection::vec(corruption(), 0..4);
    let items = prop::collection::vec(item(), 6);
    runner(6_000)
        .run(
            &(chunk(), corruptions, items),
            |(chunk, corruptions, items)| {
                let mut parts = ChunkParts::of(&chunk);
                for corruption in corruptions {
                    corruption.apply(&mut parts);
                }
                let Ok(copy) = parts.build() else {
                    rejected.set(rejected.get() + 1);
                    return Ok(());
                };
                let is_sound = copy.check_compressed_columns().is_ok();
                let (copy, chunk) = (Arc::new(copy), Arc::new(chunk));
                let items = items.iter().map(|item| item.build(&copy, &chunk));
                let valid: Vec<_> = items.filter(|item| item.check_parts().is_ok()).collect();
                accepted.set(accepted.get() + valid.len());
                for item in &valid {
                    let once = bytes(std::slice::from_ref(item), LengthPolicy::Ragged);
                    let twice = bytes(&[item.clone(), item.clone()], LengthPolicy::Pad);
                    prop_assert_eq!(once.is_ok(), twice.is_ok());
                    prop_assert!(!is_sound || !matches!(once, Err(Error::Payload(_))));
                }
                // Most of these items cannot form one batch; gathering must not panic.
                let _ = bytes(&valid, LengthPolicy::Ragged);
                let _ = bytes(&valid, LengthPolicy::Pad);
                Ok(())
            },
        )
        .unwrap();
    // Both outcomes occur often enough for the test to mean something.
    assert!(
        accepted.get() > 2_000 && rejected.get() > 1_000,
        "{accepted:?} {rejected:?}"
    );
}
