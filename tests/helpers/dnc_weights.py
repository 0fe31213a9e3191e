"""Random weights over the slots of a DNC's memory."""

import numpy as np


def weights(rng, *shape):
    """Random weights whose sum over the last axis is at most 1."""
    return (rng.dirichlet(np.ones(shape[-1]), shape[:-1]) * rng.uniform(size=(*shape[:-1], 1))).astype(np.float32)
