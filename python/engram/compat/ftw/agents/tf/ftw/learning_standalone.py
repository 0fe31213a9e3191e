"""A learner whose actors are in other threads or processes."""

from collections.abc import Sequence
from typing import Any

import engram
from engram.compat.ftw.agents.tf.ftw.acting import FtwActor
from engram.compat.ftw.agents.tf.ftw.agent import FTWWithoutActor

__all__ = ["FTWLearnerStandalone"]


class FTWLearnerStandalone(FTWWithoutActor):
    """Replay and learner of an agent, for actors in other threads (`make_actor`) or processes."""

    _server: engram.Server | None = None

    @property
    def replay_server_address(self) -> str:
        """Address of a server of the replay's tables, on this machine only; the first access starts it."""
        if self._server is None:
            self._server = engram.Server(self._store, host="localhost", port=0)
        return self._server.address

    def make_actor(self) -> FtwActor:
        """Returns an actor with the learner's current parameters, and adders that wait while the queue is full."""
        return self._make_actor(self._actor_seed.spawn(1)[0], timeout=None)

    def step(self) -> bool:
        """Does one update, if the queue has a batch.

        Returns:
            Whether it had one.
        """
        return self._learner.step()

    def run(self) -> None:
        """Does updates forever."""
        self._learner.run()

    def get_variables(self, names: Sequence[str]) -> list[list[Any]]:
        """Returns the parameters of the policy network, once for each of `names`, whatever these are."""
        return self._learner.get_variables(names)

    def close(self) -> None:
        """Closes the server and the replay."""
        if self._server is not None:
            self._server.close()
        super().close()
