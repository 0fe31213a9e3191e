"""Double DQN on an Atari game: each screen is stored once, and sampled in stacks of four.

    python examples/atari_dqn.py --game ALE/Breakout-v5 --steps 1000000

Mnih et al. 2015, "Human-level control through deep reinforcement learning"; Machado et al. 2018, "Revisiting the Arcade
Learning Environment", for the preprocessing. The default number of steps takes minutes on a CPU, and the agent only
begins to learn: the purpose of this example is to show how steps are stored and sampled.
"""

import argparse
from collections import deque
from typing import Any, Self

import ale_py
import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

import engram

STACK = 4
"""Screens in the network's input, which show motion."""

WARM_UP = 200  # steps
STEPS_PER_UPDATE = 4
BATCH_SIZE = 32
TARGET_NETWORK_PERIOD = 500  # updates
DISCOUNT = 0.99
OPTIMIZER = optax.adam(1e-4)

gymnasium.register_envs(ale_py)


class ScreenWriter:
    """Writes one-step transitions, whose stacks share their screens.

    An item has `STACK + 1` screens: the first `STACK` are the observation, the last `STACK` the next observation. An
    episode begins with copies of its first screen, as in the stack that the policy sees at that time.
    """

    def __init__(self, store: engram.Store) -> None:
        transition = engram.Pattern(
            "replay",
            lambda step: {
                "screens": step["screen"][-STACK - 1 :],
                "action": step["action"][-2],
                "reward": step["reward"][-2],
                "discount": step["discount"][-2],
            },
        )
        self._writer = store.pattern_writer([transition])

    def begin_episode(self, screen: np.ndarray) -> None:
        """Fills the first stack; call it after `env.reset`. The last step of an unfinished episode becomes no item."""
        self._writer.end_episode()
        for _ in range(STACK - 1):
            self._append(screen, 0, 0.0, 0.0)

    def step(self, screen: np.ndarray, action: int, reward: float, *, terminated: bool) -> None:
        """Writes a screen, the action taken on it, and the result of the action."""
        self._append(screen, action, reward, 0.0 if terminated else DISCOUNT)

    def end_episode(self, screen: np.ndarray) -> None:
        """Writes the last screen, so that the last action has a next observation."""
        self._append(screen, 0, 0.0, 0.0)
        self._writer.end_episode()

    def _append(self, screen: np.ndarray, action: int, reward: float, discount: float) -> None:
        self._writer.append(
            {
                "screen": screen,
                "action": np.int32(action),
                "reward": np.float32(reward),
                "discount": np.float32(discount),
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.__exit__(*error)


class Network(eqx.Module):
    """The network of Mnih et al. 2015, for one stack of screens, u8[S, 84, 84]."""

    layers: eqx.nn.Sequential

    def __init__(self, num_actions: int, key: jax.Array) -> None:
        keys = jax.random.split(key, 5)
        relu = eqx.nn.Lambda(jax.nn.relu)
        self.layers = eqx.nn.Sequential(
            [
                eqx.nn.Conv2d(STACK, 32, 8, 4, key=keys[0]),
                relu,
                eqx.nn.Conv2d(32, 64, 4, 2, key=keys[1]),
                relu,
                eqx.nn.Conv2d(64, 64, 3, 1, key=keys[2]),
                relu,
                eqx.nn.Lambda(jnp.ravel),
                eqx.nn.Linear(64 * 7 * 7, 512, key=keys[3]),
                relu,
                eqx.nn.Linear(512, num_actions, key=keys[4]),
            ]
        )

    def __call__(self, stack: Any) -> jax.Array:
        return self.layers(stack.astype(jnp.float32) / 255)


@eqx.filter_jit
def q_values(network: Network, stacks: Any) -> jax.Array:
    """Returns the values of all actions, f32[B, A]."""
    return jax.vmap(network)(stacks)


@eqx.filter_jit
def update(network: Network, target: Network, opt_state: Any, batch: dict[str, Any]) -> tuple[Network, Any]:
    """Does one gradient step; returns the network and the optimizer's state."""
    obs, next_obs = batch["screens"][:, :STACK], batch["screens"][:, 1:]

    def loss(network: Network) -> jax.Array:
        values = jnp.take_along_axis(q_values(network, obs), batch["action"][:, None], 1)[:, 0]
        best = jnp.argmax(q_values(network, next_obs), axis=1)
        next_values = jnp.take_along_axis(q_values(target, next_obs), best[:, None], 1)[:, 0]
        target_values = batch["reward"] + batch["discount"] * jax.lax.stop_gradient(next_values)
        return jnp.mean(optax.losses.huber_loss(values, target_values))

    gradients = eqx.filter_grad(loss)(network)
    changes, opt_state = OPTIMIZER.update(gradients, opt_state)
    return eqx.apply_updates(network, changes), opt_state


def make_env(game: str) -> gymnasium.Env[Any, Any]:
    """Returns a game whose observations are grey screens, u8[84, 84], of every fourth frame."""
    return gymnasium.wrappers.AtariPreprocessing(gymnasium.make(game, frameskip=1))


def train(game: str, steps: int, seed: int) -> tuple[float, engram.info.TableInfo]:
    """Trains; returns the mean return of the last 20 episodes and the state of the table."""
    rng = np.random.default_rng(seed)
    env = make_env(game)
    num_actions = int(env.action_space.n)
    network = target = Network(num_actions, jax.random.key(seed))
    opt_state = OPTIMIZER.init(eqx.filter(network, eqx.is_array))
    stack: deque[np.ndarray] = deque(maxlen=STACK)  # the policy's
    finished, episode_return, updates = [0.0], 0.0, 0  # `finished` begins with a placeholder

    table = engram.Table("replay", max_size=1_000_000, rate_limiter=engram.rate_limiters.MinSize(BATCH_SIZE))
    with engram.Store([table], seed=seed) as store, ScreenWriter(store) as writer:
        screen, _ = env.reset(seed=seed)
        stack.extend([screen] * STACK)
        writer.begin_episode(screen)
        for step in range(steps):
            if rng.random() < max(0.05, 1 - step / (steps / 2)):
                action = int(rng.integers(num_actions))
            else:
                action = int(q_values(network, np.stack(stack)[None])[0].argmax())
            next_screen, reward, terminated, truncated, _ = env.step(action)
            writer.step(screen, action, float(np.sign(reward)), terminated=terminated)
            screen, episode_return = next_screen, episode_return + float(reward)
            stack.append(screen)
            if terminated or truncated:
                writer.end_episode(screen)
                finished.append(episode_return)
                episode_return = 0.0
                screen, _ = env.reset()
                stack.extend([screen] * STACK)
                writer.begin_episode(screen)

            if step >= WARM_UP and step % STEPS_PER_UPDATE == 0:
                network, opt_state = update(network, target, opt_state, store.sample("replay", BATCH_SIZE).data)
                updates += 1
                if updates % TARGET_NETWORK_PERIOD == 0:
                    target = network
        info = store.info()["replay"]
    env.close()
    return float(np.mean(finished[-20:])), info


def main() -> None:
    """Trains with the options of the command line; prints the mean return and the memory of the replay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="ALE/Breakout-v5")
    parser.add_argument("--steps", type=int, default=20_000, help="steps of four frames each (default: 20,000)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    mean, info = train(options.game, options.steps, options.seed)
    print(f"mean return: {mean:.1f}")
    print(f"{info.size} transitions take {info.bytes / info.size:,.0f} bytes each; a screen has {84 * 84:,}")


if __name__ == "__main__":
    main()
