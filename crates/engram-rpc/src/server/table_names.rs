//! Tables by the names that peers ask for, which may be any, and the errors that name them back.

use std::sync::Arc;

use engram_core::{Error, Result};
use engram_engine::{Engine, Table};

/// Bytes of a table's name on the wire: errors and replies bring it back.
const MAX_NAME_BYTES: usize = 1024;

/// Bytes of a name that is too long which its refusal shows.
const SHOWN_BYTES: usize = 32;

/// Bytes of the names that the error for an unknown table lists.
const MAX_LISTED_BYTES: usize = 8 << 10;

/// Refuses a name that is too long.
///
/// # Errors
/// [`Error::InvalidArgument`].
pub(super) fn check_length(name: &str) -> Result<()> {
    if name.len() <= MAX_NAME_BYTES {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "a table's name of {} bytes came, `{}`; over the network it has at most {MAX_NAME_BYTES}",
        name.len(),
        truncate_text(name.into(), SHOWN_BYTES)
    )))
}

/// The table of a name that a peer asked for.
///
/// # Errors
/// As [`check_length`] and [`Engine::table`], with as many known names as are worth sending.
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

/// Leaves the first names, as many as fit into so many bytes of memory; `...` stands for the rest.
pub(super) fn truncate_names(names: &mut Vec<String>, bytes: usize) {
    let mut room = bytes;
    let mut fits = |name: &String| {
        let left = room.checked_sub(size_of::<String>() + name.len());
        room = left.unwrap_or(0);
        left.is_some()
    };
    let kept = names.iter().take_while(|name| fits(name)).count();
    if kept < names.len() {
        names.truncate(kept);
        names.push("...".into());
        names.shrink_to_fit();
    }
}

/// Texts name what their sender has named, at any length.
pub(super) fn truncate_text(mut text: String, most: usize) -> String {
    if text.len() > most {
        let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
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
