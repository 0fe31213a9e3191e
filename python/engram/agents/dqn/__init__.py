"""Double DQN with prioritized replay and n-step returns: `train(DQNConfig())` plays, learns and returns a `Result`."""

from engram.agents.dqn.config import DQNConfig
from engram.agents.dqn.environment import Environment
from engram.agents.dqn.result import Progress, Result
from engram.agents.dqn.returns import n_step_return
from engram.agents.dqn.train import LearnerState, Metrics, Params, Step, learner_step, loss, q_values, train

__all__ = [
    "DQNConfig",
    "Environment",
    "LearnerState",
    "Metrics",
    "Params",
    "Progress",
    "Result",
    "Step",
    "learner_step",
    "loss",
    "n_step_return",
    "q_values",
    "train",
]
