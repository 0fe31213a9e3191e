"""The tables of README.md and docs/performance.md: medians from the files in benchmarks/results."""

import re
from pathlib import Path
from typing import NamedTuple

from benchmarks import peers, report

# A row: its title, and for each column the row (workload and engine) of the results whose median it shows.
Row = tuple[str, *tuple[tuple[str, str] | None, ...]]


class Table(NamedTuple):
    """A table between the marks `<!-- NAME:begin -->` and `<!-- NAME:end -->` of a page."""

    page: Path
    name: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    bold: bool = True  # the best figure of each row


SMALL: tuple[Row, ...] = (
    (
        "insert, one item per step",
        ("insert_trajectory", "Engram, trajectory writer, `num_steps=2`"),
        ("insert_trajectory", "Reverb, trajectory writer"),
        ("insert_batched", "cpprb, `add` of one transition"),
    ),
    (
        "insert, 64 environments at once",
        ("insert_batched", "Engram, batched writer, 64 environments"),
        None,
        ("insert_batched", "cpprb, `add` of 64 transitions"),
    ),
    *(
        (
            f"sample batches of 256, {kind}",
            (f"sample_{kind}", "Engram, `store.sample`"),
            (f"sample_{kind}", "Reverb, in-process dataset"),
            (f"sample_{kind}", "cpprb, `sample`"),
        )
        for kind in ("uniform", "prioritized")
    ),
    (
        "update 256 priorities",
        ("update_priorities", "Engram, `update_priorities`"),
        ("update_priorities", "Reverb, `client.mutate_priorities`"),
        ("update_priorities", "cpprb, `update_priorities`"),
    ),
    (
        "memory per item of 2 steps",
        ("bytes_per_item", "Engram, pattern writer"),
        ("bytes_per_item", "Reverb, trajectory writer"),
        None,
    ),
)
ATARI: tuple[Row, ...] = (
    (
        "Atari: insert, one item per step",
        ("insert_trajectory_atari", "Engram, trajectory writer, `num_steps=2`"),
        ("insert_trajectory_atari", "Reverb, trajectory writer"),
        ("insert_batched_atari", "cpprb, `add` of one transition"),
    ),
    (
        "Atari: sample batches of 256, uniform",
        ("sample_uniform_atari", "Engram, `store.sample`"),
        ("sample_uniform_atari", "Reverb, in-process dataset"),
        ("sample_uniform_atari", "cpprb, `sample`"),
    ),
)
NETWORK: tuple[Row, ...] = (
    (
        "insert, one item per step",
        ("network_insert_trajectory", "Engram, trajectory writer, `num_steps=2`"),
        ("network_insert_trajectory", "Reverb, trajectory writer"),
    ),
    (
        "insert, 8 writers",
        ("network_insert_8_writers", "Engram, pattern writers"),
        ("network_insert_8_writers", "Reverb, structured writers"),
    ),
    (
        "sample batches of 256, prioritized",
        ("network_sample_prioritized", "Engram, `Dataset`"),
        ("network_sample_prioritized", "Reverb, dataset"),
    ),
    (
        "update 256 priorities",
        ("network_update_priorities", "Engram, `update_priorities`"),
        ("network_update_priorities", "Reverb, `client.mutate_priorities`"),
    ),
    (
        "one writer, one sampler, 4 samples per insert",
        ("network_balance", "Engram, pattern writer and `Dataset`"),
        ("network_balance", "Reverb, structured writer and dataset"),
    ),
    (
        "insert sequences of 20 Atari steps, noise",
        ("network_insert_noise", "Engram, pattern writer"),
        ("network_insert_noise", "Reverb, trajectory writer"),
    ),
    *(
        (
            f"sample sequences of 20 Atari steps, {name}",
            (f"network_sample_{kind}", "Engram, `Dataset`"),
            (f"network_sample_{kind}", "Reverb, dataset"),
        )
        for kind, name in (("noise", "noise"), ("pong", "Pong"))
    ),
    *(
        (
            f"latency of a sample, {name}",
            (f"network_latency_sample_{kind}", "Engram, `client.sample`"),
            (f"network_latency_sample_{kind}", "Reverb, dataset, one in flight"),
        )
        for kind, name in (("p50", "median"), ("p99", "99th percentile"))
    ),
    (
        "latency of an insert, median",
        ("network_latency_insert_p50", "Engram, `client.insert`"),
        ("network_latency_insert_p50", "Reverb, trajectory writer, flushed"),
    ),
    *(
        (
            f"dataset for {name}",
            (f"data_{framework}", f"Engram, `engram.data.{framework}`"),
            (f"data_{framework}", "Reverb, `TrajectoryDataset`"),
        )
        for framework, name in (("torch", "PyTorch"), ("jax", "JAX"), ("tensorflow", "TensorFlow"))
    ),
)
# Workload, writer, title.
DURABLE = (
    ("insert_trajectory_small", "trajectory", "small steps, trajectory writer"),
    ("insert_batched_small", "batched", "small steps, batched writer"),
    ("network_insert_pattern_small", "pattern", "small steps, over the network"),
    ("insert_pattern_pong", "pattern", "Pong"),
    ("network_insert_pattern_pong", "pattern", "Pong, over the network"),
    ("insert_pattern_noise", "pattern", "Atari steps of noise"),
    ("network_insert_pattern_noise", "pattern", "Atari steps of noise, over the network"),
)
BUFFERS = ("Engram", "cpprb 11", "TorchRL 0.14", "flashbax 0.1.3")
NO_SEQUENCES = ("sequences 64 x 80", "cpprb 11")  # cpprb has none
BUFFER_ROWS = (
    "add one",
    "add 64",
    "uniform 256",
    "uniform 4096",
    "sample and update 256",
    "update 256 after a sample",
    "sequences 64 x 80",
    "Atari 256",
)

PAGE = peers.ROOT / "docs" / "performance.md"
ENGINES = ("Engram", "dm-reverb 0.14")
# Holds for runs of `python -m benchmarks --runs 3` on two cores, which are the ones to publish.
IN_PROCESS = ("in process, 2 cores, median of 3 runs", *ENGINES, "cpprb 11")
TABLES = (
    Table(peers.ROOT / "README.md", "bench", IN_PROCESS, SMALL),
    Table(PAGE, "bench", IN_PROCESS, (*SMALL, *ATARI)),
    Table(PAGE, "network", ("over the network, 2 cores, median of 3 runs", *ENGINES), NETWORK),
    Table(
        PAGE,
        "durable",
        ("insert", "in memory", '`"process"`', '`"disk"`'),
        tuple(
            (
                title,
                *(
                    (f"durable_{workload}", f"{writer} writer, {kept}")
                    for kept in ("in memory", '`durability="process"`', '`durability="disk"`')
                ),
            )
            for workload, writer, title in DURABLE
        ),
        bold=False,
    ),
    Table(
        PAGE,
        "buffers",
        ("time per call", *BUFFERS),
        tuple(
            (name, *(None if (name, engine) == NO_SEQUENCES else (name, engine) for engine in BUFFERS))
            for name in BUFFER_ROWS
        ),
    ),
)
SOURCES = ("bench", "network", "data", "durable_rates", "buffers")  # files of results
NO_FIGURE = "not measured"


def medians() -> dict[tuple[str, str], str]:
    """The medians in the results by workload and engine; engines are rows of a workload, or columns."""
    found: dict[tuple[str, str], str] = {}
    for name in SOURCES:
        lines = (report.RESULTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        head, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines if line.startswith("|")]
        workload = ""
        for first, *cells in rows:
            workload = first.strip("`") or workload
            by_engine = [cells[:2]] if head[2] == "median" else zip(head[1:], cells, strict=True)
            found |= {(workload, engine): median for engine, median in by_engine if median}
    return found


def render(table: Table) -> str:
    """Renders a table; a figure that the results lack is "not measured"."""
    found = medians()
    text = f"| {' | '.join(table.head)} |\n| --- |{' ---: |' * (len(table.head) - 1)}\n"
    for title, *sources in table.rows:
        cells = [found.get(source, NO_FIGURE) if source else NO_FIGURE for source in sources]
        best = (max if "/s" in "".join(cells) else min)(filter(None, map(_figure, cells)), default=None)
        if table.bold:
            cells = [f"**{cell}**" if best is not None and _figure(cell) == best else cell for cell in cells]
        text += f"| {title} | {' | '.join(cells)} |\n"
    return text


def marks(name: str) -> tuple[str, str]:
    """The marks before and after a table of a page."""
    return f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"


def write() -> None:
    """Replaces all tables in their pages."""
    for table in TABLES:
        begin, end = marks(table.name)
        before, found_begin, rest = table.page.read_text(encoding="utf-8").partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found_begin and found_end):
            msg = f"`{table.page.relative_to(peers.ROOT)}` lacks the marks `{begin.strip()}` and `{end}`"
            raise ValueError(msg)
        table.page.write_text(f"{before}{begin}{render(table)}{end}{after}", encoding="utf-8")


def _figure(cell: str) -> float | None:
    match = re.match(r"[\d,.]+", cell)
    return float(match[0].replace(",", "")) if match else None
