//! Finds tables by the names in requests, which can be arbitrary, and bounds the names in error texts.

use std::sync::Arc;

use engram_core::text::MAX_NAME_BYTES;
use engram_core::{Error, Result};
use engram_engine::{Engine, Table};

/// If a name is too long, the error text shows at most this many bytes of it.
const MAX_SHOWN_BYTES: usize = 32;

/// Maximum bytes of the names that the error for an unknown table lists.
const MAX_LISTED_BYTES: usize = 8 << 10;

/// Rejects a name that is too long.
///
/// # Errors
/// [`Error::InvalidArgument`].
pub(super) fn check_length(name: &str) -> Result<()> {
    if name.len() <= MAX_NAME_BYTES {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "the table name `{}` has {} bytes; at most {MAX_NAME_BYTES} are allowed",
        truncate_text(name.into(), MAX_SHOWN_BYTES),
        name.len()
    )))
}

/// Returns the table with the name in a request.
///
/// # Errors
/// Those of [`check_length`] and [`Engine::table`], with a bounded list of known names.
pub(super) fn find_table(engine: &Engine, name: &str) -> Result<Arc<Table>> {
    check_length(name)?;
    engine.table(name).map_err(|error| match error {
        Error::UnknownTable { name, mut known } => {
            truncate_names(&mut known, MAX_LISTED_BYTES);
            Error::UnknownTable { name, known }
        }
        other => other,
    })
}

/// Keeps the first names that fit into this many bytes of memory; `...` replaces the others.
pub(super) fn truncate_names(names: &mut Vec<String>, max_bytes: usize) {
    let mut free_bytes = max_bytes;
    let mut fits = |name: &String| {
        let remaining = free_bytes.checked_sub(size_of::<String>() + name.len());
        free_bytes = remaining.unwrap_or(0);
        remaining.is_some()
    };
    let kept = names.iter().take_while(|name| fits(name)).count();
    if kept < names.len() {
        names.truncate(kept);
        names.push("...".into());
        names.shrink_to_fit();
    }
}

/// Truncates a text that is longer than this many bytes, and appends `...` to it. For error texts, which may contain
/// what a client has sent.
pub(super) fn truncate_text(mut text: String, max_bytes: usize) -> String {
    if text.len() > max_bytes {
        let end = (0..=max_bytes)
            .rev()
            .find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text += "...";
        text.shrink_to_fit();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(truncate_text("abcd".into(), 4), "abcd");
        assert_eq!(truncate_text("abcdé!".into(), 5), "abcd...");
    }

    #[test]
    fn names_are_kept_while_they_fit() {
        let kept = |bytes| {
            let mut names = vec!["one".to_owned(), "two".into(), "three".into()];
            truncate_names(&mut names, bytes);
            names.join(" ")
        };
        let each = size_of::<String>();
        assert_eq!(kept(3 * each + 11), "one two three");
        assert_eq!(kept(3 * each + 10), "one two ...");
        assert_eq!(kept(each + 2), "...");
        assert_eq!(kept(0), "...");
    }
}
