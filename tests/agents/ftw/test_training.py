import dataclasses

import jax
import numpy as np
import pytest
from helpers import ftw_agent

from engram.agents.ftw.config import CUE, FETCH, FtwConfig
from engram.agents.ftw.environment import make_environment
from engram.agents.ftw.learner import learner_step
from engram.agents.ftw.training import evaluate_run, start, train
from engram.errors import InvalidArgumentError

pytestmark = [pytest.mark.jax, pytest.mark.usefixtures("quick_compilation")]

TINY = FtwConfig(
    environment="fetch",
    num_envs=4,
    max_frames=300,
    network=ftw_agent.network_config(conv_filters=((4, 6, 6),)),
    replay=ftw_agent.replay_config(max_queue_size=16),
    hypers=ftw_agent.HYPERS,
    evaluation_episodes=6,
)


@pytest.fixture(scope="module")
def trained():
    """The reports and the result of a run."""
    reports = []
    return reports, train(TINY, reports.append)


def test_a_run_reports_each_learner_step_and_returns_its_result(trained):
    reports, result = trained
    assert result.config == TINY
    assert TINY.max_frames <= result.frames < TINY.max_frames + TINY.num_envs
    assert [report.learner_steps for report in reports] == list(range(1, result.learner_steps + 1))
    assert reports[-1].frames <= result.frames
    assert len(result.evaluation) == 6
    assert set(result.evaluation) <= {0.0, 1.0}
    assert 0 < reports[0].seconds <= reports[-1].seconds <= result.seconds
    # An episode has 25 steps at most.
    assert sum(len(report.returns) for report in reports) >= (reports[-1].frames - 100) // 25
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))


def test_auxiliary_tasks_begin_when_their_tables_have_a_batch_without_another_compilation(trained):
    reports, _ = trained
    assert reports[0].metrics.losses.reward_prediction_loss == 0
    assert reports[-1].metrics.losses.reward_prediction_loss > 0
    assert reports[-1].metrics.losses.pixel_control_loss > 0
    compiled = learner_step._cache_size()
    train(dataclasses.replace(TINY, max_frames=30, seed=9))
    assert learner_step._cache_size() == compiled


def test_a_seed_determines_a_run(trained):
    _, expected = trained
    same, other = (train(dataclasses.replace(TINY, seed=seed)) for seed in (0, 1))
    jax.tree.map(np.testing.assert_array_equal, same.params, expected.params)
    assert same.evaluation == expected.evaluation
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (other.params, expected.params)), strict=True))


def test_weights_actions_and_environments_depend_on_the_seed():
    runs = [start(dataclasses.replace(TINY, seed=seed)) for seed in (0, 0, 1)]
    keys = [(run.learner.state.key, run.actors._state.key) for run in runs]
    starts = [jax.tree.leaves(run.learner.params)[0] for run in runs]
    frames = [run.actors._timestep.observation.observation for run in runs]
    for run in runs:
        run.actors.close()
        run.replay.close()
    keys = [np.array(jax.tree.map(jax.random.key_data, each)) for each in keys]
    for same, equal, other in (keys, starts, frames):
        assert (same == equal).all()
        assert (same != other).any()


@pytest.mark.usefixtures("trained")  # so that nothing is compiled here
def test_batches_wait_until_the_queue_has_one():
    run = start(TINY)
    with run.replay, run.actors:
        sizes = []
        while not run.replay.can_sample_queue():
            run.actors.step(run.learner.params, run.learner.hypers)
            sizes.append(run.replay.store.info()["queue"].size)
    assert max(sizes[:-1]) < TINY.replay.batch_size <= sizes[-1]


@pytest.mark.usefixtures("trained")
def test_an_evaluation_can_be_repeated():
    run = start(TINY)
    with run.replay, run.actors:
        first, again = evaluate_run(TINY, run), evaluate_run(TINY, run)
    assert first == again
    assert len(first) == 6


def test_environments_have_the_agents_spec():
    for name, actions in (("fetch", 3), ("cue", 2)):
        environment, spec = make_environment(name, [1, 2, 3])
        observation = environment.reset().observation
        assert (environment.num_envs, spec.num_actions, spec.num_events) == (3, actions, 1)
        for part, zero in zip(observation, spec.zeros(), strict=True):
            assert (part.shape[1:], part.dtype) == (zero.shape, zero.dtype)


def test_an_unknown_environment_is_rejected():
    with pytest.raises(InvalidArgumentError, match='`environment` must be "fetch" or "cue"; got'):
        make_environment("pong", [0])


def test_a_queue_in_which_actors_and_learner_would_wait_for_each_other_is_rejected():
    replay = ftw_agent.replay_config(max_queue_size=10)
    message = "`max_queue_size` must be at least 11, for `batch_size` 4 and `num_envs` 4; got 10"
    with pytest.raises(InvalidArgumentError, match=message):
        dataclasses.replace(TINY, replay=replay)
    with pytest.raises(InvalidArgumentError, match="`num_envs` must be at least 1; got 0"):
        dataclasses.replace(TINY, num_envs=0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_fetch_is_solved():
    result = train(dataclasses.replace(FETCH, max_frames=60_000))  # half of the preset's, which is enough
    assert np.mean(result.evaluation) >= 0.8


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("memory", [True, False])
def test_cue_is_solved_by_memory(memory):
    network = dataclasses.replace(CUE.network, memory=memory)
    result = train(dataclasses.replace(CUE, network=network, max_frames=40_000))  # half of the preset's
    solved = np.mean(np.array(result.evaluation) > 0)
    assert solved >= 0.95 if memory else solved <= 0.6
