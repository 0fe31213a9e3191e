"""`install_as_reverb`: makes `import reverb` import this package."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

__all__ = ["install_as_reverb"]

_THIS_PACKAGE = __name__.rpartition(".")[0]
_REVERB = "reverb"


def install_as_reverb() -> None:
    """Makes `import reverb` import this package, for code that cannot be changed, for example in a library.

        from engram.compat import reverb
        reverb.install_as_reverb()
        from reverb import rate_limiters  # here, or in a library that is imported after it

    Submodules, for example `reverb.platform.checkpointers_lib`, are the same objects under both names and are imported
    on first use. The change applies to this process and its forks; a newly started process must call this, too. An
    installed dm-reverb does not interfere unless it was imported. May be called again.

    Raises:
        RuntimeError: Another `reverb` was imported before. Nothing is changed.
    """
    this_package = sys.modules[_THIS_PACKAGE]
    for name in [_REVERB, *(name for name in list(sys.modules) if name.startswith(f"{_REVERB}."))]:
        module = sys.modules.get(name)
        if module is not None and module is not sys.modules.get(_engram_name(name)):
            origin = getattr(module, "__file__", None) or "no file"
            raise RuntimeError(
                f"`{name}` was imported before, from {origin}; call `install_as_reverb` before anything imports it"
            )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    sys.modules[_REVERB] = this_package


def _engram_name(name: str) -> str:
    """Converts `reverb.x` to the name of the same module in this package."""
    return _THIS_PACKAGE + name.removeprefix(_REVERB)


class _Finder(MetaPathFinder):
    """Finds `reverb.x` in this package. Without it, Python would import a second copy of the module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if not fullname.startswith(f"{_REVERB}.") or find_spec(_engram_name(fullname)) is None:
            return None
        return ModuleSpec(fullname, _AliasLoader(_engram_name(fullname)))


class _AliasLoader(Loader):
    """Loads a module by returning the module of another name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        del spec
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # restored: the import system replaced it
