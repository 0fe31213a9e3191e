"""Buffers of `engram.compat.alf` and steps for them. PyTorch is imported on first use: `alf_buffers.torch`."""

import math

FIRST, MID, LAST = 0, 1, 2


def __getattr__(name):
    if name == "torch":
        import torch  # noqa: PLC0415, the extra

        return torch
    if name == "alf":
        from engram.compat import alf  # noqa: PLC0415, it needs PyTorch

        return alf
    raise AttributeError(name)


def ints(values):
    """An int64 tensor."""
    import torch  # noqa: PLC0415, the extra

    return torch.tensor(values, dtype=torch.int64)


def data_spec():
    """The spec of steps with a number `x` of each step and the fields that episodes and returns need."""
    from engram.compat.alf import TensorSpec  # noqa: PLC0415, it needs PyTorch

    return {
        "step_type": TensorSpec((), "int32"),
        "reward": TensorSpec(()),
        "discount": TensorSpec(()),
        "nested": {"x": TensorSpec((2,), "int64")},
    }


def replay_buffer(num_environments=1, max_length=4, **options):
    """A replay buffer for `steps`."""
    from engram.compat.alf import ReplayBuffer  # noqa: PLC0415, it needs PyTorch

    return ReplayBuffer(data_spec(), num_environments, max_length, **options)


def steps(x, step_type=MID, reward=0.0, discount=1.0):
    """A batch of steps, one for each number in `x`; the other arguments are those of all, or lists."""
    import torch  # noqa: PLC0415, the extra

    def column(value, dtype):
        return torch.tensor(value if isinstance(value, list) else [value] * len(x), dtype=dtype)

    return {
        "step_type": column(step_type, torch.int32),
        "reward": column(reward, torch.float32),
        "discount": column(discount, torch.float32),
        "nested": {"x": torch.stack([ints(x), -ints(x)], dim=1)},
    }


def x_of(data):
    """The numbers `x` of steps, as lists."""
    x, negative = data["nested"]["x"].unbind(-1)
    assert (x == -negative).all()
    return x.tolist()


def fill(buffer, *counts):
    """Adds `counts[e]` steps to each environment `e`, with the numbers `100 * e`, `100 * e + 1` and so on."""
    for position in range(max(counts)):
        envs = [env for env, count in enumerate(counts) if position < count]
        buffer.add_batch(steps([100 * env + position for env in envs]), ints(envs))
    return buffer


def assert_frequencies(counts, expected):
    """Checks numbers of independent draws against the numbers expected, with a chi-square statistic."""
    freedom = len(expected) - 1
    statistic = sum((count - mean) ** 2 / mean for count, mean in zip(counts, expected, strict=True))
    assert sum(counts) == round(sum(expected))
    assert statistic < freedom + 5 * math.sqrt(2 * freedom), statistic
