"""`engram bench`: measures the throughput and latency of a server with one client."""

from __future__ import annotations

import itertools
import json
import secrets
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import engram
from engram.cli.interrupt import EXIT_INTERRUPTED
from engram.cli.output import stdout_console, text
from engram.cli.server_options import Ca, Certificate, JsonFlag, Key, Token, exit_on_error
from engram.errors import EngramError, UnknownTableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH_SIZE = 256  # items per sample and update
NUM_ENVS = 64  # environments of the batched writer
ITEM_STEPS = 2
PRIORITIZED_ITEMS = 20_000  # approximate number of items in the prioritized table
MAX_SIZE = 100_000  # of each table


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measured rate or latency."""

    name: str
    value: float
    unit: str


def bench(
    address: Annotated[
        str | None,
        typer.Argument(
            help="Address of the server, host:port. Default: a server started for the benchmark.",
            envvar="ENGRAM_ADDRESS",
        ),
    ] = None,
    *,
    token: Token = None,
    ca: Ca = None,
    certificate: Certificate = None,
    key: Key = None,
    seconds: Annotated[float, typer.Option(help="Duration of each measurement in seconds.", min=0.01)] = 0.5,
    as_json: JsonFlag = False,
) -> None:
    """Measure a server with small steps, in two tables that are created for the benchmark and dropped afterwards."""
    own_server = not address
    stderr = Console(stderr=True)
    try:
        with exit_on_error(), ExitStack() as stack:
            server_address = address or stack.enter_context(engram.Server([])).address
            client = engram.Client(server_address, token=token, ca=ca, certificate=certificate, key=key)
            tables = stack.enter_context(_two_tables(client, stderr))
            status = stack.enter_context(stderr.status("measuring"))
            measurements = []
            for measurement in measure(client, *tables, seconds):
                status.update(f"measured: {measurement.name}")
                measurements.append(measurement)
    except KeyboardInterrupt:
        stderr.print("interrupted")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        result = {"version": engram.__version__, "address": server_address, "own_server": own_server}
        typer.echo(json.dumps(result | {"figures": [asdict(each) for each in measurements]}, indent=2))
        return
    title = f"Engram {engram.__version__}, {'own server' if own_server else server_address}; small steps, one client"
    table = Table("measurement", title=title, title_justify="left")
    table.add_column("result", justify="right")
    table.add_column("unit")
    for measurement in measurements:
        table.add_row(measurement.name, f"{measurement.value:,.0f}", measurement.unit)
    stdout_console().print(table)


@contextmanager
def _two_tables(client: engram.Client, stderr: Console) -> Iterator[tuple[str, str]]:
    """Creates a uniform and a prioritized table with unique names, yields the names, and finally drops the tables."""
    prefix = f"engram-bench-{secrets.token_hex(4)}"
    uniform = engram.Table(f"{prefix}-uniform", max_size=MAX_SIZE)
    prioritized = engram.Table(
        f"{prefix}-prioritized", max_size=MAX_SIZE, sampler=engram.selectors.Prioritized(exponent=0.6)
    )
    created: list[str] = []
    try:
        for table in (uniform, prioritized):
            created.append(table.name)  # before the call, which may create the table and then be interrupted
            try:
                client.create_table(table)
            except EngramError:
                created.pop()
                raise
        yield uniform.name, prioritized.name
    finally:
        for name in created:
            try:
                client.drop_table(name)
            except UnknownTableError:
                pass
            except EngramError as error:
                stderr.print(text(f"table `{name}` could not be dropped: {error}"))


def measure(client: engram.Client, uniform: str, prioritized: str, seconds: float) -> Iterator[Measurement]:
    """Yields all measurements, for each of which a call is repeated for `seconds`."""
    yield from _inserts(client, uniform, seconds)
    yield _sampling("sample, uniform", client, uniform, seconds)
    step = next(_steps())
    yield from _latency("one sample", lambda: client.sample(uniform, 1), seconds)
    yield from _latency("one insert", lambda: client.insert(step, {uniform: 1.0}), seconds)
    with client.batched_writer(NUM_ENVS, [engram.Pattern(prioritized, num_steps=ITEM_STEPS)]) as writer:
        for steps in itertools.islice(_steps(NUM_ENVS), PRIORITIZED_ITEMS // NUM_ENVS):
            writer.append_batch(steps)
    yield _updates(client, prioritized, seconds)
    yield _sampling("sample, prioritized", client, prioritized, seconds)


def _inserts(client: engram.Client, table: str, seconds: float) -> Iterator[Measurement]:
    """Measures each kind of writer; every step creates an item of two steps."""
    steps, batches = _steps(), _steps(NUM_ENVS)
    with client.writer(history=ITEM_STEPS) as trajectory:
        trajectory.append(next(steps))

        def trajectory_steps() -> int:
            for _ in range(100):
                trajectory.append(next(steps))
                last = {name: column[-ITEM_STEPS:] for name, column in trajectory.history.items()}
                trajectory.create_item(table, 1.0, last)
            return 100

        yield Measurement("insert, trajectory writer", _rate(trajectory_steps, seconds, trajectory.flush), "steps/s")

    with client.pattern_writer([engram.Pattern(table, num_steps=ITEM_STEPS)]) as pattern:

        def pattern_steps() -> int:
            for _ in range(100):
                pattern.append(next(steps))
            return 100

        yield Measurement("insert, pattern writer", _rate(pattern_steps, seconds, pattern.flush), "steps/s")

    with client.batched_writer(NUM_ENVS, [engram.Pattern(table, num_steps=ITEM_STEPS)]) as batched:

        def batch() -> int:
            batched.append_batch(next(batches))
            return NUM_ENVS

        yield Measurement(f"insert, {NUM_ENVS} environments", _rate(batch, seconds, batched.flush), "steps/s")


def _sampling(name: str, client: engram.Client, table: str, seconds: float) -> Measurement:
    with engram.Dataset(client, table, batch_size=BATCH_SIZE) as dataset:
        batches = iter(dataset)
        return Measurement(f"{name}, batches of {BATCH_SIZE}", _rate(lambda: len(next(batches)), seconds), "items/s")


def _updates(client: engram.Client, table: str, seconds: float) -> Measurement:
    keys = itertools.cycle([client.sample(table, BATCH_SIZE).info.key for _ in range(16)])
    priorities = np.random.default_rng(0).uniform(0.1, 10.0, BATCH_SIZE)

    def update() -> int:
        client.update_priorities(table, next(keys), priorities)
        return 1

    return Measurement(f"update {BATCH_SIZE} priorities", _rate(update, seconds), "calls/s")


def _rate(work: Callable[[], int], seconds: float, finish: Callable[[], object] = lambda: None) -> float:
    """Repeats `work` for `seconds`, then calls `finish`; returns the sum of the results of `work` per second.

    The seconds include those of `finish`.
    """
    work()  # opens connections
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        done += work()
    finish()
    return done / (time.perf_counter() - start)


def _latency(name: str, call: Callable[[], object], seconds: float) -> Iterator[Measurement]:
    """Yields the median (p50) and the 99th percentile of the duration of single calls, in microseconds."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(1e6 * (time.perf_counter() - start))
    for percent in (50, 99):
        yield Measurement(f"{name}, p{percent}", float(np.percentile(times, percent)), "us")


def _steps(*envs: int) -> Iterator[dict[str, Any]]:
    """Returns an endless iterator of random steps; with a number of environments, of steps with that leading axis."""
    observations = np.random.default_rng(0).standard_normal((256, *envs, 4), dtype=np.float32)
    ones = np.ones(envs, np.float32)
    action = ones.astype(np.int32)
    steps = [{"obs": obs, "action": action, "reward": ones, "discount": ones} for obs in observations]
    return itertools.cycle(steps)
