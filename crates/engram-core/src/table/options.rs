//! What a table is made with, and which items and priorities it takes.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::item::{NewItem, Slot};
use crate::rate_limiter::RateLimits;
use crate::schema::Signature;
use crate::selector::SelectorKind;
use crate::table::ITEM_OVERHEAD;

/// What a table is made with.
#[derive(Clone, Debug, PartialEq)]
pub struct TableOptions {
    /// Unique in its store.
    pub name: String,
    /// Most items it holds; the remover makes room beyond.
    pub max_size: u64,
    /// Most bytes it holds: distinct chunks and item overhead.
    pub max_bytes: Option<u64>,
    /// An item leaves once it was sampled this often; 0 for no limit.
    pub max_times_sampled: u32,
    /// An item leaves when it is this old, nanoseconds.
    pub ttl: Option<u64>,
    /// Chooses what is sampled.
    pub sampler: SelectorKind,
    /// Chooses what makes room.
    pub remover: SelectorKind,
    /// How far inserts and samples may run apart.
    pub limits: RateLimits,
    /// What every item must look like.
    pub signature: Option<Arc<Signature>>,
    /// Seed of the table's random choices.
    pub seed: u64,
    /// Text kept with the table for whoever made it; nothing here reads it.
    pub note: Option<Arc<str>>,
}

/// Bytes that a note may have.
pub const MAX_NOTE: usize = 64 << 10;

impl TableOptions {
    /// Checks that a table can be made of these.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming what is impossible.
    pub fn check(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::InvalidArgument(text));
        let Self { name, max_size, .. } = self;
        if name.is_empty() {
            return invalid("a table's name is empty; it must have at least one character".into());
        }
        if !(1..u64::from(Slot::MAX)).contains(max_size) {
            let most = Slot::MAX - 1;
            return invalid(format!(
                "max_size of table `{name}` is {max_size}; 1 to {most} is allowed"
            ));
        }
        if self.max_bytes.is_some_and(|max| max <= ITEM_OVERHEAD) {
            return invalid(format!(
                "max_bytes of table `{name}` is {}; one item alone takes more than {ITEM_OVERHEAD}",
                self.max_bytes.unwrap_or_default()
            ));
        }
        if self.ttl == Some(0) {
            return invalid(format!("ttl of table `{name}` is 0; it must be above 0"));
        }
        if let Some(note) = self.note.as_ref().filter(|note| note.len() > MAX_NOTE) {
            let len = note.len();
            return invalid(format!(
                "note of table `{name}` has {len} bytes; at most {MAX_NOTE} are allowed"
            ));
        }
        self.sampler.check(name)?;
        self.remover.check(name)?;
        self.limits.check(name, *max_size)
    }

    /// Checks a priority against both selectors.
    ///
    /// # Errors
    /// [`Error::Priority`].
    pub fn check_priority(&self, priority: f64) -> Result<()> {
        self.sampler.check_priority(&self.name, priority)?;
        self.remover.check_priority(&self.name, priority)
    }

    /// Checks the arguments of an update, all of them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for unequal lengths, [`Error::Priority`].
    pub fn check_updates(&self, keys: &[u64], priorities: &[f64]) -> Result<()> {
        if keys.len() != priorities.len() {
            return Err(Error::InvalidArgument(format!(
                "{} keys and {} priorities for table `{}`; there must be one priority per key",
                keys.len(),
                priorities.len(),
                self.name
            )));
        }
        let mut priorities = priorities.iter();
        priorities.try_for_each(|priority| self.check_priority(*priority))
    }

    /// Checks that an item could be taken, if not now then later.
    ///
    /// # Errors
    /// [`Error::Priority`], [`Error::Signature`], [`Error::InvalidArgument`] for a key from 2^63
    /// or cells that are not there, [`Error::Unsatisfiable`] for an item larger than `max_bytes`.
    pub fn check_item(&self, item: &NewItem) -> Result<()> {
        self.check_priority(item.priority)?;
        if item.key >> 63 != 0 {
            return Err(Error::InvalidArgument(format!(
                "item key {} for table `{}` is out of range; keys are below 2^63",
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
            "an item of {bytes} bytes (its chunks included) never fits table `{}` of max_bytes {max_bytes}",
            self.name
        )))
    }

    /// Bytes that an item adds to a table that holds none of its chunks.
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
