"""Constructors with the long list of arguments of the published agents."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from engram import _checks
from engram.errors import InvalidArgumentError

__all__ = ["constructor_like", "one_spelling"]

Constructor = TypeVar("Constructor", bound=Callable[..., None])


def constructor_like(init: Callable[..., None], **defaults: Any) -> Callable[[Constructor], Constructor]:  # noqa: ANN401, values
    """Gives a constructor that takes keywords the signature and docstring of another one, with some other defaults."""
    signature = inspect.signature(init)
    parameters = [each.replace(default=defaults.get(each.name, each.default)) for each in signature.parameters.values()]
    signature = signature.replace(parameters=parameters)

    def decorate(own: Constructor) -> Constructor:
        def __init__(*args: Any, **keywords: Any) -> None:  # noqa: ANN401, N807, arguments of a constructor
            bound = signature.bind(*args, **keywords)
            bound.apply_defaults()
            own(**bound.arguments)

        __init__.__signature__ = signature  # type: ignore[attr-defined]  # read by `inspect`
        __init__.__doc__ = init.__doc__
        return __init__  # type: ignore[return-value]  # the same arguments

    return decorate


def one_spelling(*, use_pixel_cotrol: bool, use_pixel_control: bool | None) -> bool:
    """Returns the value of an argument with two spellings. The first one is True by default, the second one None."""
    _checks.boolean("`use_pixel_cotrol`", use_pixel_cotrol)
    if use_pixel_control is None:
        return use_pixel_cotrol
    _checks.boolean("`use_pixel_control`", use_pixel_control)
    if use_pixel_control and not use_pixel_cotrol:
        raise InvalidArgumentError("`use_pixel_cotrol` and `use_pixel_control` are one argument; got False and True")
    return use_pixel_control
