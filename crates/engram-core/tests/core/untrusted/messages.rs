//! The error texts for inconsistent chunks and items. Those for cells that do not exist, and for cells that do not form
//! a column, are also tested in `tests/gather.rs`.

use std::sync::Arc;

use engram_core::chunk::Extent;
use engram_core::codec::Codec;
use engram_core::{
    AlignedBytes, CellSpec, Chunk, ChunkBuilder, Compression, Compressor, DType, Error, Layout,
    Origin, Schema, Slice, SpanColumn, Spans, Trajectory, WindowShape,
};
use smallvec::smallvec;

use crate::untrusted::parts::ChunkParts;

fn schema() -> Arc<Schema> {
    let cell = |dtype, shape| CellSpec { dtype, shape };
    Arc::new(Schema {
        layout: Arc::new(Layout {
            names: Box::new(["name".into(), "obs".into()]),
            structure: "".into(),
        }),
        cells: Box::new([
            cell(DType::Bytes, smallvec![]),
            cell(DType::Int32, smallvec![2]),
        ]),
    })
}

/// Three steps of a one-letter string and two numbers.
fn chunk() -> Chunk {
    let mut builder = ChunkBuilder::new(schema(), 3).unwrap();
    for row in 0..3 {
        builder.push_string(0, b"\x01\0\0\0a").unwrap();
        builder.cell_mut(1, row).fill(7);
        builder.commit(1);
    }
    let origin = Origin {
        key: 5,
        episodes: smallvec![9],
        first_step: 0,
        steps: 3,
    };
    let mut compressor = Compressor::new(Compression::Off);
    builder.seal(origin, &mut compressor).unwrap()
}

/// The error for the parts of a good chunk after `change`.
fn error_after(change: impl FnOnce(&mut ChunkParts)) -> Error {
    let mut parts = ChunkParts::of(&chunk());
    change(&mut parts);
    parts.build().unwrap_err()
}

fn invalid(text: &str) -> Error {
    Error::InvalidArgument(text.into())
}

#[test]
fn an_lz4_block_of_too_many_raw_bytes_is_rejected() {
    let packed = |rows: u32| {
        error_after(|parts| {
            parts.payload = vec![0; 9 << 20];
            parts.origin.steps = rows;
            parts.extents[1] = Extent {
                offset: 64,
                stored: 8 << 20,
                rows,
                codec: Codec::Lz4,
            };
            // Three such columns exceed the limit of a chunk, which is checked last: that error shows that each column
            // was accepted.
            parts.extents.push(parts.extents[1]);
            parts.cells.push(parts.cells[1].clone());
            parts.names.push("more".into());
            parts.extents.push(parts.extents[1]);
            parts.cells.push(parts.cells[1].clone());
            parts.names.push("most".into());
        })
    };
    assert_eq!(
        packed(0x7E00_0000 / 8),
        invalid(
            "the columns of a chunk have 6341787679 bytes once decompressed; at most 4294967295 are allowed"
        )
    );
    assert_eq!(
        packed(0x7E00_0000 / 8 + 1),
        invalid(
            "column `obs` has 2113929224 raw bytes in an LZ4 block; at most 2113929216 are allowed, \
             larger columns must be stored raw"
        )
    );
}

#[test]
fn wrong_extents_are_named() {
    let set = |index: usize, extent: Extent| error_after(|parts| parts.extents[index] = extent);
    let obs = Extent {
        offset: 64,
        stored: 24,
        rows: 3,
        codec: Codec::Raw,
    };
    assert_eq!(
        error_after(|parts| parts.extents.truncate(1)),
        invalid("a chunk of 2 columns has 2 names and 1 extent; each column needs one of each")
    );
    assert_eq!(
        set(1, Extent { offset: 128, ..obs }),
        invalid(
            "column `obs` occupies bytes 128..152 of its chunk; the start must be a multiple of 64 and the \
             end at most 128"
        )
    );
    assert_eq!(
        set(1, Extent { offset: 60, ..obs }),
        invalid(
            "column `obs` occupies bytes 60..84 of its chunk; the start must be a multiple of 64 and the \
             end at most 128"
        )
    );
    assert_eq!(
        set(1, Extent { stored: 20, ..obs }),
        invalid("column `obs` has 20 bytes for 3 rows of int32[2], which take 24")
    );
    let packed = Extent {
        stored: 1,
        rows: 40,
        codec: Codec::Lz4,
        ..obs
    };
    assert_eq!(
        set(1, packed),
        invalid("column `obs` has 1 compressed byte for 320 raw bytes; they can hold at most 319")
    );
    assert_eq!(
        error_after(|parts| parts.extents[0].stored = 15),
        invalid("column `name` has 15 bytes for 3 rows of strings; their offsets alone take 16")
    );
    assert_eq!(
        error_after(|parts| parts.extents[0].codec = Codec::Lz4),
        invalid("column `name` has compressed strings; strings must be stored raw")
    );
    for shape in [smallvec![1 << 62, 1 << 62, 0], smallvec![0, 1 << 62]] {
        let text = format!("column `obs` has cells of int32{shape:?}, which are too large");
        assert_eq!(
            error_after(|parts| parts.cells[1].shape = shape),
            invalid(&text)
        );
    }
}

#[test]
fn a_chunk_that_would_decompress_to_too_much_is_rejected() {
    // Many columns with the same stored bytes.
    let stored = 1 << 20;
    let count = 17;
    let cell = CellSpec {
        dtype: DType::Uint8,
        shape: smallvec![255 << 20],
    };
    let names: Vec<Box<str>> = (0..count).map(|index| format!("{index}").into()).collect();
    let schema = Schema {
        layout: Arc::new(Layout {
            names: names.into(),
            structure: "".into(),
        }),
        cells: vec![cell; count].into(),
    };
    let extent = Extent {
        offset: 0,
        stored,
        rows: 1,
        codec: Codec::Lz4,
    };
    let origin = Origin {
        key: 1,
        episodes: smallvec![1],
        first_step: 0,
        steps: 1,
    };
    let payload = AlignedBytes::zeroed(stored as usize).unwrap();
    let extents = smallvec::smallvec![extent; count];
    let error = Chunk::from_parts(origin, Arc::new(schema), extents, payload).unwrap_err();
    assert_eq!(
        error,
        invalid(
            "the columns of a chunk have 4545576960 bytes once decompressed; at most 4294967295 are allowed"
        )
    );
}

#[test]
fn an_origin_that_contradicts_the_rows_is_rejected() {
    let text = |steps: &str, episodes: &str, rows: usize| {
        format!(
            "a chunk of {steps} has 3 rows and {episodes}; it needs at least 1 episode, at most one \
             per row, and at most {rows} rows"
        )
    };
    // The last row may belong to a step that the writer did not complete.
    let mut parts = ChunkParts::of(&chunk());
    parts.origin.steps = 2;
    assert!(parts.build().is_ok());
    assert_eq!(
        error_after(|parts| parts.origin.steps = 1),
        invalid(&text("1 step", "1 episode", 2))
    );
    assert_eq!(
        error_after(|parts| parts.origin.episodes.clear()),
        invalid(&text("3 steps", "0 episodes", 0))
    );
    assert_eq!(
        error_after(|parts| parts.origin.episodes = smallvec![1, 2, 3, 4]),
        invalid(&text("3 steps", "4 episodes", 16))
    );
    assert_eq!(
        error_after(|parts| parts.origin.first_step = u64::MAX - 2),
        invalid(&format!(
            "a chunk has 3 steps from step {} on; step numbers must be below 2^64",
            u64::MAX - 2
        ))
    );
}

#[test]
fn inconsistent_string_columns_are_rejected() {
    // The error text if word `index` of the string column is set to `value`.
    let error_with_word = |index: usize, value: u32| {
        let error = error_after(|parts| {
            parts.payload[index * 4..][..4].copy_from_slice(&value.to_le_bytes());
        });
        assert!(matches!(error, Error::Payload(_)));
        error.to_string()
    };
    let offset = |next: u32, previous: u32, left: u32| {
        format!(
            "column `name` (3 rows of strings) is corrupt: string offset {next} follows {previous}, with {left} bytes \
             left after {previous}; offsets must begin at 0, never decrease and end with the column"
        )
    };
    assert_eq!(error_with_word(0, 5), offset(5, 0, 15));
    assert_eq!(error_with_word(2, 4), offset(4, 5, 10));
    assert_eq!(error_with_word(3, 16), offset(16, 10, 5));
    assert_eq!(
        error_after(|parts| parts.extents[0].stored += 1).to_string(),
        "column `name` (3 rows of strings) has 1 byte after its last cell; it must end there"
    );
    assert_eq!(
        error_with_word(4, 2),
        "column `name` (3 rows of strings) has 5 bytes in row 0, which must be 1 element; an element is a length and \
         that many bytes"
    );
}

/// The error text for a window of the chunk; `good` if the window is accepted.
fn check_window(offset: u32, columns: &[SpanColumn], slices: &[Slice]) -> String {
    let chunk = Arc::new(chunk());
    let shape = WindowShape {
        layout: Arc::clone(&chunk.schema().layout),
        columns: columns.into(),
        slices: slices.into(),
    };
    let item = Trajectory::Window {
        chunk,
        offset,
        shape: Arc::new(shape),
    };
    item.check_parts()
        .map_or_else(|error| error.to_string(), |()| "good".into())
}

#[test]
fn every_slice_of_an_untrusted_window_is_checked() {
    let column = |first_slice, len| SpanColumn {
        first_slice,
        len,
        squeeze: false,
    };
    let slice = |chunk, column, offset, len| Slice {
        chunk,
        column,
        offset,
        len,
    };
    let columns = [column(0, 2), column(1, 2)];
    let name = slice(0, 0, 0, 2);
    let with = |offset, slice| check_window(offset, &columns, &[name, slice]);
    assert_eq!(with(1, slice(0, 1, 0, 2)), "good");
    assert_eq!(
        with(2, slice(0, 1, 0, 2)),
        "column `name` of the item refers to cells 2..4 of a chunk that has 3"
    );
    // The sum of the two offsets saturates.
    assert_eq!(
        with(1, slice(0, 1, u32::MAX, 2)),
        format!(
            "column `obs` of the item refers to cells {}..{} of a chunk that has 3",
            u32::MAX,
            u64::from(u32::MAX) + 2
        )
    );
    assert_eq!(
        with(0, slice(1, 1, 0, 2)),
        "column `obs` of the item refers to column 1 of chunk 1, which does not exist"
    );
    assert_eq!(
        with(0, slice(0, 2, 0, 2)),
        "column `obs` of the item refers to column 2 of chunk 0, which does not exist"
    );
    assert_eq!(
        with(0, slice(0, 1, 0, 1)),
        "column `obs` of the item has length 2, but its slices have 1 cell"
    );
    let slices = [name, slice(0, 1, 0, 2)];
    assert_eq!(
        check_window(0, &[column(0, 2), column(7, 2)], &slices),
        "column `name` of the item consists of slices 0..7, which do not exist; the item has 2, and they must be in \
         the order of the columns"
    );
    assert_eq!(
        check_window(0, &[column(0, 2), column(0, 2)], &slices),
        "column `name` of the item is empty; each column needs at least one cell"
    );
    assert_eq!(
        check_window(0, &[column(1, 2), column(1, 2)], &slices),
        "item has 2 columns, and the first begins at slice 1; an item needs at least one column, and the \
         first must begin at slice 0"
    );
    assert_eq!(
        check_window(0, &columns[..1], &slices),
        "item has 1 column and 2 names; each column needs one"
    );
}

#[test]
fn an_item_that_repeats_its_cells_too_often_is_rejected() {
    // 16 MiB of zeros, stored in about 66 kB and referred to up to 256 times.
    let raw = 16 << 20;
    let schema = Arc::new(Schema {
        layout: Arc::new(Layout {
            names: Box::new(["obs".into()]),
            structure: "".into(),
        }),
        cells: Box::new([CellSpec {
            dtype: DType::Uint8,
            shape: smallvec![raw],
        }]),
    });
    let mut builder = ChunkBuilder::new(Arc::clone(&schema), 1).unwrap();
    builder.commit(0);
    let mut compressor = Compressor::new(Compression::Auto);
    let chunk = Arc::new(builder.seal(Origin::default(), &mut compressor).unwrap());
    assert!(chunk.footprint() < 100_000);
    let item = |times: u32| {
        let slice = Slice {
            chunk: 0,
            column: 0,
            offset: 0,
            len: 1,
        };
        Trajectory::Spans(Arc::new(Spans {
            layout: Arc::clone(&schema.layout),
            chunks: smallvec![Arc::clone(&chunk)],
            columns: Arc::new([SpanColumn {
                first_slice: 0,
                len: times,
                squeeze: false,
            }]),
            slices: vec![slice; times as usize].into(),
        }))
    };
    assert_eq!(item(255).check_parts(), Ok(()));
    assert_eq!(
        item(256).check_parts(),
        Err(invalid(
            "item has 4294967296 bytes in all its columns; at most 4294967295 are allowed"
        ))
    );
}
