//! Saves of replay buffers whose machine loses power at any write, and saves that are damaged.

use std::path::Path;
use std::sync::Arc;

use engram_core::ring::{
    EpisodeColumns, OutputColumn, OutputSource, RingItems, StepBuffer, StepBufferOptions,
};
use engram_core::selector::TableRng;
use engram_core::{CellSpec, DType, Layout, Result, Schema, SharedBytes};
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::power_loss_directory::PowerLossDirectory;
use crate::disk::buffer_reader::SavedBuffer;
use crate::disk::buffer_writer::{SaveContents, write};
use crate::disk::directory::ReadableDirectory as _;

const NUM_ENVS: usize = 3;
const LENGTH: usize = 8;

fn schema() -> Arc<Schema> {
    let cell = |dtype, shape: &[usize]| CellSpec {
        dtype,
        shape: shape.iter().copied().collect(),
    };
    let layout = Layout {
        names: ["ended", "x"].map(Into::into).into(),
        structure: r#"{"d":[["ended",0],["x",0]]}"#.into(),
    };
    Arc::new(Schema {
        layout: Arc::new(layout),
        cells: [cell(DType::Bool, &[]), cell(DType::Int32, &[2])].into(),
    })
}

/// A buffer of sequences with priorities.
fn buffer() -> StepBuffer {
    let schema = schema();
    let outputs = schema.cells.iter().enumerate().map(|(column, cell)| {
        let mut cell = cell.clone();
        cell.shape.insert(0, 2);
        OutputColumn {
            source: OutputSource::All(column),
            cell,
            stack: None,
        }
    });
    let options = StepBufferOptions {
        cells: &schema.cells,
        names: &schema.layout.names,
        num_envs: NUM_ENVS,
        length: LENGTH,
        items: RingItems::Sequences {
            length: 2,
            burn_in: 0,
            continues: false,
        },
        outputs: outputs.collect(),
        episode_columns: Some(EpisodeColumns {
            terminated: 0,
            truncated: 0,
        }),
        reward_column: None,
        hindsight: None,
        exponent: Some(0.5),
        recent: None,
        seed: 7,
    };
    StepBuffer::new(&options).unwrap()
}

/// Adds random steps, and changes priorities.
fn change(buffer: &mut StepBuffer, rng: &mut TableRng) {
    let below = |rng: &mut TableRng, n: usize| usize::try_from(rng.next_u64() % n as u64).unwrap();
    for _ in 0..5 {
        let steps = 1 + below(rng, 12);
        let ended: Vec<u8> = (0..steps).map(|_| u8::from(below(rng, 4) == 0)).collect();
        let mut x = vec![0; 8 * steps];
        rng.fill_bytes(&mut x);
        let columns = [SharedBytes::from(&ended[..]), SharedBytes::from(&x[..])];
        buffer.add(&[below(rng, NUM_ENVS)], &columns, steps);
        let keys: Vec<u64> = (0..6).map(|_| below(rng, 40) as u64).collect();
        buffer
            .update_priorities(&keys, &[0.0, 0.5, 1.0, 2.0, 3.0, 4.0])
            .unwrap();
    }
}

/// All that a save contains, as text.
fn describe(buffer: &StepBuffer) -> String {
    let none = Vec::new(); // no device
    let envs = (0..NUM_ENVS).map(|env| {
        let steps = buffer.runs(env, usize::MAX).map(|run| {
            let cells: Vec<&[u8]> = buffer.cells(run, &none).collect();
            let priorities: Vec<f64> = buffer.priorities(run).into_iter().flatten().collect();
            format!(
                "{} {cells:?} {:?} {priorities:?}",
                run.position,
                buffer.flags(run)
            )
        });
        format!(
            "{:?}: {:?}",
            buffer.env_steps(env),
            steps.collect::<Vec<_>>()
        )
    });
    format!("{:?} {:?}", envs.collect::<Vec<_>>(), buffer.rng())
}

fn restored(files: &PowerLossDirectory) -> Result<StepBuffer> {
    let saved = SavedBuffer::read(Path::new("x"), files.open("x").unwrap())?;
    let mut restored = buffer();
    assert!(saved.restore(&mut restored, Vec::new(), &mut || false)?);
    Ok(restored)
}

fn save(files: &PowerLossDirectory, buffer: &StepBuffer, id: u64) -> std::io::Result<Option<u64>> {
    let contents = SaveContents {
        buffer,
        device_cells: &Vec::new(),
        schema: &schema(),
    };
    write(files, "x", contents, id, &mut || false)
}

#[test]
fn a_power_loss_during_a_save_leaves_the_old_or_the_new_one() {
    let mut losses = 0;
    for seed in 0..200 {
        let mut rng = TableRng::seed_from_u64(seed);
        let mut buffer = buffer();
        change(&mut buffer, &mut rng);
        let old = describe(&buffer);
        let files = PowerLossDirectory::from_files(&[]);
        save(&files, &buffer, 1).unwrap();
        change(&mut buffer, &mut rng);
        let new = describe(&buffer);
        files.set_writes_left(rng.next_u64() % 7);
        let saved = save(&files, &buffer, 2);
        let files = files.after_power_loss(&mut rng);
        let left = describe(&restored(&files).unwrap());
        assert!(
            left == new || (left == old && saved.is_err()),
            "seed {seed}"
        );
        losses += u32::from(saved.is_err());
        // The next save removes an unfinished file.
        save(&files, &buffer, 3).unwrap();
        assert_eq!(files.list().unwrap(), ["x"]);
        assert_eq!(describe(&restored(&files).unwrap()), new);
    }
    assert!(losses > 50);
}

#[test]
fn every_flipped_bit_and_every_cut_is_detected() {
    let mut source = buffer();
    change(&mut source, &mut TableRng::seed_from_u64(1));
    let files = PowerLossDirectory::from_files(&[]);
    save(&files, &source, 1).unwrap();
    assert_eq!(describe(&restored(&files).unwrap()), describe(&source));
    let (name, bytes) = files.files().remove(0);
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let files = PowerLossDirectory::from_files(&[(name.clone(), bytes)]);
        match restored(&files) {
            Err(_) => {}
            // Only the padding of records has no checksum.
            Ok(restored) => assert_eq!(describe(&restored), describe(&source), "bit {bit}"),
        }
    }
    for len in 0..bytes.len() {
        let files = PowerLossDirectory::from_files(&[(name.clone(), bytes[..len].to_vec())]);
        assert!(restored(&files).is_err(), "{len} bytes");
    }
}

#[test]
fn a_failed_restore_leaves_the_buffer_empty() {
    let mut source = buffer();
    change(&mut source, &mut TableRng::seed_from_u64(1));
    let files = PowerLossDirectory::from_files(&[]);
    save(&files, &source, 1).unwrap();
    let (name, mut bytes) = files.files().remove(0);
    let damaged = bytes.len() - 60;
    bytes[damaged] ^= 1;
    let read = |bytes: &[u8]| {
        let files = PowerLossDirectory::from_files(&[(name.clone(), bytes.to_vec())]);
        SavedBuffer::read(Path::new("x"), files.open("x").unwrap()).unwrap()
    };
    let (mut target, fresh) = (buffer(), describe(&buffer()));
    let failed = read(&bytes).restore(&mut target, Vec::new(), &mut || false);
    assert!(failed.is_err());
    assert_eq!((describe(&target), target.num_items()), (fresh, 0));
    // New items get the largest priority, not one that the failed restore has read.
    let add = |buffer: &mut StepBuffer| {
        let columns = [
            SharedBytes::from(&[0; 2][..]),
            SharedBytes::from(&[0; 16][..]),
        ];
        buffer.add(&[0], &columns, 2);
    };
    add(&mut target);
    assert_eq!(target.update_priorities(&[0], &[0.25]), Ok(1));
    add(&mut target);
    assert!(
        target
            .draw(50, true)
            .unwrap()
            .priorities
            .iter()
            .all(|priority| *priority <= 0.25)
    );
}
