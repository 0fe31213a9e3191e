"""ALF's module `alf.utils`, as far as it has buffers."""

from engram._extras import importing_extra

with importing_extra("torch", "engram.compat.alf"):
    import torch  # noqa: F401, here, so that a missing PyTorch is reported before the modules below import it

from engram.compat.alf.utils import data_buffer

__all__ = ["data_buffer"]
