"""Standing in for Reverb: `import reverb`, wherever it is written, imports what is here."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

__all__ = ["install_as_reverb"]

_HERE = __name__.rpartition(".")[0]
_REVERB = "reverb"


def install_as_reverb() -> None:
    """Has `import reverb` import this package from now on, for code that cannot be changed, such as a library's.

        from engram.compat import reverb
        reverb.install_as_reverb()
        from reverb import rate_limiters  # here, or in a library that is imported after it

    Its modules, such as `reverb.platform.checkpointers_lib`, are the same ones by both names, and are imported when
    they are asked for. It holds for this process: one that is started anew, and not forked, must call it, too. That
    dm-reverb is installed does not matter, unless it was imported. May be called again.

    Raises:
        RuntimeError: Another `reverb` was imported before; it is left alone.
    """
    here = sys.modules[_HERE]
    for name in [_REVERB, *(name for name in list(sys.modules) if name.startswith(f"{_REVERB}."))]:
        found = sys.modules.get(name)
        if found is not None and found is not sys.modules.get(_ours(name)):
            origin = getattr(found, "__file__", None) or "no file"
            raise RuntimeError(
                f"`{name}` was imported before, from {origin}; call `install_as_reverb` before anything imports it"
            )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    sys.modules[_REVERB] = here


def _ours(name: str) -> str:
    """The name here of one of Reverb's modules."""
    return _HERE + name.removeprefix(_REVERB)


class _Finder(MetaPathFinder):
    """Finds Reverb's modules here: the search of the package's own directory would import them once more."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if not fullname.startswith(f"{_REVERB}.") or find_spec(_ours(fullname)) is None:
            return None
        return ModuleSpec(fullname, _Same(_ours(fullname)))


class _Same(Loader):
    """Loads a module that is there by another name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        del spec
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import has put its own there
