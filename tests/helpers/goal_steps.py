"""Steps with goals, for tests of hindsight experience replay."""

import numpy as np

NAMES = {"goal": "goal", "achieved": "achieved"}


def reward_of(achieved, goal):
    """A reward that differs for all pairs of goals of a test."""
    return achieved * 1000.0 + goal


def goal_step(number, *, terminated=False, truncated=False):
    """A step that achieves a goal of its own; what it should have achieved is negative."""
    return {
        "x": number,
        "goal": -number - 1,
        "achieved": number,
        "reward": 0.25,
        "next_obs": number + 0.5,
        "terminated": terminated,
        "truncated": truncated,
    }


def stack(steps):
    """Steps of one environment with the leading axes of `add_steps`."""
    return {name: np.array([[each[name] for each in steps]]) for name in steps[0]}
