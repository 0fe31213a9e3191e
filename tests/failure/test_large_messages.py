"""What is sent stays below the size of a message, whatever takes the room in it."""

from engram import Table


def test_many_items_that_name_many_slices(open_store):
    store = open_store(Table("t"))
    names = [f"a_rather_long_name_{number}" for number in range(300)]
    with store.writer(history=8, chunk_length=1000, max_in_flight_items=1000) as writer:
        for value in range(500):
            writer.append(dict.fromkeys(names, value))
            if value >= 4:
                columns = writer.history
                writer.create_item("t", trajectory={name: columns[name][[-1, -3, -2]] for name in names})
    assert store.info()["t"].size == 496
    assert len(store.sample("t", 10, timeout=10).data) == len(names)
