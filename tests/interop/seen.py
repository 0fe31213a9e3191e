"""What programs for dm-reverb's own client see of a server, as nests of arrays, numbers and texts.

Keys are random and left out; whether they do what keys do is part of what is seen.
"""

import tensorflow as tf


def plain(value):
    """Tensors and namedtuples as arrays and tuples, which need no TensorFlow to be read."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, tf.Tensor):
        return value.numpy()
    return value


def sampled(client, table, count, **options):
    """What is known of some samples, but for their keys."""
    seen = []
    for sample in client.sample(table, count, **options):
        steps = sample if isinstance(sample, list) else [sample]
        info = steps[0].info
        facts = (info.probability, info.table_size, info.priority, info.times_sampled)
        seen.append((type(sample).__name__, facts, plain([step.data for step in steps])))
    return seen


def whole(client, table, count, **options):
    """The same, with whole columns."""
    return sampled(client, table, count, emit_timesteps=False, **options)


def outcome(call, address="."):
    """What a call returned, or the kind of its error and its text: without the address, and any list of tables."""
    try:
        return ("returned", plain(call()))
    except Exception as error:  # noqa: BLE001, seen and compared
        return (type(error).__name__, str(error).partition("Available tables")[0].replace(address, "."))


def info(client, name):
    """A table's numbers, but for those of its worker."""
    about = client.server_info(timeout=30)[name]
    numbers = ("name", "max_size", "max_times_sampled", "current_size", "num_episodes", "num_deleted_episodes")
    return {
        **{key: getattr(about, key) for key in (*numbers, "num_unique_samples")},
        "sampler": str(about.sampler_options),
        "remover": str(about.remover_options),
        "limiter": str(about.rate_limiter_info),
        "signature": repr(about.signature),
    }
