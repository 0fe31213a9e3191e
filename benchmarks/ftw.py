"""`python -m benchmarks.ftw`: the time of the parts of FTW's learner and actors, and the shortest possible time.

Frames are random, environments cost nothing, auxiliary tasks are off. A learner step is timed, and so are its parts,
each compiled on its own: the batch (waiting for the replay, and the copy to the device), the torso and the core with
their gradients; the rest (heads, losses, optimizer) is the difference. The shortest possible time of a part is the
time that its arithmetic takes at the speed of one large matrix product, or that its state takes at the speed of copying
memory, whichever is longer. Figures are medians.
"""

# ruff: noqa: ANN401, arrays and pytrees of them

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import StepType, TimeStep

from benchmarks import build, peers
from benchmarks import report as results
from engram.agents.ftw import config as ftw
from engram.agents.ftw.actor import Actors, act, example_row
from engram.agents.ftw.agent_networks import make_networks
from engram.agents.ftw.environment import EnvironmentSpec
from engram.agents.ftw.learner import Learner, learner_step
from engram.agents.ftw.networks import OAR
from engram.agents.ftw.networks.core_types import CoreConfig
from engram.agents.ftw.replay import Replay
from engram.agents.ftw.trajectory import Trajectories, to_trajectories

NUM_ACTIONS = 4
EPISODE = 1000
"""Steps of an episode: items have no padding."""


@dataclass(frozen=True)
class Setting:
    """A network, and the size of its batches."""

    name: str
    size: int  # pixels along each side of a frame
    length: int  # T
    batch_size: int  # B
    network: ftw.NetworkConfig
    num_envs: int = 8


_PAPER_DNC = ftw.NetworkConfig(core=CoreConfig(core_type="rpth_dnc"), rematerialize=True)
SETTINGS = (
    Setting("small", 42, 20, 4, ftw.FETCH.network, num_envs=32),
    Setting("rpth", 84, 20, 8, ftw.NetworkConfig()),
    Setting("rpth-long", 84, 100, 32, ftw.NetworkConfig(), num_envs=32),
    Setting("rpth_dnc", 84, 20, 8, _PAPER_DNC),
)


class RandomFrames:
    """Environments of random frames, drawn before the clock starts."""

    def __init__(self, size: int, num_envs: int) -> None:
        rng = np.random.default_rng(0)
        self.num_envs = num_envs
        self._frames = rng.integers(256, size=(16, num_envs, size, size, 3), dtype=np.uint8)
        self._steps = 0

    def reset(self) -> TimeStep:
        """Begins an episode in each environment."""
        return self._time_step(np.zeros(self.num_envs, np.int32))

    def step(self, actions: Any) -> TimeStep:
        """Does a step in each environment."""
        self._steps += 1
        return self._time_step(np.asarray(actions, np.int32))

    def _time_step(self, actions: Any) -> TimeStep:
        place = self._steps % (EPISODE + 1)
        kind = StepType.FIRST if place == 0 else StepType.LAST if place == EPISODE else StepType.MID
        zeros, frame = np.zeros(self.num_envs, np.float32), self._frames[self._steps % len(self._frames)]
        types = np.full(self.num_envs, int(kind), np.int32)
        return TimeStep(types, zeros, zeros + (kind != StepType.LAST), OAR(frame, actions, zeros))


class _NoEmbedding(eqx.Module):
    """Stands for the embedding where only the core is measured: observations are embeddings."""

    def __call__(self, oar: OAR, _internal_rewards: Any) -> Any:
        return oar.observation


def finished(arrays: Any) -> Any:
    """Waits until arrays are computed; returns them."""
    return jax.block_until_ready(arrays)  # type: ignore[no-untyped-call]


def median_time(call: Callable[[], Any], times: int) -> float:
    """Returns the median of the seconds of a call that returns arrays; the first call, which compiles, is not timed."""
    finished(call())
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        finished(call())
        taken.append(time.perf_counter() - begin)
    return float(np.median(taken))


def limits() -> tuple[float, float]:
    """Returns operations per second of a product of two matrices of 2,048 rows, and bytes per second of a copy."""
    a = jnp.ones((2048, 2048), jnp.float32)
    product = median_time(partial(jax.jit(jnp.matmul), a, a), 9)
    source = np.ones(1 << 26, np.float32)
    target = np.zeros_like(source)
    copied = median_time(partial(np.copyto, target, source), 9)
    return 2 * 2048**3 / product, 2 * source.nbytes / copied


def operations(function: Callable[..., Any], *args: Any) -> float:
    """Returns the floating-point operations of a call, as XLA counts them; of a loop it counts one pass."""
    analysis: Any = jax.jit(function).lower(*args).compile().cost_analysis()
    return float((analysis[0] if isinstance(analysis, list) else analysis)["flops"])


@dataclass
class Part:
    """A part of a step: seconds, and the least that it could take."""

    name: str
    seconds: float
    limit: float | None = None
    bound: str = ""


def learner_parts(setting: Setting, networks: Any, batch: Any, times: int) -> tuple[float, list[Part]]:
    """Returns the seconds of a learner step with a batch on the device, and its parts."""
    flops, bandwidth = limits()
    learner = Learner(networks, ftw.FETCH.hypers, jax.random.key(1))

    def step() -> Any:
        learner.state, metrics = learner_step(learner.state, batch, learner.hypers, static=learner.static)
        return learner.state, metrics

    whole = median_time(step, times)
    policy, static = eqx.partition(networks.policy, eqx.is_inexact_array)
    trajectories: Trajectories = jax.jit(lambda items: to_trajectories(items, networks.policy))(batch.items)
    rows, size = setting.length + 1, setting.batch_size
    embedding_size = networks.policy.embedding.size

    def torso(policy: Any, frames: Any) -> Any:
        return eqx.combine(policy, static).features(frames).sum()

    def core(policy: Any, embedded: Any, state: Any, noise: Any) -> Any:
        whole = eqx.combine(policy, static)
        only_core = eqx.tree_at(lambda policy: policy.embedding, whole, _NoEmbedding())
        zeros = jnp.zeros((len(noise), size))
        output, _ = only_core.unroll_core(OAR(embedded, zeros, zeros), state, noise, learner.hypers)
        return output.z.sum()

    embedded = jnp.ones((rows, size, embedding_size))
    noise = networks.policy.sample_noise(jax.random.key(2), (rows, size))
    frames = trajectories.oar.observation
    torso_seconds = median_time(partial(jax.jit(jax.grad(torso)), policy, frames), times)
    core_args = policy, embedded, trajectories.state, noise
    core_gradient = jax.grad(core, argnums=(0, 1))
    core_seconds = median_time(partial(jax.jit(core_gradient), *core_args), times)
    one_step = core_gradient, policy, embedded[:1], trajectories.state, noise[:1]
    core_arithmetic = rows * operations(*one_step) / flops
    # Each step reads and writes the state, forward and backward.
    state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(trajectories.state))
    core_memory = rows * 4 * state_bytes / bandwidth
    core_limit = max((core_arithmetic, "arithmetic"), (core_memory, "memory"))
    return whole, [
        Part("torso", torso_seconds, operations(jax.grad(torso), policy, frames) / flops, "arithmetic"),
        Part("core", core_seconds, *core_limit),
        Part("heads, losses, optimizer", max(whole - torso_seconds - core_seconds, 0.0)),
    ]


def actor_parts(setting: Setting, networks: Any, actors: Actors, learner: Learner, steps: int) -> tuple[float, Part]:
    """Returns the seconds of an actor step of all environments, and its inference."""
    state = actors._state  # noqa: SLF001, the state of inference alone
    observation = actors._timestep.observation  # noqa: SLF001
    first = np.zeros(setting.num_envs, bool)
    inference = partial(act, learner.params, state, observation, first, learner.hypers, static=learner.static)
    params, static = eqx.partition(networks.policy, eqx.is_inexact_array)
    frames = jnp.asarray(observation.observation)[None]
    features = operations(lambda params, frames: eqx.combine(params, static).features(frames), params, frames)
    return (
        median_time(lambda: actors.step(learner.params, learner.hypers) and None, steps),
        Part("inference", median_time(inference, steps), features / limits()[0], "arithmetic"),
    )


def report(setting: Setting, times: int) -> None:
    """Measures a setting and prints its tables."""
    replay_config = ftw.ReplayConfig(
        sequence_length=setting.length,
        batch_size=setting.batch_size,
        max_queue_size=4096,
        use_pixel_control=False,
        use_reward_prediction=False,
    )
    spec = EnvironmentSpec((setting.size, setting.size, 3), np.uint8, NUM_ACTIONS)
    networks = make_networks(
        setting.network,
        replay_config,
        observation_shape=spec.observation_shape,
        num_actions=NUM_ACTIONS,
        key=jax.random.key(0),
    )
    learner = Learner(networks, ftw.FETCH.hypers, jax.random.key(1))
    environment = RandomFrames(setting.size, setting.num_envs)
    row = example_row(spec, networks.policy)
    with (
        Replay(replay_config, row, seed=0) as replay,
        Actors(environment, learner.static, replay, jax.random.key(3)) as actors,
    ):

        def fill() -> None:
            while not replay.can_sample_queue():
                actors.step(learner.params, learner.hypers)

        waits, copies = [], []
        for _ in range(times):
            fill()
            begin = time.perf_counter()
            sampled = replay.sample()
            middle = time.perf_counter()
            batch = finished(jax.device_put(sampled))
            waits.append(middle - begin)
            copies.append(time.perf_counter() - middle)
        step_seconds, inference = actor_parts(setting, networks, actors, learner, 4 * times)
    whole, parts = learner_parts(setting, networks, batch, times)
    wait, copy = float(np.median(waits)), float(np.median(copies))
    total = wait + copy + whole
    frames = setting.length * setting.batch_size
    print(
        f"\n{setting.name}: {setting.size} x {setting.size}, T = {setting.length}, B = {setting.batch_size}, ", end=""
    )
    print(
        f"{setting.network.core.core_type}; learner {1e3 * total:.1f} ms per step, {frames / total:,.0f} frames/s; ",
        end="",
    )
    print(f"actor with {setting.num_envs} environments {setting.num_envs / step_seconds:,.0f} frames/s\n")
    print("| part | ms | share | shortest possible, ms | bound by |")
    print("|---|---:|---:|---:|---|")
    for part in (Part("wait for the replay", wait), Part("copy to the device", copy), *parts):
        print(line(part, total))
    print(line(replace(inference, name="actor: inference"), step_seconds))
    print(line(Part("actor: recording", max(step_seconds - inference.seconds, 0.0)), step_seconds))
    print(f"\nwait + copy: {(wait + copy) / total:.1%} of a learner step (target: 5% at most)", flush=True)


def line(part: Part, total: float) -> str:
    """Renders a row of the table."""
    limit = "" if part.limit is None else f"{1e3 * part.limit:.2f}"
    return f"| {part.name} | {1e3 * part.seconds:.2f} | {part.seconds / total:.1%} | {limit} | {part.bound} |"


def main() -> None:
    """Prints tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ftw", description=__doc__)
    names = [setting.name for setting in SETTINGS]
    parser.add_argument("settings", nargs="*", metavar="SETTING", help=f"any of {', '.join(names)} (default: all)")
    parser.add_argument("--times", type=int, default=7, help="calls of each part (default: 7)")
    parser.add_argument("--write", action="store_true", help="also write the tables to benchmarks/results")
    arguments = parser.parse_args()
    if unknown := set(arguments.settings) - set(names):
        parser.error(f"unknown settings {sorted(unknown)}; expected any of {names}")
    if arguments.write and arguments.settings:
        parser.error("`--write` replaces the whole table: it takes all settings")
    build.require_release()
    with results.printed("ftw_parts", "Parts of FTW's learner and actors", "benchmarks.ftw", to_file=arguments.write):
        flops, bandwidth = limits()
        print(
            f"{jax.devices()[0].device_kind}, {os.cpu_count()} processors; matrix product {flops / 1e9:,.0f} GFLOP/s, ",
            end="",
        )
        print(f"copy {bandwidth / 1e9:,.0f} GB/s")
        for setting in SETTINGS:
            if not arguments.settings or setting.name in arguments.settings:
                peers.log(f"measuring {setting.name}")
                report(setting, arguments.times)


if __name__ == "__main__":
    main()
