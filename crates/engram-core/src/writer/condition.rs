//! Conditions that decide at which steps a pattern creates an item.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::schema::CellSpec;

/// The value that a condition compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionInput {
    /// Index of the step in its episode, from 0.
    StepIndex,
    /// Number of steps since the pattern last created an item, over all episodes, including this one. Before the
    /// pattern's first item, it counts from the writer's first step, where it is 1.
    StepsSinceApplied,
    /// Number of steps that items may refer to, including this one. At most the longest [`lookback`] of the writer's
    /// patterns.
    ///
    /// [`lookback`]: super::Pattern::lookback
    HistoryLength,
    /// 1 if the episode ends with this step, else 0.
    EndOfEpisode,
    /// The value of this column at the newest step, if it is a single integer or bool. Otherwise the
    /// condition is false.
    Column(usize),
}

/// How the input is compared, and with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Equal to this number.
    Eq(i64),
    /// At least this number.
    Ge(i64),
    /// The remainder of the division by `divisor` equals `remainder`. Remainders are never negative.
    Mod {
        /// At least 1.
        divisor: i64,
        /// At least 0.
        remainder: i64,
    },
}

/// A condition of a pattern. The pattern creates an item if all of its conditions are true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The value to compare.
    pub input: ConditionInput,
    /// The comparison.
    pub comparison: Comparison,
    /// Negates the comparison. A condition on a column whose value is missing, or not a single integer or bool, is
    /// false either way.
    pub inverse: bool,
}

/// The properties of one step that conditions can compare.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepContext {
    /// [`ConditionInput::StepIndex`].
    pub(super) step_index: u64,
    /// [`ConditionInput::StepsSinceApplied`].
    pub(super) since_applied: u64,
    /// [`ConditionInput::HistoryLength`].
    pub(super) history_length: u64,
    /// [`ConditionInput::EndOfEpisode`].
    pub(super) end_of_episode: bool,
}

impl Condition {
    /// Rejects a divisor below 1 and a remainder below 0.
    pub(super) fn check(&self) -> Result<()> {
        match self.comparison {
            Comparison::Mod { divisor, remainder } if divisor < 1 || remainder < 0 => {
                Err(Error::InvalidArgument(format!(
                    "condition `% {divisor} == {remainder}`: the divisor must be at least 1 and \
                     the remainder at least 0"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Evaluates the condition at the newest step. `value` returns a column's value at that step, if it is a
    /// single integer or bool.
    pub(super) fn is_met(
        &self,
        context: StepContext,
        value: impl Fn(usize) -> Option<i128>,
    ) -> bool {
        let input = match self.input {
            ConditionInput::StepIndex => context.step_index.into(),
            ConditionInput::StepsSinceApplied => context.since_applied.into(),
            ConditionInput::HistoryLength => context.history_length.into(),
            ConditionInput::EndOfEpisode => context.end_of_episode.into(),
            ConditionInput::Column(column) => match value(column) {
                Some(value) => value,
                None => return false,
            },
        };
        let result = match self.comparison {
            Comparison::Eq(operand) => input == operand.into(),
            Comparison::Ge(operand) => input >= operand.into(),
            Comparison::Mod { divisor, remainder } => {
                input.rem_euclid(divisor.into()) == remainder.into()
            }
        };
        result != self.inverse
    }
}

/// Returns a cell's value if it is a single integer or bool.
pub(super) fn read_integer(spec: &CellSpec, cell: &[u8]) -> Option<i128> {
    if spec.elements() != 1 {
        return None;
    }
    Some(match spec.dtype {
        DType::Bool => i128::from(cell.first() != Some(&0)),
        DType::Int8 => i8::from_le_bytes(cell.try_into().ok()?).into(),
        DType::Int16 => i16::from_le_bytes(cell.try_into().ok()?).into(),
        DType::Int32 => i32::from_le_bytes(cell.try_into().ok()?).into(),
        DType::Int64 => i64::from_le_bytes(cell.try_into().ok()?).into(),
        DType::Uint8 => u8::from_le_bytes(cell.try_into().ok()?).into(),
        DType::Uint16 => u16::from_le_bytes(cell.try_into().ok()?).into(),
        DType::Uint32 => u32::from_le_bytes(cell.try_into().ok()?).into(),
        DType::Uint64 => u64::from_le_bytes(cell.try_into().ok()?).into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    fn step_context(step_index: u64, since_applied: u64) -> StepContext {
        StepContext {
            step_index,
            since_applied,
            history_length: step_index.min(3) + 1,
            end_of_episode: false,
        }
    }

    #[test]
    fn conditions_compare_and_invert() {
        let every_third = Condition {
            input: ConditionInput::StepIndex,
            comparison: Comparison::Mod {
                divisor: 3,
                remainder: 1,
            },
            inverse: false,
        };
        let steps = |condition: Condition| {
            (0..8)
                .filter(|step| condition.is_met(step_context(*step, step + 1), |_| None))
                .collect::<Vec<_>>()
        };
        assert_eq!(steps(every_third), [1, 4, 7]);
        let others = Condition {
            inverse: true,
            ..every_third
        };
        assert_eq!(steps(others), [0, 2, 3, 5, 6]);
        let late = Condition {
            input: ConditionInput::StepsSinceApplied,
            comparison: Comparison::Ge(6),
            inverse: false,
        };
        assert_eq!(steps(late), [5, 6, 7]);
        let long = Condition {
            input: ConditionInput::HistoryLength,
            comparison: Comparison::Eq(4),
            inverse: true,
        };
        assert_eq!(steps(long), [0, 1, 2]);
        let end = Condition {
            input: ConditionInput::EndOfEpisode,
            comparison: Comparison::Eq(1),
            inverse: false,
        };
        assert_eq!(steps(end), [0_u64; 0]);
    }

    #[test]
    fn column_values_are_single_integers_or_bools() {
        let spec = |dtype, n: usize| CellSpec {
            dtype,
            shape: smallvec![n],
        };
        let minus_one = &[255; 8][..];
        assert_eq!(read_integer(&spec(DType::Int64, 1), minus_one), Some(-1));
        let largest = Some(i128::from(u64::MAX));
        assert_eq!(read_integer(&spec(DType::Uint64, 1), minus_one), largest);
        assert_eq!(read_integer(&spec(DType::Bool, 1), &[1]), Some(1));
        assert_eq!(read_integer(&spec(DType::Float64, 1), minus_one), None);
        assert_eq!(read_integer(&spec(DType::Int32, 2), minus_one), None);
        assert_eq!(read_integer(&spec(DType::Bool, 2), &[1, 1]), None);
        // Without a value the condition is false, inverted or not.
        for inverse in [false, true] {
            let condition = Condition {
                input: ConditionInput::Column(0),
                comparison: Comparison::Eq(3),
                inverse,
            };
            assert!(!condition.is_met(step_context(0, 1), |_| None));
            assert_eq!(condition.is_met(step_context(0, 1), |_| Some(-1)), inverse);
        }
    }

    #[test]
    fn the_divisor_must_be_positive() {
        let condition = Condition {
            input: ConditionInput::StepIndex,
            comparison: Comparison::Mod {
                divisor: 0,
                remainder: 0,
            },
            inverse: false,
        };
        assert_eq!(
            condition.check().unwrap_err().to_string(),
            "condition `% 0 == 0`: the divisor must be at least 1 and the remainder at least 0"
        );
    }
}
