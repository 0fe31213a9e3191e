"""The workloads of `buffer_worker` with TorchRL's and flashbax's replay buffers.

Their arguments are converted to tensors, tensor dicts and device arrays before the clock starts.
"""

import itertools
from typing import Any

import numpy as np

from benchmarks.workers.buffer_data import (
    ATARI_STEPS,
    BATCHES,
    ENVS,
    LENGTH,
    PREPARED,
    SEQUENCES,
    Workloads,
    frames,
    prepared,
    priorities,
    steps,
)


def torchrl_workloads(n: int) -> Workloads:
    """Workloads of TorchRL: tensor storage, and slices of one long trajectory as sequences."""
    import torch  # noqa: PLC0415, in an environment of its own
    from tensordict import TensorDict  # noqa: PLC0415
    from torchrl.data import LazyTensorStorage, PrioritizedSampler, ReplayBuffer, SliceSampler  # noqa: PLC0415

    torch.set_num_threads(1)

    def tensors(columns: dict[str, np.ndarray], *shape: int) -> Any:  # noqa: ANN401
        return TensorDict({name: torch.as_tensor(column) for name, column in columns.items()}, batch_size=shape)

    def filled(columns: dict[str, np.ndarray], size: int, batch_size: int, sampler: Any = None) -> Any:  # noqa: ANN401
        buffer = ReplayBuffer(storage=LazyTensorStorage(size), sampler=sampler, batch_size=batch_size)
        buffer.extend(tensors(columns, size))
        return buffer

    columns = steps((n,))
    uniform = {size: filled(columns, n, size) for size in BATCHES}
    prioritized = filled(columns, n, 256, PrioritizedSampler(max_capacity=n, alpha=0.6, beta=0.4))
    prioritized.update_priority(torch.arange(n), torch.as_tensor(priorities(n), dtype=torch.float32))
    trajectory = columns | {"trajectory": np.zeros(n, np.int64)}
    slices = SliceSampler(slice_len=LENGTH, traj_key="trajectory", cache_values=True)
    sequences = filled(trajectory, n, SEQUENCES * LENGTH, slices)
    atari = filled(frames(ATARI_STEPS), ATARI_STEPS, 256)
    one = itertools.cycle([tensors(next(stream)) for stream in [prepared(())] for _ in range(PREPARED)])
    many = itertools.cycle([tensors(next(stream), ENVS) for stream in [prepared((ENVS,))] for _ in range(PREPARED)])
    new = torch.as_tensor(priorities(256), dtype=torch.float32)

    def sample() -> Any:  # noqa: ANN401, indexes
        return prioritized.sample(return_info=True)[1]["index"]

    sampled = itertools.cycle([sample() for _ in range(PREPARED)])
    workloads: Workloads = {
        "add one": lambda: uniform[256].add(next(one)),
        f"add {ENVS}": lambda: uniform[256].extend(next(many)),
        "sample and update 256": lambda: prioritized.update_priority(sample(), new),
        "update 256 after a sample": (sample, lambda indexes: prioritized.update_priority(indexes, new)),
        "update 256 without samples": lambda: prioritized.update_priority(next(sampled), new),
        f"sequences {SEQUENCES} x {LENGTH}": sequences.sample,
        "Atari 256": atari.sample,
    }
    return workloads | {f"uniform {size}": uniform[size].sample for size in BATCHES}


def flashbax_workloads(n: int) -> Workloads:
    """Workloads of flashbax: compiled functions on the processor, with donated states."""
    import flashbax  # noqa: PLC0415, in an environment of its own
    import jax  # noqa: PLC0415

    keys = itertools.cycle(list(jax.random.split(jax.random.key(0), PREPARED)))

    class Buffer:
        """A buffer with its state."""

        def __init__(self, functions: Any, step: Any, *additions: Any) -> None:  # noqa: ANN401
            self.state = functions.init(step)
            self.adding = jax.jit(functions.add, donate_argnums=0)
            self.sampling = jax.jit(functions.sample)
            for addition in additions:
                self.add(addition)

        def add(self, added: Any) -> None:  # noqa: ANN401
            self.state = jax.block_until_ready(self.adding(self.state, added))

        def sample(self) -> Any:  # noqa: ANN401
            return jax.block_until_ready(self.sampling(self.state, next(keys)))

    def uniform(columns: dict[str, np.ndarray], batch_size: int, added: str = "add_batches") -> Buffer:
        size = len(next(iter(columns.values())))
        functions = flashbax.make_item_buffer(size, 1, batch_size, **{added: True})
        step = {name: column[0] for name, column in columns.items()}
        return Buffer(functions, step, columns if added == "add_batches" else {k: v[:1] for k, v in columns.items()})

    columns = steps((n,))
    step = {name: column[0] for name, column in columns.items()}
    samplers = {size: uniform(columns, size) for size in BATCHES}
    single = uniform(columns, 256, "add_sequences")
    one = itertools.cycle([jax.device_put(next(prepared((1,)))) for _ in range(PREPARED)])
    many = itertools.cycle([jax.device_put(next(prepared((ENVS,)))) for _ in range(PREPARED)])
    whole = {name: column[None] for name, column in columns.items()}
    sequences = Buffer(flashbax.make_trajectory_buffer(1, SEQUENCES, LENGTH, 1, LENGTH, n), step, whole)
    prioritized = Buffer(
        flashbax.make_prioritised_trajectory_buffer(1, 256, 1, 1, 1, n, priority_exponent=0.6), step, whole
    )
    set_priorities = jax.jit(
        flashbax.make_prioritised_trajectory_buffer(1, 256, 1, 1, 1, n, priority_exponent=0.6).set_priorities,
        donate_argnums=0,
    )
    atari = uniform(frames(ATARI_STEPS), 256)
    new = jax.device_put(priorities(256).astype(np.float32))

    def update(indices: Any) -> None:  # noqa: ANN401
        prioritized.state = jax.block_until_ready(set_priorities(prioritized.state, indices, new))

    def sample() -> Any:  # noqa: ANN401
        return prioritized.sample().indices

    sampled = itertools.cycle([sample() for _ in range(PREPARED)])
    workloads: Workloads = {
        "add one": lambda: single.add(next(one)),
        f"add {ENVS}": lambda: samplers[256].add(next(many)),
        "sample and update 256": lambda: update(sample()),
        "update 256 after a sample": (sample, update),
        "update 256 without samples": lambda: update(next(sampled)),
        f"sequences {SEQUENCES} x {LENGTH}": sequences.sample,
        "Atari 256": atari.sample,
    }
    for workload in workloads.values():  # compiles
        workload[1](workload[0]()) if isinstance(workload, tuple) else workload()
    for sampler in samplers.values():
        sampler.sample()
    return workloads | {f"uniform {size}": samplers[size].sample for size in BATCHES}
