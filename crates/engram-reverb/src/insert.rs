//! Insert streams: chunks and items of one dm-reverb writer.
//!
//! One task per stream. It decodes chunks and items as they arrive, queues each item for its table and sends its key
//! back once the item is inserted and durable. It stops reading while too many items are pending, too many keys are not
//! sent yet, or the journal is full.

mod chunk_cache;
mod pending_items;

use std::sync::Arc;

use engram_core::NewItem;
use engram_engine::{JournalSpace, Table};
use prost::Message as _;
use tokio::sync::mpsc::{self, Sender};
use tokio::task::consume_budget;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::chunk::{chunk_decode_work, memory_bytes};
use crate::pb;
use crate::service_state::{ServiceState, stopping_status};
use crate::status::status;
use chunk_cache::StreamChunkCache;
pub(crate) use pending_items::OrphanedItems;
use pending_items::{PendingItems, retry_delay};

/// Responses buffered between the task of a stream and the transport.
const BUFFERED_RESPONSES: usize = 16;

/// A request with at least this much decoding work, in bytes, is handled outside of the runtime's shared threads. The
/// work is the request's own bytes plus, for each tensor, its declared rows and its raw or encoded bytes.
const LARGE_REQUEST: usize = 256 << 10;

/// Bytes of a pending item, without its trajectory.
const PENDING_ITEM_BYTES: usize = 512;

/// Number of unsent keys at which the stream stops reading. The buffered responses hold up to as many in addition.
const MAX_UNSENT_KEYS: usize = 65_536;

/// Maximum number of keys in a response.
const KEYS_PER_RESPONSE: usize = MAX_UNSENT_KEYS / BUFFERED_RESPONSES;

type Response = Result<pb::InsertStreamResponse, Status>;

/// Serves a stream until its writer closes it or disconnects, or the server stops.
pub(crate) fn serve(
    service: &Arc<ServiceState>,
    requests: Streaming<pb::InsertStreamRequest>,
) -> ReceiverStream<Response> {
    let (responses, receiver) = mpsc::channel(BUFFERED_RESPONSES);
    let stream = InsertStream {
        service: Arc::clone(service),
        chunks: StreamChunkCache::default(),
        pending: PendingItems::default(),
        journal_space: None,
        unsent_keys: Vec::new(),
    };
    tokio::spawn(stream.run(requests, responses));
    ReceiverStream::new(receiver)
}

struct InsertStream {
    service: Arc<ServiceState>,
    chunks: StreamChunkCache,
    pending: PendingItems,
    /// Set while too many bytes wait to be written to the journal.
    journal_space: Option<JournalSpace>,
    /// Keys of inserted and durable items that were not sent to the writer yet.
    unsent_keys: Vec<u64>,
}

impl InsertStream {
    async fn run(
        mut self,
        requests: Streaming<pb::InsertStreamRequest>,
        responses: Sender<Response>,
    ) {
        let end = self.serve_requests(requests, &responses).await;
        let mut unsent_keys = std::mem::take(&mut self.unsent_keys);
        // Items in their tables' queues are still inserted, even if the writer disconnected. A writer that reconnects
        // sends them again under the same keys; items that are in their table by then are updated, not inserted again.
        let Self {
            service, pending, ..
        } = self;
        service.orphans.adopt(service.stopped.clone(), pending);
        drop(service);
        while !unsent_keys.is_empty() {
            if responses
                .send(Ok(take_response(&mut unsent_keys)))
                .await
                .is_err()
            {
                return;
            }
        }
        if let Err(status) = end {
            let _ = responses.send(Err(status)).await;
        }
    }

    /// Handles requests and sends the keys of inserted items until the writer closes the stream or disconnects.
    ///
    /// # Errors
    /// The status that ends the stream.
    async fn serve_requests(
        &mut self,
        mut requests: Streaming<pb::InsertStreamRequest>,
        responses: &Sender<Response>,
    ) -> Result<(), Status> {
        let service = Arc::clone(&self.service);
        let stop = service.until_stopped();
        tokio::pin!(stop);
        loop {
            // If many requests have arrived, nothing below yields.
            consume_budget().await;
            let can_confirm = self.unsent_keys.len() < MAX_UNSENT_KEYS;
            let reads = can_confirm && self.journal_space.is_none() && self.pending.has_room();
            tokio::select! {
                () = &mut stop => return Err(stopping_status()),
                () = responses.closed() => return Ok(()),
                permit = responses.reserve(), if !self.unsent_keys.is_empty() => match permit {
                    Ok(permit) => permit.send(Ok(take_response(&mut self.unsent_keys))),
                    Err(_) => return Ok(()),
                },
                request = requests.message(), if reads => match request {
                    Ok(Some(request)) if decode_work(&request) >= LARGE_REQUEST => {
                        tokio::task::block_in_place(|| self.handle(&request))?;
                    }
                    Ok(Some(request)) => self.handle(&request)?,
                    // After a half-close, confirm the items inserted so far, as dm-reverb does, and end:
                    // the writer waits for the end, and tables may never accept the other items.
                    Ok(None) => return self.collect_inserted(),
                    // The writer disconnected or sent an invalid message. tonic reports the status.
                    Err(status) => return Err(status),
                },
                Some(inserted) = self.pending.next(), if !self.pending.is_empty() => {
                    let key = inserted.map_err(|error| status(&error))?;
                    self.unsent_keys.push(key);
                }
                () = wait_for_space(&mut self.journal_space), if self.journal_space.is_some() => {}
            }
        }
    }

    /// Collects the keys of all items that are inserted and durable by now.
    fn collect_inserted(&mut self) -> Result<(), Status> {
        while let Some(inserted) = self.pending.next_now() {
            self.unsent_keys
                .push(inserted.map_err(|error| status(&error))?);
        }
        Ok(())
    }

    fn handle(&mut self, request: &pb::InsertStreamRequest) -> Result<(), Status> {
        if request.chunks.is_empty() && request.items.is_empty() {
            return Err(Status::invalid_argument(
                "the request lacks both chunks and item",
            ));
        }
        for chunk in &request.chunks {
            self.chunks.add(chunk)?;
        }
        if request.items.is_empty() {
            return Ok(());
        }
        for message in &request.items {
            let table = self.service.engine.table(&message.table);
            let table = table.map_err(|error| status(&error))?;
            let item = self.chunks.decode_item(table.options(), message)?;
            self.insert(&table, message.key, item)?;
        }
        self.chunks.keep_only(&request.keep_chunk_keys)
    }

    /// Queues an item for its table, or sets the priority of the existing item with its key.
    fn insert(&mut self, table: &Arc<Table>, key: u64, item: NewItem) -> Result<(), Status> {
        let checked = table.options().check_item(&item);
        checked.map_err(|error| status(&error))?;
        let (keys, priorities) = ([item.key], [item.priority]);
        let updated = table.update_priorities(&keys, &priorities);
        if updated.map_err(|error| status(&error))? > 0 {
            self.pending.add_update(table, key);
        } else {
            let bytes = pending_bytes(&item);
            // An item with the same key may still be queued, so this may also become an update.
            let ticket = table.insert_or_update(vec![item]);
            self.pending
                .add(key, bytes, ticket.map_err(|error| status(&error))?);
        }
        self.journal_space = table.journal_space();
        Ok(())
    }
}

/// Bytes that a pending item keeps alive. Chunks shared by several items count for each.
fn pending_bytes(item: &NewItem) -> usize {
    let chunks = item.trajectory.chunks().iter();
    let chunks: usize = chunks.map(|chunk| memory_bytes(chunk)).sum();
    PENDING_ITEM_BYTES + item.trajectory.footprint() + chunks
}

/// Estimated work of decoding a request, in bytes.
fn decode_work(request: &pb::InsertStreamRequest) -> usize {
    let chunks = request.chunks.iter().map(chunk_decode_work);
    chunks.fold(request.encoded_len(), usize::saturating_add)
}

/// Removes the first keys, and returns a response with them.
fn take_response(unsent_keys: &mut Vec<u64>) -> pb::InsertStreamResponse {
    let rest = unsent_keys.split_off(unsent_keys.len().min(KEYS_PER_RESPONSE));
    pb::InsertStreamResponse {
        keys: std::mem::replace(unsent_keys, rest),
    }
}

/// Waits until the journal has space; returns after a delay if it cannot be written.
async fn wait_for_space(journal_space: &mut Option<JournalSpace>) {
    if let Some(space) = journal_space {
        match space.await {
            Ok(()) => *journal_space = None,
            Err(_) => retry_delay().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::tensorflow::tensor_shape_proto::Dim;
    use crate::pb::tensorflow::{ChunkTensor, DataType, TensorShapeProto};

    #[test]
    fn declared_sizes_count_as_decode_work() {
        for (dtype, sizes, is_large) in [
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
            let tensor = ChunkTensor {
                dtype: dtype.into(),
                tensor_shape: Some(TensorShapeProto {
                    dim: dim.collect(),
                    unknown_rank: false,
                }),
                ..ChunkTensor::default()
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
            assert!(request.encoded_len() < LARGE_REQUEST);
            assert_eq!(
                decode_work(&request) >= LARGE_REQUEST,
                is_large,
                "{sizes:?}"
            );
        }
    }
}
