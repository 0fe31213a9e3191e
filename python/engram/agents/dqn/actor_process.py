"""An actor in a process of its own: NumPy and Engram, no JAX."""

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
    """Play into the server at `address` for ever: the body of actor `index`, which the learner ends.

    Raises:
        ClosedError: The server's tables were closed.
        SystemExit: The server is gone.
    """
    try:
        with engram.Client(address) as client, Environment(config.env_id) as env:
            play_into(client, env, config, index)
    except UnavailableError as error:
        raise SystemExit(f"actor {index}: {error}") from None


def play_into(client: engram.Client, env: Environment, config: DQNConfig, index: int) -> None:
    """Act by the newest network, write the steps, tell of finished episodes.

    All actors follow one exploration schedule, as if they had done all steps by turns; they differ in their seeds.
    """
    env_seed, seed = np.random.SeedSequence(config.seed, spawn_key=(index,)).generate_state(2).tolist()
    num_actors = config.processes - 1
    with Actor(env, client, config, env_seed=env_seed, seed=seed) as actor:
        for step in itertools.count():
            if step % config.refresh_period == 0:
                params = newest_params(client)
            finished = actor.step(params, epsilon_at(config, step * num_actors))
            if finished is not None:
                client.insert({"return": finished}, {EPISODES: 1.0})


def newest_params(client: engram.Client) -> Params:
    """The network that the learner published last; waits only for its first."""
    layers = client.sample(WEIGHTS, 1).data
    return tuple(Layer(layer.weight[0], layer.bias[0]) for layer in layers)
