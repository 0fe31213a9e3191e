"""Transitions, sequences and episodes from vector environments, correct in every autoreset mode.

See docs/gymnasium.md. Gymnasium itself is not imported.
"""

from engram.gymnasium.buffer_writer import BufferWriter
from engram.gymnasium.items import Episodes, Sequences, Transitions
from engram.gymnasium.vector_writer import VectorWriter

__all__ = ["BufferWriter", "Episodes", "Sequences", "Transitions", "VectorWriter"]
