"""What all adders have in common: the order of calls in an episode."""

import abc
from types import TracebackType
from typing import Any, Protocol, Self

from engram.adders.step import Step, final
from engram.errors import InvalidArgumentError

__all__ = ["Adder", "TimeStep"]


class TimeStep(Protocol):
    """What adders read of a `dm_env.TimeStep`; anything alike will do."""

    @property
    def reward(self) -> Any:  # noqa: ANN401, a nest
        """Since the time step before."""

    @property
    def discount(self) -> Any:  # noqa: ANN401, a nest
        """Of what comes after."""

    @property
    def observation(self) -> Any:  # noqa: ANN401, a nest
        """What there is to see."""

    def first(self) -> bool:
        """It begins an episode."""

    def last(self) -> bool:
        """It ends one."""


class _Writer(Protocol):
    """What becomes of the rows."""

    def end_episode(self, timeout: float | None) -> None: ...
    def flush(self, timeout: float | None) -> None: ...
    def close(self) -> None: ...


class Adder(abc.ABC):
    """Takes an episode's time steps one by one. Belongs to one thread.

    adder.add_first(timestep)
    while not timestep.last():
        action = agent(timestep)
        timestep = environment.step(action)
        adder.add(action, timestep)
    """

    def __init__(self, writer: _Writer, timeout: float | None) -> None:
        self._written = writer
        self._timeout = timeout
        self._in_episode = False
        self._observation: Any = None
        self._is_start = False

    def add_first(self, timestep: TimeStep) -> None:
        """Begins an episode.

        Args:
            timestep: Its first time step.

        Raises:
            InvalidArgumentError: The time step is not a first one, or an episode is under way.
        """
        if not timestep.first():
            raise InvalidArgumentError("`add_first` takes an episode's first time step; got one that is not first")
        if self._in_episode:
            raise InvalidArgumentError(
                "`add_first` begins an episode, and one is under way; `add` its last time step first, or `reset`"
            )
        self._in_episode = True
        self._observation = timestep.observation
        self._is_start = True

    def add(self, action: Any, next_timestep: TimeStep, extras: Any = ()) -> None:  # noqa: ANN401, nests
        """Adds a transition; the last of an episode ends it, and waits until the tables have its items.

        Args:
            action: What was done, a nest.
            next_timestep: What came of it.
            extras: What else belongs to the observation before it, a nest of the same structure throughout.

        Raises:
            InvalidArgumentError: No episode is under way, or `next_timestep` begins another one.
            SignatureError: The data looks unlike that before, or its items would not fit their table.
            DeadlineExceededError: The tables did not take the items in time; they stay queued. An episode that was to
                end has ended.
        """
        if not self._in_episode:
            raise InvalidArgumentError("`add` goes on with an episode, and none is under way; call `add_first` first")
        if next_timestep.first():
            raise InvalidArgumentError(
                "`add` takes what an action led to; got a first time step: `add_first` begins the next episode"
            )
        row = Step(self._observation, action, next_timestep.reward, next_timestep.discount, self._is_start, extras)
        self._add(row)
        self._observation = next_timestep.observation
        self._is_start = False
        if next_timestep.last():
            self._in_episode = False
            self._end(final(self._observation, row))

    def reset(self) -> None:
        """Gives up the episode under way; items that it has made stay."""
        self._in_episode = False
        self._give_up()

    def flush(self, timeout: float | None = None) -> None:
        """Makes all items visible, and waits until their tables have them.

        Args:
            timeout: Seconds to wait for the tables' rate limiters; None: for ever.

        Raises:
            DeadlineExceededError: Some were not taken in time; they stay queued.
        """
        self._written.flush(timeout)

    def close(self) -> None:
        """Flushes, and takes no more. May be called again."""
        self._written.close()

    @abc.abstractmethod
    def _add(self, row: Step) -> None:
        """Another row of the episode."""

    @abc.abstractmethod
    def _end(self, row: Step) -> None:
        """The row after the last; whatever happens, the episode has ended then."""

    def _give_up(self) -> None:
        """The episode ends without another row."""
        self._written.end_episode(self._timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
