"""The recorder: which items the tables have after each step, and how another recorder continues."""

import jax
import numpy as np
import pytest
from helpers.ftw_agent import TERMINATION, TRUNCATION, Scripted, replay_config, spec

from engram.adders.step import MaskedStep
from engram.agents.ftw.recorder import Action, Recorder, timestep_arrays, timestep_of_arrays
from engram.agents.ftw.replay import PIXEL_CONTROL, QUEUE, Replay
from engram.agents.ftw.windows import NONZERO_REWARD, ZERO_REWARD

pytestmark = pytest.mark.jax

T, STEPS = 4, 40
SCRIPTS = [
    [(11, TERMINATION), (2, TRUNCATION)],
    [(5, TRUNCATION), (4, TERMINATION), (1, TERMINATION)],
    [(60, TERMINATION)],
]


def make_environment(scripts=SCRIPTS):
    return Scripted(scripts, rewards=lambda _env, _episode, step: float(step % 3 == 0))


def open_replay(window_length):
    oar = spec().zeros()
    extras = {"core_state": (np.zeros(2, np.float32), np.int32(0)), "logits": np.zeros(3, np.float32)}
    row = MaskedStep(oar, oar.action, oar.reward, np.float32(0), np.bool_(0), extras, np.float32(0))
    return Replay(replay_config(reward_prediction_sequence_length=window_length), row, seed=0)


def play(window_length, stop=None, scripts=SCRIPTS):
    """Records steps; after `stop` of them, another recorder continues.

    Returns the sizes of the tables after each step, and at the end their items in order.
    """
    environment, rng, sizes = make_environment(scripts), np.random.default_rng(1), []
    number = len(scripts)
    timestep = environment.reset()
    with open_replay(window_length) as replay:
        recorder = Recorder(replay, timestep)
        for moment in range(STEPS):
            if moment == stop:
                state = recorder.get_state()
                recorder.close()
                recorder = Recorder(replay, make_environment(scripts).reset())
                recorder.set_state(state, timestep_of_arrays(timestep_arrays(timestep)))
            core = (rng.random((number, 2), np.float32), rng.integers(99, size=number).astype(np.int32))
            action = Action(rng.integers(3, size=number).astype(np.int32), rng.random((number, 3), np.float32), core)
            before, timestep = timestep, environment.step(action.actions)
            recorder.record(before, action, timestep)
            sizes.append({name: table.size for name, table in replay.store.info().items()})
        items = {
            name: [jax.tree.map(np.asarray, batch.data) for batch in replay.store.scan(name, batch_size=1)]
            for name in replay.store.info()
        }
        recorder.close()
    return sizes, items


@pytest.mark.parametrize("window_length", [1, 6])
def test_a_recorder_continues_where_another_one_stopped(window_length):
    sizes, items = play(window_length)
    assert min(map(len, items.values())) > 5
    assert {item.start_of_episode[0, 0].item() for item in items[QUEUE]} == {True, False}
    for stop in range(0, STEPS, 3):
        continued_sizes, continued = play(window_length, stop)
        assert continued_sizes == sizes
        jax.tree.map(np.testing.assert_array_equal, continued, items)


def test_tables_have_each_item_and_window_once_its_last_row_is_written():
    sizes, _ = play(3, scripts=[[(60, TERMINATION)]])
    assert [each[QUEUE] for each in sizes] == [(rows - 1) // T for rows in range(1, STEPS + 1)]
    assert [each[PIXEL_CONTROL] for each in sizes] == [each[QUEUE] for each in sizes]
    windows = [each[NONZERO_REWARD] + each[ZERO_REWARD] for each in sizes]
    assert windows == [max(rows - 2, 0) for rows in range(1, STEPS + 1)]
