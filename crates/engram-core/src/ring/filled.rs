//! Vectors of a replay buffer, allocated without a panic.

use crate::error::{Error, Result};

/// What lacks memory, for error texts.
pub(super) const THE_BUFFER: &str = "the replay buffer";

/// `n` copies of a value.
///
/// # Errors
/// [`Error::OutOfMemory`] if they cannot be allocated.
pub(super) fn filled<T: Clone>(value: T, n: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    values
        .try_reserve_exact(n)
        .map_err(|_| Error::out_of_memory(THE_BUFFER, n.checked_mul(size_of::<T>())))?;
    values.resize(n, value);
    Ok(values)
}
