//! How the priority of an item is found.

use super::refusal::check_priority;
use crate::chunk::Chunk;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::schema::CellSpec;

/// How the priority of a pattern's items is found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PriorityRule {
    /// Always this one.
    Constant(f64),
    /// `max_weight * max|x| + (1 - max_weight) * mean|x|` over the steps of a column.
    TdError {
        /// The item's column that has them, one number per step.
        column: usize,
        /// Of the largest; the mean has what is left to 1.
        max_weight: f64,
    },
}

impl From<f64> for PriorityRule {
    fn from(priority: f64) -> Self {
        Self::Constant(priority)
    }
}

impl PriorityRule {
    /// Checks it for items of so many columns.
    pub(super) fn check(self, columns: usize) -> Result<()> {
        match self {
            Self::Constant(priority) => check_priority(priority),
            Self::TdError { column, .. } if column >= columns => {
                Err(Error::InvalidArgument(format!(
                    "pattern finds priorities in column {column} of its items, which have the \
                     columns 0 to {}",
                    columns - 1
                )))
            }
            Self::TdError { .. } => Ok(()),
        }
    }
}

/// TD errors without their signs, as they come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    largest: f64,
    sum: f64,
    count: f64,
}

impl Sizes {
    /// Takes the cells of a run, end to end.
    ///
    /// # Errors
    /// [`Error::Priority`] when they are not one number each; `name` is what the item calls them.
    pub(super) fn add(&mut self, name: &str, spec: &CellSpec, cells: &[u8]) -> Result<()> {
        if spec.elements() != 1 {
            return Err(not_scalar(name, spec));
        }
        match spec.dtype {
            DType::Float32 => self.all(cells, |cell| f32::from_le_bytes(cell).into()),
            DType::Float64 => self.all(cells, f64::from_le_bytes),
            DType::Int32 => self.all(cells, |cell| i32::from_le_bytes(cell).into()),
            #[expect(
                clippy::cast_precision_loss,
                reason = "priorities are floats, of TD errors far below 2^53"
            )]
            DType::Int64 => self.all(cells, |cell| i64::from_le_bytes(cell) as f64),
            _ => return Err(not_scalar(name, spec)),
        }
        Ok(())
    }

    /// Takes rows `first..first + len` of a sealed chunk's column.
    ///
    /// # Errors
    /// As [`Self::add`], or when the bytes cannot be had.
    pub(super) fn add_rows(
        &mut self,
        name: &str,
        chunk: &Chunk,
        column: usize,
        first: usize,
        len: usize,
    ) -> Result<()> {
        let spec = &chunk.schema().cells[column];
        if spec.dtype == DType::String {
            return Err(not_scalar(name, spec));
        }
        let size = spec.bytes();
        let wanted = first * size..(first + len) * size;
        let pinned = chunk.payload().pin()?;
        match chunk.raw(&pinned, column) {
            Some(raw) => self.add(name, spec, &raw[wanted]),
            None => self.add(name, spec, &chunk.unpack(&pinned, column)?[wanted]),
        }
    }

    /// Their largest and their mean, weighed.
    pub(super) fn priority(self, max_weight: f64) -> f64 {
        max_weight * self.largest + (1.0 - max_weight) * (self.sum / self.count)
    }

    fn all<const N: usize>(&mut self, cells: &[u8], number: impl Fn([u8; N]) -> f64) {
        let (cells, _) = cells.as_chunks();
        for cell in cells {
            let size = number(*cell).abs();
            // One that is NaN is not the largest; it makes the sum NaN.
            self.largest = self.largest.max(size);
            self.sum += size;
            self.count += 1.0;
        }
    }
}

/// What column `name` of an item has is no TD error.
fn not_scalar(name: &str, spec: &CellSpec) -> Error {
    Error::Priority(format!(
        "TD error expects one float32, float64, int32 or int64 per step; column `{name}` of the \
         item has {}{:?}",
        spec.dtype,
        spec.shape.as_slice()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn the_largest_and_the_mean_are_weighed() {
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
                let mut sizes = Sizes::default();
                let half = cells.len() / 2;
                sizes.add("x", &spec(dtype, shape), &cells[..half]).unwrap();
                sizes.add("x", &spec(dtype, shape), &cells[half..]).unwrap();
                assert_eq!(sizes.priority(1.0).to_bits(), 3.0_f64.to_bits());
                assert_eq!(sizes.priority(0.0).to_bits(), 2.0_f64.to_bits());
                assert_eq!(sizes.priority(0.25).to_bits(), 2.25_f64.to_bits());
            }
        }
    }

    #[test]
    fn one_that_is_nan_makes_the_priority_nan() {
        for weight in [0.0, 0.5, 1.0] {
            let mut sizes = Sizes::default();
            let cells = bytes(&[1.0_f64, f64::NAN, 2.0].map(f64::to_le_bytes));
            sizes.add("x", &spec(DType::Float64, &[]), &cells).unwrap();
            assert!(sizes.priority(weight).is_nan());
        }
    }

    #[test]
    fn other_columns_are_refused() {
        let rule = "TD error expects one float32, float64, int32 or int64 per step; column `x` \
                    of the item has ";
        for (found, dtype, shape) in [
            ("int8[]", DType::Int8, &[][..]),
            ("float32[2]", DType::Float32, &[2]),
            ("float64[0]", DType::Float64, &[0]),
        ] {
            let error = Sizes::default().add("x", &spec(dtype, shape), &[]);
            assert_eq!(
                error.unwrap_err(),
                Error::Priority(format!("{rule}{found}"))
            );
        }
        let text = CellSpec {
            dtype: DType::String,
            shape: smallvec![],
        };
        assert!(Sizes::default().add("x", &text, &[]).is_err());
    }

    #[test]
    fn the_column_is_one_of_the_items() {
        let priority = PriorityRule::TdError {
            column: 2,
            max_weight: 0.5,
        };
        assert_eq!(priority.check(3), Ok(()));
        assert_eq!(
            priority.check(2).unwrap_err().to_string(),
            "pattern finds priorities in column 2 of its items, which have the columns 0 to 1"
        );
        assert!(PriorityRule::from(f64::NAN).check(1).is_err());
    }
}
