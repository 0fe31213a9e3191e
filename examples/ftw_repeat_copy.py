"""Repeat-copy with FTW's cores: a network must repeat the bits that it has seen, as often as the input asks.

    python examples/ftw_repeat_copy.py
    python examples/ftw_repeat_copy.py --core rpth

Graves et al. 2016, "Hybrid computing using a neural network with dynamic external memory". The core is a DNC, or the
agent's core with temporal hierarchy, without a memory (`rpth`) or with one (`rpth_dnc`). The cost is the cross-entropy
of an example's output steps, on sequences that the network never learned from: a seventh of all, see `is_held_out`.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from engram.agents.ftw.networks.core_types import CoreConfig, make_core
from engram.agents.ftw.networks.dnc.controller import DNC
from engram.agents.ftw.networks.layers import Linear
from engram.agents.ftw.networks.rpth import RPTH
from engram.envs import repeat_copy

TARGET_COST = 0.10
"""Cost of held-out examples at which the task counts as solved, as a share of the cost before learning."""

BITS, LENGTHS, REPEATS = 4, (1, 2), (1, 2)  # bits of a vector; vectors of a sequence; repetitions
BATCH_SIZE = 16
HELD_OUT = 512  # examples
UPDATES_PER_CALL = 100  # updates between two lines of the output, compiled as one loop
UNITS, SLOTS, WORD_SIZE, READS = 64, 16, 16, 4
PERIOD = 4  # steps of the fast core per step of the slow core
LATENT = 32  # dimensions of the latent variable
OPTIMIZER = optax.chain(optax.clip_by_global_norm(50.0), optax.adam(3e-3))


class HierarchicalNetwork(eqx.Module):
    """The core with temporal hierarchy, and a linear layer from the mean of the latent variable's posterior."""

    core: RPTH
    output: Linear

    def __init__(self, core_type: Any, in_size: int, out_size: int, *, key: jax.Array) -> None:
        """Starts with random weights."""
        core_key, output_key = jax.random.split(key)
        config = CoreConfig(
            core_type=core_type,
            hidden_size=UNITS,
            num_dimensions=LATENT,
            dnc_memory_size=SLOTS,
            dnc_word_size=WORD_SIZE,
            dnc_num_reads=READS,
        )
        core = make_core(in_size, config, key=core_key)
        assert isinstance(core, RPTH)
        self.core, self.output = core, Linear(LATENT, out_size, key=output_key)

    def __call__(self, x: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        """Returns outputs f32[B, O] and the next state for inputs f32[B, I]; z is the posterior's mean."""
        no_noise = jnp.zeros((len(x), LATENT))
        output, state = self.core(x, state, no_noise, period=jnp.int32(PERIOD), gradient_scale=jnp.float32(1))
        return self.output(output.z), state

    def initial_state(self, batch_size: int) -> Any:
        """Returns zeros for B examples."""
        return self.core.initial_state(batch_size)


Network = DNC | HierarchicalNetwork


def make_network(core: str, key: jax.Array) -> Network:
    """Returns a network for the task's observations and targets."""
    in_size, out_size = BITS + 2, BITS + 1
    if core == "dnc":
        return DNC(
            in_size, UNITS, out_size, memory_size=SLOTS, word_size=WORD_SIZE, num_reads=READS, clip_value=20.0, key=key
        )
    return HierarchicalNetwork(core, in_size, out_size, key=key)


def cost(network: Network, examples: repeat_copy.Examples) -> jax.Array:
    """Returns the mean cost of B examples, f32[], in nats."""

    def step(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        logits, state = network(x, state)
        return state, logits

    state: Any = network.initial_state(examples.observations.shape[1])
    _, logits = jax.lax.scan(step, state, jnp.asarray(examples.observations))
    return repeat_copy.cost(logits, jnp.asarray(examples.targets), jnp.asarray(examples.mask))


def is_held_out(examples: repeat_copy.Examples) -> NDArray[np.bool_]:
    """Returns which of B examples have a sequence that is kept for evaluation, bool[B]."""
    bits = examples.observations[1 : 1 + LENGTHS[1], :, :BITS]
    powers = 2 ** np.arange(LENGTHS[1] * BITS).reshape(LENGTHS[1], 1, BITS)
    numbers = (bits * powers).sum(axis=(0, 2)).astype(np.int64)
    return np.asarray(numbers % 7 == 3)


def draw(rng: np.random.Generator, batch_size: int, *, held_out: bool) -> repeat_copy.Examples:
    """Draws B examples, all held out or none."""
    num_drawn = (20 if held_out else 4) * batch_size  # enough
    drawn = repeat_copy.draw_examples(rng, num_drawn, num_bits=BITS, lengths=LENGTHS, repeats=REPEATS)
    chosen = np.flatnonzero(is_held_out(drawn) == held_out)[:batch_size]
    assert len(chosen) == batch_size
    return repeat_copy.Examples(*(array[:, chosen] for array in drawn))


@eqx.filter_jit
def learn(network: Network, optimizer_state: Any, batches: repeat_copy.Examples) -> tuple[Network, Any]:
    """Does one update for each of several batches, stacked along a first axis."""
    arrays, static = eqx.partition(network, eqx.is_array)

    def update(carry: tuple[Any, Any], examples: repeat_copy.Examples) -> tuple[tuple[Any, Any], None]:
        arrays, state = carry
        gradients = jax.grad(lambda arrays: cost(eqx.combine(arrays, static), examples))(arrays)
        changes, state = OPTIMIZER.update(gradients, state)
        return (optax.apply_updates(arrays, changes), state), None

    (arrays, optimizer_state), _ = jax.lax.scan(update, (arrays, optimizer_state), batches)
    return eqx.combine(arrays, static), optimizer_state


def batches(rng: np.random.Generator) -> Iterator[repeat_copy.Examples]:
    """Yields `UPDATES_PER_CALL` batches at a time."""
    while True:
        drawn = zip(*(draw(rng, BATCH_SIZE, held_out=False) for _ in range(UPDATES_PER_CALL)), strict=True)
        yield repeat_copy.Examples(*(np.stack(arrays) for arrays in drawn))


def main() -> None:
    """Learns, and prints the cost of held-out examples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", choices=("dnc", "rpth", "rpth_dnc"), default="dnc", help="type of the core")
    updates_help = f"largest number of updates (default: 10000); ends at {100 * TARGET_COST:.0f} %% of the first cost"
    parser.add_argument("--updates", type=int, default=10_000, help=updates_help)
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and the examples (default: 0)")
    args = parser.parse_args()

    start = time.monotonic()
    held_out_rng, rng = np.random.default_rng(args.seed).spawn(2)
    held_out = draw(held_out_rng, HELD_OUT, held_out=True)
    network = make_network(args.core, jax.random.key(args.seed))
    optimizer_state = OPTIMIZER.init(eqx.filter(network, eqx.is_array))
    held_out_cost: Callable[..., jax.Array] = eqx.filter_jit(cost)

    initial = float(held_out_cost(network, held_out))
    share = 1.0
    print(f"updates 0: cost {initial:.3f}")
    for call, group in enumerate(batches(rng), start=1):
        network, optimizer_state = learn(network, optimizer_state, group)
        current = float(held_out_cost(network, held_out))
        share = current / initial
        updates = call * UPDATES_PER_CALL
        print(f"updates {updates}: cost {current:.3f}, {share:.1%} of the first, {time.monotonic() - start:.0f} s")
        if share <= TARGET_COST or updates >= args.updates:
            break
    print(f"share of the first cost: {share:.3f}")


if __name__ == "__main__":
    main()
