"""Modules of a package, and names of these modules, that are imported when a program first uses them."""

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["lazy_modules", "lazy_names"]


def lazy_modules(package: str, names: Collection[str]) -> Callable[[str], ModuleType]:
    """Returns the `__getattr__` of a package (PEP 562), which imports the modules `names` of the package."""
    return lazy_names(package, dict.fromkeys(names, ()))[0]


def lazy_names(
    package: str, names: Mapping[str, Collection[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` and the `__dir__` of a package (PEP 562), which import what a program uses.

    `names` has the names of each module, by its path below the package. The first parts of these paths are modules or
    packages, and attributes of the package, too.
    """
    modules = {name: f"{package}.{module}" for module in names for name in names[module]}
    children = {module.partition(".")[0] for module in names}

    def getattr_of_package(name: str) -> Any:  # noqa: ANN401, a class, a function or a module
        if name in modules:
            return getattr(import_module(modules[name]), name)
        if name in children:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def dir_of_package() -> list[str]:
        own = vars(sys.modules[package])
        return sorted({*own, *own.get("__all__", ()), *modules, *children})

    return getattr_of_package, dir_of_package
