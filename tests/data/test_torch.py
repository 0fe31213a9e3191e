"""A table as PyTorch tensors."""

import numpy as np
import pytest
from helpers.data_tables import insert, queue
from helpers.support import raises, run_python

from engram import Store, Table
from engram.data import Ragged
from engram.errors import InvalidArgumentError, SignatureError

pytestmark = [pytest.mark.frameworks, pytest.mark.torch]


@pytest.fixture
def dataset():
    from engram.data import torch  # noqa: PLC0415, the extra

    return torch.dataset


INTEGERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
OTHERS = ["float16", "float32", "float64", "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("name", ["bool", *INTEGERS, *OTHERS])
def test_every_dtype_becomes_the_torch_dtype_of_its_name(dataset, name):
    import ml_dtypes  # noqa: PLC0415, NumPy's bfloat16
    import torch  # noqa: PLC0415, the extra

    dtype = getattr(ml_dtypes, name, None) or np.dtype(name)
    with Store([queue()]) as store:
        insert(store, np.array([[0, 1], [1, 0]]).astype(dtype))
        [element] = dataset(store, "t", batch_size=1, max_batches=1)
    assert element.data.dtype == getattr(torch, name)
    assert element.data.to(torch.complex64).real.tolist() == [[[0, 1], [1, 0]]]


def test_text_and_info_stay_numpy_arrays(dataset):
    with Store([queue()]) as store:
        insert(store, {"word": np.array(["a", "b"])}, {"word": np.array(["c"])}, {"word": np.array(["d"])})
        single, batch = (next(iter(dataset(store, "t", batch_size=batch_size, max_batches=1))) for batch_size in (1, 2))
        insert(store, {"word": np.array(["a", "b"])}, {"word": np.array(["c"])})
        [ragged] = dataset(store, "t", batch_size=2, max_batches=1)
    assert single.data["word"].tolist() == [["a", "b"]]
    assert batch.data["word"].tolist() == [["c"], ["d"]]
    assert isinstance(ragged.data["word"], Ragged)
    assert (ragged.data["word"].values.tolist(), ragged.data["word"].row_splits.tolist()) == (
        ["a", "b", "c"],
        [0, 2, 3],
    )
    assert single.info.key.dtype == np.uint64


def test_tensors_are_writable(dataset):
    with Store([queue()]) as store:
        insert(store, np.zeros((2, 3)))
        [element] = dataset(store, "t", batch_size=1, max_batches=1)
        element.data.add_(1)
        assert element.data.sum() == 6


def test_ragged_columns_are_nested_tensors_and_padded_columns_have_a_mask(dataset):
    with Store([queue()]) as store:
        items = [{"x": np.arange(n), "y": np.arange(n), "z": np.ones((n, 2))} for n in (2, 1)]
        insert(store, *items, *items)
        [ragged] = dataset(store, "t", batch_size=2, max_batches=1)
        [padded] = dataset(store, "t", batch_size=2, max_batches=1, pad=True)
    assert [part.tolist() for part in ragged.data["x"].unbind()] == [[0, 1], [0]]
    assert [part.tolist() for part in (ragged.data["x"] + ragged.data["y"]).unbind()] == [[0, 2], [0]]
    assert padded.data["x"].tolist() == [[0, 1], [0, 0]]
    assert padded.mask["x"].tolist() == [[True, True], [True, False]]
    assert ragged.data["z"].offsets() is ragged.data["x"].offsets()


def test_columns_of_different_lengths_have_their_own_offsets(dataset):
    with Store([queue()]) as store:
        writer = store.writer(history=3)
        for t in range(3):
            writer.append({"a": t, "b": t, "c": t})
        for length_a, length_b in ((1, 2), (2, 3)):
            history = writer.history
            writer.create_item(
                "t", 1.0, {"a": history["a"][-length_a:], "b": history["b"][-length_b:], "c": history["c"][-1]}
            )
        writer.flush()
        [element] = dataset(store, "t", batch_size=2, max_batches=1)
    offsets = {name: element.data[name].offsets().tolist() for name in "ab"}
    assert offsets == {"a": [0, 1, 3], "b": [0, 2, 5]}
    assert element.data["c"].tolist() == [2, 2]


@pytest.mark.parametrize("options", [{"steps": True}, {"steps": True, "batch_size": 3}, {}])
@pytest.mark.parametrize("table", [queue(), pytest.param(Table("t"), marks=pytest.mark.slow)])
def test_steps_and_single_items_are_tensors(dataset, options, table):
    import torch  # noqa: PLC0415, the extra

    with Store([table]) as store:
        insert(store, {"x": np.float32([1, 2])}, {"x": np.float32([1, 2])})
        elements = list(dataset(store, "t", timeout=0.1, max_batches=2, **options))
    assert all(isinstance(element.data["x"], torch.Tensor) for element in elements)
    assert torch.cat([torch.atleast_1d(element.data["x"]) for element in elements]).tolist()[:2] == [1, 2]


def test_elements_are_on_the_given_device(dataset):
    import torch  # noqa: PLC0415, the extra

    with Store([queue()]) as store:
        insert(store, np.zeros((2, 3)))
        [element] = dataset(store, "t", batch_size=1, max_batches=1, device="meta")
    assert element.data.device == torch.device("meta")


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("gpu", "got 'gpu': Expected one of cpu"),
        ("cuda:99", "got 'cuda:99': "),
        (3.5, "got 3.5: empty(): argument 'device' must be torch.device, not float"),
    ],
)
def test_bad_devices_are_rejected(dataset, device, reason):
    with Store([queue()]) as store, pytest.raises(InvalidArgumentError) as caught:
        dataset(store, "t", device=device)
    assert str(caught.value).startswith(f"`device` must be a device that PyTorch can use here; {reason}")
    assert len(str(caught.value).splitlines()) == 1


# --- DataLoaders without workers ---------------------------------------------------------------------


def data_loader(elements, **options):
    import torch  # noqa: PLC0415, the extra

    return torch.utils.data.DataLoader(elements, **options)


def test_identity_collate_keeps_tuples_and_info(dataset):
    import torch  # noqa: PLC0415, the extra

    from engram.data.torch import identity_collate  # noqa: PLC0415, the extra

    with Store([Table("t")]) as store:
        insert(store, ({"x": np.float32([1, 2])}, np.array(["a", "b"])))
        for options in ({"batch_size": 2}, {}, {"steps": True}, {"steps": True, "batch_size": 2}):
            elements = dataset(store, "t", max_batches=3, **options)
            assert len(list(data_loader(elements, batch_size=None))) == 3
            [element, *_] = data_loader(elements, batch_size=None, collate_fn=identity_collate)
            assert isinstance(element.data, tuple)
            assert isinstance(element.data[0]["x"], torch.Tensor)
            assert element.info.key.dtype == np.uint64


def test_a_data_loader_makes_batches_of_items(dataset):
    import torch  # noqa: PLC0415, the extra

    with Store([queue()]) as store:
        insert(store, *({"x": [np.float32([n, n])]} for n in range(4)))
        [first, second] = data_loader(dataset(store, "t", max_batches=4), batch_size=2)
    assert first.data["x"][0].tolist() == [[0, 0], [1, 1]]
    assert second.data["x"][0].dtype == torch.float32
    assert (first.mask, first.info.key.shape, first.info.key.dtype) == (None, (2,), np.uint64)


def test_a_data_loader_cannot_batch_batches(dataset):
    with Store([Table("t")]) as store:
        insert(store, np.zeros(2))
        text = (
            "a DataLoader with `batch_size=1` would make batches of the dataset's batches; give `batch_size=None` to "
            "the DataLoader"
        )
        with raises(InvalidArgumentError, text):
            next(iter(data_loader(dataset(store, "t", batch_size=256))))


def test_a_data_loader_cannot_batch_items_that_differ_in_length(dataset):
    with Store([queue()]) as store:
        insert(store, np.zeros(2), np.zeros(3))
        text = (
            "a DataLoader cannot make a batch of items that differ in length; give `batch_size` and `pad` to the "
            "dataset, and `batch_size=None` to the DataLoader"
        )
        with raises(SignatureError, text):
            next(iter(data_loader(dataset(store, "t", max_batches=2), batch_size=2)))


def test_other_errors_of_batching_are_raised_unchanged(dataset):
    with Store([queue()]) as store:
        insert(store, np.zeros((2, 3)), np.zeros((2, 4)))
        with pytest.raises(RuntimeError, match="equal size"):
            next(iter(data_loader(dataset(store, "t", max_batches=2), batch_size=2)))


# --- workers; each test runs in a process of its own, as forks break other libraries' threads -----------------


HEAD = """
import gc
import numpy as np, torch, engram
from engram import Table, selectors
from engram.data.torch import identity_collate, dataset
from torch.utils.data import DataLoader

def values(loader):
    return sorted(torch.cat([element.data.ravel() for element in loader]).tolist())

def print_error(call):
    try:
        call()
    except engram.errors.EngramError as error:
        print(type(error).__name__, str(error).splitlines()[-1])
    gc.collect()  # PyTorch fails if later workers inherit what is left of the failed ones

if __name__ == "__main__":
    table = Table("t", sampler=selectors.Fifo(), max_times_sampled=1)
    with engram.Server([table]) as server, engram.Client(server.address) as client:
        def fill(number):
            for value in range(number):
                client.insert(np.array([value]), {"t": 1.0}, time_axis=True)
"""

FORKED = """
        for workers in (1, 2):
            fill(6)
            print(values(DataLoader(dataset(client, "t", batch_size=2, max_batches=3), None, num_workers=workers)))
        # More workers than batches.
        fill(2)
        print(values(DataLoader(dataset(client, "t", batch_size=2, max_batches=1), None, num_workers=2)))
        print_error(lambda: list(DataLoader(dataset(server.store, "t"), None, num_workers=2)))
        print_error(lambda: list(DataLoader(dataset(client, "t", device="meta"), None, num_workers=1)))
        fill(2)
        print_error(lambda: list(DataLoader(dataset(client, "t", batch_size=2, max_batches=1), num_workers=1)))
        # Persistent workers read again. Last, so that no later worker inherits them.
        client.reset("t")
        fill(8)
        elements = dataset(client, "t", batch_size=2, max_batches=2)
        loader = DataLoader(elements, None, num_workers=2, persistent_workers=True, collate_fn=identity_collate)
        first = list(loader)
        print(len(first), len(list(loader)), first[0].info.key.dtype, server.store.info()["t"].size)
"""


def test_forked_workers_read_each_item_once():
    error = "InvalidArgumentError engram.errors.InvalidArgumentError: "
    errors = [
        (
            f"{error}`store` is an engram.Store, which the 2 worker processes of a DataLoader cannot use; give an "
            "engram.Client, or `num_workers=0` to the DataLoader"
        ),
        (
            f"{error}`device` is meta, which the worker processes of a DataLoader cannot share; leave it out, give "
            "`pin_memory=True` to the DataLoader, and copy its elements to the device in the loop"
        ),
        (
            f"{error}a DataLoader with `batch_size=1` would make batches of the dataset's batches; give "
            "`batch_size=None` to the DataLoader"
        ),
    ]
    six = "[0, 1, 2, 3, 4, 5]"
    assert run_python(HEAD + FORKED, 110).splitlines() == [six, six, "[0, 1]", *errors, "2 2 uint64 0"]


SPAWNED = """
        fill(6)
        elements = dataset(client, "t", batch_size=2, max_batches=3)
        print(values(DataLoader(elements, None, num_workers=2, multiprocessing_context="spawn")))
"""


@pytest.mark.slow
def test_spawned_workers_read_each_item_once():
    assert run_python(HEAD + SPAWNED, 110) == "[0, 1, 2, 3, 4, 5]\n"
