//! The mark that a store writes when it is closed: where its logs ended. With it, recovery detects a log that was
//! cut since, even between two records.

use std::io;

use super::byte_codec::{BodyReader, BodyWriter, UnusableData};
use super::directory::{Directory, ReadableDirectory};
use super::file_format::{FileHeader, FileKind, record_header};
use super::file_names::{CLOSE_MARK_NAME, FileName, log_name};
use super::kind;
use super::record_reader::RecordReader;
use super::recovery_error::{RecoveryError, read_error};

/// Where the logs of a closed store ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CloseMark {
    /// Random id of the store.
    pub(crate) store: u64,
    /// Number of the log that was open for changes when the store was closed. It may have none; a log of chunks may have a
    /// larger number.
    pub(crate) log: u64,
    /// Size of that log in bytes.
    pub(crate) bytes: u64,
    /// Largest number that the store has given to a log.
    pub(crate) newest_log: u64,
}

/// States why a log may lack bytes that it had when its store was closed.
const LATER_LOSS: &str = "acknowledged changes are lost because of a power failure (which cannot cause this with \
                          `durability=\"disk\"`), or because the file was damaged after the store was closed";

impl CloseMark {
    /// Writes the mark, durably if `sync` is true.
    pub(crate) fn write(self, files: &dyn Directory, sync: bool) -> io::Result<()> {
        let header = FileHeader {
            kind: FileKind::Closed,
            store: self.store,
            number: 0,
        };
        let header = header.bytes();
        let mut body = Vec::new();
        for number in [self.log, self.bytes, self.newest_log] {
            body.put_u64(number);
        }
        let record = record_header(0, header.len() as u64, kind::CLOSED, &[&body]);
        let mut file = files.create(CLOSE_MARK_NAME)?;
        file.append(&[&header, &record, &body])?;
        if sync {
            file.sync()?;
            files.sync_directory()?;
        }
        Ok(())
    }

    /// Reads the mark of a directory with files of these names. Returns `None` if there is none, if it is invalid
    /// (for example after a power loss), or if it is outdated because a newer log exists
    /// (also a `.tmp` or `.lost` one).
    ///
    /// # Errors
    /// [`RecoveryError::Unreadable`] if the mark cannot be read now, but may be intact.
    pub(crate) fn read(
        files: &dyn ReadableDirectory,
        names: &[String],
    ) -> Result<Option<Self>, RecoveryError> {
        let is_outdated = |mark: &Self| {
            names
                .iter()
                .any(|name| match FileName::without_suffix(name) {
                    Some(FileName::Log(log)) => log > mark.newest_log,
                    _ => false,
                })
        };
        match Self::read_file(files) {
            Ok(mark) => Ok(mark.filter(|mark| !is_outdated(mark))),
            // It is a link, pipe, socket or device.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
            Err(error) => match read_error(CLOSE_MARK_NAME, &error) {
                unreadable @ RecoveryError::Unreadable(_) => Err(unreadable),
                _ => Ok(None),
            },
        }
    }

    /// Reads the mark's file; `None` if it is invalid.
    fn read_file(files: &dyn ReadableDirectory) -> io::Result<Option<Self>> {
        let Ok(mut file_reader) = RecordReader::new(files.open(CLOSE_MARK_NAME)?)? else {
            return Ok(None);
        };
        let header = file_reader.header;
        Ok(match file_reader.next()? {
            Ok(record) if (header.kind, record.kind) == (FileKind::Closed, kind::CLOSED) => {
                Self::read_body(header.store, record.body).ok()
            }
            _ => None,
        })
    }

    fn read_body(store: u64, body: &[u8]) -> Result<Self, UnusableData> {
        let mut reader = BodyReader(body);
        let mark = Self {
            store,
            log: reader.u64()?,
            bytes: reader.u64()?,
            newest_log: reader.u64()?,
        };
        reader.check_end().map(|()| mark)
    }

    /// True if `log` is the log of the mark, and had the byte at `offset` when the store was closed. The mark does not state
    /// the sizes of other logs.
    pub(crate) fn covers(&self, log: u64, offset: u64) -> bool {
        self.log == log && offset < self.bytes
    }

    /// Returns the last part of a sentence about an invalid record at an offset of the log that the mark covers.
    pub(crate) fn describe_damage(&self) -> String {
        let bytes = self.bytes;
        format!("but the store was closed with {bytes} bytes in this log: {LATER_LOSS}")
    }

    /// Describes the loss if the log is missing, or shorter than when the store was closed; `None` otherwise, also if
    /// the log's size cannot be read.
    pub(crate) fn describe_loss(&self, files: &dyn ReadableDirectory) -> Option<String> {
        let (name, bytes) = (log_name(self.log), self.bytes);
        match files.open(&name).and_then(|file| file.len()) {
            Ok(len) if len < bytes => Some(format!(
                "{name} has {len} bytes, but had {bytes} when the store was closed: {LATER_LOSS}"
            )),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(format!(
                "{name}, the last log of the closed store, is missing: acknowledged changes are lost"
            )),
            _ => None,
        }
    }
}
