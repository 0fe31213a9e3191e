"""Renders results as a Markdown table, with machine, versions and command, and writes them to the documentation."""

import os
import platform
import subprocess
import sys
from pathlib import Path

from benchmarks import peers
from benchmarks.measure import Row, ratio

PAGE = peers.ROOT / "docs" / "performance.md"
README = peers.ROOT / "README.md"
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
            "commit": f"`{commit()}`",
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
    """The measured commit, and whether the tree had uncommitted changes."""
    git = ["git", "-C", str(peers.ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    dirty = subprocess.run(
        [*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True, check=False
    )
    return (head.stdout.strip() or "unknown") + (" + changes" if dirty.stdout.strip() else "")


def write(name: str, text: str, file: Path = PAGE) -> None:
    """Replaces the text between `<!-- NAME:begin -->` and `<!-- NAME:end -->` in a file of the documentation."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    page = file.read_text(encoding="utf-8")
    if begin not in page or end not in page:
        msg = f"`{file.relative_to(peers.ROOT)}` lacks the markers `{begin}` and `{end}`"
        raise ValueError(msg)
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    file.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}", encoding="utf-8")
