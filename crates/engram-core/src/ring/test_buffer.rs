//! Buffers for unit tests, whose steps only state whether they end an episode.

use super::{EpisodeColumns, RingItems, StepBuffer, StepBufferOptions};
use crate::{CellSpec, DType, Shape, SharedBytes};

/// The columns of up to 20 steps that do not end an episode.
pub(super) fn no_flags() -> [SharedBytes<'static>; 2] {
    [SharedBytes::from(&[0; 20][..]); 2]
}

/// An empty buffer with this number of environments, and of slots for each.
pub(super) fn buffer_of(items: RingItems, num_envs: usize, length: usize) -> StepBuffer {
    let flag = CellSpec {
        dtype: DType::Bool,
        shape: Shape::new(),
    };
    let options = StepBufferOptions {
        cells: &[flag.clone(), flag],
        names: &["terminated".into(), "truncated".into()],
        num_envs,
        length,
        items,
        outputs: Vec::new(),
        episode_columns: Some(EpisodeColumns {
            terminated: 0,
            truncated: 1,
        }),
        reward_column: None,
        hindsight: None,
        exponent: None,
        recent: None,
        seed: 0,
    };
    StepBuffer::new(&options).unwrap()
}
