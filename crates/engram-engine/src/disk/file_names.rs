//! Names of a durable store's files.

const LOG_PREFIX: &str = "log-";
const CHECKPOINT_PREFIX: &str = "checkpoint-";
const SHARD_PREFIX: &str = "shard-";

/// Suffix of a file that is still being written.
pub(crate) const UNFINISHED_SUFFIX: &str = ".tmp";

/// Suffix of a file that a repair has set aside, and of a copy of a torn log's tail: see `free_lost_name`.
const LOST_SUFFIX: &str = ".lost";

/// The lock file, which names the process that has the directory open.
pub(crate) const LOCK_NAME: &str = "LOCK";

/// The file that states where the logs ended when the store was closed.
pub(crate) const CLOSE_MARK_NAME: &str = "CLOSED";

pub(crate) fn log_name(number: u64) -> String {
    format!("{LOG_PREFIX}{number:010}")
}

pub(crate) fn checkpoint_name(number: u64) -> String {
    format!("{CHECKPOINT_PREFIX}{number:010}")
}

/// The directory of a shard in that of a resharding.
pub(crate) fn shard_name(shard: u32) -> String {
    format!("{SHARD_PREFIX}{shard}")
}

pub(crate) fn is_shard_name(name: &str) -> bool {
    let number = name.strip_prefix(SHARD_PREFIX);
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Returns the name for a file that is set aside: `name` with the suffix `.lost`. If `names` already contains that,
/// the suffix is `.2.lost`, `.3.lost` and so on.
pub(crate) fn free_lost_name(names: &[String], name: &str) -> String {
    let mut lost = format!("{name}{LOST_SUFFIX}");
    let mut copy = 1;
    while names.contains(&lost) {
        copy += 1;
        lost = format!("{name}.{copy}{LOST_SUFFIX}");
    }
    lost
}

/// Returns the name that a file had before it was set aside; `None` if `name` does not end with `.lost`.
pub(crate) fn name_before_loss(name: &str) -> Option<&str> {
    let name = name.strip_suffix(LOST_SUFFIX)?;
    match name.rsplit_once('.') {
        Some((name, copy)) if copy.bytes().all(|byte| byte.is_ascii_digit()) => Some(name),
        _ => Some(name),
    }
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
        Self::parse(name_before_loss(name).unwrap_or(name))
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
    fn a_file_that_is_set_aside_gets_a_free_name() {
        let mut names = vec![log_name(7)];
        for expected in [
            "log-0000000007.lost",
            "log-0000000007.2.lost",
            "log-0000000007.3.lost",
        ] {
            let name = free_lost_name(&names, &log_name(7));
            assert_eq!(name, expected);
            assert_eq!(name_before_loss(&name), Some("log-0000000007"));
            assert_eq!(FileName::without_suffix(&name), Some(FileName::Log(7)));
            assert_eq!(FileName::parse(&name), None);
            names.push(name);
        }
    }

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
