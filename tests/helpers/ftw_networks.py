"""Networks of FTW with the parameters of a fixture, and small networks for tests."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from engram.agents.ftw import networks
from helpers import ftw_fixtures

KEY = jax.random.key(0)
"""For modules whose parameters are replaced."""


class Hypers(NamedTuple):
    """What the network reads of the hyperparameters."""

    internal_rewards: np.ndarray = np.ones(1, np.float32)
    slow_core_period: np.ndarray = np.int32(3)
    scale_grads_fast_to_slow: np.ndarray = np.float32(1)


def shapes_of(module, *args, **kwargs):
    """Returns a new module with shapes for parameters: drawing them would take most of the time of the tests."""
    return eqx.filter_eval_shape(module, *args, **kwargs, key=KEY)


def with_leaves(module, *leaves):
    """Returns a module with other parameters, given in the order of its fields."""
    assert [leaf.shape for leaf in jax.tree.leaves(module)] == [np.shape(leaf) for leaf in leaves]
    return jax.tree.unflatten(jax.tree.structure(module), [jnp.asarray(leaf) for leaf in leaves])


def with_normal_leaves(module, seed=0):
    """Returns a module with parameters of a normal distribution with standard deviation 0.3."""
    rng = np.random.default_rng(seed)
    leaves = jax.tree.leaves(module)
    return with_leaves(module, *(rng.normal(0, 0.3, leaf.shape).astype(np.float32) for leaf in leaves))


def torso(fixture, *, activate_last):
    filters = {key: [tuple(each) for each in fixture[key]] for key in ("conv_filters", "residual_filters")}
    p = ftw_fixtures.arrays(fixture["params"])
    names = [f"conv{i}" for i in range(len(filters["conv_filters"]))]
    names += [f"res{i}" for i in range(len(filters["residual_filters"]))] + ["linear"]
    options = {"hidden_size": len(p["linear_b"]), "activate_last": activate_last}
    module = shapes_of(networks.FtwTorso, np.shape(fixture["inputs"])[1:], **filters, **options)
    return with_leaves(module, *(p[f"{name}_{part}"] for name in names for part in "wb"))


def access(params, dims, in_size):
    """A memory access with parameters name -> [w, b], in the order of the fields of its interface."""
    sizes = (dims["memory_size"], dims["word_size"], dims["num_reads"], len(params["write_gate"][1]))
    module = shapes_of(networks.MemoryAccess, in_size, *sizes)
    names = "write_vectors erase_vectors free_gate allocation_gate write_gate read_mode write_keys write_strengths"
    pairs = [params[name] for name in [*names.split(), "read_keys", "read_strengths"]]
    weight, bias = (np.concatenate([np.asarray(pair[part]) for pair in pairs], axis=-1) for part in (0, 1))
    return eqx.tree_at(lambda m: m.interface, module, with_leaves(module.interface, weight, bias))


def rpth(fixture, slow=("slow",), **options):
    """RPTH with slow cores of these names."""
    dims, params = fixture["dims"], fixture["params"]
    hidden = dims["hidden"]
    memory = access(params["access"], dims, hidden) if "access" in params else None
    module = shapes_of(
        networks.RPTH, dims["input"], hidden, dims["num_dimensions"], memory=memory, num_slow_cores=len(slow), **options
    )

    def unit(old, name):
        parts = [params[f"{name}_lstm"], params.get(f"{name}_proj", []), params[f"{name}_head"]]
        return with_leaves(old, *(np.asarray(leaf) for part in parts for leaf in part))

    units = (tuple(map(unit, module.slow, slow)), unit(module.fast, "fast"))
    return eqx.tree_at(lambda m: (m.slow, m.fast, m.memory), module, (*units, memory), is_leaf=lambda x: x is None)


def unroll(core, state, inputs, noise, *, period=3, gradient_scale=1.0):
    """Steps a core; returns its outputs [T, B, ...], the states after each step, and the last state."""
    return _unroll(core, state, inputs, noise, (jnp.asarray(period), jnp.asarray(gradient_scale)))


@jax.jit
def _unroll(core, state, inputs, noise, settings):
    period, gradient_scale = settings

    def step(state, each):
        output, state = core(each[0], state, each[1], period=period, gradient_scale=gradient_scale)
        return state, (output, state)

    last, (outputs, states) = jax.lax.scan(step, state, (inputs, noise))
    return outputs, states, last


@functools.cache
def small_network(core_type="rpth", num_actions=3, *, frame=(12, 12, 3), rematerialize=False):
    """A network of a few thousand parameters."""
    memory = {"dnc_memory_size": 5, "dnc_word_size": 3, "dnc_num_reads": 2}
    config = networks.CoreConfig(core_type=core_type, hidden_size=6, num_dimensions=4, **memory)

    def make(*, key):
        filters = {"conv_filters": ((4, 4, 2),), "residual_filters": ((4, 3, 1),)}
        torso = networks.FtwTorso(frame, **filters, hidden_size=8, key=key)
        embedding = networks.OAREmbedding(torso, num_actions)
        core = networks.make_core(embedding.size, config, key=key)
        return networks.FtwNetwork(embedding, core, 7, rematerialize=rematerialize, key=key)

    return with_normal_leaves(shapes_of(make))


def small_inputs(network, steps, batch, seed=0, frame=(12, 12, 3)):
    """Observations, actions and rewards [T, B, ...], and noise for `unroll`."""
    rng = np.random.default_rng(seed)
    sizes = network.num_actions
    groups = () if isinstance(sizes, int) else (len(sizes),)
    oar = networks.OAR(
        rng.integers(0, 256, (steps, batch, *frame), np.uint8),
        rng.integers(0, sizes, (steps, batch, *groups)).astype(np.int32),
        rng.normal(size=(steps, batch)).astype(np.float32),
    )
    return oar, network.sample_noise(jax.random.key(seed), (steps, batch))
