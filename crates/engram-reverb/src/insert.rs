//! Streams of chunks and items: made as they come, put into their tables' queues, confirmed once in.
//!
//! One task per stream. It reads no further while many of its items wait for the last one's table, or very many for all.

mod chunk_cache;
mod pending;

use std::sync::Arc;

use engram_core::NewItem;
use engram_engine::{JournalSpace, Table};
use prost::Message as _;
use tokio::sync::mpsc::{self, Sender};
use tokio::task::consume_budget;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::chunk::{weight, work_of};
use crate::pb;
use crate::service::{Shared, stopping};
use crate::status::status;
use chunk_cache::StreamChunkCache;
pub(crate) use pending::Orphans;
use pending::{Pending, again};

/// Replies between a stream's task and the transport.
const REPLIES: usize = 16;

/// From this size on, a message takes long enough for others to want the thread: its own bytes, and what its chunks say
/// that they unpack to.
const LARGE: usize = 256 << 10;

/// Bytes of an item that waits, beside its trajectory's.
const WAITING: usize = 512;

/// Keys that wait to be told before no more is read; about as many are on their way.
const KEYS: usize = 65_536;

/// Keys in one reply.
const REPLY: usize = KEYS / REPLIES;

type Reply = Result<pb::InsertStreamResponse, Status>;

/// Serves one stream until its writer is done, is gone, or the server stops.
pub(crate) fn serve(
    shared: &Arc<Shared>,
    requests: Streaming<pb::InsertStreamRequest>,
) -> ReceiverStream<Reply> {
    let (replies, receiver) = mpsc::channel(REPLIES);
    let writer = Writer {
        shared: Arc::clone(shared),
        chunks: StreamChunkCache::default(),
        pending: Pending::default(),
        room: None,
        confirmed: Vec::new(),
    };
    tokio::spawn(writer.run(requests, replies));
    ReceiverStream::new(receiver)
}

struct Writer {
    shared: Arc<Shared>,
    chunks: StreamChunkCache,
    pending: Pending,
    /// Too much waits to be written.
    room: Option<JournalSpace>,
    /// Keys of items that are in and not told of.
    confirmed: Vec<u64>,
}

impl Writer {
    async fn run(mut self, requests: Streaming<pb::InsertStreamRequest>, replies: Sender<Reply>) {
        let end = self.work(requests, &replies).await;
        let mut confirmed = std::mem::take(&mut self.confirmed);
        // What is in their tables' queues goes in, also where its writer is gone: one that comes back
        // sends it again under the same keys.
        let Self {
            shared, pending, ..
        } = self;
        shared.orphans.adopt(&shared, pending);
        drop(shared);
        while !confirmed.is_empty() {
            if replies.send(Ok(reply(&mut confirmed))).await.is_err() {
                return;
            }
        }
        if let Err(status) = end {
            let _ = replies.send(Err(status)).await;
        }
    }

    /// # Errors
    /// The status that the stream ends with.
    async fn work(
        &mut self,
        mut requests: Streaming<pb::InsertStreamRequest>,
        replies: &Sender<Reply>,
    ) -> Result<(), Status> {
        let shared = Arc::clone(&self.shared);
        let stop = shared.stopping();
        tokio::pin!(stop);
        loop {
            // Where much has come already, nothing below waits.
            consume_budget().await;
            let is_heard = self.confirmed.len() < KEYS;
            let reads = is_heard && self.room.is_none() && self.pending.has_room();
            tokio::select! {
                () = &mut stop => return Err(stopping()),
                () = replies.closed() => return Ok(()),
                permit = replies.reserve(), if !self.confirmed.is_empty() => match permit {
                    Ok(permit) => permit.send(Ok(reply(&mut self.confirmed))),
                    Err(_) => return Ok(()),
                },
                request = requests.message(), if reads => match request {
                    Ok(Some(request)) if work(&request) >= LARGE => {
                        tokio::task::block_in_place(|| self.take(&request))?;
                    }
                    Ok(Some(request)) => self.take(&request)?,
                    // A writer that half-closes is told what is known, as by dm-reverb, and no more: it
                    // waits for the end, and a table may never take what is left.
                    Ok(None) => return self.settle(),
                    // Gone, or speaks another protocol. tonic tells it.
                    Err(status) => return Err(status),
                },
                Some(done) = self.pending.next(), if !self.pending.is_empty() => {
                    let key = done.map_err(|error| status(&error))?;
                    self.confirmed.push(key);
                }
                () = less(&mut self.room), if self.room.is_some() => {}
            }
        }
    }

    /// Takes note of everything that is in by now.
    fn settle(&mut self) -> Result<(), Status> {
        while let Some(done) = self.pending.next_now() {
            self.confirmed.push(done.map_err(|error| status(&error))?);
        }
        Ok(())
    }

    fn take(&mut self, request: &pb::InsertStreamRequest) -> Result<(), Status> {
        if request.chunks.is_empty() && request.items.is_empty() {
            return Err(Status::invalid_argument(
                "the request lacks both chunks and item",
            ));
        }
        for chunk in &request.chunks {
            self.chunks.take(chunk)?;
        }
        if request.items.is_empty() {
            return Ok(());
        }
        for message in &request.items {
            let table = self.shared.engine.table(&message.table);
            let table = table.map_err(|error| status(&error))?;
            let item = self.chunks.item(table.options(), message)?;
            self.insert(&table, message.key, item)?;
        }
        self.chunks.keep_only(&request.keep_chunk_keys)
    }

    /// Puts an item into its table's queue, or gives the one that is there its priority.
    fn insert(&mut self, table: &Arc<Table>, key: u64, item: NewItem) -> Result<(), Status> {
        let checked = table.options().check_item(&item);
        checked.map_err(|error| status(&error))?;
        let (keys, priorities) = ([item.key], [item.priority]);
        let known = table.update_priorities(&keys, &priorities);
        if known.map_err(|error| status(&error))? > 0 {
            self.pending.add_update(table, key);
        } else {
            let bytes = bytes_of(&item);
            // One of its key may be waiting.
            let ticket = table.insert_or_update(vec![item]);
            self.pending
                .add(key, bytes, ticket.map_err(|error| status(&error))?);
        }
        self.room = table.journal_space();
        Ok(())
    }
}

/// Bytes that an item keeps while it waits. Chunks that several items have count for each.
fn bytes_of(item: &NewItem) -> usize {
    let chunks = item.trajectory.chunks().iter();
    let chunks: usize = chunks.map(|chunk| weight(chunk)).sum();
    WAITING + item.trajectory.footprint() + chunks
}

/// About how much there is to do for a request.
fn work(request: &pb::InsertStreamRequest) -> usize {
    let chunks = request.chunks.iter().map(work_of);
    chunks.fold(request.encoded_len(), usize::saturating_add)
}

fn reply(confirmed: &mut Vec<u64>) -> pb::InsertStreamResponse {
    let rest = confirmed.split_off(confirmed.len().min(REPLY));
    pb::InsertStreamResponse {
        keys: std::mem::replace(confirmed, rest),
    }
}

/// Waits until there is room, or for a while where nothing can be written.
async fn less(room: &mut Option<JournalSpace>) {
    if let Some(wait) = room {
        match wait.await {
            Ok(()) => *room = None,
            Err(_) => again().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::tensorflow::tensor_shape_proto::Dim;
    use crate::pb::tensorflow::{DataType, TensorProto, TensorShapeProto};

    #[test]
    fn a_few_bytes_that_claim_much_are_much_work() {
        for (dtype, sizes, is_much) in [
            (DataType::DtString, &[60_000, 0][..], true),
            (DataType::DtString, &[60, 0], false),
            (DataType::DtFloat, &[2, 1 << 20], true),
            (DataType::DtFloat, &[2, 8], false),
            (DataType::DtFloat, &[i64::MAX, i64::MAX], true),
        ] {
            let dim = sizes.iter().map(|size| Dim {
                size: *size,
                name: String::new(),
            });
            let tensor = TensorProto {
                dtype: dtype.into(),
                tensor_shape: Some(TensorShapeProto {
                    dim: dim.collect(),
                    unknown_rank: false,
                }),
                ..TensorProto::default()
            };
            let chunk = pb::ChunkData {
                data: Some(pb::chunk_data::Data {
                    tensors: vec![tensor; 5],
                }),
                ..pb::ChunkData::default()
            };
            let request = pb::InsertStreamRequest {
                chunks: vec![chunk],
                ..pb::InsertStreamRequest::default()
            };
            assert!(request.encoded_len() < LARGE);
            assert_eq!(work(&request) >= LARGE, is_much, "{sizes:?}");
        }
    }
}
