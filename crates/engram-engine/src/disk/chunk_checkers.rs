//! Threads that check the checksums of large chunks and copy the chunks out of the file blocks, while
//! the calling thread finds the next ones.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use engram_core::chunk::Chunk;

use super::byte_codec::UnusableData;
use super::record_codec::{ChunkHeader, allocate_payload};
use super::record_reader::UncheckedRecord;
use crate::huge_pages::HugePages;

/// Once a batch's chunks have at least this many bytes, the batch is sent to a thread.
const BATCH_BYTES: usize = 1 << 20;

/// Once the batch being collected keeps at least this many bytes of file blocks alive, it is sent to a thread.
/// Reading ahead stalls while too many blocks are in use (`read_ahead.rs`).
const MAX_BATCH_MEMORY: usize = 3 << 20;

/// Maximum number of batches in flight per thread: sent to it, and their results not received.
const MAX_BATCHES_PER_THREAD: usize = 2;

/// Bytes of file blocks that all batches in flight may keep alive, unless only one is in flight.
const MAX_IN_FLIGHT_MEMORY: usize = 64 << 20;

/// Maximum number of threads.
const MAX_THREADS: usize = 8;

/// A chunk to be checked and copied.
#[derive(Debug)]
pub(super) struct UncheckedChunk {
    pub(super) serial: u64,
    pub(super) header: ChunkHeader,
    pub(super) record: UncheckedRecord,
    /// Position of the chunk's payload in the record's body.
    pub(super) payload_start: usize,
}

/// A chunk's serial, the size of its record in bytes, and the chunk.
pub(super) type CheckedChunk = (u64, u64, Chunk);

type Outcome = Result<Vec<CheckedChunk>, UnusableData>;

/// Checks chunks in threads. Results are returned in the order of submission.
#[derive(Debug, Default)]
pub(super) struct ChunkCheckers {
    /// Started before the first batch is sent.
    threads: Vec<(SyncSender<Vec<UncheckedChunk>>, Receiver<Outcome>)>,
    /// The batch being collected.
    batch: Vec<UncheckedChunk>,
    /// Bytes of chunks in `batch`.
    bytes: usize,
    /// Bytes of file blocks that `batch` keeps alive.
    memory: usize,
    /// Number of batches sent to the threads.
    sent_count: usize,
    /// Number of batches received from the threads.
    received_count: usize,
    /// Bytes of file blocks that each batch in flight keeps alive, oldest batch first.
    in_flight: VecDeque<usize>,
}

impl ChunkCheckers {
    /// Starts the threads.
    fn start(&mut self) -> io::Result<()> {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..count.clamp(2, MAX_THREADS)).map(|_| {
            let (submit, batches) = sync_channel::<Vec<UncheckedChunk>>(MAX_BATCHES_PER_THREAD);
            let (reply, outcomes) = sync_channel(MAX_BATCHES_PER_THREAD + 1);
            let thread = thread::Builder::new().name("engram-chunks".into());
            thread.spawn(move || {
                let mut pages = HugePages::default();
                for batch in batches {
                    let outcome = batch.into_iter().map(|chunk| chunk.check(&mut pages));
                    if reply.send(outcome.collect()).is_err() {
                        return;
                    }
                }
            })?;
            Ok((submit, outcomes))
        });
        self.threads = threads.collect::<io::Result<_>>()?;
        Ok(())
    }

    /// Submits a chunk; waits if too many are in flight. Returns checked chunks, perhaps none.
    ///
    /// # Errors
    /// A chunk submitted so far is invalid, or cannot be checked: there is no memory for it, or no thread can be
    /// started. The caller then reads the log again without threads, and does not use this error.
    pub(super) fn submit(&mut self, chunk: UncheckedChunk) -> Outcome {
        let previous = self.batch.last().map(|previous| &previous.record);
        self.memory += chunk.record.block_memory(previous);
        self.bytes += chunk.record.body().len();
        self.batch.push(chunk);
        if self.bytes < BATCH_BYTES && self.memory < MAX_BATCH_MEMORY {
            return Ok(Vec::new());
        }
        self.send_batch()?;
        let mut checked = Vec::new();
        while self.in_flight.len() > MAX_BATCHES_PER_THREAD * self.threads.len()
            || (self.in_flight.len() > 1
                && self.in_flight.iter().sum::<usize>() > MAX_IN_FLIGHT_MEMORY)
        {
            checked.extend(self.receive_batch()?);
        }
        Ok(checked)
    }

    /// Waits for all chunks that were submitted; returns those not returned before.
    ///
    /// # Errors
    /// Those of [`ChunkCheckers::submit`].
    pub(super) fn finish(&mut self) -> Outcome {
        self.send_batch()?;
        let mut checked = Vec::new();
        while !self.in_flight.is_empty() {
            checked.extend(self.receive_batch()?);
        }
        Ok(checked)
    }

    /// Sends the collected batch, if it is not empty, to the next thread.
    fn send_batch(&mut self) -> Result<(), UnusableData> {
        let batch = std::mem::take(&mut self.batch);
        let memory = std::mem::take(&mut self.memory);
        self.bytes = 0;
        if batch.is_empty() {
            return Ok(());
        }
        if self.threads.is_empty() {
            self.start().map_err(|error| {
                UnusableData(format!("cannot start a thread to check chunks: {error}"))
            })?;
        }
        // If the thread has ended, receiving its result fails.
        let _ = self.threads[self.sent_count % self.threads.len()]
            .0
            .send(batch);
        self.sent_count += 1;
        self.in_flight.push_back(memory);
        Ok(())
    }

    /// Waits for the oldest batch in flight.
    fn receive_batch(&mut self) -> Outcome {
        let outcome = self.threads[self.received_count % self.threads.len()]
            .1
            .recv();
        self.received_count += 1;
        self.in_flight.pop_front();
        outcome.map_err(|_| UnusableData("a thread that checks chunks panicked".into()))?
    }
}

impl UncheckedChunk {
    fn check(self, pages: &mut HugePages) -> Result<CheckedChunk, UnusableData> {
        let Self { serial, record, .. } = self;
        if !record.is_valid() {
            return UnusableData::err(format!("the checksum of chunk {serial} is wrong"));
        }
        let bytes = &record.body()[self.payload_start..];
        let mut payload = allocate_payload(serial, bytes.len())?;
        pages.request(&mut payload);
        payload.copy_from_slice(bytes);
        Ok((serial, record.bytes(), self.header.into_chunk(payload)?))
    }
}
