"""A table of nested tensors."""

from engram._extras import importing_extra
from engram.data._tf_types import Tensor
from engram.nests import Nest

with importing_extra("tensorflow", "engram.compat.tf_agents"):
    import tensorflow as tf

    from engram.compat.tf_agents.replay_buffers._tracked import TrackedTable, Untracked

__all__ = ["Table"]


class Table(TrackedTable):
    """Rows of nested tensors in variables.

    A `TFUniformReplayBuffer` has a table only if its data does not fit Engram's rings: if a column has text or another
    dtype that they do not store. With a `table_fn` other than `Table`, it has the tables of that function. Otherwise,
    its data is in Engram's memory.
    """

    def __init__(self, tensor_spec: Nest, capacity: int, scope: str = "Table") -> None:
        """Creates a table of zeros.

        Args:
            tensor_spec: Nest of `tf.TensorSpec` that describes one row. The names of the specs name the slots; names
                that repeat get a number. The slot of a spec without a name is `slot`.
            capacity: Number of rows.
            scope: Prefix of the names of the variables.
        """
        super().__init__(tensor_spec, scope)
        self._scope = scope
        variables: dict[str, Tensor] = {}
        with self.name_scope:
            for name, spec in zip(tf.nest.flatten(self.slots), tf.nest.flatten(tensor_spec), strict=True):
                shape = [int(capacity), *spec.shape]
                initial = tf.zeros(shape, spec.dtype)
                variables[name] = tf.Variable(initial, trainable=False, name=name, shape=shape, dtype=spec.dtype)
        self._variables = Untracked(variables)
        self._track(self.variables())

    def variables(self) -> list[Tensor]:
        """The variables of all slots `[capacity, ...]`, in the order of the slots."""
        return [self._variables.value[slot] for slot in tf.nest.flatten(self.slots)]

    def read(self, rows: Tensor, slots: Nest | None = None) -> Nest:
        """Returns rows.

        Args:
            rows: int64 tensor of any shape: the numbers of the rows, from 0.
            slots: Nest of names of slots. Default: all of them.

        Returns:
            A nest with the structure of `slots`, of tensors `[*rows.shape, ...]`.

        Raises:
            ValueError: A slot is unknown.
            tf.errors.InvalidArgumentError: A row is out of range.
        """
        with tf.name_scope(self._scope):
            rows = tf.convert_to_tensor(rows, tf.int64)
            return tf.nest.map_structure(lambda slot: tf.gather(self._variable(slot), rows), self._or_all(slots))

    def write(self, rows: Tensor, values: Nest, slots: Nest | None = None) -> Tensor | None:
        """Replaces rows.

        Args:
            rows: int64 tensor of any shape: the numbers of the rows, from 0. If a row repeats, it gets
                one of its values, not always the last one.
            values: Nest with the structure of `slots`, of tensors `[*rows.shape, ...]`; a value without the axes of
                `rows` is written to each of them.
            slots: Nest of names of slots. Default: all of them.

        Returns:
            None if called eagerly, otherwise the operation.

        Raises:
            ValueError: A slot is unknown, or the structures or dtypes differ.
            tf.errors.InvalidArgumentError: A row is out of range, or a shape differs.
        """
        slots = self._or_all(slots)
        _check_structure(values, slots)
        with tf.name_scope(self._scope):
            rows = tf.convert_to_tensor(rows, tf.int64)
            written = [
                self._write(self._variable(slot), rows, value)
                for slot, value in zip(tf.nest.flatten(slots), tf.nest.flatten(values), strict=True)
            ]
        return None if tf.executing_eagerly() else tf.group(*written)

    @staticmethod
    def _write(variable: Tensor, rows: Tensor, value: Tensor) -> Tensor:
        value = tf.convert_to_tensor(value, variable.dtype)
        if value.shape.rank == variable.shape.rank - 1 and rows.shape.rank != 0:
            value = tf.broadcast_to(value, tf.concat([tf.shape(rows), variable.shape[1:]], 0))
        return variable.scatter_update(tf.IndexedSlices(value, rows))

    def _or_all(self, slots: Nest) -> Nest:
        return self.slots if slots is None else slots

    def _variable(self, slot: str) -> Tensor:
        if slot not in self._variables.value:
            known = ", ".join(self._variables.value)
            raise ValueError(f"slots: unknown slot {slot!r}; the table has {known}")
        return self._variables.value[slot]


def _check_structure(values: Nest, slots: Nest) -> None:
    try:
        tf.nest.assert_same_structure(values, slots)
    except TypeError as error:  # containers of different types
        raise ValueError(str(error)) from error
