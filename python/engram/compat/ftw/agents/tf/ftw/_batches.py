"""What the learner's datasets yield, as the batches of `engram.agents.ftw`."""

import numpy as np

from engram._extras import importing_extra
from engram.adders.step import MaskedStep
from engram.agents.ftw.networks import OAR
from engram.agents.ftw.trajectory import Windows
from engram.compat.ftw.agents.tf.ftw.acting import as_pixels
from engram.nests import Nest

with importing_extra("agents", "engram.compat.ftw"):
    import jax

__all__ = ["to_items", "to_windows", "zeros_like_items", "zeros_like_windows"]


def to_items(sample: Nest, *, scale_pixels: bool) -> MaskedStep:
    """Returns items `[B, R, ...]` with a mask.

    Args:
        sample: `Step`s, `MaskedStep`s, or other tuples with these names, of arrays of NumPy or JAX, or of tensors of
            TensorFlow or PyTorch in main memory; or what has them as `data`. Without a mask, the rows that adders
            append to an episode are recognized: the last rows whose action, reward, discount and logits are all zero.
        scale_pixels: See `as_pixels`.
    """
    data = _arrays_of(sample)
    observation, action, reward = data.observation
    mask = data.mask if hasattr(data, "mask") else _mask(data)
    oar = OAR(as_pixels(observation, scale=scale_pixels), action, reward)
    return MaskedStep(oar, data.action, data.reward, data.discount, np.zeros_like(mask, bool), data.extras, mask)


def _arrays_of(sample: Nest) -> Nest:
    """Returns a sample's data with NumPy arrays as leaves."""
    return jax.tree.map(np.asarray, getattr(sample, "data", sample))


def _mask(data: Nest) -> Nest:
    """Returns 1 for rows of an episode's transitions, and 0 for the rows after them, f32 `[B, R]`."""
    columns = (data.action, data.reward, data.discount, data.extras["logits"])
    batch, rows = np.shape(data.discount)
    filled = np.any([np.any(np.reshape(column, (batch, rows, -1)) != 0, -1) for column in columns], 0)
    return np.flip(np.logical_or.accumulate(np.flip(filled, 1), 1), 1).astype(np.float32)


def to_windows(zero: Nest, nonzero: Nest, *, scale_pixels: bool) -> Windows:
    """Returns the windows of samples `[B // 2, L, ...]` of both datasets."""
    zero, nonzero = map(_arrays_of, (zero, nonzero))
    zero_frames, nonzero_frames = (as_pixels(data.observation[0], scale=scale_pixels) for data in (zero, nonzero))
    return Windows(zero_frames, nonzero_frames, nonzero.reward[:, -1])


def zeros_like_items(items: MaskedStep) -> MaskedStep:
    """Returns items of the same shapes."""
    zeros: MaskedStep = jax.tree.map(np.zeros_like, items)
    return zeros


def zeros_like_windows(items: MaskedStep, length: int) -> Windows:
    """Returns windows of `length` frames for a batch of such items."""
    frames, rewards = items.observation.observation, items.reward
    half = len(frames) // 2
    zeros = np.zeros((half, length, *frames.shape[2:]), frames.dtype)
    return Windows(zeros, zeros, np.zeros((half, *rewards.shape[2:]), rewards.dtype))
