//! Evictions of hidden items: items drawn for the last allowed time, whose leases are still open.

#![expect(
    clippy::unwrap_used,
    reason = "test helpers report failures by panicking"
)]

use std::sync::Arc;

use engram_core::{
    CellSpec, ChunkBuilder, Compression, Compressor, DType, DeferredDrops, Layout, NewItem, Origin,
    RateLimits, Schema, SelectorKind, TableOptions, TableState, Trajectory, Volatile,
};
use smallvec::smallvec;

/// An item with its own chunk of `size` bytes.
fn item(key: u64, size: usize) -> NewItem {
    let schema = Arc::new(Schema {
        layout: Arc::new(Layout {
            names: Box::new(["obs".into()]),
            structure: r#"{"d":[["obs",0]]}"#.into(),
        }),
        cells: Box::new([CellSpec {
            dtype: DType::Uint8,
            shape: smallvec![size],
        }]),
    });
    let mut builder = ChunkBuilder::new(schema, 1).unwrap();
    builder.commit(0);
    let origin = Origin {
        key,
        episodes: smallvec![key],
        first_step: 0,
        steps: 1,
    };
    let chunk = builder.seal(origin, &mut Compressor::new(Compression::Off));
    NewItem {
        key,
        trajectory: Trajectory::Rows {
            chunk: Arc::new(chunk.unwrap()),
            offset: 0,
            len: 1,
            squeeze: true,
        },
        priority: 1.0,
    }
}

/// The few hidden items are far apart: a call that evicts all of them would search most slots.
#[test]
fn one_call_searches_a_bounded_number_of_slots_for_hidden_items() {
    const ITEMS: usize = 4096;
    const DISTANCE: usize = 512;
    let deferred = &mut DeferredDrops::default();
    let max_bytes = 8 << 20;
    let options = TableOptions {
        name: "t".into(),
        max_size: ITEMS as u64,
        max_bytes: Some(max_bytes),
        max_times_sampled: 1,
        ttl: None,
        sampler: SelectorKind::Fifo,
        remover: SelectorKind::Fifo,
        limits: RateLimits::min_size(1),
        signature: None,
        seed: 1,
        note: None,
    };
    let mut table = TableState::new(Arc::new(options), Arc::new(Volatile)).unwrap();
    for key in 0..ITEMS as u64 {
        table.insert(item(key, 1024), 0, deferred);
    }
    let mut draws = Vec::new();
    while draws.len() < ITEMS {
        table.draw(ITEMS - draws.len(), true, &mut draws, deferred);
    }
    let acknowledged = draws.iter().enumerate();
    let acknowledged = acknowledged.filter(|(index, _)| index % DISTANCE != 0);
    table.acknowledge(acknowledged.map(|(_, draw)| draw.handle), deferred);
    assert_eq!(table.stats().size, (ITEMS / DISTANCE) as u64);
    // No other item fits into the table together with this one.
    let size = usize::try_from(max_bytes).unwrap() - 1024;
    table.insert(item(ITEMS as u64, size), 0, deferred);
    assert!(table.must_shrink());
    let mut calls = 1;
    while !table.shrink(deferred) {
        calls += 1;
    }
    assert_eq!(table.stats().size, 1);
    assert!((3..8).contains(&calls), "{calls}");
}
