"""Programs that insert and sample in one thread, compared with a model of their table."""

from collections import deque

import numpy as np

from engram import Table, rate_limiters, selectors
from helpers.support import BackgroundCall

SECONDS = 60.0
"""Seconds after which a program is considered to hang."""


def table(name, size, times, **options):
    """A table whose items are sampled `times` times each, in order; it blocks inserts while it has `size` items."""
    limiter = rate_limiters.RateLimiter(float(times), 1, 0.0, float(times * size))
    return Table(
        name, max_size=size, sampler=selectors.Fifo(), max_times_sampled=times, rate_limiter=limiter, **options
    )


class Model:
    """A queue of `size` items, each of which is sampled `times` times in a row."""

    def __init__(self, size, times):
        self.size, self.times = size, times
        self.remaining = deque()  # the samples not taken yet

    def can_insert(self):
        return len(self.remaining) + self.times <= self.size * self.times

    def insert(self, value):
        self.remaining.extend([value] * self.times)

    def take(self, n):
        return [self.remaining.popleft() for _ in range(n)]

    def num_items(self):
        return -(-len(self.remaining) // self.times)


def run(model, insert, take, check, *, n, seed, steps=40):
    """Makes random inserts and samples of `n` items, as the model allows, and checks after each. Fails if one hangs."""

    def program():
        rng, value = np.random.default_rng(seed), 0
        for _ in range(steps):
            if model.can_insert() and (len(model.remaining) < n or rng.random() < 0.5):
                insert(value)
                model.insert(value)
                value += 1
            elif len(model.remaining) >= n:
                assert take() == model.take(n)
            check(model)

    BackgroundCall(program).result(SECONDS)
