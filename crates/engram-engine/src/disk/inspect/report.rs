//! What an inspection finds, and which of it is damage.

use crate::disk::file_names::checkpoint_name;

/// What lies in a directory, and what a store opened there would begin with.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Who has it open, as its `LOCK` says.
    pub in_use: Option<String>,
    /// Random number of the store; `None` where there is none.
    pub store: Option<u64>,
    /// FileSystem of ours but for `LOCK`: checkpoints, then logs, then those not finished, then those that a repair set
    /// aside, each in order.
    pub files: Vec<InspectedFile>,
    /// Names of files that are not ours, in order.
    pub others: Vec<String>,
    /// In order.
    pub checkpoints: Vec<InspectedCheckpoint>,
    /// What a store would begin with; `None` where not even a repair would find any.
    pub opening: Option<InspectedOpening>,
    /// Why a store would not open without a repair.
    pub refusal: Option<String>,
    /// What a store would say when it opens, and what could not be looked at.
    pub notes: Vec<String>,
}

/// A file of ours.
#[derive(Clone, Debug, PartialEq)]
pub struct InspectedFile {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// RecordWriter that pass, up to the first that does not.
    pub records: u64,
    /// Of a log: the number of its first change; `None` where it holds chunks alone, or it cannot be read.
    pub first_change: Option<u64>,
    /// Of a log: changes in those records.
    pub changes: u64,
    /// Whether it is whole.
    pub state: FileState,
}

/// Whether a file is whole.
#[derive(Clone, Debug, PartialEq)]
pub enum FileState {
    /// All of it passes.
    Whole,
    /// The end of a log was never written whole: nobody was told that it was.
    Torn(InvalidRecord),
    /// Bytes of it are not those that were written.
    Damaged(InvalidRecord),
    /// None of it is read, and why.
    Unusable(String),
    /// It was never finished: the next to open the directory removes it.
    Unfinished,
    /// A repair had no use for it.
    SetAside,
}

/// Where a file stops to pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InvalidRecord {
    /// The byte from which on it does not.
    pub offset: u64,
    /// What is wrong there.
    pub reason: String,
    /// RecordWriter beyond that pass, and that no store reads.
    pub records_after: u64,
    /// Changes in those.
    pub changes_after: u64,
}

/// A checkpoint, as far as it can be read.
#[derive(Clone, Debug, PartialEq)]
pub struct InspectedCheckpoint {
    /// Its number.
    pub number: u64,
    /// When it was made: seconds since 1970.
    pub made: Option<u64>,
    /// The change with which replay begins.
    pub first_change: Option<u64>,
    /// Its tables.
    pub tables: Vec<InspectedTable>,
    /// Distinct chunks that its items refer to.
    pub chunks: u64,
    /// Bytes of those that are there, as logs hold them.
    pub chunk_bytes: u64,
    /// Those that are not there.
    pub missing_chunks: u64,
    /// Why a store cannot begin with it.
    pub problem: Option<String>,
}

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct InspectedTable {
    /// Its name.
    pub name: String,
    /// Its items.
    pub items: u64,
    /// Of the distinct chunks they refer to, and of themselves; `None` where that was not looked at.
    pub bytes: Option<u64>,
    /// Number of its last change; 0 where none was numbered.
    pub last_change: u64,
}

/// What a store begins with.
#[derive(Clone, Debug, PartialEq)]
pub struct InspectedOpening {
    /// Something is lost: it opens if it is told to repair.
    pub repaired: bool,
    /// The checkpoint that it takes.
    pub checkpoint: Option<u64>,
    /// Changes that are replayed after it.
    pub changes: u64,
    /// Nanoseconds since the store was created.
    pub age: u64,
    /// Its tables, in order of their names.
    pub tables: Vec<InspectedTable>,
}

impl Inspection {
    /// What is damaged or lost, in words; nothing where a store opens with all that was acknowledged.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let repair = match self.opening {
            Some(_) => " without repair",
            None => "",
        };
        let refused = self.refusal.iter();
        let refused = refused.map(|why| format!("no store can be opened here{repair}: {why}"));
        let files = self.files.iter().filter_map(InspectedFile::problem);
        let mut problems: Vec<String> = refused.chain(files).collect();
        for InspectedCheckpoint {
            number, problem, ..
        } in &self.checkpoints
        {
            let name = checkpoint_name(*number);
            // What is wrong with its own file was said.
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
    fn problem(&self) -> Option<String> {
        let name = &self.name;
        match &self.state {
            FileState::Unusable(why) => Some(format!("{name} cannot be used: {why}")),
            FileState::Damaged(invalid) => {
                let InvalidRecord { offset, reason, .. } = invalid;
                let after = invalid.after();
                Some(format!(
                    "{name} is damaged at byte {offset}: {reason}{after}"
                ))
            }
            _ => None,
        }
    }
}

impl InvalidRecord {
    /// What lies beyond, in words.
    fn after(&self) -> String {
        let changes = match self.changes_after {
            0 => String::new(),
            1 => " with 1 change".into(),
            changes => format!(" with {changes} changes"),
        };
        match self.records_after {
            0 => String::new(),
            1 => format!("; 1 whole record{changes} follows, which a store does not read"),
            records => {
                format!("; {records} whole records{changes} follow, which a store does not read")
            }
        }
    }
}
