"""`engram reshard`."""

from engram import Store, Table


def test_a_store_is_distributed(run, tmp_path):
    for name in ("a", "b"):
        with Store.open(tmp_path / name, [Table("replay", max_size=100)]) as store:
            for number in range(20):
                store.insert({"n": number}, {"replay": 1.0})
    output = tmp_path / "out"
    result = run("reshard", tmp_path / "a", tmp_path / "b", "--into", 4, "--output", output)
    assert (result.exit_code, result.stderr) == (0, "")
    first, second = result.stdout.splitlines()
    assert first == f"{output}: 4 shards"
    name, rest = second.split(": ")
    total, sizes = rest.rstrip(")").split(" (")
    assert (name, total) == ("  replay", "40 items")
    sizes = list(map(int, sizes.split(", ")))
    assert sum(sizes) == 40
    for shard, size in enumerate(sizes):
        with Store.open(output / f"shard-{shard}") as store:
            assert store.info()["replay"].size == size


def test_an_error_is_one_line(run, tmp_path):
    with Store.open(tmp_path / "a", [Table("replay", max_size=100)]):
        pass
    result = run("reshard", tmp_path / "a", "--into", 0, "--output", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "`into` must be from 1 to 1023; got 0" in result.stderr
    result = run("reshard", tmp_path / "a", tmp_path / "a", "--into", 1, "--output", tmp_path / "out")
    assert result.exit_code == 1
    assert f"{tmp_path / 'a'} and {tmp_path / 'a'} are the same directory; give each source once" in result.stderr
    result = run("reshard", tmp_path / "a", "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert "--into" in result.stderr
