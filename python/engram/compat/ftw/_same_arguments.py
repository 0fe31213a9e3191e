"""Functions and constructors that take, or pass on, the long list of arguments of another one."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

__all__ = ["arguments_of", "same_arguments"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def same_arguments(other: _Function, **defaults: Any) -> Callable[[Callable[..., Any]], _Function]:  # noqa: ANN401, values
    """Gives a function of keywords the signature of another one, with some other defaults.

    A function without a docstring gets that of the other one, too.
    """
    signature = inspect.signature(other)
    parameters = [each.replace(default=defaults.get(each.name, each.default)) for each in signature.parameters.values()]
    signature = signature.replace(parameters=parameters)

    def decorate(own: Callable[..., Any]) -> _Function:
        def function(*args: Any, **keywords: Any) -> Any:  # noqa: ANN401, what the two functions take and return
            bound = signature.bind(*args, **keywords)
            bound.apply_defaults()
            return own(**bound.arguments)

        function.__signature__ = signature  # type: ignore[attr-defined]  # read by `inspect`
        function.__doc__ = own.__doc__ or other.__doc__
        function.__module__, function.__name__, function.__qualname__ = own.__module__, own.__name__, own.__qualname__
        return function  # type: ignore[return-value]  # the same arguments

    return decorate


def arguments_of(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the given values that a function takes, by name."""
    return {name: given[name] for name in inspect.signature(function).parameters if name in given}
