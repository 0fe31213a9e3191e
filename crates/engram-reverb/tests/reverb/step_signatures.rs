//! Items of one step in tables whose signature has no time axes.

#![expect(
    clippy::unwrap_used,
    reason = "test helpers report failures by panicking"
)]

use std::sync::Arc;

use engram_core::{CellSpec, ColumnSpec, DType, NewItem, Signature, TableOptions};
use engram_reverb::{ChunkDecoder, ChunksByKey, decode_item, encode_tensor, pb};
use engram_testkit::table_options;
use pb::flat_trajectory::{ChunkSlice, Column};
use smallvec::smallvec;

/// Options of a table whose signature has the columns `x`, of this shape, and `y`, without axes.
fn options(x: &[Option<usize>]) -> TableOptions {
    let column = |name: &str, shape: &[Option<usize>]| ColumnSpec {
        name: name.into(),
        dtype: DType::Float32,
        shape: shape.into(),
    };
    TableOptions {
        signature: Some(Arc::new(Signature {
            columns: Box::new([column("x", x), column("y", &[])]),
            structure: r#"{"d":[["x",0],["y",0]]}"#.into(),
        })),
        ..table_options("t")
    }
}

/// Decodes an item of the first `steps` rows of a chunk whose columns have cells of shape [2] and [].
fn item(options: &TableOptions, steps: i32, squeeze: bool) -> NewItem {
    let cells = [smallvec![2], smallvec![]].map(|shape| CellSpec {
        dtype: DType::Float32,
        shape,
    });
    let tensors = cells.map(|cell| encode_tensor(&cell, 3, &vec![0; 3 * cell.bytes()]).unwrap());
    let chunk = pb::ChunkData {
        chunk_key: 1,
        data: Some(pb::chunk_data::Data {
            tensors: tensors.into(),
        }),
        ..pb::ChunkData::default()
    };
    let columns = (0..2).map(|index| Column {
        chunk_slices: vec![ChunkSlice {
            chunk_key: 1,
            offset: 0,
            length: steps,
            index,
        }],
        squeeze,
    });
    let message = pb::PrioritizedItem {
        key: 5,
        priority: 1.0,
        flat_trajectory: Some(pb::FlatTrajectory {
            columns: columns.collect(),
        }),
        ..pb::PrioritizedItem::default()
    };
    let mut decoder = ChunkDecoder::default();
    let by_key = ChunksByKey::from([(1, Arc::new(decoder.decode(&chunk).unwrap()))]);
    decode_item(&mut decoder, &by_key, options, &message).unwrap()
}

#[test]
fn a_step_loses_the_time_axis_that_its_signature_lacks() {
    let step = options(&[Some(2)]);
    for squeeze in [false, true] {
        let item = item(&step, 1, squeeze);
        assert!(item.trajectory.column(0).squeeze && item.trajectory.column(1).squeeze);
        step.check_item(&item).unwrap();
    }
}

#[test]
fn other_items_keep_their_time_axes() {
    for (x, steps) in [
        (&[Some(2)][..], 2),
        (&[None, Some(2)], 1),
        (&[Some(1), Some(2)], 1),
    ] {
        let options = options(x);
        let item = item(&options, steps, false);
        assert!(!item.trajectory.column(0).squeeze);
        assert!(!item.trajectory.column(1).squeeze);
        let error = options.check_item(&item).unwrap_err().to_string();
        assert!(
            error.starts_with("item does not match the signature of table `t`: "),
            "{error}"
        );
    }
}
