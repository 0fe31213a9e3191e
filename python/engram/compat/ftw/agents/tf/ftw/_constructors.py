"""Arguments of the constructors of the published agents."""

from engram import _checks
from engram.errors import InvalidArgumentError

__all__ = ["one_spelling"]


def one_spelling(*, use_pixel_cotrol: bool, use_pixel_control: bool | None) -> bool:
    """Returns the value of an argument with two spellings. The first one is True by default, the second one None."""
    _checks.boolean("`use_pixel_cotrol`", use_pixel_cotrol)
    if use_pixel_control is None:
        return use_pixel_cotrol
    _checks.boolean("`use_pixel_control`", use_pixel_control)
    if use_pixel_control and not use_pixel_cotrol:
        raise InvalidArgumentError("`use_pixel_cotrol` and `use_pixel_control` are one argument; got False and True")
    return use_pixel_control
