//! The state of a `TrajectoryWriter`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use engram_core::Layout;
use engram_core::pool::Pool;
use engram_core::writer::{ItemRecorder, Recorder};

use crate::sender::Sender;
use crate::step_flattener::StepFlattener;
use crate::structure::Structure;
use crate::writer::WriterState;

#[derive(Debug)]
pub(crate) struct TrajectoryState {
    pub(crate) recorder: Recorder,
    /// Flattens and checks steps, and writes them into `recorder`.
    pub(crate) steps: StepFlattener,
    pub(super) sender: Sender,
    /// Position of the step with index 0 in `history`: the first one since the last `end_episode(clear=True)`.
    pub(super) first_indexed: u64,
    /// Incremented when the structure changes, so that nests of column histories are rebuilt.
    pub(super) structure_version: u64,
    /// Layouts of trajectories, by structure text.
    pub(super) layouts: HashMap<String, Arc<Layout>>,
    /// Structure and layout of the last trajectory; the next one usually matches them.
    pub(super) last_trajectory: Option<(Structure, Arc<Layout>)>,
}

impl WriterState for TrajectoryState {
    fn parts(&self) -> (Option<&dyn ItemRecorder>, &Sender) {
        (Some(&self.recorder), &self.sender)
    }

    fn parts_mut(&mut self) -> (Option<&mut dyn ItemRecorder>, &mut Sender) {
        (Some(&mut self.recorder), &mut self.sender)
    }
}

impl TrajectoryState {
    /// Returns the pool of buffers for arrays.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        self.sender.pool()
    }

    /// Positions of the steps that have an index in `history`. The recorder may no longer retain the first ones.
    pub(crate) fn indexed_steps(&self) -> Range<u64> {
        self.first_indexed..self.recorder.available_steps().end
    }
}
