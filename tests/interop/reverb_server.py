"""Runs a dm-reverb server: prints its port, and stops when standard input is closed."""

import base64
import sys
from collections import namedtuple

import numpy as np
import portpicker
import reverb
import tensorflow as tf
from helpers.reverb_tables import TABLES, create_table


def signature_of(nest):
    """Returns the nest of specs for a signature as in the table descriptions of `reverb_tables.TABLES`."""
    ((kind, content),) = nest.items()
    if kind == "list":
        return [signature_of(item) for item in content]
    if kind == "tuple":
        return tuple(signature_of(item) for item in content)
    if kind == "dict":
        return {key: signature_of(item) for key, item in content.items()}
    if kind == "namedtuple":
        cls = namedtuple(content["name"], [key for key, _ in content["fields"]])  # noqa: PYI024, the fields are dynamic
        return cls(*(signature_of(item) for _, item in content["fields"]))
    dtype = tf.dtypes.as_dtype(content["dtype"])
    if "minimum" not in content:
        return tf.TensorSpec(content["shape"], dtype, content["name"])
    low, high = (
        np.frombuffer(base64.b64decode(content[key]["data"]), dtype.as_numpy_dtype).reshape(content[key]["shape"])
        for key in ("minimum", "maximum")
    )
    from tensorflow.python.framework.tensor_spec import BoundedTensorSpec  # noqa: PLC0415, private to TensorFlow

    return BoundedTensorSpec(content["shape"], dtype, low, high, content["name"])


def table(description):
    """Returns the table for a table description as in `reverb_tables.TABLES`."""
    signature = description["signature"]
    return create_table(reverb, description, None if signature is None else signature_of(signature))


def main():
    """Serves until standard input is closed."""
    server = reverb.Server([table(description) for description in TABLES], port=portpicker.pick_unused_port())
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
