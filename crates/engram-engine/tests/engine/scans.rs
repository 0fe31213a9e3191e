//! Scans: what they hold in memory, and which items form a batch.

use std::sync::{Arc, Weak};

use engram_core::table::ScanOrder;
use engram_core::{Chunk, Error};
use engram_engine::{Scan, ScanOptions};

use crate::support::{byte_item, item, items, new_table, table_options, wait_ready};

#[test]
fn a_scan_releases_the_items_that_it_has_returned() {
    let table = new_table(table_options("t"));
    let all = items(0..64);
    let chunks: Vec<Weak<Chunk>> = (all.iter())
        .map(|item| Arc::downgrade(&item.trajectory.chunks()[0]))
        .collect();
    wait_ready(table.insert(all).unwrap()).unwrap();
    let mut scan = Scan::begin(&table, &ScanOptions::default()).unwrap();
    table.reset().unwrap();
    let held = || {
        let held = chunks.iter().filter(|chunk| chunk.strong_count() > 0);
        held.count()
    };
    assert_eq!(held(), 64);
    let keys = |scan: &mut Scan| -> Vec<u64> {
        let items = scan.next_items(40).unwrap();
        items.iter().map(|item| item.key).collect()
    };
    assert_eq!(keys(&mut scan), (0..40).collect::<Vec<_>>());
    assert_eq!(held(), 24);
    assert_eq!(keys(&mut scan), (40..64).collect::<Vec<_>>());
    assert_eq!(held(), 0);
    assert!(keys(&mut scan).is_empty());
}

#[test]
fn a_scan_releases_items_that_are_removed_after_it_has_returned_them() {
    for order in [ScanOrder::OldestFirst, ScanOrder::NewestFirst] {
        let table = new_table(table_options("t"));
        let all = items(0..96);
        let chunks: Vec<Weak<Chunk>> = (all.iter())
            .map(|item| Arc::downgrade(&item.trajectory.chunks()[0]))
            .collect();
        let mut all = all.into_iter();
        wait_ready(table.insert(all.by_ref().take(64).collect()).unwrap()).unwrap();
        // The slots of every second item are used again, so that the order of the slots is not that of insertion.
        let removed: Vec<u64> = (0..64).step_by(2).collect();
        table.delete(&removed).unwrap();
        wait_ready(table.insert(all.collect()).unwrap()).unwrap();
        let held = || {
            let held = chunks.iter().filter(|chunk| chunk.strong_count() > 0);
            held.count()
        };
        let options = ScanOptions {
            order,
            ..ScanOptions::default()
        };
        let mut scan = Scan::begin(&table, &options).unwrap();
        assert_eq!(scan.next_items(32).unwrap().len(), 32);
        assert_eq!(held(), 64);
        table.reset().unwrap();
        assert_eq!(held(), 64);
        assert_eq!(scan.next_items(16).unwrap().len(), 16);
        assert_eq!(held(), 16);
        assert_eq!(scan.next_items(32).unwrap().len(), 16);
        assert_eq!(held(), 0);
    }
}

#[test]
fn a_scan_of_a_closed_table_releases_its_items() {
    let table = new_table(table_options("t"));
    let all = items(0..10);
    let chunk = Arc::downgrade(&all[9].trajectory.chunks()[0]);
    wait_ready(table.insert(all).unwrap()).unwrap();
    let mut scan = Scan::begin(&table, &ScanOptions::default()).unwrap();
    assert_eq!(scan.next_items(1).unwrap().len(), 1);
    table.close(Error::Closed("gone".into()));
    assert_eq!(chunk.strong_count(), 1);
    for _ in 0..2 {
        assert_eq!(scan.next_items(1).unwrap_err().to_string(), "gone");
    }
    assert_eq!(chunk.strong_count(), 0);
    let error = Scan::begin(&table, &ScanOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "gone");
}

#[test]
fn a_batch_ends_before_an_item_with_other_columns() {
    let table = new_table(table_options("t"));
    let mut all = items(0..3);
    all.extend([byte_item(3, 1.0, 2), item(4, 1.0), item(5, 1.0)]);
    wait_ready(table.insert(all).unwrap()).unwrap();
    let mut scan = Scan::begin(&table, &ScanOptions::default()).unwrap();
    assert_eq!(scan.num_items(), 6);
    let mut lengths = Vec::new();
    loop {
        let items = scan.next_items(100).unwrap();
        if items.is_empty() {
            break;
        }
        lengths.push(items.len());
    }
    assert_eq!(lengths, [3, 1, 2]);
}
