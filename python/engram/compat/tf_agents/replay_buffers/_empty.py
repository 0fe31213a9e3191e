"""The text of the error if there is no sequence to sample."""

__all__ = ["EMPTY", "why_empty"]

EMPTY = "TFUniformReplayBuffer is empty. Make sure to add items before sampling the buffer."
"""The text of TF-Agents, with which the error begins whatever its reason is."""


def why_empty(available: int, num_steps: int, max_length: int) -> str:
    """Returns `EMPTY` and the reason, given the items per segment: available, needed in a row, and at most possible."""
    if available == 0:
        return f"{EMPTY} It has no items."
    if num_steps > max_length:
        return f"{EMPTY} `num_steps` must be at most `max_length`, {max_length}; got {num_steps}."
    return f"{EMPTY} It has {available} consecutive items; `num_steps` is {num_steps}."
