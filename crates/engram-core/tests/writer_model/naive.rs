//! Patterns, tried naively on plain lists of steps.

use engram_core::writer::{
    Comparison, Condition, ConditionInput, Pattern, PatternColumn, PriorityRule,
};
use engram_core::{DType, Error, Shape};
use proptest::prelude::*;

use crate::common::{Cell, Item, layout};

/// One step: per column, shape and bytes of the cell if it has one.
pub(crate) type Step = Vec<Option<(Shape, Cell)>>;

/// What a pattern is made of.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) columns: Vec<PatternColumn>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) priority: PriorityRule,
    /// Of its columns.
    dtypes: Vec<DType>,
}

/// Why an item cannot be made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Trouble {
    Mixed,
    Priority,
}

/// An item with its priority, whose bits can be compared.
pub(crate) type Made = (u64, Item);

/// The columns that plans are made for.
const DTYPES: [DType; 4] = [DType::Uint8, DType::Int64, DType::Float32, DType::String];

/// What all tables of the test say of a priority that was found.
pub(crate) fn accepts(_: u32, priority: f64) -> Result<(), Error> {
    if priority.is_nan() || priority as i64 % 5 == 4 {
        return Err(Error::Priority("TD error too bad".into()));
    }
    Ok(())
}

/// Steps of one stream, and where its episode and its memory begin.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    pub(crate) steps: Vec<Step>,
    pub(crate) floor: usize,
    pub(crate) episode_first: usize,
    /// Steps that any of the patterns looks back.
    pub(crate) furthest: usize,
    /// Per pattern, how many steps there were when it last made an item.
    pub(crate) applied: Vec<usize>,
}

/// `numbers` is the column of `Int64` numbers, among `columns` in all.
pub(crate) fn plans(columns: usize, numbers: usize) -> impl Strategy<Value = Vec<Plan>> {
    let window = (1_i64..7, 1_i64..4, 1_i64..4, any::<bool>());
    let all = window.clone().prop_map(move |(len, tail, _, _)| {
        let column = |source| PatternColumn {
            source,
            start: -len - (tail - 1),
            stop: -(tail - 1),
            step: 1,
            squeeze: false,
        };
        (0..columns).map(column).collect::<Vec<_>>()
    });
    let some = prop::collection::vec((0..columns, window), 1..4).prop_map(|picks| {
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
    let subject = prop_oneof![
        Just(ConditionInput::StepIndex),
        Just(ConditionInput::StepsSinceApplied),
        Just(ConditionInput::HistoryLength),
        Just(ConditionInput::EndOfEpisode),
        (0..columns).prop_map(ConditionInput::Column),
        Just(ConditionInput::Column(numbers)),
    ];
    let comparison = prop_oneof![
        (0_i64..3).prop_map(Comparison::Eq),
        (0_i64..5).prop_map(Comparison::Ge),
        (1_i64..4, 0_i64..4)
            .prop_map(|(divisor, remainder)| Comparison::Mod { divisor, remainder }),
    ];
    let condition =
        (subject, comparison, any::<bool>()).prop_map(|(subject, comparison, inverse)| Condition {
            subject,
            comparison,
            inverse,
        });
    let conditions = prop::collection::vec(condition, 0..3);
    let priority = prop_oneof![
        3 => Just(None),
        1 => (any::<prop::sample::Index>(), prop_oneof![Just(0.0), Just(0.25), Just(1.0)]).prop_map(Some),
    ];
    let plan = (prop_oneof![all, some], conditions, priority).prop_map(
        |(columns, conditions, priority)| Plan {
            priority: priority.map_or(PriorityRule::Constant(2.0), |(column, max_weight)| {
                let column = column.index(columns.len());
                PriorityRule::TdError { column, max_weight }
            }),
            dtypes: columns.iter().map(|column| DTYPES[column.source]).collect(),
            columns,
            conditions,
        },
    );
    prop::collection::vec(plan, 1..4)
}

impl Plan {
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

    fn made(&self, stream: &Stream) -> Option<Result<Made, Trouble>> {
        let end = stream.steps.len() as i64;
        let (mut item, mut mixed) = (Vec::new(), false);
        let mut scalar = Vec::new();
        for column in &self.columns {
            let mut cells: Vec<&(Shape, Cell)> = Vec::new();
            let mut at = end + column.start;
            while at < end + column.stop {
                if at < stream.floor as i64 {
                    return None;
                }
                let cell = stream.steps[at as usize][column.source].as_ref()?;
                mixed |= cells.first().is_some_and(|first| first.0 != cell.0);
                cells.push(cell);
                at += column.step;
            }
            let single = |cell: &&(Shape, Cell)| cell.0.iter().product::<usize>() == 1;
            scalar.push(cells.iter().all(single));
            let cells: Vec<Cell> = cells.into_iter().map(|cell| cell.1.clone()).collect();
            item.push((column.squeeze, cells));
        }
        if mixed {
            return Some(Err(Trouble::Mixed));
        }
        let priority = match self.priority {
            PriorityRule::Constant(priority) => Some(priority),
            PriorityRule::TdError { column, .. } if !scalar[column] => None,
            PriorityRule::TdError { column, max_weight } => {
                let sizes = item[column].1.iter();
                let sizes = sizes.map(|cell| size(self.dtypes[column], cell));
                sizes.collect::<Option<Vec<f64>>>().and_then(|sizes| {
                    let largest = sizes.iter().copied().fold(0.0, f64::max);
                    let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
                    let found = max_weight * largest + (1.0 - max_weight) * mean;
                    accepts(0, found).ok().map(|()| found)
                })
            }
        };
        let priority = priority.ok_or(Trouble::Priority);
        Some(priority.map(|priority| (priority.to_bits(), item)))
    }
}

/// The number in a cell without its sign, where there is one.
fn size(dtype: DType, cell: &[u8]) -> Option<f64> {
    match dtype {
        DType::Int64 => Some((i64::from_le_bytes(cell.try_into().unwrap()) as f64).abs()),
        DType::Float32 => Some(f32::from_le_bytes(cell.try_into().unwrap()).abs().into()),
        _ => None,
    }
}

/// Checks what a writer said of an append whose items had these troubles.
pub(crate) fn check_outcome(outcome: Result<usize, Error>, made: usize, troubles: &[Trouble]) {
    match outcome {
        Ok(count) => assert_eq!((count, troubles), (made, &[][..])),
        Err(Error::Signature(text)) => {
            assert_eq!(troubles.first(), Some(&Trouble::Mixed));
            assert!(text.contains("mixes cells of shape"), "{text}");
        }
        Err(Error::Priority(text)) => {
            assert_eq!(troubles.first(), Some(&Trouble::Priority));
            assert!(text.starts_with("TD error "), "{text}");
        }
        Err(error) => panic!("{error}"),
    }
}

impl Stream {
    /// The item that pattern `number` makes of the newest step, if any.
    pub(crate) fn try_plan(
        &mut self,
        number: usize,
        plan: &Plan,
        end: bool,
    ) -> Option<Result<Made, Trouble>> {
        let steps = self.steps.len();
        self.applied.resize(self.applied.len().max(number + 1), 0);
        if steps == self.episode_first || self.applied[number] == steps {
            return None;
        }
        for condition in &plan.conditions {
            let found = match condition.subject {
                ConditionInput::StepIndex => (steps - 1 - self.episode_first) as i64,
                ConditionInput::StepsSinceApplied => (steps - self.applied[number]) as i64,
                ConditionInput::HistoryLength => (steps - self.floor).min(self.furthest) as i64,
                ConditionInput::EndOfEpisode => end.into(),
                ConditionInput::Column(column) => {
                    let (shape, cell) = self.steps[steps - 1][column].as_ref()?;
                    if shape.iter().product::<usize>() != 1 {
                        return None;
                    }
                    i64::from_le_bytes(cell[..].try_into().ok()?)
                }
            };
            let holds = match condition.comparison {
                Comparison::Eq(asked) => found == asked,
                Comparison::Ge(asked) => found >= asked,
                Comparison::Mod { divisor, remainder } => found % divisor == remainder,
            };
            if holds == condition.inverse {
                return None;
            }
        }
        let outcome = plan.made(self)?;
        if outcome.is_ok() {
            self.applied[number] = steps;
        }
        Some(outcome)
    }
}
