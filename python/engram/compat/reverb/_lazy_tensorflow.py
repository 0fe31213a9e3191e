"""Imports TensorFlow on first use; makes dataset classes derive from TensorFlow's when they are first instantiated."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from engram._extras import importing_extra
from engram.data._tf_types import Tensor, TfDataset
from engram.nests import Nest

__all__ = ["DatasetMixin", "LazyDataset", "Tensor", "TfDataset", "import_tensorflow", "without_autograph"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def without_autograph(function: _Function) -> _Function:
    """Decorator: a `tf.function`, for example one traced by `interleave`, calls the function without AutoGraph."""
    function.autograph_info__ = None  # type: ignore[attr-defined]  # the attribute that AutoGraph checks
    return function


def import_tensorflow(feature: str) -> Any:  # noqa: ANN401, a module
    """Returns the module `tensorflow`, which `feature` needs."""
    with importing_extra("tensorflow", feature):
        import tensorflow as tf  # noqa: PLC0415, optional
    return tf


class DatasetMixin:
    """Methods that `tf.compat.v1.data.Dataset` requires of a dataset that wraps a variant tensor and has no inputs."""

    _element_spec: Any

    def _initialize(self, flat: TfDataset, element_spec: Nest) -> None:
        """Initializes the dataset, given a dataset of the leaves of its elements."""
        tf = import_tensorflow("a dataset")
        self._flat = flat  # must live as long as the dataset
        self._variant = tf.data.experimental.to_variant(flat)
        self._element_spec = element_spec
        tf.compat.v1.data.Dataset.__init__(self)

    def _as_variant_tensor(self) -> Tensor:
        return self._variant

    @property
    def element_spec(self) -> Nest:
        """A nest of `tf.TensorSpec` with the structure of an element, with tuples in place of lists.

        For a dataset of a table, it is a `ReplaySample`: info fields are `[]`, or `[T]` for sequences.
        """
        return self._element_spec

    def _inputs(self) -> list[Any]:
        """The input datasets, for TensorFlow's dataset graph: none."""
        return []


class LazyDataset(type):
    """Metaclass of dataset classes that can be imported without TensorFlow.

    The first instantiation of such a class creates the real class, which derives from the bases of the declared class
    and, as in Reverb, from `tf.compat.v1.data.Dataset`: a `tf.data.Dataset` that has TensorFlow 1's iterators, too.
    Subclasses derive from the real class.
    """

    _real: Any = None

    autograph_info__ = None
    """Like `without_autograph`, for calls of the class: AutoGraph does not convert the code that creates instances."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **options: Any) -> Any:  # noqa: ANN401, a class
        if any(isinstance(base, LazyDataset) for base in bases):
            real = tuple(base.real() if isinstance(base, LazyDataset) else base for base in bases)
            return type(real[0])(name, real, body, **options)
        return super().__new__(cls, name, bases, body, **options)

    def real(cls) -> Any:  # noqa: ANN401, a class
        """The class of the instances, which derives from TensorFlow's dataset."""
        if cls._real is None:
            tf = import_tensorflow(f"reverb.{cls.__name__}")
            body = {name: value for name, value in cls.__dict__.items() if name not in ("__dict__", "__weakref__")}
            own = [base for base in cls.__bases__ if base is not object]
            base = tf.compat.v1.data.Dataset
            cls._real = type(base)(cls.__name__, (*own, base), body)
        return cls._real

    @property
    def __signature__(cls) -> inspect.Signature:
        """The signature of `__init__`, for `help` and `inspect`."""
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]  # mypy objects to access on an instance
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def __call__(cls, *args: Any, **options: Any) -> Any:  # noqa: ANN401, an instance
        return cls.real()(*args, **options)

    def __instancecheck__(cls, instance: object) -> bool:
        return cls._real is not None and isinstance(instance, cls._real)

    def __subclasscheck__(cls, other: type) -> bool:
        return other is cls or (cls._real is not None and issubclass(other, cls._real))
