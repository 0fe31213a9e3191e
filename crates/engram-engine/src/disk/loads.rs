//! Reading large chunks: each by itself, by threads of their own, while somebody looks for the next.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use engram_core::chunk::Chunk;

use super::bytes::Damage;
use super::file::RecordHead;
use super::files::Read;
use super::large_pages::LargePages;
use super::things::{ChunkFacts, room_for_chunk};

/// Bytes that a thread is given at a time.
const AT_ONCE: usize = 1 << 20;

/// Such parcels per thread on their way.
const PARCELS: usize = 2;

const MOST_THREADS: usize = 8;

/// A chunk to be read.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) serial: u64,
    pub(super) file: Arc<dyn Read>,
    pub(super) head: RecordHead,
    /// Of the record's body, what comes before the chunk's bytes.
    pub(super) front: Vec<u8>,
    pub(super) facts: ChunkFacts,
    /// Where those bytes lie, and how many they are.
    pub(super) place: u64,
    pub(super) len: usize,
    /// Of the whole record.
    pub(super) bytes: u64,
}

/// Its serial, the bytes of its record, and the chunk.
pub(super) type Found = (u64, u64, Chunk);

type Outcome = Result<Vec<Found>, Damage>;

/// Threads that read chunks. What comes out is in the order of what went in.
#[derive(Debug, Default)]
pub(super) struct Loads {
    /// Begun when they are needed.
    threads: Vec<(SyncSender<Vec<Wanted>>, Receiver<Outcome>)>,
    parcel: Vec<Wanted>,
    bytes: usize,
    given: usize,
    taken: usize,
}

impl Loads {
    fn begin(&mut self) -> io::Result<()> {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..count.clamp(2, MOST_THREADS)).map(|_| {
            let (give, parcels) = sync_channel::<Vec<Wanted>>(PARCELS);
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

    /// Lets a chunk be read; returns some that have been.
    ///
    /// # Errors
    /// One of them is not what was written.
    pub(super) fn give(&mut self, wanted: Wanted) -> Outcome {
        self.bytes += wanted.len;
        self.parcel.push(wanted);
        if self.bytes < AT_ONCE {
            return Ok(Vec::new());
        }
        self.send()?;
        if self.given - self.taken <= PARCELS * self.threads.len() {
            return Ok(Vec::new());
        }
        self.take()
    }

    /// Those that are left; none once all have been returned.
    ///
    /// # Errors
    /// As [`Loads::give`].
    pub(super) fn finish(&mut self) -> Outcome {
        self.send()?;
        let mut found = Vec::new();
        while self.taken < self.given {
            found.extend(self.take()?);
        }
        Ok(found)
    }

    fn send(&mut self) -> Result<(), Damage> {
        let parcel = std::mem::take(&mut self.parcel);
        self.bytes = 0;
        if parcel.is_empty() {
            return Ok(());
        }
        if self.threads.is_empty() {
            self.begin()
                .map_err(|error| Damage(format!("no thread to read chunks with: {error}")))?;
        }
        // One that is gone is missed when its answer is.
        let _ = self.threads[self.given % self.threads.len()].0.send(parcel);
        self.given += 1;
        Ok(())
    }

    fn take(&mut self) -> Outcome {
        let outcome = self.threads[self.taken % self.threads.len()].1.recv();
        self.taken += 1;
        outcome.map_err(|_| Damage("a thread that reads chunks is gone".into()))?
    }
}

impl Wanted {
    fn read(self, pages: &mut LargePages) -> Result<Found, Damage> {
        let Self { serial, head, .. } = self;
        let mut payload = room_for_chunk(serial, self.len)?;
        pages.prefer(&mut payload);
        let read = self.file.read_at(&mut payload, self.place);
        read.map_err(|error| Damage(format!("chunk {serial} cannot be read: {error}")))?;
        if !head.fits(&[&self.front, &payload]) {
            return Damage::new(format!("the checksum of chunk {serial} does not fit"));
        }
        Ok((serial, self.bytes, self.facts.chunk(payload)?))
    }
}
