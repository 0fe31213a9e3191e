//! The part of a mapped file that is written only once: the schema and the size of the buffer, from which the places of
//! all other parts follow.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use engram_core::ring::BufferMemory;
use engram_core::{Error, Result, Schema};

use crate::disk::buffer_reader::{Records, unexpected};
use crate::disk::byte_codec::{BodyReader, BodyWriter, UnusableData};
use crate::disk::directory::WritableFile;
use crate::disk::errors::{damaged, failed};
use crate::disk::file_format::{FileHeader, FileKind};
use crate::disk::kind;
use crate::disk::mapping::PART_ALIGNMENT;
use crate::disk::record_codec::{DictionaryWriter as _, ReadDictionary};
use crate::disk::record_writer::RecordWriter;

use super::flushed::max_record_bytes;

/// Describes a mapped file in the texts of [`Error::OutOfMemory`].
pub(super) const FILE_DESCRIPTION: &str = "the file of the replay buffer";

/// The size of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferSize {
    pub(crate) num_envs: usize,
    /// Slots per environment.
    pub(crate) length: usize,
}

impl BufferSize {
    pub(super) fn describe(self) -> String {
        let (envs, length) = (self.num_envs, self.length);
        match envs {
            1 => format!("a capacity of {length} steps"),
            _ => format!("a capacity of {envs} environments with {length} steps each"),
        }
    }
}

/// The part of a file that is written only once.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) id: u64,
    pub(super) schema: Arc<Schema>,
    pub(super) size: BufferSize,
    pub(super) layout: FileLayout,
}

/// Where the parts of a file are.
#[derive(Debug)]
pub(super) struct FileLayout {
    /// The slots, then the parts of the buffer's memory.
    pub(super) parts: Vec<Range<usize>>,
    /// Size of the file.
    pub(super) len: usize,
}

impl FileLayout {
    /// The layout of a file whose first part ends at `head_end`. `None` if it is too large for any machine.
    fn new(head_end: u64, schema: &Schema, size: BufferSize) -> Option<Self> {
        let align = |len: usize| len.checked_next_multiple_of(PART_ALIGNMENT);
        let slot_bytes = align(max_record_bytes(size.num_envs)?)?;
        let memory = BufferMemory::sizes(&schema.cells, size.num_envs, size.length)?;
        let mut parts = Vec::with_capacity(memory.len() + 1);
        let mut end = align(usize::try_from(head_end).ok()?)?;
        for len in std::iter::once(slot_bytes.checked_mul(2)?).chain(memory) {
            parts.push(end..end.checked_add(len)?);
            end = align(end.checked_add(len)?)?;
        }
        Some(Self { parts, len: end })
    }
}

impl Head {
    /// Writes the part to an empty file.
    ///
    /// # Errors
    /// An error of the system, or [`Error::OutOfMemory`] if the buffer is too large for any machine.
    pub(super) fn write(
        file: Box<dyn WritableFile>,
        schema: &Arc<Schema>,
        size: BufferSize,
        id: u64,
    ) -> io::Result<Result<Self>> {
        let header = FileHeader {
            kind: FileKind::MappedBuffer,
            store: id,
            number: id,
        };
        let mut out = RecordWriter::new(file, header);
        let mut body = Vec::new();
        body.put_u32(out.schema_number(schema));
        body.put_u64(size.num_envs as u64);
        body.put_u64(size.length as u64);
        out.write_record(kind::MAPPED_BUFFER, &body);
        let layout = FileLayout::new(out.finish()?, schema, size);
        let head = layout.map(|layout| Self {
            id,
            schema: Arc::clone(schema),
            size,
            layout,
        });
        Ok(head.ok_or_else(|| Error::out_of_memory(FILE_DESCRIPTION, None)))
    }

    /// Reads the part of a file that is written only once, and checks the size of the file.
    pub(super) fn read(path: &Path, file: &File) -> Result<Self> {
        let unreadable = |error: io::Error| failed(path, "read", &error);
        let len = file.metadata().map_err(unreadable)?.len();
        let copy = file.try_clone().map_err(unreadable)?;
        let mut records = Records::open(path, Box::new(copy), FileKind::MappedBuffer)?;
        let id = records.reader.header.number;
        let mut dictionary = ReadDictionary::default();
        let (schema, size) = loop {
            let read = |kind, body: &[u8]| {
                if dictionary.add_record(kind, body)? {
                    return Ok(None);
                }
                if kind != kind::MAPPED_BUFFER {
                    return unexpected(kind);
                }
                let mut reader = BodyReader(body);
                let schema = dictionary.schema(reader.u32()?)?;
                let mut number = || match usize::try_from(reader.u64()?) {
                    Ok(number) if number > 0 => Ok(number),
                    _ => UnusableData::err("its size is invalid"),
                };
                let size = BufferSize {
                    num_envs: number()?,
                    length: number()?,
                };
                reader.check_end().map(|()| Some((schema, size)))
            };
            if let Some(head) = records.next(read)? {
                break head;
            }
        };
        let layout = FileLayout::new(records.reader.offset(), &schema, size);
        match layout {
            Some(layout) if layout.len as u64 == len => Ok(Self {
                id,
                schema,
                size,
                layout,
            }),
            layout => {
                let expected =
                    layout.map_or("2^64 or more".into(), |layout| layout.len.to_string());
                let reason = format!("it has {len} bytes, expected {expected}");
                Err(damaged(path, &reason))
            }
        }
    }
}
