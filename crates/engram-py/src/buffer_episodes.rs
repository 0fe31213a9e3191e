//! Checks the argument of `ReplayBuffer.add_episode`.

use engram_core::SharedBytes;
use engram_core::ring::EpisodeColumns;
use pyo3::prelude::*;

use crate::errors;

/// Checks that an episode has steps, and that only its last one may end it. `columns` has the cells of the columns.
///
/// # Errors
/// `InvalidArgumentError`.
pub(crate) fn check_episode(
    py: Python<'_>,
    columns: &[SharedBytes<'_>],
    steps: usize,
    episode_columns: Option<EpisodeColumns>,
) -> PyResult<()> {
    if steps == 0 {
        let text = "`steps` must have at least one step; got an episode of 0 steps";
        return Err(errors::invalid(py, text.into()));
    }
    let Some(episodes) = episode_columns else {
        return Ok(());
    };
    for (name, column) in [
        ("terminated", episodes.terminated),
        ("truncated", episodes.truncated),
    ] {
        let mut flags = columns[column].arrays().take(steps - 1);
        if let Some(step) = flags.position(|[flag]: [u8; 1]| flag != 0) {
            let text = format!(
                "`steps` must be one episode, which only its last step may end; got {steps} steps, and `{name}` is True \
                 at step {step}; for several episodes, use `add_steps`"
            );
            return Err(errors::invalid(py, text));
        }
    }
    Ok(())
}
