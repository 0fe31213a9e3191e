//! Why a directory cannot be recovered, and the texts that state it. A reason that concerns one file begins with
//! the file's name and continues as a sentence. In reasons of `checkpoint_reader.rs`, "it" stands for the name of the
//! checkpoint.

use std::io;

use engram_core::Error;
use rustix::io::Errno;

use super::byte_codec::UnusableData;
use super::directory::ReadableDirectory;
use super::file_names::FileName;

/// Why a directory cannot be recovered.
#[derive(Debug)]
pub(crate) enum RecoveryError {
    /// A file is damaged or chunks are missing. An older checkpoint may be usable.
    Corrupt(UnusableData),
    /// Acknowledged data is missing, and no other checkpoint helps.
    DataLost(UnusableData),
    /// Acknowledged data is missing: no checkpoint can be used. From `recover`, it also means that a repair would find
    /// nothing to open.
    NothingLeft(UnusableData),
    /// A file cannot be read now, or by this release, but may be intact: the directory must not be changed.
    Unreadable(UnusableData),
}

/// Classifies an error of reading a file. After some errors (such as a missing permission, too many open files, or
/// no memory), the file may be intact.
pub(super) fn read_error(name: &str, error: &io::Error) -> RecoveryError {
    let reason = UnusableData(format!("{name} cannot be read: {error}"));
    let possibly_intact_codes = [
        Errno::ACCESS,
        Errno::AGAIN,
        Errno::INTR,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::PERM,
    ];
    match Errno::from_io_error(error) {
        Some(code) if possibly_intact_codes.contains(&code) => RecoveryError::Unreadable(reason),
        // It is not a regular file, or there was no memory to read it.
        None if matches!(
            error.kind(),
            io::ErrorKind::InvalidInput | io::ErrorKind::OutOfMemory
        ) =>
        {
            RecoveryError::Unreadable(reason)
        }
        _ => RecoveryError::Corrupt(reason),
    }
}

impl RecoveryError {
    /// Replaces the reason.
    pub(super) fn map_reason(self, map: impl FnOnce(UnusableData) -> UnusableData) -> Self {
        match self {
            Self::Corrupt(reason) => Self::Corrupt(map(reason)),
            Self::DataLost(reason) => Self::DataLost(map(reason)),
            Self::NothingLeft(reason) => Self::NothingLeft(map(reason)),
            Self::Unreadable(reason) => Self::Unreadable(map(reason)),
        }
    }

    /// Converts to an error whose text begins with the directory's path.
    pub(super) fn into_error(self, files: &dyn ReadableDirectory) -> Error {
        let UnusableData(reason) = self.into();
        Error::Storage(format!("{}: {reason}", files.path().display()))
    }

    /// Like `into_error`; for corrupt or missing data, the text also states what to do.
    pub(super) fn into_error_with_advice(
        self,
        files: &dyn ReadableDirectory,
        repair: bool,
    ) -> Error {
        let advice = match self {
            Self::Unreadable(_) => "",
            _ if repair => "; repair found nothing to open; replace the directory with a backup",
            Self::NothingLeft(_) => {
                "; `engram.Store.open(path, repair=True)` would find nothing to open; replace the \
                 directory with a backup"
            }
            _ => {
                "; `engram.Store.open(path, repair=True)` opens what can still be read (an empty store if \
                  nothing can)"
            }
        };
        let UnusableData(reason) = self.into();
        Error::Storage(format!("{}: {reason}{advice}", files.path().display()))
    }
}

impl From<RecoveryError> for UnusableData {
    fn from(error: RecoveryError) -> Self {
        let (RecoveryError::Corrupt(reason)
        | RecoveryError::DataLost(reason)
        | RecoveryError::NothingLeft(reason)
        | RecoveryError::Unreadable(reason)) = error;
        reason
    }
}

impl From<UnusableData> for RecoveryError {
    fn from(error: UnusableData) -> Self {
        Self::Corrupt(error)
    }
}

impl From<Error> for RecoveryError {
    fn from(error: Error) -> Self {
        match error {
            // Nothing is known about the file.
            Error::OutOfMemory(_) => Self::Unreadable(error.into()),
            _ => Self::Corrupt(error.into()),
        }
    }
}

/// The reason for a record that is intact, but cannot be used.
pub(super) fn unusable_record(name: &str, offset: u64, reason: &UnusableData) -> UnusableData {
    UnusableData(format!(
        "{name} has a record at byte {offset} that cannot be used: {reason}"
    ))
}

/// Rewords a reason as the problem of the checkpoint with this name. The text calls this checkpoint "it".
pub(super) fn problem_of_checkpoint(name: &str, reason: &str) -> String {
    match reason.split_once(' ') {
        Some((file, rest)) if file == name => format!("it {rest}"),
        Some((file, rest)) if FileName::parse(file).is_some() => {
            format!("it needs {file}, which {rest}")
        }
        _ => reason.into(),
    }
}

/// The reason why no checkpoint can be used; `problems` contains each checkpoint's name and problem.
pub(super) fn no_usable_checkpoint(problems: &[(String, String)]) -> String {
    if let [(name, problem)] = problems {
        return format!("{name}, the only checkpoint, cannot be used: {problem}");
    }
    let problems: Vec<String> = problems
        .iter()
        .map(|(name, problem)| format!("{name}: {problem}"))
        .collect();
    let (count, problems) = (problems.len(), problems.join("; "));
    format!("none of {count} checkpoints can be used: {problems}")
}

/// Describes chunks that a checkpoint's items refer to and that are missing.
pub(super) fn missing_chunks(missing: u64, total: u64) -> String {
    let verb = if missing == 1 { "is" } else { "are" };
    if total == 1 {
        return "the only chunk that its items refer to is missing".into();
    }
    format!("{missing} of {total} chunks that its items refer to {verb} missing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_memory_is_no_damage() {
        let error = Error::out_of_memory("chunk 1", Some(1));
        assert!(matches!(error.into(), RecoveryError::Unreadable(_)));
        for error in [Errno::NOMEM.into(), io::ErrorKind::OutOfMemory.into()] {
            let error = read_error("log-0000000001", &error);
            assert!(matches!(error, RecoveryError::Unreadable(_)), "{error:?}");
        }
    }

    #[test]
    fn a_problem_names_each_file_once() {
        let name = "checkpoint-0000000002";
        for (reason, expected) in [
            ("checkpoint-0000000002 is damaged: x", "it is damaged: x"),
            (
                "log-0000000003 cannot be read: x",
                "it needs log-0000000003, which cannot be read: x",
            ),
            ("3 of 4 chunks are missing", "3 of 4 chunks are missing"),
        ] {
            assert_eq!(problem_of_checkpoint(name, reason), expected);
        }
        let problem = |name: &str| (name.to_owned(), "it is incomplete".to_owned());
        assert_eq!(
            no_usable_checkpoint(&[problem("a")]),
            "a, the only checkpoint, cannot be used: it is incomplete"
        );
        assert_eq!(
            no_usable_checkpoint(&[problem("b"), problem("a")]),
            "none of 2 checkpoints can be used: b: it is incomplete; a: it is incomplete"
        );
    }
}
