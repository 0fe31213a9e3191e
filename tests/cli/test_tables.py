"""Tables from a TOML file: its keys, and the errors of bad ones."""

import pytest
from support import raises

import engram
from engram import rate_limiters, selectors
from engram.cli.tables import read_tables
from engram.errors import InvalidArgumentError


def test_keys_set_the_options_of_a_table(read):
    text = """
    [all]
    max_size = 10
    sampler = { kind = "prioritized", exponent = 1 }
    remover = "lifo"
    rate_limiter = { kind = "SampleToInsertRatio", samples_per_insert = 2, min_size = 3, error_buffer = [1, 20] }
    max_times_sampled = 4
    max_bytes = 1_000_000
    ttl = 2.5
    seed = 7
    """
    limiter = rate_limiters.SampleToInsertRatio(samples_per_insert=2, min_size=3, error_buffer=(1, 20))
    assert read(text) == [
        engram.Table(
            "all",
            max_size=10,
            sampler=selectors.Prioritized(exponent=1),
            remover=selectors.Lifo(),
            rate_limiter=limiter,
            max_times_sampled=4,
            max_bytes=1_000_000,
            ttl=2.5,
            seed=7,
        )
    ]


def test_an_empty_section_is_a_table_with_defaults(read):
    assert read("[b]\n[a]") == [engram.Table("b"), engram.Table("a")]


def test_tables_can_be_queues_and_stacks(read):
    assert read('[q]\nlike = "queue"\nmax_size = 2\n[s]\nlike = "stack"\nmax_size = 3\nttl = 1') == [
        engram.Table.queue("q", max_size=2),
        engram.Table.stack("s", max_size=3, ttl=1),
    ]


KEYS = (
    "`max_bytes`, `max_size`, `max_times_sampled`, `note`, `rate_limiter`, `remover`, `reverb_signature`, `sampler`, "
    "`seed`, `signature`, `ttl`"
)
STACK_KEYS = "`max_bytes`, `max_size`, `reverb_signature`, `signature`, `ttl`"
SELECTORS = "`fifo`, `lifo`, `max_heap`, `min_heap`, `prioritized`, `uniform`"
LIMITERS = "`MinSize`, `Queue`, `RateLimiter`, `SampleToInsertRatio`, `Stack`"


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ("max_sise = 1", f"a table has no key `max_sise`; its keys are {KEYS}"),
        ("name = 'n'", f"a table has no key `name`; its keys are {KEYS}"),
        ("a = 1\nb = 2", f"a table has no keys `a`, `b`; its keys are {KEYS}"),
        ("max_size = 0", "`max_size` must be at least 1; got 0"),
        ("max_size = '1'", "`max_size` must be an integer; got '1' (str)"),
        ("ttl = -1", "`ttl` must be greater than 0; got -1"),
        ("like = 'heap'", '`like` must be "queue" or "stack"; got \'heap\''),
        ("like = ['queue']", '`like` must be "queue" or "stack"; got [\'queue\']'),
        ("like = 'queue'", "a queue requires `max_size`"),
        (
            "like = 'stack'\nmax_size = 1\nsampler = 'fifo'",
            f"a stack has no key `sampler`; its keys are {STACK_KEYS}",
        ),
        ("sampler = 'unifrom'", f"the `kind` of `sampler` must be one of {SELECTORS}; got 'unifrom'"),
        ("remover = ['fifo']", f"the `kind` of `remover` must be one of {SELECTORS}; got ['fifo']"),
        ("sampler = { exponent = 1 }", f"the `kind` of `sampler` must be one of {SELECTORS}; got None"),
        ("rate_limiter = 'minsize'", f"the `kind` of `rate_limiter` must be one of {LIMITERS}; got 'minsize'"),
        ("rate_limiter = 'MinSize'", "`rate_limiter`: MinSize requires `min_size`"),
        (
            "rate_limiter = { kind = 'MinSize', min_size = 0 }",
            "`rate_limiter`: `min_size` must be at least 1; got 0",
        ),
        ("sampler = { kind = 'fifo', exponent = 1 }", "`sampler`: fifo has no key `exponent`; it has no keys"),
        (
            "sampler = { kind = 'prioritized', exponemt = 1 }",
            "`sampler`: prioritized has no key `exponemt`; its keys are `exponent`",
        ),
        (
            "sampler = { kind = 'prioritized', exponent = inf }",
            "`sampler`: `exponent` must be finite; got inf",
        ),
        (
            "max_size = 5\nrate_limiter = { kind = 'MinSize', min_size = 6 }",
            "nothing could ever be sampled: MinSize waits for 6 items, but `max_size` is 5; increase `max_size`",
        ),
    ],
)
def test_bad_tables_are_rejected(read, tmp_path, section, text):
    with raises(InvalidArgumentError, f"table [t] of `{tmp_path / 'tables.toml'}`: {text}"):
        read(f"[t]\n{section}")


def test_a_key_outside_any_table_is_rejected(read, tmp_path):
    file = tmp_path / "tables.toml"
    with raises(
        InvalidArgumentError, f"table [max_size] of `{file}`: a table must be a section, for example [max_size]; got 3"
    ):
        read("max_size = 3")


def test_files_without_tables_are_rejected(read, tmp_path):
    file = tmp_path / "tables.toml"
    with raises(InvalidArgumentError, f"`{file}` has no tables; each table is a section, for example [replay]"):
        read("")
    with pytest.raises(InvalidArgumentError, match=rf"^cannot read tables from `{file}`: .*line 1"):
        read("[t\n")
    file.write_bytes(b"\xff")
    with pytest.raises(InvalidArgumentError, match=rf"^cannot read tables from `{file}`: 'utf-8' codec"):
        read_tables(file)
