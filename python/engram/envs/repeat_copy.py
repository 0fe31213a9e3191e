"""The repeat-copy task (Graves et al. 2016, DNC): repeat a sequence of random bits as often as the input states.

An example has the input steps: a start flag, the sequence, the number of repetitions. Then come the output steps: the
sequence, that many times, and an end flag. Only the output steps count.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engram import _checks
from engram._extras import importing_extra
from engram.errors import InvalidArgumentError

with importing_extra("agents", "engram.envs.repeat_copy"):
    import jax
    import jax.numpy as jnp
    from jax import Array


_NO_STEPS = float(np.finfo(np.float32).eps)
"""Added to the number of steps that count, which may be 0, before dividing by it."""


class Examples(NamedTuple):
    """A batch of examples, padded with zeros.

    Attributes:
        observations: f32 `[T, B, bits + 2]`: the bits, the start flag, and the number of repetitions.
        targets: f32 `[T, B, bits + 1]`: the bits and the end flag.
        mask: f32 `[T, B]`, 1 at output steps.
    """

    observations: npt.NDArray[np.float32]
    targets: npt.NDArray[np.float32]
    mask: npt.NDArray[np.float32]


def draw_examples(
    rng: np.random.Generator,
    batch_size: int,
    *,
    num_bits: int = 4,
    lengths: tuple[int, int] = (1, 2),
    repeats: tuple[int, int] = (1, 2),
) -> Examples:
    """Draws examples; T is the same for all batches, that of the longest possible example.

    Args:
        rng: Generator.
        batch_size: B.
        num_bits: Bits of each vector of the sequence.
        lengths: Smallest and largest number of vectors; uniform.
        repeats: Smallest and largest number of repetitions; uniform. The input has their number divided by the largest.

    Raises:
        InvalidArgumentError: A size or range is invalid.
    """
    _checks.integer("`batch_size`", batch_size)
    _checks.integer("`num_bits`", num_bits)
    for name, (low, high) in {"lengths": lengths, "repeats": repeats}.items():
        _checks.integer(f"`{name}[1]`", high, low=_checks.integer(f"`{name}[0]`", low))
    num_steps = lengths[1] * (repeats[1] + 1) + 3
    observations = np.zeros((num_steps, batch_size, num_bits + 2), np.float32)
    targets = np.zeros((num_steps, batch_size, num_bits + 1), np.float32)
    mask = np.zeros((num_steps, batch_size), np.float32)
    lengths_drawn = rng.integers(*lengths, batch_size, endpoint=True)
    counts_drawn = rng.integers(*repeats, batch_size, endpoint=True)
    for b, (length, count) in enumerate(zip(lengths_drawn, counts_drawn, strict=True)):
        bits = rng.integers(2, size=(length, num_bits))
        observations[0, b, num_bits] = 1
        observations[1 : length + 1, b, :num_bits] = bits
        observations[length + 1, b, num_bits + 1] = count / repeats[1]
        first, end = length + 2, length + 2 + length * count
        targets[first:end, b, :num_bits] = np.tile(bits, (count, 1))
        targets[end, b, num_bits] = 1
        mask[first : end + 1, b] = 1
    return Examples(observations, targets, mask)


def cost(logits: Array, targets: Array, mask: Array, *, time_average: bool = False, in_bits: bool = False) -> Array:
    """Returns the sigmoid cross-entropy of the output steps, `[]`: summed over bits and time, the mean over the batch.

    Args:
        logits: `[T, B, K]`.
        targets: `[T, B, K]`, 0 or 1.
        mask: `[T, B]`, 1 at steps that count.
        time_average: Mean over the steps of each example that count, instead of the sum.
        in_bits: In bits instead of nats.

    Raises:
        InvalidArgumentError: The shapes do not match.
    """
    if logits.shape != targets.shape or mask.shape != logits.shape[:2]:
        raise InvalidArgumentError(
            "`logits`, `targets` and `mask` must have the shapes [T, B, K], [T, B, K] and [T, B]; got"
            f" {logits.shape}, {targets.shape} and {mask.shape}"
        )
    cross_entropy = jnp.sum(jax.nn.softplus(logits) - targets * logits, -1)
    total = jnp.sum(cross_entropy * mask, 0)
    if time_average:
        total = total / (jnp.sum(mask, 0) + _NO_STEPS)
    return jnp.mean(total) / (jnp.log(2.0) if in_bits else 1)
