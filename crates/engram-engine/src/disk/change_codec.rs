//! Encoding of a table's changes in log records.

use std::sync::Arc;

use engram_core::chunk::Chunk;
use engram_core::selector::TableRng;
use engram_core::{NewItem, RateLimits, Removal, SessionNumber, TableOp, TableOptions};

use super::byte_codec::{BodyReader, BodyWriter, UnusableData};
use super::options_codec::{put_limits, read_limits};
use super::record_codec::{
    DictionaryWriter, ReadDictionary, put_session_number, read_session_number,
};

/// Codes of the kinds of changes.
mod code {
    pub(super) const INSERT: u8 = 1;
    pub(super) const SKIP_INSERT: u8 = 2;
    pub(super) const REMOVE: u8 = 3;
    pub(super) const SET_PRIORITY: u8 = 4;
    pub(super) const SAMPLE: u8 = 5;
    pub(super) const ACKNOWLEDGE: u8 = 6;
    pub(super) const RETURN_LEASES: u8 = 7;
    pub(super) const RESET: u8 = 8;
    pub(super) const SET_LIMITS: u8 = 9;
    pub(super) const SET_RNG: u8 = 10;
    pub(super) const ACKNOWLEDGE_NUMBERED: u8 = 11;
    pub(super) const UNDO_SAMPLES: u8 = 12;
}

/// Appends a change to `body`. `serial_of` returns the serial of a chunk; the chunks that the change refers to
/// must be written before this body's record.
pub(crate) fn put_change(
    body: &mut Vec<u8>,
    op: &TableOp<'_>,
    dictionary: &mut impl DictionaryWriter,
    serial_of: &impl Fn(&Arc<Chunk>) -> u64,
) {
    match *op {
        TableOp::Insert { item, now, number } => {
            body.put_u8(code::INSERT);
            dictionary.put_item(body, item.key, item.priority, &item.trajectory, serial_of);
            body.put_u64(now);
            body.put_option(number, put_session_number);
        }
        TableOp::SkipInsert { number, now } => {
            body.put_u8(code::SKIP_INSERT);
            put_session_number(body, number);
            body.put_u64(now);
        }
        TableOp::Remove { key, cause } => {
            body.put_u8(code::REMOVE);
            body.put_u64(key);
            body.put_u8(cause as u8);
        }
        TableOp::SetPriority { key, priority } => {
            body.put_u8(code::SET_PRIORITY);
            body.put_u64(key);
            body.put_f64(priority);
        }
        TableOp::SetRng { rng } => {
            body.put_u8(code::SET_RNG);
            put_rng(body, rng);
        }
        TableOp::Sample { keys, leased } => {
            body.put_u8(code::SAMPLE);
            body.put_u8(u8::from(leased));
            body.put_u64s(keys);
        }
        TableOp::Acknowledge { keys, samples } => {
            body.put_u8(code::ACKNOWLEDGE);
            body.put_u64s(keys);
            body.put_u64(samples);
        }
        TableOp::AcknowledgeNumbered {
            keys,
            samples,
            number,
            now,
        } => {
            body.put_u8(code::ACKNOWLEDGE_NUMBERED);
            body.put_u64s(keys);
            body.put_u64(samples);
            put_session_number(body, number);
            body.put_u64(now);
        }
        TableOp::ReturnLeases { keys, samples } => {
            body.put_u8(code::RETURN_LEASES);
            body.put_u64s(keys);
            body.put_u64(samples);
        }
        TableOp::UndoSamples { keys, samples } => {
            body.put_u8(code::UNDO_SAMPLES);
            body.put_u64s(keys);
            body.put_u64(samples);
        }
        TableOp::Reset => body.put_u8(code::RESET),
        TableOp::SetLimits { limits } => {
            body.put_u8(code::SET_LIMITS);
            put_limits(body, limits);
        }
    }
}

/// A change that was read: a [`TableOp`] that owns its data. [`Change::op`] gives the fields their names.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Insert(NewItem, u64, Option<SessionNumber>),
    SkipInsert(SessionNumber, u64),
    Remove(u64, Removal),
    SetPriority(u64, f64),
    SetRng(TableRng),
    Sample(Vec<u64>, bool),
    Acknowledge(Vec<u64>, u64),
    AcknowledgeNumbered(Vec<u64>, u64, SessionNumber, u64),
    ReturnLeases(Vec<u64>, u64),
    UndoSamples(Vec<u64>, u64),
    Reset,
    SetLimits(RateLimits),
}

impl Change {
    /// Reads a change. `get_chunk` returns a chunk by its serial. `applies` is true if the change will be applied to
    /// its table: then an inserted item's trajectory is checked against its chunks.
    pub(crate) fn read(
        reader: &mut BodyReader<'_>,
        dictionary: &ReadDictionary,
        applies: bool,
        get_chunk: &mut dyn FnMut(u64) -> Result<Arc<Chunk>, UnusableData>,
    ) -> Result<Self, UnusableData> {
        Ok(match reader.u8()? {
            code::INSERT => {
                let item = dictionary.read_item(reader, get_chunk)?;
                if applies {
                    item.trajectory.check_parts()?;
                }
                Self::Insert(item, reader.u64()?, reader.option(read_session_number)?)
            }
            code::SKIP_INSERT => Self::SkipInsert(read_session_number(reader)?, reader.u64()?),
            code::REMOVE => {
                let key = reader.u64()?;
                let number = reader.u8()?;
                let Some(cause) = Removal::ALL.get(usize::from(number)) else {
                    return UnusableData::err(format!(
                        "unknown removal cause {number}, expected 0 to 3"
                    ));
                };
                Self::Remove(key, *cause)
            }
            code::SET_PRIORITY => Self::SetPriority(reader.u64()?, reader.f64()?),
            code::SET_RNG => Self::SetRng(read_rng(reader)?),
            code::SAMPLE => {
                let leased = reader.bool()?;
                Self::Sample(reader.u64s()?, leased)
            }
            code::ACKNOWLEDGE => Self::Acknowledge(reader.u64s()?, reader.u64()?),
            code::ACKNOWLEDGE_NUMBERED => Self::AcknowledgeNumbered(
                reader.u64s()?,
                reader.u64()?,
                read_session_number(reader)?,
                reader.u64()?,
            ),
            code::RETURN_LEASES => Self::ReturnLeases(reader.u64s()?, reader.u64()?),
            code::UNDO_SAMPLES => Self::UndoSamples(reader.u64s()?, reader.u64()?),
            code::RESET => Self::Reset,
            code::SET_LIMITS => Self::SetLimits(read_limits(reader)?),
            other => {
                return UnusableData::err(format!("unknown change kind {other}, expected 1 to 12"));
            }
        })
    }

    /// The store's clock at the change, in nanoseconds; `None` if the change does not contain it.
    pub(crate) fn clock(&self) -> Option<u64> {
        match self {
            Self::Insert(_, now, _)
            | Self::SkipInsert(_, now)
            | Self::AcknowledgeNumbered(_, _, _, now) => Some(*now),
            _ => None,
        }
    }

    /// Checks that a table with these options can have made this change.
    pub(crate) fn check(&self, options: &TableOptions) -> Result<(), UnusableData> {
        match self {
            Self::Insert(item, ..) => options.check_item(item)?,
            Self::SetPriority(_, priority) => {
                options.sampler.check_priority(&options.name, *priority)?;
                options.remover.check_priority(&options.name, *priority)?;
            }
            Self::SetLimits(limits) => limits.check(&options.name, options.max_size)?,
            _ => {}
        }
        Ok(())
    }

    /// The change as a table operation.
    pub(crate) fn op(&self) -> TableOp<'_> {
        match self {
            Self::Insert(item, now, number) => TableOp::Insert {
                item,
                now: *now,
                number: *number,
            },
            Self::SkipInsert(number, now) => TableOp::SkipInsert {
                number: *number,
                now: *now,
            },
            Self::Remove(key, cause) => TableOp::Remove {
                key: *key,
                cause: *cause,
            },
            Self::SetPriority(key, priority) => TableOp::SetPriority {
                key: *key,
                priority: *priority,
            },
            Self::SetRng(rng) => TableOp::SetRng { rng },
            Self::Sample(keys, leased) => TableOp::Sample {
                keys,
                leased: *leased,
            },
            Self::Acknowledge(keys, samples) => TableOp::Acknowledge {
                keys,
                samples: *samples,
            },
            Self::AcknowledgeNumbered(keys, samples, number, now) => TableOp::AcknowledgeNumbered {
                keys,
                samples: *samples,
                number: *number,
                now: *now,
            },
            Self::ReturnLeases(keys, samples) => TableOp::ReturnLeases {
                keys,
                samples: *samples,
            },
            Self::UndoSamples(keys, samples) => TableOp::UndoSamples {
                keys,
                samples: *samples,
            },
            Self::Reset => TableOp::Reset,
            Self::SetLimits(limits) => TableOp::SetLimits { limits },
        }
    }
}

/// Appends a random generator's state, as serialized by its library.
pub(crate) fn put_rng(body: &mut Vec<u8>, rng: &TableRng) {
    // The state consists of four numbers, which take at most 10 bytes each.
    let mut buffer = [0; 64];
    let len = postcard::to_slice(rng, &mut buffer).map_or(0, |bytes| bytes.len());
    body.put_u8(u8::try_from(len).unwrap_or_default());
    body.put(&buffer[..len]);
}

pub(crate) fn read_rng(reader: &mut BodyReader<'_>) -> Result<TableRng, UnusableData> {
    let len = usize::from(reader.u8()?);
    let bytes = reader.bytes(len)?;
    postcard::from_bytes(bytes)
        .map_err(|error| UnusableData(format!("a random generator's state is invalid: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_of_removals_have_the_numbers_of_the_file_format() {
        let causes = [
            Removal::Evicted,
            Removal::Exhausted,
            Removal::Expired,
            Removal::Deleted,
        ];
        assert_eq!(causes.map(|cause| cause as u8), [0, 1, 2, 3]);
        assert_eq!(Removal::ALL, causes);
    }
}
