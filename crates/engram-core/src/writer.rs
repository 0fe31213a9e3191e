//! Writing: turns appended steps into chunks, and into items that refer to them.
//!
//! Nothing here blocks, reads a clock or accesses a table. A [`Recorder`] records one stream of steps, a
//! [`BatchedRecorder`] the steps of many environments. A [`Pattern`] describes which items to create from the newest
//! steps. A [`VectorRecorder`] records the transitions of many environments, and creates items by an [`ItemRule`].

mod appended_steps;
mod batched;
mod column_input;
mod condition;
mod history;
mod item_columns;
mod item_recorder;
mod key_source;
mod open_batch;
mod open_chunk;
mod options;
mod pattern;
mod pattern_set;
mod pending_items;
mod priority_rule;
mod recorder;
mod row_map;
mod selection;
mod selection_error;
mod side_cells;
mod window_shape_cache;

pub use appended_steps::AppendedSteps;
pub use batched::BatchedRecorder;
pub use batched::vector::{
    AtEnd, AutoresetMode, ItemColumn, ItemKind, ItemRule, ItemSource, Part, VectorRecorder,
    VectorStep,
};
pub use column_input::ColumnInput;
pub use condition::{Comparison, Condition, ConditionInput};
pub use item_columns::ItemColumns;
pub use item_recorder::ItemRecorder;
pub use key_source::{KeySource, MAX_SHARD_ID, ShardId};
pub use options::WriterOptions;
pub use pattern::{Pattern, PatternColumn};
pub use pattern_set::PatternSet;
pub use priority_rule::PriorityRule;
pub use recorder::Recorder;
pub use selection::{CellPositions, ColumnSelection, Selection};

/// Number of a step of a writer, counted from 0 over all its episodes; never reused.
pub type StepPosition = u64;
