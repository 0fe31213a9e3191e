"""ALF's module `alf.experience_replayers`."""

from engram._extras import importing_extra

with importing_extra("torch", "engram.compat.alf"):
    import torch  # noqa: F401, here, so that a missing PyTorch is reported before the modules below import it

from engram.compat.alf.experience_replayers import replay_buffer, segment_tree

__all__ = ["replay_buffer", "segment_tree"]
