"""Actors in a thread of their own, while the learner learns."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from engram._extras import importing_extra
from engram.agents.ftw.replay import QUEUE
from engram.agents.ftw.training import Run, Update
from engram.nests import Nest

with importing_extra("agents", "engram.agents"):
    import jax


class ActorThread:
    """Acts in a thread while the caller learns; a context manager around its use.

    The policy lag is bounded: actors wait while the queue has the items of `max_lag` learner steps. They act with the
    newest parameters, of which each learner step publishes a copy.
    """

    def __init__(self, run: Run, max_frames: int, max_lag: int) -> None:
        """Prepares to act until there are `max_frames` frames; entering the context starts the thread."""
        self._run, self._max_frames = run, max_frames
        self._max_items = max_lag * run.replay.config.batch_size
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._act, name="actors", daemon=True)
        self._params = self._copied_params()
        self._returns: list[float] = []
        self._pauses = self._stops = self._acts = False
        self._error: BaseException | None = None

    def updates(self) -> Iterator[Update]:
        """Learns until the actors are done and no batch is left; yields after each learner step.

        Raises:
            Exception: The actors' thread failed.
        """
        run = self._run
        while self._wait_for_batch():
            metrics = run.learner.learn(run.replay)
            params = self._copied_params()
            with self._changed:
                self._params = params
                self._changed.notify_all()
            yield Update(self._take_returns(), [metrics])
        yield Update(self._take_returns(), [])

    @contextmanager
    def paused(self) -> Iterator[list[float]]:
        """Lets no environment step within the block; yields the returns of the episodes since the last update.

        Raises:
            Exception: The actors' thread failed, perhaps in the middle of a step.
        """
        try:
            with self._changed:
                self._pauses = True
                self._changed.wait_for(lambda: not self._acts)
            self._raise_error()
            yield self._take_returns()
        finally:
            with self._changed:
                self._pauses = False
                self._changed.notify_all()

    def stop(self) -> list[float]:
        """Ends the thread; returns the returns of the episodes since the last update.

        Raises:
            Exception: The actors' thread failed, perhaps in the middle of a step.
        """
        self._join()
        self._raise_error()
        return self._take_returns()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._join()
        if kind is None:
            self._raise_error()

    def _join(self) -> None:
        with self._changed:
            self._stops = True
            self._changed.notify_all()
        self._thread.join()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _take_returns(self) -> list[float]:
        with self._changed:
            returns, self._returns = self._returns, []
        return returns

    def _act(self) -> None:
        run = self._run
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(self._may_go_on)
                    if self._is_done:
                        return
                    params, self._acts = self._params, True
                ended = run.actors.step(params, run.learner.hypers)
                with self._changed:
                    self._acts = False
                    self._returns += [each for _, each in ended]
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001, raised in the caller's thread
            self._error = error
        finally:
            with self._changed:
                self._acts, self._stops = False, True
                self._changed.notify_all()

    @property
    def _is_done(self) -> bool:
        return self._stops or self._run.actors.frames >= self._max_frames

    def _may_go_on(self) -> bool:
        has_room = self._run.replay.store.info()[QUEUE].size < self._max_items
        return self._is_done or (has_room and not self._pauses)

    def _wait_for_batch(self) -> bool:
        """Waits for a batch; returns whether there is one. Without one, the actors are done."""
        with self._changed:
            self._changed.wait_for(lambda: self._run.replay.can_sample_queue() or (self._is_done and not self._acts))
        self._raise_error()
        return self._run.replay.can_sample_queue()

    def _copied_params(self) -> Nest:
        # A learner step reuses the memory of its own.
        return jax.tree.map(lambda x: x.copy(), self._run.learner.params)
