"""Tables from a TOML file: its keys, and the errors of bad ones."""

import re
from pathlib import Path

import pytest
from helpers.support import raises

import engram
from engram import rate_limiters, selectors
from engram.cli.tables import read_tables
from engram.errors import InvalidArgumentError


def test_keys_set_the_options_of_a_table(read):
    text = """
    [all]
    max_size = 10
    sampler = { kind = "Prioritized", exponent = 1 }
    remover = "Lifo"
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


ARGUMENTS = {
    "Prioritized": {"exponent": 0.3},
    "MinSize": {"min_size": 2},
    "SampleToInsertRatio": {"samples_per_insert": 1.5, "min_size": 2, "error_buffer": 4.0},
    "Queue": {"size": 3},
    "Stack": {"size": 3},
    "RateLimiter": {"samples_per_insert": 1.5, "min_size": 2, "min_diff": -1.0, "max_diff": 9.0},
}


@pytest.mark.parametrize(
    ("role", "module", "kind"),
    [
        *(("sampler", selectors, kind) for kind in selectors.__all__ if kind != "Selector"),
        *(("rate_limiter", rate_limiters, kind) for kind in rate_limiters.__all__),
    ],
)
def test_kinds_and_arguments_are_spelled_as_in_python(read, role, module, kind):
    arguments = ARGUMENTS.get(kind, {})
    options = "".join(f", {name} = {value}" for name, value in arguments.items())
    made = getattr(module, kind)(**arguments)
    assert read(f'[t]\n{role} = {{ kind = "{kind}"{options} }}') == [engram.Table("t", **{role: made})]
    if not arguments:
        assert read(f'[t]\n{role} = "{kind}"') == [engram.Table("t", **{role: made})]


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
SELECTORS = "`Fifo`, `Lifo`, `MaxHeap`, `MinHeap`, `Prioritized`, `Uniform`"
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
            "like = 'stack'\nmax_size = 1\nsampler = 'Fifo'",
            f"a stack has no key `sampler`; its keys are {STACK_KEYS}",
        ),
        ("sampler = 'uniform'", f"the `kind` of `sampler` must be one of {SELECTORS}; got 'uniform'"),
        ("remover = ['Fifo']", f"the `kind` of `remover` must be one of {SELECTORS}; got ['Fifo']"),
        ("sampler = { exponent = 1 }", f"the `kind` of `sampler` must be one of {SELECTORS}; got None"),
        ("rate_limiter = 'minsize'", f"the `kind` of `rate_limiter` must be one of {LIMITERS}; got 'minsize'"),
        ("rate_limiter = 'MinSize'", "`rate_limiter`: MinSize requires `min_size`"),
        (
            "rate_limiter = { kind = 'MinSize', min_size = 0 }",
            "`rate_limiter`: `min_size` must be at least 1; got 0",
        ),
        ("sampler = { kind = 'Fifo', exponent = 1 }", "`sampler`: Fifo has no key `exponent`; it has no keys"),
        (
            "sampler = { kind = 'Prioritized', exponemt = 1 }",
            "`sampler`: Prioritized has no key `exponemt`; its keys are `exponent`",
        ),
        (
            "sampler = { kind = 'Prioritized', exponent = inf }",
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
        InvalidArgumentError,
        f"`{file}`: the key `max_size` is outside of a table; each table is a section, for example [replay]; got 3",
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


def test_the_documented_file_is_valid(read):
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    signature = {
        "observation": engram.ArraySpec((None, 84, 84), "float32"),
        "action": engram.ArraySpec((None,), "int64"),
    }
    assert read(text) == [
        engram.Table(
            "replay",
            sampler=selectors.Prioritized(0.6),
            remover=selectors.Fifo(),
            rate_limiter=rate_limiters.SampleToInsertRatio(16, 1_000, 8_000),
        ),
        engram.Table.queue("trajectories", max_size=100, signature=signature),
    ]
