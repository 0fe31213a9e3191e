"""Sums of float32 numbers in the order of ALF's segment trees, compared with a tree that is computed each time."""

import numpy as np
import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.torch]


def tree_of(values):
    """All nodes: leaves that do not fit on the lowest level are before those that do."""
    rows, num_lowest = len(values), 2 * len(values) - (1 << (len(values) - 1).bit_length())
    nodes = [np.float32(0)] * rows + [*values[num_lowest:], *values[:num_lowest]]
    for node in reversed(range(1, rows)):
        nodes[node] = nodes[2 * node] + nodes[2 * node + 1]
    return nodes


def find(nodes, rows, mass):
    """The number, from left to right, of the leaf in which a mass ends."""
    node = 1
    while node < rows:
        node *= 2
        if mass >= nodes[node] and nodes[node + 1] > 0:
            mass, node = mass - nodes[node], node + 1
    first = 1 << (rows - 1).bit_length()
    return node - first if node >= first else node + rows - first


@pytest.mark.parametrize("rows", [*range(1, 18), 31, 32, 33, 100])
def test_sums_follow_changes_of_few_or_many_values(rows):
    from engram.compat.alf.experience_replayers._float32_sums import Float32Sums  # noqa: PLC0415, it needs PyTorch

    random, values = np.random.default_rng(rows), np.zeros(rows, np.float32)
    sums = Float32Sums(values)
    assert sums.total() == 0
    for step in range(40):
        changed = random.integers(rows, size=random.integers(1, 1 + (rows if step % 8 == 0 else max(1, rows // 4))))
        values[changed] = random.random(len(changed), np.float32) ** 9 * random.integers(0, 2, len(changed))
        sums.change(changed)
        if step % 3 == 0:
            continue  # several changes before a use
        nodes = tree_of(values)
        assert sums.total() == nodes[1]
        masses = np.append(random.random(9, np.float32) * nodes[1], [np.float32(0), nodes[1]])
        assert sums.find(masses).tolist() == [find(nodes, rows, mass) for mass in masses]
