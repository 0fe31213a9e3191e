"""Stacks of frames that a replay buffer stores once."""

from dataclasses import dataclass

from engram import Nest, _checks, _engram
from engram._text import columns_text
from engram.buffers._steps import check_same_spec
from engram.buffers.items import CompiledItems, Items
from engram.errors import SignatureError

__all__ = ["FrameStack"]

_MAX_FRAMES = 1_000
"""Maximum of `frames`: the time that sampling takes grows with it."""


@dataclass(frozen=True, slots=True)
class FrameStack:
    """Stacks the newest frames up to each step, although the buffer stores each frame only once.

    Add single frames, such as screens `[H, W]`. Then a sampled `obs` is `[B, frames, H, W]`, or in sequences `[B, T,
    frames, H, W]`: the frames of the step and of those before it in its episode, oldest first. At the beginning of an
    episode, its first frame is repeated, as `gymnasium.wrappers.FrameStackObservation(padding_type="reset")` does.

    If steps also have `next_obs`, it is stacked too: the last frame is that of `next_obs`, after the newest frames up
    to the same step, with n-step transitions the last of the `k` steps.

    Steps must have the entries `terminated` and `truncated`, also with `Steps()`. A step cannot be sampled if one of
    the frames of its stack has been overwritten.

    Attributes:
        column: Entry of a step, such as `"obs"`, or one within it, such as `"obs/screen"`. If it is a nest, all its
            columns are stacked.
        frames: Number of frames of a stack, from 2 to 1,000.

    Raises:
        InvalidArgumentError: An attribute is invalid.
    """

    column: str
    frames: int

    def __post_init__(self) -> None:
        _checks.text("FrameStack: `column`", self.column)
        frames = _checks.integer("FrameStack: `frames`", self.frames, low=2, high=_MAX_FRAMES)
        object.__setattr__(self, "frames", frames)

    @property
    def _lookback(self) -> int:
        """Number of steps before an item that must be stored."""
        return self.frames - 1

    def _check_items(self, items: Items) -> None:
        """Accepts all items."""

    def _apply(self, items: CompiledItems, signature: Nest) -> CompiledItems:
        """Returns items whose columns are stacked."""
        specs, names, _ = _engram.flatten(signature)
        stacked = [name for name in names if name == self.column or name.startswith(f"{self.column}/")]
        if not stacked:
            raise SignatureError(f"FrameStack: steps have no column `{self.column}`; got {columns_text(names)}")
        earlier: dict[int, int] = {}  # by the column that ends a stack
        for name in stacked:
            column = names.index(name)
            earlier[column] = column
            if f"next_{name}" in names:
                following = names.index(f"next_{name}")
                check_same_spec("FrameStack", names, specs, column, following)
                earlier[following] = column
        outputs = [
            output._replace(frames=self.frames, earlier=earlier[output.column])
            if output.source in {"first", "last", "all"} and output.column in earlier
            else output
            for output in items.columns
        ]
        return items._replace(columns=outputs)
