"""The number of actions as a static field of a module."""

from collections.abc import Sequence

from engram.agents.ftw.actions import NumActions, group_sizes


def static_num_actions(num_actions: NumActions) -> int | tuple[int, ...]:
    """Returns the number of flat actions, or the sizes of action groups as a tuple, which is hashable.

    Raises:
        InvalidArgumentError: If `num_actions` is neither an integer of at least 1 nor a sequence of them.
    """
    sizes = group_sizes(num_actions)
    return sizes if isinstance(num_actions, Sequence) else sizes[0]
