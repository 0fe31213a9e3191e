"""First observations of more bytes than a batch of steps has room for."""

import numpy as np
import pytest

from engram import Table, selectors
from engram.gymnasium import Sequences, Transitions, VectorWriter


@pytest.mark.parametrize(
    "open_store",
    ["remote", *(pytest.param(door, marks=pytest.mark.slow) for door in ("in_process", "sharded"))],
    indirect=True,
)
def test_large_first_observations_are_stored(open_store):
    num_envs, size = 66, 1 << 20  # together more than 64 MiB
    tables = [Table(name, sampler=selectors.Fifo(), max_times_sampled=1) for name in ("transitions", "sequences")]
    store = open_store(*tables)
    kinds = [Transitions("transitions", discount=0.9), Sequences("sequences", length=2)]
    obs = np.zeros((4, num_envs, size), np.uint8)
    obs[:, :, 0] = np.arange(4)[:, None]
    obs[:, :, 1] = np.arange(num_envs)
    no = np.zeros(num_envs, bool)
    with VectorWriter(store, num_envs, kinds, autoreset_mode="SAME_STEP") as writer:
        writer.reset(obs[0])
        for step in range(1, 4):
            writer.step(np.zeros(num_envs, int), obs[step], np.zeros(num_envs), no, no)
    for table, steps in (("transitions", [0]), ("sequences", [0, 1, 2])):
        for env in range(2):
            data = store.sample(table, 1).data
            stored = data["obs"][0] if table == "sequences" else data["obs"]
            assert stored[:, :2].tolist() == [[step, env] for step in steps]
