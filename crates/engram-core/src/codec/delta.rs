//! Delta encoding of integers: the differences between consecutive rows, which compress well if
//! rows change little.

use crate::schema::CellSpec;

/// Delta-encodes `raw`, the rows of a column of `cell`: replaces every row except the first by its difference from
/// the row before it. `None` if the cells are not integers or have no bytes.
pub(super) fn encode_differences(raw: &[u8], cell: &CellSpec) -> Option<Vec<u8>> {
    let (row_bytes, element_size) = (cell.bytes(), cell.dtype.size());
    if !cell.dtype.is_integer() || row_bytes == 0 {
        return None;
    }
    let mut out = raw.to_vec();
    let rows = raw
        .chunks_exact(row_bytes)
        .zip(raw.chunks_exact(row_bytes).skip(1));
    for ((old, new), out) in rows.zip(out.chunks_exact_mut(row_bytes).skip(1)) {
        match element_size {
            1 => set_each(old, new, out, |old, new| {
                u8::wrapping_sub(new[0], old[0]).to_le_bytes()
            }),
            2 => set_each(old, new, out, |old, new| {
                le16(new).wrapping_sub(le16(old)).to_le_bytes()
            }),
            4 => set_each(old, new, out, |old, new| {
                le32(new).wrapping_sub(le32(old)).to_le_bytes()
            }),
            _ => set_each(old, new, out, |old, new| {
                le64(new).wrapping_sub(le64(old)).to_le_bytes()
            }),
        }
    }
    Some(out)
}

/// Decodes delta-encoded rows of integers in place. The bytes must be whole rows.
pub fn decode_differences(bytes: &mut [u8], cell: &CellSpec) {
    let (row_bytes, element_size) = (cell.bytes(), cell.dtype.size());
    if row_bytes == 0 {
        return;
    }
    for start in (row_bytes..bytes.len()).step_by(row_bytes) {
        let (earlier, current) = bytes.split_at_mut(start);
        let (old, current) = (&earlier[start - row_bytes..], &mut current[..row_bytes]);
        match element_size {
            1 => update_each(old, current, |old, new| {
                u8::wrapping_add(new[0], old[0]).to_le_bytes()
            }),
            2 => update_each(old, current, |old, new| {
                le16(new).wrapping_add(le16(old)).to_le_bytes()
            }),
            4 => update_each(old, current, |old, new| {
                le32(new).wrapping_add(le32(old)).to_le_bytes()
            }),
            _ => update_each(old, current, |old, new| {
                le64(new).wrapping_add(le64(old)).to_le_bytes()
            }),
        }
    }
}

fn le16(bytes: [u8; 2]) -> u16 {
    u16::from_le_bytes(bytes)
}

fn le32(bytes: [u8; 4]) -> u32 {
    u32::from_le_bytes(bytes)
}

fn le64(bytes: [u8; 8]) -> u64 {
    u64::from_le_bytes(bytes)
}

/// Sets each element of `out` to `combine` of the elements of `old` and `new`.
fn set_each<const N: usize>(
    old: &[u8],
    new: &[u8],
    out: &mut [u8],
    combine: impl Fn([u8; N], [u8; N]) -> [u8; N],
) {
    let (old, new) = (old.as_chunks().0, new.as_chunks().0);
    for ((old, new), out) in old.iter().zip(new).zip(out.as_chunks_mut().0) {
        *out = combine(*old, *new);
    }
}

/// Replaces each element of `current` by `combine` of the elements of `old` and `current`.
fn update_each<const N: usize>(
    old: &[u8],
    current: &mut [u8],
    combine: impl Fn([u8; N], [u8; N]) -> [u8; N],
) {
    for (old, current) in old.as_chunks().0.iter().zip(current.as_chunks_mut().0) {
        *current = combine(*old, *current);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    #[test]
    fn delta_encoding_round_trips_for_every_dtype() {
        let noise: Vec<u8> = (0..240_u32)
            .map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3])
            .collect();
        for dtype in DType::ALL {
            let cell = CellSpec {
                dtype,
                shape: [3].into_iter().collect(),
            };
            let Some(mut packed) = encode_differences(&noise, &cell) else {
                assert!(!dtype.is_integer());
                continue;
            };
            assert_ne!(packed, noise);
            assert_eq!(packed[..cell.bytes()], noise[..cell.bytes()]);
            decode_differences(&mut packed, &cell);
            assert_eq!(packed, noise, "{dtype}");
        }
        let cell = CellSpec {
            dtype: DType::Uint16,
            shape: [1].into_iter().collect(),
        };
        let packed = encode_differences(&[1, 0, 0, 0, 0, 1], &cell).unwrap();
        assert_eq!(packed, [1, 0, 255, 255, 0, 1]);
    }

    #[test]
    fn cells_without_bytes_are_unchanged() {
        let cell = CellSpec {
            dtype: DType::Int32,
            shape: [0].into_iter().collect(),
        };
        assert_eq!(encode_differences(&[], &cell), None);
        decode_differences(&mut [], &cell);
    }
}
