"""Observations of a server through dm-reverb's client, as nests of arrays, numbers and texts.

Keys are omitted, because they are random. Programs observe what calls with keys change.
"""

import time

import tensorflow as tf


def plain(value):
    """Converts tensors and namedtuples to arrays and lists, which can be unpickled without TensorFlow."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, tf.Tensor):
        return value.numpy()
    return value


def sample_observations(client, table, count, **options):
    """Samples items and returns their types, infos without keys, and data."""
    observations = []
    for sample in client.sample(table, count, **options):
        steps = sample if isinstance(sample, list) else [sample]
        info = steps[0].info
        facts = (info.probability, info.table_size, info.priority, info.times_sampled)
        observations.append((type(sample).__name__, facts, plain([step.data for step in steps])))
    return observations


def sample_items(client, table, count, **options):
    """Like `sample_observations`, with whole columns."""
    return sample_observations(client, table, count, emit_timesteps=False, **options)


def outcome(call, address="."):
    """Returns the result of a call, or the type and text of its error without the address and the list of tables."""
    try:
        return ("returned", plain(call()))
    except Exception as error:  # noqa: BLE001, errors are compared
        return (type(error).__name__, str(error).partition("Available tables")[0].replace(address, "."))


def info(client, name, size=None):
    """Returns a table's info without `table_worker_time`; with `size`, once the table has that many items (10 s)."""
    deadline = time.monotonic() + 10
    table_info = client.server_info(timeout=30)[name]
    while size is not None and table_info.current_size != size and time.monotonic() < deadline:
        time.sleep(0.01)
        table_info = client.server_info(timeout=30)[name]
    numbers = ("name", "max_size", "max_times_sampled", "current_size", "num_episodes", "num_deleted_episodes")
    return {
        **{key: getattr(table_info, key) for key in (*numbers, "num_unique_samples")},
        "sampler": str(table_info.sampler_options),
        "remover": str(table_info.remover_options),
        "limiter": str(table_info.rate_limiter_info),
        "signature": repr(table_info.signature),
    }
