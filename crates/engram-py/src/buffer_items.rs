//! What the items of a replay buffer consist of, as Python describes it.

use engram_core::ring::{FrameStack, OutputColumn, OutputSource, RingItems};
use engram_core::{CellSpec, DType, Shape};
use pyo3::prelude::*;

/// An `engram.buffers.items.CompiledItems`.
#[derive(Debug, FromPyObject)]
pub(crate) struct BufferItemsConfig {
    kind: String,
    /// Number of steps of a sequence, or `n_step` of transitions.
    pub(crate) length: usize,
    pub(crate) burn_in: usize,
    at_end: String,
    discount: f64,
    pub(crate) structure: String,
    columns: Vec<OutputColumnConfig>,
    pub(crate) names: Vec<String>,
    /// The columns `terminated` and `truncated`.
    pub(crate) episode_columns: Option<(usize, usize)>,
    pub(crate) reward_column: Option<usize>,
}

/// An `engram.buffers.items.OutputColumn`.
#[derive(Debug, FromPyObject)]
struct OutputColumnConfig {
    source: String,
    column: usize,
    /// Number of stacked frames; 0 without a stack.
    frames: usize,
    earlier: usize,
}

impl OutputColumnConfig {
    fn stack(&self) -> Option<FrameStack> {
        (self.frames > 0).then_some(FrameStack {
            frames: self.frames,
            earlier: self.earlier,
            includes_step: self.earlier != self.column,
        })
    }
}

impl BufferItemsConfig {
    pub(crate) fn items(&self) -> RingItems {
        match self.kind.as_str() {
            "transitions" => RingItems::Transitions {
                n_step: self.length,
                discount: self.discount,
            },
            "sequences" => RingItems::Sequences {
                length: self.length,
                burn_in: self.burn_in,
                continues: self.at_end == "continue",
            },
            _ => RingItems::Steps,
        }
    }

    /// The columns of an item, given those of a step.
    pub(crate) fn outputs(&self, cells: &[CellSpec]) -> Vec<OutputColumn> {
        let time = self.items().time_axis();
        let columns = self.columns.iter().map(|output| {
            let scalar = |dtype| (dtype, Shape::new());
            let (source, (dtype, shape)) = match output.source.as_str() {
                "return" => (OutputSource::Return, scalar(DType::Float32)),
                "discount" => (OutputSource::Discount, scalar(DType::Float32)),
                "num_steps" => (OutputSource::NumSteps, scalar(DType::Int32)),
                "valid" => (OutputSource::Valid, scalar(DType::Bool)),
                "learning" => (OutputSource::Learning, scalar(DType::Bool)),
                "is_first" => (OutputSource::IsFirst, scalar(DType::Bool)),
                source => {
                    let cell = &cells[output.column];
                    let source = match source {
                        "last" => OutputSource::Last(output.column),
                        "all" => OutputSource::All(output.column),
                        _ => OutputSource::First(output.column),
                    };
                    (source, (cell.dtype, cell.shape.clone()))
                }
            };
            let stack = output.stack();
            let axes = time
                .into_iter()
                .chain(stack.map(|stack| stack.frames))
                .chain(shape);
            OutputColumn {
                source,
                cell: CellSpec {
                    dtype,
                    shape: axes.collect(),
                },
                stack,
            }
        });
        columns.collect()
    }
}
