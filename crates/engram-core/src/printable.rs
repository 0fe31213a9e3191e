//! Displays text from callers and peers, such as names of tables, so that it is safe to print on a terminal.

use std::fmt;

/// Displays a text on one line; escapes characters that could control a terminal, for example as `\x1b`.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(start) = rest.find(is_escaped) {
            f.write_str(&rest[..start])?;
            let mut characters = rest[start..].chars();
            match characters.next() {
                Some('\n') => f.write_str("\\n")?,
                Some('\r') => f.write_str("\\r")?,
                Some('\t') => f.write_str("\\t")?,
                Some(other) if u32::from(other) < 0x100 => {
                    write!(f, "\\x{:02x}", u32::from(other))?;
                }
                Some(other) => write!(f, "\\u{:04x}", u32::from(other))?,
                None => {}
            }
            rest = characters.as_str();
        }
        f.write_str(rest)
    }
}

/// Displays an error text as [`Printable`] does, without the error numbers that the standard library appends to the
/// texts of system errors: "File exists", not "File exists (os error 17)".
#[derive(Clone, Copy, Debug)]
pub struct ErrorText<'a>(pub &'a str);

impl fmt::Display for ErrorText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some((text, after)) = rest.split_once(" (os error ") {
            Printable(text).fmt(f)?;
            let number_end = after.find(|character: char| !character.is_ascii_digit());
            rest = match after.split_at(number_end.unwrap_or(after.len())) {
                (number, tail) if !number.is_empty() && tail.starts_with(')') => &tail[1..],
                _ => {
                    f.write_str(" (os error ")?;
                    after
                }
            };
        }
        Printable(rest).fmt(f)
    }
}

/// True for control characters, line separators, and characters that change the direction of text.
fn is_escaped(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_system_errors_are_left_out() {
        let error = std::io::Error::from_raw_os_error(17);
        assert_eq!(error.to_string(), "File exists (os error 17)");
        for (text, expected) in [
            (format!("a: {error}; b"), "a: File exists; b"),
            (format!("{error}{error}"), "File existsFile exists"),
            (
                "x (os error y) (os error 1".into(),
                "x (os error y) (os error 1",
            ),
            ("\x07 (os error )".into(), "\\x07 (os error )"),
        ] {
            assert_eq!(ErrorText(&text).to_string(), expected);
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        for (text, expected) in [
            ("", ""),
            ("plain, ümlaut, 表", "plain, ümlaut, 表"),
            ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
            ("two\nlines\r\t\0", "two\\nlines\\r\\t\\x00"),
            ("\u{9b}2J\u{202e}abc\u{2028}", "\\x9b2J\\u202eabc\\u2028"),
        ] {
            assert_eq!(Printable(text).to_string(), expected);
        }
    }
}
