//! Compares a batched recorder with one model of patterns per environment.

use std::collections::HashSet;

use crate::writer_model::common::{Cell, cell_value, options, read, spec};
use crate::writer_model::model::{
    CreatedItem, PatternModel, PatternSpec, check_outcome, check_priority, pattern_specs,
};
use engram_core::writer::{BatchedRecorder, ColumnInput, ItemRecorder, Pattern};
use engram_core::{CellSpec, DType, Shape};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    /// Bit `env % 8` of `ends`: the environment's episode ends with this step.
    Append {
        ends: u8,
    },
    Flush,
    Reshape {
        size: usize,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        20 => prop_oneof![4 => Just(0_u8), 1 => any::<u8>()].prop_map(|ends| Op::Append { ends }),
        1 => Just(Op::Flush),
        1 => (1_usize..3).prop_map(|size| Op::Reshape { size }),
    ];
    prop::collection::vec(op, 1..100)
}

fn cell_specs(wide: bool) -> Vec<CellSpec> {
    vec![
        // With large steps, environments do not share chunks.
        spec(DType::Uint8, &[if wide { 1500 } else { 5 }]),
        spec(DType::Int64, &[]),
        spec(DType::Float32, &[2]),
        spec(DType::Bytes, &[]),
    ]
}

/// A recorder, and a model per environment.
struct Run {
    recorder: BatchedRecorder,
    specs: Vec<PatternSpec>,
    cells: Vec<CellSpec>,
    models: Vec<PatternModel>,
    /// Number of cells generated so far.
    counter: u64,
    /// Table and content of the items that the models created.
    expected: Vec<(u32, CreatedItem)>,
}

impl Run {
    fn append(&mut self, mask: u8) {
        let count = self.models.len();
        let mut columns: Vec<Vec<Cell>> = vec![Vec::new(); self.cells.len()];
        for model in &mut self.models {
            let mut step = Vec::new();
            for (column, spec) in self.cells.iter().enumerate() {
                self.counter += 1;
                let cell = cell_value(spec, self.counter);
                columns[column].push(cell.clone());
                step.push(Some((spec.shape.clone(), cell)));
            }
            model.steps.push(step);
        }
        let joined: Vec<Vec<u8>> = columns.iter().map(|cells| cells.concat()).collect();
        let batch = (0..self.cells.len()).map(|column| match self.cells[column].dtype {
            DType::Bytes | DType::Text => ColumnInput::Strings(&columns[column]),
            _ => ColumnInput::cells(&joined[column]),
        });
        let ended: Vec<bool> = (0..count).map(|env| mask >> (env % 8) & 1 == 1).collect();
        let ends = (mask != 0).then_some(&ended[..]);
        let outcome =
            (self.recorder).append_batch(&batch.collect::<Vec<_>>(), ends, check_priority);
        let (mut created, mut errors) = (0, Vec::new());
        for (number, spec) in self.specs.iter().enumerate() {
            for (model, ended) in self.models.iter_mut().zip(&ended) {
                // First as an ordinary step, then as the last step of the episode.
                let tried = model.try_pattern(number, spec, false);
                let last = || {
                    ended
                        .then(|| model.try_pattern(number, spec, true))
                        .flatten()
                };
                match tried.or_else(last) {
                    None => {}
                    Some(Err(error)) => errors.push(error),
                    Some(Ok(item)) => {
                        created += 1;
                        self.expected.push((number as u32, item));
                    }
                }
            }
        }
        check_outcome(outcome, created, &errors);
        for (model, _) in self.models.iter_mut().zip(ended).filter(|(_, end)| *end) {
            model.episode_start = model.steps.len();
            model.first_available = model.steps.len();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_batch_creates_the_items_of_its_environments(
        envs in 1_usize..7,
        specs in pattern_specs(4, 1),
        ops in ops(),
        chunk_length in prop_oneof![(1_usize..=16).prop_map(Some), Just(None)],
        wide in prop::bool::weighted(0.2),
    ) {
        let cells = cell_specs(wide);
        let patterns: Vec<_> = (0..).zip(&specs).map(|(table, spec)| spec.pattern(table)).collect();
        let longest_lookback = patterns.iter().map(Pattern::lookback).max().unwrap() as usize;
        let model = PatternModel { longest_lookback, ..PatternModel::default() };
        let recorder = BatchedRecorder::new(
            options(1, chunk_length), 5, envs, crate::writer_model::common::schema(&cells), patterns,
        );
        let mut run = Run {
            recorder: recorder.unwrap(),
            specs,
            cells,
            models: vec![model; envs],
            counter: 0,
            expected: Vec::new(),
        };
        let mut created = Vec::new();
        let mut episodes = HashSet::new();
        for op in ops.iter().chain([&Op::Flush]) {
            match op {
                Op::Append { ends } => run.append(*ends),
                Op::Flush => run.recorder.flush().unwrap(),
                Op::Reshape { size } => {
                    run.cells[2].shape = Shape::from_slice(&[*size]);
                    run.recorder.reshape(run.cells.clone().into()).unwrap();
                }
            }
            for (table, item) in run.recorder.take_ready() {
                for chunk in item.trajectory.chunks() {
                    let distinct: HashSet<u64> = chunk.origin().episodes.iter().copied().collect();
                    prop_assert_eq!(distinct.len(), chunk.origin().episodes.len());
                    episodes.extend(distinct);
                }
                created.push((table, (item.priority.to_bits(), read(&item))));
            }
        }
        prop_assert_eq!(created, run.expected);
        let ended: usize = ops.iter().map(|op| match op {
            Op::Append { ends } => (0..envs).filter(|env| ends >> (env % 8) & 1 == 1).count(),
            _ => 0,
        }).sum();
        prop_assert!(episodes.len() <= envs + ended);
    }
}
