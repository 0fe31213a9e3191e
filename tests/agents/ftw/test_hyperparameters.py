"""Hyperparameters: drawing, perturbing, and the published classes' validation."""

import logging

import numpy as np
import pytest
from helpers.support import raises
from scipy import stats

from engram.agents.ftw.hyperparameters import (
    FloatHyperparameter,
    HyperparametersContainer,
    IntHyperparameter,
    initialize_hypers,
)
from engram.agents.ftw.hypers import Hypers
from engram.errors import InvalidArgumentError

SEEDS = "a non-negative int, a sequence of these, a SeedSequence, a JAX key or None"
VALUES = {
    "learning_rate": 1e-3,
    "entropy_cost": 0.01,
    "reward_prediction_cost": 0.5,
    "pixel_control_cost": 0.05,
    "kld_prior_fixed_cost": 1e-3,
    "kld_prior_posterior_cost": 1e-2,
    "scale_grads_fast_to_slow": 0.5,
    "slow_core_period": 7,
    "internal_rewards": [0.5, 1.0],
}


def perturbed(hyperparameter, times):
    """Returns the ratio of each perturbed value to the one before."""
    ratios = []
    for _ in range(times):
        before = hyperparameter.get()
        hyperparameter.perturb()
        ratios.append(hyperparameter.get() / before)
    return np.array(ratios)


def test_floats_are_log_uniform():
    rng = np.random.default_rng(0)
    values = np.array([FloatHyperparameter((1e-5, 5e-3), seed=rng).get() for _ in range(2000)])
    low, high = np.log(1e-5), np.log(5e-3)
    assert stats.kstest(np.log(values), stats.uniform(low, high - low).cdf).pvalue > 0.01


def test_periods_are_uniform():
    rng = np.random.default_rng(0)
    values = np.array([IntHyperparameter(5, 20, seed=rng).get() for _ in range(3200)])
    counts = np.bincount(values, minlength=21)[5:]
    assert len(counts) == 16
    assert stats.chisquare(counts).pvalue > 0.01


def test_an_exact_float_and_an_exact_int_are_kept():
    assert FloatHyperparameter(0.3).get() == 0.3
    assert IntHyperparameter(5, 20, 3).get() == 3


@pytest.mark.parametrize("value", [0.4, -0.4])
def test_floats_change_by_at_most_20_percent_and_keep_their_sign(value):
    ratios = perturbed(FloatHyperparameter(value, seed=0), 300)
    assert ((ratios >= 0.8) & (ratios <= 1.2)).all()
    assert ratios.min() < 0.82
    assert ratios.max() > 1.18


def test_the_probability_decides_how_often_a_float_changes():
    assert (perturbed(FloatHyperparameter(0.4, 0.0, seed=0), 100) == 1).all()
    assert (perturbed(FloatHyperparameter(0.4, 1.0, seed=0), 100) != 1).all()
    assert 0.03 < np.mean(perturbed(FloatHyperparameter(0.4, 0.05, seed=0), 2000) != 1) < 0.07


def test_perturbed_ints_are_drawn_again():
    period = IntHyperparameter(5, 20, seed=0)
    values = {perturbed(period, 1)[0] and period.get() for _ in range(300)}
    assert values == set(range(5, 21))
    never = IntHyperparameter(5, 20, 9, 0.0, seed=0)
    assert (perturbed(never, 50) == 1).all()


def test_bounds_clip_perturbed_values():
    bounded = FloatHyperparameter(1.0, bounds=(0.0, 1.0), seed=0)
    ratios = perturbed(bounded, 100)
    assert bounded.get() <= 1
    assert (ratios <= 1 / 0.8).all()
    assert (ratios == 1).any()


@pytest.mark.parametrize("value", [3, "0.1", (1e-3, 1), [1e-3, 1e-2], (1e-2, 1e-3), (0.0, 1.0), (1e-3,), None])
def test_ranges_of_floats_are_checked(value):
    with raises(
        InvalidArgumentError,
        "`init_value_or_range` must be a float, or a tuple of two floats, 0 < low <= high; got"
        f" {value!r} ({type(value).__name__})",
    ):
        FloatHyperparameter(value)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: FloatHyperparameter(0.1, 1), "`perturb_probability` must be a float; got 1 (int)"),
        (lambda: FloatHyperparameter(0.1, 1.5), "`perturb_probability` must be from 0 to 1; got 1.5"),
        (lambda: FloatHyperparameter(0.1, 1.0, 2), "`perturb_max_pct_change` must be a float; got 2 (int)"),
        (lambda: FloatHyperparameter(float("nan")), "`init_value_or_range` must be a number; got nan"),
        (lambda: IntHyperparameter(5.0, 20), "`min_value` must be an integer; got 5.0 (float)"),
        (lambda: IntHyperparameter(5, "20"), "`max_value` must be an integer; got '20' (str)"),
        (lambda: IntHyperparameter(5, 4), "`max_value` must be at least 5; got 4"),
        (lambda: IntHyperparameter(5, 20, 7.5), "`initial_value` must be an integer; got 7.5 (float)"),
        (lambda: IntHyperparameter(5, 20, None, -0.1), "`perturb_probability` must be from 0 to 1; got -0.1"),
        (lambda: FloatHyperparameter(0.1).set("x"), "`value` must be a number; got 'x' (str)"),
        (lambda: IntHyperparameter(5, 20).set(7.5), "`value` must be an integer; got 7.5 (float)"),
        (lambda: IntHyperparameter(5, 20, lowest=1).set(0), "`value` must be at least 1; got 0"),
        (lambda: IntHyperparameter(0, 20, lowest=1), "`min_value` must be at least 1; got 0"),
        (lambda: initialize_hypers()["slow_core_period"].set(0), "`value` must be at least 1; got 0"),
        (lambda: initialize_hypers((5, 20), 0), "`initial_value` must be at least 1; got 0"),
        (
            lambda: initialize_hypers((5, 10, 20)),
            "`slow_core_period_min_max` must be a tuple of two ints; got (5, 10, 20)",
        ),
        (lambda: initialize_hypers((0, 10)), "`slow_core_period_min_max` must be at least 1; got 0"),
        (lambda: FloatHyperparameter(0.1, seed="x"), f"`seed`: not a seed; got 'x', expected {SEEDS}"),
    ],
)
def test_arguments_are_checked(make, text):
    with raises(InvalidArgumentError, text):
        make()


def test_a_container_reads_and_sets_values_by_name(caplog):
    container = HyperparametersContainer(initialize_hypers(seed=0))
    container.set({"learning_rate": 1e-4, "period": 6, "unknown": 3})
    assert container.get()["learning_rate"] == 1e-4
    assert container.get()["slow_core_period"] == 6
    assert "unknown" not in container.get()
    with caplog.at_level(logging.INFO):
        container.set({"entropy_cost": 0.5, "unknown": 3}, verbose=True)
    assert [record.message for record in caplog.records] == ["set entropy_cost = 0.5", "ignored unknown = 3"]


def test_a_container_sets_all_values_or_none():
    container = HyperparametersContainer(initialize_hypers(seed=0))
    before = container.get()
    with raises(InvalidArgumentError, "`values['entropy_cost']`: `value` must be a number; got None"):
        container.set({"learning_rate": 0.1, "entropy_cost": None})
    assert container.get() == before


def test_a_container_perturbs_all():
    container = HyperparametersContainer(initialize_hypers(learning_rate=1e-3, seed=0))
    before = container.get()
    for _ in range(3):  # the period may be drawn as it was
        container.perturb()
    assert all(value != before[name] for name, value in container.get().items())


def test_the_period_has_two_names_and_is_iterated_once():
    hypers = initialize_hypers(seed=0)
    assert hypers["period"] is hypers["slow_core_period"]
    assert "period" in hypers
    assert hypers.get("period") is hypers["period"]
    assert list(hypers) == [name for name in hypers if name != "period"]
    assert set(hypers) == set(VALUES) - {"internal_rewards"}
    assert len(hypers) == 8


def test_only_an_exact_period_is_not_perturbed():
    hypers = initialize_hypers(slow_core_period_init_value=7, learning_rate=1e-3, seed=0)
    for _ in range(20):
        hypers["slow_core_period"].perturb()
        hypers["learning_rate"].perturb()
    assert hypers["slow_core_period"].get() == 7
    assert hypers["learning_rate"].get() != 1e-3


def test_the_factor_of_the_gradients_stays_at_most_one():
    hypers = initialize_hypers(scale_grads_fast_to_slow=1.0, seed=0)
    for _ in range(100):
        hypers["scale_grads_fast_to_slow"].perturb()
        assert 0 <= hypers["scale_grads_fast_to_slow"].get() <= 1


def test_equal_seeds_draw_equal_values_and_each_value_has_its_own_stream():
    def values(seed):
        return HyperparametersContainer(initialize_hypers(seed=seed)).get()

    assert values(1) == values(1) == values(np.random.SeedSequence(1))
    assert values(1) != values(2)
    same_range = initialize_hypers(entropy_cost=(0.1, 1.0), pixel_control_cost=(0.1, 1.0), seed=0)
    assert same_range["entropy_cost"].get() != same_range["pixel_control_cost"].get()


@pytest.mark.jax
def test_a_seed_may_be_a_key_of_jax():
    import jax  # noqa: PLC0415, an extra, not needed to collect the tests

    first, second, other = (FloatHyperparameter((0.1, 1.0), seed=jax.random.key(n)).get() for n in (1, 1, 2))
    assert first == second != other


def test_hypers_convert_values_to_the_types_of_their_fields():
    hypers = Hypers.create(**VALUES | {"learning_rate": np.float32(0.5), "max_abs_reward": None, "discount": 1})
    assert type(hypers.learning_rate) is float
    assert type(hypers.discount) is float
    assert hypers.max_abs_reward == float("inf")
    assert hypers.max_gradient_norm == 1e10
    assert hypers.replace({"period": 9}).slow_core_period == 9
    assert Hypers.create(**VALUES | {"slow_core_period": (16, 4)}).slow_core_period == (16, 4)
    np.testing.assert_array_equal(hypers.replace({"internal_rewards": [1, 2]}).internal_rewards, [1.0, 2.0])


@pytest.mark.jax
def test_new_values_need_no_compilation():
    import jax  # noqa: PLC0415, an extra, not needed to collect the tests

    traces = []

    @jax.jit
    def step(hypers):
        traces.append(hypers)
        return sum(leaf.sum() for leaf in jax.tree.leaves(hypers))

    hypers = Hypers.create(**VALUES)
    for name in Hypers._fields:
        value = np.asarray(getattr(hypers, name)) * 2
        step(hypers)
        hypers = hypers.replace({name: value.tolist() if value.ndim else value[()]})
    step(hypers)
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"internal_rewards": [1.0]},
            "`internal_rewards`: the number of values is fixed; got the shape (1,), expected (2,)",
        ),
        (
            {"slow_core_period": (3, 4)},
            "`slow_core_period`: the number of values is fixed; got the shape (2,), expected ()",
        ),
        ({"slow_core_period": 0}, "`slow_core_period` must be at least 1; got 0"),
        ({"internal_rewards": "x"}, "`internal_rewards` must be finite numbers [E]; got 'x'"),
        ({"internal_rewards": [1.0, np.nan]}, "`internal_rewards` must be finite numbers [E]; got [1.0, nan]"),
        ({"learning_rate": None}, "`learning_rate` must be a number; got None"),
        ({"discount": np.inf}, "`discount` must be finite; got inf"),
        ({"learning_rate_decay_steps": 1.5}, "`learning_rate_decay_steps` must be an integer; got 1.5 (float)"),
        (
            {"lerning_rate": 1.0},
            f"hyperparameters: unknown lerning_rate; expected some of {', '.join(Hypers._fields)}",
        ),
    ],
)
def test_new_values_are_checked(change, text):
    with raises(InvalidArgumentError, text):
        Hypers.create(**VALUES).replace(change)


def test_missing_values_are_named():
    with raises(InvalidArgumentError, "hyperparameters: no value for entropy_cost, internal_rewards"):
        Hypers.create(**{k: v for k, v in VALUES.items() if k not in {"entropy_cost", "internal_rewards"}})
