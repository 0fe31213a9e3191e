//! Measures the recorders in nanoseconds per step: `cargo run --release --example writer_speed`.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark that is run by hand"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use engram_core::writer::{
    BatchedRecorder, CellPositions, ColumnInput, ColumnSelection, ItemRecorder, Pattern,
    PatternColumn, PatternSet, Recorder, Selection, WriterOptions,
};
use engram_core::{CellSpec, Compression, DType, Layout, NewItem, Schema, Shape};

/// Number of steps per measurement, if steps are small.
const STEPS: usize = 400_000;

/// Schema of steps with an observation, an action, a reward and a discount.
fn schema(observation: &[usize], dtype: DType) -> Arc<Schema> {
    let cell = |dtype, shape: &[usize]| CellSpec {
        dtype,
        shape: Shape::from_slice(shape),
    };
    Arc::new(Schema {
        layout: layout(),
        cells: Box::new([
            cell(DType::Int32, &[]),
            cell(DType::Float32, &[]),
            cell(dtype, observation),
            cell(DType::Float32, &[]),
        ]),
    })
}

fn layout() -> Arc<Layout> {
    Arc::new(Layout {
        names: ["action", "discount", "obs", "reward"]
            .map(Into::into)
            .into(),
        structure: "".into(),
    })
}

fn options(chunk_length: Option<usize>) -> WriterOptions {
    WriterOptions {
        history: 64,
        chunk_length,
        compression: Compression::Auto,
        shard: engram_core::writer::ShardId::default(),
    }
}

/// Items of the last two steps. Unless `all_columns`, only the observation has both; the other
/// columns have only the first.
fn pattern(layout: Arc<Layout>, all_columns: bool) -> Pattern {
    let columns = (0..4).map(|source| {
        let both = all_columns || source == 2;
        PatternColumn {
            source,
            start: -2,
            stop: if both { 0 } else { -1 },
            step: 1,
            squeeze: !both,
        }
    });
    Pattern::new(0, layout, columns.collect(), Box::default(), 1.0).unwrap()
}

/// Prints the time per step, and the bytes per item in chunks and in trajectories.
fn report(name: &str, steps: usize, seconds: f64, items: &[NewItem]) {
    let mut chunks: Vec<_> = items.iter().flat_map(|i| i.trajectory.chunks()).collect();
    chunks.sort_by_key(|chunk| Arc::as_ptr(chunk));
    chunks.dedup_by_key(|chunk| Arc::as_ptr(chunk));
    let bytes: usize = chunks.iter().map(|c| c.footprint()).sum();
    let trajectory_bytes: usize = items.iter().map(|i| i.trajectory.footprint()).sum();
    let count = items.len().max(1);
    println!(
        "{name:48} {:7.1} ns/step {:7} items {:6.1} B/item in chunks {:6.1} in trajectories",
        seconds * 1e9 / steps as f64,
        items.len(),
        bytes as f64 / count as f64,
        trajectory_bytes as f64 / count as f64,
    );
}

/// Measures a [`Recorder`] whose items are created by `after_step`.
fn measure_recorder(
    name: &str,
    schema: &Arc<Schema>,
    chunk_length: Option<usize>,
    steps: usize,
    mut after_step: impl FnMut(&mut Recorder, usize),
) {
    let mut best = f64::MAX;
    let mut items = Vec::new();
    for _ in 0..3 {
        let mut recorder = Recorder::new(options(chunk_length), 1).unwrap();
        let cells = schema.cells.clone();
        recorder
            .restructure(Arc::clone(&schema.layout), cells, &[])
            .unwrap();
        items = Vec::with_capacity(steps);
        let start = Instant::now();
        for step in 0..steps {
            for column in 0..4 {
                recorder.cell_mut(column).unwrap().fill(black_box(7));
            }
            recorder.finish_step(false).unwrap();
            after_step(&mut recorder, step);
            items.extend(recorder.take_ready().map(|(_, item)| item));
        }
        recorder.flush().unwrap();
        items.extend(recorder.take_ready().map(|(_, item)| item));
        best = best.min(start.elapsed().as_secs_f64());
    }
    report(name, steps, best, &items);
}

/// Measures a [`BatchedRecorder`] with one pattern; `rounds` is the number of steps per environment.
fn measure_batched(
    envs: usize,
    observation: &[usize],
    dtype: DType,
    all_columns: bool,
    rounds: usize,
) {
    let schema = schema(observation, dtype);
    let bytes = schema
        .cells
        .iter()
        .map(|cell| vec![7_u8; cell.bytes() * envs]);
    let bytes: Vec<_> = bytes.collect();
    let columns: Vec<_> = bytes.iter().map(|b| ColumnInput::cells(b)).collect();
    let (mut best, mut items) = (f64::MAX, Vec::new());
    for _ in 0..3 {
        // Items with other columns than the steps have a layout of their own.
        let layout = if all_columns {
            Arc::clone(&schema.layout)
        } else {
            layout()
        };
        let patterns = vec![pattern(layout, all_columns)];
        let mut recorder =
            BatchedRecorder::new(options(None), 1, envs, Arc::clone(&schema), patterns).unwrap();
        items = Vec::with_capacity(envs * rounds);
        let last = vec![false; envs];
        let start = Instant::now();
        for _ in 0..rounds {
            recorder
                .append_batch(&columns, Some(&last), |_, _| Ok(()))
                .unwrap();
            items.extend(recorder.take_ready().map(|(_, item)| item));
        }
        recorder.flush().unwrap();
        items.extend(recorder.take_ready().map(|(_, item)| item));
        best = best.min(start.elapsed().as_secs_f64());
    }
    let kind = if all_columns {
        "all columns"
    } else {
        "obs[-2:], others[-2]"
    };
    let obs_bytes = schema.cells[2].bytes();
    let name = format!("batched, {envs} envs, obs of {obs_bytes} B, {kind}");
    report(&name, envs * rounds, best, &items);
}

fn main() {
    let small = schema(&[4], DType::Float32);
    measure_recorder("append only", &small, None, STEPS, |_, _| {});
    for length in [None, Some(16), Some(32), Some(64), Some(128)] {
        let name = format!("append, the last 2 steps, chunks of {length:?}");
        measure_recorder(&name, &small, length, STEPS, |recorder, step| {
            let key = recorder.next_key();
            let selection = Selection::Last((step as u64 + 1).min(2));
            recorder
                .create_item(0, key, 1.0, &selection, |_| Ok(()))
                .unwrap();
        });
    }
    let item_layout = layout();
    measure_recorder(
        "append, columns: obs 2, others 1",
        &small,
        None,
        STEPS,
        |recorder, step| {
            if step == 0 {
                return;
            }
            let key = recorder.next_key();
            let end = recorder.available_steps().end;
            let columns = [0, 1, 2, 3].map(|source| ColumnSelection {
                source,
                cells: CellPositions::Range {
                    first: end - 2,
                    stride: 1,
                    len: if source == 2 { 2 } else { 1 },
                },
                squeeze: source != 2,
            });
            let selection = Selection::Columns {
                layout: &item_layout,
                columns: &columns,
            };
            recorder
                .create_item(0, key, 1.0, &selection, |_| Ok(()))
                .unwrap();
        },
    );
    for (all_columns, name) in [(true, "all columns"), (false, "obs[-2:], others[-2]")] {
        let mut set = PatternSet::new(1);
        let name = format!("append, pattern {name}");
        measure_recorder(&name, &small, None, STEPS, |recorder, step| {
            if step == 0 {
                set = PatternSet::new(1);
                set.set(0, pattern(layout(), all_columns), recorder.schema());
            }
            set.apply(recorder, false, |_, _| Ok(())).unwrap();
        });
    }
    let atari = schema(&[84, 84, 4], DType::Uint8);
    let mut set = PatternSet::new(1);
    measure_recorder(
        "append Atari, pattern all columns",
        &atari,
        None,
        4_000,
        |recorder, step| {
            if step == 0 {
                set = PatternSet::new(1);
                set.set(0, pattern(layout(), true), recorder.schema());
            }
            set.apply(recorder, false, |_, _| Ok(())).unwrap();
        },
    );
    for envs in [4, 16, 128, 1000] {
        measure_batched(envs, &[4], DType::Float32, true, STEPS / envs);
    }
    measure_batched(128, &[4], DType::Float32, false, STEPS / 128);
    measure_batched(128, &[64], DType::Float32, true, STEPS / 512);
    measure_batched(16, &[84, 84, 4], DType::Uint8, true, 250);
}
