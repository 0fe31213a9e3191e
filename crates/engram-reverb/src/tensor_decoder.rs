//! Decodes the tensors of dm-reverb's chunks.
//!
//! A tensor of numbers is one raw Snappy block of little-endian elements in C order. A tensor of strings
//! is not compressed: the lengths of all elements as varints, followed by their bytes end to end.

use engram_core::codec::decode_differences;
use engram_core::{CellSpec, DType};
use prost::encoding::decode_varint;
use tonic::Status;

use crate::dtypes::from_tensorflow;
use crate::pb::tensorflow::ChunkTensor;
use crate::status::invalid;

/// Maximum number of rows of a tensor without elements, which takes no bytes on the wire.
const MAX_EMPTY_ROWS: u32 = 1 << 16;

/// Maximum number of axes of a tensor, including the time axis.
const MAX_AXES: usize = 16;

/// Maximum number of raw bytes of a Snappy block of `stored` bytes: three stored bytes copy at most 64 raw bytes.
fn max_raw_bytes(stored: usize) -> usize {
    stored.saturating_mul(22).saturating_add(64)
}

/// Estimated work of decoding a tensor, in bytes, from its declared number of rows and raw bytes.
pub(crate) fn tensor_decode_work(tensor: &ChunkTensor) -> usize {
    let dims = tensor.tensor_shape.iter().flat_map(|shape| &shape.dim);
    let mut sizes = dims.map(|dim| usize::try_from(dim.size).unwrap_or(0));
    let rows = sizes.next().unwrap_or(0);
    let row_bytes = match from_tensorflow(tensor.dtype) {
        None | Some(DType::Bytes | DType::Text) => 0,
        Some(dtype) => sizes.fold(dtype.size(), usize::saturating_mul),
    };
    let raw = rows
        .saturating_mul(row_bytes)
        .max(tensor.tensor_content.len());
    rows.saturating_add(raw)
}

/// The checked dtype and shape of a tensor, and its encoded bytes.
#[derive(Debug)]
pub struct TensorHeader<'a> {
    /// Dtype and shape of a row.
    pub cell: CellSpec,
    /// Number of rows.
    pub rows: u32,
    content: &'a [u8],
}

/// Checks the dtype and shape of a tensor against its encoded bytes, without decoding them.
///
/// # Errors
/// `INVALID_ARGUMENT` if they are invalid.
pub fn check_tensor(tensor: &ChunkTensor) -> Result<TensorHeader<'_>, Status> {
    let dtype = from_tensorflow(tensor.dtype).ok_or_else(|| {
        invalid(format!(
            "a tensor has TensorFlow's type {}, which Engram does not support",
            tensor.dtype
        ))
    })?;
    let shape = tensor.tensor_shape.as_ref();
    let dims = shape.map_or(&[][..], |shape| &shape.dim);
    let sizes: Option<Vec<usize>> = dims
        .iter()
        .map(|dim| usize::try_from(dim.size).ok())
        .collect();
    let checked = sizes.filter(|sizes| !sizes.is_empty() && sizes.len() <= MAX_AXES);
    let checked = checked.filter(|_| shape.is_some_and(|shape| !shape.unknown_rank));
    let Some((rows, axes)) = checked.as_deref().and_then(<[usize]>::split_first) else {
        let shape = if dims.len() > MAX_AXES {
            format!("{} axes", dims.len())
        } else {
            let sizes: Vec<i64> = dims.iter().map(|dim| dim.size).collect();
            format!("shape {sizes:?}")
        };
        return Err(invalid(format!(
            "a tensor of a chunk has {shape}; expected 1 to {MAX_AXES} axes, time first, no negative size"
        )));
    };
    let cell = CellSpec {
        dtype,
        shape: axes.into(),
    };
    let sizes = u32::try_from(*rows).ok().zip(cell.checked_size());
    let is_bounded = |rows, elements| elements > 0 || rows <= MAX_EMPTY_ROWS;
    let sizes = sizes.filter(|(rows, (elements, _))| is_bounded(*rows, *elements));
    let Some((rows, _)) = sizes else {
        return Err(invalid(format!(
            "a tensor of a chunk has shape {:?}, which is too large; a tensor without elements may \
             have at most {MAX_EMPTY_ROWS} rows",
            checked.unwrap_or_default()
        )));
    };
    let header = TensorHeader {
        cell,
        rows,
        content: &tensor.tensor_content,
    };
    header.check()?;
    Ok(header)
}

impl TensorHeader<'_> {
    /// Number of raw bytes that dtype and shape imply; for strings, the number of elements.
    fn size(&self) -> u64 {
        let per_row = match self.cell.dtype {
            DType::Bytes | DType::Text => self.cell.elements(),
            _ => self.cell.bytes(),
        };
        u64::from(self.rows).saturating_mul(per_row as u64)
    }

    /// Number of rows of a tensor of strings whose rows have no elements; 0 for other tensors. Such rows take no bytes
    /// on the wire, but an offset each in memory.
    pub(crate) fn empty_string_rows(&self) -> usize {
        let is_empty = self.cell.dtype.is_string() && self.cell.elements() == 0;
        if is_empty { self.rows as usize } else { 0 }
    }

    /// Number of encoded bytes.
    pub(crate) fn stored(&self) -> usize {
        self.content.len()
    }

    fn check(&self) -> Result<(), Status> {
        let (size, stored) = (self.size(), self.content.len());
        if self.cell.dtype.is_string() {
            // The length of each string takes at least one byte.
            if size > stored as u64 {
                return Err(invalid(format!(
                    "a tensor of {size} strings has {stored} bytes; each string takes at least one"
                )));
            }
            return Ok(());
        }
        let raw = snap::raw::decompress_len(self.content).map_err(|error| corrupt(&error))?;
        if raw as u64 != size {
            return Err(invalid(format!(
                "a tensor of {} rows of {} has {size} bytes, but its {stored} compressed bytes declare \
                 {raw}",
                self.rows, self.cell
            )));
        }
        if raw > max_raw_bytes(stored) {
            return Err(invalid(format!(
                "the compressed bytes of a tensor are corrupt: {stored} bytes cannot hold the {raw} bytes that they \
                 declare"
            )));
        }
        Ok(())
    }

    /// Decompresses the tensor into `out`, which has exactly its raw size.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if its bytes are corrupt.
    pub fn decompress(&self, out: &mut [u8]) -> Result<(), Status> {
        // The Snappy decoder does not accept an empty output.
        if out.is_empty() {
            return Ok(());
        }
        let read = snap::raw::Decoder::new().decompress(self.content, out);
        match read {
            Ok(len) if len == out.len() => Ok(()),
            Ok(len) => Err(invalid(format!(
                "the compressed bytes of a tensor are corrupt: they have {len} raw bytes, expected {}",
                out.len()
            ))),
            Err(error) => Err(corrupt(&error)),
        }
    }

    /// Undoes dm-reverb's delta encoding, which stores each row as its difference to the row before.
    /// That encoding applies to integer tensors of at least two axes, including time; leaves others unchanged.
    pub fn undo_delta(&self, bytes: &mut [u8]) {
        if !self.cell.shape.is_empty() && self.cell.dtype.is_integer() {
            decode_differences(bytes, &self.cell);
        }
    }

    /// Calls `visit` with every row of strings, encoded as in the engine: each string as a `u32` length
    /// and the bytes.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the lengths do not match the bytes; the errors of `visit`.
    pub fn read_strings(
        &self,
        mut visit: impl FnMut(&[u8]) -> Result<(), Status>,
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
                // The first pass has checked all lengths.
                let len = decode_varint(&mut lengths).unwrap_or(0);
                let (string, later) = bytes.split_at(usize::try_from(len).unwrap_or(0));
                let len =
                    u32::try_from(len).map_err(|_| bad_strings(elements, self.content.len()))?;
                row.extend_from_slice(&len.to_le_bytes());
                row.extend_from_slice(string);
                bytes = later;
            }
            visit(&row)?;
        }
        Ok(())
    }
}

fn bad_strings(elements: usize, bytes: usize) -> Status {
    invalid(format!(
        "the {bytes} bytes of a tensor of {elements} strings are corrupt: expected their lengths \
         followed by the strings' bytes"
    ))
}

fn corrupt(error: &snap::Error) -> Status {
    invalid(format!(
        "the compressed bytes of a tensor are corrupt: {error}"
    ))
}
