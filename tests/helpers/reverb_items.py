"""Items of given lengths for tests of datasets; all their values identify the item."""

import numpy as np


def put_items(client, table, *, lengths, shape=(2,)):
    """Inserts one item of two columns per length.

    Step `t` of item `i` has the `item_step` `i + t / 100`, such as 2.01, and a `cell` filled with `i`.
    """
    for i, length in enumerate(lengths):
        item_steps = np.float32([i + t / 100 for t in range(length)])
        cells = np.full((length, *shape), i, np.uint8)
        with client.trajectory_writer(length) as writer:
            for t in range(length):
                writer.append({"cell": cells[t], "item_step": item_steps[t]})
            history = writer.history
            columns = {name: history[name][-length:] for name in history}
            writer.create_item(table, 1.0 + i, columns)
            writer.flush()


def specs(tf, length, *, shape=(2,)):
    """Dtypes and shapes of items of `length` steps, None for any number, or of single steps if `length` is ()."""
    leading_axes = () if length == () else (length,)
    return (
        {"cell": tf.uint8, "item_step": tf.float32},
        {"cell": tf.TensorShape([*leading_axes, *shape]), "item_step": tf.TensorShape(leading_axes)},
    )
