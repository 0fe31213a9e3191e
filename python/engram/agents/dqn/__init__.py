"""Double DQN with prioritized replay and n-step returns: `train(DQNConfig())` trains an agent and returns a `Result`.

Names are imported on first use, so that a process that only acts does not import JAX.
"""

from typing import TYPE_CHECKING

from engram._lazy_modules import lazy_names

if TYPE_CHECKING:
    from engram.agents.dqn.actor import Actor
    from engram.agents.dqn.config import DQNConfig
    from engram.agents.dqn.environment import Environment, Spaces
    from engram.agents.dqn.learner import Learner, LearnerState, Metrics, learner_step, loss
    from engram.agents.dqn.network import Layer, Params, q_values
    from engram.agents.dqn.processes import ActorDiedError
    from engram.agents.dqn.result import Progress, Result
    from engram.agents.dqn.returns import n_step_return
    from engram.agents.dqn.tables import Step
    from engram.agents.dqn.training import train

__all__ = [
    "Actor",
    "ActorDiedError",
    "DQNConfig",
    "Environment",
    "Layer",
    "Learner",
    "LearnerState",
    "Metrics",
    "Params",
    "Progress",
    "Result",
    "Spaces",
    "Step",
    "learner_step",
    "loss",
    "n_step_return",
    "q_values",
    "train",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "actor": ("Actor",),
        "config": ("DQNConfig",),
        "environment": ("Environment", "Spaces"),
        "learner": ("Learner", "LearnerState", "Metrics", "learner_step", "loss"),
        "network": ("Layer", "Params", "q_values"),
        "processes": ("ActorDiedError",),
        "result": ("Progress", "Result"),
        "returns": ("n_step_return",),
        "tables": ("Step",),
        "training": ("train",),
    },
)
