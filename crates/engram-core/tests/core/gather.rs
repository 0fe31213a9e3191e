//! Gathered batches have the bytes of the cells they were gathered from.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test helpers report failures by panicking; sizes are small"
)]

use std::sync::Arc;

use engram_core::gather::{Column, ColumnData, Columns, LengthPolicy, TimeAxis, gather};
use engram_core::pool::Pool;
use engram_core::{
    CellSpec, Chunk, ChunkBuilder, Compression, Compressor, DType, Error, Layout, Origin, Result,
    Schema, Slice, SpanColumn, Spans, Trajectory,
};
use smallvec::smallvec;

/// Bytes of an observation, in most tests.
const OBS: usize = 5;

fn schema(obs: usize) -> Arc<Schema> {
    schema_with_names(&["action", "name", "obs"], obs)
}

/// A schema with columns of these names.
fn schema_with_names(names: &[&str], obs: usize) -> Arc<Schema> {
    let cell = |dtype, shape| CellSpec { dtype, shape };
    Arc::new(Schema {
        layout: Arc::new(Layout {
            names: names.iter().map(|name| Box::from(*name)).collect(),
            structure: "".into(),
        }),
        cells: Box::new([
            cell(DType::Int32, smallvec![]),
            cell(DType::Bytes, smallvec![]),
            cell(DType::Uint8, smallvec![obs]),
        ]),
    })
}

fn action(step: usize) -> [u8; 4] {
    (step as u32 * 1_000_003).to_le_bytes()
}

fn name(step: usize) -> Vec<u8> {
    let text = "x".repeat(step % 4) + &step.to_string();
    let mut cell = (text.len() as u32).to_le_bytes().to_vec();
    cell.extend_from_slice(text.as_bytes());
    cell
}

fn obs(step: usize, size: usize) -> Vec<u8> {
    (0..size)
        .map(|byte| ((step * 7 + byte / 64) % 251) as u8 + 1)
        .collect()
}

/// A chunk of the steps `first..first + steps`.
fn chunk_of(
    schema: Arc<Schema>,
    first: usize,
    steps: usize,
    compression: Compression,
) -> Arc<Chunk> {
    let size = schema.cells[2].bytes();
    let mut builder = ChunkBuilder::new(schema, steps).unwrap();
    for row in 0..steps {
        builder
            .cell_mut(0, row)
            .copy_from_slice(&action(first + row));
        builder.commit(0);
        builder.push_string(1, &name(first + row)).unwrap();
        builder
            .cell_mut(2, row)
            .copy_from_slice(&obs(first + row, size));
        builder.commit(2);
    }
    let origin = Origin::default();
    Arc::new(
        builder
            .seal(origin, &mut Compressor::new(compression))
            .unwrap(),
    )
}

fn chunk(first: usize, steps: usize) -> Arc<Chunk> {
    chunk_of(schema(OBS), first, steps, Compression::Off)
}

fn rows(chunk: &Arc<Chunk>, offset: u32, len: u32) -> Trajectory {
    Trajectory::Rows {
        chunk: Arc::clone(chunk),
        offset,
        len,
        squeeze: false,
    }
}

/// One column of an item: true if it is squeezed, and its slices as (chunk, offset, length).
type ColumnSlices<'a> = (bool, &'a [(u32, u32, u32)]);

/// An item whose columns consist of these slices.
fn spans(chunks: &[Arc<Chunk>], columns: [ColumnSlices<'_>; 3]) -> Trajectory {
    let mut slices = Vec::new();
    let columns = columns
        .iter()
        .zip(0_u32..)
        .map(|((squeeze, column_slices), column)| {
            let first_slice = slices.len() as u32;
            slices.extend(column_slices.iter().map(|&(chunk, offset, len)| Slice {
                chunk,
                column,
                offset,
                len,
            }));
            SpanColumn {
                first_slice,
                len: column_slices.iter().map(|slice| slice.2).sum(),
                squeeze: *squeeze,
            }
        });
    let columns = columns.collect();
    Trajectory::Spans(Arc::new(Spans {
        layout: Arc::clone(&chunks[0].schema().layout),
        chunks: chunks.into(),
        columns,
        slices: slices.into(),
    }))
}

fn bytes(column: &Column) -> &[u8] {
    match &column.data {
        ColumnData::Bytes(bytes) => bytes,
        ColumnData::Strings(bytes) => bytes,
    }
}

/// Checks that each column has the cells of these steps, one after the other.
fn expect_steps(columns: &Columns, steps: [&[usize]; 3]) {
    let actions: Vec<u8> = steps[0].iter().flat_map(|step| action(*step)).collect();
    let names: Vec<u8> = steps[1].iter().flat_map(|step| name(*step)).collect();
    let pixels = columns.columns[2].cell.bytes();
    let observations: Vec<u8> = steps[2]
        .iter()
        .flat_map(|step| obs(*step, pixels))
        .collect();
    assert_eq!(bytes(&columns.columns[0]), actions);
    assert_eq!(bytes(&columns.columns[1]), names);
    assert!(bytes(&columns.columns[2]) == observations);
}

fn gathered(items: &[Trajectory], length_policy: LengthPolicy) -> Result<Columns> {
    gather(items, length_policy, &Arc::default())
}

#[test]
fn rows_of_equal_length_have_an_even_time_axis() {
    let chunk = chunk(10, 6);
    let items = [rows(&chunk, 0, 2), rows(&chunk, 3, 2), rows(&chunk, 1, 2)];
    let columns = gathered(&items, LengthPolicy::Ragged).unwrap();
    let steps = [10, 11, 13, 14, 11, 12];
    expect_steps(&columns, [&steps; 3]);
    assert!(
        columns
            .columns
            .iter()
            .all(|column| column.time == TimeAxis::Even(2))
    );
    assert_eq!(&*columns.layout.names[2], "obs");
}

#[test]
fn spans_join_slices_of_several_chunks() {
    let chunks = [chunk(0, 3), chunk(3, 3), chunk(6, 2)];
    let item = spans(
        &chunks,
        [
            (false, &[(0, 2, 1), (1, 0, 3), (2, 0, 1)]),
            (true, &[(2, 1, 1)]),
            (false, &[(2, 0, 1), (0, 0, 1), (0, 0, 1)]),
        ],
    );
    let items = [item.clone(), item];
    let columns = gathered(&items, LengthPolicy::Ragged).unwrap();
    let twice = |steps: &[usize]| [steps, steps].concat();
    expect_steps(
        &columns,
        [&twice(&[2, 3, 4, 5, 6]), &twice(&[7]), &twice(&[6, 0, 0])],
    );
    let times: Vec<&TimeAxis> = columns.columns.iter().map(|column| &column.time).collect();
    assert_eq!(
        times,
        [&TimeAxis::Even(5), &TimeAxis::Squeezed, &TimeAxis::Even(3)]
    );
}

#[test]
fn items_of_different_lengths_are_ragged_or_padded() {
    let chunk = chunk(0, 8);
    let items = [rows(&chunk, 0, 1), rows(&chunk, 1, 3), rows(&chunk, 4, 2)];
    let ragged = gathered(&items, LengthPolicy::Ragged).unwrap();
    expect_steps(&ragged, [&[0, 1, 2, 3, 4, 5]; 3]);
    assert_eq!(ragged.columns[1].time, TimeAxis::Ragged(vec![0, 1, 4, 6]));
    let padded = gathered(&items, LengthPolicy::Pad).unwrap();
    let time = TimeAxis::Padded {
        longest: 3,
        lengths: vec![1, 3, 2],
    };
    assert!(padded.columns.iter().all(|column| column.time == time));
    let cells = [
        Some(0),
        None,
        None,
        Some(1),
        Some(2),
        Some(3),
        Some(4),
        Some(5),
        None,
    ];
    let text = |cell: Option<usize>| cell.map_or(vec![0; 4], name);
    let strings: Vec<u8> = cells.into_iter().flat_map(text).collect();
    assert_eq!(bytes(&padded.columns[1]), strings);
    let pixels = |cell: Option<usize>| cell.map_or(vec![0; OBS], |step| obs(step, OBS));
    let pixels: Vec<u8> = cells.into_iter().flat_map(pixels).collect();
    assert_eq!(bytes(&padded.columns[2]), pixels);
}

#[test]
fn padding_in_a_reused_buffer_is_zero() {
    let pool = Arc::new(Pool::default());
    let wide = chunk_of(schema(50_000), 0, 4, Compression::Off);
    let first = gather(
        &[rows(&wide, 0, 4), rows(&wide, 0, 4)],
        LengthPolicy::Pad,
        &pool,
    )
    .unwrap();
    let address = bytes(&first.columns[2]).as_ptr();
    drop(first);
    let items = [rows(&wide, 0, 1), rows(&wide, 0, 4)];
    let padded = gather(&items, LengthPolicy::Pad, &pool).unwrap();
    assert_eq!(
        bytes(&padded.columns[2]).as_ptr(),
        address,
        "the buffer is reused"
    );
    let (short, long) = bytes(&padded.columns[2]).split_at(4 * 50_000);
    assert!(short[..50_000] == obs(0, 50_000) && long[150_000..] == obs(3, 50_000));
    assert!(short[50_000..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_large_batch_is_the_same_in_parallel() {
    let wide = chunk_of(schema(30_000), 0, 40, Compression::Off);
    let packed = chunk_of(schema(30_000), 40, 40, Compression::Auto);
    let item = |index: u32| {
        let chunk = if index.is_multiple_of(3) {
            &packed
        } else {
            &wide
        };
        rows(chunk, index % 30, 1 + index % 5)
    };
    let items: Vec<Trajectory> = (0..203).map(item).collect();
    for length_policy in [LengthPolicy::Ragged, LengthPolicy::Pad] {
        let all = gathered(&items, length_policy).unwrap();
        assert!(
            bytes(&all.columns[2]).len() > 4 << 20,
            "large enough to be copied in parallel"
        );
        for (i, item) in items.iter().enumerate() {
            let alone = gathered(std::slice::from_ref(item), LengthPolicy::Ragged).unwrap();
            for index in [0, 2] {
                let (column, size) = (&all.columns[index], all.columns[index].cell.bytes());
                let start = match &column.time {
                    TimeAxis::Ragged(splits) => usize::try_from(splits[i]).unwrap(),
                    TimeAxis::Padded { longest, .. } => i * longest,
                    time => panic!("{time:?}"),
                };
                let expected = bytes(&alone.columns[index]);
                assert!(bytes(column)[start * size..].starts_with(expected));
            }
        }
    }
}

#[test]
fn compressed_columns_are_unpacked() {
    let packed = chunk_of(schema(2_000), 0, 30, Compression::Auto);
    assert!(packed.footprint() < 30_000, "the chunk is compressed");
    let items: Vec<Trajectory> = (0..29).map(|index| rows(&packed, index, 2)).collect();
    let steps: Vec<usize> = (0..29).flat_map(|index| [index, index + 1]).collect();
    expect_steps(
        &gathered(&items, LengthPolicy::Ragged).unwrap(),
        [&steps; 3],
    );
}

#[test]
fn strings_count_towards_the_limit_of_a_batch() {
    let cell = CellSpec {
        dtype: DType::Bytes,
        shape: smallvec![],
    };
    let schema = Schema {
        layout: Arc::new(Layout {
            names: Box::new(["a".into(), "b".into()]),
            structure: "".into(),
        }),
        cells: Box::new([cell.clone(), cell]),
    };
    let mut builder = ChunkBuilder::new(Arc::new(schema), 1).unwrap();
    let text = [&[96, 0, 0, 0], &[b'x'; 96][..]].concat();
    builder.push_string(0, &text).unwrap();
    builder.push_string(1, &text).unwrap();
    let mut compressor = Compressor::new(Compression::Off);
    let chunk = Arc::new(builder.seal(Origin::default(), &mut compressor).unwrap());
    let gather_within = |max_bytes| {
        let item = rows(&chunk, 0, 1);
        gather(
            &[item],
            LengthPolicy::Ragged,
            &Arc::new(Pool::with_max_batch(max_bytes)),
        )
    };
    assert_eq!(bytes(&gather_within(200).unwrap().columns[1]), text);
    assert_eq!(
        gather_within(199).unwrap_err().to_string(),
        "a batch of 1 item takes at least 200 bytes, but at most 199 are allowed; sample fewer items at once"
    );
}

/// The error text for items that cannot form one batch.
fn rejection(items: &[Trajectory]) -> String {
    match gathered(items, LengthPolicy::Pad).unwrap_err() {
        Error::Signature(text) => text,
        error => panic!("{error:?}"),
    }
}

#[test]
fn items_that_cannot_form_one_batch_are_named() {
    let narrow = rows(&chunk(0, 3), 0, 1);
    let wide = rows(&chunk_of(schema(7), 0, 3, Compression::Off), 0, 1);
    assert_eq!(
        rejection(&[narrow.clone(), wide]),
        "column `obs` is uint8[5] with time axis in one item and uint8[7] with time axis in \
         another: such items cannot form one batch; sample them one by one, or create the table \
         with a `signature` with fixed sizes, so that it rejects items that differ"
    );
    let squeezed = Trajectory::Rows {
        chunk: chunk(0, 3),
        offset: 0,
        len: 1,
        squeeze: true,
    };
    assert_eq!(
        rejection(&[narrow.clone(), squeezed]),
        "column `action` is int32[] with time axis in one item and int32[] without time axis in \
         another: such items cannot form one batch; sample them one by one, or create the table \
         with a `signature` with fixed sizes, so that it rejects items that differ"
    );
    let swapped = schema_with_names(&["action", "title", "obs"], OBS);
    let swapped = rows(&chunk_of(swapped, 0, 3, Compression::Off), 0, 1);
    assert_eq!(
        rejection(&[narrow.clone(), swapped]),
        "items with columns `action`, `name`, `obs` and items with columns `action`, `title`, `obs` \
         cannot form one batch; sample them one by one, or create the table \
         with a `signature` with fixed sizes, so that it rejects items that differ"
    );
    let error = gathered(&[], LengthPolicy::Pad).unwrap_err();
    assert_eq!(error.to_string(), "a batch needs at least one item");
}

#[test]
fn an_item_that_refers_to_missing_cells_is_rejected() {
    let chunks = [chunk(0, 3), chunk_of(schema(7), 3, 3, Compression::Off)];
    let text = |item: Trajectory| item.check_slices().unwrap_err().to_string();
    assert_eq!(rows(&chunks[0], 1, 2).check_slices(), Ok(()));
    assert_eq!(
        text(rows(&chunks[0], 2, 2)),
        "column `action` of the item refers to cells 2..4 of a chunk that has 3"
    );
    assert_eq!(
        text(rows(&chunks[0], 1, 0)),
        "column `action` of the item is empty; each column needs at least one cell"
    );
    let one: &[(u32, u32, u32)] = &[(0, 0, 1)];
    let both: &[(u32, u32, u32)] = &[(0, 0, 1), (1, 0, 1)];
    let item = spans(&chunks, [(false, both), (false, both), (false, one)]);
    assert_eq!(item.check_slices(), Ok(()));
    assert_eq!(
        text(spans(&chunks, [(false, one), (false, one), (false, both)])),
        "column `obs` of the item joins cells of uint8[5] and uint8[7]; all cells of a column must have one dtype and shape"
    );
    assert_eq!(
        text(spans(&chunks, [(false, one), (true, both), (false, one)])),
        "column `name` of the item has no time axis, but 2 cells; without a time axis it must have 1"
    );
    assert_eq!(
        text(spans(&chunks, [(false, one), (false, &[]), (false, one)])),
        "column `name` of the item is empty; each column needs at least one cell"
    );
}
