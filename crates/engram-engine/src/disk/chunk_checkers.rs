//! Large chunks are checked, and copied to memory of their own, by threads, while somebody looks for the next.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use engram_core::chunk::Chunk;

use super::byte_codec::CorruptRecord;
use super::large_pages::LargePages;
use super::record_codec::{ChunkHeader, allocate_chunk};
use super::record_reader::UncheckedRecord;

/// Bytes that a thread is given at a time.
const AT_ONCE: usize = 1 << 20;

/// Bytes of memory that a parcel in the making keeps at most, or one chunk: whoever reads ahead waits for it.
const KEPT: usize = 3 << 20;

/// Such parcels per thread on their way.
const PARCELS: usize = 2;

/// Bytes of memory that all of them keep at most, or one.
const ALL_KEPT: usize = 64 << 20;

const MOST_THREADS: usize = 8;

/// A chunk to be looked at.
#[derive(Debug)]
pub(super) struct UncheckedChunk {
    pub(super) serial: u64,
    pub(super) facts: ChunkHeader,
    pub(super) record: UncheckedRecord,
    /// Where in the record's body the chunk's bytes begin.
    pub(super) front: usize,
}

/// Its serial, the bytes of its record, and the chunk.
pub(super) type CheckedChunk = (u64, u64, Chunk);

type Outcome = Result<Vec<CheckedChunk>, CorruptRecord>;

/// Threads that check chunks and copy them. What comes out is in the order of what went in.
#[derive(Debug, Default)]
pub(super) struct ChunkCheckers {
    /// Begun when they are needed.
    threads: Vec<(SyncSender<Vec<UncheckedChunk>>, Receiver<Outcome>)>,
    parcel: Vec<UncheckedChunk>,
    bytes: usize,
    kept: usize,
    given: usize,
    taken: usize,
    /// What each parcel on its way keeps.
    away: VecDeque<usize>,
}

impl ChunkCheckers {
    fn begin(&mut self) -> io::Result<()> {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..count.clamp(2, MOST_THREADS)).map(|_| {
            let (give, parcels) = sync_channel::<Vec<UncheckedChunk>>(PARCELS);
            let (tell, outcomes) = sync_channel(PARCELS + 1);
            let thread = thread::Builder::new().name("engram-chunks".into());
            thread.spawn(move || {
                let mut pages = LargePages::default();
                for parcel in parcels {
                    let found = parcel.into_iter().map(|wanted| wanted.read(&mut pages));
                    let outcome = found.collect();
                    if tell.send(outcome).is_err() {
                        return;
                    }
                }
            })?;
            Ok((give, outcomes))
        });
        self.threads = threads.collect::<io::Result<_>>()?;
        Ok(())
    }

    /// Lets a chunk be checked; returns some that have been.
    ///
    /// # Errors
    /// One of them is not what was written.
    pub(super) fn give(&mut self, wanted: UncheckedChunk) -> Outcome {
        let last = self.parcel.last().map(|last| &last.record);
        self.kept += wanted.record.keeps(last);
        self.bytes += wanted.record.body().len();
        self.parcel.push(wanted);
        if self.bytes < AT_ONCE && self.kept < KEPT {
            return Ok(Vec::new());
        }
        self.send()?;
        let mut found = Vec::new();
        while self.away.len() > PARCELS * self.threads.len()
            || (self.away.len() > 1 && self.away.iter().sum::<usize>() > ALL_KEPT)
        {
            found.extend(self.take()?);
        }
        Ok(found)
    }

    /// Those that are left; none once all have been returned.
    ///
    /// # Errors
    /// As [`ChunkCheckers::give`].
    pub(super) fn finish(&mut self) -> Outcome {
        self.send()?;
        let mut found = Vec::new();
        while !self.away.is_empty() {
            found.extend(self.take()?);
        }
        Ok(found)
    }

    fn send(&mut self) -> Result<(), CorruptRecord> {
        let parcel = std::mem::take(&mut self.parcel);
        let kept = std::mem::take(&mut self.kept);
        self.bytes = 0;
        if parcel.is_empty() {
            return Ok(());
        }
        if self.threads.is_empty() {
            self.begin()
                .map_err(|error| CorruptRecord(format!("no thread to check chunks: {error}")))?;
        }
        // One that is gone is missed when its answer is.
        let _ = self.threads[self.given % self.threads.len()].0.send(parcel);
        self.given += 1;
        self.away.push_back(kept);
        Ok(())
    }

    fn take(&mut self) -> Outcome {
        let outcome = self.threads[self.taken % self.threads.len()].1.recv();
        self.taken += 1;
        self.away.pop_front();
        outcome.map_err(|_| CorruptRecord("a thread that checks chunks is gone".into()))?
    }
}

impl UncheckedChunk {
    fn read(self, pages: &mut LargePages) -> Result<CheckedChunk, CorruptRecord> {
        let Self { serial, record, .. } = self;
        if !record.passes() {
            return CorruptRecord::err(format!("the checksum of chunk {serial} does not fit"));
        }
        let bytes = &record.body()[self.front..];
        let mut payload = allocate_chunk(serial, bytes.len())?;
        pages.prefer(&mut payload);
        payload.copy_from_slice(bytes);
        Ok((serial, record.bytes(), self.facts.chunk(payload)?))
    }
}
