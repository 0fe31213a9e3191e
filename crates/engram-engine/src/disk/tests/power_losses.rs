//! Stores whose machine loses power at a random write. The environment variable `POWER_SEEDS` sets the number of seeds.

use engram_core::selector::TableRng;
use engram_core::{DeferredDrops, TableOp};
use engram_testkit::{env_number, runs_all_tests};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::power_loss_directory::PowerLossDirectory;
use super::random_workload::{History, describe, open_store, read_back};

/// Runs a store through 6 rounds. Each ends with a power loss, at a random write or after the store was closed. Returns
/// the number of tables compared, and of power losses at a write.
fn run_with_power_losses(seed: u64) -> (usize, u64) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut files = PowerLossDirectory::default();
    let mut history = History::default();
    let (mut compared, mut losses) = (0, 0);
    for round in 0..6 {
        let case = format!("seed {seed}, round {round}");
        let writes = rng.next_u64() % 120;
        files.set_writes_left(writes);
        if let Ok(mut opened) = open_store(&files, seed) {
            for (id, table) in &mut opened.tables {
                history
                    .descriptions
                    .insert((*id, table.last_lsn().0), describe(table));
            }
            history.run(&mut opened, &mut rng);
        }
        losses += u64::from(files.writes_left() == 0);
        files = files.after_power_loss(&mut rng);
        let mut recovered = read_back(&files).unwrap_or_else(|error| panic!("{case}: {error}"));
        compared += history.check_after_power_loss(&mut recovered.tables, &case);
        // The numbers of changes that were lost, because they were not durable, are used again.
        let last_change = |id: &u64| {
            let table = recovered.tables.get(id);
            table.map_or(0, |table| table.last_lsn().0)
        };
        let next_change = recovered
            .next_change
            .max(1 + (1..4).map(|id| last_change(&id)).max().unwrap_or(0));
        history
            .descriptions
            .retain(|(_, lsn), _| *lsn < next_change);
    }
    (compared, losses)
}

/// The log ends with a random generator's state after choices, without the change that the choices were made for.
#[test]
fn an_unfinished_choice_is_logged_again() {
    let files = PowerLossDirectory::from_files(&[]);
    let mut history = History::default();
    let mut opened = open_store(&files, 1).unwrap();
    history.run(&mut opened, &mut Xoshiro256PlusPlus::seed_from_u64(1));
    let table = opened.tables.get_mut(&1).unwrap();
    table.end_leases(&mut DeferredDrops::default());
    let rng_after_choice = TableRng::seed_from_u64(1);
    let sink = opened.storage.sink(1);
    sink.append(
        "",
        &TableOp::SetRng {
            rng: &rng_after_choice,
        },
    );
    drop(opened);
    for _ in 0..2 {
        let opened = open_store(&files, 1).unwrap();
        let last = opened.tables[&1].last_lsn();
        drop(opened);
        let recovered = read_back(&files).unwrap();
        assert_eq!(recovered.tables[&1].last_lsn(), last);
    }
}

#[test]
fn durable_changes_survive_a_power_loss() {
    let seeds = env_number("POWER_SEEDS", if runs_all_tests() { 250 } else { 120 });
    let outcomes: Vec<(usize, u64)> = (0..seeds).map(run_with_power_losses).collect();
    let compared: usize = outcomes.iter().map(|outcome| outcome.0).sum();
    let losses: u64 = outcomes.iter().map(|outcome| outcome.1).sum();
    let summary = format!("{compared} tables compared after {losses} power losses\n");
    std::io::Write::write_all(&mut std::io::stderr(), summary.as_bytes()).unwrap();
    assert!(compared > 500 && losses > 500, "{summary}");
}
