//! Where episodes begin and end: the columns that state it, and the flags of each row.

/// The indices of the columns that state where episodes end. Their cells are single bools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpisodeColumns {
    /// Column that is true at the last step of an episode that terminated.
    pub terminated: usize,
    /// Column that is true at the last step of an episode that ended without terminating.
    pub truncated: usize,
}

/// Flag of a row: the step is the last one of its episode.
pub(super) const ENDED: u8 = 1;
/// Flag of a row: the episode terminated with this step.
pub(super) const TERMINATED: u8 = 2;
/// Flag of a row: the step is the first one of its episode, or the first one after `clear`.
pub(super) const FIRST: u8 = 4;
/// Flag of a row: an episode that is longer than an item is cut before the step.
pub(super) const CUT: u8 = 8;
