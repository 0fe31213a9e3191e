//! One tensor of a chunk, from its compressed bytes.
//!
//! Everything but strings is one raw Snappy block of C-order, little-endian elements. Strings are the
//! lengths of all elements as varints, then their bytes end to end.

use engram_core::{CellSpec, DType};
use prost::encoding::decode_varint;
use tonic::Status;

use crate::dtypes::{dtype_in, is_integer};
use crate::pb::tensorflow::TensorProto;
use crate::status::invalid;

/// Rows that a tensor may have whose cells have no elements: they cost their sender nothing.
const MAX_EMPTY: u32 = 1 << 16;

/// Axes that a tensor may have.
const MAX_AXES: usize = 16;

/// Raw bytes that a Snappy block of so many can hold: a copy of 64 bytes takes 3.
fn most_raw(stored: usize) -> usize {
    stored.saturating_mul(22).saturating_add(64)
}

/// About how much there is to do for a tensor, by what it says of itself: rows and raw bytes.
pub(crate) fn work(tensor: &TensorProto) -> usize {
    let dims = tensor.tensor_shape.iter().flat_map(|shape| &shape.dim);
    let mut sizes = dims.map(|dim| usize::try_from(dim.size).unwrap_or(0));
    let rows = sizes.next().unwrap_or(0);
    let each = match dtype_in(tensor.dtype) {
        None | Some(DType::String) => 0,
        Some(dtype) => sizes.fold(dtype.size(), usize::saturating_mul),
    };
    let raw = rows.saturating_mul(each).max(tensor.tensor_content.len());
    rows.saturating_add(raw)
}

/// What a tensor says of itself, once it was found possible.
#[derive(Debug)]
pub struct Claim<'a> {
    /// Type and shape of a row.
    pub cell: CellSpec,
    /// How many rows.
    pub rows: u32,
    content: &'a [u8],
}

/// Checks what a tensor says of itself against the bytes that it has; takes no memory for them.
///
/// # Errors
/// `INVALID_ARGUMENT` where it cannot be.
pub fn claim(tensor: &TensorProto) -> Result<Claim<'_>, Status> {
    let dtype = dtype_in(tensor.dtype).ok_or_else(|| {
        invalid(format!(
            "a tensor is of TensorFlow's type {}, which Engram does not have",
            tensor.dtype
        ))
    })?;
    let shape = tensor.tensor_shape.as_ref();
    let dims = shape.map_or(&[][..], |shape| &shape.dim);
    let sizes: Option<Vec<usize>> = dims
        .iter()
        .map(|dim| usize::try_from(dim.size).ok())
        .collect();
    let known = sizes.filter(|sizes| !sizes.is_empty() && sizes.len() <= MAX_AXES);
    let known = known.filter(|_| shape.is_some_and(|shape| !shape.unknown_rank));
    let Some((rows, axes)) = known.as_deref().and_then(<[usize]>::split_first) else {
        let first: Vec<i64> = dims.iter().take(8).map(|dim| dim.size).collect();
        return Err(invalid(format!(
            "a tensor of a chunk has {} axes, {first:?}; it has 1 to {MAX_AXES} axes, the first of \
             them time, and no negative size",
            dims.len()
        )));
    };
    let cell = CellSpec {
        dtype,
        shape: axes.into(),
    };
    let sizes = u32::try_from(*rows).ok().zip(cell.checked_size());
    let is_bounded = |rows, elements| elements > 0 || rows <= MAX_EMPTY;
    let sizes = sizes.filter(|(rows, (elements, _))| is_bounded(*rows, *elements));
    let Some((rows, _)) = sizes else {
        return Err(invalid(format!(
            "a tensor of a chunk has shape {:?}; its sizes can be counted, and it has at most \
             {MAX_EMPTY} rows of no elements",
            known.unwrap_or_default()
        )));
    };
    let claim = Claim {
        cell,
        rows,
        content: &tensor.tensor_content,
    };
    claim.check()?;
    Ok(claim)
}

impl Claim<'_> {
    /// Raw bytes, or for strings elements.
    fn size(&self) -> u64 {
        let each = match self.cell.dtype {
            DType::String => self.cell.elements(),
            _ => self.cell.bytes(),
        };
        u64::from(self.rows).saturating_mul(each as u64)
    }

    /// Rows that take memory here, and took none on their way: those of strings have an offset each.
    pub(crate) fn free_rows(&self) -> usize {
        let is_free = self.cell.dtype == DType::String && self.cell.elements() == 0;
        if is_free { self.rows as usize } else { 0 }
    }

    /// Bytes that came for it.
    pub(crate) fn stored(&self) -> usize {
        self.content.len()
    }

    fn check(&self) -> Result<(), Status> {
        let (size, stored) = (self.size(), self.content.len());
        if self.cell.dtype == DType::String {
            // Each has a length of a byte or more.
            if size > stored as u64 {
                return Err(invalid(format!(
                    "a tensor of {size} strings has {stored} bytes, fewer than the strings"
                )));
            }
            return Ok(());
        }
        let raw = snap::raw::decompress_len(self.content).map_err(|error| damaged(&error))?;
        if raw as u64 != size || raw > most_raw(stored) {
            return Err(invalid(format!(
                "a tensor of {} rows of {} takes {size} bytes; {stored} bytes came that say they are \
                 {raw} uncompressed",
                self.rows, self.cell
            )));
        }
        Ok(())
    }

    /// Uncompresses into exactly the bytes that it takes.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` where its bytes are damaged.
    pub fn read(&self, out: &mut [u8]) -> Result<(), Status> {
        // Snappy has no block of nothing that it would write into nothing.
        if out.is_empty() {
            return Ok(());
        }
        let read = snap::raw::Decoder::new().decompress(self.content, out);
        match read {
            Ok(len) if len == out.len() => Ok(()),
            Ok(len) => Err(invalid(format!(
                "a tensor's bytes end after {len} of {}",
                out.len()
            ))),
            Err(error) => Err(damaged(&error)),
        }
    }

    /// Undoes dm-reverb's delta coding where it applies: to integers of two axes or more, time
    /// included. Each row was stored as its difference to the one before.
    pub fn undo_delta(&self, bytes: &mut [u8]) {
        if self.cell.shape.is_empty() || !is_integer(self.cell.dtype) {
            return;
        }
        let row = self.cell.bytes();
        match self.cell.dtype.size() {
            1 => add_up::<1>(bytes, row, |a, b| [a[0].wrapping_add(b[0])]),
            2 => add_up::<2>(bytes, row, |a, b| {
                u16::from_le_bytes(a)
                    .wrapping_add(u16::from_le_bytes(b))
                    .to_le_bytes()
            }),
            4 => add_up::<4>(bytes, row, |a, b| {
                u32::from_le_bytes(a)
                    .wrapping_add(u32::from_le_bytes(b))
                    .to_le_bytes()
            }),
            _ => add_up::<8>(bytes, row, |a, b| {
                u64::from_le_bytes(a)
                    .wrapping_add(u64::from_le_bytes(b))
                    .to_le_bytes()
            }),
        }
    }

    /// Calls `each` with every row of strings, encoded as the engine does: `u32 length, bytes`.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` where the lengths do not fit the bytes; what `each` returns.
    pub fn read_strings(
        &self,
        mut each: impl FnMut(&[u8]) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let elements = usize::try_from(self.size()).unwrap_or(usize::MAX);
        let (mut rest, mut sum) = (self.content, 0_usize);
        for _ in 0..elements {
            let len = decode_varint(&mut rest).ok();
            let len = len.and_then(|len| usize::try_from(len).ok());
            sum = match len.and_then(|len| sum.checked_add(len)) {
                Some(sum) => sum,
                None => return Err(bad_strings(elements, self.content.len())),
            };
        }
        if sum != rest.len() {
            return Err(bad_strings(elements, self.content.len()));
        }
        let (mut lengths, mut bytes) = (self.content, rest);
        let mut row = Vec::new();
        for _ in 0..self.rows {
            row.clear();
            for _ in 0..self.cell.elements() {
                // Found good above.
                let len = decode_varint(&mut lengths).unwrap_or(0);
                let (string, later) = bytes.split_at(usize::try_from(len).unwrap_or(0));
                let len =
                    u32::try_from(len).map_err(|_| bad_strings(elements, self.content.len()))?;
                row.extend_from_slice(&len.to_le_bytes());
                row.extend_from_slice(string);
                bytes = later;
            }
            each(&row)?;
        }
        Ok(())
    }
}

/// Adds to every row the one before it.
fn add_up<const N: usize>(bytes: &mut [u8], row: usize, add: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    for at in (row..bytes.len()).step_by(row.max(1)) {
        let (before, rest) = bytes.split_at_mut(at);
        let before = before.split_at(at - row).1.as_chunks::<N>().0;
        let elements = rest.as_chunks_mut::<N>().0;
        for (element, before) in elements.iter_mut().zip(before) {
            *element = add(*element, *before);
        }
    }
}

fn bad_strings(elements: usize, bytes: usize) -> Status {
    invalid(format!(
        "a tensor of {elements} strings has {bytes} bytes, which are not their lengths and so many \
         bytes"
    ))
}

fn damaged(error: &snap::Error) -> Status {
    invalid(format!("a tensor's bytes are no Snappy block: {error}"))
}
