"""Calls that are wrong raise an error and store nothing: the same call can be repeated once it is right."""

import gymnasium
import numpy as np
import pytest
from helpers.support import raises
from helpers.vector_envs import Scripted, vector_of

import engram
from engram.buffers import ReplayBuffer
from engram.errors import ClosedError, InvalidArgumentError, PriorityError, SignatureError, UnknownTableError
from engram.gymnasium import BufferWriter, Episodes, Sequences, Transitions, VectorWriter

OBS = np.zeros((2, 3), np.float32)
REWARDS = np.zeros(2)
NO = np.zeros(2, bool)
FIRST_ENDS = np.array([True, False])
ACTIONS = np.zeros(2, np.int64)
MODE_MISMATCH = (
    '`info` has "final_obs", which only environments with `autoreset_mode` SAME_STEP return; create the writer with '
    "the `autoreset_mode` of the environments"
)
ITEMS = [Transitions("replay", discount=0.5)]


def open_writer(store, mode="NEXT_STEP", items=ITEMS, **options):
    return VectorWriter(store, 2, items, autoreset_mode=mode, **options)


def step(  # noqa: PLR0917, what a step returns
    writer, obs=OBS, actions=ACTIONS, rewards=REWARDS, terminated=NO, truncated=NO, info=None, **kwargs
):
    writer.step(actions, obs, rewards, terminated, truncated, info, **kwargs)


def test_step_before_reset(open_store):
    with open_writer(open_store(engram.Table("replay"))) as writer:
        text = "`reset` must be called before `step`, with the observations that `reset` of the environments returned"
        with raises(InvalidArgumentError, text):
            step(writer)


def test_environments_must_be_a_vector_or_a_number(open_store):
    store, buffer = open_store(engram.Table("replay")), ReplayBuffer(100, 2)
    env = gymnasium.make("CartPole-v1")
    text = (
        "`envs` must be a vector environment, such as gymnasium.make_vec(...), or the number of environments; got "
        f"{env!r}"
    )
    for make in (lambda envs: VectorWriter(store, envs, ITEMS), lambda envs: BufferWriter(buffer, envs)):
        with raises(InvalidArgumentError, text):
            make(env)
        with raises(InvalidArgumentError, "`envs` must be at least 1; got 0"):
            make(0)


def must_reset(env):
    return (
        f"environment {env} must be reset before this step: call `reset` of the environments, and then of this writer, "
        "with a mask of the environments that were reset (default: all)"
    )


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_environments_that_were_never_reset(mode, open_store):
    store = open_store(engram.Table("replay"))
    with open_writer(store, mode) as writer:
        writer.reset(OBS, mask=FIRST_ENDS)
        for _ in range(2):
            with raises(InvalidArgumentError, must_reset(1)):
                step(writer, actions=np.zeros(2, np.int32))
        writer.reset(OBS, mask=~FIRST_ENDS)
        step(writer)  # the columns are those of the first step that is stored
    assert store.info()["replay"].size == 2


def test_environments_that_ended_must_be_reset_if_autoreset_is_disabled(open_store):
    store = open_store(engram.Table("replay"))
    with open_writer(store, "DISABLED") as writer:
        writer.reset(OBS)
        step(writer, truncated=FIRST_ENDS)
        with raises(InvalidArgumentError, must_reset(0)):
            step(writer)
        writer.reset(OBS + 7, mask=FIRST_ENDS)
        step(writer, obs=OBS + 8)
    assert store.info()["replay"].size == 4
    obs = store.sample("replay", 64).data["obs"]
    assert {0.0, 7.0} == set(obs[:, 0].tolist())


def test_wrong_arguments_of_a_step_store_nothing(open_store):
    store = open_store(engram.Table("replay"))
    with open_writer(store) as writer:
        writer.reset(OBS)
        step(writer)
        per_env = "one entry per environment"
        same_columns = "all steps of a writer must have the same columns"
        is_list = (
            "`action` is a list of 2 numbers, and each would be a column of its own; wrap it in numpy.asarray to store "
            "one array column, or use a dict or a named tuple if one column per number is meant"
        )
        wrong = [
            ({"rewards": REWARDS[:1]}, InvalidArgumentError,
             "`rewards` must have shape [2], one number per environment; got float64[1]"),
            ({"rewards": REWARDS + 1j}, InvalidArgumentError,
             "`rewards` must have shape [2], one number per environment; got complex128[2]"),
            ({"terminated": np.zeros(3, bool)}, InvalidArgumentError,
             f"`terminated` must have shape [2] and dtype bool, {per_env}; got bool[3]"),
            ({"truncated": REWARDS}, InvalidArgumentError,
             f"`truncated` must have shape [2] and dtype bool, {per_env}; got float64[2]"),
            ({"rewards": None}, InvalidArgumentError,
             "`rewards` must have shape [2], one number per environment; got None"),
            ({"rewards": REWARDS + 1e39}, InvalidArgumentError,
             "`rewards` has 1e+39, which float32 cannot hold; its largest value is 3.4028235e+38"),
            ({"rewards": np.ma.masked_array(REWARDS, FIRST_ENDS)}, InvalidArgumentError,
             "`rewards` must not be a masked array; pass `rewards.filled(value)` instead"),
            ({"truncated": None}, InvalidArgumentError,
             f"`truncated` must have shape [2] and dtype bool, {per_env}; got None"),
            ({"obs": OBS[:1]}, SignatureError,
             "column `obs` must have shape [2, ...] with 2 environments; got shape [1, 3]"),
            ({"obs": np.zeros((2, 3))}, SignatureError,
             "column `obs` must have float32[3] per environment, as before; got float64[3]"),
            ({"obs": {"x": OBS}}, SignatureError, f"{same_columns}, `obs`; got `obs/x`"),
            ({"actions": [0, 1]}, SignatureError, is_list),
            ({"actions": np.zeros((2, 1), np.int64)}, SignatureError,
             "column `action` must have int64[] per environment, as before; got int64[1]"),
            ({"extras": OBS}, InvalidArgumentError, "`extras` must be given at every step or at none"),
            ({"terminated": FIRST_ENDS, "info": {"final_obs": OBS}}, InvalidArgumentError,
             MODE_MISMATCH),
        ]  # fmt: skip
        for arguments, error, text in wrong:
            with raises(error, text):
                step(writer, **arguments)
        with raises(SignatureError, "column `obs` must have float32[3] per environment, as before; got float32[2]"):
            writer.reset(OBS[:, :2])
        with raises(InvalidArgumentError, f"`mask` must have shape [2] and dtype bool, {per_env}; got int64[2]"):
            writer.reset(OBS, mask=ACTIONS)
        step(writer, rewards=np.array([np.nan, 1], np.float32))
    assert store.info()["replay"].size == 4
    rewards = store.sample("replay", 64).data["reward"]
    assert rewards.dtype == np.float32
    assert np.isnan(rewards).any()


def test_an_episode_cannot_end_while_it_is_reset(open_store):
    with open_writer(open_store(engram.Table("replay"))) as writer:
        writer.reset(OBS)
        step(writer, terminated=FIRST_ENDS)
        text = (
            "environment 0 ended an episode in the step before, so with `autoreset_mode` NEXT_STEP this step resets it "
            "and cannot end an episode; check the `autoreset_mode` of the environments"
        )
        with raises(InvalidArgumentError, text):
            step(writer, terminated=FIRST_ENDS)


def objects(*values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


def test_final_observations_that_are_missing_or_differ(open_store):
    store = open_store(engram.Table("replay"))
    with open_writer(store, "SAME_STEP") as writer:
        writer.reset(OBS)
        needed = (
            '`info` must have "final_obs", the last observations of the episodes that ended (environment 0), because '
            "`autoreset_mode` is SAME_STEP; pass the `info` that `step` returned, or create the writer with the "
            "`autoreset_mode` of the environments"
        )
        missing = (
            '`info["final_obs"]` has no observation of environment 0, whose episode ended in this step; pass the '
            "`info` that `step` returned"
        )
        structure = (
            """`info["final_obs"]` must have the structure of `obs`; got {'x': *}, expected *, where * is an array"""
        )
        for info, text in [
            (None, needed),
            ({}, needed),
            ({"final_obs": objects(None, OBS[0])}, missing),
            ({"final_obs": OBS, "_final_obs": NO}, missing),
            ({"final_obs": objects({"x": OBS[0]}, None)}, structure),
            ({"final_obs": {"x": OBS}}, structure),
        ]:
            with raises(InvalidArgumentError, text):
                step(writer, terminated=FIRST_ENDS, info=info)
        step(writer, obs=OBS + 1, terminated=FIRST_ENDS, info={"final_obs": OBS + 9})  # arrays of all environments
        step(writer, obs=OBS + 2)
    assert store.info()["replay"].size == 4
    data = store.sample("replay", 64).data
    pairs = set(zip(data["obs"][:, 0].tolist(), data["next_obs"][:, 0].tolist(), strict=True))
    assert pairs == {(0.0, 9.0), (0.0, 1.0), (1.0, 2.0)}


@pytest.mark.parametrize("kind", [VectorWriter, BufferWriter])
def test_last_observations_that_do_not_fit_are_refused(open_store, kind):
    obs = np.zeros((2, 3), np.uint8)
    missing = (
        '`info["final_obs"]` has no observation of environment 0, whose episode ended in this step; pass the `info` '
        "that `step` returned"
    )
    length = (
        '`info["{}"]` must have one element for each of the 2 environments; got {}; pass the `info` that `step` '
        "returned"
    )
    expected = '`info["final_obs"]` must have uint8[3] per environment, as column `obs` has; got {}'
    beyond = '`info["final_obs"]`: column `obs` has 300, which uint8 cannot hold'
    wrong = [
        ({"final_obs": objects(np.array([300, 1, 5], np.uint16), None)}, beyond),
        ({"final_obs": np.full((2, 3), 300)}, beyond),
        ({"final_obs": objects(np.zeros(2, np.uint8), None)}, expected.format("uint8[2]")),
        ({"final_obs": np.zeros((2, 3), np.float32)}, expected.format("float32[3]")),
        ({"final_obs": objects(obs[0], obs[1]), "_final_obs": NO}, missing),
        ({"final_obs": objects(obs[0], obs[1]), "_final_obs": [False, True]}, missing),
        ({"final_obs": objects(obs[0], obs[1]), "_final_obs": FIRST_ENDS[:1]}, length.format("_final_obs", 1)),
        ({"final_obs": objects(obs[0])}, length.format("final_obs", 1)),
        ({"final_obs": [obs[0], None, None]}, length.format("final_obs", 3)),
        ({"final_obs": np.zeros((3, 3), np.uint8)}, length.format("final_obs", 3)),
        ({"final_obs": obs[:1]}, length.format("final_obs", 1)),
    ]
    store, buffer = open_store(engram.Table("replay")), ReplayBuffer(100, 2)
    options = {"autoreset_mode": "SAME_STEP"}
    writer = VectorWriter(store, 2, ITEMS, **options) if kind is VectorWriter else BufferWriter(buffer, 2, **options)
    writer.reset(obs)
    for info, text in wrong:
        with raises(InvalidArgumentError, text):
            step(writer, obs, terminated=FIRST_ENDS, info=info)
    step(writer, obs, terminated=FIRST_ENDS, info={"final_obs": objects(np.int64([7, 7, 7]), None)})
    info = {"final_obs": objects(obs[0] + 9, None), "_final_obs": FIRST_ENDS}
    step(writer, obs, terminated=FIRST_ENDS, info=info)
    if kind is VectorWriter:
        writer.flush()
        data = store.sample("replay", 64).data
    else:
        data = buffer.sample(64).data
    assert (data["next_obs"].dtype, set(data["next_obs"][:, 0].tolist())) == (np.uint8, {0, 7, 9})


@pytest.mark.parametrize("kind", [VectorWriter, BufferWriter])
def test_numbers_as_last_observations_must_be_in_range(open_store, kind):
    obs, options = np.zeros(2, np.uint8), {"autoreset_mode": "SAME_STEP"}
    store, buffer = open_store(engram.Table("replay")), ReplayBuffer(100, 2)
    writer = VectorWriter(store, 2, ITEMS, **options) if kind is VectorWriter else BufferWriter(buffer, 2, **options)
    writer.reset(obs)
    with raises(InvalidArgumentError, '`info["final_obs"]`: column `obs` has 300, which uint8 cannot hold'):
        step(writer, obs, terminated=FIRST_ENDS, info={"final_obs": objects(300, None)})
    step(writer, obs, terminated=FIRST_ENDS, info={"final_obs": objects(255, None)})


def test_an_unknown_table_is_noticed_at_construction(open_store):
    store = open_store(engram.Table("replay"))
    items = [Transitions("replay", discount=0.5), Transitions("other", discount=0.5)]
    with raises(UnknownTableError, "no table `other`; known tables: `replay`"):
        open_writer(store, items=items)


@pytest.mark.parametrize("kind", [VectorWriter, BufferWriter])
def test_until_the_first_step_a_reset_may_have_other_columns(open_store, kind):
    store, buffer = open_store(engram.Table("replay")), ReplayBuffer(100, 2)
    writer = open_writer(store) if kind is VectorWriter else BufferWriter(buffer, 2, autoreset_mode="NEXT_STEP")
    writer.reset({"x": OBS})
    writer.reset(np.zeros((2, 3)))
    with raises(SignatureError, "column `obs` must have float64[3] per environment, as before; got float32[3]"):
        step(writer)
    with raises(SignatureError, "column `obs` must have float64[3] per environment, as before; got float32[3]"):
        writer.reset(OBS, mask=FIRST_ENDS)
    writer.reset(OBS + 1)
    writer.reset(OBS + 2, mask=FIRST_ENDS)
    step(writer)
    with raises(SignatureError, "column `obs` must have float32[3] per environment, as before; got float64[3]"):
        writer.reset(np.zeros((2, 3)))
    if kind is VectorWriter:
        writer.flush()
    data = (store.sample("replay", 64) if kind is VectorWriter else buffer.sample(64)).data["obs"]
    assert (data.dtype, set(data[:, 0].tolist())) == (np.float32, {1, 2})


def test_errors_of_the_first_step_leave_the_writer_usable(open_store):
    store = open_store(engram.Table("replay", signature={"obs": engram.ArraySpec((3,), "float32")}))
    with open_writer(store) as writer:
        writer.reset(OBS)
        with pytest.raises(SignatureError):
            step(writer)
    store.create_table(engram.Table("per", sampler=engram.selectors.Prioritized()))
    with open_writer(store, items=[Transitions("per", discount=0.5, priority=-1)]) as writer:
        writer.reset(OBS)
        with pytest.raises(PriorityError):
            step(writer)
    assert store.info()["replay"].size == 0


def test_cut_sequences_need_a_signature_of_any_length():
    store = engram.Store(
        [engram.Table("t", signature=Sequences("t", length=4).signature(vector_of([Scripted(0, [3])], "DISABLED")[0]))]
    )
    with VectorWriter(store, 1, [Episodes("t", max_length=4)], autoreset_mode="DISABLED") as writer:
        writer.reset(OBS[:1])
        with pytest.raises(SignatureError):
            step(writer, OBS[:1], ACTIONS[:1], REWARDS[:1], NO[:1], NO[:1])


def test_text_is_rejected():
    store = engram.Store([engram.Table("replay")])
    with open_writer(store) as writer:
        text = "column `obs` has text, which a vector writer does not store; encode it as numbers"
        with raises(SignatureError, text):
            writer.reset(np.array(["a", "b"]))


def test_a_closed_store_is_reported_before_the_next_step(open_store):
    store = open_store(engram.Table("replay"))
    writer = open_writer(store, chunk_length=1)
    writer.reset(OBS)
    step(writer)
    store.close()
    with pytest.raises(ClosedError):
        for _ in range(100):
            step(writer)
            writer.flush()


def test_arguments_of_the_writer():
    store = engram.Store([engram.Table("replay")])
    envs, _ = vector_of([Scripted(0, [3])], "SAME_STEP")
    with raises(
        InvalidArgumentError,
        '`autoreset_mode` must be given, because `envs` has no metadata["autoreset_mode"]: "NEXT_STEP", "SAME_STEP" or '
        '"DISABLED", as the environments were created with',
    ):
        VectorWriter(store, 2, ITEMS)
    with raises(
        InvalidArgumentError,
        '`autoreset_mode` must be a gymnasium.vector.AutoresetMode, "NEXT_STEP", "SAME_STEP" or "DISABLED"; got '
        "'LATER'",
    ):
        VectorWriter(store, 2, ITEMS, autoreset_mode="LATER")
    with raises(
        InvalidArgumentError, "`autoreset_mode` must be that of `envs`, SAME_STEP; got NEXT_STEP; leave it out"
    ):
        VectorWriter(store, envs, ITEMS, autoreset_mode="NextStep")
    with raises(InvalidArgumentError, "`items` must be a sequence, such as [Transitions(...)]; got a single one"):
        VectorWriter(store, envs, ITEMS[0])
    with raises(
        InvalidArgumentError, "`items` must contain at least one of Transitions, Sequences and Episodes; got none"
    ):
        VectorWriter(store, envs, [])
    with raises(InvalidArgumentError, "Transitions for table `t`: `n_step` must be at least 1; got 0"):
        Transitions("t", n_step=0, discount=0.9)
    with raises(InvalidArgumentError, "Transitions for table `t`: `n_step` must be at most 10000; got 1000000000"):
        Transitions("t", n_step=10**9, discount=0.9)
    with raises(InvalidArgumentError, "Transitions for table `t`: `discount` must be from 0 to 1; got 2"):
        Transitions("t", discount=2)
    with raises(InvalidArgumentError, "Sequences for table `t`: `length` must be at least 1; got 0"):
        Sequences("t", length=0)
    with raises(
        InvalidArgumentError, 'Sequences for table `t`: `at_end` must be "pad", "cut" or "drop"; got \'x\' (str)'
    ):
        Sequences("t", length=2, at_end="x")
    with raises(InvalidArgumentError, "Episodes for table `t`: `max_length` must be at least 1; got 0"):
        Episodes("t", max_length=0)
    with pytest.raises(
        InvalidArgumentError, match=r"`envs` must be a vector environment with `single_observation_space`"
    ):
        ITEMS[0].signature(3)
    with VectorWriter(store, envs, ITEMS) as writer:
        assert (
            repr(writer) == "VectorWriter(num_envs=1, autoreset_mode='SAME_STEP', tables=['replay'], pending_items=0)"
        )


def test_items_of_buffers_are_rejected(open_store):
    text = (
        "each of `items` must be a Transitions, Sequences or Episodes of engram.gymnasium, which has a `table`, and "
        "not of engram.buffers; got Transitions(n_step=3, discount=0.5) (Transitions)"
    )
    with raises(InvalidArgumentError, text):
        open_writer(open_store(engram.Table("replay")), items=[engram.buffers.Transitions(n_step=3, discount=0.5)])


def test_a_vector_writer_needs_tables():
    buffer = ReplayBuffer(100, 2)
    text = (
        "`store` must be an engram.Store or a client of servers (for an engram.buffers.ReplayBuffer, use a "
        f"BufferWriter); got {buffer!r} (ReplayBuffer)"
    )
    with raises(InvalidArgumentError, text):
        open_writer(buffer)


@pytest.mark.parametrize("info", [{}, {"x": np.zeros(2), "_x": NO}])
@pytest.mark.parametrize("of_buffer", [False, True])
def test_what_reset_of_the_environments_returns_must_be_unpacked(open_store, of_buffer, info):
    store = open_store(engram.Table("replay"))
    writer = BufferWriter(ReplayBuffer(100, 2), 2, autoreset_mode="NEXT_STEP") if of_buffer else open_writer(store)
    text = (
        "`obs` must be observations; got a pair of observations and info, as `reset` of the environments returns; "
        "unpack it: `writer.reset(*envs.reset())`"
    )
    with raises(InvalidArgumentError, text):
        writer.reset((OBS, info))
    writer.reset((OBS, {"position": OBS}))  # an observation that is a pair
    step(writer, (OBS, {"position": OBS}))
