//! Reads the `TFRecord` files of dm-reverb's checkpoints, which are compressed with zlib as a whole.
//!
//! A record consists of its length (`u64`), the masked CRC-32C of the length, its bytes, and the masked
//! CRC-32C of the bytes.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek as _};
use std::path::{Path, PathBuf};

use engram_codec::{DecodedSize, check_decoded_size};
use engram_core::{Error, Result};
use flate2::read::ZlibDecoder;

/// Maximum number of bytes of a record: the limit of protobuf messages.
const MAX_RECORD_BYTES: u64 = 2 << 30;

/// Bytes that are read before more memory is allocated.
const READ_STEP: u64 = 16 << 20;

/// Reads the records of one file in order.
pub(crate) struct TfRecordReader {
    path: PathBuf,
    source: Box<dyn Read>,
    /// Number of records read.
    count: u64,
}

impl TfRecordReader {
    /// Opens a file. Also reads uncompressed files, which older versions wrote.
    ///
    /// # Errors
    /// [`Error::Storage`] if it cannot be read.
    pub(crate) fn open(directory: &Path, name: &str) -> Result<Self> {
        let path = directory.join(name);
        let failed = |error| Error::Storage(format!("{} cannot be read: {error}", path.display()));
        let mut file = File::open(&path).map_err(failed)?;
        let mut header = Vec::new();
        file.by_ref()
            .take(12)
            .read_to_end(&mut header)
            .map_err(failed)?;
        let is_uncompressed =
            header.is_empty() || (header.len() == 12 && is_checksum(&header[..8], &header[8..]));
        file.rewind().map_err(failed)?;
        let file = BufReader::with_capacity(1 << 20, file);
        let source: Box<dyn Read> = if is_uncompressed {
            Box::new(file)
        } else {
            Box::new(BufReader::with_capacity(1 << 18, ZlibDecoder::new(file)))
        };
        Ok(Self {
            path,
            source,
            count: 0,
        })
    }

    /// The next record; `None` at the end of the file.
    ///
    /// # Errors
    /// [`Error::Storage`] for a truncated or corrupt record.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let mut header = [0; 12];
        match self.fill(&mut header)? {
            0 => return Ok(None),
            12 => {}
            _ => return Err(self.error_in_next("is truncated")),
        }
        let (len, sum) = header.split_at(8);
        if !is_checksum(len, sum) {
            return Err(self.error_in_next("is corrupt: the checksum of its length does not match"));
        }
        let len = len
            .iter()
            .rev()
            .fold(0, |len, byte| len << 8 | u64::from(*byte));
        if len > MAX_RECORD_BYTES {
            return Err(self.error_in_next(&format!(
                "is corrupt: its length is {len} bytes, and at most {MAX_RECORD_BYTES} are allowed"
            )));
        }
        // Memory is allocated as bytes are read: a corrupt length may exceed the file.
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < len {
            let step = READ_STEP.min(len - bytes.len() as u64);
            let read = self.source.by_ref().take(step).read_to_end(&mut bytes);
            if read.map_err(|error| self.read_error(&error))? == 0 {
                return Err(self.error_in_next("is truncated"));
            }
        }
        let mut sum = [0; 4];
        if self.fill(&mut sum)? < 4 {
            return Err(self.error_in_next("is truncated"));
        }
        if !is_checksum(&bytes, &sum) {
            return Err(self.error_in_next("is corrupt: its checksum does not match"));
        }
        self.count += 1;
        Ok(Some(bytes))
    }

    /// The next record, decoded as a message.
    ///
    /// # Errors
    /// Those of [`Self::next`], and [`Error::Storage`] for a record that is too large or not a valid message.
    pub(crate) fn message<M: prost::Message + Default + DecodedSize>(
        &mut self,
    ) -> Result<Option<M>> {
        let Some(bytes) = self.next()? else {
            return Ok(None);
        };
        check_decoded_size::<M>(&bytes)
            .map_err(|problem| self.error_in_last(&format!("is too large: {problem}")))?;
        let message = M::decode(&*bytes);
        message
            .map(Some)
            .map_err(|error| self.error_in_last(&format!("is not a valid message: {error}")))
    }

    /// An error about the record that was read last.
    pub(crate) fn error_in_last(&self, what: &str) -> Error {
        self.error_in(self.count, what)
    }

    /// An error about the record that is being read.
    fn error_in_next(&self, what: &str) -> Error {
        self.error_in(self.count + 1, what)
    }

    fn error_in(&self, record: u64, what: &str) -> Error {
        Error::Storage(format!("record {record} of {} {what}", self.path.display()))
    }

    fn read_error(&self, error: &std::io::Error) -> Error {
        self.error_in_next(&format!("cannot be read: {error}"))
    }

    /// Reads until the buffer is full or the file ends; returns the number of bytes read.
    fn fill(&mut self, out: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < out.len() {
            match self.source.read(&mut out[done..]) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.read_error(&error)),
            }
        }
        Ok(done)
    }
}

/// True if `sum` is the masked CRC-32C of the bytes, little-endian.
fn is_checksum(bytes: &[u8], sum: &[u8]) -> bool {
    let mask = 0xa282_ead8_u32;
    let masked = crc32c::crc32c(bytes).rotate_right(15).wrapping_add(mask);
    masked.to_le_bytes() == sum
}
