"""Items for tests of datasets, of any lengths and with distinct values."""

import numpy as np


def put(client, table, lengths, *, shape=(2,)):
    """Inserts one item per length. Step `t` of item `i` has the time `i + t / 100` and cells filled with `i`."""
    for i, length in enumerate(lengths):
        times = np.float32([i + t / 100 for t in range(length)])
        cells = np.full((length, *shape), i, np.uint8)
        with client.trajectory_writer(length) as writer:
            for t in range(length):
                writer.append({"cell": cells[t], "time": times[t]})
            history = writer.history
            columns = {name: history[name][-length:] for name in history}
            writer.create_item(table, 1.0 + i, columns)
            writer.flush()


def specs(tf, length, *, shape=(2,)):
    """Dtypes and shapes of items of `length` steps, None for any number, or of single steps if `length` is ()."""
    leading_axes = () if length == () else (length,)
    return (
        {"cell": tf.uint8, "time": tf.float32},
        {"cell": tf.TensorShape([*leading_axes, *shape]), "time": tf.TensorShape(leading_axes)},
    )
