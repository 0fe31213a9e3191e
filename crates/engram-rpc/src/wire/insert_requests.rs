//! Builds insert requests. Each schema, window shape and chunk is sent once per stream, and again only if it was
//! released or removed from the [`SentDictionary`].

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use bytes::{BufMut, Bytes, BytesMut};
use engram_core::{
    Chunk, Error, NewItem, Result, Schema, Slice, SpanColumn, Trajectory, WindowShape,
};
use prost::Message as _;

use super::received_dictionary::{Define, MAX_DEFINITION_BYTES, MAX_SLICES};
use super::{encode_cell_spec, encode_layout, encode_numbers};
use crate::PART_BYTES;
use crate::pb::{self, items::Trajectories};

/// Maximum number of schemas, and of window shapes, in a [`SentDictionary`]. When it is reached,
/// all of them are removed, and sent again when needed.
const MAX_DEFINITIONS: usize = 4096;

/// Maximum memory of the schemas, and of the window shapes, in a [`SentDictionary`], in bytes: below a server's limit,
/// because a server of another version may count a little more.
const MAX_SENT_DEFINITION_BYTES: usize = MAX_DEFINITION_BYTES / 2;

/// Bytes of newly sent chunks after which unused chunks are released.
const RELEASE_INTERVAL_BYTES: usize = 128 << 20;

/// Maximum number of chunks in use (items of this process refer to them) that stay in the dictionary; if there are
/// more, all chunks are released. The dictionary may have as many unused chunks in addition, which are not released
/// yet. A server accepts 65,536 chunks.
const MAX_CHUNKS_IN_USE: usize = 16_384;

/// Maximum total bytes of chunks in use that stay in the dictionary; if they have more, all chunks are released. A
/// server accepts 1 GiB of chunks that no table refers to.
const MAX_CHUNK_BYTES_IN_USE: usize = 256 << 20;

/// Number of slices after which a request is full. It stays below [`MAX_SLICES`] with one more item.
const FULL_REQUEST_SLICES: usize = MAX_SLICES / 2;

/// Maximum total bytes of one item's chunks. Together with the chunks already sent, it stays within a server's limit of
/// 1 GiB of chunks that no table refers to.
const MAX_ITEM_BYTES: usize = 640 << 20;

/// Maximum number of one item's chunks. Together with the chunks already sent, it stays within a server's limit of
/// 65,536 chunks.
const MAX_ITEM_CHUNKS: usize = 16_384;

/// Maximum number of one item's slices, which must fit one message.
const MAX_ITEM_SLICES: usize = 120_000;

/// Checks that an item is small enough to be sent to a server.
///
/// # Errors
/// [`Error::InvalidArgument`] if it is too large.
pub fn check_sendable(item: &NewItem) -> Result<()> {
    let chunks = item.trajectory.chunks();
    let bytes: usize = chunks.iter().map(|chunk| chunk.payload().len()).sum();
    let slices = match &item.trajectory {
        Trajectory::Rows { .. } => 0,
        Trajectory::Window { shape, .. } => shape.slices.len(),
        Trajectory::Spans(spans) => spans.slices.len(),
    };
    check_item_size(bytes, chunks.len(), slices)
}

fn check_item_size(bytes: usize, chunks: usize, slices: usize) -> Result<()> {
    let limits = [
        (bytes, MAX_ITEM_BYTES, "bytes of chunks", "lower"),
        (chunks, MAX_ITEM_CHUNKS, "chunks", "raise"),
        (slices, MAX_ITEM_SLICES, "slices", "raise"),
    ];
    match limits.iter().find(|(given, max, ..)| given > max) {
        None => Ok(()),
        Some((given, max, what, change)) => Err(Error::InvalidArgument(format!(
            "the item is too large for a server: it has {given} {what}; at most {max} are allowed; create smaller \
             items, or {change} the writer's `chunk_length`"
        ))),
    }
}

/// The schemas, window shapes and chunks that were sent on an insert stream, by address, with the ids that requests use
/// for them.
#[derive(Debug, Default)]
pub struct SentDictionary {
    /// By address: id and chunk.
    chunks: HashMap<usize, (u32, Weak<Chunk>)>,
    /// Number of chunks at which unused ones are released next.
    release_at: usize,
    /// Bytes of the chunks added since unused ones were last released.
    bytes_since_release: usize,
    schemas: SentDefinitions<Schema>,
    shapes: SentDefinitions<WindowShape>,
    /// Last id given to a schema, window shape or chunk.
    last_id: u32,
}

/// The schemas or window shapes that were sent, by address, with their ids.
#[derive(Debug)]
struct SentDefinitions<T> {
    by_address: HashMap<usize, (u32, Arc<T>)>,
    /// Memory of all of them, in bytes.
    bytes: usize,
}

impl<T> Default for SentDefinitions<T> {
    fn default() -> Self {
        Self {
            by_address: HashMap::new(),
            bytes: 0,
        }
    }
}

impl<T: Define> SentDefinitions<T> {
    fn id_of(&self, definition: &Arc<T>) -> Option<u32> {
        let sent = self.by_address.get(&address(definition));
        sent.map(|(id, _)| *id)
    }

    /// Adds a definition. Removes all others if there would be too many: a receiver drops old ones.
    fn insert(&mut self, id: u32, definition: &Arc<T>) {
        self.bytes += definition.bytes();
        if self.by_address.len() >= MAX_DEFINITIONS || self.bytes > MAX_SENT_DEFINITION_BYTES {
            self.by_address.clear();
            self.bytes = definition.bytes();
        }
        self.by_address
            .insert(address(definition), (id, Arc::clone(definition)));
    }
}

/// Builds insert requests from items.
#[derive(Debug, Default)]
pub struct InsertRequestBuilder {
    /// Finished requests.
    ready: VecDeque<pb::InsertRequest>,
    /// The request that items are added to.
    open: pb::InsertRequest,
    /// Approximate size of the open request, in bytes.
    bytes: usize,
    /// Number of slices of the open request's items that have a window shape. Each item counts all slices of its shape.
    slices: usize,
    /// Encoded arrays of the current run of items: consecutive items that share a message.
    priorities: BytesMut,
    keys: BytesMut,
    chunks: BytesMut,
    offsets: BytesMut,
    /// Item number that would continue the current run of items; `None` if there is no run.
    next_in_run: Option<u64>,
}

impl InsertRequestBuilder {
    /// True if the requests should be sent before more items are added.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.bytes >= PART_BYTES || self.slices >= FULL_REQUEST_SLICES || !self.ready.is_empty()
    }

    /// Removes and returns all requests, including the one that items were being added to.
    pub fn take_requests(&mut self) -> VecDeque<pb::InsertRequest> {
        self.end_request();
        std::mem::take(&mut self.ready)
    }

    /// Adds an item, preceded by its chunks, schemas and window shape unless they were sent before.
    pub fn add_item(
        &mut self,
        sent: &mut SentDictionary,
        table: &str,
        number: u64,
        item: &NewItem,
        key: u64,
    ) {
        // Before the item, because adding a chunk may end the open request: a receiver needs the chunks of an item in
        // the same request or an earlier one.
        for chunk in item.trajectory.chunks() {
            self.add_chunk(sent, chunk);
        }
        let trajectories = match &item.trajectory {
            Trajectory::Rows { len, squeeze, .. } => Trajectories::Rows(pb::Rows {
                len: *len,
                squeeze: *squeeze,
            }),
            Trajectory::Window { shape, .. } => {
                Trajectories::WindowShape(self.add_window_shape(sent, shape))
            }
            Trajectory::Spans(spans) => Trajectories::Spans(pb::Spans {
                layout: Some(encode_layout(&spans.layout)),
                chunks: spans.chunks.iter().map(|chunk| sent.id_of(chunk)).collect(),
                columns: encode_columns(&spans.columns, spans.slices.len()),
                slices: encode_slices(&spans.slices),
            }),
        };
        let continues = self.next_in_run == Some(number)
            && !matches!(trajectories, Trajectories::Spans(_))
            && (self.open.items.last()).is_some_and(|run| {
                run.table == table && run.trajectories.as_ref() == Some(&trajectories)
            });
        if !continues {
            self.end_run();
            self.bytes += 48 + table.len() + trajectories.encoded_len();
            self.open.items.push(pb::Items {
                table: table.into(),
                first_number: number,
                trajectories: Some(trajectories),
                ..pb::Items::default()
            });
        }
        self.next_in_run = Some(number + 1);
        self.keys.put_u64_le(key);
        self.priorities.put_f64_le(item.priority);
        if let Trajectory::Rows { chunk, offset, .. } | Trajectory::Window { chunk, offset, .. } =
            &item.trajectory
        {
            self.chunks.put_u32_le(sent.id_of(chunk));
            self.offsets.put_u32_le(*offset);
        }
        if let Trajectory::Window { shape, .. } = &item.trajectory {
            self.slices += shape.slices.len();
        }
        self.bytes += 24;
    }

    /// Releases the chunks that no item of this process refers to, if there may be many of them. If too many chunks are
    /// in use, releases all.
    pub fn release_unused_chunks(&mut self, sent: &mut SentDictionary) {
        if sent.chunks.len() < sent.release_at.max(64)
            && sent.bytes_since_release < RELEASE_INTERVAL_BYTES
        {
            return;
        }
        sent.bytes_since_release = 0;
        let released = &mut self.open.released_chunks;
        let chunks = sent.chunks.values();
        let alive = chunks.filter_map(|(_, chunk)| chunk.upgrade());
        let (count, bytes) = alive.fold((0, 0), |(count, bytes), chunk| {
            (count + 1, bytes + chunk.payload().len())
        });
        // A writer may use more chunks than a server accepts. Release all of them; chunks still in
        // use are sent again.
        let too_many = bytes > MAX_CHUNK_BYTES_IN_USE || count > MAX_CHUNKS_IN_USE;
        sent.chunks.retain(|_, (id, chunk)| {
            let keep = !too_many && chunk.strong_count() > 0;
            if !keep {
                released.push(*id);
            }
            keep
        });
        self.bytes += released.len() * 5;
        sent.release_at = sent.chunks.len() + sent.chunks.len().min(MAX_CHUNKS_IN_USE);
    }

    /// Adds a chunk unless it was sent before.
    fn add_chunk(&mut self, sent: &mut SentDictionary, chunk: &Arc<Chunk>) {
        if sent.contains(chunk) {
            return;
        }
        if !self.open.chunk_part.is_empty() {
            // The open request has the last part of the previous chunk. Receivers read a request's
            // chunks before its part, and a new chunk would end the previous one.
            self.end_request();
        }
        let schema = self.add_schema(sent, chunk.schema());
        let mut payload = payload_bytes(chunk);
        let id = sent.next_id();
        sent.chunks
            .insert(address(chunk), (id, Arc::downgrade(chunk)));
        let origin = chunk.origin();
        sent.bytes_since_release += payload.len();
        let remaining = payload.split_off(payload.len().min(PART_BYTES));
        self.bytes += payload.len() + 64 + 16 * chunk.extents().len() + 8 * origin.episodes.len();
        self.open.chunks.push(pb::Chunk {
            id,
            schema,
            key: origin.key,
            episodes_le: encode_numbers(origin.episodes.iter().copied()),
            first_step: origin.first_step,
            steps: origin.steps,
            extents: chunk.extents().iter().map(encode_extent).collect(),
            payload_bytes: (payload.len() + remaining.len()) as u64,
            payload,
        });
        self.add_parts(remaining);
    }

    /// Adds the remaining bytes of the last chunk in separate requests.
    fn add_parts(&mut self, mut remaining: Bytes) {
        while !remaining.is_empty() {
            self.end_request();
            self.open.chunk_part = remaining.split_to(remaining.len().min(PART_BYTES));
            self.bytes = self.open.chunk_part.len();
        }
        if self.bytes >= PART_BYTES {
            self.end_request();
        }
    }

    /// Adds a schema unless it was sent before; returns its id.
    fn add_schema(&mut self, sent: &mut SentDictionary, schema: &Arc<Schema>) -> u32 {
        if let Some(id) = sent.schemas.id_of(schema) {
            return id;
        }
        let id = sent.next_id();
        sent.schemas.insert(id, schema);
        let schema = pb::Schema {
            id,
            layout: Some(encode_layout(&schema.layout)),
            cells: schema.cells.iter().map(encode_cell_spec).collect(),
        };
        self.bytes += schema.encoded_len();
        self.open.schemas.push(schema);
        id
    }

    /// Adds a window shape unless it was sent before; returns its id.
    fn add_window_shape(&mut self, sent: &mut SentDictionary, shape: &Arc<WindowShape>) -> u32 {
        if let Some(id) = sent.shapes.id_of(shape) {
            return id;
        }
        let id = sent.next_id();
        sent.shapes.insert(id, shape);
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

    /// Moves the arrays of the current run into its message.
    fn end_run(&mut self) {
        if self.next_in_run.take().is_some()
            && let Some(items) = self.open.items.last_mut()
        {
            items.keys_le = self.keys.split().freeze();
            items.priorities_le = self.priorities.split().freeze();
            items.chunks_le = self.chunks.split().freeze();
            items.offsets_le = self.offsets.split().freeze();
        }
    }

    /// Moves the open request to the finished ones, unless it is empty.
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
    fn next_id(&mut self) -> u32 {
        self.last_id = self.last_id.wrapping_add(1);
        self.last_id
    }

    fn contains(&self, chunk: &Arc<Chunk>) -> bool {
        // While the weak reference exists, the address cannot be reused for another chunk.
        self.chunks.contains_key(&address(chunk))
    }

    /// Id of a chunk; 0 if it was not added.
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
        codec: extent.codec as u32,
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

/// Returns a chunk's bytes without copying them.
fn payload_bytes(chunk: &Arc<Chunk>) -> Bytes {
    struct ChunkBytes(Arc<Chunk>);
    impl AsRef<[u8]> for ChunkBytes {
        fn as_ref(&self) -> &[u8] {
            self.0.payload()
        }
    }
    Bytes::from_owner(ChunkBytes(Arc::clone(chunk)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use engram_core::chunk::Origin;
    use engram_core::{AlignedBytes, Layout};

    use super::*;
    use crate::wire::ReceivedDictionary;

    fn chunk() -> Arc<Chunk> {
        let layout = Arc::new(Layout {
            names: Box::default(),
            structure: r#"{"t":[]}"#.into(),
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
        let payload = AlignedBytes::zeroed(0).unwrap();
        Arc::new(Chunk::from_parts(origin, schema, Vec::new().into(), payload).unwrap())
    }

    /// Sends `live + dead` chunks, drops `dead` of them, and releases unused chunks. Returns how many
    /// live and dead chunks were released.
    fn released(live: usize, dead: usize) -> (usize, usize) {
        let (mut sent, mut builder) = (SentDictionary::default(), InsertRequestBuilder::default());
        let mut chunks: Vec<Arc<Chunk>> = (0..live + dead).map(|_| chunk()).collect();
        for chunk in &chunks {
            builder.add_chunk(&mut sent, chunk);
        }
        // Requests that are not sent yet refer to their chunks.
        builder.take_requests();
        chunks.truncate(live);
        let alive: HashSet<u32> = chunks.iter().map(|chunk| sent.id_of(chunk)).collect();
        builder.release_unused_chunks(&mut sent);
        let released = &builder.open.released_chunks;
        let released_live = released.iter().filter(|id| alive.contains(id)).count();
        (released_live, released.len() - released_live)
    }

    #[test]
    fn a_receiver_knows_every_window_shape_that_items_refer_to() {
        let names = (0..1_000).map(|index| format!("{}{index}", "x".repeat(32)).into());
        let names: Box<[Box<str>]> = names.collect();
        let leaves = vec!["0"; names.len()].join(",");
        let layout = Arc::new(Layout {
            names,
            structure: format!("{{\"l\":[{leaves}]}}").into(),
        });
        let shape = || WindowShape {
            layout: Arc::clone(&layout),
            columns: (0..1_000)
                .map(|first_slice| SpanColumn {
                    first_slice,
                    len: 1,
                    squeeze: true,
                })
                .collect(),
            slices: (0..1_000)
                .map(|column| Slice {
                    chunk: 0,
                    column,
                    offset: 0,
                    len: 1,
                })
                .collect(),
        };
        let shapes: Vec<Arc<WindowShape>> = (0..800).map(|_| Arc::new(shape())).collect();
        let (mut sent, mut builder) = (SentDictionary::default(), InsertRequestBuilder::default());
        let mut received = ReceivedDictionary::default();
        let chunk = chunk();
        for (number, shape) in (1..).zip(shapes.iter().chain(&shapes[..1])) {
            let item = NewItem {
                key: number,
                trajectory: Trajectory::Window {
                    chunk: Arc::clone(&chunk),
                    offset: 0,
                    shape: Arc::clone(shape),
                },
                priority: 1.0,
            };
            builder.add_item(&mut sent, "t", number, &item, item.key);
            for request in builder.take_requests() {
                for schema in &request.schemas {
                    received.add_schema(schema).unwrap();
                }
                for shape in &request.window_shapes {
                    received.add_window_shape(shape).unwrap();
                }
                for chunk in &request.chunks {
                    received.add_chunk(chunk).unwrap();
                }
                for items in &request.items {
                    let decoded = received.decode_items(items);
                    assert_eq!(decoded.map(|items| items.len()), Ok(1), "item {number}");
                }
            }
        }
    }

    #[test]
    fn unused_chunks_are_released_and_all_chunks_if_too_many_are_in_use() {
        assert_eq!(released(100, 300), (0, 300));
        assert_eq!(released(MAX_CHUNKS_IN_USE, 10), (0, 10));
        assert_eq!(
            released(MAX_CHUNKS_IN_USE + 1, 10),
            (MAX_CHUNKS_IN_USE + 1, 10)
        );
    }
}
