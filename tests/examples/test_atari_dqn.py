"""The Atari recipe stores each screen once, and samples the stacks that its policy saw."""

import re
import subprocess
import sys
from collections import deque
from pathlib import Path

import numpy as np
import pytest

import engram

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def atari_dqn(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import atari_dqn  # noqa: PLC0415, needs the path

    return atari_dqn


def test_sampled_stacks_are_those_of_the_policy(atari_dqn):
    rng = np.random.default_rng(0)
    expected = []
    store = engram.Store([engram.Table("replay", max_size=100)])
    with atari_dqn.ScreenWriter(store) as writer:
        for length in (1, 3, 4, 9):
            screens = rng.integers(256, size=(length + 1, 84, 84), dtype=np.uint8)
            stack = deque([screens[0]] * 4, maxlen=4)
            writer.begin_episode(screens[0])
            for t in range(length):
                terminated = length != 3 and t == length - 1
                writer.step(screens[t], t, float(t), terminated=terminated)
                obs = np.stack(stack)
                stack.append(screens[t + 1])
                expected.append((obs, np.stack(stack), t, 0.0 if terminated else atari_dqn.DISCOUNT))
            writer.end_episode(screens[-1])
        # An episode that its environment did not finish has no next observation of its last action.
        writer.begin_episode(screens[0])
        writer.step(screens[0], 0, 0.0, terminated=False)
        writer.begin_episode(screens[1])
    [items] = store.scan("replay", batch_size=100)
    assert len(expected) == items.info.key.size
    for index, (obs, next_obs, t, discount) in enumerate(expected):
        np.testing.assert_array_equal(items.data["screens"][index][:4], obs)
        np.testing.assert_array_equal(items.data["screens"][index][1:], next_obs)
        assert (items.data["action"][index], items.data["reward"][index]) == (t, t)
        assert items.data["discount"][index] == np.float32(discount)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_screens_are_stored_once():
    command = [sys.executable, "atari_dqn.py", "--steps", "600"]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=850, cwd=EXAMPLES).stdout
    mean, size, size_in_bytes = re.search(
        r"mean return: (\S+)\n(\d+) transitions take ([\d,]+) bytes each; a screen has 7,056\n", output
    ).groups()
    assert float(mean) >= 0
    assert int(size) > 580
    assert int(size_in_bytes.replace(",", "")) < 7_056
