//! Rules that determine the priority of an item.

use super::selection_error::check_priority;
use crate::chunk::Chunk;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::schema::CellSpec;
use crate::text::column_of;

/// Determines the priority of a pattern's items.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PriorityRule {
    /// The same priority for all items.
    Constant(f64),
    /// `max_weight * max|x| + (1 - max_weight) * mean|x|` over the TD errors `x` of a column.
    TdError {
        /// The item's column of TD errors, one number per step.
        column: usize,
        /// Weight of the largest TD error, from 0 to 1.
        max_weight: f64,
    },
}

impl From<f64> for PriorityRule {
    fn from(priority: f64) -> Self {
        Self::Constant(priority)
    }
}

impl PriorityRule {
    /// Checks the rule for items of `columns` columns.
    pub(super) fn check(self, columns: usize) -> Result<()> {
        match self {
            Self::Constant(priority) => check_priority(priority),
            Self::TdError { column, .. } if column >= columns => {
                Err(Error::InvalidArgument(format!(
                    "the pattern computes priorities from column {column} of its items; expected a \
                     column from 0 to {}",
                    columns - 1
                )))
            }
            Self::TdError { .. } => Ok(()),
        }
    }
}

/// Statistics of the absolute values of TD errors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TdErrorStats {
    largest: f64,
    sum: f64,
    /// Number of values.
    count: f64,
}

impl TdErrorStats {
    /// Adds contiguous cells. `name` is the column's name in the item.
    ///
    /// # Errors
    /// [`Error::Priority`] if a cell is not a single float32, float64, int32 or int64.
    pub(super) fn add(&mut self, name: &str, spec: &CellSpec, cells: &[u8]) -> Result<()> {
        if spec.elements() != 1 {
            return Err(not_a_td_error(name, spec));
        }
        match spec.dtype {
            DType::Float32 => self.add_cells(cells, |cell| f32::from_le_bytes(cell).into()),
            DType::Float64 => self.add_cells(cells, f64::from_le_bytes),
            DType::Int32 => self.add_cells(cells, |cell| i32::from_le_bytes(cell).into()),
            #[expect(
                clippy::cast_precision_loss,
                reason = "priorities are floats, and TD errors are far below 2^53"
            )]
            DType::Int64 => self.add_cells(cells, |cell| i64::from_le_bytes(cell) as f64),
            _ => return Err(not_a_td_error(name, spec)),
        }
        Ok(())
    }

    /// Adds rows `first..first + len` of a sealed chunk's column.
    ///
    /// # Errors
    /// Those of [`Self::add`] and [`Chunk::unpack`].
    pub(super) fn add_rows(
        &mut self,
        name: &str,
        chunk: &Chunk,
        column: usize,
        first: usize,
        len: usize,
    ) -> Result<()> {
        let spec = &chunk.schema().cells[column];
        if spec.dtype.is_string() {
            return Err(not_a_td_error(name, spec));
        }
        let size = spec.bytes();
        let range = first * size..(first + len) * size;
        match chunk.raw(column) {
            Some(raw) => self.add(name, spec, &raw[range]),
            None => self.add(name, spec, &chunk.unpack(column)?[range]),
        }
    }

    /// Returns the priority if `check` accepts it for its table. `name` is the column's name in the item, for error
    /// texts.
    ///
    /// # Errors
    /// Those of `check`.
    pub(super) fn checked_priority(
        self,
        max_weight: f64,
        name: &str,
        check: impl FnOnce(f64) -> Result<()>,
    ) -> Result<f64> {
        let priority = self.priority(max_weight);
        match check(priority) {
            Ok(()) => Ok(priority),
            Err(Error::Priority(reason)) => Err(Error::Priority(format!(
                "the TD errors in {} give an invalid priority: {reason}",
                column_of("the item", name)
            ))),
            Err(error) => Err(error),
        }
    }

    /// Returns `max_weight * largest + (1 - max_weight) * mean`.
    fn priority(self, max_weight: f64) -> f64 {
        max_weight * self.largest + (1.0 - max_weight) * (self.sum / self.count)
    }

    fn add_cells<const N: usize>(&mut self, cells: &[u8], number: impl Fn([u8; N]) -> f64) {
        let (cells, _) = cells.as_chunks();
        for cell in cells {
            let magnitude = number(*cell).abs();
            // `max` ignores NaN, but the sum becomes NaN.
            self.largest = self.largest.max(magnitude);
            self.sum += magnitude;
            self.count += 1.0;
        }
    }
}

fn not_a_td_error(name: &str, spec: &CellSpec) -> Error {
    Error::Priority(format!(
        "TD errors must be one float32, float64, int32 or int64 per step; {} has {}{:?}",
        column_of("the item", name),
        spec.dtype,
        spec.shape.as_slice()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::SelectorKind;
    use smallvec::smallvec;

    fn spec(dtype: DType, shape: &[usize]) -> CellSpec {
        CellSpec {
            dtype,
            shape: shape.into(),
        }
    }

    fn bytes<const N: usize>(cells: &[[u8; N]]) -> Vec<u8> {
        cells.concat()
    }

    #[test]
    fn the_priority_is_a_weighted_sum_of_the_largest_and_the_mean() {
        let all = [
            (
                DType::Float32,
                bytes(&[-3.0_f32, 1.0].map(f32::to_le_bytes)),
            ),
            (
                DType::Float64,
                bytes(&[-3.0_f64, 1.0].map(f64::to_le_bytes)),
            ),
            (DType::Int32, bytes(&[-3_i32, 1].map(i32::to_le_bytes))),
            (DType::Int64, bytes(&[-3_i64, 1].map(i64::to_le_bytes))),
        ];
        for (dtype, cells) in all {
            for shape in [&[][..], &[1], &[1, 1]] {
                let mut stats = TdErrorStats::default();
                let half = cells.len() / 2;
                stats.add("x", &spec(dtype, shape), &cells[..half]).unwrap();
                stats.add("x", &spec(dtype, shape), &cells[half..]).unwrap();
                assert_eq!(stats.priority(1.0).to_bits(), 3.0_f64.to_bits());
                assert_eq!(stats.priority(0.0).to_bits(), 2.0_f64.to_bits());
                assert_eq!(stats.priority(0.25).to_bits(), 2.25_f64.to_bits());
            }
        }
    }

    #[test]
    fn a_nan_td_error_makes_the_priority_nan() {
        for weight in [0.0, 0.5, 1.0] {
            let mut stats = TdErrorStats::default();
            let cells = bytes(&[1.0_f64, f64::NAN, 2.0].map(f64::to_le_bytes));
            stats.add("x", &spec(DType::Float64, &[]), &cells).unwrap();
            assert!(stats.priority(weight).is_nan());
            let check = |priority| SelectorKind::Uniform.check_priority("t", priority);
            let error = stats.checked_priority(weight, "x", check).unwrap_err();
            let text = "the TD errors in column `x` of the item give an invalid priority: priority for table `t` is NaN; \
                        it must be a number";
            assert_eq!(error, Error::Priority(text.into()));
        }
    }

    #[test]
    fn columns_of_other_types_are_rejected() {
        let rule = "TD errors must be one float32, float64, int32 or int64 per step; column `x` \
                    of the item has ";
        for (cell, dtype, shape) in [
            ("int8[]", DType::Int8, &[][..]),
            ("float32[2]", DType::Float32, &[2]),
            ("float64[0]", DType::Float64, &[0]),
        ] {
            let error = TdErrorStats::default().add("x", &spec(dtype, shape), &[]);
            assert_eq!(error.unwrap_err(), Error::Priority(format!("{rule}{cell}")));
        }
        let text = CellSpec {
            dtype: DType::Bytes,
            shape: smallvec![],
        };
        assert!(TdErrorStats::default().add("x", &text, &[]).is_err());
    }

    #[test]
    fn the_td_error_column_must_exist() {
        let priority = PriorityRule::TdError {
            column: 2,
            max_weight: 0.5,
        };
        assert_eq!(priority.check(3), Ok(()));
        assert_eq!(
            priority.check(2).unwrap_err().to_string(),
            "the pattern computes priorities from column 2 of its items; expected a column from 0 \
             to 1"
        );
        assert!(PriorityRule::from(f64::NAN).check(1).is_err());
    }
}
