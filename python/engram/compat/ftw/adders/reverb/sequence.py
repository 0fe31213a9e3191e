"""An adder of sequences, which may overlap."""

from collections.abc import Mapping

from engram import _checks, adders
from engram.adders.item_writers import Priority
from engram.compat.ftw.adders.reverb._options import ClientLike, engine_arguments

__all__ = ["SequenceAdder"]


class SequenceAdder(adders.SequenceAdder):
    """`engram.adders.SequenceAdder` with FTW's arguments."""

    def __init__(  # noqa: PLR0917, FTW's signature
        self,
        client: ClientLike,
        sequence_length: int,
        period: int,
        delta_encoded: bool = False,  # noqa: FBT001, FBT002, FTW's signature
        chunk_length: int | None = None,
        priority_fns: Mapping[str, Priority | None] | None = None,
        pad_end_of_episode: bool = True,  # noqa: FBT001, FBT002, FTW's signature
        *,
        timeout: float | None = None,
    ) -> None:
        """Opens an adder.

        The other arguments and errors are those of `engram.adders.SequenceAdder`.

        Args:
            client: An address, a client of `engram.compat.reverb`, an `engram.Client` or an `engram.Store`.
            delta_encoded: Whether integers are stored as differences from step to step.
            chunk_length: See `engram.WriterOptions`.
            pad_end_of_episode: Whether rows of zeros complete the last item of an episode. If False, it is dropped.
            timeout: Seconds that `add` and `reset` wait for tables. Default: None, wait forever.

        Raises:
            TypeError: `client` has the wrong type.
        """
        _checks.boolean("`pad_end_of_episode`", pad_end_of_episode)
        given = {name: value for name, value in locals().items() if name != "pad_end_of_episode"}
        behavior = adders.EndBehavior.ZERO_PAD if pad_end_of_episode else adders.EndBehavior.DROP
        super().__init__(**engine_arguments(given), end_of_episode_behavior=behavior)
        self._items.allow_number_lists()
