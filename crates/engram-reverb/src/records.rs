//! Files of records, as dm-reverb's checkpoints have them: `TFRecord`, the whole file compressed with zlib.
//!
//! A record is its length (`u64`), the masked CRC-32C of that, its bytes, and their masked CRC-32C.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek as _};
use std::path::Path;

use engram_codec::{DecodedSize, check_decoded_size};
use engram_core::{Error, Result};
use flate2::read::ZlibDecoder;

/// Bytes of a record: protobuf has no larger messages.
const MAX_RECORD: u64 = 2 << 30;

/// Bytes that are read before more memory is taken.
const STEP: u64 = 16 << 20;

/// The records of one file, in order.
pub(crate) struct Records {
    name: String,
    source: Box<dyn Read>,
    /// Records read so far.
    count: u64,
}

impl Records {
    /// Opens a file. One that is not compressed, as checkpoints were once, is read as it is.
    ///
    /// # Errors
    /// [`Error::Storage`] where it cannot be read.
    pub(crate) fn open(directory: &Path, name: &str) -> Result<Self> {
        let path = directory.join(name);
        let failed = |error| Error::Storage(format!("{} cannot be read: {error}", path.display()));
        let mut file = File::open(&path).map_err(failed)?;
        let mut head = Vec::new();
        file.by_ref()
            .take(12)
            .read_to_end(&mut head)
            .map_err(failed)?;
        let is_plain = head.is_empty() || (head.len() == 12 && is_sum(&head[..8], &head[8..]));
        file.rewind().map_err(failed)?;
        let file = BufReader::with_capacity(1 << 20, file);
        let source: Box<dyn Read> = if is_plain {
            Box::new(file)
        } else {
            Box::new(BufReader::with_capacity(1 << 18, ZlibDecoder::new(file)))
        };
        Ok(Self {
            name: name.to_owned(),
            source,
            count: 0,
        })
    }

    /// The next record; `None` at the end of the file.
    ///
    /// # Errors
    /// [`Error::Storage`] for a record that is cut off or damaged.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let mut head = [0; 12];
        match self.fill(&mut head)? {
            0 => return Ok(None),
            12 => {}
            _ => return Err(self.damaged("is cut off")),
        }
        let (len, sum) = head.split_at(8);
        if !is_sum(len, sum) {
            return Err(self.damaged("has a length that does not fit its checksum"));
        }
        let len = len
            .iter()
            .rev()
            .fold(0, |len, byte| len << 8 | u64::from(*byte));
        if len > MAX_RECORD {
            return Err(self.damaged(&format!(
                "has {len} bytes; at most {MAX_RECORD} are possible"
            )));
        }
        // Memory is taken as bytes come: a length may promise more than the file has.
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < len {
            let step = STEP.min(len - bytes.len() as u64);
            let read = self.source.by_ref().take(step).read_to_end(&mut bytes);
            if read.map_err(|error| self.unreadable(&error))? == 0 {
                return Err(self.damaged("is cut off"));
            }
        }
        let mut sum = [0; 4];
        if self.fill(&mut sum)? < 4 {
            return Err(self.damaged("is cut off"));
        }
        if !is_sum(&bytes, &sum) {
            return Err(self.damaged("does not fit its checksum"));
        }
        self.count += 1;
        Ok(Some(bytes))
    }

    /// The next record as a message.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub(crate) fn message<M: prost::Message + Default + DecodedSize>(
        &mut self,
    ) -> Result<Option<M>> {
        let Some(bytes) = self.next()? else {
            return Ok(None);
        };
        check_decoded_size::<M>(&bytes)
            .map_err(|problem| self.problem(&format!("cannot be: {problem}")))?;
        let message = M::decode(&*bytes);
        message
            .map(Some)
            .map_err(|error| self.problem(&format!("is not what it should be: {error}")))
    }

    /// What is wrong with the record that was read last.
    pub(crate) fn problem(&self, what: &str) -> Error {
        Error::Storage(format!("record {} of {} {what}", self.count, self.name))
    }

    fn damaged(&self, what: &str) -> Error {
        Error::Storage(format!("record {} of {} {what}", self.count + 1, self.name))
    }

    fn unreadable(&self, error: &std::io::Error) -> Error {
        self.damaged(&format!("cannot be read: {error}"))
    }

    /// Reads until the buffer is full or the file ends; returns how many bytes came.
    fn fill(&mut self, out: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < out.len() {
            match self.source.read(&mut out[done..]) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.unreadable(&error)),
            }
        }
        Ok(done)
    }
}

/// Whether a masked checksum, little-endian, is that of these bytes.
fn is_sum(bytes: &[u8], sum: &[u8]) -> bool {
    let mask = 0xa282_ead8_u32;
    let masked = crc32c::crc32c(bytes).rotate_right(15).wrapping_add(mask);
    masked.to_le_bytes() == sum
}
