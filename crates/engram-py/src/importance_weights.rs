//! Importance weights of the items of a batch.

use engram_core::DrawDistribution;
use numpy::PyArray1;
use pyo3::prelude::*;

/// Computes `(1 / (N p)) ^ beta` of each draw, given its distribution and its probability `p`. `normalize` is what the
/// weights are divided by: `"batch"`, the largest of the batch; any other text, the largest that any item could have
/// had at the draw; `None`, nothing. Python has checked the arguments.
pub(crate) fn importance_weights<'py>(
    py: Python<'py>,
    draws: impl Iterator<Item = (DrawDistribution, f64)> + Clone,
    beta: f64,
    normalize: Option<&str>,
) -> Bound<'py, PyArray1<f32>> {
    let weights = draws
        .clone()
        .map(|(distribution, probability)| distribution.importance_weight(probability, beta));
    let mut weights: Vec<f64> = weights.collect();
    match normalize {
        None => {}
        Some("batch") => {
            let largest = weights.iter().copied().fold(0.0, f64::max);
            for weight in &mut weights {
                *weight /= largest;
            }
        }
        Some(_) => {
            for (weight, (distribution, _)) in weights.iter_mut().zip(draws) {
                *weight /= distribution.importance_weight(distribution.min_probability, beta);
            }
        }
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "weights are float32 by contract"
    )]
    let narrow = weights.into_iter().map(|weight| weight as f32);
    PyArray1::from_iter(py, narrow)
}
