//! Changes of a table, as a log's records hold them.

use std::sync::Arc;

use engram_core::chunk::Chunk;
use engram_core::selector::TableRng;
use engram_core::{NewItem, RateLimits, Removal, SessionNumber, TableOp, TableOptions};

use super::byte_codec::{CorruptRecord, PutBytes, TakeBytes};
use super::record_codec::{
    DictionaryWriter, ReadDictionary, limits_in, put_limits, put_session, session_in,
};

mod code {
    pub(super) const INSERT: u8 = 1;
    pub(super) const PASS: u8 = 2;
    pub(super) const REMOVE: u8 = 3;
    pub(super) const PRIORITY: u8 = 4;
    pub(super) const SAMPLE: u8 = 5;
    pub(super) const ACKNOWLEDGE: u8 = 6;
    pub(super) const GIVE_BACK: u8 = 7;
    pub(super) const RESET: u8 = 8;
    pub(super) const LIMITS: u8 = 9;
    pub(super) const CHOOSE: u8 = 10;
}

/// Puts a change; the chunks that it refers to have been told.
pub(crate) fn put_change(
    body: &mut Vec<u8>,
    op: &TableOp<'_>,
    forms: &mut impl DictionaryWriter,
    serial: &impl Fn(&Arc<Chunk>) -> u64,
) {
    match *op {
        TableOp::Insert { item, now, number } => {
            body.put_u8(code::INSERT);
            forms.item(body, item.into(), serial);
            body.put_u64(now);
            body.put_maybe(number, put_session);
        }
        TableOp::SkipInsert { number, now } => {
            body.put_u8(code::PASS);
            put_session(body, number);
            body.put_u64(now);
        }
        TableOp::Remove { key, cause } => {
            body.put_u8(code::REMOVE);
            body.put_u64(key);
            body.put_u8(match cause {
                Removal::Evicted => 0,
                Removal::Exhausted => 1,
                Removal::Expired => 2,
                Removal::Deleted => 3,
            });
        }
        TableOp::SetPriority { key, priority } => {
            body.put_u8(code::PRIORITY);
            body.put_u64(key);
            body.put_f64(priority);
        }
        TableOp::SetRng { rng } => {
            body.put_u8(code::CHOOSE);
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
            body.put_u8(code::GIVE_BACK);
            body.put_u64s(keys);
            body.put_u64(samples);
        }
        TableOp::Reset => body.put_u8(code::RESET),
        TableOp::SetLimits { limits } => {
            body.put_u8(code::LIMITS);
            put_limits(body, limits);
        }
    }
}

/// A change that was read.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Insert(NewItem, u64, Option<SessionNumber>),
    Pass(SessionNumber, u64),
    Remove(u64, Removal),
    SetPriority(u64, f64),
    Choose(TableRng),
    Sample(Vec<u64>, bool),
    Acknowledge(Vec<u64>, u64),
    GiveBack(Vec<u64>, u64),
    Reset,
    SetLimits(RateLimits),
}

impl Change {
    /// Reads a change; what it refers to is only looked at if it is `used`.
    pub(crate) fn take(
        take: &mut TakeBytes<'_>,
        known: &ReadDictionary,
        used: bool,
        chunk: &mut dyn FnMut(u64) -> Result<Arc<Chunk>, CorruptRecord>,
    ) -> Result<Self, CorruptRecord> {
        Ok(match take.u8()? {
            code::INSERT => {
                let item = known.item(take, chunk)?;
                if used {
                    item.trajectory.check_parts()?;
                }
                Self::Insert(item, take.u64()?, take.maybe(session_in)?)
            }
            code::PASS => Self::Pass(session_in(take)?, take.u64()?),
            code::REMOVE => {
                let key = take.u64()?;
                let cause = match take.u8()? {
                    0 => Removal::Evicted,
                    1 => Removal::Exhausted,
                    2 => Removal::Expired,
                    3 => Removal::Deleted,
                    other => {
                        return CorruptRecord::err(format!(
                            "an item left for reason {other}; 0 to 3 are known"
                        ));
                    }
                };
                Self::Remove(key, cause)
            }
            code::PRIORITY => Self::SetPriority(take.u64()?, take.f64()?),
            code::CHOOSE => Self::Choose(rng_in(take)?),
            code::SAMPLE => {
                let leased = take.bool()?;
                Self::Sample(take.u64s()?, leased)
            }
            code::ACKNOWLEDGE => Self::Acknowledge(take.u64s()?, take.u64()?),
            code::GIVE_BACK => Self::GiveBack(take.u64s()?, take.u64()?),
            code::RESET => Self::Reset,
            code::LIMITS => Self::SetLimits(limits_in(take)?),
            other => {
                return CorruptRecord::err(format!(
                    "a change is of kind {other}; 1 to 10 are known"
                ));
            }
        })
    }

    /// The clock when it was made, where it says so.
    pub(crate) fn now(&self) -> Option<u64> {
        match self {
            Self::Insert(_, now, _) | Self::Pass(_, now) => Some(*now),
            _ => None,
        }
    }

    /// Whether a table of these options can have made it.
    pub(crate) fn check(&self, options: &TableOptions) -> Result<(), CorruptRecord> {
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

    /// As the table takes it.
    pub(crate) fn op(&self) -> TableOp<'_> {
        match self {
            Self::Insert(item, now, number) => TableOp::Insert {
                item,
                now: *now,
                number: *number,
            },
            Self::Pass(number, now) => TableOp::SkipInsert {
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
            Self::Choose(rng) => TableOp::SetRng { rng },
            Self::Sample(keys, leased) => TableOp::Sample {
                keys,
                leased: *leased,
            },
            Self::Acknowledge(keys, samples) => TableOp::Acknowledge {
                keys,
                samples: *samples,
            },
            Self::GiveBack(keys, samples) => TableOp::ReturnLeases {
                keys,
                samples: *samples,
            },
            Self::Reset => TableOp::Reset,
            Self::SetLimits(limits) => TableOp::SetLimits { limits },
        }
    }
}

/// The generator, in the words of whoever wrote it.
pub(crate) fn put_rng(body: &mut Vec<u8>, rng: &TableRng) {
    // Four numbers of at most ten bytes: they fit.
    let mut bytes = [0; 64];
    let used = postcard::to_slice(rng, &mut bytes).map_or(0, |used| used.len());
    body.put_u8(u8::try_from(used).unwrap_or_default());
    body.put(&bytes[..used]);
}

pub(crate) fn rng_in(take: &mut TakeBytes<'_>) -> Result<TableRng, CorruptRecord> {
    let len = usize::from(take.u8()?);
    let bytes = take.take(len)?;
    postcard::from_bytes(bytes)
        .map_err(|error| CorruptRecord(format!("a generator cannot be read: {error}")))
}
