"""Imports Ray, and checks its version: every module of this package gets `ray` here."""

from engram._extras import importing_extra

__all__ = ["ray"]

_OLDEST = (2, 40)
"""As in pyproject.toml."""

with importing_extra("ray", "engram.distributed"):
    import ray

_version = tuple(int(part) for part in ray.__version__.split(".")[:2])
if _version < _OLDEST:
    raise ImportError(
        f"engram.distributed needs Ray {_OLDEST[0]}.{_OLDEST[1]} or newer; found {ray.__version__}; install it with "
        "`pip install --upgrade 'engram-replay[ray]'`",
        name="ray",
    )
