"""An adder of sequences with their first recurrent state only."""

from collections.abc import Mapping

from engram import adders
from engram.adders.item_writers import Priority
from engram.compat.ftw.adders.reverb._options import ClientLike, engine_arguments

__all__ = ["NonOverlappingRNNSequenceAdder"]


class NonOverlappingRNNSequenceAdder(adders.NonOverlappingRNNSequenceAdder):
    """`engram.adders.NonOverlappingRNNSequenceAdder` with FTW's arguments."""

    def __init__(  # noqa: PLR0917, FTW's signature
        self,
        client: ClientLike,
        sequence_length: int,
        delta_encoded: bool = False,  # noqa: FBT001, FBT002, FTW's signature
        chunk_length: int | None = None,
        priority_fns: Mapping[str, Priority | None] | None = None,
        pad_end_of_episode: bool = True,  # noqa: FBT001, FBT002, FTW's signature
        *,
        overlap: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Opens an adder.

        The other arguments and errors are those of `engram.adders.NonOverlappingRNNSequenceAdder`.

        Args:
            client: An address, a client of `engram.compat.reverb`, an `engram.Client` or an `engram.Store`.
            delta_encoded: Whether integers are stored as differences from step to step.
            chunk_length: See `engram.WriterOptions`.
            timeout: Seconds that `add` and `reset` wait for tables. Default: None, wait forever.

        Raises:
            TypeError: `client` has the wrong type.
        """
        super().__init__(**engine_arguments(locals()))
        self._items.allow_number_lists()
