"""`Table`: its options and info, with a server and without."""

from typing import NamedTuple

import numpy as np
import pytest
from helpers.compat_tables import serving, table
from helpers.support import raises

from engram.compat import reverb
from engram.compat.reverb.server import TableExtensionBase
from engram.compat.reverb.tensor_spec import BoundedTensorSpec, TensorSpec

SPEC = TensorSpec([2, None], np.float32, "x")


class Step(NamedTuple):
    observation: object
    action: object


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": ""}, "name must be nonempty"),
        ({"max_size": 0}, "max_size (0) must be a positive integer"),
        ({"max_size": -3}, "max_size (-3) must be a positive integer"),
        ({"signature": 3}, "Unsupported signature spec: 3"),
        ({"signature": {"a": np.zeros(3)}}, "Unsupported signature spec: [0. 0. 0.]"),
        ({"signature": (SPEC, None)}, "Unsupported signature spec: None"),
        ({"signature": {3: SPEC}}, "Unsupported signature spec: the key 3 is not text"),
        (
            {"max_size": 5, "rate_limiter": reverb.rate_limiters.MinSize(6)},
            (
                "table `t`: nothing could ever be sampled: MinSize waits for 6 items, but `max_size` is 5; "
                "increase `max_size`"
            ),
        ),
    ],
)
def test_invalid_options_are_rejected(changes, text):
    with raises(ValueError, text):
        table(**changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": 3}, "`name` must be text; got 3 (int)"),
        ({"max_size": 1.5}, "`max_size` must be an integer; got 1.5 (float)"),
        ({"max_size": 2**31}, "`max_size` must be at most 2147483647; got 2147483648"),
        ({"sampler": 3}, "`sampler` must be one of reverb.selectors; got 3 (int)"),
        (
            {"remover": reverb.selectors.Fifo},
            "`remover` must be one of reverb.selectors; got the class Fifo itself; call it",
        ),
        ({"rate_limiter": None}, "`rate_limiter` must be one of reverb.rate_limiters; got None"),
        ({"max_times_sampled": "a"}, "`max_times_sampled` must be an integer; got 'a' (str)"),
        ({"extensions": [3]}, "`extensions[...]` must be a TableExtensionBase; got 3 (int)"),
    ],
)
def test_options_of_wrong_types_are_rejected(changes, text):
    with raises(TypeError, text):
        table(**changes)


def test_extensions_that_add_something_are_rejected():
    class Idle(TableExtensionBase):
        def build_internal_extensions(self, table_name):  # noqa: ARG002
            return []

    class Busy(TableExtensionBase):
        def build_internal_extensions(self, table_name):
            return [table_name]

        def __repr__(self):
            return "Busy()"

    assert table(extensions=[Idle()]).name == "t"
    with raises(NotImplementedError, "table 't': extensions are not supported; got Busy()"):
        table(extensions=[Busy()])
    with pytest.raises(TypeError, match="abstract"):
        TableExtensionBase()


def test_info_without_a_server():
    info = table(
        sampler=reverb.selectors.Prioritized(0.8), remover=reverb.selectors.MinHeap(), max_times_sampled=-3
    ).info
    assert (info.name, info.max_size, info.max_times_sampled, info.current_size) == ("t", 100, -3, 0)
    assert info.sampler_options.WhichOneof("distribution") == "prioritized"
    assert info.sampler_options.prioritized.priority_exponent == 0.8
    assert not info.sampler_options.is_deterministic
    assert info.remover_options.HasField("heap")
    assert info.remover_options.heap.min_heap
    assert info.remover_options.is_deterministic
    assert info.signature is None
    assert (info.num_episodes, info.num_deleted_episodes, info.num_unique_samples) == (0, 0, 0)
    assert info.rate_limiter_info.insert_stats.completed == 0
    assert info.table_worker_time.sleeping_ms == 0


@pytest.mark.parametrize("kind", ["fifo", "lifo", "uniform"])
def test_info_names_the_selector(kind):
    options = table(sampler=getattr(reverb.selectors, kind.capitalize())()).info.sampler_options
    assert options.WhichOneof("distribution") == kind
    assert getattr(options, kind) is True
    assert options.is_deterministic == (kind != "uniform")


def test_info_distinguishes_the_heaps():
    options = table(sampler=reverb.selectors.MaxHeap()).info.sampler_options
    assert options.HasField("heap")
    assert not options.heap.min_heap


@pytest.mark.parametrize(
    "signature",
    [
        SPEC,
        [SPEC, SPEC],
        (SPEC, {"b": SPEC, "a": (SPEC,)}),
        {"a": TensorSpec(None, np.int64), "b": TensorSpec([], "string", "text")},
        BoundedTensorSpec([2], np.int32, 0, [3, 4], "bounded"),
        BoundedTensorSpec([2], np.float64, [-1.5, -np.inf], [np.inf, 2.0]),
    ],
)
def test_info_returns_the_signature(signature):
    with serving(table(signature=signature)) as (_, client):
        assert client._signature("t") == signature


def test_info_returns_namedtuples_in_signatures():
    signature = table(signature=Step(SPEC, [SPEC])).info.signature
    assert type(signature).__name__ == "Step"
    assert signature._fields == ("observation", "action")
    assert len(signature.action) == 1


@pytest.mark.parametrize("signature", [None, {}, (), []])
def test_an_empty_signature_is_none(signature):
    assert table(signature=signature).info.signature is None


def test_can_insert_and_can_sample_without_a_server():
    queue = reverb.Table.queue("q", 2)
    assert not queue.can_sample(1)
    assert [queue.can_insert(n) for n in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize("call", ["can_sample", "can_insert"])
def test_counts_are_checked(call):
    name = {"can_sample": "num_samples", "can_insert": "num_inserts"}[call]
    for count in (0, -1):
        with raises(ValueError, f"{name} ({count}) must be a positive integer"):
            getattr(table(), call)(count)
    with raises(TypeError, f"`{name}` must be an integer; got 1.5 (float)"):
        getattr(table(), call)(1.5)
    with raises(TypeError, f"`{name}` must be at most 2147483647; got {2**70}"):
        getattr(table(), call)(2**70)
    assert not getattr(reverb.Table.queue("q", 1), call)(2**31 - 1)


def test_info_of_a_served_table():
    queue = reverb.Table.queue("q", 2)
    with serving(queue) as (_, client):
        client.insert([1], {"q": 1.0})
        assert queue.can_sample(1)
        assert queue.can_insert(1)
        client.insert([2], {"q": 1.0})
        assert not queue.can_insert(1)
        info = queue.info
        assert (info.current_size, info.num_episodes, info.rate_limiter_info.insert_stats.completed) == (2, 2, 2)
        assert info.table_worker_time == reverb.reverb_types.TableWorkerTime()  # Engram has no table workers
        next(client.sample("q"))
        assert queue.info.current_size == 1


def test_a_table_whose_server_stopped_is_empty_and_free():
    mine = table()
    for _ in range(2):
        with serving(mine) as (_, client):
            client.insert([1], {"t": 1.0})
            assert mine.info.current_size == 1
        assert mine.info.current_size == 0
        assert not mine.can_sample(1)


def test_a_table_has_one_server_at_a_time():
    mine = table()
    text = (
        "table 't' already belongs to a running server; create separate tables for each server, for example with "
        "table.replace()"
    )
    with serving(mine) as (server, _):
        with raises(ValueError, text):
            reverb.Server([table("other"), mine], host="localhost")
        with serving(mine.replace()) as (other, _):
            assert other.port != server.port


def test_queue_and_stack_have_their_selectors_and_limits():
    queue, stack = reverb.Table.queue("q", 3).info, reverb.Table.stack("s", 3, signature=SPEC).info
    for info, kind in ((queue, "fifo"), (stack, "lifo")):
        assert info.sampler_options.WhichOneof("distribution") == kind
        assert info.remover_options.WhichOneof("distribution") == kind
        assert (info.max_size, info.max_times_sampled, info.rate_limiter_info.max_diff) == (3, 1, 3.0)
    assert queue.signature is None
    assert stack.signature is not None
    with raises(ValueError, "size (0) must be a positive integer"):
        reverb.Table.queue("q", 0)


def test_replace_keeps_the_other_options():
    first = table(sampler=reverb.selectors.Prioritized(0.5), max_times_sampled=3, signature=SPEC)
    with serving(first) as (_, client):
        client.insert([np.zeros((2, 1), np.float32)], {"t": 1.0})
        second = first.replace(name="u", max_times_sampled=0)
        assert (second.info.name, second.info.max_times_sampled, second.info.current_size) == ("u", 0, 0)
        assert second.info.sampler_options == first.info.sampler_options
        assert second.info.rate_limiter_info.insert_stats.completed == 0
        assert second.info.signature == first.info.signature
    assert first.replace(rate_limiter=reverb.rate_limiters.MinSize(7)).info.rate_limiter_info.min_size_to_sample == 7
    with raises(ValueError, "max_size (0) must be a positive integer"):
        first.replace(max_size=0)


def test_repr():
    assert repr(reverb.Table.queue("q", 3)) == (
        "Table(sampler=FifoSelector, remover=FifoSelector, max_size=3, max_times_sampled=1, name=q, "
        "rate_limiter=RateLimiter(samples_per_insert=1, min_diff_=0, max_diff=3, min_size_to_sample=1), signature=None)"
    )
