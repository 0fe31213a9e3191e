//! What the tests of several crates share. The other crates have it only as a development dependency.

#![expect(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "test helpers report failures by panicking"
)]

mod counting_allocator;
mod items;
mod mutate;
#[cfg(feature = "reverb")]
pub mod reverb_messages;
mod tables;

pub use counting_allocator::{CountingAllocator, measure_peak};
pub use items::{byte_chunk, byte_item};
pub use mutate::{RandomSource, mutate, random_message};
pub use tables::table_options;

/// Returns an environment variable as a number, or `default` if it is not set.
#[must_use]
pub fn env_number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// True in `make test-all`, where random tests may take longer.
#[must_use]
pub fn runs_all_tests() -> bool {
    std::env::var("ENGRAM_TEST_ALL").is_ok_and(|all| !all.is_empty())
}
