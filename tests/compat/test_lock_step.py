"""Loops that insert and sample in one thread, with Reverb's API."""

import numpy as np
import pytest
from helpers import lock_step
from helpers.compat_tables import serving, table
from helpers.support import BackgroundCall, slow_except, wait_until

from engram.compat import reverb

SIZES = range(1, 9)


# Readers: each yields the values of the next `n` items of a table, again and again.


def samples(client, name, n):
    while True:
        yield [int(sample[0].data[0]) for sample in client.sample(name, n)]


def open_iterator(client, name, n):
    iterator = client.sample(name, 10_000)
    while True:
        yield [int(next(iterator)[0].data[0]) for _ in range(n)]


def whole_items(client, name, n):
    iterator = client.sample(name, 10_000, emit_timesteps=False)
    while True:
        yield [int(next(iterator).data[0][0]) for _ in range(n)]


def tensorflow_dataset(kind, **options):
    def elements(client, name, n):
        import tensorflow as tf  # noqa: PLC0415, an extra

        length = () if kind != "TrajectoryDataset" else (1,)
        made = getattr(reverb, kind)(
            client.server_address,
            name,
            [tf.int64],
            [tf.TensorShape(length)],
            **{"max_in_flight_samples_per_worker": 10, **options},
        )
        iterator = iter(made.batch(n))
        while True:
            yield next(iterator).data[0].numpy().ravel().tolist()

    return elements


def tensorflow_client(client, name, n):
    import tensorflow as tf  # noqa: PLC0415, an extra

    made = reverb.TFClient(client.server_address)
    while True:
        yield [int(made.sample(name, [tf.int64]).data[0]) for _ in range(n)]


READERS = [
    samples,
    open_iterator,
    whole_items,
    pytest.param(tensorflow_client, marks=pytest.mark.frameworks),
    *(
        pytest.param(tensorflow_dataset(kind, **options), id=f"{kind}{len(options)}", marks=pytest.mark.frameworks)
        for kind in ("TimestepDataset", "TrajectoryDataset", "ReplayDataset")
        for options in ({}, {"max_in_flight_samples_per_worker": 1, "num_workers_per_iterator": 3})
    ),
]


@pytest.mark.parametrize("times", slow_except(1, 3, of=[1, 2, 3]))
@pytest.mark.parametrize("reader", READERS)
def test_no_loop_waits_for_itself(reader, times):
    limiters = {size: reverb.rate_limiters.RateLimiter(float(times), 1, 0.0, float(times * size)) for size in SIZES}
    tables = [table(f"t{size}", max_size=size, max_times_sampled=times, rate_limiter=limiters[size]) for size in SIZES]
    with serving(*tables) as (_, client):
        for served, size in zip(tables, SIZES, strict=True):
            name, n = f"t{size}", 1 + size // 2
            iterator = reader(client, name, n)

            def insert(value, name=name):
                client.insert([np.int64(value)], {name: 1.0})

            def fits(model, name=name, served=served):
                """True if the table has no more items than the model, and accepts an insert exactly if the model does.

                If the model is empty, the table must be empty too. Otherwise a reader may have sampled ahead.
                """
                return (
                    client.server_info()[name].current_size <= model.num_items()
                    and served.can_insert(1) == model.can_insert()
                    and (model.remaining or (served.info.current_size == 0 and not served.can_sample(1)))
                )

            def check(model, fits=fits):
                if reader in (samples, open_iterator, whole_items):
                    assert fits(model)
                else:  # TensorFlow acknowledges an element in other threads
                    wait_until(lambda: fits(model))

            lock_step.run(lock_step.Model(size, times), insert, iterator.__next__, check, n=n, seed=size, steps=20)
            iterator.close()


def test_a_queue_is_filled_again_while_an_iterator_is_open():
    with serving(reverb.Table.queue("t", 4)) as (_, client):
        for value in range(4):
            client.insert([np.int64(value)], {"t": 1.0})
        iterator = client.sample("t", 4)
        next(iterator)
        BackgroundCall(lambda: client.insert([np.int64(4)], {"t": 1.0})).result()


@pytest.mark.frameworks
@pytest.mark.parametrize("kind", ["TimestepDataset", "TrajectoryDataset"])
def test_a_queue_is_filled_again_while_a_batch_is_held(tf, kind):
    with serving(reverb.Table.queue("t", 4)) as (_, client):
        for value in range(4):
            client.insert([np.int64(value)], {"t": 1.0})
        length = [] if kind == "TimestepDataset" else [1]
        made = getattr(reverb, kind)(
            client.server_address, "t", [tf.int64], [tf.TensorShape(length)], max_in_flight_samples_per_worker=8
        )
        iterator = iter(made.batch(4))
        assert next(iterator).data[0].numpy().ravel().tolist() == [0, 1, 2, 3]

        def fill_again():
            for value in range(4, 8):
                client.insert([np.int64(value)], {"t": 1.0})

        BackgroundCall(fill_again).result()
        assert next(iterator).data[0].numpy().ravel().tolist() == [4, 5, 6, 7]
