//! The names of a durable store's files.

const LOG: &str = "log-";
const CHECKPOINT: &str = "checkpoint-";

/// What is added to the name of a file that is not finished.
pub(crate) const UNFINISHED: &str = ".tmp";

/// What is added to the name of a file that was set aside by a repair.
pub(crate) const LOST: &str = ".lost";

/// Who has the directory open.
pub(crate) const LOCK: &str = "LOCK";

pub(crate) fn log_name(number: u64) -> String {
    format!("{LOG}{number:010}")
}

pub(crate) fn checkpoint_name(number: u64) -> String {
    format!("{CHECKPOINT}{number:010}")
}

/// A file of ours, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
    Checkpoint(u64),
    Log(u64),
    Unfinished,
}

/// The greatest number that a file is looked at under.
const MOST: u64 = 1 << 62;

impl Name {
    /// What a file is, or was to be, or was before it was set aside.
    pub(crate) fn ever(name: &str) -> Option<Self> {
        let name = name.strip_suffix(UNFINISHED).unwrap_or(name);
        Self::of(name.strip_suffix(LOST).unwrap_or(name))
    }

    /// `None` for files that are not ours.
    pub(crate) fn of(name: &str) -> Option<Self> {
        if let Some(name) = name.strip_suffix(UNFINISHED) {
            return Self::of(name).map(|_| Self::Unfinished);
        }
        let number = |prefix: &str| {
            let digits = name.strip_prefix(prefix)?;
            let number: u64 = digits.parse().ok()?;
            // As we write it, so that each has one name.
            (digits == format!("{number:010}") && number <= MOST).then_some(number)
        };
        number(CHECKPOINT)
            .map(Self::Checkpoint)
            .or_else(|| number(LOG).map(Self::Log))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ours_or_not() {
        assert_eq!(Name::of(&log_name(7)), Some(Name::Log(7)));
        assert_eq!(
            Name::of(&checkpoint_name(1 << 40)),
            Some(Name::Checkpoint(1 << 40))
        );
        assert_eq!(
            Name::of("checkpoint-0000000007.tmp"),
            Some(Name::Unfinished)
        );
        for other in [
            "log-7",
            "log-+000000007",
            "LOCK",
            "checkpoint-",
            "notes.tmp",
            "log-0000000007~",
        ] {
            assert_eq!(Name::of(other), None, "{other}");
        }
    }
}
