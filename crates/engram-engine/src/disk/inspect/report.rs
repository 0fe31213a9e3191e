//! The result of an inspection.

use crate::disk::file_names::checkpoint_name;

/// Contents of a directory, and what opening it would restore.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The process that has the directory open, as recorded in `LOCK`; `None` if no process has it open,
    /// or this is unknown (see `notes`).
    pub in_use: Option<String>,
    /// Random id of the store; `None` if there is no store.
    pub store: Option<u64>,
    /// Engram files except `LOCK` and `CLOSED`: checkpoints, logs, unfinished files, and `.lost` files, each group
    /// sorted by name. Also the last log of the closed store, if it is missing.
    pub files: Vec<InspectedFile>,
    /// Names of files that are not Engram's, sorted.
    pub others: Vec<String>,
    /// Checkpoints, oldest first.
    pub checkpoints: Vec<InspectedCheckpoint>,
    /// What opening the directory would restore; `None` if even a repair would fail.
    pub opening: Option<InspectedOpening>,
    /// Why the directory cannot be opened without a repair.
    pub refusal: Option<String>,
    /// Notes that opening the directory would produce, and what could not be inspected.
    pub notes: Vec<String>,
}

/// An Engram file.
#[derive(Clone, Debug, PartialEq)]
pub struct InspectedFile {
    /// The file's name.
    pub name: String,
    /// The file's size in bytes; 0 if it cannot be opened.
    pub bytes: u64,
    /// Number of valid records before the first invalid one.
    pub records: u64,
    /// Number of a log's first change; `None` if it contains only chunks or cannot be read, and for other files.
    pub first_change: Option<u64>,
    /// Number of changes in the valid records before the first invalid one.
    pub changes: u64,
    /// Whether the file is intact.
    pub state: FileState,
}

/// Whether a file is intact.
#[derive(Clone, Debug, PartialEq)]
pub enum FileState {
    /// All records are valid.
    Whole,
    /// A log ends with an invalid record, as after an interrupted write, and no later log shows that changes are
    /// missing. Changes in that record were not acknowledged, unless the power failed with
    /// [`Durability::Process`](crate::Durability::Process) or the file was damaged later.
    Torn(InvalidRecord),
    /// Bytes have changed or are missing since they were written, or a part of the file cannot be read.
    Damaged(InvalidRecord),
    /// The file cannot be used at all, for this reason: for example, it cannot be read, or belongs to another store.
    Unusable(String),
    /// Writing the file was not finished: opening the directory removes it.
    Unfinished,
    /// A `.lost` file: a repair has set it aside, or it is a copy of a torn log's tail.
    SetAside,
}

/// The first invalid record of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InvalidRecord {
    /// Offset of the record in bytes; 0 if the file header is damaged.
    pub offset: u64,
    /// What is wrong with it.
    pub reason: String,
    /// Number of valid records found after it, which recovery does not read. Very long invalid parts are not searched.
    pub records_after: u64,
    /// Number of changes in those records.
    pub changes_after: u64,
}

/// A checkpoint, as far as it can be read.
#[derive(Clone, Debug, PartialEq)]
pub struct InspectedCheckpoint {
    /// The checkpoint's number.
    pub number: u64,
    /// When it was created, in seconds since 1970; `None` if unknown.
    pub created_at: Option<u64>,
    /// Number of the first change that is replayed after it; `None` if unknown.
    pub first_change: Option<u64>,
    /// Its tables.
    pub tables: Vec<InspectedTable>,
    /// Number of distinct chunks that its items refer to.
    pub chunks: u64,
    /// Total size of the records of those chunks that exist, in bytes.
    pub chunk_bytes: u64,
    /// Number of those chunks that are missing.
    pub missing_chunks: u64,
    /// Why recovery cannot or does not use it; `None` if it could use it.
    pub problem: Option<String>,
}

/// A table in a checkpoint, or as it would be restored.
#[derive(Clone, Debug, PartialEq)]
pub struct InspectedTable {
    /// The table's name.
    pub name: String,
    /// Number of items.
    pub items: u64,
    /// Bytes of the items and of the distinct chunks they refer to; `None` if not computed.
    pub bytes: Option<u64>,
    /// Number of its last change; 0 if it has none.
    pub last_change: u64,
}

/// What opening a directory would restore.
#[derive(Clone, Debug, PartialEq)]
pub struct InspectedOpening {
    /// True if acknowledged data is missing: the directory opens only with a repair.
    pub repaired: bool,
    /// Number of the checkpoint that recovery uses; `None` if there is none.
    pub checkpoint: Option<u64>,
    /// Number of changes that are replayed after that checkpoint, or from the first change on if there is none.
    pub changes: u64,
    /// Time since the store was created, by the store's clock, in nanoseconds.
    pub age: u64,
    /// Tables, sorted by name.
    pub tables: Vec<InspectedTable>,
}

impl Inspection {
    /// Describes what is damaged or lost, even if opening the directory does not need it. Torn logs and unfinished
    /// files are not listed.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let without_repair = match self.opening {
            Some(_) => " without repair",
            None => "",
        };
        let refusals = self.refusal.iter();
        let refusals =
            refusals.map(|reason| format!("the store cannot be opened{without_repair}: {reason}"));
        let files = self.files.iter().filter_map(InspectedFile::problem);
        let mut problems: Vec<String> = refusals.chain(files).collect();
        for InspectedCheckpoint {
            number, problem, ..
        } in &self.checkpoints
        {
            let name = checkpoint_name(*number);
            // Problems of its own file are already in the list.
            let is_whole =
                |file: &InspectedFile| file.name == name && file.state == FileState::Whole;
            if let Some(problem) = problem
                && self.files.iter().any(is_whole)
            {
                problems.push(format!("{name} cannot be used: {problem}"));
            }
        }
        problems
    }
}

impl InspectedFile {
    /// Describes what is wrong with the file.
    fn problem(&self) -> Option<String> {
        let name = &self.name;
        match &self.state {
            FileState::Unusable(reason) => Some(format!("{name} cannot be used: {reason}")),
            FileState::Damaged(invalid) => {
                let InvalidRecord { offset, reason, .. } = invalid;
                let records_after = invalid.describe_records_after();
                Some(format!(
                    "{name} is damaged at byte {offset}: {reason}{records_after}"
                ))
            }
            _ => None,
        }
    }
}

impl InvalidRecord {
    /// Describes the valid records after this one, as a suffix.
    fn describe_records_after(&self) -> String {
        let changes = match self.changes_after {
            0 => String::new(),
            1 => " with 1 change".into(),
            changes => format!(" with {changes} changes"),
        };
        match self.records_after {
            0 => String::new(),
            1 => format!("; 1 intact record{changes} follows, which recovery does not read"),
            records => {
                format!("; {records} intact records{changes} follow, which recovery does not read")
            }
        }
    }
}
