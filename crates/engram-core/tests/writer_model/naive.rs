//! Patterns, tried naively on plain lists of steps.

use engram_core::Shape;
use engram_core::writer::{Comparison, Condition, Pattern, PatternColumn, Subject};
use proptest::prelude::*;

use crate::common::{Cell, Item, layout};

/// One step: per column, shape and bytes of the cell if it has one.
pub(crate) type Step = Vec<Option<(Shape, Cell)>>;

/// What a pattern is made of.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) columns: Vec<PatternColumn>,
    pub(crate) conditions: Vec<Condition>,
}

/// Steps of one stream, and where its episode and its memory begin.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    pub(crate) steps: Vec<Step>,
    pub(crate) floor: usize,
    pub(crate) episode_first: usize,
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
        Just(Subject::StepIndex),
        Just(Subject::StepsSinceApplied),
        Just(Subject::EndOfEpisode),
        (0..columns).prop_map(Subject::Column),
        Just(Subject::Column(numbers)),
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
    let plan = (prop_oneof![all, some], conditions).prop_map(|(columns, conditions)| Plan {
        columns,
        conditions,
    });
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
            2.0,
        )
        .unwrap()
    }

    fn cells(&self, stream: &Stream) -> Option<Result<Item, ()>> {
        let end = stream.steps.len() as i64;
        let (mut item, mut mixed) = (Vec::new(), false);
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
            let cells = cells.into_iter().map(|cell| cell.1.clone()).collect();
            item.push((column.squeeze, cells));
        }
        Some(if mixed { Err(()) } else { Ok(item) })
    }
}

impl Stream {
    /// The item that pattern `number` makes of the newest step, if any; `Err` for mixed shapes.
    pub(crate) fn try_plan(
        &mut self,
        number: usize,
        plan: &Plan,
        end: bool,
    ) -> Option<Result<Item, ()>> {
        let steps = self.steps.len();
        self.applied.resize(self.applied.len().max(number + 1), 0);
        if steps == self.episode_first || self.applied[number] == steps {
            return None;
        }
        for condition in &plan.conditions {
            let found = match condition.subject {
                Subject::StepIndex => (steps - 1 - self.episode_first) as i64,
                Subject::StepsSinceApplied => (steps - self.applied[number]) as i64,
                Subject::EndOfEpisode => end.into(),
                Subject::Column(column) => {
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
        let outcome = plan.cells(self)?;
        if outcome.is_ok() {
            self.applied[number] = steps;
        }
        Some(outcome)
    }
}
