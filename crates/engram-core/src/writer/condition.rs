//! When a pattern applies.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::schema::CellSpec;

/// What a condition looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionInput {
    /// Number of the step in its episode, from 0.
    StepIndex,
    /// Steps since the pattern last made an item, this one included: 1 on the first step.
    StepsSinceApplied,
    /// Steps that items can reach back to, this one included: at most as many as any of the
    /// writer's patterns does.
    HistoryLength,
    /// 1 when the episode ends after this step, else 0.
    EndOfEpisode,
    /// The newest value of this column: one integer or bool. Anything else never holds.
    Column(usize),
}

/// What the subject is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Equal to.
    Eq(i64),
    /// At least.
    Ge(i64),
    /// Leaves `remainder` when divided by `divisor`, rounding down.
    Mod {
        /// At least 1.
        divisor: i64,
        /// At least 0.
        remainder: i64,
    },
}

/// One of the conditions that must all hold for a pattern to make an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What it looks at.
    pub subject: ConditionInput,
    /// What it asks.
    pub comparison: Comparison,
    /// Holds where the comparison does not. A column without a value still never holds.
    pub inverse: bool,
}

/// What conditions are asked about one step of one stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) step_index: u64,
    pub(super) since_applied: u64,
    pub(super) history_length: u64,
    pub(super) end_of_episode: bool,
}

impl Condition {
    pub(super) fn check(&self) -> Result<()> {
        match self.comparison {
            Comparison::Mod { divisor, remainder } if divisor < 1 || remainder < 0 => {
                Err(Error::InvalidArgument(format!(
                    "condition asks for `% {divisor} == {remainder}`; the divisor is 1 or more \
                     and the remainder 0 or more"
                )))
            }
            _ => Ok(()),
        }
    }

    /// `value` gives the newest value of a column, if it is one integer or bool.
    pub(super) fn holds(&self, moment: Moment, value: impl Fn(usize) -> Option<i128>) -> bool {
        let found = match self.subject {
            ConditionInput::StepIndex => moment.step_index.into(),
            ConditionInput::StepsSinceApplied => moment.since_applied.into(),
            ConditionInput::HistoryLength => moment.history_length.into(),
            ConditionInput::EndOfEpisode => moment.end_of_episode.into(),
            ConditionInput::Column(column) => match value(column) {
                Some(found) => found,
                None => return false,
            },
        };
        let holds = match self.comparison {
            Comparison::Eq(asked) => found == asked.into(),
            Comparison::Ge(asked) => found >= asked.into(),
            Comparison::Mod { divisor, remainder } => {
                found.rem_euclid(divisor.into()) == remainder.into()
            }
        };
        holds != self.inverse
    }
}

/// The number in a cell, when it is a single integer or bool.
pub(super) fn number(spec: &CellSpec, cell: &[u8]) -> Option<i128> {
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

    fn moment(step_index: u64, since_applied: u64) -> Moment {
        Moment {
            step_index,
            since_applied,
            history_length: step_index.min(3) + 1,
            end_of_episode: false,
        }
    }

    #[test]
    fn conditions_compare_and_invert() {
        let every_third = Condition {
            subject: ConditionInput::StepIndex,
            comparison: Comparison::Mod {
                divisor: 3,
                remainder: 1,
            },
            inverse: false,
        };
        let steps = |condition: Condition| {
            (0..8)
                .filter(|step| condition.holds(moment(*step, step + 1), |_| None))
                .collect::<Vec<_>>()
        };
        assert_eq!(steps(every_third), [1, 4, 7]);
        let others = Condition {
            inverse: true,
            ..every_third
        };
        assert_eq!(steps(others), [0, 2, 3, 5, 6]);
        let late = Condition {
            subject: ConditionInput::StepsSinceApplied,
            comparison: Comparison::Ge(6),
            inverse: false,
        };
        assert_eq!(steps(late), [5, 6, 7]);
        let long = Condition {
            subject: ConditionInput::HistoryLength,
            comparison: Comparison::Eq(4),
            inverse: true,
        };
        assert_eq!(steps(long), [0, 1, 2]);
        let end = Condition {
            subject: ConditionInput::EndOfEpisode,
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
        assert_eq!(number(&spec(DType::Int64, 1), minus_one), Some(-1));
        let largest = Some(i128::from(u64::MAX));
        assert_eq!(number(&spec(DType::Uint64, 1), minus_one), largest);
        assert_eq!(number(&spec(DType::Bool, 1), &[1]), Some(1));
        assert_eq!(number(&spec(DType::Float64, 1), minus_one), None);
        assert_eq!(number(&spec(DType::Int32, 2), minus_one), None);
        assert_eq!(number(&spec(DType::Bool, 2), &[1, 1]), None);
        // What is not a number does not hold, inverted or not.
        for inverse in [false, true] {
            let condition = Condition {
                subject: ConditionInput::Column(0),
                comparison: Comparison::Eq(3),
                inverse,
            };
            assert!(!condition.holds(moment(0, 1), |_| None));
            assert_eq!(condition.holds(moment(0, 1), |_| Some(-1)), inverse);
        }
    }

    #[test]
    fn a_divisor_is_positive() {
        let condition = Condition {
            subject: ConditionInput::StepIndex,
            comparison: Comparison::Mod {
                divisor: 0,
                remainder: 0,
            },
            inverse: false,
        };
        assert_eq!(
            condition.check().unwrap_err().to_string(),
            "condition asks for `% 0 == 0`; the divisor is 1 or more and the remainder 0 or more"
        );
    }
}
