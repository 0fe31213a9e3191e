//! Chunks and items from outside: what is good comes through, and nothing else does any harm.

#![expect(
    clippy::unwrap_used,
    reason = "a test's helpers may fail, and say so by panicking"
)]

mod items;
mod messages;
mod parts;

use std::cell::Cell;
use std::sync::Arc;

use engram_core::gather::{ColumnData, LengthPolicy, gather};
use engram_core::pool::Pool;
use engram_core::{Chunk, Result, Trajectory};
use items::item;
use parts::{Parts, chunk, damage};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..Config::default()
    })
}

fn whole(chunk: &Arc<Chunk>) -> Trajectory {
    Trajectory::Rows {
        chunk: Arc::clone(chunk),
        offset: 0,
        len: chunk.extents()[0].rows,
        squeeze: false,
    }
}

/// All bytes of a batch, column after column.
fn bytes(items: &[Trajectory], length_policy: LengthPolicy) -> Result<Vec<Vec<u8>>> {
    let columns = gather(items, length_policy, &Arc::new(Pool::default()))?.columns;
    let bytes = columns.into_iter().map(|column| match column.data {
        ColumnData::Bytes(bytes) => bytes.to_vec(),
        ColumnData::Strings(bytes) => bytes,
    });
    Ok(bytes.collect())
}

#[test]
fn good_chunks_come_through() {
    let packed = Cell::new(0);
    runner(300)
        .run(&chunk(), |chunk| {
            let parts = Parts::of(&chunk);
            let copy = Arc::new(parts.clone().build().unwrap());
            let chunk = Arc::new(chunk);
            prop_assert_eq!(copy.footprint(), chunk.footprint());
            prop_assert_eq!(
                format!("{:?}", copy.origin()),
                format!("{:?}", parts.origin)
            );
            whole(&copy).check_parts().unwrap();
            prop_assert_eq!(
                bytes(&[whole(&copy)], LengthPolicy::Ragged),
                bytes(&[whole(&chunk)], LengthPolicy::Ragged)
            );
            let compressed = |c: usize| chunk.extents()[c].codec == engram_core::codec::Codec::Lz4;
            packed.set(packed.get() + usize::from(compressed(0)));
            Ok(())
        })
        .unwrap();
    assert!(packed.get() > 10, "{packed:?} compressed columns");
}

#[test]
fn nothing_that_was_damaged_does_harm() {
    let (accepted, refused) = (Cell::new(0), Cell::new(0));
    let damages = prop::collection::vec(damage(), 0..4);
    let items = prop::collection::vec(item(), 6);
    runner(6_000)
        .run(&(chunk(), damages, items), |(chunk, damages, items)| {
            let mut parts = Parts::of(&chunk);
            for damage in damages {
                damage.apply(&mut parts);
            }
            let Ok(copy) = parts.build() else {
                refused.set(refused.get() + 1);
                return Ok(());
            };
            let (copy, chunk) = (Arc::new(copy), Arc::new(chunk));
            let items = items.iter().map(|item| item.build(&copy, &chunk));
            let good: Vec<_> = items.filter(|item| item.check_parts().is_ok()).collect();
            accepted.set(accepted.get() + good.len());
            for item in &good {
                let once = bytes(std::slice::from_ref(item), LengthPolicy::Ragged);
                let twice = bytes(&[item.clone(), item.clone()], LengthPolicy::Pad);
                prop_assert_eq!(once.is_ok(), twice.is_ok());
            }
            // Not side by side, mostly; but no harm either.
            let _ = bytes(&good, LengthPolicy::Ragged);
            let _ = bytes(&good, LengthPolicy::Pad);
            Ok(())
        })
        .unwrap();
    // Both halves are worth their time.
    assert!(
        accepted.get() > 2_000 && refused.get() > 1_000,
        "{accepted:?} {refused:?}"
    );
}
