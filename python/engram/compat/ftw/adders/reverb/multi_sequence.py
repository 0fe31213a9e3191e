"""An adder of sequences of several lengths for several tables."""

from collections.abc import Callable, Mapping

from engram import adders
from engram.adders import Step
from engram.adders.item_writers import Priority
from engram.compat.ftw.adders.reverb._options import ClientLike, engine_arguments

__all__ = ["MultiSequenceAdder"]


class MultiSequenceAdder(adders.MultiSequenceAdder):
    """`engram.adders.MultiSequenceAdder` with FTW's arguments."""

    def __init__(  # noqa: PLR0917, FTW's signature
        self,
        client: ClientLike,
        sequence_lengths: Mapping[str, int],
        periods: Mapping[str, int],
        delta_encoded: bool = False,  # noqa: FBT001, FBT002, FTW's signature
        chunk_length: int | None = None,
        priority_fns: Mapping[str, Priority | None] | None = None,
        should_insert_fns: Mapping[str, Callable[[list[Step]], bool]] | None = None,
        pad_end_of_episode: bool = True,  # noqa: FBT001, FBT002, FTW's signature
        *,
        final_row: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Opens an adder.

        The other arguments and errors are those of `engram.adders.MultiSequenceAdder`.

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
