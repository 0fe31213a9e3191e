//! Buffers in files whose machine loses power: memory that was not synced is lost in any part.

use std::fs;
use std::ops::Range;
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

/// Steps that state whether the episode ended, and have `x`: the environment and the position.
fn schema() -> Arc<Schema> {
    let layout = Layout {
        names: ["terminated", "truncated", "x"].map(Into::into).into(),
        structure: r#"{"d":[["terminated",0],["truncated",0],["x",0]]}"#.into(),
    };
    let cell = |dtype, shape: &[usize]| CellSpec {
        dtype,
        shape: shape.iter().copied().collect(),
    };
    let flag = cell(DType::Bool, &[]);
    Arc::new(Schema {
        layout: Arc::new(layout),
        cells: [flag.clone(), flag, cell(DType::Uint64, &[2])].into(),
    })
}

#[derive(Clone, Copy, Debug)]
struct Case {
    num_envs: usize,
    length: usize,
    exponent: Option<f64>,
    items: RingItems,
}

const ONE_ENVIRONMENT: Case = Case {
    num_envs: 1,
    length: 100,
    exponent: None,
    items: SEQUENCES,
};

const SEQUENCES: RingItems = RingItems::Sequences {
    length: 2,
    burn_in: 3,
    continues: false,
};
/// Parts of episodes, which have 5 steps.
const EPISODES: RingItems = RingItems::Episodes { max_length: 3 };

fn open(case: Case, path: &Path, boot: &str) -> Result<ReplayBuffer> {
    let schema = schema();
    let cells = schema.cells.iter().cloned().enumerate();
    let outputs = cells.map(|(column, mut cell)| {
        let source = if let Some(steps) = case.items.time_axis() {
            cell.shape.insert(0, steps);
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
    let columns = EpisodeColumns {
        terminated: 0,
        truncated: 1,
    };
    let options = StepBufferOptions {
        cells: &schema.cells,
        names: &schema.layout.names,
        num_envs: case.num_envs,
        length: case.length,
        items: case.items,
        outputs: outputs.collect(),
        episode_columns: (case.items != RingItems::Steps).then_some(columns),
        reward_column: None,
        hindsight: None,
        exponent: case.exponent,
        recent: None,
        seed: 7,
    };
    ReplayBuffer::open_after_boot(path, options, &schema, 1, &mut || false, boot)
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
    let truncated = vec![0; steps];
    let columns = [&flags, &truncated, &x].map(|bytes| SharedBytes::from(&bytes[..]));
    buffer.add(&[env], &columns, steps).unwrap();
}

fn flush(buffer: &mut ReplayBuffer) {
    let flush = buffer.begin_flush().unwrap();
    let synced = flush.sync();
    buffer.finish_flush(flush, synced).unwrap();
}

/// Checks the cells and flags of all steps, and that no priority is 0 or NaN.
fn check(buffer: &ReplayBuffer, case: Case, context: &str) {
    let none = Vec::new(); // no device
    for env in 0..case.num_envs {
        for run in buffer.runs(env, 1) {
            let cells: Vec<&[u8]> = buffer.cells(run, &none).collect();
            let x = [env as u64, run.position].map(u64::to_le_bytes).concat();
            assert_eq!(
                cells,
                [&[u8::from(ended(run.position))][..], &[0], &x],
                "{context}: {run:?}"
            );
            let of_end = if ended(run.position) { 3 } else { 0 };
            let first = run.position == 0 || ended(run.position - 1);
            let flags = buffer.flags(run).unwrap()[0];
            assert_eq!(flags & 3, of_end, "{context}: {run:?}");
            assert!(flags & 4 != 0 || !first, "{context}: {run:?}");
            // NaN where no item begins.
            let mut priorities = buffer.priorities(run).into_iter().flatten();
            assert!(!priorities.any(|it| it <= 0.0), "{context}: {run:?}");
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
        items: SEQUENCES,
    };
    let mut compared = 0;
    for round in 0..4 {
        let context = format!("seed {seed}, round {round}");
        case.exponent = [None, Some(0.5)][below(&mut rng, 2)];
        case.items = [RingItems::Steps, SEQUENCES, EPISODES][below(&mut rng, 3)];
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
        for (env, (flushed, lost)) in flushed.iter().zip(&lost).enumerate() {
            let reserved = if lost.added > case.length as u64 {
                lost.added - flushed.added + (case.length as u64).div_ceil(8)
            } else {
                0
            };
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
        items: SEQUENCES,
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
    let case = ONE_ENVIRONMENT;
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
    assert_eq!(begun.sync().unwrap_err().to_string(), "the disk is broken");
    let error = buffer.finish_flush(begun, Ok(())).unwrap_err();
    assert_eq!(error.to_string(), "the disk is broken");
    let error = buffer.close().unwrap_err();
    assert_eq!(error.to_string(), "the disk is broken");
    assert!(buffer.check_open().is_err());
    drop(buffer);
    let buffer = open(case, &file.0, "two").unwrap();
    assert_eq!(buffer.env_steps(0).stored, 30);
}

#[test]
fn an_idle_environment_loses_no_flushed_step() {
    let file = TemporaryFile::new("idle");
    let case = Case {
        num_envs: 3,
        length: 100,
        exponent: None,
        items: SEQUENCES,
    };
    let mut buffer = open(case, &file.0, "one").unwrap();
    for (env, steps) in [(0, 100), (1, 150), (2, 100)] {
        add(&mut buffer, env, steps);
    }
    flush(&mut buffer);
    add(&mut buffer, 0, 60);
    drop(buffer);
    let buffer = open(case, &file.0, "two").unwrap();
    check(&buffer, case, "restarted");
    let stored = [0, 1, 2].map(|env| buffer.env_steps(env).stored);
    assert_eq!(stored, [100 - 60 - 13, 100, 100]);
}

#[test]
fn steps_that_an_episode_overwrites_are_not_restored() {
    let file = TemporaryFile::new("episode");
    let case = ONE_ENVIRONMENT;
    let mut buffer = open(case, &file.0, "one").unwrap();
    add(&mut buffer, 0, 104); // with the end of an episode
    flush(&mut buffer);
    let flags = [0; 60];
    let x = [u64::MAX.to_le_bytes(); 120].concat();
    let columns = [&flags[..], &flags, &x].map(SharedBytes::from);
    buffer.add_episode(0, &columns, 60).unwrap();
    drop(buffer);
    let buffer = open(case, &file.0, "two").unwrap();
    check(&buffer, case, "restarted");
    assert_eq!(buffer.env_steps(0).stored, 100 - 60 - 13);
}

#[test]
fn a_flush_that_ends_late_does_not_replace_a_later_one() {
    let file = TemporaryFile::new("late-flush");
    let case = ONE_ENVIRONMENT;
    let mut buffer = open(case, &file.0, "one").unwrap();
    add(&mut buffer, 0, 30);
    let first = buffer.begin_flush().unwrap();
    buffer.clear();
    let second = buffer.begin_flush().unwrap();
    for flush in [second, first] {
        let synced = flush.sync();
        buffer.finish_flush(flush, synced).unwrap();
    }
    drop(buffer);
    let buffer = open(case, &file.0, "two").unwrap();
    assert_eq!(buffer.env_steps(0).stored, 0);
}

#[test]
fn a_flush_fails_if_closing_the_buffer_meanwhile_has_failed() {
    let file = TemporaryFile::new("failed-close");
    let case = ONE_ENVIRONMENT;
    for fails in [false, true] {
        let mut buffer = open(case, &file.0, "one").unwrap();
        let [first, second] = [(); 2].map(|()| buffer.begin_flush().unwrap());
        let synced = first.sync();
        if fails {
            let failed = Err(Error::Storage("the disk is broken".into()));
            buffer.finish_flush(second, failed).unwrap_err();
        }
        assert_eq!(buffer.close().is_err(), fails);
        assert_eq!(buffer.finish_flush(first, synced).is_err(), fails);
    }
}

/// The addresses of the mappings of this process for which huge pages are requested.
#[cfg(target_os = "linux")]
fn mappings_with_huge_pages() -> Vec<Range<usize>> {
    let mut mappings = Vec::new();
    let mut current = 0..0;
    for line in fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let addresses = line.split(' ').next().unwrap().split_once('-');
        let parse = |text| usize::from_str_radix(text, 16).ok();
        if let Some((Some(begin), Some(end))) = addresses.map(|(a, b)| (parse(a), parse(b))) {
            current = begin..end;
        } else if line.starts_with("VmFlags:") && line.split(' ').any(|flag| flag == "hg") {
            mappings.push(current.clone());
        }
    }
    mappings
}

#[test]
#[cfg(target_os = "linux")]
fn the_tree_of_a_buffer_in_a_file_has_huge_pages() {
    let file = TemporaryFile::new("huge-pages");
    let case = Case {
        length: 1 << 20,
        exponent: Some(1.0),
        ..ONE_ENVIRONMENT
    };
    let mut buffer = open(case, &file.0, "boot").unwrap();
    let parts: Vec<usize> = (buffer.steps.heap_memory().map(|part| part.len()))
        .filter(|bytes| *bytes >= 4 << 20)
        .collect();
    assert_eq!(parts, [8 << 20]); // the weights; columns and priorities are in the file
    let mappings = mappings_with_huge_pages();
    for part in buffer
        .steps
        .heap_memory()
        .filter(|part| part.len() >= 8 << 20)
    {
        let middle = part.as_ptr().addr() + part.len() / 2;
        assert!(mappings.iter().any(|mapping| mapping.contains(&middle)));
    }
}
