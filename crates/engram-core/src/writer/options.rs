//! How a writer cuts its steps into chunks, and how long it remembers them.

use super::open_batch::Grouping;
use crate::codec::Compression;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::schema::Schema;

/// A chunk whose length is chosen for it has about so many bytes...
const CHUNK_BYTES: usize = 16 << 10;

/// ...but no more steps than this: items wait until their chunk is full. (28-byte steps take 44
/// bytes and 110 ns each in chunks of 16, 35 and 97 in chunks of 32, 31 and 90 in chunks of 64.)
const CHUNK_STEPS: usize = 16;

/// What one string cell is taken for when lengths are chosen; chunks are cut by what comes.
const STRING_CELL: usize = 256;

/// Environments share chunks while their steps are smaller than this...
const SHARED_STEP_BYTES: usize = 1 << 10;

/// ...up to about this many bytes per chunk.
const SHARED_BYTES: usize = 128 << 10;

/// An item over two chunks costs about so much more than one inside a chunk.
const SPLIT_BYTES: usize = 320;

/// How a writer cuts its steps into chunks, and how long it remembers them.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// Newest steps that items may refer to.
    pub history: u64,
    /// Steps of a chunk; `None`: 1 to 16, about 16 KiB.
    pub chunk_length: Option<usize>,
    /// When to compress columns.
    pub compression: Compression,
}

impl WriterOptions {
    /// Checks that the numbers make sense.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the one that does not.
    pub fn check(&self) -> Result<()> {
        if self.history == 0 {
            return Err(Error::InvalidArgument(
                "history is 0 steps; a writer keeps 1 or more".into(),
            ));
        }
        match self.chunk_length {
            Some(0) => Err(Error::InvalidArgument(
                "chunk_length is 0; a chunk has 1 step or more".into(),
            )),
            Some(length) if u32::try_from(length).is_err() => Err(Error::InvalidArgument(format!(
                "chunk_length is {length}; a chunk has at most {} steps",
                u32::MAX
            ))),
            _ => Ok(()),
        }
    }

    /// Steps for a chunk of this schema.
    pub(super) fn chunk_steps(&self, schema: &Schema) -> usize {
        self.chunk_length
            .unwrap_or_else(|| (CHUNK_BYTES / step_bytes(schema).max(1)).clamp(1, CHUNK_STEPS))
    }

    /// How `envs` environments share chunks of this schema.
    pub(super) fn grouping(&self, schema: &Schema, envs: usize) -> Grouping {
        let (length, step) = (self.chunk_steps(schema), step_bytes(schema).max(1));
        let group = if step < SHARED_STEP_BYTES {
            (SHARED_BYTES / step / length).clamp(1, envs)
        } else {
            1
        };
        Grouping {
            envs,
            group,
            length,
        }
    }

    /// How many steps to copy into the next chunk of `length` steps so that items of `lookback`
    /// steps lie inside it. Each copied step spares one item from lying in two chunks.
    pub(super) fn overlap_steps(&self, schema: &Schema, length: usize, lookback: u64) -> u32 {
        let wanted = lookback.saturating_sub(1);
        let worth = self.chunk_length.is_none()
            && step_bytes(schema) <= SPLIT_BYTES
            && wanted <= length as u64 / 4;
        if worth {
            u32::try_from(wanted).unwrap_or(0)
        } else {
            0
        }
    }
}

/// Bytes of one step, strings estimated.
pub(super) fn step_bytes(schema: &Schema) -> usize {
    let bytes = schema.cells.iter().map(|cell| match cell.dtype {
        DType::String => cell.elements().saturating_mul(STRING_CELL),
        _ => cell.bytes(),
    });
    bytes.fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{CellSpec, Layout};
    use smallvec::smallvec;
    use std::sync::Arc;

    fn options() -> WriterOptions {
        WriterOptions {
            history: 8,
            chunk_length: None,
            compression: Compression::Auto,
        }
    }

    fn schema(elements: usize) -> Schema {
        Schema {
            layout: Arc::new(Layout {
                names: Box::new(["x".into()]),
                structure: "".into(),
            }),
            cells: Box::new([CellSpec {
                dtype: DType::Float32,
                shape: smallvec![elements],
            }]),
        }
    }

    #[test]
    fn chunks_have_a_size_and_carry_what_is_cheap() {
        let lengths = [1, 7, 512, 84 * 84, 1 << 20].map(|n| options().chunk_steps(&schema(n)));
        assert_eq!(lengths, [16, 16, 8, 1, 1]);
        let overlap = |elements, lookback| options().overlap_steps(&schema(elements), 16, lookback);
        assert_eq!(
            [1, 2, 5, 6].map(|lookback| overlap(7, lookback)),
            [0, 1, 4, 0]
        );
        assert_eq!(overlap(100, 2), 0);
        let fixed = WriterOptions {
            chunk_length: Some(3),
            ..options()
        };
        assert_eq!(fixed.chunk_steps(&schema(7)), 3);
        assert_eq!(fixed.overlap_steps(&schema(7), 3, 2), 0);
    }

    #[test]
    fn senseless_numbers_are_refused() {
        let text = |options: WriterOptions| options.check().unwrap_err().to_string();
        let none = WriterOptions {
            history: 0,
            ..options()
        };
        assert_eq!(text(none), "history is 0 steps; a writer keeps 1 or more");
        let empty = WriterOptions {
            chunk_length: Some(0),
            ..options()
        };
        assert_eq!(text(empty), "chunk_length is 0; a chunk has 1 step or more");
        assert_eq!(options().check(), Ok(()));
    }
}
