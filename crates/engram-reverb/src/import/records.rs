//! `TFRecord` files: length, checksum, bytes, checksum; as they are, or compressed as a whole with zlib.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _};
use std::path::Path;

use engram_core::{Error, Result};
use flate2::read::ZlibDecoder;
use prost::Message;

/// Bytes of a record. No part of a checkpoint of dm-reverb's has more: protobuf does not.
const MOST: u64 = 2 << 30;

/// The records of a file, in order.
pub(super) struct Records {
    name: String,
    bytes: Box<dyn Read>,
}

impl Records {
    /// # Errors
    /// [`Error::Storage`] where the file cannot be read.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let bytes = open(path).map_err(|error| Error::Storage(format!("{name}: {error}")))?;
        Ok(Self { name, bytes })
    }

    /// The next message; `None` after the last.
    ///
    /// # Errors
    /// [`Error::Payload`] for a record that is damaged or another message, [`Error::Storage`] where the file
    /// cannot be read.
    pub(super) fn next<T: Message + Default>(&mut self) -> Result<Option<T>> {
        let Some(record) = self.record()? else {
            return Ok(None);
        };
        let message = T::decode(&*record);
        message
            .map(Some)
            .map_err(|error| self.damaged(&format!("a record is no such message: {error}")))
    }

    fn record(&mut self) -> Result<Option<Vec<u8>>> {
        let head = self.some(12)?;
        if head.is_empty() {
            return Ok(None);
        }
        let Some(len) = length(&head) else {
            return Err(
                self.damaged("the length of a record is cut off, or not what its checksum says")
            );
        };
        if len > MOST {
            return Err(self.damaged(&format!(
                "a record has {len} bytes; at most {MOST} are allowed"
            )));
        }
        let record = self.some(len)?;
        let sum = self.some(4)?;
        if record.len() as u64 != len || sum != masked(&record).to_le_bytes() {
            return Err(self.damaged("a record is cut off, or not what its checksum says"));
        }
        Ok(Some(record))
    }

    /// So many bytes, or those that are left. Memory follows what comes.
    fn some(&mut self, len: u64) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let read = self.bytes.by_ref().take(len).read_to_end(&mut out);
        match read {
            Ok(_) => Ok(out),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                Err(self.damaged(&format!("it is not compressed as it should be: {error}")))
            }
            Err(error) => Err(self.damaged(&error.to_string())),
        }
    }

    fn damaged(&self, what: &str) -> Error {
        Error::Payload(format!("{}: {what}", self.name))
    }
}

fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    let mut file = File::open(path)?;
    let mut head = Vec::new();
    file.by_ref().take(12).read_to_end(&mut head)?;
    file.rewind()?;
    let bytes = BufReader::new(file);
    Ok(if head.is_empty() || length(&head).is_some() {
        Box::new(bytes)
    } else {
        Box::new(ZlibDecoder::new(bytes))
    })
}

/// The length of a record, if its checksum is right.
fn length(head: &[u8]) -> Option<u64> {
    let (length, sum) = head.split_first_chunk::<8>()?;
    (*sum == masked(length).to_le_bytes()).then(|| u64::from_le_bytes(*length))
}

/// The checksum of bytes that may have checksums in them.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_tensorflows() {
        // The head of an empty record, as TensorFlow writes it.
        let head = [0, 0, 0, 0, 0, 0, 0, 0, 0x29, 0x03, 0x98, 0x07];
        assert_eq!(length(&head), Some(0));
        assert_eq!(masked(&[]), 0xa282_ead8);
        assert_eq!(length(&head[..11]), None);
    }
}
