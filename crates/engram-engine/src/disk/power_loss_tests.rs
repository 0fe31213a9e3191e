//! Stores whose machine loses power at any write.

use engram_core::selector::TableRng;
use engram_core::{DeferredDrops, TableOp};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::power_loss::PowerLossFiles;
use super::random_workload::{History, begin, look, words};

fn live_with_power_cuts(seed: u64) -> (usize, u64) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut files = PowerLossFiles::default();
    let mut past = History::default();
    let (mut compared, mut cuts) = (0, 0);
    for round in 0..6 {
        let what = format!("seed {seed}, round {round}");
        let power = rng.next_u64() % 120;
        files.power(power);
        if let Ok(mut opened) = begin(&files, seed) {
            for (id, table) in &mut opened.tables {
                past.words.insert((*id, table.last_lsn().0), words(table));
            }
            past.work(&mut opened, &mut rng);
        }
        cuts += u64::from(files.left() == 0);
        files = files.after_power_cut(&mut rng);
        let mut found = look(&files).unwrap_or_else(|error| panic!("{what}: {error}"));
        compared += past.check(&mut found.tables, &what);
        // What was never safe and did not come back was never: its numbers are given again.
        let last = |id: &u64| found.tables.get(id).map_or(0, |table| table.last_lsn().0);
        let next = found
            .next_change
            .max(1 + (1..4).map(|id| last(&id)).max().unwrap_or(0));
        past.words.retain(|(_, lsn), _| *lsn < next);
    }
    (compared, cuts)
}

/// Of a choice, the power left what was chosen, and not what for.
#[test]
fn where_a_generator_is_counts_as_a_change() {
    let files = PowerLossFiles::of(&[]);
    let mut past = History::default();
    let mut opened = begin(&files, 1).unwrap();
    past.work(&mut opened, &mut Xoshiro256PlusPlus::seed_from_u64(1));
    let table = opened.tables.get_mut(&1).unwrap();
    table.end_leases(&mut DeferredDrops::default());
    let chosen = TableRng::seed_from_u64(1);
    let sink = opened.storage.sink(1);
    sink.append("", &TableOp::SetRng { rng: &chosen });
    drop(opened);
    for _ in 0..2 {
        let opened = begin(&files, 1).unwrap();
        let last = opened.tables[&1].last_lsn();
        drop(opened);
        let found = look(&files).unwrap();
        assert_eq!(found.tables[&1].last_lsn(), last);
    }
}

#[test]
fn what_was_safe_outlives_the_power() {
    let seeds = std::env::var("POWER_SEEDS").map_or(250, |seeds| seeds.parse().unwrap());
    let outcomes: Vec<(usize, u64)> = (0..seeds).map(live_with_power_cuts).collect();
    let compared: usize = outcomes.iter().map(|outcome| outcome.0).sum();
    let cuts: u64 = outcomes.iter().map(|outcome| outcome.1).sum();
    let out = format!("{compared} tables compared after {cuts} power cuts\n");
    std::io::Write::write_all(&mut std::io::stderr(), out.as_bytes()).unwrap();
    assert!(compared > 1_000 && cuts > 1_000, "{compared} {cuts}");
}
