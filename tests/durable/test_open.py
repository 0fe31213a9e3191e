"""Stores in directories: what opening restores, and which errors it raises."""

import re

import numpy as np
import pytest
from helpers.python_process import PIPE, PythonProcess
from helpers.support import raises

import engram
from engram import Client, Server, Store, Table, rate_limiters, selectors
from engram.errors import ClosedError, InvalidArgumentError, SignatureError, StorageError

LEVELS = ("none", "process", "disk")

IN_MEMORY = (
    "this store is in memory only, so it has no checkpoints; create a store on disk with `engram.Store.open(path)`"
)


def tables():
    return [
        Table("uniform", max_size=100),
        Table("weighted", max_size=100, sampler=selectors.Prioritized(0.7)),
        Table.queue("queue", max_size=100),
    ]


def fill(store, start=0, count=20):
    keys = [
        store.insert({"x": value}, {"uniform": 1.0, "weighted": 1.0 + value}) for value in range(start, start + count)
    ]
    store.update_priorities("weighted", keys[::2], np.full(len(keys[::2]), 3.0))
    store.delete("uniform", keys[:1])
    for value in range(start, start + count):
        store.insert({"x": value}, {"queue": 1.0})
    store.sample("queue", 5)
    return keys


def values_in_order(path, table):
    """Opens a store; samples each item of one table once, in the order of insertion, and returns their values."""
    options = {"sampler": selectors.Fifo(), "max_times_sampled": 1}
    with Store.open(path, [Table(table, max_size=1_000_000, **options)]) as store:
        return store.sample(table, store.info()[table].size, timeout=10).data["x"].ravel().tolist()


def state(store):
    """Returns the visible state of a store: sizes, counts, priorities and the next samples. Empties the queue."""
    infos = {
        name: (info.size, info.num_episodes, info.rate_limiter, info.num_unique_samples)
        for name, info in store.info().items()
    }
    draws = {}
    for name in ("uniform", "weighted"):
        batch = store.sample(name, 50)
        draws[name] = (batch.data["x"].tolist(), batch.info.priority.tolist(), batch.info.times_sampled.tolist())
    return infos, draws, store.sample("queue", store.info()["queue"].size).data["x"].tolist()


@pytest.mark.parametrize(
    ("durability", "checkpoint"),
    [("none", True), ("process", False), ("process", True), ("disk", False), ("disk", True)],
)
def test_opening_restores_the_state(tmp_path, durability, checkpoint):
    with Store(tables(), seed=3) as expected:
        fill(expected)
        with Store.open(tmp_path / "s", tables(), durability=durability, seed=3) as store:
            fill(store)
            if checkpoint:
                checkpoint_info = store.checkpoint()
                assert (checkpoint_info.number, checkpoint_info.items) == (1, 19 + 20 + 15)
        # The tables continue with the seed that they were created with.
        with Store.open(tmp_path / "s", tables(), durability=durability, seed=4) as store:
            assert store.notes == ()
            assert state(store) == state(expected)


def test_without_a_log_opening_restores_the_last_checkpoint(tmp_path):
    with Store.open(tmp_path, tables(), durability="none") as store:
        fill(store)
        store.checkpoint()
        fill(store, 100)
    with Store.open(tmp_path, durability="none") as store:
        assert store.info()["weighted"].size == 20


@pytest.mark.parametrize("durability", LEVELS)
def test_checkpoints_are_numbered_and_only_the_newest_are_kept(tmp_path, durability):
    for number in range(1, 6):
        with Store.open(tmp_path, tables(), durability=durability, keep=2) as store:
            fill(store, 20 * number, 5)
            assert store.checkpoint().number == number
            assert store.info()["weighted"].size == 5 * number
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name for name in names if name.startswith("checkpoint")] == [f"checkpoint-{n:010}" for n in (4, 5)]
    assert values_in_order(tmp_path, "weighted") == [20 * number + n for number in range(1, 6) for n in range(5)]


def test_options_and_tables_can_change_when_a_store_is_opened(tmp_path):
    with Store.open(tmp_path, tables()) as store:
        fill(store)
    with Store.open(tmp_path, [Table("weighted", max_size=7, sampler=selectors.Fifo())]) as store:
        assert store.notes == ("table `weighted`: 13 of 20 items removed, which the options given for it do not allow",)
        assert store.tables == ["queue", "uniform", "weighted"]
        assert store.info()["weighted"].size == 7
        assert store.sample("weighted", 1).data["x"].tolist() == [13]
        store.drop_table("uniform")
        store.create_table(Table("late", max_size=3))
        store.insert({"x": 5}, {"late": 1.0})
    with Store.open(tmp_path) as store:
        assert store.tables == ["late", "queue", "weighted"]
        assert store.sample("late", 1).data["x"].tolist() == [5]
        assert store.info()["weighted"].max_size == 7


def test_a_new_table_is_noted_if_a_stored_one_is_not_given(tmp_path):
    with Store.open(tmp_path, [Table("replay"), Table("queue")]) as store:
        assert store.notes == ()
    with Store.open(tmp_path, [Table("reply"), Table("queue")]) as store:
        assert store.notes == ("new tables: `reply`; tables of the directory that were not given: `replay`",)
    with Store.open(tmp_path, [Table("replay"), Table("reply"), Table("queue"), Table("new")]) as store:
        assert store.notes == ()


def test_a_signature_that_items_do_not_match_is_rejected(tmp_path):
    with Store.open(tmp_path, tables()) as store:
        fill(store)
    signature = {"x": engram.ArraySpec((3,), np.float32)}
    with pytest.raises(SignatureError, match="weighted"):
        Store.open(tmp_path, [Table("weighted", max_size=100, signature=signature)])
    with Store.open(tmp_path, tables()) as store:
        assert store.info()["weighted"].size == 20


def test_a_table_is_restored_only_under_a_name_that_the_store_does_not_have(tmp_path):
    with Store.open(tmp_path, [Table("a"), Table("b")]) as store:
        store.insert({"x": 1}, {"b": 1.0})
    with Store([Table("a")]) as store:
        text = (
            "this store already has a table `a`; give the one in the directory another name with "
            '`rename={"a": "<new name>"}`, or leave it out with `drop=["a"]`'
        )
        with raises(InvalidArgumentError, text):
            store.restore(tmp_path)
        with raises(
            InvalidArgumentError, "`rename`: this store already has a table `a`; choose another new name for `b`"
        ):
            store.restore(tmp_path, rename={"b": "a"}, drop=["a"])
        assert store.tables == ["a"]
        assert sorted(store.restore(tmp_path, rename={"a": "c"})) == ["b", "c"]
        assert store.tables == ["a", "b", "c"]
        assert store.sample("b", 1, timeout=10).data["x"].tolist() == [1]


def test_an_open_store_cannot_be_opened_again_until_it_is_closed(tmp_path):
    with Store.open(tmp_path, tables()):
        text = re.escape(f"{tmp_path} is in use by this process (since ")
        with pytest.raises(
            StorageError, match=rf"\A{text}\S+ \S+ UTC\), according to its file `LOCK`: close that store first; "
        ):
            Store.open(tmp_path, tables())
    with Store.open(tmp_path, tables()):
        pass


def test_unusable_directories_are_rejected(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"/file is a file; a store is a directory$"):
        Store.open(tmp_path / "file", tables())
    with pytest.raises(StorageError, match=r"cannot be used: "):
        Store.open("/proc/no/such", tables())


def test_arguments_are_checked(tmp_path):
    for options, text in (
        ({"durability": "most"}, '`durability` must be "none", "process" or "disk"; got \'most\' (str)'),
        ({"sync_interval": -1}, "`sync_interval` must be between 0 and 60 s; got -1"),
        ({"keep": 0}, "`keep` must be "),
        ({"repair": "no"}, "`repair` must be True or False; got 'no' (str)"),
    ):
        with pytest.raises(InvalidArgumentError, match=re.escape(text)):
            Store.open(tmp_path, tables(), **options)
    with Store(tables()) as store, raises(InvalidArgumentError, IN_MEMORY):
        store.checkpoint()


@pytest.mark.parametrize("option", ["path", "durability", "checkpoint_interval", "seed"])
def test_a_server_does_not_take_options_of_stores(option):
    with Store([]) as store:
        for served in (tables(), store):
            with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
                Server(served, **{option: None})


def test_a_store_stays_open_when_its_server_is_closed(tmp_path):
    with Store.open(tmp_path, tables(), durability="disk") as store:
        with Server(store) as server:
            assert server.store is store
            Client(server.address).insert({"x": 1}, {"uniform": 1.0})
        assert store.sample("uniform", 1).data["x"].tolist() == [1]


def test_a_store_that_the_server_created_is_closed_with_it():
    with Server(tables()) as server:
        store = server.store
    with pytest.raises(ClosedError):
        store.info()


def test_the_tables_of_a_server_are_restored(tmp_path):
    with Store.open(tmp_path, tables(), seed=1) as store, Server(store) as server:
        client = Client(server.address)
        fill(client)
        checkpoint_info = client.checkpoint()
        assert (checkpoint_info.number, checkpoint_info.items) == (1, 19 + 20 + 15)
        fill(client, 100)
    with Store.open(tmp_path) as store, Server(store) as server:
        assert Client(server.address).info()["weighted"].size == 40
    with Server(tables()) as server, raises(InvalidArgumentError, IN_MEMORY):
        Client(server.address).checkpoint()


CHILD = """
import sys, numpy as np, engram
store = engram.Store.open(sys.argv[1], [engram.Table("t", max_size=1_000_000)], durability=sys.argv[2])
writer = store.writer()
print("ready", flush=True)
for value in range(1_000_000):
    writer.append({"x": value})
    writer.create_item("t", num_steps=1)
    if value % 50 == 49:
        writer.flush()
        print(value + 1, flush=True)
"""


@pytest.mark.parametrize("durability", ["process", "disk"])
def test_flushed_items_survive_a_kill(tmp_path, durability):
    acknowledged = 0
    child = PythonProcess(CHILD, tmp_path, durability, stdout=PIPE)
    assert child.stdout.readline() == "ready\n"
    while acknowledged < 2_000:
        acknowledged = int(child.stdout.readline())
    child.kill()
    rest = child.communicate()[0].split()
    acknowledged = max([acknowledged, *map(int, rest)])
    values = values_in_order(tmp_path, "t")
    assert len(values) >= acknowledged
    # Each acknowledged value is there once, and so are later ones up to some value.
    assert values == list(range(len(values)))


def test_a_limiter_that_stays_must_fit_the_new_size(tmp_path):
    with Store.open(tmp_path, [Table("t", max_size=200)]) as store:
        store.set_rate_limiter("t", rate_limiters.MinSize(100))
    text = (
        "rate limiter MinSize of table `t`: `min_size` must be at most the table's `max_size`, 50; got 100; this "
        "limiter was set with `set_rate_limiter` and is kept unless the given table has another `rate_limiter` than "
        "the one it was created with: give a larger `max_size`, or another `rate_limiter`"
    )
    with raises(InvalidArgumentError, text):
        Store.open(tmp_path, [Table("t", max_size=50)])
    with Store.open(tmp_path, [Table("t", max_size=50, rate_limiter=rate_limiters.MinSize(2))]) as store:
        assert store.info()["t"].rate_limiter == rate_limiters.MinSize(2)


def test_a_store_whose_limiter_blocks_both_sides_opens_with_a_warning(tmp_path, caplog):
    limiter = rate_limiters.from_native("RateLimiter", 2.0, 1, 0.0, 1.0)  # as earlier releases accepted it
    with Store.open(tmp_path / "a", [Table("t", rate_limiter=limiter)]) as store:
        store.insert({"x": 1}, {"t": 1.0})
    text = (
        "rate limiter of table `t`: `max_diff` must be at least 2 with `samples_per_insert` = 2 and `min_diff` = 0, or "
        "inserts and samples would block each other forever; got 1; raise `max_diff` to 2, or lower `min_diff` to -1, "
        "with `set_rate_limiter`"
    )
    caplog.clear()
    with Store.open(tmp_path / "a") as store:
        assert caplog.messages == [text]
        store.set_rate_limiter("t", rate_limiters.RateLimiter(2.0, 1, 0.0, 2.0))
        restoring = Store([])
    caplog.clear()
    with Store.open(tmp_path / "a", [Table("t", rate_limiter=rate_limiters.Queue(1))]):
        assert caplog.messages == []
    with Store.open(tmp_path / "b", [Table("t", rate_limiter=limiter)]):
        caplog.clear()
    assert restoring.restore(tmp_path / "b") == ("t",)
    assert caplog.messages == [text]
    caplog.clear()
    [shard, _] = engram.resharding.reshard([tmp_path / "b"], into=2, output=tmp_path / "c").directories
    with Store.open(shard):
        assert caplog.messages == [text]
