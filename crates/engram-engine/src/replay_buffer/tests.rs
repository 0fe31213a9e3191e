//! Buffers in files whose machine loses power: memory that was not synced is lost in any part.

use std::fs;
use std::path::PathBuf;

use engram_core::ring::{EpisodeColumns, OutputColumn, OutputSource, RingItems};
use engram_core::selector::TableRng;
use engram_core::{CellSpec, DType, Layout};
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::*;

const PAGE: usize = 4096;
/// Maximum number of steps of an environment that are added together.
const MAX_ADDED: usize = 7;

/// A path that is removed at the end of a test.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn new(name: &str) -> Self {
        let name = format!("engram-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Steps of two columns: whether the episode ended, and `x`, which has the environment and the position.
fn schema() -> Arc<Schema> {
    let layout = Layout {
        names: ["ended", "x"].map(Into::into).into(),
        structure: r#"{"d":[["ended",0],["x",0]]}"#.into(),
    };
    let cell = |dtype, shape: &[usize]| CellSpec {
        dtype,
        shape: shape.iter().copied().collect(),
    };
    Arc::new(Schema {
        layout: Arc::new(layout),
        cells: [cell(DType::Bool, &[]), cell(DType::Uint64, &[2])].into(),
    })
}

#[derive(Clone, Copy, Debug)]
struct Case {
    num_envs: usize,
    length: usize,
    exponent: Option<f64>,
    /// False: single steps, which need no flags.
    has_episodes: bool,
}

fn open(case: Case, path: &Path, boot: &str) -> Result<ReplayBuffer> {
    let schema = schema();
    let cells = schema.cells.iter().cloned().enumerate();
    let outputs = cells.map(|(column, mut cell)| {
        let source = if case.has_episodes {
            cell.shape.insert(0, 2);
            OutputSource::All(column)
        } else {
            OutputSource::First(column)
        };
        OutputColumn {
            source,
            cell,
            stack: None,
        }
    });
    let sequences = RingItems::Sequences {
        length: 2,
        burn_in: 0,
        continues: false,
    };
    let columns = EpisodeColumns {
        terminated: 0,
        truncated: 0,
    };
    let options = StepBufferOptions {
        cells: &schema.cells,
        names: &schema.layout.names,
        num_envs: case.num_envs,
        length: case.length,
        items: if case.has_episodes {
            sequences
        } else {
            RingItems::Steps
        },
        outputs: outputs.collect(),
        episode_columns: case.has_episodes.then_some(columns),
        reward_column: None,
        hindsight: None,
        exponent: case.exponent,
        recent: None,
        seed: 7,
    };
    ReplayBuffer::open_after_boot(path, &options, &schema, 1, boot)
}

fn ended(position: u64) -> bool {
    position % 5 == 3
}

fn add(buffer: &mut ReplayBuffer, env: usize, steps: usize) {
    let first = buffer.env_steps(env).added;
    let positions = first..first + steps as u64;
    let flags: Vec<u8> = positions
        .clone()
        .map(|position| ended(position).into())
        .collect();
    let x: Vec<u8> = positions
        .flat_map(|position| [env as u64, position])
        .flat_map(u64::to_le_bytes)
        .collect();
    let columns = [SharedBytes::from(&flags[..]), SharedBytes::from(&x[..])];
    buffer.add(&[env], &columns, steps).unwrap();
}

fn flush(buffer: &mut ReplayBuffer) {
    let flush = buffer.begin_flush().unwrap();
    let synced = flush.sync();
    buffer.finish_flush(flush, synced).unwrap();
}

/// Checks the cells and flags of all steps, and that no priority is 0 or NaN.
fn check(buffer: &ReplayBuffer, case: Case, context: &str) {
    for env in 0..case.num_envs {
        for run in buffer.runs(env, 1) {
            let cells: Vec<&[u8]> = buffer.cells(run).collect();
            let x = [env as u64, run.position].map(u64::to_le_bytes).concat();
            assert_eq!(
                cells,
                [&[u8::from(ended(run.position))][..], &x],
                "{context}: {run:?}"
            );
            if let Some(flags) = buffer.flags(run) {
                let of_end = if ended(run.position) { 3 } else { 0 };
                let first = run.position == 0 || ended(run.position - 1);
                assert_eq!(flags[0] & 3, of_end, "{context}: {run:?}");
                assert!(flags[0] & 4 != 0 || !first, "{context}: {run:?}");
            }
        }
    }
    assert_eq!(buffer.has_priorities(), case.exponent.is_some());
}

/// What is on disk after a power loss: of each page, the version of one of the moments since the last sync. The slots were
/// synced whenever they were written.
fn disk_image(moments: &[Vec<u8>], slots: std::ops::Range<usize>, rng: &mut TableRng) -> Vec<u8> {
    let newest = &moments[moments.len() - 1];
    let mut image = newest.clone();
    for (number, page) in image.chunks_mut(PAGE).enumerate() {
        let moment = usize::try_from(rng.next_u64() % moments.len() as u64).unwrap();
        let start = number * PAGE;
        page.copy_from_slice(&moments[moment][start..start + page.len()]);
    }
    image[slots.clone()].copy_from_slice(&newest[slots]);
    image
}

/// Runs a buffer through rounds that end with a power loss; returns the number of flushed steps that were compared.
fn run_with_power_losses(seed: u64, path: &Path) -> usize {
    let mut rng = TableRng::seed_from_u64(seed);
    let below = |rng: &mut TableRng, n: usize| usize::try_from(rng.next_u64() % n as u64).unwrap();
    let mut case = Case {
        num_envs: 1 + below(&mut rng, 3),
        length: 20 + below(&mut rng, 400),
        exponent: None,
        has_episodes: true,
    };
    let mut compared = 0;
    for round in 0..4 {
        let context = format!("seed {seed}, round {round}");
        case.exponent = [None, Some(0.5)][below(&mut rng, 2)];
        case.has_episodes = below(&mut rng, 4) > 0;
        let boot = round.to_string();
        let mut buffer =
            open(case, path, &boot).unwrap_or_else(|error| panic!("{context}: {error}"));
        check(&buffer, case, &context);
        let slots = buffer.file.as_ref().unwrap().slots_range();
        let mut moments = vec![fs::read(path).unwrap()];
        let states = |buffer: &ReplayBuffer| -> Vec<_> {
            (0..case.num_envs)
                .map(|env| buffer.env_state(env))
                .collect()
        };
        let mut flushed = states(&buffer);
        let calls = below(&mut rng, 120);
        for call in 0..=calls {
            let is_last_flush = call == calls && below(&mut rng, 2) == 0;
            match below(&mut rng, if is_last_flush { 1 } else { 25 }) {
                0 => {
                    flushed = states(&buffer);
                    let flush = buffer.begin_flush().unwrap();
                    let synced = flush.sync();
                    moments = vec![fs::read(path).unwrap()];
                    // Other threads may add steps meanwhile.
                    for _ in 0..below(&mut rng, 3) {
                        let env = below(&mut rng, case.num_envs);
                        add(&mut buffer, env, 1 + below(&mut rng, MAX_ADDED));
                    }
                    buffer.finish_flush(flush, synced).unwrap();
                }
                1 => moments.push(fs::read(path).unwrap()),
                _ => {
                    let env = below(&mut rng, case.num_envs);
                    add(&mut buffer, env, 1 + below(&mut rng, MAX_ADDED));
                }
            }
        }
        let lost = states(&buffer);
        moments.push(fs::read(path).unwrap());
        drop(buffer);
        fs::write(path, disk_image(&moments, slots, &mut rng)).unwrap();
        let buffer =
            open(case, path, "restarted").unwrap_or_else(|error| panic!("{context}: {error}"));
        check(&buffer, case, &context);
        let ahead = (case.length as u64 / 8).max(16) + MAX_ADDED as u64;
        let max_added = lost
            .iter()
            .zip(&flushed)
            .map(|(lost, flushed)| lost.added - flushed.added);
        let reserved = max_added.max().unwrap() + ahead;
        for (env, flushed) in flushed.iter().enumerate() {
            let found = buffer.env_state(env);
            assert_eq!(found.added, flushed.added, "{context}, environment {env}");
            let kept = (flushed.added + reserved).saturating_sub(case.length as u64);
            assert!(
                found.oldest <= flushed.oldest.max(kept).min(flushed.added),
                "{context}"
            );
            compared += usize::try_from(found.added - found.oldest).unwrap();
        }
    }
    compared
}

#[test]
fn flushed_steps_survive_a_power_loss() {
    let file = TemporaryFile::new("power-loss");
    let compared = (0..40).map(|seed| {
        let _ = fs::remove_file(&file.0);
        run_with_power_losses(seed, &file.0)
    });
    assert!(compared.sum::<usize>() > 10_000);
}

#[test]
fn steps_that_are_not_flushed_survive_the_end_of_the_process_only() {
    let file = TemporaryFile::new("restart");
    let case = Case {
        num_envs: 2,
        length: 100,
        exponent: Some(1.0),
        has_episodes: true,
    };
    let mut buffer = open(case, &file.0, "one").unwrap();
    add(&mut buffer, 1, 30);
    flush(&mut buffer);
    add(&mut buffer, 1, 20);
    drop(buffer);
    let mut buffer = open(case, &file.0, "one").unwrap();
    assert_eq!(buffer.env_steps(1).stored, 50);
    // Although the steps are in memory, they are not on disk.
    add(&mut buffer, 1, 5);
    drop(buffer);
    let mut buffer = open(case, &file.0, "two").unwrap();
    assert_eq!(buffer.env_steps(1).stored, 30);
    check(&buffer, case, "restarted");
    buffer.close().unwrap();
    let buffer = open(case, &file.0, "three").unwrap();
    assert_eq!(buffer.env_steps(1).stored, 30);
    // An unknown run of the machine counts as another one.
    drop(buffer);
    let mut buffer = open(case, &file.0, "").unwrap();
    add(&mut buffer, 0, 1);
    drop(buffer);
    assert_eq!(open(case, &file.0, "").unwrap().env_steps(0).stored, 0);
}

#[test]
fn no_flush_succeeds_after_a_sync_has_failed() {
    let file = TemporaryFile::new("failed-sync");
    let case = Case {
        num_envs: 1,
        length: 100,
        exponent: None,
        has_episodes: true,
    };
    let mut buffer = open(case, &file.0, "one").unwrap();
    add(&mut buffer, 0, 30);
    flush(&mut buffer);
    add(&mut buffer, 0, 20);
    let begun = buffer.begin_flush().unwrap();
    let failed = || Err(Error::Storage("the disk is broken".into()));
    let error = buffer.finish_flush(begun, failed()).unwrap_err();
    assert_eq!(error.to_string(), "the disk is broken");
    // The system may have lost what it could not write, and not report that again.
    let begun = buffer.begin_flush().unwrap();
    let synced = begun.sync();
    assert!(synced.is_ok());
    let error = buffer.finish_flush(begun, synced).unwrap_err();
    assert_eq!(error.to_string(), "the disk is broken");
    let error = buffer.close().unwrap_err();
    assert_eq!(error.to_string(), "the disk is broken");
    assert!(buffer.check_open().is_err());
    drop(buffer);
    let buffer = open(case, &file.0, "two").unwrap();
    assert_eq!(buffer.env_steps(0).stored, 30);
}
