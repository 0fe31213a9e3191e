"""An actor in a process of its own, with NumPy and Engram but without JAX."""

import itertools

import numpy as np

import engram
from engram.agents.dqn.actor import Actor, epsilon_at
from engram.agents.dqn.config import DQNConfig
from engram.agents.dqn.environment import Environment
from engram.agents.dqn.network import Layer, Params
from engram.agents.dqn.tables import EPISODES, WEIGHTS
from engram.errors import UnavailableError


def play(address: str, config: DQNConfig, index: int) -> None:
    """Acts with the newest network until the learner kills the process; the main function of an actor.

    Writes steps and the returns of finished episodes to the server. All actors follow one exploration schedule, as if
    their steps alternated; their seeds differ.

    Args:
        address: The server's address.
        config: The agent's configuration.
        index: The actor's number, from 0.

    Raises:
        ClosedError: The server's tables were closed.
        SystemExit: The server cannot be reached.
    """
    env_seed, seed = np.random.SeedSequence(config.seed, spawn_key=(index,)).generate_state(2).tolist()
    num_actors = config.processes - 1
    try:
        with (
            engram.Client(address) as client,
            Environment(config.env_id) as env,
            Actor(env, client, config, env_seed=env_seed, seed=seed) as actor,
        ):
            for step in itertools.count():
                if step % config.refresh_period == 0:
                    params = newest_params(client)
                episode_return = actor.step(params, epsilon_at(config, step * num_actors))
                if episode_return is not None:
                    client.insert({"return": episode_return}, {EPISODES: 1.0})
    except UnavailableError as error:
        raise SystemExit(f"actor {index}: {error}") from None


def newest_params(client: engram.Client) -> Params:
    """Returns the network that the learner published last; waits until there is one."""
    layers = client.sample(WEIGHTS, 1).data
    return tuple(Layer(layer.weight[0], layer.bias[0]) for layer in layers)
