//! The records in the two slots of a mapped file: which steps of the buffer are durable.

use engram_core::ring::{EnvState, StepBuffer};
use engram_core::selector::TableRng;
use rand_xoshiro::rand_core::SeedableRng as _;

use crate::disk::byte_codec::{BodyReader, BodyWriter, UnusableData};
use crate::disk::change_codec::{put_rng, read_rng};
use crate::disk::file_format::{RECORD_HEADER_BYTES, RecordHeader};
use crate::disk::kind;

/// Maximum size of a record of this many environments, in bytes. The header, texts and other fields need less than 1 KiB.
pub(super) fn max_record_bytes(num_envs: usize) -> Option<usize> {
    num_envs.checked_mul(32)?.checked_add(1024)
}

/// The body of a `flushed` record.
#[derive(Clone, Debug)]
pub(super) struct FlushedRecord {
    /// Counts the records that were written. The record is in slot `number` modulo 2.
    pub(super) number: u64,
    /// Identifies the run of the machine in which the record was written.
    pub(super) boot: String,
    /// The process that uses the file, or has used it.
    pub(super) owner: String,
    /// True if the buffer was closed: nothing was changed after the record was written.
    pub(super) is_closed: bool,
    /// For each environment: the number of steps that may have been added since the flush, if any of them overwrites one
    /// of the flush; otherwise 0.
    pub(super) reserved: Vec<u64>,
    pub(super) state: FlushedState,
}

/// The state of a buffer whose steps are in the memory of a file.
#[derive(Clone, Debug)]
pub(crate) struct FlushedState {
    pub(crate) rng: TableRng,
    pub(crate) envs: Vec<EnvState>,
}

impl FlushedRecord {
    /// The record of a file that is being created.
    pub(super) fn of_new(state: FlushedState) -> Self {
        Self {
            number: 0,
            boot: String::new(),
            owner: String::new(),
            is_closed: true,
            reserved: vec![0; state.envs.len()],
            state,
        }
    }

    pub(super) fn body(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.put_u64(self.number);
        body.put_text(&self.boot);
        body.put_text(&self.owner);
        body.put_u8(self.is_closed.into());
        put_rng(&mut body, &self.state.rng);
        body.put_len(self.state.envs.len());
        for (env, reserved) in self.state.envs.iter().zip(&self.reserved) {
            for number in [env.oldest, env.added, env.priorities_end, *reserved] {
                body.put_u64(number);
            }
        }
        body
    }

    /// Reads the record of a slot at `offset` of the file with this id.
    fn read(slot: &[u8], id: u64, offset: u64) -> Result<Self, UnusableData> {
        let mut reader = BodyReader(slot);
        let mut header = [0; RECORD_HEADER_BYTES];
        header.copy_from_slice(reader.bytes(RECORD_HEADER_BYTES)?);
        let header = RecordHeader::read(&header, id, offset, reader.0.len() as u64)?;
        let body = reader.bytes(header.len)?;
        if header.kind != kind::FLUSHED || !header.matches(&[body]) {
            return UnusableData::err("its checksum is wrong");
        }
        let mut reader = BodyReader(body);
        let (number, boot, owner) = (reader.u64()?, reader.text()?.into(), reader.text()?.into());
        let (is_closed, rng) = (reader.bool()?, read_rng(&mut reader)?);
        let envs = reader.list(32, |reader| {
            let state = EnvState {
                oldest: reader.u64()?,
                added: reader.u64()?,
                priorities_end: reader.u64()?,
            };
            Ok((state, reader.u64()?))
        })?;
        let (envs, reserved) = envs.into_iter().unzip();
        reader.check_end().map(|()| Self {
            number,
            boot,
            owner,
            is_closed,
            reserved,
            state: FlushedState { rng, envs },
        })
    }

    /// True if the machine was not restarted since; `boot` identifies its run now.
    pub(super) fn is_of(&self, boot: &str) -> bool {
        self.boot == boot && !boot.is_empty()
    }

    /// The newer one of the records in two slots.
    pub(super) fn newest(slots: &[u8], id: u64, offset: u64) -> Result<Self, UnusableData> {
        let slot_bytes = slots.len() / 2;
        let (first, second) = slots.split_at(slot_bytes);
        let first = Self::read(first, id, offset);
        let second = Self::read(second, id, offset + slot_bytes as u64);
        match (first, second) {
            (Ok(first), Ok(second)) if second.number > first.number => Ok(second),
            (Ok(first), _) => Ok(first),
            (Err(_), second) => second,
        }
    }

    /// Which steps the memory of the file has, if the machine was restarted since.
    pub(super) fn envs_after_restart(&self, length: u64) -> Vec<EnvState> {
        let envs = self.state.envs.iter().zip(&self.reserved);
        let envs = envs.map(|(env, reserved)| {
            let end = env.added.saturating_add(*reserved);
            EnvState {
                oldest: env.oldest.max(end.saturating_sub(length)).min(env.added),
                ..*env
            }
        });
        envs.collect()
    }
}

impl FlushedState {
    /// The state of an empty buffer.
    pub(crate) fn empty(num_envs: usize, seed: u64) -> Self {
        Self {
            rng: TableRng::seed_from_u64(seed),
            envs: vec![EnvState::default(); num_envs],
        }
    }

    pub(super) fn of(buffer: &StepBuffer) -> Self {
        Self {
            rng: buffer.rng().clone(),
            envs: (0..buffer.num_envs())
                .map(|env| buffer.env_state(env))
                .collect(),
        }
    }
}
