//! Table options, and the checks of items and priorities against them.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::item::{NewItem, Slot};
use crate::rate_limiter::RateLimits;
use crate::schema::Signature;
use crate::selector::SelectorKind;
use crate::text::MAX_NAME_BYTES;

/// Bytes that `max_bytes` counts for the bookkeeping of each item: its slot, key, and entries in the selectors.
pub const ITEM_OVERHEAD: u64 = 128;

/// The options of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableOptions {
    /// Name, unique in its store.
    pub name: String,
    /// Maximum number of items; the remover evicts items beyond it.
    pub max_size: u64,
    /// Maximum bytes of the distinct chunks that items refer to, and of bookkeeping. `None`: unlimited.
    pub max_bytes: Option<u64>,
    /// Number of samples after which an item is removed; 0: unlimited.
    pub max_times_sampled: u32,
    /// Age at which an item is removed, in nanoseconds. `None`: never.
    pub ttl: Option<u64>,
    /// Chooses the items to sample.
    pub sampler: SelectorKind,
    /// Chooses the items to evict.
    pub remover: SelectorKind,
    /// Limits of the rate limiter.
    pub limits: RateLimits,
    /// The columns that every item must have. `None`: any.
    pub signature: Option<Arc<Signature>>,
    /// Seed of the table's random choices.
    pub seed: u64,
    /// Text stored with the table for its creator; the engine does not read it.
    pub note: Option<Arc<str>>,
}

/// Maximum bytes of a note.
pub const MAX_NOTE_BYTES: usize = 64 << 10;

/// Maximum bytes of a new table's signature: the info of a table must fit one message.
const MAX_SIGNATURE_BYTES: usize = 2 << 20;

impl TableOptions {
    /// Checks the sizes of a new table's name, limiter kind and signature. Not part of [`Self::check`], so that stores
    /// that already contain larger ones still open.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the size and the maximum.
    pub fn check_sizes(&self) -> Result<()> {
        let bytes = self.name.len();
        if bytes > MAX_NAME_BYTES {
            return Err(Error::InvalidArgument(format!(
                "the name of a table must have at most {MAX_NAME_BYTES} bytes; got {bytes}"
            )));
        }
        self.limits.check_kind_bytes(&self.name)?;
        let bytes = self
            .signature
            .as_ref()
            .map_or(0, |signature| signature.text_bytes());
        if bytes > MAX_SIGNATURE_BYTES {
            return Err(Error::InvalidArgument(format!(
                "the signature of table `{}` must have at most {MAX_SIGNATURE_BYTES} bytes of names, shapes and \
                 nesting; got {bytes}",
                self.name
            )));
        }
        Ok(())
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the option that is not allowed, [`Error::Signature`] if the
    /// signature's structure is invalid.
    pub fn check(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::InvalidArgument(text));
        let Self { name, max_size, .. } = self;
        if name.is_empty() {
            return invalid("a table's name must have at least one character; got \"\"".into());
        }
        if !(1..u64::from(Slot::MAX)).contains(max_size) {
            let max = Slot::MAX - 1;
            return invalid(format!(
                "`max_size` of table `{name}` must be from 1 to {max}; got {max_size}"
            ));
        }
        if self.max_bytes.is_some_and(|max| max <= ITEM_OVERHEAD) {
            return invalid(format!(
                "`max_bytes` of table `{name}` must be above {ITEM_OVERHEAD}, the bookkeeping of one item; got {}",
                self.max_bytes.unwrap_or_default()
            ));
        }
        if self.ttl == Some(0) {
            return invalid(format!(
                "`ttl` of table `{name}` must be at least 1 ns; got 0"
            ));
        }
        if let Some(note) = self
            .note
            .as_ref()
            .filter(|note| note.len() > MAX_NOTE_BYTES)
        {
            let len = note.len();
            return invalid(format!(
                "`note` of table `{name}` must have at most {MAX_NOTE_BYTES} bytes; got {len}"
            ));
        }
        if let Some(signature) = &self.signature {
            signature.check_structure(name)?;
        }
        self.sampler.check(name)?;
        self.remover.check(name)?;
        self.limits.check(name, *max_size)
    }

    /// Checks a priority against both selectors.
    ///
    /// # Errors
    /// [`Error::Priority`] if either selector does not accept it.
    pub fn check_priority(&self, priority: f64) -> Result<()> {
        self.sampler.check_priority(&self.name, priority)?;
        self.remover.check_priority(&self.name, priority)
    }

    /// Checks that an update has one priority per key, and that both selectors accept each priority.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for unequal lengths, [`Error::Priority`] if a selector does not accept a priority.
    pub fn check_updates(&self, keys: &[u64], priorities: &[f64]) -> Result<()> {
        if keys.len() != priorities.len() {
            return Err(Error::InvalidArgument(format!(
                "`keys` has length {} and `priorities` {} for table `{}`; each key needs one priority",
                keys.len(),
                priorities.len(),
                self.name
            )));
        }
        let mut priorities = priorities.iter();
        priorities.try_for_each(|priority| self.check_priority(*priority))
    }

    /// Checks that an item can be inserted now or later.
    ///
    /// # Errors
    /// [`Error::Priority`] if a selector does not accept its priority, [`Error::Signature`] if it does not match the
    /// signature, [`Error::InvalidArgument`] for a key of 2^63 or more or slices that
    /// [`Trajectory::check_slices`](crate::Trajectory::check_slices) rejects, [`Error::Unsatisfiable`] for an item
    /// larger than `max_bytes`.
    pub fn check_item(&self, item: &NewItem) -> Result<()> {
        self.check_priority(item.priority)?;
        if item.key >> 63 != 0 {
            return Err(Error::InvalidArgument(format!(
                "item key {} for table `{}` is out of range; keys must be below 2^63",
                item.key, self.name
            )));
        }
        item.trajectory.check_slices()?;
        if let Some(signature) = &self.signature {
            item.trajectory.check(&self.name, signature)?;
        }
        let Some(max_bytes) = self.max_bytes else {
            return Ok(());
        };
        let bytes = self.item_bytes(item);
        if bytes <= max_bytes {
            return Ok(());
        }
        Err(Error::Unsatisfiable(format!(
            "an item of {bytes} bytes (including its chunks) never fits into table `{}`, whose max_bytes is \
             {max_bytes}; insert smaller items, lower the writer's `chunk_length` or use a larger max_bytes",
            self.name
        )))
    }

    /// Bytes that an item adds to a table whose other items refer to none of its chunks.
    #[must_use]
    pub fn item_bytes(&self, item: &NewItem) -> u64 {
        let chunks: usize = item
            .trajectory
            .chunks()
            .iter()
            .map(|chunk| chunk.footprint())
            .sum();
        ITEM_OVERHEAD + (item.trajectory.footprint() + chunks) as u64
    }
}
