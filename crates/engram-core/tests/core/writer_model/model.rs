//! A simple model of patterns: applies them to plain lists of steps.

use engram_core::writer::{
    Comparison, Condition, ConditionInput, Pattern, PatternColumn, PriorityRule,
};
use engram_core::{DType, Error, Shape};
use proptest::prelude::*;

use crate::writer_model::common::{Cell, Item, layout};

/// One step: per column, the shape and bytes of the cell, if it has one.
pub(crate) type Step = Vec<Option<(Shape, Cell)>>;

/// The arguments of a [`Pattern`].
#[derive(Clone, Debug)]
pub(crate) struct PatternSpec {
    pub(crate) columns: Vec<PatternColumn>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) priority: PriorityRule,
    /// Dtypes of the columns.
    dtypes: Vec<DType>,
}

/// Why an item cannot be created.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ItemError {
    MixedShapes,
    Priority,
}

/// The bits of an item's priority, and the item.
pub(crate) type CreatedItem = (u64, Item);

/// Dtypes of the writer's columns, which are the first ones of these.
const DTYPES: [DType; 5] = [
    DType::Uint8,
    DType::Int64,
    DType::Float32,
    DType::Bytes,
    DType::Text,
];

/// Rejects some priorities that were computed from TD errors, for every table alike.
pub(crate) fn check_priority(_: u32, priority: f64) -> Result<(), Error> {
    if priority.is_nan() || priority as i64 % 5 == 4 {
        return Err(Error::Priority("TD errors out of range".into()));
    }
    Ok(())
}

/// The steps of one environment, and when its patterns last created items.
#[derive(Clone, Debug, Default)]
pub(crate) struct PatternModel {
    pub(crate) steps: Vec<Step>,
    /// First step that items may refer to.
    pub(crate) first_available: usize,
    /// First step of the current episode.
    pub(crate) episode_start: usize,
    /// Longest lookback of the patterns.
    pub(crate) longest_lookback: usize,
    /// Per pattern, the number of steps when it last created an item.
    pub(crate) applied_at: Vec<usize>,
}

/// Generates patterns over `columns` columns. Column `int_column` has single `Int64` numbers.
pub(crate) fn pattern_specs(
    columns: usize,
    int_column: usize,
) -> impl Strategy<Value = Vec<PatternSpec>> {
    // Of the newest steps, `tail - 1` are not selected.
    let window = (1_i64..7, 1_i64..4, 1_i64..4, any::<bool>());
    let whole_steps = window.clone().prop_map(move |(len, tail, _, _)| {
        let column = |source| PatternColumn {
            source,
            start: -len - (tail - 1),
            stop: -(tail - 1),
            step: 1,
            squeeze: false,
        };
        (0..columns).map(column).collect::<Vec<_>>()
    });
    let selected_columns = prop::collection::vec((0..columns, window), 1..4).prop_map(|picks| {
        let column = |(source, (len, tail, step, squeeze)): (usize, (i64, i64, i64, bool))| {
            let start = -len - (tail - 1);
            PatternColumn {
                source,
                start,
                stop: if squeeze {
                    (start + step).min(0)
                } else {
                    -(tail - 1)
                },
                step,
                squeeze,
            }
        };
        picks.into_iter().map(column).collect::<Vec<_>>()
    });
    let input = prop_oneof![
        Just(ConditionInput::StepIndex),
        Just(ConditionInput::StepsSinceApplied),
        Just(ConditionInput::HistoryLength),
        Just(ConditionInput::EndOfEpisode),
        (0..columns).prop_map(ConditionInput::Column),
        Just(ConditionInput::Column(int_column)),
    ];
    let comparison = prop_oneof![
        (0_i64..3).prop_map(Comparison::Eq),
        (0_i64..5).prop_map(Comparison::Ge),
        (1_i64..4, 0_i64..4)
            .prop_map(|(divisor, remainder)| Comparison::Mod { divisor, remainder }),
    ];
    let condition =
        (input, comparison, any::<bool>()).prop_map(|(input, comparison, inverse)| Condition {
            input,
            comparison,
            inverse,
        });
    let conditions = prop::collection::vec(condition, 0..3);
    let priority = prop_oneof![
        3 => Just(None),
        1 => (any::<prop::sample::Index>(), prop_oneof![Just(0.0), Just(0.25), Just(1.0)]).prop_map(Some),
    ];
    let pattern_spec = (
        prop_oneof![whole_steps, selected_columns],
        conditions,
        priority,
    )
        .prop_map(|(columns, conditions, priority)| PatternSpec {
            priority: priority.map_or(PriorityRule::Constant(2.0), |(column, max_weight)| {
                let column = column.index(columns.len());
                PriorityRule::TdError { column, max_weight }
            }),
            dtypes: columns.iter().map(|column| DTYPES[column.source]).collect(),
            columns,
            conditions,
        });
    prop::collection::vec(pattern_spec, 1..4)
}

impl PatternSpec {
    pub(crate) fn pattern(&self, table: u32) -> Pattern {
        let names: Vec<String> = (0..self.columns.len()).map(|i| format!("c{i}")).collect();
        let (columns, conditions) = (self.columns.clone(), self.conditions.clone());
        Pattern::new(
            table,
            layout(&names),
            columns.into(),
            conditions.into(),
            self.priority,
        )
        .unwrap()
    }

    /// Returns the item of the newest steps; `None` if steps or values are missing.
    fn create_item(&self, model: &PatternModel) -> Option<Result<CreatedItem, ItemError>> {
        let end = model.steps.len() as i64;
        let (mut item, mut mixed_shapes) = (Vec::new(), false);
        // Per column, whether each cell has a single element.
        let mut single_element = Vec::new();
        for column in &self.columns {
            let mut cells: Vec<&(Shape, Cell)> = Vec::new();
            let mut position = end + column.start;
            while position < end + column.stop {
                if position < model.first_available as i64 {
                    return None;
                }
                let cell = model.steps[position as usize][column.source].as_ref()?;
                mixed_shapes |= cells.first().is_some_and(|first| first.0 != cell.0);
                cells.push(cell);
                position += column.step;
            }
            let single = |cell: &&(Shape, Cell)| cell.0.iter().product::<usize>() == 1;
            single_element.push(cells.iter().all(single));
            let cells: Vec<Cell> = cells.into_iter().map(|cell| cell.1.clone()).collect();
            item.push((column.squeeze, cells));
        }
        if mixed_shapes {
            return Some(Err(ItemError::MixedShapes));
        }
        let priority = match self.priority {
            PriorityRule::Constant(priority) => Some(priority),
            PriorityRule::TdError { column, .. } if !single_element[column] => None,
            PriorityRule::TdError { column, max_weight } => {
                let cells = item[column].1.iter();
                let values = cells.map(|cell| magnitude(self.dtypes[column], cell));
                values.collect::<Option<Vec<f64>>>().and_then(|values| {
                    let largest = values.iter().copied().fold(0.0, f64::max);
                    let mean = values.iter().sum::<f64>() / values.len() as f64;
                    let priority = max_weight * largest + (1.0 - max_weight) * mean;
                    check_priority(0, priority).ok().map(|()| priority)
                })
            }
        };
        let priority = priority.ok_or(ItemError::Priority);
        Some(priority.map(|priority| (priority.to_bits(), item)))
    }
}

/// Returns the absolute value of a single number; `None` for dtypes that TD errors cannot have.
fn magnitude(dtype: DType, cell: &[u8]) -> Option<f64> {
    match dtype {
        DType::Int64 => Some((i64::from_le_bytes(cell.try_into().unwrap()) as f64).abs()),
        DType::Float32 => Some(f32::from_le_bytes(cell.try_into().unwrap()).abs().into()),
        _ => None,
    }
}

/// Checks the result of an append that should create `created` items and report the first of
/// `errors`.
pub(crate) fn check_outcome(outcome: Result<usize, Error>, created: usize, errors: &[ItemError]) {
    match outcome {
        Ok(count) => assert_eq!((count, errors), (created, &[][..])),
        Err(Error::Signature(text)) => {
            assert_eq!(errors.first(), Some(&ItemError::MixedShapes));
            assert!(text.contains("has cells of different shapes"), "{text}");
        }
        Err(Error::Priority(text)) => {
            assert_eq!(errors.first(), Some(&ItemError::Priority));
            assert!(text.contains("TD errors "), "{text}");
        }
        Err(error) => panic!("{error}"),
    }
}

impl PatternModel {
    /// Returns the item that pattern `number` creates at the newest step, if any. `end` is true if the episode ends
    /// with this step.
    pub(crate) fn try_pattern(
        &mut self,
        number: usize,
        pattern_spec: &PatternSpec,
        end: bool,
    ) -> Option<Result<CreatedItem, ItemError>> {
        let steps = self.steps.len();
        self.applied_at
            .resize(self.applied_at.len().max(number + 1), 0);
        if steps == self.episode_start || self.applied_at[number] == steps {
            return None;
        }
        for condition in &pattern_spec.conditions {
            let input = match condition.input {
                ConditionInput::StepIndex => (steps - 1 - self.episode_start) as i64,
                ConditionInput::StepsSinceApplied => (steps - self.applied_at[number]) as i64,
                ConditionInput::HistoryLength => {
                    (steps - self.first_available).min(self.longest_lookback) as i64
                }
                ConditionInput::EndOfEpisode => end.into(),
                ConditionInput::Column(column) => {
                    let (shape, cell) = self.steps[steps - 1][column].as_ref()?;
                    if shape.iter().product::<usize>() != 1 {
                        return None;
                    }
                    i64::from_le_bytes(cell[..].try_into().ok()?)
                }
            };
            let result = match condition.comparison {
                Comparison::Eq(operand) => input == operand,
                Comparison::Ge(operand) => input >= operand,
                Comparison::Mod { divisor, remainder } => input % divisor == remainder,
            };
            if result == condition.inverse {
                return None;
            }
        }
        let outcome = pattern_spec.create_item(self)?;
        if outcome.is_ok() {
            self.applied_at[number] = steps;
        }
        Some(outcome)
    }
}
