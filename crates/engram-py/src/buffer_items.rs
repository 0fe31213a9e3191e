//! Reads what a replay buffer samples, and how: `CompiledItems` and `CompiledSampler` of `engram.buffers.items`.

use engram_core::ring::{
    EpisodeColumns, FrameStack, GoalStrategy, Hindsight, OutputColumn, OutputSource, RecentMix,
    RingItems,
};
use engram_core::{CellSpec, DType, Shape};
use pyo3::prelude::*;

/// An `engram.buffers.items.CompiledItems`.
#[derive(Debug, FromPyObject)]
pub(crate) struct BufferItemsConfig {
    kind: String,
    /// Number of steps of a sequence, maximum number of steps of an episode, or `n_step` of transitions.
    length: usize,
    burn_in: usize,
    at_end: String,
    discount: f64,
    pub(crate) structure: String,
    columns: Vec<OutputColumnConfig>,
    pub(crate) names: Vec<String>,
    /// The columns `terminated` and `truncated`.
    episode_columns: Option<(usize, usize)>,
    pub(crate) reward_column: Option<usize>,
    /// Strategy and probability with which goals are replaced.
    hindsight: Option<(String, f64)>,
}

/// An `engram.buffers.items.CompiledSampler`.
#[derive(Clone, Copy, Debug, FromPyObject)]
pub(crate) struct BufferSamplerConfig {
    /// Of priorities; None without.
    pub(crate) exponent: Option<f64>,
    /// Part of a batch that is drawn from the newest items, and their number per environment.
    recent: Option<(f64, usize)>,
}

impl BufferSamplerConfig {
    pub(crate) fn recent(self) -> Option<RecentMix> {
        self.recent
            .map(|(fraction, newest)| RecentMix { fraction, newest })
    }
}

/// An `engram.buffers.items.OutputColumn`.
#[derive(Debug, FromPyObject)]
struct OutputColumnConfig {
    source: String,
    column: usize,
    /// Number of stacked frames; 0 without a stack.
    frames: usize,
    earlier: usize,
    /// Column of the achieved goals.
    achieved: usize,
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
            "episodes" => RingItems::Episodes {
                max_length: self.length,
            },
            _ => RingItems::Steps,
        }
    }

    pub(crate) fn episode_columns(&self) -> Option<EpisodeColumns> {
        self.episode_columns
            .map(|(terminated, truncated)| EpisodeColumns {
                terminated,
                truncated,
            })
    }

    pub(crate) fn hindsight(&self) -> Option<Hindsight> {
        self.hindsight
            .as_ref()
            .map(|(strategy, relabel)| Hindsight {
                strategy: match strategy.as_str() {
                    "final" => GoalStrategy::Final,
                    "episode" => GoalStrategy::Episode,
                    _ => GoalStrategy::Future,
                },
                relabel: *relabel,
            })
    }

    /// Maximum number of steps that are read for an item.
    pub(crate) fn steps_per_item(&self) -> usize {
        self.burn_in + self.length
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
                        "goal" => OutputSource::Goal {
                            column: output.column,
                            achieved: output.achieved,
                        },
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
