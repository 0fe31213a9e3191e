"""Modules of a package that are imported when a program first uses them."""

from collections.abc import Callable, Collection
from importlib import import_module
from types import ModuleType

__all__ = ["lazy_modules"]


def lazy_modules(package: str, names: Collection[str]) -> Callable[[str], ModuleType]:
    """Returns the `__getattr__` of a package (PEP 562), which imports the modules `names` of the package."""

    def getattr_of_package(name: str) -> ModuleType:
        if name in names:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    return getattr_of_package
