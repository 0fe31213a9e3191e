//! Chunks of every dtype, delta-encoded or not, decode to the data that was encoded.

#![expect(
    clippy::unwrap_used,
    reason = "test helpers report failures by panicking"
)]

use engram_core::{CellSpec, DType};
use engram_reverb::pb::tensorflow::ChunkTensor;
use engram_reverb::{ChunkDecoder, check_tensor, encode_tensor, pb};
use proptest::prelude::*;

/// dm-reverb's delta encoding: each row but the first minus the row before it.
fn delta_encode(cell: &CellSpec, raw: &[u8]) -> Vec<u8> {
    let is_integer = cell.dtype.name().starts_with("int") || cell.dtype.name().starts_with("uint");
    if !is_integer || cell.shape.is_empty() || cell.bytes() == 0 {
        return raw.to_vec();
    }
    let (size, row) = (cell.dtype.size(), cell.bytes());
    let number = |bytes: &[u8]| {
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(bytes);
        u64::from_le_bytes(wide)
    };
    let elements = raw.chunks(size).enumerate();
    let differences = elements.flat_map(|(index, element)| {
        let before = (index * size).checked_sub(row);
        let before = before.map_or(0, |from| number(&raw[from..from + size]));
        number(element).wrapping_sub(before).to_le_bytes()[..size].to_vec()
    });
    differences.collect()
}

fn chunk(tensors: Vec<ChunkTensor>, delta_encoded: bool) -> pb::ChunkData {
    pb::ChunkData {
        chunk_key: 1,
        delta_encoded,
        data: Some(pb::chunk_data::Data { tensors }),
        ..pb::ChunkData::default()
    }
}

/// A column of a dtype that dm-reverb has too, with cells of up to two axes, and its number of rows.
fn column() -> impl Strategy<Value = (CellSpec, usize)> {
    let dtypes: Vec<DType> = DType::ALL
        .into_iter()
        .filter(|dtype| !dtype.name().starts_with("float8") && *dtype != DType::Text)
        .collect();
    let shape = prop::collection::vec(0_usize..4, 0..3);
    (prop::sample::select(dtypes), shape, 0_usize..40).prop_map(|(dtype, shape, rows)| {
        let shape = shape.into_iter().collect();
        (CellSpec { dtype, shape }, rows)
    })
}

/// The bytes of `rows` random cells. Strings are preceded by their lengths.
fn bytes(cell: &CellSpec, rows: usize, noise: &[u8]) -> Vec<u8> {
    let mut noise = noise.iter().copied().cycle();
    if !cell.dtype.is_string() {
        return noise.take(rows * cell.bytes()).collect();
    }
    let mut out = Vec::new();
    for _ in 0..rows * cell.elements() {
        let len = usize::from(noise.next().unwrap() % 5) * 60;
        out.extend_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
        out.extend(noise.by_ref().take(len));
    }
    out
}

/// The decoded bytes of a chunk's only column.
fn stored(chunk: &engram_core::Chunk) -> Vec<u8> {
    if chunk.schema().cells[0].dtype.is_string() {
        // The cells follow `rows + 1` offsets.
        let rows = chunk.extents()[0].rows as usize;
        return chunk.stored(0)[4 * (rows + 1)..].to_vec();
    }
    chunk.unpack(0).unwrap().to_vec()
}

proptest! {
    #[test]
    fn chunks_decode_to_the_encoded_data(
        (cell, rows) in column(),
        noise in prop::collection::vec(any::<u8>(), 1..200),
        delta in any::<bool>(),
    ) {
        let raw = bytes(&cell, rows, &noise);
        let sent = if delta { delta_encode(&cell, &raw) } else { raw.clone() };
        let tensor = encode_tensor(&cell, rows, &sent).unwrap();
        let chunk = ChunkDecoder::default().decode(&chunk(vec![tensor], delta)).unwrap();
        prop_assert_eq!(chunk.extents()[0].rows as usize, rows);
        prop_assert_eq!(&chunk.schema().cells[0], &cell);
        prop_assert_eq!(stored(&chunk), raw);
    }

    #[test]
    fn random_tensors_never_panic(
        dtype in -1..30,
        sizes in prop::collection::vec(-2_i64..70_000, 0..4),
        content in prop::collection::vec(any::<u8>(), 0..100),
        delta in any::<bool>(),
    ) {
        let cell = CellSpec { dtype: DType::Bool, shape: smallvec::smallvec![] };
        let mut tensor = encode_tensor(&cell, 0, &[]).unwrap();
        tensor.dtype = dtype;
        tensor.tensor_content = content.into();
        let dims = &mut tensor.tensor_shape.as_mut().unwrap().dim;
        let dim = dims[0].clone();
        *dims = sizes.iter().map(|size| {
            let mut dim = dim.clone();
            dim.size = *size;
            dim
        }).collect();
        let _ = check_tensor(&tensor).map(|header| header.rows);
        let _ = ChunkDecoder::default().decode(&chunk(vec![tensor], delta));
    }
}

#[test]
fn delta_decoding_wraps_at_the_integer_width() {
    let cell = CellSpec {
        dtype: DType::Int16,
        shape: smallvec::smallvec![1],
    };
    let raw: Vec<u8> = [i16::MAX, i16::MIN, 0, -1]
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect();
    let sent = delta_encode(&cell, &raw);
    assert_eq!(sent, [0xff, 0x7f, 1, 0, 0, 0x80, 0xff, 0xff]);
    let tensor = encode_tensor(&cell, 4, &sent).unwrap();
    let chunk = ChunkDecoder::default()
        .decode(&chunk(vec![tensor], true))
        .unwrap();
    assert_eq!(stored(&chunk), raw);
}
