"""Evaluation: episodes that training has not seen, with the sampled policy."""

from collections.abc import Callable

import numpy as np

from engram._extras import importing_extra
from engram.agents.ftw.actor import Actors
from engram.agents.ftw.agent_networks import AgentNetworks
from engram.agents.ftw.environment import make_environment
from engram.agents.ftw.hypers import Hypers
from engram.nests import Nest

with importing_extra("agents", "engram.agents"):
    import jax
    from jax import Array


def evaluate(
    static: AgentNetworks,
    params: Nest,
    hypers: Hypers,
    environment: str,
    *,
    num_episodes: int,
    num_envs: int,
    rng: np.random.Generator,
    key: Array,
    check: Callable[[], None] = lambda: None,
) -> list[float]:
    """Returns the undiscounted returns of the first episodes of `num_episodes` new environments.

    One episode per environment: among the first that end, short episodes would be more frequent.

    Args:
        static: What of the networks is no parameter; see `split_networks`.
        params: The parameters.
        hypers: Hyperparameters.
        environment: Name of the environment.
        num_episodes: Number of episodes.
        num_envs: Number of environments that step together.
        rng: Draws the seeds of the environments.
        key: Random key of actions and latent variables.
        check: Called before each round of `num_envs` episodes; what it raises ends the evaluation. Default: nothing.
    """
    returns: list[float] = []
    for round_key in jax.random.split(key, -(-num_episodes // num_envs)):
        check()
        seeds = rng.integers(2**63, size=num_envs).tolist()
        actors = Actors(make_environment(environment, seeds)[0], static, None, round_key)
        first: dict[int, float] = {}
        while len(first) < num_envs:
            first = dict(actors.step(params, hypers)) | first
        returns += [first[index] for index in range(num_envs)]
    return returns[:num_episodes]
