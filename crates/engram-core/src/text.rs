//! Numbers in error texts.

use std::fmt::Display;

/// Returns a number and its noun: `1 item`, `2 items`.
pub fn count<N: Copy + Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    let ending = if number == N::from(1) { "" } else { "s" };
    format!("{number} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_is_singular() {
        assert_eq!(count(0_usize, "item"), "0 items");
        assert_eq!(count(1_u64, "item"), "1 item");
        assert_eq!(count(2_u32, "more byte"), "2 more bytes");
    }
}
