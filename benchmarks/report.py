"""Renders results as a Markdown table, with machine, versions and command, and writes them to benchmarks/results."""

import io
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TextIO

from benchmarks import build, peers
from benchmarks.measure import Row, ratio

RESULTS = peers.ROOT / "benchmarks" / "results"
HEAD = (
    "| workload | engine | median | min - max | first row is better by | target | met |\n"
    "|---|---|---:|---:|---:|---|---|\n"
)


def number(value: float, digits: int = 4) -> str:
    """Renders this many significant digits, with thousands separators and without an exponent."""
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if abs(float(text)) >= 1000 else text


def table(rows: list[Row]) -> str:
    """Renders all rows; ratios compare the first row of each workload with the others."""
    baselines = {r.workload.name: r for r in rows if r.contender is r.workload.contenders[0]}
    named: set[str] = set()
    lines = []
    for row in rows:
        name = row.workload.name
        lines.append(line(row, baselines.get(name), "" if name in named else f"`{name}`"))
        named.add(name)
    return HEAD + "".join(lines)


def line(row: Row, baseline: Row | None, name: str) -> str:
    """Renders one row, with its failed runs.

    `baseline` is the workload's first row, None if it was not run; `name` is empty below the row that shows it.
    """
    factor = ratio(row, baseline) if baseline else None
    return cells(
        [name, *figures(row), f"{number(factor, 3)}x" if factor is not None else "", *target_cells(row, factor)]
    )


def cells(texts: list[str]) -> str:
    """Renders one line of a table."""
    return "| " + " | ".join(texts) + " |\n"


def figures(row: Row) -> list[str]:
    """The cells of contender, median and range; the median's cell also states how many runs failed, and an error."""
    failed = f"{len(row.errors)} run(s) failed: {row.errors[-1]}".replace("|", "/") if row.errors else ""
    if row.median is None:
        return [row.contender.label, failed, ""]
    return [
        row.contender.label,
        f"{number(row.median)} {row.workload.unit}" + (f" ({failed})" if failed else ""),
        f"{number(min(row.values))} - {number(max(row.values))}",
    ]


def target_cells(row: Row, factor: float | None) -> list[str]:
    """The cells of the target and whether it was met."""
    target = row.contender.target
    if target is None:
        return ["", ""]
    met = False if row.median is None else target.met(row.median, factor)
    return [str(target), {True: "yes", False: "**no**", None: "unknown"}[met]]


def circumstances(rows: list[Row], runs: int) -> str:
    """Renders machine, versions, command and commit."""
    versions: dict[str, str] = {}
    for row in rows:  # the engines' environments have different versions of NumPy
        versions |= {f"{k} ({row.contender.engine})" if k == "numpy" else k: v for k, v in row.versions.items()}
    command = "python -m benchmarks " + " ".join(sys.argv[1:])
    return "".join(
        f"* {key}: {value}\n"
        for key, value in {
            "machine": machine(),
            "load average at the end (1, 5, 15 minutes)": load(),
            "versions": ", ".join(f"{k} {v}" for k, v in sorted(versions.items())),
            "Python": platform.python_version(),
            "command": f"`{command.strip()}` (median of {runs} runs, each in a fresh process, engines alternating)",
            "commit": commit(),
        }.items()
    )


def machine() -> str:
    """CPU model, cores and memory."""
    facts = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((f.split(":")[1].strip() for f in facts if f.startswith("model name")), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, {platform.system()}"


def load() -> str:
    """Load averages of the machine: figures of a busy machine are provisional."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def commit() -> str:
    """The measured commit, whether the tree had uncommitted changes, and the build profile of the engine."""
    git = ["git", "-C", str(peers.ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    dirty = subprocess.run(
        # The first result that is written is not a change of what the others measure.
        [*git, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!*.md", ":!benchmarks/results"],
        capture_output=True,
        text=True,
        check=False,
    )
    name = (head.stdout.strip() or "unknown") + (" + changes" if dirty.stdout.strip() else "")
    return f"`{name}`, profile `{build.profile() or 'unknown'}`"


def facts(command: str) -> str:
    """Renders machine, load, command and commit of a measurement in this process."""
    return (
        f"* machine: {machine()}\n* load average at the end: {load()}\n* command: `{command}`\n* commit: {commit()}\n"
    )


def write(name: str, title: str, text: str) -> None:
    """Writes a table and its facts to `benchmarks/results/NAME.txt`."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.txt").write_text(f"{title}\n\n{text.strip()}\n", encoding="utf-8")


class _Copy(io.StringIO):
    """Keeps what is written, and also writes it to another stream."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(text)
        self._stream.flush()
        return super().write(text)


@contextmanager
def printed(name: str, title: str, module: str, *, to_file: bool) -> Iterator[None]:
    """Adds facts to what the body prints; with `to_file`, also writes both to `benchmarks/results/NAME.txt`."""
    output = _Copy(sys.stdout)
    with redirect_stdout(output):
        yield
        print(f"\n{facts(' '.join(['python -m', module, *sys.argv[1:]]))}")
    if to_file:
        write(name, title, output.getvalue())
