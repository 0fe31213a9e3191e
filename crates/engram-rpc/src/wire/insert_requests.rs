//! Chunks and items on their way to a server: everything is said once per connection.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use bytes::{BufMut, Bytes, BytesMut};
use engram_core::codec::Codec;
use engram_core::{
    Chunk, Error, NewItem, Payload, Result, Schema, Slice, SpanColumn, Trajectory, WindowShape,
};
use prost::Message as _;

use super::received_dictionary::MAX_SLICES;
use super::{encode_cell, encode_layout, encode_numbers};
use crate::pb::{self, items::Trajectories};
use crate::{PART_BYTES, wire};

/// Shapes and schemas that are remembered; beyond, all are said anew.
const REMEMBERED: usize = 4096;

/// Bytes of chunks after which the server is told which it may forget.
const SWEEP: usize = 128 << 20;

/// Chunks in use, and as many that nobody refers to any more, beyond which the server is told to forget them: it keeps
/// 65,536.
const MOST_CHUNKS: usize = 16_384;

/// Bytes of chunks in use, beyond which the server is told to forget them: it keeps 1 GiB that no table has.
const MOST_KEPT: usize = 256 << 20;

/// Slices after which a message is sent. One item more has far fewer than the rest allows.
const SLICES: usize = MAX_SLICES / 2;

/// Bytes and number of one item's chunks: with those kept before, fewer than a server keeps.
const MOST_ITEM: (usize, usize) = (640 << 20, 16_384);

/// Runs of cells of one item: they go in one message.
const MOST_RUNS: usize = 120_000;

/// Checks that an item can be sent at all.
///
/// # Errors
/// [`Error::InvalidArgument`] for one that no server would take.
pub fn check_sendable(item: &NewItem) -> Result<()> {
    let chunks = item.trajectory.chunks();
    let bytes: usize = chunks.iter().map(|chunk| chunk.payload().len()).sum();
    let runs = match &item.trajectory {
        Trajectory::Rows { .. } => 0,
        Trajectory::Window { shape, .. } => shape.slices.len(),
        Trajectory::Spans(spans) => spans.slices.len(),
    };
    let (most_bytes, most_chunks) = MOST_ITEM;
    if bytes <= most_bytes && chunks.len() <= most_chunks && runs <= MOST_RUNS {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "an item with {bytes} bytes in its {} chunks, and {runs} runs of cells, cannot be sent to a server; at most \
         {most_bytes} bytes, {most_chunks} chunks and {MOST_RUNS} runs can: make smaller items or longer chunks",
        chunks.len()
    )))
}

/// What the server at the other end has been told.
#[derive(Debug, Default)]
pub struct SentDictionary {
    chunks: HashMap<usize, (u32, Weak<Chunk>)>,
    /// Look for chunks that nobody refers to once there are so many, or so many bytes were told.
    sweep_at: usize,
    unswept: usize,
    schemas: HashMap<usize, (u32, Arc<Schema>)>,
    shapes: HashMap<usize, (u32, Arc<WindowShape>)>,
    next: u32,
}

/// Requests being filled, ready ones in front.
#[derive(Debug, Default)]
pub struct InsertRequestBuilder {
    ready: VecDeque<pb::InsertRequest>,
    open: pb::InsertRequest,
    /// Bytes of the open request, about.
    bytes: usize,
    /// Slices of its items' shapes, counted for each item.
    slices: usize,
    priorities: BytesMut,
    keys: BytesMut,
    chunks: BytesMut,
    offsets: BytesMut,
    /// The number that would continue the last run of items.
    run: Option<u64>,
}

impl InsertRequestBuilder {
    /// True when the open request should be sent before more goes in.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.bytes >= PART_BYTES || self.slices >= SLICES || !self.ready.is_empty()
    }

    /// All requests, the open one last.
    pub fn take_requests(&mut self) -> VecDeque<pb::InsertRequest> {
        self.end_request();
        std::mem::take(&mut self.ready)
    }

    /// Adds an item, and before it what it is made of where the server has not been told.
    ///
    /// # Errors
    /// [`engram_core::Error::Payload`] where a chunk cannot be read.
    pub fn add_item(
        &mut self,
        told: &mut SentDictionary,
        table: &str,
        number: u64,
        item: &NewItem,
    ) -> Result<()> {
        // Chunks come before items within a request: all of an item's must be in before it.
        for chunk in item.trajectory.chunks() {
            self.tell_chunk(told, chunk)?;
        }
        let form = match &item.trajectory {
            Trajectory::Rows { len, squeeze, .. } => Trajectories::Rows(pb::Rows {
                len: *len,
                squeeze: *squeeze,
            }),
            Trajectory::Window { shape, .. } => {
                Trajectories::WindowShape(self.tell_shape(told, shape))
            }
            Trajectory::Spans(spans) => Trajectories::Spans(pb::Spans {
                layout: Some(encode_layout(&spans.layout)),
                chunks: spans.chunks.iter().map(|chunk| told.id_of(chunk)).collect(),
                columns: encode_columns(&spans.columns, spans.slices.len()),
                slices: encode_slices(&spans.slices),
            }),
        };
        let continues = self.run == Some(number)
            && !matches!(form, Trajectories::Spans(_))
            && (self.open.items.last())
                .is_some_and(|run| run.table == table && run.trajectories.as_ref() == Some(&form));
        if !continues {
            self.end_run();
            self.bytes += 48 + table.len() + form.encoded_len();
            self.open.items.push(pb::Items {
                table: table.into(),
                first_number: number,
                trajectories: Some(form),
                ..pb::Items::default()
            });
        }
        self.run = Some(number + 1);
        self.keys.put_u64_le(item.key);
        self.priorities.put_f64_le(item.priority);
        if let Trajectory::Rows { chunk, offset, .. } | Trajectory::Window { chunk, offset, .. } =
            &item.trajectory
        {
            self.chunks.put_u32_le(told.id_of(chunk));
            self.offsets.put_u32_le(*offset);
        }
        if let Trajectory::Window { shape, .. } = &item.trajectory {
            self.slices += shape.slices.len();
        }
        self.bytes += 24;
        Ok(())
    }

    /// Says which chunks will not be referred to any more.
    pub fn release_unused_chunks(&mut self, told: &mut SentDictionary) {
        if told.chunks.len() < told.sweep_at.max(64) && told.unswept < SWEEP {
            return;
        }
        told.unswept = 0;
        let released = &mut self.open.released_chunks;
        let chunks = told.chunks.values();
        let alive = chunks.filter_map(|(_, chunk)| chunk.upgrade());
        let (count, bytes) = alive.fold((0, 0), |(count, bytes), chunk| {
            (count + 1, bytes + chunk.payload().len())
        });
        // A writer may go on using more chunks than a server keeps: those are told again.
        let many = bytes > MOST_KEPT || count > MOST_CHUNKS;
        told.chunks.retain(|_, (id, chunk)| {
            let keep = !many && chunk.strong_count() > 0;
            if !keep {
                released.push(*id);
            }
            keep
        });
        self.bytes += released.len() * 5;
        told.sweep_at = told.chunks.len() + told.chunks.len().min(MOST_CHUNKS);
    }

    fn tell_chunk(&mut self, told: &mut SentDictionary, chunk: &Arc<Chunk>) -> Result<()> {
        if told.knows(chunk) {
            return Ok(());
        }
        if !self.open.chunk_part.is_empty() {
            // A chunk that begins ends the one before it, whose last part is in the open request.
            self.end_request();
        }
        let schema = self.tell_schema(told, chunk.schema());
        let mut payload = payload_of(chunk)?;
        let id = told.number();
        told.chunks
            .insert(address(chunk), (id, Arc::downgrade(chunk)));
        let origin = chunk.origin();
        told.unswept += payload.len();
        let rest = payload.split_off(payload.len().min(PART_BYTES));
        self.bytes += payload.len() + 64 + 16 * chunk.extents().len() + 8 * origin.episodes.len();
        self.open.chunks.push(pb::Chunk {
            id,
            schema,
            key: origin.key,
            episodes_le: encode_numbers(origin.episodes.iter().copied()),
            first_step: origin.first_step,
            steps: origin.steps,
            extents: chunk.extents().iter().map(encode_extent).collect(),
            payload_bytes: (payload.len() + rest.len()) as u64,
            payload,
        });
        self.add_parts(rest);
        Ok(())
    }

    /// Sends the rest of the last chunk in requests of its own.
    fn add_parts(&mut self, mut rest: Bytes) {
        while !rest.is_empty() {
            self.end_request();
            self.open.chunk_part = rest.split_to(rest.len().min(PART_BYTES));
            self.bytes = self.open.chunk_part.len();
        }
        if self.bytes >= PART_BYTES {
            self.end_request();
        }
    }

    fn tell_schema(&mut self, told: &mut SentDictionary, schema: &Arc<Schema>) -> u32 {
        if let Some((id, _)) = told.schemas.get(&address(schema)) {
            return *id;
        }
        if told.schemas.len() >= REMEMBERED {
            told.schemas.clear();
        }
        let id = told.number();
        told.schemas
            .insert(address(schema), (id, Arc::clone(schema)));
        let schema = pb::Schema {
            id,
            layout: Some(encode_layout(&schema.layout)),
            cells: schema.cells.iter().map(encode_cell).collect(),
        };
        self.bytes += schema.encoded_len();
        self.open.schemas.push(schema);
        id
    }

    fn tell_shape(&mut self, told: &mut SentDictionary, shape: &Arc<WindowShape>) -> u32 {
        if let Some((id, _)) = told.shapes.get(&address(shape)) {
            return *id;
        }
        if told.shapes.len() >= REMEMBERED {
            told.shapes.clear();
        }
        let id = told.number();
        told.shapes.insert(address(shape), (id, Arc::clone(shape)));
        let shape = pb::WindowShape {
            id,
            layout: Some(encode_layout(&shape.layout)),
            columns: encode_columns(&shape.columns, shape.slices.len()),
            slices: encode_slices(&shape.slices),
        };
        self.bytes += shape.encoded_len();
        self.open.window_shapes.push(shape);
        id
    }

    /// Puts the run's arrays into its message.
    fn end_run(&mut self) {
        if self.run.take().is_some()
            && let Some(items) = self.open.items.last_mut()
        {
            items.keys_le = self.keys.split().freeze();
            items.priorities_le = self.priorities.split().freeze();
            items.chunks_le = self.chunks.split().freeze();
            items.offsets_le = self.offsets.split().freeze();
        }
    }

    fn end_request(&mut self) {
        self.end_run();
        (self.bytes, self.slices) = (0, 0);
        let request = std::mem::take(&mut self.open);
        if request != pb::InsertRequest::default() {
            self.ready.push_back(request);
        }
    }
}

impl SentDictionary {
    fn number(&mut self) -> u32 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    fn knows(&self, chunk: &Arc<Chunk>) -> bool {
        // The weak reference keeps the address from being used again.
        self.chunks.contains_key(&address(chunk))
    }

    fn id_of(&self, chunk: &Arc<Chunk>) -> u32 {
        self.chunks.get(&address(chunk)).map_or(0, |(id, _)| *id)
    }
}

fn address<T>(shared: &Arc<T>) -> usize {
    Arc::as_ptr(shared).addr()
}

fn encode_extent(extent: &engram_core::chunk::Extent) -> pb::Extent {
    pb::Extent {
        stored_bytes: extent.stored,
        rows: extent.rows,
        codec: match extent.codec {
            Codec::Raw => wire::RAW,
            Codec::Lz4 => wire::LZ4,
            Codec::Delta => wire::DELTA,
        },
    }
}

fn encode_slices(slices: &[Slice]) -> Vec<pb::Slice> {
    let slices = slices.iter().map(|slice| pb::Slice {
        chunk: slice.chunk,
        column: slice.column,
        offset: slice.offset,
        len: slice.len,
    });
    slices.collect()
}

fn encode_columns(columns: &[SpanColumn], slices: usize) -> Vec<pb::SpanColumn> {
    let ends = columns
        .iter()
        .skip(1)
        .map(|column| column.first_slice as usize);
    let ends = ends.chain([slices]);
    let columns = columns
        .iter()
        .zip(ends)
        .map(|(column, end)| pb::SpanColumn {
            slice_count: u32::try_from(end).unwrap_or(u32::MAX) - column.first_slice,
            squeeze: column.squeeze,
        });
    columns.collect()
}

/// A chunk's bytes, without a copy where they are in memory.
fn payload_of(chunk: &Arc<Chunk>) -> Result<Bytes> {
    struct Held(Arc<Chunk>);
    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            match self.0.payload() {
                Payload::Heap(bytes) => bytes,
                _ => &[],
            }
        }
    }
    Ok(match chunk.payload() {
        Payload::Heap(_) => Bytes::from_owner(Held(Arc::clone(chunk))),
        other => Bytes::copy_from_slice(&other.pin()?),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use engram_core::chunk::Origin;
    use engram_core::{AlignedBytes, Layout, Payload};

    use super::*;

    fn chunk() -> Arc<Chunk> {
        let layout = Arc::new(Layout {
            names: Box::default(),
            structure: "".into(),
        });
        let schema = Arc::new(Schema {
            layout,
            cells: Box::default(),
        });
        let origin = Origin {
            key: 1,
            episodes: [1].into(),
            first_step: 0,
            steps: 1,
        };
        let payload = Payload::Heap(AlignedBytes::zeroed(0).unwrap());
        Arc::new(Chunk::from_parts(origin, schema, Vec::new().into(), payload).unwrap())
    }

    /// Tells so many chunks of which so many live, and sweeps; how many of each the server is told to forget.
    fn forgotten(live: usize, dead: usize) -> (usize, usize) {
        let (mut told, mut builder) = (SentDictionary::default(), InsertRequestBuilder::default());
        let mut chunks: Vec<Arc<Chunk>> = (0..live + dead).map(|_| chunk()).collect();
        for chunk in &chunks {
            builder.tell_chunk(&mut told, chunk).unwrap();
        }
        // Until they are sent, requests refer to them.
        builder.take_requests();
        chunks.truncate(live);
        let alive: HashSet<u32> = chunks.iter().map(|chunk| told.id_of(chunk)).collect();
        builder.release_unused_chunks(&mut told);
        let released = &builder.open.released_chunks;
        let of_alive = released.iter().filter(|id| alive.contains(id)).count();
        (of_alive, released.len() - of_alive)
    }

    #[test]
    fn what_nobody_refers_to_is_forgotten_and_the_rest_where_it_is_much() {
        assert_eq!(forgotten(100, 300), (0, 300));
        assert_eq!(forgotten(MOST_CHUNKS, 10), (0, 10));
        assert_eq!(forgotten(MOST_CHUNKS + 1, 10), (MOST_CHUNKS + 1, 10));
    }
}
