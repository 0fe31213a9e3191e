//! Encoding of a table's changes in log records.

use std::sync::Arc;

use engram_core::chunk::Chunk;
use engram_core::selector::TableRng;
use engram_core::{NewItem, RateLimits, Removal, TableOp, TableOptions};

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
        TableOp::ReturnLeases { keys, samples } => {
            body.put_u8(code::RETURN_LEASES);
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

/// What a change that was read refers to.
#[derive(Debug, Default)]
pub(crate) struct ChangeParts {
    item: Option<NewItem>,
    keys: Vec<u64>,
    rng: Option<TableRng>,
    limits: Option<RateLimits>,
}

impl ChangeParts {
    /// Reads a change. `get_chunk` returns a chunk by its serial. `applies` is true if the change will be applied to
    /// its table: then an inserted item's trajectory is checked against its chunks.
    pub(crate) fn read(
        &mut self,
        reader: &mut BodyReader<'_>,
        dictionary: &ReadDictionary,
        applies: bool,
        get_chunk: &mut dyn FnMut(u64) -> Result<Arc<Chunk>, UnusableData>,
    ) -> Result<TableOp<'_>, UnusableData> {
        Ok(match reader.u8()? {
            code::INSERT => {
                let item = dictionary.read_item(reader, get_chunk)?;
                if applies {
                    item.trajectory.check_parts()?;
                }
                TableOp::Insert {
                    item: self.item.insert(item),
                    now: reader.u64()?,
                    number: reader.option(read_session_number)?,
                }
            }
            code::SKIP_INSERT => TableOp::SkipInsert {
                number: read_session_number(reader)?,
                now: reader.u64()?,
            },
            code::REMOVE => {
                let key = reader.u64()?;
                let number = reader.u8()?;
                let Some(cause) = Removal::ALL.get(usize::from(number)) else {
                    return UnusableData::err(format!(
                        "unknown removal cause {number}, expected 0 to 3"
                    ));
                };
                TableOp::Remove { key, cause: *cause }
            }
            code::SET_PRIORITY => TableOp::SetPriority {
                key: reader.u64()?,
                priority: reader.f64()?,
            },
            code::SET_RNG => TableOp::SetRng {
                rng: self.rng.insert(read_rng(reader)?),
            },
            code::SAMPLE => {
                let leased = reader.bool()?;
                self.keys = reader.u64s()?;
                TableOp::Sample {
                    keys: &self.keys,
                    leased,
                }
            }
            code::ACKNOWLEDGE => {
                self.keys = reader.u64s()?;
                TableOp::Acknowledge {
                    keys: &self.keys,
                    samples: reader.u64()?,
                }
            }
            code::RETURN_LEASES => {
                self.keys = reader.u64s()?;
                TableOp::ReturnLeases {
                    keys: &self.keys,
                    samples: reader.u64()?,
                }
            }
            code::RESET => TableOp::Reset,
            code::SET_LIMITS => TableOp::SetLimits {
                limits: self.limits.insert(read_limits(reader)?),
            },
            other => {
                return UnusableData::err(format!("unknown change kind {other}, expected 1 to 10"));
            }
        })
    }
}

/// The store's clock at a change, in nanoseconds; `None` if the change does not contain it.
pub(crate) fn clock_of(op: &TableOp<'_>) -> Option<u64> {
    match op {
        TableOp::Insert { now, .. } | TableOp::SkipInsert { now, .. } => Some(*now),
        _ => None,
    }
}

/// Checks that a table with these options can have made a change.
pub(crate) fn check_op(op: &TableOp<'_>, options: &TableOptions) -> Result<(), UnusableData> {
    match op {
        TableOp::Insert { item, .. } => options.check_item(item)?,
        TableOp::SetPriority { priority, .. } => {
            options.sampler.check_priority(&options.name, *priority)?;
            options.remover.check_priority(&options.name, *priority)?;
        }
        TableOp::SetLimits { limits } => limits.check(&options.name, options.max_size)?,
        _ => {}
    }
    Ok(())
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
