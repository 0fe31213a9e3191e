"""Steps that a `BufferWriter` adds: right in every autoreset mode, compared with a naive model of each environment."""

import gymnasium
import numpy as np
import pytest
from helpers import examples
from helpers.support import raises
from helpers.vector_envs import MODES, Scripted, key_of, run, stack, transitions, vector_of
from hypothesis import given
from hypothesis import strategies as st

from engram import buffers
from engram.buffers import ReplayBuffer
from engram.errors import InvalidArgumentError, SignatureError
from engram.gymnasium import BufferWriter

CAPACITY = 100_000
LENGTHS = st.lists(st.integers(-9, 9).filter(bool), min_size=1, max_size=4)  # those below 0 are truncated
OBS = np.zeros((2, 3), np.float32)
NO = np.zeros(2, bool)
FIRST_ENDS = np.array([True, False])
FLAGS = "and dtype bool, one entry per environment"
MODE_MISMATCH = (
    '`info` has "final_obs", which only environments with `autoreset_mode` SAME_STEP return; create the writer with '
    "the `autoreset_mode` of the environments"
)


def items_of(buffer):
    """All items of a buffer, each with the first entry of its arrays."""

    def row(nest, number):
        return {key: row(value, number) for key, value in nest.items()} if isinstance(nest, dict) else nest[number]

    return [row(batch.data, number) for batch in buffer.epoch(64) for number in range(len(batch))]


def assert_same(items, expected):
    assert sorted(map(key_of, items)) == sorted(map(key_of, expected))


def n_step(episode, kind):
    """The transitions of an episode, as a buffer returns them."""
    for start, item in enumerate(transitions(episode, kind.n_step, kind.discount)):
        steps = min(kind.n_step, len(episode) - start)
        yield item | {"num_steps": np.int32(steps)}


def padded_sequences(episode, kind):
    """The sequences of an episode that begin with each of its steps, without burn-in."""
    for start in range(len(episode)):
        stop = min(start + kind.length, len(episode))
        if stop - start < kind.length and not episode.ended:
            return
        part = slice(start, stop)
        item = {
            "obs": stack(episode.obs[part]),
            "action": np.array(episode.actions[part]),
            "reward": np.array(episode.rewards[part], np.float32),
            "next_obs": stack(episode.obs[start + 1 : stop + 1]),
            "terminated": np.array(episode.terminated[part]),
            "truncated": np.array(episode.truncated[part]),
            "valid": np.ones(stop - start, bool),
            "learning": np.ones(stop - start, bool),
            "is_first": np.arange(start, stop) == 0,
        }
        yield padded(item, kind.length - (stop - start))


def padded(nest, rows):
    if isinstance(nest, dict):
        return {key: padded(value, rows) for key, value in nest.items()}
    return np.concatenate([nest, np.zeros((rows, *nest.shape[1:]), nest.dtype)])


def single_steps(episode):
    for step in range(len(episode)):
        yield {
            "obs": episode.obs[step],
            "action": episode.actions[step],
            "reward": np.float32(episode.rewards[step]),
            "next_obs": episode.obs[step + 1],
            "terminated": np.bool_(episode.terminated[step]),
            "truncated": np.bool_(episode.truncated[step]),
        }


def expected_items(kind, logs):
    episodes = [episode for log in logs for episode in log]
    if isinstance(kind, buffers.Transitions):
        items = (n_step(episode, kind) for episode in episodes)
    elif isinstance(kind, buffers.Sequences):
        items = (padded_sequences(episode, kind) for episode in episodes)
    else:
        items = map(single_steps, episodes)
    return [item for each in items for item in each]


KINDS = [
    buffers.Steps(),
    buffers.Transitions(discount=0.5),
    buffers.Transitions(n_step=3, discount=0.5),
    buffers.Sequences(length=4),
]


@pytest.mark.parametrize("mode", MODES)
@examples.of_each(KINDS)
@given(data=st.data())
def test_items_equal_those_of_the_model(mode, data):
    kind = data.draw(st.sampled_from(KINDS), "kind")
    scripts = data.draw(st.lists(LENGTHS, min_size=1, max_size=4), "scripts")
    masks = st.lists(st.booleans(), min_size=len(scripts), max_size=len(scripts))
    interrupt = data.draw(st.dictionaries(st.integers(0, 30), masks, max_size=3), "interrupt")
    nested = data.draw(st.booleans(), "nested")
    envs, logs = vector_of([Scripted(n, script, nested=nested) for n, script in enumerate(scripts)], mode)
    buffer = ReplayBuffer(CAPACITY, len(scripts), items=kind, seed=0)
    steps = data.draw(st.integers(0, 40), "steps")
    run(BufferWriter(buffer, envs), envs, steps, rng=np.random.default_rng(0), interrupt=interrupt)
    assert_same(items_of(buffer), expected_items(kind, logs))


@pytest.mark.parametrize("mode", MODES)
def test_cart_pole_has_terminal_transitions_and_none_that_cross_resets(mode):
    envs, logs = vector_of([gymnasium.make("CartPole-v1", max_episode_steps=40) for _ in range(8)], mode)
    kind = buffers.Transitions(n_step=3, discount=0.99)
    buffer = ReplayBuffer(CAPACITY, 8, items=kind, seed=0)
    run(BufferWriter(buffer, envs), envs, 400, rng=np.random.default_rng(1), extras=True)
    items = items_of(buffer)
    assert sum(item["discount"] == 0 for item in items) > 50
    assert all(item.pop("extras")["log_prob"] == -item["action"] for item in items)
    # The model adds rewards in another precision, so these are compared without their bits.
    expected = expected_items(kind, logs)
    for item in [*items, *expected]:
        item["reward"] = round(float(item["reward"]), 4)
    assert_same(items, expected)


def writer_of(mode="NEXT_STEP", **options):
    buffer = ReplayBuffer(100, 2, **options)
    return buffer, BufferWriter(buffer, 2, autoreset_mode=mode)


def step(writer, obs=OBS, *, actions=(0, 1), rewards=(1, 2), terminated=NO, truncated=NO, info=None, extras=None):
    writer.step(np.array(actions), obs, np.array(rewards), terminated, truncated, info, extras=extras)


def test_wrong_steps_add_nothing_and_can_be_repeated():
    buffer, writer = writer_of()
    with raises(
        InvalidArgumentError,
        "`reset` must be called before `step`, with the observations that `reset` of the environments returned",
    ):
        step(writer)
    with raises(SignatureError, "column `obs` must have shape [2, ...] with 2 environments; got shape [1, 3]"):
        writer.reset(OBS[:1])
    writer.reset(OBS)
    step(writer, extras=OBS)
    wrong = [
        ({"rewards": [1]}, InvalidArgumentError,
         "`rewards` must have shape [2], one number per environment; got int64[1]"),
        ({"rewards": [0, 1e39]}, InvalidArgumentError,
         "`rewards` has 1e+39, which float32 cannot hold; its largest value is 3.4028235e+38"),
        ({"terminated": np.zeros(3, bool)}, InvalidArgumentError,
         f"`terminated` must have shape [2] {FLAGS}; got bool[3]"),
        ({"truncated": OBS[:, 0]}, InvalidArgumentError, f"`truncated` must have shape [2] {FLAGS}; got float32[2]"),
        ({"obs": OBS[:1]}, SignatureError,
         "column `obs` must have shape [2, ...] with 2 environments; got shape [1, 3]"),
        ({"obs": OBS.astype(float)}, SignatureError,
         "column `obs` must have float32[3] per environment, as before; got float64[3]"),
        ({"obs": {"x": OBS}}, SignatureError,
         "`obs` must have the structure of the first one; got {'x': *}, expected *, where * is an array"),
        ({"terminated": FIRST_ENDS, "info": {"final_obs": OBS}}, InvalidArgumentError, MODE_MISMATCH),
    ]  # fmt: skip
    for arguments, error, text in wrong:
        with raises(error, text):
            step(writer, extras=OBS, **arguments)
    for arguments in ({"actions": [[0], [1]]}, {"actions": [0, 1, 2]}, {"extras": None}, {"extras": OBS[:, :2]}):
        with pytest.raises(SignatureError):
            step(writer, **{"extras": OBS, **arguments})
    with raises(InvalidArgumentError, f"`mask` must have shape [2] {FLAGS}; got int64[2]"):
        writer.reset(OBS, mask=np.array([0, 1]))
    with raises(SignatureError, "column `obs` must have float32[3] per environment, as before; got float32[2]"):
        writer.reset(OBS[:, :2])
    assert len(buffer) == 2
    step(writer, OBS + 1, extras=OBS)
    assert sorted(buffer.sample(64).data["next_obs"][:, 0].tolist())[::63] == [0, 1]


def test_wrong_steps_of_some_environments_add_nothing():
    buffer, writer = writer_of()
    writer.reset(OBS)
    step(writer, terminated=FIRST_ENDS)
    with raises(SignatureError, "column `action` must have shape [2, ...] with 2 environments; got shape [3]"):
        step(writer, actions=[0, 1, 2])
    with raises(
        InvalidArgumentError,
        "environment 0 ended an episode in the step before, so with `autoreset_mode` NEXT_STEP this step resets it and "
        "cannot end an episode; check the `autoreset_mode` of the environments",
    ):
        step(writer, terminated=FIRST_ENDS)
    step(writer)
    assert len(buffer) == 3


def must_reset(env):
    return (
        f"environment {env} must be reset before this step: call `reset` of the environments, and then of this writer, "
        "with a mask of the environments that were reset (default: all)"
    )


@pytest.mark.parametrize("mode", MODES)
def test_environments_that_were_never_reset(mode):
    buffer, writer = writer_of(mode)
    writer.reset(OBS, mask=FIRST_ENDS)
    with raises(InvalidArgumentError, must_reset(1)):
        step(writer)
    writer.reset(OBS, mask=~FIRST_ENDS)
    step(writer)
    assert len(buffer) == 2


def test_environments_that_ended_must_be_reset_if_autoreset_is_disabled():
    buffer, writer = writer_of("DISABLED")
    writer.reset(OBS)
    step(writer, truncated=FIRST_ENDS)
    with raises(InvalidArgumentError, must_reset(0)):
        step(writer)
    writer.reset(OBS + 7, mask=FIRST_ENDS)
    step(writer)
    assert {0.0, 7.0} == set(buffer.sample(64).data["obs"][:, 0].tolist())


def test_final_observations_are_needed_with_same_step():
    buffer, writer = writer_of("SAME_STEP")
    writer.reset(OBS)
    with raises(
        InvalidArgumentError,
        '`info` must have "final_obs", the last observations of the episodes that ended (environment 0), because '
        "`autoreset_mode` is SAME_STEP; pass the `info` that `step` returned, or create the writer with the "
        "`autoreset_mode` of the environments",
    ):
        step(writer, terminated=FIRST_ENDS)
    assert len(buffer) == 0


def test_observations_are_copied():
    buffer, writer = writer_of()
    obs = OBS.copy()
    writer.reset(obs)
    obs[:] = 1
    step(writer, obs)
    obs[:] = 2
    step(writer, obs)
    data = buffer.sample(64).data
    assert {(a, b) for a, b in zip(data["obs"][:, 0], data["next_obs"][:, 0], strict=True)} == {(0, 1), (1, 2)}


def test_the_first_reset_of_a_writer_ends_the_episodes_of_an_earlier_one():
    buffer, first = writer_of(items=buffers.Transitions(n_step=3, discount=1.0))
    first.reset(OBS)
    step(first, OBS + 1)
    second = BufferWriter(buffer, 2, autoreset_mode="NEXT_STEP")
    second.reset(OBS + 5, mask=FIRST_ENDS)
    second.reset(OBS + 5, mask=~FIRST_ENDS)
    for number in (6, 7, 8):
        step(second, OBS + number)
    found = [(item["obs"][0], item["next_obs"][0], item["num_steps"]) for item in items_of(buffer)]
    assert sorted(found) == [(0, 1, 1), (0, 1, 1), (5, 8, 3), (5, 8, 3)]


MASKED = (
    "is a masked array, and its masked elements would be stored as if they were valid; pass `array.filled(value)`, "
)


@pytest.mark.parametrize("name", ["obs", "rewards", "terminated", "truncated"])
def test_masked_arrays_are_rejected(name):
    buffer, writer = writer_of()
    text, error = f"`{name}` must not be a masked array; pass `{name}.filled(value)` instead", InvalidArgumentError
    if name == "obs":
        text, error = f"column `obs` {MASKED}or its data and its mask as two columns", SignatureError
    masked = np.ma.masked_array(OBS if name == "obs" else NO, OBS == 0 if name == "obs" else FIRST_ENDS)
    if name == "obs":
        with raises(SignatureError, text):
            writer.reset(masked)
    writer.reset(OBS)
    with raises(error, text):
        writer.step(np.zeros(2), **{"obs": OBS, "rewards": [1, 2], "terminated": NO, "truncated": NO, name: masked})
    assert len(buffer) == 0
    step(writer)
    assert len(buffer) == 2


def test_masked_last_observations_are_rejected():
    buffer = ReplayBuffer(10, 2)
    writer = BufferWriter(buffer, 2, autoreset_mode="SAME_STEP")
    writer.reset(OBS)
    masked = np.ma.masked_array(OBS, OBS == 0)
    with raises(SignatureError, f"column `obs` {MASKED}or its data and its mask as two columns"):
        writer.step(np.zeros(2), OBS, [1, 2], FIRST_ENDS, NO, {"final_obs": masked})
    assert len(buffer) == 0


def test_a_writer_is_usable_after_a_first_reset_with_text():
    buffer, writer = writer_of()
    with raises(SignatureError, "column `obs` must be an array of numbers or a number; got text"):
        writer.reset(np.array(["a", "b"]))
    with raises(SignatureError, "column `obs/x` must be an array of numbers or a number; got a NoneType"):
        writer.reset({"x": None})
    writer.reset(OBS)
    step(writer)
    assert len(buffer) == 2


def test_repr():
    assert repr(writer_of()[1]) == "BufferWriter(num_envs=2, autoreset_mode='NEXT_STEP')"


def test_wrong_arguments_of_the_constructor():
    buffer = ReplayBuffer(10, 2)
    with raises(
        InvalidArgumentError,
        "`buffer` must have the number of environments of `envs`, 3; it has 2; create it with `num_envs=3`",
    ):
        BufferWriter(buffer, 3, autoreset_mode="DISABLED")
    with raises(InvalidArgumentError, "`buffer` must be an engram.buffers.ReplayBuffer; got 7 (int)"):
        BufferWriter(7, 2)
    with pytest.raises(InvalidArgumentError, match="`autoreset_mode` must be given"):
        BufferWriter(buffer, 2)
