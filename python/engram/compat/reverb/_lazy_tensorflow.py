"""TensorFlow, imported where it is needed; and classes that become its datasets when one is first made."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["DatasetMixin", "LazyDataset", "import_tensorflow", "without_autograph"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def without_autograph(function: _Function) -> _Function:
    """Has a `tf.function`, such as `interleave` makes of what makes datasets, call a function without rewriting it."""
    function.autograph_info__ = None  # type: ignore[attr-defined]  # what AutoGraph looks for
    return function


def import_tensorflow(what: str) -> Any:  # noqa: ANN401, a module
    """The module `tensorflow`.

    Raises:
        ImportError: It is not installed; the text says what needs it.
    """
    try:
        import tensorflow as tf  # noqa: PLC0415, not every user has it
    except ImportError as error:
        raise ImportError(
            f"{what} needs TensorFlow, which is not installed; `engram.data` has datasets for other frameworks"
        ) from error
    return tf


class DatasetMixin:
    """What the bodies of datasets that are made of nothing but a variant have in common."""

    _element_spec: Any

    @property
    def element_spec(self) -> Any:  # noqa: ANN401, a nest
        """What elements look like: a nest of `tf.TensorSpec` like theirs, with tuples for lists.

        Of tables, it is a `ReplaySample`: its info, `[]` for each field, or `[T]` for sequences, and the nest of data.
        """
        return self._element_spec

    def _inputs(self) -> list[Any]:
        """No other dataset, where TensorFlow's graph of datasets is asked for."""
        return []


class LazyDataset(type):
    """Class of a class that can be imported without TensorFlow; its instances are `tf.data.Dataset`s.

    The class of its instances is made of its body and TensorFlow's when the first is asked for; what is derived from it
    is derived from that. Bodies therefore say `tf.data.Dataset.__init__`, not `super()`.
    """

    _real: Any = None

    autograph_info__ = None
    """A `tf.function` makes instances `without_autograph`."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **options: Any) -> Any:  # noqa: ANN401, a class
        if any(isinstance(base, LazyDataset) for base in bases):
            real = tuple(base.real() if isinstance(base, LazyDataset) else base for base in bases)
            return type(real[0])(name, real, body, **options)
        return super().__new__(cls, name, bases, body, **options)

    def real(cls) -> Any:  # noqa: ANN401, a class
        """The class of the instances."""
        if cls._real is None:
            tf = import_tensorflow(f"reverb.{cls.__name__}")
            body = {name: value for name, value in cls.__dict__.items() if name not in ("__dict__", "__weakref__")}
            own = [base for base in cls.__bases__ if base is not object]
            cls._real = type(tf.data.Dataset)(cls.__name__, (*own, tf.data.Dataset), body)
        return cls._real

    @property
    def __signature__(cls) -> inspect.Signature:
        """Of the instances' `__init__`, for `help` and the like."""
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]  # of this very class
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def __call__(cls, *args: Any, **options: Any) -> Any:  # noqa: ANN401, an instance
        return cls.real()(*args, **options)

    def __instancecheck__(cls, instance: object) -> bool:
        return cls._real is not None and isinstance(instance, cls._real)

    def __subclasscheck__(cls, other: type) -> bool:
        return other is cls or (cls._real is not None and issubclass(other, cls._real))
