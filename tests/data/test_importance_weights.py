"""Importance weights of a dataset's elements."""

import importlib
from itertools import islice, product

import numpy as np
import pytest
from helpers.support import raises

from engram import Table, selectors
from engram.errors import InvalidArgumentError

PRIORITIES = np.array([0.5, 1.0, 2.0, 0.0, 4.0])
EXPONENT = 0.6
BETA = 0.4
NORMALIZE = ("batch", "table", None)

ALL_FRAMEWORKS = pytest.mark.parametrize(
    "framework",
    [
        "numpy",
        pytest.param("torch", marks=[pytest.mark.frameworks, pytest.mark.torch]),
        pytest.param("jax", marks=pytest.mark.jax),
        pytest.param("tensorflow", marks=pytest.mark.frameworks),
    ],
)


@pytest.fixture
def filled(open_store):
    """A store whose table `t` has one item of two steps for each of `PRIORITIES`; its data is the item's number."""
    store = open_store(Table("t", sampler=selectors.Prioritized(EXPONENT)))
    for i, priority in enumerate(PRIORITIES):
        store.insert({"x": np.full(2, i)}, {"t": priority}, time_axis=True)
    return store


def dataset(framework, *args, **options):
    return importlib.import_module(f"engram.data.{framework}").dataset(*args, **options)


def expected(items, normalize):
    """The weights of these items; there are five, one of which cannot be drawn."""
    mass = np.where(PRIORITIES > 0, PRIORITIES**EXPONENT, 0.0)
    weights = (mass.sum() / (4 * mass[np.ravel(items)])) ** BETA
    largest = {"batch": weights.max(), "table": (mass.sum() / (4 * mass[mass > 0].min())) ** BETA, None: 1.0}
    return weights / largest[normalize]


@ALL_FRAMEWORKS
def test_weights_of_a_batch_follow_their_definition(filled, framework):
    for steps, normalize in product((False, True), NORMALIZE):
        for element in islice(dataset(framework, filled, "t", batch_size=16, steps=steps), 4):
            weights = element.importance_weights(BETA, normalize=normalize)
            items = np.asarray(element.data["x"]).reshape(16, -1)[:, 0]
            assert (np.asarray(weights).dtype, tuple(weights.shape)) == (np.float32, (16,)), (steps, normalize)
            case = f"steps={steps}, normalize={normalize}"
            np.testing.assert_allclose(weights, expected(items, normalize), rtol=1e-5, err_msg=case)


@ALL_FRAMEWORKS
def test_weights_of_single_elements_follow_their_definition(filled, framework):
    for steps in (False, True):
        for element in islice(dataset(framework, filled, "t", steps=steps), 8):
            item = np.ravel(np.asarray(element.data["x"]))[:1]
            for normalize in ("table", None):
                weight = element.importance_weights(BETA, normalize=normalize)
                assert (np.asarray(weight).dtype, tuple(weight.shape)) == (np.float32, ()), (steps, normalize)
                case = f"steps={steps}, normalize={normalize}"
                np.testing.assert_allclose(weight, expected(item, normalize)[0], rtol=1e-5, err_msg=case)


def test_defaults_are_those_of_a_batch(filled):
    [element] = dataset("numpy", filled, "t", batch_size=8, max_batches=1)
    np.testing.assert_allclose(element.importance_weights(BETA), expected(element.data["x"][:, 0], "batch"), rtol=1e-5)
    np.testing.assert_array_equal(element.importance_weights(), element.importance_weights(1.0, normalize="batch"))


def test_a_single_element_has_no_largest_weight(filled):
    [element] = dataset("numpy", filled, "t", max_batches=1)
    text = (
        '`normalize` is "batch", and this element has no batch, so its weight would always be 1; give '
        '`normalize="table"` or None, or a `batch_size` to the dataset'
    )
    with raises(InvalidArgumentError, text):
        element.importance_weights(BETA)


@pytest.mark.parametrize(
    ("beta", "normalize", "text"),
    [
        (np.nan, None, "`beta` must be a number; got nan"),
        (1.0, "mean", '`normalize` must be "batch", "table" or None; got \'mean\' (str)'),
    ],
)
def test_bad_arguments_are_rejected(filled, beta, normalize, text):
    [element] = dataset("numpy", filled, "t", batch_size=2, max_batches=1)
    with raises(InvalidArgumentError, text):
        element.importance_weights(beta, normalize=normalize)


@pytest.mark.frameworks
def test_weights_can_be_computed_inside_a_tensorflow_dataset(filled, tf):
    def with_weights(element):
        return element.data["x"][:, 0], element.importance_weights(BETA)

    elements = dataset("tensorflow", filled, "t", batch_size=16, max_batches=2).map(with_weights)
    assert elements.element_spec[1] == tf.TensorSpec([16], tf.float32)
    for items, weights in elements:
        np.testing.assert_allclose(weights, expected(items.numpy(), "batch"), rtol=1e-5)


@pytest.mark.frameworks
@pytest.mark.torch
@pytest.mark.parametrize("options", [{"batch_size": None}, {"batch_size": 16}])
def test_weights_of_elements_that_a_data_loader_converted(filled, options):
    from torch.utils.data import DataLoader  # noqa: PLC0415, the extra

    elements = dataset("torch", filled, "t", batch_size=16 if options["batch_size"] is None else None)
    element = next(iter(DataLoader(elements, **options)))
    weights = element.importance_weights(BETA)
    np.testing.assert_allclose(weights, expected(element.data["x"][:, 0].numpy(), "batch"), rtol=1e-5)
