//! The settings of a replay buffer.

use super::episode_flags::EpisodeColumns;
use super::{FrameStack, Hindsight, RecentMix, RingItems};
use crate::schema::CellSpec;

/// The settings of a [`StepBuffer`](super::StepBuffer).
#[derive(Debug)]
pub struct StepBufferOptions<'a> {
    /// Dtype and shape of the columns of a step.
    pub cells: &'a [CellSpec],
    /// Names of these columns.
    pub names: &'a [Box<str>],
    /// Number of environments.
    pub num_envs: usize,
    /// Slots per environment: the number of its newest steps that are stored.
    pub length: usize,
    /// What is sampled.
    pub items: RingItems,
    /// Columns of a batch.
    pub outputs: Vec<OutputColumn>,
    /// The columns that state where episodes end. Optional only if `items` is `Steps`, without `hindsight` and stacked
    /// frames.
    pub episode_columns: Option<EpisodeColumns>,
    /// Index of the column of the rewards. Required if `items` is `Transitions`.
    pub reward_column: Option<usize>,
    /// How goals are replaced. Requires `episode_columns`, and `Steps`, or
    /// `Transitions` with an `n_step` of 1.
    pub hindsight: Option<Hindsight>,
    /// Exponent of a `Prioritized` sampler; `None` for a `Uniform` one.
    pub exponent: Option<f64>,
    /// Which part of a batch is drawn from the newest items. Requires that there is no `exponent`.
    pub recent: Option<RecentMix>,
    /// Seed of the random choices.
    pub seed: u64,
}

/// What a column of a batch contains; a number is the index of a column of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputSource {
    /// A column of the first step of an item.
    First(usize),
    /// A column of the last step of a transition.
    Last(usize),
    /// A column of all steps of a sequence or an episode.
    All(usize),
    /// The goal of a single step.
    Goal {
        /// Column of the goal that the step had.
        column: usize,
        /// Column of the goals that steps achieved. An item that gets another goal has one of these.
        achieved: usize,
    },
    /// The discounted sum of the rewards of a transition, float32.
    Return,
    /// The discount of a transition, float32.
    Discount,
    /// The number of steps of a transition, int32.
    NumSteps,
    /// True for the steps of a sequence or an episode, bool; false where its first step is repeated, and for zeros after its end.
    Valid,
    /// True for the steps of a sequence that follow the burn-in, bool; false for zeros after its end.
    Learning,
    /// True for the first step of an episode and its repetitions, bool.
    IsFirst,
}

/// A column of a batch.
#[derive(Clone, Debug)]
pub struct OutputColumn {
    /// What it contains.
    pub source: OutputSource,
    /// Dtype and shape of what one item has in this column, with the axes of time and of stacked frames.
    pub cell: CellSpec,
    /// How the cells of a column of the ring are stacked.
    pub stack: Option<FrameStack>,
}
