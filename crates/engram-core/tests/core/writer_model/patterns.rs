//! Compares a pattern set with the model of patterns, on random operations.

use crate::writer_model::common::{cell_value, layout, options, read, spec};
use crate::writer_model::model::{
    CreatedItem, PatternModel, PatternSpec, Step, check_outcome, check_priority, pattern_specs,
};
use engram_core::writer::{ItemRecorder, Pattern, PatternSet, Recorder};
use engram_core::{CellSpec, DType, Shape};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    /// Appends a step. Bit `i` of the mask: column `i` has a value.
    Append(u8),
    /// Appends a part of a step; mask as in `Append`.
    Partial(u8),
    Flush,
    EndEpisode {
        clear: bool,
    },
    /// Inserts a column at this index.
    AddColumn {
        index: usize,
    },
    /// Changes the shape of the initial `Float32` column.
    Reshape {
        size: usize,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        40 => Just(Op::Append(0xff)),
        4 => any::<u8>().prop_map(Op::Append),
        6 => any::<u8>().prop_map(Op::Partial),
        2 => Just(Op::Flush),
        3 => any::<bool>().prop_map(|clear| Op::EndEpisode { clear }),
        1 => (0_usize..4).prop_map(|index| Op::AddColumn { index }),
        1 => (1_usize..3).prop_map(|size| Op::Reshape { size }),
    ];
    prop::collection::vec(op, 1..150)
}

/// The initial columns. The patterns' conditions use the `Int64` column.
const COLUMNS: [(DType, &[usize]); 3] = [
    (DType::Uint8, &[3]),
    (DType::Int64, &[]),
    (DType::Float32, &[2]),
];

/// A recorder with patterns, and their model.
struct Run {
    recorder: Recorder,
    set: PatternSet,
    specs: Vec<PatternSpec>,
    cells: Vec<CellSpec>,
    model: PatternModel,
    /// True after a partial append until the step is complete.
    step_open: bool,
    /// Current index of each of the initial columns.
    current_columns: Vec<usize>,
    /// Number of cells generated so far.
    counter: u64,
    /// Table and content of the items that the model created.
    expected: Vec<(u32, CreatedItem)>,
}

impl Run {
    fn new(specs: Vec<PatternSpec>, chunk_length: Option<usize>) -> Self {
        let cells: Vec<_> = COLUMNS
            .iter()
            .map(|(dtype, shape)| spec(*dtype, shape))
            .collect();
        let patterns: Vec<Pattern> = (0..)
            .zip(&specs)
            .map(|(table, spec)| spec.pattern(table))
            .collect();
        let history = patterns.iter().map(Pattern::lookback).max().unwrap_or(1);
        let mut recorder = Recorder::new(options(history, chunk_length), 9).unwrap();
        let schema = crate::writer_model::common::schema(&cells);
        recorder
            .restructure(schema.layout.clone(), cells.clone().into(), &[])
            .unwrap();
        let mut set = PatternSet::new(patterns.len());
        for (number, pattern) in patterns.into_iter().enumerate() {
            set.set(number, pattern, recorder.schema());
        }
        Self {
            recorder,
            set,
            specs,
            cells,
            model: PatternModel {
                longest_lookback: history as usize,
                ..PatternModel::default()
            },
            step_open: false,
            current_columns: vec![0, 1, 2],
            counter: 0,
            expected: Vec::new(),
        }
    }

    fn append(&mut self, mask: u8, partial: bool) {
        if !self.step_open {
            self.model.steps.push(vec![None; self.cells.len()]);
            self.step_open = true;
        }
        let step: &mut Step = self.model.steps.last_mut().unwrap();
        for (column, spec) in self.cells.iter().enumerate() {
            if mask >> column & 1 == 1 && step[column].is_none() {
                self.counter += 1;
                let cell = cell_value(spec, self.counter);
                self.recorder
                    .cell_mut(column)
                    .unwrap()
                    .copy_from_slice(&cell);
                step[column] = Some((spec.shape.clone(), cell));
            }
        }
        self.recorder.finish_step(partial).unwrap();
        self.step_open = partial;
        self.apply(false);
    }

    fn apply(&mut self, end: bool) {
        // The recorder retains only as many steps as the patterns need: older steps are not available either.
        let history = self.recorder.available_steps();
        let first_available = self.model.first_available;
        self.model.first_available = usize::try_from(history.start).unwrap();
        let (mut created, mut errors) = (0, Vec::new());
        for (number, spec) in self.specs.iter().enumerate() {
            let mut spec = spec.clone();
            for column in &mut spec.columns {
                column.source = self.current_columns[column.source];
            }
            for condition in &mut spec.conditions {
                if let engram_core::writer::ConditionInput::Column(column) = &mut condition.input {
                    *column = self.current_columns[*column];
                }
            }
            match self.model.try_pattern(number, &spec, end) {
                None => {}
                Some(Err(error)) => errors.push(error),
                Some(Ok(item)) => {
                    created += 1;
                    self.expected.push((number as u32, item));
                }
            }
        }
        self.model.first_available = first_available;
        let outcome = self.set.apply(&mut self.recorder, end, check_priority);
        check_outcome(outcome, created, &errors);
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Append(mask) => self.append(*mask, false),
            Op::Partial(mask) => self.append(*mask, true),
            Op::Flush => self.recorder.flush().unwrap(),
            Op::EndEpisode { clear } => {
                self.apply(true);
                self.recorder.end_episode(*clear).unwrap();
                self.step_open = false;
                self.model.episode_start = self.model.steps.len();
                if *clear {
                    self.model.first_available = self.model.steps.len();
                }
            }
            Op::AddColumn { index } if self.cells.len() < 6 => {
                let count = self.cells.len();
                let index = index % (count + 1);
                let map: Vec<usize> = (0..count)
                    .map(|old| old + usize::from(old >= index))
                    .collect();
                self.cells.insert(index, spec(DType::Bool, &[]));
                for step in &mut self.model.steps {
                    step.insert(index, None);
                }
                for column in &mut self.current_columns {
                    *column = map[*column];
                }
                let names: Vec<String> = (0..=count).map(|i| format!("g{i}")).collect();
                let cells = self.cells.clone().into();
                self.recorder
                    .restructure(layout(&names), cells, &map)
                    .unwrap();
                self.set.remap(&map).unwrap();
            }
            Op::AddColumn { .. } => {}
            Op::Reshape { size } => {
                let column = self.current_columns[2];
                let is_set = self.step_open && self.model.steps.last().unwrap()[column].is_some();
                if !is_set {
                    let shape = Shape::from_slice(&[*size]);
                    self.recorder.reshape(column, shape.clone()).unwrap();
                    self.cells[column].shape = shape;
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn patterns_create_the_items_that_they_describe(
        specs in pattern_specs(3, 1),
        ops in ops(),
        chunk_length in prop_oneof![(1_usize..=16).prop_map(Some), Just(None)],
    ) {
        let mut run = Run::new(specs, chunk_length);
        for op in &ops {
            run.run(op);
        }
        run.recorder.flush().unwrap();
        let with_contents = |(table, item): (u32, engram_core::NewItem)| (table, (item.priority.to_bits(), read(&item)));
        let items: Vec<_> = run.recorder.take_ready().map(with_contents).collect();
        prop_assert_eq!(items, run.expected);
    }
}
