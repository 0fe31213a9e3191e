//! The client side of writing: steps go in, chunks and the items that refer to them come out.
//!
//! Nothing here waits, reads a clock or knows a table. A [`Recorder`] takes one stream of steps,
//! a [`BatchedRecorder`] those of many environments; [`Pattern`]s say once which items to make.

mod batch_chunk;
mod batch_column;
mod batched;
mod condition;
mod history;
mod item_columns;
mod keys;
mod open;
mod options;
mod pattern;
mod pattern_set;
mod pending;
mod priority;
mod recorder;
mod refusal;
mod rows;
mod select;
mod shapes;

pub use batch_column::BatchColumn;
pub use batched::BatchedRecorder;
pub use condition::{Comparison, Condition, ConditionInput};
pub use item_columns::ItemColumns;
pub use keys::KeySource;
pub use options::WriterOptions;
pub use pattern::{Pattern, PatternColumn};
pub use pattern_set::PatternSet;
pub use priority::PriorityRule;
pub use recorder::Recorder;
pub use select::{CellPositions, ColumnSelection, Selection};

/// Steps before this one since the writer began: grows by one, never reused.
pub type StepPosition = u64;
