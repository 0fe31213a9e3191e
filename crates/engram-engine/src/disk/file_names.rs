//! Names of a durable store's files.

const LOG_PREFIX: &str = "log-";
const CHECKPOINT_PREFIX: &str = "checkpoint-";

/// Suffix of a file that is still being written.
pub(crate) const UNFINISHED_SUFFIX: &str = ".tmp";

/// Suffix of a file that a repair has set aside, and of a copy of a torn log's tail.
pub(crate) const LOST_SUFFIX: &str = ".lost";

/// The lock file, which names the process that has the directory open.
pub(crate) const LOCK: &str = "LOCK";

/// The file that states where the logs ended when the store was closed.
pub(crate) const CLOSED: &str = "CLOSED";

pub(crate) fn log_name(number: u64) -> String {
    format!("{LOG_PREFIX}{number:010}")
}

pub(crate) fn checkpoint_name(number: u64) -> String {
    format!("{CHECKPOINT_PREFIX}{number:010}")
}

/// A file's kind and number, as in its name. Unfinished files are not distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FileName {
    Checkpoint(u64),
    Log(u64),
    Unfinished,
}

/// Maximum file number. Files with larger numbers are not Engram's.
const MAX_FILE_NUMBER: u64 = 1 << 62;

impl FileName {
    /// Parses a name without its suffix `.tmp` or `.lost`, if it has one.
    pub(crate) fn without_suffix(name: &str) -> Option<Self> {
        let name = name.strip_suffix(UNFINISHED_SUFFIX).unwrap_or(name);
        Self::parse(name.strip_suffix(LOST_SUFFIX).unwrap_or(name))
    }

    /// Parses the name of a checkpoint, a log or an unfinished file. Returns `None` for all other names, such as
    /// `LOCK`, `CLOSED`, those with the suffix `.lost`, and files that are not Engram's.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        if let Some(name) = name.strip_suffix(UNFINISHED_SUFFIX) {
            return Self::parse(name).map(|_| Self::Unfinished);
        }
        let parse_number = |prefix: &str| {
            let digits = name.strip_prefix(prefix)?;
            let number: u64 = digits.parse().ok()?;
            // Exactly as written by `log_name` and `checkpoint_name`, so that each number has one name.
            (digits == format!("{number:010}") && number <= MAX_FILE_NUMBER).then_some(number)
        };
        parse_number(CHECKPOINT_PREFIX)
            .map(Self::Checkpoint)
            .or_else(|| parse_number(LOG_PREFIX).map(Self::Log))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_engram_names_are_parsed() {
        assert_eq!(FileName::parse(&log_name(7)), Some(FileName::Log(7)));
        assert_eq!(
            FileName::parse(&checkpoint_name(1 << 40)),
            Some(FileName::Checkpoint(1 << 40))
        );
        assert_eq!(
            FileName::parse("checkpoint-0000000007.tmp"),
            Some(FileName::Unfinished)
        );
        for other in [
            "log-7",
            "log-+000000007",
            "LOCK",
            "checkpoint-",
            "notes.tmp",
            "log-0000000007~",
        ] {
            assert_eq!(FileName::parse(other), None, "{other}");
        }
    }
}
