//! Compares a recorder with a plain list of steps, on random operations.

use std::collections::HashMap;
use std::sync::Arc;

use crate::writer_model::common::{Cell, Item, cell_value, layout, options, read, spec};
use engram_core::writer::{
    CellPositions, ColumnSelection, ItemRecorder, Recorder, Selection, StepPosition,
};
use engram_core::{CellSpec, DType, Error, Shape};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    /// Appends a step. Bit `i` of the mask: column `i` has a value.
    Append(u8),
    /// Appends a part of a step; mask as in `Append`.
    Partial(u8),
    /// Writes cells and aborts the append; mask as in `Append`.
    Abort(u8),
    /// Creates an item of this many newest steps.
    Last(u64),
    /// Creates an item of `len` steps, the first of which is `back` steps before the end.
    Steps {
        back: u64,
        len: u64,
        squeeze: bool,
    },
    /// Creates an item with a selection per column.
    Columns(Vec<SelectedColumn>),
    /// Tries to create an item of priority NaN.
    NanPriority,
    Flush,
    EndEpisode {
        clear: bool,
    },
    /// Retains at least this many steps from now on.
    ExtendHistory(u64),
    Reshape {
        column: usize,
        size: usize,
    },
    /// Inserts a column at this index.
    AddColumn {
        index: usize,
    },
    /// Reads all available cells.
    Read,
}

#[derive(Clone, Debug)]
struct SelectedColumn {
    column: usize,
    cells: StepsBack,
    squeeze: bool,
}

#[derive(Clone, Debug)]
enum StepsBack {
    /// The first step is `back` steps before the end.
    Range { back: u64, stride: u64, len: u64 },
    /// Each number counts the steps from the selected step to the end.
    List(Vec<u64>),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let back = 1_u64..12;
    let cells = prop_oneof![
        (back.clone(), 1_u64..4, 0_u64..6).prop_map(|(back, stride, len)| StepsBack::Range {
            back,
            stride,
            len
        }),
        prop::collection::vec(0_u64..12, 0..6).prop_map(StepsBack::List),
        back.clone().prop_map(|back| StepsBack::List(vec![back])),
    ];
    let selected_column =
        (0_usize..4, cells, prop::bool::weighted(0.2)).prop_map(|(column, cells, squeeze)| {
            SelectedColumn {
                column,
                cells,
                squeeze,
            }
        });
    let mask = prop_oneof![6 => Just(0xff_u8), 2 => any::<u8>()];
    let op = prop_oneof![
        30 => mask.clone().prop_map(Op::Append),
        3 => any::<u8>().prop_map(Op::Partial),
        1 => mask.prop_map(Op::Abort),
        8 => (0_u64..9).prop_map(Op::Last),
        4 => (back, 0_u64..6, prop::bool::weighted(0.2))
            .prop_map(|(back, len, squeeze)| Op::Steps { back, len, squeeze }),
        8 => prop::collection::vec(selected_column, 0..4).prop_map(Op::Columns),
        1 => Just(Op::NanPriority),
        2 => Just(Op::Flush),
        2 => any::<bool>().prop_map(|clear| Op::EndEpisode { clear }),
        1 => (1_u64..40).prop_map(Op::ExtendHistory),
        1 => (0_usize..4, 0_usize..3).prop_map(|(column, size)| Op::Reshape { column, size }),
        1 => (0_usize..4).prop_map(|index| Op::AddColumn { index }),
        2 => Just(Op::Read),
    ];
    prop::collection::vec(op, 1..120)
}

/// One step: per column, the shape and bytes of the cell, if it has one.
type Step = Vec<Option<(Shape, Cell)>>;

/// The kind of an error, without its text.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ErrorKind {
    Argument,
    Expired,
    Signature,
    Priority,
}

fn error_kind(error: &Error) -> ErrorKind {
    match error {
        Error::InvalidArgument(_) => ErrorKind::Argument,
        Error::ExpiredStep(_) => ErrorKind::Expired,
        Error::Signature(_) => ErrorKind::Signature,
        Error::Priority(_) => ErrorKind::Priority,
        other => panic!("{other}"),
    }
}

/// A plain list of steps.
struct Model {
    history: u64,
    cells: Vec<CellSpec>,
    steps: Vec<Step>,
    /// The step of partial appends, if it is not complete.
    open: Option<Step>,
    /// End of the steps that were cleared, exclusive.
    cleared: u64,
    /// End of the steps that had expired when `history` was last raised, exclusive.
    expired: u64,
    /// Episode of each step.
    episodes: Vec<u64>,
    episode: u64,
}

impl Model {
    fn end(&self) -> u64 {
        self.steps.len() as u64 + u64::from(self.open.is_some())
    }

    fn first_available(&self) -> u64 {
        let oldest = self.end().saturating_sub(self.history);
        oldest.max(self.cleared).max(self.expired)
    }

    fn cell(&self, column: usize, position: u64) -> Result<&(Shape, Cell), ErrorKind> {
        if position < self.first_available() {
            return Err(ErrorKind::Expired);
        }
        let step = self.steps.get(position as usize).or_else(|| {
            let is_open = position == self.steps.len() as u64;
            self.open.as_ref().filter(|_| is_open)
        });
        let step = step.ok_or(ErrorKind::Argument)?;
        step[column].as_ref().ok_or(ErrorKind::Argument)
    }

    fn select(&self, columns: &[(usize, Vec<u64>, bool)]) -> Result<Item, ErrorKind> {
        let mut item = Vec::new();
        for (column, positions, squeeze) in columns {
            if positions.is_empty() || *squeeze && positions.len() != 1 {
                return Err(ErrorKind::Argument);
            }
            let mut cells: Vec<&(Shape, Cell)> = Vec::new();
            for position in positions {
                let cell = self.cell(*column, *position)?;
                if cells.first().is_some_and(|first| first.0 != cell.0) {
                    return Err(ErrorKind::Signature);
                }
                cells.push(cell);
            }
            item.push((*squeeze, cells.into_iter().map(|c| c.1.clone()).collect()));
        }
        if item.is_empty() {
            return Err(ErrorKind::Argument);
        }
        Ok(item)
    }
}

/// A recorder and its model.
struct RecorderAndModel {
    recorder: Recorder,
    model: Model,
    /// Number of cells generated so far.
    counter: u64,
    /// Key and content of the created items, in order.
    created: Vec<(u64, Item)>,
    /// Number of these that `take_ready` has returned.
    taken: usize,
}

impl RecorderAndModel {
    fn new(history: u64, chunk_length: Option<usize>) -> Self {
        let cells = vec![
            spec(DType::Uint8, &[3]),
            spec(DType::Int64, &[]),
            spec(DType::Bytes, &[]),
        ];
        let mut recorder = Recorder::new(options(history, chunk_length), 7).unwrap();
        let columns = names(cells.len());
        recorder
            .restructure(layout(&columns), cells.clone().into(), &[])
            .unwrap();
        let model = Model {
            history,
            cells,
            steps: Vec::new(),
            open: None,
            cleared: 0,
            expired: 0,
            episodes: Vec::new(),
            episode: 0,
        };
        Self {
            recorder,
            model,
            counter: 0,
            created: Vec::new(),
            taken: 0,
        }
    }

    /// Writes the cells of `mask` into the recorder and `step`. Returns false if one of them was set before.
    fn write(&mut self, mask: u8, step: &mut Step) -> bool {
        for (column, value) in step.iter_mut().enumerate() {
            if mask >> column & 1 == 0 {
                continue;
            }
            self.counter += 1;
            let spec = &self.model.cells[column];
            let cell = cell_value(spec, self.counter);
            let outcome = if spec.dtype.is_string() {
                self.recorder.set_string(column, &cell)
            } else {
                let target = self.recorder.cell_mut(column);
                target.map(|target| target.copy_from_slice(&cell))
            };
            assert_eq!(outcome.is_err(), value.is_some());
            if let Err(error) = outcome {
                assert_eq!(
                    error.to_string(),
                    format!(
                        "column `c{column}` already has a value in the open step; a step can have \
                         only one value per column"
                    )
                );
                return false;
            }
            *value = Some((spec.shape.clone(), cell));
        }
        true
    }

    fn append(&mut self, mask: u8, partial: bool) {
        let open = self.model.open.clone();
        let mut step = open.unwrap_or_else(|| vec![None; self.model.cells.len()]);
        if !self.write(mask, &mut step) {
            self.recorder.abort_step();
            return;
        }
        self.recorder.finish_step(partial).unwrap();
        if partial {
            self.model.open = Some(step);
        } else {
            self.complete(step);
        }
    }

    fn complete(&mut self, step: Step) {
        self.model.steps.push(step);
        self.model.episodes.push(self.model.episode);
        self.model.open = None;
    }

    fn create(&mut self, selection: &Selection<'_>, expected: Result<Item, ErrorKind>) {
        let key = self.recorder.next_key();
        let mut checked_lengths = None;
        let outcome = self
            .recorder
            .create_item(3, key, 1.5, selection, |columns| {
                let lengths = columns.iter().map(|column| column.len).collect::<Vec<_>>();
                checked_lengths = Some(lengths);
                Ok(())
            });
        match expected {
            Ok(item) => {
                outcome.unwrap();
                let lengths = item
                    .iter()
                    .map(|(squeeze, cells)| (!squeeze).then_some(cells.len()));
                assert_eq!(checked_lengths.unwrap(), lengths.collect::<Vec<_>>());
                self.created.push((key, item));
            }
            Err(expected) => assert_eq!(error_kind(&outcome.unwrap_err()), expected),
        }
    }

    fn all_columns(&self, first: u64, len: u64, squeeze: bool) -> Result<Item, ErrorKind> {
        let columns = 0..self.model.cells.len();
        let positions = (first..first + len).collect::<Vec<_>>();
        let selections = columns.map(|column| (column, positions.clone(), squeeze));
        self.model.select(&selections.collect::<Vec<_>>())
    }

    fn apply(&mut self, op: &Op) {
        let end = self.model.end();
        match op {
            Op::Append(mask) => self.append(*mask, false),
            Op::Partial(mask) => self.append(*mask, true),
            Op::Abort(mask) => {
                let mut step = vec![None; self.model.cells.len()];
                step = self.model.open.clone().unwrap_or(step);
                self.write(*mask, &mut step);
                self.recorder.abort_step();
            }
            Op::Last(len) => {
                let expected = match end.checked_sub(*len) {
                    Some(first) if first >= self.model.first_available() => {
                        self.all_columns(first, *len, false)
                    }
                    // The steps were appended, but not all of them are retained.
                    _ if *len <= end - self.model.cleared => Err(ErrorKind::Expired),
                    _ => Err(ErrorKind::Argument),
                };
                self.create(&Selection::Last(*len), expected);
            }
            Op::Steps { back, len, squeeze } => {
                let first = end.saturating_sub(*back);
                let expected = self.all_columns(first, *len, *squeeze);
                let selection = Selection::Steps {
                    first,
                    len: *len,
                    squeeze: *squeeze,
                };
                self.create(&selection, expected);
            }
            Op::Columns(selected) => self.create_from_columns(selected),
            Op::NanPriority => {
                let selection = Selection::Last(1);
                let key = self.recorder.next_key();
                let outcome = self
                    .recorder
                    .create_item(0, key, f64::NAN, &selection, |_| Ok(()));
                assert_eq!(error_kind(&outcome.unwrap_err()), ErrorKind::Priority);
            }
            Op::Flush => {
                self.recorder.flush().unwrap();
                self.take_ready(true);
            }
            Op::EndEpisode { clear } => {
                self.recorder.end_episode(*clear).unwrap();
                if let Some(step) = self.model.open.take() {
                    self.complete(step);
                }
                self.model.episode += 1;
                if *clear {
                    self.model.cleared = self.model.end();
                }
                self.take_ready(true);
            }
            Op::ExtendHistory(history) => {
                self.recorder.extend_history(*history);
                self.model.expired = self.model.first_available();
                self.model.history = self.model.history.max(*history);
            }
            Op::Reshape { column, size } => {
                let column = column % self.model.cells.len();
                let shape = Shape::from_slice(&[*size, 1]);
                let has_value = self
                    .model
                    .open
                    .as_ref()
                    .is_some_and(|s| s[column].is_some());
                let outcome = self.recorder.reshape(column, shape.clone());
                assert_eq!(outcome.is_err(), has_value);
                if !has_value {
                    self.model.cells[column].shape = shape;
                }
            }
            Op::AddColumn { index } if self.model.cells.len() < 6 => self.add_column(*index),
            Op::AddColumn { .. } => {}
            Op::Read => self.read_back(),
        }
        self.take_ready(false);
        let steps = self.recorder.available_steps();
        assert_eq!(
            (steps.start, steps.end),
            (self.model.first_available(), self.model.end())
        );
        assert_eq!(self.recorder.step_is_open(), self.model.open.is_some());
        let episode_steps = self
            .model
            .episodes
            .iter()
            .filter(|e| **e == self.model.episode);
        assert_eq!(self.recorder.episode_steps(), episode_steps.count() as u64);
        assert_eq!(
            self.recorder.pending_items(),
            self.created.len() - self.taken
        );
    }

    fn create_from_columns(&mut self, selected: &[SelectedColumn]) {
        let end = self.model.end();
        let positions: Vec<Vec<StepPosition>> = selected
            .iter()
            .map(|selected_column| match &selected_column.cells {
                StepsBack::Range { back, stride, len } => {
                    let first = end.saturating_sub(*back);
                    (0..*len).map(|n| first + n * stride).collect()
                }
                StepsBack::List(backs) => backs.iter().map(|b| end.saturating_sub(*b)).collect(),
            })
            .collect();
        let count = self.model.cells.len();
        let selections: Vec<ColumnSelection<'_>> = selected
            .iter()
            .zip(&positions)
            .map(|(selected_column, positions)| ColumnSelection {
                source: selected_column.column % count,
                cells: match &selected_column.cells {
                    StepsBack::Range { back, stride, len } => CellPositions::Range {
                        first: end.saturating_sub(*back),
                        stride: *stride,
                        len: *len,
                    },
                    StepsBack::List(_) => CellPositions::List(positions),
                },
                squeeze: selected_column.squeeze,
            })
            .collect();
        let column_names: Vec<String> = (0..selected.len()).map(|i| format!("item{i}")).collect();
        let selected = selected.iter().zip(&positions);
        let columns: Vec<_> = selected
            .map(|(selected_column, positions)| {
                (
                    selected_column.column % count,
                    positions.clone(),
                    selected_column.squeeze,
                )
            })
            .collect();
        let selection = Selection::Columns {
            layout: &layout(&column_names),
            columns: &selections,
        };
        let expected = self.model.select(&columns);
        self.create(&selection, expected);
    }

    fn add_column(&mut self, index: usize) {
        let count = self.model.cells.len();
        let index = index % (count + 1);
        let map: Vec<usize> = (0..count)
            .map(|old| old + usize::from(old >= index))
            .collect();
        self.model.cells.insert(index, spec(DType::Float32, &[2]));
        for step in self.model.steps.iter_mut().chain(&mut self.model.open) {
            step.insert(index, None);
        }
        let cells = self.model.cells.clone();
        self.recorder
            .restructure(layout(&names(cells.len())), cells.into(), &map)
            .unwrap();
    }

    /// Compares the cells that the recorder returns from its history with the model.
    fn read_back(&self) {
        for column in 0..self.model.cells.len() {
            for position in self.model.first_available().saturating_sub(1)..=self.model.end() {
                let expected = self.model.cell(column, position);
                let mut bytes = Vec::new();
                let outcome = self.recorder.read_cell(column, position, &mut bytes);
                let cell_spec = self.recorder.cell_spec(column, position);
                match expected {
                    Ok((shape, cell)) => {
                        outcome.unwrap();
                        assert_eq!(bytes, *cell);
                        assert_eq!(cell_spec.unwrap().shape, *shape);
                    }
                    Err(expected) => {
                        assert_eq!(error_kind(&outcome.unwrap_err()), expected);
                        assert_eq!(cell_spec, None);
                    }
                }
            }
        }
    }

    /// Compares the ready items with the model's. If `all`, no item may be pending afterwards.
    fn take_ready(&mut self, all: bool) {
        let ready: Vec<_> = self.recorder.take_ready().collect();
        for (table, item) in ready {
            let (key, expected) = &self.created[self.taken];
            assert_eq!((table, item.key, item.priority), (3, *key, 1.5));
            assert_eq!(read(&item), *expected);
            for chunk in item.trajectory.chunks() {
                self.check_episode(chunk);
            }
            self.taken += 1;
        }
        if all {
            assert_eq!(self.taken, self.created.len());
        }
    }

    /// Checks that all numbers in a chunk that belong to complete steps are of the same episode.
    fn check_episode(&self, chunk: &Arc<engram_core::Chunk>) {
        assert_eq!(chunk.origin().episodes.len(), 1);
        let mut episode_of_cell = HashMap::new();
        for (step, episode) in self.model.steps.iter().zip(&self.model.episodes) {
            for (_, cell) in step.iter().flatten() {
                episode_of_cell.insert(cell.clone(), *episode);
            }
        }
        let mut episodes = std::collections::HashSet::new();
        for (column, cell) in chunk.schema().cells.iter().enumerate() {
            if cell.dtype == DType::Int64 && cell.elements() == 1 {
                let bytes = chunk.raw(column).unwrap();
                let cells = bytes.chunks_exact(8);
                episodes.extend(cells.filter_map(|cell| episode_of_cell.get(cell).copied()));
            }
        }
        assert!(episodes.len() <= 1, "episodes {episodes:?} share a chunk");
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("c{i}")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn items_have_the_selected_cells(
        ops in ops(),
        chunk_length in prop_oneof![3 => (1_usize..=16).prop_map(Some), 2 => Just(None)],
        history in 1_u64..40,
    ) {
        let mut pair = RecorderAndModel::new(history, chunk_length);
        for op in &ops {
            pair.apply(op);
        }
        pair.apply(&Op::Flush);
    }
}
