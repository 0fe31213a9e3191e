//! Restoring a replay buffer from a file that [`super::SaveTarget`] wrote.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engram_core::ring::{DeviceCells, EnvSteps, SavedRun, StepBuffer};
use engram_core::selector::TableRng;
use engram_core::{Error, Result, Schema};

use super::buffer_writer::Interrupted;
use super::byte_codec::{BodyReader, UnusableData};
use super::change_codec::read_rng;
use super::directory::ReadableFile;
use super::errors::{damaged, failed};
use super::file_format::{FileKind, HeaderError, VERSION};
use super::kind;
use super::record_codec::ReadDictionary;
use super::record_reader::{EndOfRecords, RecordReader};
use super::recovery_error::unusable_record;

/// Bytes read between two checks for an interruption.
const INTERRUPT_INTERVAL: u64 = 16 << 20;

/// A saved replay buffer that is being read.
#[derive(Debug)]
pub struct SavedBuffer {
    records: Records,
    header: BufferHeader,
}

/// The body of a `buffer` record.
#[derive(Debug)]
struct BufferHeader {
    schema: Arc<Schema>,
    num_envs: u64,
    has_flags: bool,
    has_priorities: bool,
    rng: TableRng,
}

impl SavedBuffer {
    /// Opens a file and reads what precedes the steps of the environments.
    ///
    /// # Errors
    /// [`Error::Storage`] if the file does not exist, cannot be read or is damaged.
    pub fn open(path: &Path) -> Result<Self> {
        let unreadable = |error: io::Error| failed(path, "read", &error);
        let is_file = path.metadata().map_err(unreadable)?.is_file();
        if !is_file {
            let path = path.display();
            return Err(Error::Storage(format!(
                "{path} is not a file; a saved replay buffer is a file"
            )));
        }
        Self::read(path, Box::new(File::open(path).map_err(unreadable)?))
    }

    /// [`Self::open`] for an open file; `path` is for messages.
    pub(super) fn read(path: &Path, file: Box<dyn ReadableFile>) -> Result<Self> {
        let mut records = Records::open(path, file, FileKind::SavedBuffer)?;
        let mut dictionary = ReadDictionary::default();
        let header = loop {
            let read = |kind, body: &[u8]| {
                if kind == kind::BUFFER {
                    return BufferHeader::read(BodyReader(body), &dictionary).map(Some);
                }
                if dictionary.add_record(kind, body)? {
                    return Ok(None);
                }
                unexpected(kind)
            };
            if let Some(header) = records.next(read)? {
                break header;
            }
        };
        Ok(Self { records, header })
    }

    /// Columns and nesting of the steps.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        &self.header.schema
    }

    /// Checks that the steps of a buffer have the schema of the save.
    ///
    /// # Errors
    /// [`Error::Signature`] if not.
    pub fn check_schema(&self, of_buffer: &Schema) -> Result<()> {
        check_schema(&self.records.path, self.schema(), of_buffer)
    }

    /// Fills a buffer to which no step was added, whose steps have the schema of the save; and `device_cells`, which are zeros,
    /// with the cells of which its ring has only the numbers. A buffer with fewer slots gets the newest steps. Returns false if
    /// `interrupted` returns true. Then, and after an error, the buffer is unchanged.
    ///
    /// # Errors
    /// [`Error::Storage`] if the file cannot be read or is damaged; [`Error::Priority`] if a priority is too large for the
    /// sampler; [`Error::InvalidArgument`] if the buffer has another number of environments or had steps before;
    /// [`Error::OutOfMemory`].
    pub fn restore(
        self,
        buffer: &mut StepBuffer,
        device_cells: DeviceCells<'_>,
        interrupted: Interrupted<'_>,
    ) -> Result<bool> {
        let Self {
            mut records,
            header,
        } = self;
        let envs = read_environments(&mut records, header.num_envs)?;
        let begun = buffer.begin_restore(&envs, device_cells);
        let mut restore = begun.map_err(|error| records.to_error(error))?;
        let mut next_check = INTERRUPT_INTERVAL;
        loop {
            let mut outcome = Ok(());
            let is_last = records.next(|kind, body| {
                let mut reader = BodyReader(body);
                match kind {
                    kind::STEPS => {
                        let run = header.read_run(&mut reader)?;
                        match restore.add(&run) {
                            Err(Error::Payload(reason)) => return UnusableData::err(reason),
                            added => outcome = added,
                        }
                    }
                    kind::END => {
                        reader.u32()?;
                        let records_before = reader.u64()?;
                        reader.check_end()?;
                        return Ok(Some(records_before));
                    }
                    _ => return unexpected(kind),
                }
                Ok(None)
            })?;
            outcome?;
            if let Some(records_before) = is_last {
                records.check_end(records_before)?;
                break;
            }
            if records.reader.offset() >= next_check {
                next_check = records.reader.offset() + INTERRUPT_INTERVAL;
                if interrupted() {
                    return Ok(false);
                }
            }
        }
        let finished = restore.finish(header.rng);
        finished.map_err(|error| records.to_error(error))?;
        Ok(true)
    }
}

/// Checks that the steps of a buffer have the schema of the steps in a file.
///
/// # Errors
/// [`Error::Signature`] if not.
pub(super) fn check_schema(path: &Path, of_file: &Schema, of_buffer: &Schema) -> Result<()> {
    if of_file == of_buffer {
        return Ok(());
    }
    let [of_file, of_buffer] = [of_file, of_buffer].map(describe_columns);
    let difference = if of_file == of_buffer {
        format!("the columns are nested in other containers; both have {of_file}")
    } else {
        format!("the file has {of_file}; this buffer has {of_buffer}")
    };
    let path = path.display();
    Err(Error::Signature(format!(
        "{path}: its steps differ from those of this buffer: {difference}"
    )))
}

/// Lists columns with their dtypes and shapes.
fn describe_columns(schema: &Schema) -> String {
    let columns = schema.layout.names.iter().zip(&schema.cells);
    let columns = columns.map(|(name, cell)| match &**name {
        "" => cell.to_string(),
        name => format!("`{name}` {cell}"),
    });
    columns.collect::<Vec<_>>().join(", ")
}

/// Reads the records that state which steps each environment has.
fn read_environments(records: &mut Records, num_envs: u64) -> Result<Vec<EnvSteps>> {
    let mut envs = Vec::new();
    while (envs.len() as u64) < num_envs {
        envs.extend(records.next(|kind, body| {
            if kind != kind::ENVIRONMENTS {
                return unexpected(kind);
            }
            let mut reader = BodyReader(body);
            let envs = reader.list(16, |reader| {
                Ok(EnvSteps {
                    added: reader.u64()?,
                    stored: reader.u64()?,
                })
            })?;
            if envs.is_empty() {
                return UnusableData::err("it has no environments");
            }
            reader.check_end().map(|()| envs)
        })?);
    }
    Ok(envs)
}

impl BufferHeader {
    fn read(mut reader: BodyReader<'_>, dictionary: &ReadDictionary) -> Result<Self, UnusableData> {
        let header = Self {
            schema: dictionary.schema(reader.u32()?)?,
            num_envs: reader.u64()?,
            has_flags: reader.bool()?,
            has_priorities: reader.bool()?,
            rng: read_rng(&mut reader)?,
        };
        reader.check_end().map(|()| header)
    }

    /// Reads consecutive steps.
    fn read_run<'a>(&self, reader: &mut BodyReader<'a>) -> Result<SavedRun<'a>, UnusableData> {
        let (env, position, len) = (reader.u64()?, reader.u64()?, reader.u32()? as usize);
        let flags = self.has_flags.then(|| reader.bytes(len)).transpose()?;
        let priorities = self
            .has_priorities
            .then(|| reader.bytes(8 * len))
            .transpose()?;
        Ok(SavedRun {
            env,
            position,
            len,
            flags,
            priorities,
            cells: reader.0,
        })
    }
}

/// The records of a replay buffer's file, of which all must be intact.
#[derive(Debug)]
pub(super) struct Records {
    /// For messages.
    path: PathBuf,
    pub(super) reader: RecordReader,
    /// Number of records read.
    count: u64,
}

impl Records {
    /// Reads the header of a file, which must have this kind.
    pub(super) fn open(path: &Path, file: Box<dyn ReadableFile>, kind: FileKind) -> Result<Self> {
        let error = |reason: &str| Error::Storage(format!("{} {reason}", path.display()));
        let reader = match RecordReader::new(file) {
            Ok(Ok(reader)) => reader,
            Ok(Err(HeaderError::Corrupt(UnusableData(reason)))) => {
                return Err(damaged(path, &reason));
            }
            Ok(Err(HeaderError::UnsupportedVersion(version))) => {
                let this = format!("but this release reads only version {VERSION}");
                return Err(error(&format!("has format version {version}, {this}")));
            }
            Err(error) => return Err(failed(path, "read", &error)),
        };
        let found = reader.header.kind;
        if found != kind {
            let [found, expected] = [found, kind].map(FileKind::describe);
            return Err(error(&format!("is {found}, not {expected}")));
        }
        Ok(Self {
            path: path.into(),
            reader,
            count: 0,
        })
    }

    /// Reads the next record with `read`, which receives its kind and body.
    pub(super) fn next<T>(
        &mut self,
        read: impl FnOnce(u32, &[u8]) -> Result<T, UnusableData>,
    ) -> Result<T> {
        let offset = self.reader.offset();
        let reason = match self.reader.next() {
            Ok(Ok(record)) => match read(record.kind, record.body) {
                Ok(value) => {
                    self.count += 1;
                    return Ok(value);
                }
                Err(reason) => unusable_record("it", offset, &reason).0,
            },
            Ok(Err(EndOfRecords::EndOfFile)) => "it is incomplete".into(),
            Ok(Err(EndOfRecords::Invalid { offset, reason })) => {
                format!("it is damaged at byte {offset}: {reason}")
            }
            Err(error) => return Err(failed(&self.path, "read", &error)),
        };
        Err(damaged(&self.path, &reason))
    }

    /// Checks that the `end` record, which was read last, is that of this file, and that no other record follows.
    fn check_end(&self, records_before: u64) -> Result<()> {
        if records_before + 1 != self.count {
            return Err(damaged(&self.path, "some of its records are missing"));
        }
        if self.reader.offset() != self.reader.len() {
            return Err(damaged(&self.path, "it has bytes after its last record"));
        }
        Ok(())
    }

    /// The error for one of [`StepBuffer::begin_restore`] or later calls.
    fn to_error(&self, error: Error) -> Error {
        match error {
            Error::Payload(reason) => damaged(&self.path, &reason),
            Error::InvalidArgument(text) => {
                Error::InvalidArgument(format!("{}: {text}", self.path.display()))
            }
            other => other,
        }
    }
}

/// The error for a record of this kind.
pub(super) fn unexpected<T>(kind: u32) -> Result<T, UnusableData> {
    UnusableData::err(format!("its kind {kind} is unexpected"))
}
