"""A table as PyTorch tensors."""

import pickle

import numpy as np
import pytest
from support import raises, run_python

import engram
from engram import Store, Table, selectors

pytestmark = pytest.mark.frameworks


@pytest.fixture
def dataset():
    from engram.data import torch  # noqa: PLC0415, the extra

    return torch.dataset


def queue():
    return Table("t", sampler=selectors.Fifo(), max_times_sampled=1)


DTYPES = [
    *(
        "bool",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
    ),
    *("complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(dataset, name):
    import ml_dtypes  # noqa: PLC0415, NumPy's bfloat16
    import torch  # noqa: PLC0415, the extra

    dtype = getattr(ml_dtypes, name, None) or np.dtype(name)
    with Store([queue()]) as store:
        store.insert(np.array([[0, 1], [1, 0]]).astype(dtype), {"t": 1.0}, time_axis=True)
        [element] = dataset(store, "t", batch_size=1, max_batches=1)
    assert element.data.dtype == getattr(torch, name)
    assert element.data.to(torch.complex64).real.tolist() == [[[0, 1], [1, 0]]]


def test_what_stays_numpy(dataset):
    with Store([queue()]) as store:
        store.insert({"word": np.array(["a", "b"])}, {"t": 1.0})
        [element] = dataset(store, "t", batch_size=1, max_batches=1)
    assert element.data["word"].tolist() == [[b"a", b"b"]]
    assert element.info.key.dtype == np.uint64


def test_no_copy_is_made(dataset):
    with Store([queue()]) as store:
        store.insert(np.zeros((2, 3)), {"t": 1.0}, time_axis=True)
        [element] = dataset(store, "t", batch_size=1, max_batches=1)
        element.data.add_(1)
        assert element.data.sum() == 6


def test_ragged_and_padded(dataset):
    with Store([queue()]) as store:
        for length in (2, 1, 2, 1):
            store.insert({"x": np.arange(length)}, {"t": 1.0}, time_axis=True)
        [ragged] = dataset(store, "t", batch_size=2, max_batches=1)
        [padded] = dataset(store, "t", batch_size=2, max_batches=1, pad=True)
    assert [part.tolist() for part in ragged.data["x"].unbind()] == [[0, 1], [0]]
    assert padded.data["x"].tolist() == [[0, 1], [0, 0]]
    assert padded.mask["x"].tolist() == [[True, True], [True, False]]


def test_a_device(dataset):
    import torch  # noqa: PLC0415, the extra

    with Store([queue()]) as store:
        store.insert(np.zeros((2, 3)), {"t": 1.0}, time_axis=True)
        [element] = dataset(store, "t", batch_size=1, max_batches=1, device="meta")
    assert element.data.device == torch.device("meta")


LOADER = """
import multiprocessing, sys
import numpy as np, torch, engram
from engram import Table, selectors
from engram.data.torch import dataset
if __name__ == "__main__":
    workers, context = {workers}, {context!r}
    table = Table("t", sampler=selectors.Fifo(), max_times_sampled=1)
    with engram.Server([table]) as server, engram.Client(server.address) as client:
        for value in range(6):
            client.insert(np.array([value]), {{"t": 1.0}}, time_axis=True)
        reading = dataset(client, "t", batch_size=2, max_batches=3)
        loader = torch.utils.data.DataLoader(
            reading, batch_size=None, num_workers=workers, multiprocessing_context=context
        )
        found = list(loader)
        print(sorted(torch.cat([element.data.ravel() for element in found]).tolist()))
        keys = np.concatenate([np.asarray(element.info.key) for element in found])
        print(keys.dtype, len(set(keys.tolist())))
        try:
            list(torch.utils.data.DataLoader(dataset(server.store, "t"), batch_size=None, num_workers=2))
        except engram.errors.InvalidArgumentError as error:
            print(str(error).splitlines()[-1])
"""


@pytest.mark.parametrize(("workers", "context"), [(0, None), (1, "fork"), (2, "fork"), (2, "spawn")])
def test_loaders(workers, context):
    """Each in a process of its own: forks do not go together with JAX's threads."""
    text = (
        "engram.errors.InvalidArgumentError: a DataLoader with 2 workers reads in processes of its own, and a Store "
        "does not leave its own; give an engram.Client, or `num_workers=0`"
    )
    printed = run_python(LOADER.format(workers=workers, context=context))
    assert printed.splitlines() == ["[0, 1, 2, 3, 4, 5]", "uint64 6", text]


def test_a_client_travels():
    with engram.Server([queue()], token="secret") as server:
        client = engram.Client(server.address, token="secret", reconnect_timeout=3)
        other = pickle.loads(pickle.dumps(client))  # noqa: S301, our own
        assert other.tables == ["t"]
        with raises(TypeError, "cannot pickle 'engram._engram.Store' object"):
            pickle.dumps(server.store)
