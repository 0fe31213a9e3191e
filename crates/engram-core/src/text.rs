//! Formats numbers and columns for error texts; the maximum length of the names in them.

use std::fmt::Display;

/// Maximum bytes of the name of a new table, and of the kind of a rate limiter.
pub const MAX_NAME_BYTES: usize = 1024;

/// Returns the text of a number and its noun: `1 item`, `2 items`.
pub fn count<N: Copy + Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    let ending = if number == N::from(1) { "" } else { "s" };
    format!("{number} {noun}{ending}")
}

/// Names a column in error texts. Data that is one array has one column, whose name is empty.
#[must_use]
pub fn describe_column(name: &str) -> String {
    if name.is_empty() {
        return "the data".into();
    }
    format!("column `{name}`")
}

/// Names a column of `whole`, which is a step, a pattern or an item. For data that is one array, returns `whole`.
pub(crate) fn column_of(whole: &str, name: &str) -> String {
    if name.is_empty() {
        whole.into()
    } else {
        format!("column `{name}` of {whole}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_column_of_a_bare_array_is_the_data() {
        assert_eq!(describe_column("obs/x"), "column `obs/x`");
        assert_eq!(describe_column(""), "the data");
        assert_eq!(column_of("the step", "obs/x"), "column `obs/x` of the step");
        assert_eq!(column_of("the step", ""), "the step");
    }

    #[test]
    fn only_one_is_singular() {
        assert_eq!(count(0_usize, "item"), "0 items");
        assert_eq!(count(1_u64, "item"), "1 item");
        assert_eq!(count(2_u32, "more byte"), "2 more bytes");
    }
}
